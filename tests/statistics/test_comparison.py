"""Comparisons are paired if the windows are the same, and state it if they are not."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_up import CONTEXTUAL, MODEL, PRETRAINED, SEES_TARGET, made_up_tables, related_words
from tokenizers import Tokenizer, processors

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.selectors import MAIN_SELECTORS
from olmo_sparsity.statistics.intervals.bootstrap import MIN_DOCUMENTS
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.ratios import MIN_RATIO_DOCUMENTS
from olmo_sparsity.statistics.several import subjects as reading
from olmo_sparsity.statistics.several.comparison import Comparison, _main_quantities, compare, main_rows
from olmo_sparsity.statistics.several.differences import difference
from olmo_sparsity.statistics.several.subjects import (
    CHOSEN,
    Subject,
    pairing_of,
    read_subjects,
    same_windows,
)
from olmo_sparsity.statistics.single.measurement import Measurement, SelectionKey, load
from olmo_sparsity.statistics.single.summary import summarize
from olmo_sparsity.storage.files import sha256_text
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.text.vocabulary import read_tokenizer, train_bpe
from olmo_sparsity.view.as_json import comparison_json
from olmo_sparsity.view.console import print_comparison, print_summary
from olmo_sparsity.wording.comparison import compared_words, differences_sentences, optimism_warning, pairings_words
from olmo_sparsity.wording.evidence import harm_words
from olmo_sparsity.wording.gates import gates_words
from olmo_sparsity.wording.numbers import verdict
from olmo_sparsity.wording.setup import (
    anchor_warning,
    measured_words,
    overlap_words,
)


def named(folder: Path, run: str, **settings: Any) -> str:
    """Write made-up tables of a run with this name."""
    made_up_tables(folder / run, **settings)
    manifest = json.loads((folder / run / "manifest.json").read_text())
    write_manifest(folder / run, {**manifest, "run": run, **settings.get("manifest", {})})
    return str(folder / run)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("comparison")
    return {
        "pose": named(folder, "pose", seed=1),
        "no-pose": named(folder, "no-pose", seed=1, long_gain=-0.2),
        "other": named(folder, "other", seed=2),
        "weaker": named(folder, "weaker", seed=1, long_gain=0.3),
    }


@pytest.fixture(scope="module")
def weaker(folders: dict[str, str]) -> Comparison:
    """The comparison of two runs that differ in their long gains."""
    return compare(read_subjects([folders["pose"], folders["weaker"]]))


def width(estimate: Estimate | None) -> float:
    assert estimate is not None and estimate.bounds is not None
    low, high = estimate.bounds
    return high - low


def test_the_same_windows_are_paired(folders: dict[str, str], weaker: Comparison) -> None:
    numbers = weaker
    json.dumps(comparison_json(numbers), allow_nan=False)
    assert numbers.labels == ["pose", "weaker"]
    (pairing,) = numbers.pairings
    assert pairing.paired and "same 90 windows" in pairings_words(numbers)[0]
    a, b = load(Path(folders["pose"])), load(Path(folders["weaker"]))
    expected, summaries = difference(a, b), [summarize(a), summarize(b)]
    assert [subject.summary for subject in numbers.subjects] == summaries
    for row in numbers.rows:
        if row.selector is None or row.k is None:
            assert row.differences == (expected.of_windows(row.quantity),)
            assert row.values == tuple(summary.of_windows(row.quantity) for summary in summaries)
        else:
            key = SelectionKey(row.selector, "real", row.k)
            assert row.differences == (expected.of_selection(key, row.quantity),)
            assert row.values == tuple(summary.at(*key).estimate(row.quantity) for summary in summaries)
    # This is what pairing is for: the long gains differ by a constant factor of the class, not by chance.
    long = next(row for row in numbers.rows if row.quantity == "long_gain_nats")
    assert verdict(long.differences[0]) == "lower"
    assert width(long.differences[0]) < 0.5 * width(long.values[0])


def test_other_windows_are_not_paired_and_the_output_states_it(folders: dict[str, str]) -> None:
    subjects = read_subjects([folders["pose"], folders["other"]])
    assert not same_windows(subjects[0].measurement, subjects[1].measurement)
    numbers = compare(subjects)
    (pairing,) = numbers.pairings
    assert not pairing.paired
    assert "NOT PAIRED" in pairings_words(numbers)[0]
    assert "60 documents are in both" in pairings_words(numbers)[0]


def test_same_ids_of_other_text_are_not_the_same_windows(folders: dict[str, str]) -> None:
    one = load(Path(folders["pose"]))
    other = dataclasses.replace(one, manifest={**one.manifest, "tokens_sha256": "else"})
    assert same_windows(one, one)
    assert not same_windows(one, other)
    lengths = {**one.manifest["context"], "full_len": 30}
    longer = dataclasses.replace(one, manifest={**one.manifest, "context": lengths})
    assert not same_windows(one, longer)


def with_model(subject: Subject, tokenizer_sha256: str) -> Subject:
    """Return a subject as if it were of a pretrained model, on text of other tokens."""
    hashes = {"tokenizer_sha256": tokenizer_sha256}
    changed = {"model": {**MODEL, **hashes}, **hashes, "tokens_sha256": f"of {tokenizer_sha256}"}
    measurement = dataclasses.replace(subject.measurement, manifest={**subject.measurement.manifest, **changed})
    return dataclasses.replace(subject, measurement=measurement)


def test_nats_of_different_tokenizers_are_not_compared(folders: dict[str, str]) -> None:
    run, other = (
        dataclasses.replace(
            subject, measurement=subject.measurement.restrict_selectors({"kl": "kl", "random": "random"})
        )
        for subject in read_subjects([folders["pose"], folders["other"]])
    )
    one, same, another = with_model(run, "a"), with_model(other, "a"), with_model(other, "b")
    same = dataclasses.replace(same, measurement=with_text(same.measurement, "other text"))
    own, others = with_tokenizer(run, "own"), with_tokenizer(other, "others")
    for first, second, same_tokens in (
        (own, others, False),
        (own, with_tokenizer(other, "own"), True),
        (with_tokenizer(run, "a"), same, True),
        (own, same, False),
        (run, another, False),
        (one, another, False),
        (one, same, True),
        (run, other, True),
    ):
        numbers = compare([first, second])
        assert numbers.pairings[0].same_tokens is same_tokens
        assert ("the tokenizers differ" in pairings_words(numbers)[0]) is not same_tokens
        for row in numbers.rows:
            is_compared = row.differences[0] is not None
            assert is_compared is (None not in row.values and (same_tokens or row.is_fraction)), row
        said = differences_sentences(numbers)[0]
        assert ("different tokenizers, so nothing in nats is compared" in said) is not same_tokens
    of_own = with_tokenizer(other, "own")
    text = dataclasses.replace(of_own, measurement=with_text(of_own.measurement, "other text"))
    assert "the texts differ, the tokenizer is the same" in pairings_words(compare([own, text]))[0]


def test_a_run_and_its_export_have_the_same_tokenizer(tmp_path: Path) -> None:
    """Its file may be another, with options written out; what counts are the entries and what they make of a text."""
    own = train_bpe(["the river and the stones under the river"] * 20, 300, eos_token="<|endoftext|>")
    exported = Tokenizer.from_str(own.to_str())
    exported.post_processor = processors.ByteLevel(trim_offsets=False)
    merged = json.loads(own.to_str())
    merged["model"]["merges"] = []  # the same entries, but other tokens of a text
    (larger := Tokenizer.from_str(own.to_str())).add_tokens(["river"])
    assert len({tokenizer.to_str() for tokenizer in (own, exported, larger)}) == 3
    first = of_tokenizer(tmp_path / "run", own)
    for name, tokenizer, is_same in (
        ("export", exported, True),
        ("merged", Tokenizer.from_str(json.dumps(merged)), False),
        ("larger", larger, False),
    ):
        second = of_tokenizer(tmp_path / name, tokenizer)
        (pairing,) = compare(read_subjects([str(first), str(second)])).pairings
        assert pairing.same_tokens is is_same
    (second / "tokenizer.json").unlink()  # as of tables that were copied elsewhere: only the hashes tell
    (pairing,) = compare(read_subjects([str(first), str(second)])).pairings
    assert not pairing.same_tokens


@pytest.mark.parametrize(("differing", "alike"), [("first", False), ("second", False), ("neither", True)])
def test_tokenizers_must_agree_on_the_texts_of_both_measurements(
    differing: str, alike: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its merges a tokenizer has the same entries, and makes other tokens of what they were learned from."""
    own = train_bpe(["zqxj"] * 20, 300, eos_token="<|endoftext|>")
    merged = json.loads(own.to_str())
    merged["model"]["merges"] = []
    tokenizers = {"first": own, "second": Tokenizer.from_str(json.dumps(merged))}
    monkeypatch.setattr(reading, "tokenizer_of", lambda folder: tokenizers[folder.name])
    monkeypatch.setattr(reading, "_some_texts", lambda folder, _: ["e", "zqxj" if folder.name == differing else "r"])
    assert reading._encode_alike(Path("first"), Path("second")) is alike


def of_tokenizer(run: Path, tokenizer: Tokenizer) -> Path:
    """Write made-up tables of a run with this tokenizer, of a text of its own."""
    tables = made_up_tables(run / "influence" / "tables", num_documents=55)
    tokenizer.save(str(run / "tokenizer.json"))
    sha256 = sha256_text(read_tokenizer(run / "tokenizer.json").to_str())
    changed = {"tokenizer_sha256": sha256, "tokens_sha256": f"of {run.name}", "run": run.name}
    write_manifest(tables, json.loads((tables / "manifest.json").read_text()) | changed)
    return run


def test_where_random_choices_raise_the_loss_the_summary_says_so(
    folders: dict[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = compare(read_subjects([folders["pose"], folders["no-pose"]]))
    harmed = [subject.label for subject in numbers.subjects if harm_words(subject.summary)]
    assert harmed == ["no-pose"]
    for subject in numbers.subjects:
        print_summary(subject.tables)
        shown = capsys.readouterr().out
        assert ("Random choices raise the loss" in shown) == (subject.label in harmed)
    assert harm_words(numbers.subjects[1].summary).endswith("more than what the choice itself gains.")


def with_tokenizer(subject: Subject, tokenizer_sha256: str) -> Subject:
    """Return the same measurement with this hash of its tokenizer, as if it were of text of its own."""
    changed = {"tokenizer_sha256": tokenizer_sha256, "tokens_sha256": f"of {subject.label}"}
    measurement = dataclasses.replace(subject.measurement, manifest={**subject.measurement.manifest, **changed})
    return dataclasses.replace(subject, measurement=measurement)


def with_text(measurement: Measurement, tokens_sha256: str) -> Measurement:
    """Return the same measurement as if it were of other text."""
    return dataclasses.replace(measurement, manifest={**measurement.manifest, "tokens_sha256": tokens_sha256})


def apart(measurement: Measurement, prefix: str) -> Measurement:
    """Return the same measurement with other document IDs."""
    windows = measurement.windows.assign(doc_id=prefix + measurement.windows["doc_id"])
    return dataclasses.replace(measurement, windows=windows)


def test_an_unpaired_difference_of_other_documents_is_as_wide_as_two_independent_ones(folders: dict[str, str]) -> None:
    a, b = load(Path(folders["pose"])), load(Path(folders["other"]))
    apart_by = difference(apart(a, "a"), apart(b, "b")).of_windows("long_gain_nats")
    gains = [summarize(one).long_gain_nats for one in (a, b)]
    assert apart_by.mean == pytest.approx(gains[1].mean - gains[0].mean)
    assert width(apart_by) == pytest.approx(np.hypot(width(gains[0]), width(gains[1])), rel=0.1)


def test_a_difference_of_measurements_with_some_documents_in_common_by_brute_force(folders: dict[str, str]) -> None:
    """Documents of both are drawn in both at once; windows weigh unequally, and one measurement has fewer of them."""
    a, b = (load(Path(folders[name])) for name in ("pose", "other"))
    a, b = (
        dataclasses.replace(one, windows=one.windows.assign(weight=1.0 + np.arange(len(one.windows)) % every))
        for one, every in ((a, 4), (b, 3))
    )
    b = b.restrict((b.windows["doc_id"] != b.windows["doc_id"][0]).to_numpy())
    renamed = np.where(b.windows.index % 2, b.windows["doc_id"], "x" + b.windows["doc_id"])
    b = dataclasses.replace(b, windows=b.windows.assign(doc_id=renamed))
    documents = list(dict.fromkeys([*a.windows["doc_id"], *b.windows["doc_id"]]))
    assert len(documents) > max(a.windows["doc_id"].nunique(), b.windows["doc_id"].nunique())
    draws = np.random.default_rng(0).integers(0, len(documents), (2000, len(documents)))
    means = []
    for one in (a, b):
        sums_U2 = np.zeros((len(documents), 2))
        for doc_id, weight, gain in zip(
            one.windows["doc_id"], one.windows["weight"], one.windows["gain_long_nats"], strict=True
        ):
            sums_U2[documents.index(doc_id)] += weight, weight * gain
        means.append(
            [sums_U2[drawn, 1].sum() / sums_U2[drawn, 0].sum() for drawn in (np.arange(len(documents)), *draws)]
        )
    value, *resampled = np.subtract(means[1], means[0])
    found = difference(a, b).of_windows("long_gain_nats")
    assert (found.mean, found.low, found.high) == pytest.approx((value, *np.percentile(resampled, [2.5, 97.5])))
    assert found.standard_error == pytest.approx(np.std(resampled, ddof=1))


@pytest.mark.parametrize("which", [0, 1])
def test_as_many_documents_as_an_interval_needs_on_each_side(folders: dict[str, str], which: int) -> None:
    for num in (MIN_DOCUMENTS - 1, MIN_DOCUMENTS):
        pair = [load(Path(folders[name])) for name in ("pose", "other")]
        few = pair[which].windows["doc_id"].unique()[:num]
        pair[which] = pair[which].restrict(pair[which].windows["doc_id"].isin(few).to_numpy())
        assert difference(*pair).of_windows("long_gain_nats").has_interval is (num == MIN_DOCUMENTS)


def test_what_two_measurements_have_in_common(folders: dict[str, str]) -> None:
    one, other = load(Path(folders["pose"])), load(Path(folders["other"]))
    few = other.restrict(np.arange(len(other.windows)) < 37)
    pairing = pairing_of(one, few)
    assert pairing.num_windows == (len(one.windows), 37)
    assert (
        pairing.num_shared_documents == len({d for d in few.windows["doc_id"] if d in set(one.windows["doc_id"])}) < 37
    )
    assert (pairing.paired, pairing.same_text, pairing.same_lengths) == (False, True, True)

    def changed(**entries: Any) -> Measurement:
        return dataclasses.replace(one, manifest={**one.manifest, **entries})

    for key, size in (("local_len", 6), ("full_len", 30)):
        pairing = pairing_of(one, changed(context={**one.manifest["context"], key: size}))
        assert (pairing.paired, pairing.same_text, pairing.same_lengths) == (False, True, False)
    pairing = pairing_of(one, changed(windows_sha256="else"))
    assert (pairing.paired, pairing.same_text, pairing.same_lengths) == (False, True, True)
    pairing = pairing_of(changed(tokens_sha256="a"), changed(tokens_sha256="b"))
    assert (pairing.paired, pairing.same_text, pairing.same_lengths) == (False, False, True)
    for column in ("window_id", "doc_id"):
        values = one.windows[column].to_numpy().copy()
        values[[2, 5]] = values[[5, 2]]
        moved = dataclasses.replace(one, windows=one.windows.assign(**{column: values}))
        assert values[2] != values[5] and not pairing_of(one, moved).paired


def test_few_documents_on_either_side_have_no_interval(folders: dict[str, str]) -> None:
    a, b = load(Path(folders["pose"])), load(Path(folders["other"]))
    few = b.windows["doc_id"].unique()[: MIN_DOCUMENTS - 1]
    differences = difference(a, b.restrict(b.windows["doc_id"].isin(few).to_numpy()))
    assert not any(value.has_interval for value in differences.numbers.values() if value is not None)
    assert verdict(differences.of_windows("long_gain_nats")) == "fewer than 50 documents"


def test_a_difference_of_d_is_paired_and_takes_documents_enough_on_both_sides(tmp_path: Path) -> None:
    num = MIN_RATIO_DOCUMENTS
    first = load(made_up_tables(tmp_path / "tables", num, selectors=["kl", "random"]))
    key = SelectionKey("kl", "real", 1)
    divergences = first.divergences.copy()
    divergences[tuple(key)] = 0.9 * divergences[tuple(key)] + 0.002 * (np.arange(len(divergences)) % 3)
    second = dataclasses.replace(first, divergences=divergences)
    of_d = difference(first, second).of_selection(key, "prediction_recovered")
    both = [summarize(one).at(*key).prediction_recovered for one in (first, second)]
    assert of_d is not None and of_d.mean == pytest.approx(both[1].mean - both[0].mean)
    assert width(of_d) < 0.5 * np.hypot(width(both[0]), width(both[1]))
    few = second.restrict((second.windows["doc_id"] != second.windows["doc_id"][0]).to_numpy())
    assert few.num_documents == num - 1
    fewer = difference(first, few)
    assert not fewer.of_selection(key, "prediction_recovered").has_interval
    assert fewer.of_selection(key, "gain_sparse_nats").has_interval


def test_a_failed_gate_leaves_no_fraction(folders: dict[str, str]) -> None:
    """Of the run whose gate failed, be it the first or the second."""
    for names in (["pose", "no-pose"], ["no-pose", "pose"]):
        numbers = compare(read_subjects([folders[name] for name in names]))
        failed = names.index("no-pose")
        assert [subject.summary.gate for subject in numbers.subjects].index("failed") == failed
        assert numbers.subjects[1 - failed].summary.gate == "passed"
        fractions = [row for row in numbers.rows if row.quantity == "recovered_fraction"]
        assert len(fractions) == 30 and all(row.is_fraction for row in fractions)
        for row in fractions:
            assert row.values[1 - failed] is not None and row.values[failed] is None and row.differences == (None,)
    both = compare(read_subjects([folders["no-pose"]] * 2))  # the rows stay, with dashes, where no subject has a number
    fractions = [row for row in both.rows if row.quantity == "recovered_fraction"]
    assert len(fractions) == 30 and {row.values + row.differences for row in fractions} == {(None, None, None)}
    assert both.labels == [folders["no-pose"]] * 2  # equal names do not tell them apart


def test_the_main_rows_are_the_headline_at_the_smallest_and_the_largest_k(weaker: Comparison) -> None:
    """Of selectors that do not see the target R(k), gain over random, targets with enough; of others the corrected gain."""
    rows = main_rows(weaker)
    of_windows = [row.quantity for row in rows if row.selector is None]
    assert of_windows[2:4] == ["long_gain_nats", "gain_beyond_nats"]
    headline = {
        "unmask-one": ["corrected_gain_nats"],
        "kl": ["recovered_fraction", "gain_over_random_nats", "sufficient_share"],
        "attention": ["recovered_fraction", "gain_over_random_nats", "sufficient_share"],
        "random": ["recovered_fraction", "sufficient_share"],
    }
    found = {(row.selector, row.quantity, row.k) for row in rows if row.selector is not None}
    assert found == {(selector, name, k) for selector, names in headline.items() for name in names for k in (1, 8)}


def test_which_rows_of_all_windows_are_gains(weaker: Comparison) -> None:
    """Losses are some ten times as large, and shares of targets are no nats: neither stands in a figure of gains."""
    of_windows = {row.quantity: row.is_gain for row in weaker.rows if row.selector is None}
    assert {name for name, is_gain in of_windows.items() if is_gain} == {
        "long_gain_nats", "gain_beyond_nats", "null_long_gain_nats",
    }  # fmt: skip
    assert len(of_windows) == 6


def test_the_headline_is_of_k_that_are_few_in_every_measurement(weaker: Comparison) -> None:
    """Of three groups a window has in one of them, 8 are all, though the other has more."""
    keys = [SelectionKey(selector, "real", k) for selector in ("kl", "random") for k in (1, 2, 8)]
    for num_units, largest in (((12.0, 3.0), 2), ((3.0, 12.0), 2), ((12.0, 12.0), 8)):
        summaries = [
            dataclasses.replace(subject.summary, num_units=num)
            for subject, num in zip(weaker.subjects, num_units, strict=True)
        ]
        assert {key.k for key in keys if _main_quantities(key, keys, summaries)} == {1, largest}


def test_gain_over_random_and_corrected_gain_exclude_each_other(weaker: Comparison) -> None:
    for row in weaker.rows:
        if row.quantity in ("gain_over_random_nats", "corrected_gain_nats") and row.selector is not None:
            is_corrected = SEES_TARGET[row.selector] or row.selector == "random"
            assert is_corrected == (row.quantity == "corrected_gain_nats")
            assert None not in row.values and None not in row.differences
        if row.selector is not None:
            includes = SEES_TARGET[row.selector] and row.quantity in ("recovered_fraction", "gain_sparse_nats")
            assert ("includes optimism" in compared_words(row)) == includes


def test_other_rows_and_other_means_are_said(folders: dict[str, str]) -> None:
    """Gains beyond rows of other lengths, and means over targets and over given windows, are not the same quantity."""
    one, other = load(Path(folders["pose"])), load(Path(folders["other"]))

    def changed(measurement: Measurement, train_len: int, sampling: str) -> Measurement:
        manifest = {**measurement.manifest, "influence": {"sampling": sampling}}
        manifest["context"] = {**manifest["context"], "train_len": train_len}
        return dataclasses.replace(measurement, manifest=manifest)

    shuffled = dataclasses.replace(one, manifest={**one.manifest, "influence": {"null_context": "shuffled"}})
    kind = pairing_of(shuffled, one)
    assert kind.paired and "; the null context differs (shuffled, " in related_words(shuffled, one)
    assert "null context" not in related_words(one, one)
    assert "training rows" not in related_words(one, one)
    assert "training rows have 8 and 20 tokens" in related_words(one, changed(one, 20, "targets"))
    assert "means over" not in related_words(one, changed(other, 8, "targets"))
    assert "means over targets and over given windows" in related_words(one, changed(other, 8, "given"))


@pytest.fixture(scope="module")
def models(folders: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A run, and a pretrained model measured under both definitions, all on the same windows."""
    folder = tmp_path_factory.mktemp("models")
    made_up_tables(folder / "hidden", seed=1, setup=PRETRAINED, selectors=MAIN_SELECTORS)
    made_up_tables(folder / "contextual", seed=1, setup=CONTEXTUAL, selectors=MAIN_SELECTORS)
    return [folders["pose"], str(folder / "hidden"), str(folder / "contextual")]


def test_a_run_and_a_pretrained_model_are_compared(models: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    subjects = read_subjects(models)
    numbers = compare(subjects)
    json.dumps(comparison_json(numbers), allow_nan=False)
    name = "someone/Made-Up-2M"
    assert numbers.labels == ["pose", f"{name}, hidden, no anchor", f"{name}, contextual, anchor"]
    assert all(pairing.paired for pairing in numbers.pairings)
    hidden, contextual = pairings_words(numbers)
    assert "visibility" not in hidden and "only one of them has a known training row" in hidden
    assert "visibility differs (hidden, contextual)" in contextual and "different quantities" in contextual
    beyond = next(row for row in numbers.rows if row.quantity == "gain_beyond_nats")
    assert beyond.values[0] is not None and beyond.values[1:] == (None, None) == beyond.differences
    long = next(row for row in numbers.rows if row.quantity == "long_gain_nats")
    assert [verdict(difference) for difference in long.differences] == ["equal", "equal"]
    print_comparison(subjects)
    said = capsys.readouterr().out
    for subject in numbers.subjects:
        summary, shown = subject.summary, " ".join(said.split())
        assert measured_words(summary) in shown and overlap_words(summary) in shown
        assert anchor_warning(summary.setup) in shown


def test_two_pretrained_models_have_no_row_of_the_training_row(models: list[str]) -> None:
    numbers = compare(read_subjects(models[1:]))
    assert "gain_beyond_nats" not in {row.quantity for row in numbers.rows}
    assert numbers.pairings[0].paired and "training row" not in pairings_words(numbers)[0]


def test_selectors_of_one_run(folders: dict[str, str]) -> None:
    subjects = read_subjects([f"{folders['pose']}:kl", f"{folders['pose']}:unmask-one"])
    numbers = compare(subjects)
    assert numbers.pairings[0].paired
    assert [bool(optimism_warning(subject)) for subject in numbers.subjects] == [False, True]
    assert {row.selector for row in numbers.rows} == {None, CHOSEN}
    measurement = load(Path(folders["pose"]))
    main = {(row.quantity, row.k): row for row in main_rows(numbers)}
    gains = measurement.gains
    for k in (1, 8):
        row = main["gain_sparse_nats", k]
        difference = (gains["unmask-one", "real", k] - gains["kl", "real", k]).mean()
        assert row.differences[0] is not None and row.differences[0].mean == pytest.approx(difference)
        assert compared_words(row) == "sparse gain, nats (includes optimism)"
    # One sees the target and the other does not: neither headline is defined for both.
    over_random, rest = main["gain_over_random_nats", 8], main["corrected_gain_nats", 8]
    assert over_random.values[0] is not None and over_random.values[1] is None
    assert rest.values[0] is None and rest.values[1] is not None
    assert over_random.differences == rest.differences == (None,)
    long = next(row for row in numbers.rows if row.quantity == "long_gain_nats")
    assert verdict(long.differences[0]) == "equal"
    turned = {(row.quantity, row.k): row for row in compare(subjects[::-1]).rows}["gain_over_random_nats", 8]
    assert turned.values == over_random.values[::-1] and turned.differences == (None,)


def test_what_not_all_have_is_not_compared(folders: dict[str, str]) -> None:
    """The last of three lacks selectors; where none of the main ones is left, another one makes the headline."""
    first, other = read_subjects([folders["pose"], folders["other"]])

    def of(subject: Subject, *names: str) -> Subject:
        restricted = subject.measurement.restrict_selectors({name: name for name in names})
        return dataclasses.replace(subject, measurement=restricted)

    both = ("kl", "nearest")
    numbers = compare([of(first, *both), of(other, *both), of(other, "nearest")])
    assert {row.selector for row in numbers.rows} == {None, "nearest"}
    assert {(row.quantity, row.k) for row in main_rows(numbers) if row.selector == "nearest"} == {
        (name, k) for name in ("recovered_fraction", "sufficient_share") for k in (1, 8)
    }
    with pytest.raises(UserError, match=r"^compare: these measurements have no selector and k in common$"):
        compare([of(first, "kl"), of(other, "nearest")])


def test_where_two_of_several_names_are_equal_all_are_what_was_typed(folders: dict[str, str]) -> None:
    pose, weaker = folders["pose"], folders["weaker"]
    for texts, labels in (
        ([pose, weaker, pose], [pose, weaker, pose]),
        ([f"{pose}:kl", f"{weaker}:kl", f"{pose}:kl"], [f"{pose}:kl", f"{weaker}:kl", f"{pose}:kl"]),
        ([f"{pose}:kl", f"{weaker}:kl", f"{pose}:greedy"], ["pose:kl", "weaker:kl", "pose:greedy"]),
    ):
        assert [subject.label for subject in read_subjects(texts)] == labels


def test_random_is_compared_like_any_selector(folders: dict[str, str], tmp_path: Path) -> None:
    one, other = read_subjects([f"{folders['pose']}:random", f"{folders['pose']}:kl"])
    assert [list(subject.measurement.selectors) for subject in (one, other)] == [[CHOSEN], [CHOSEN, "random"]]
    gains = load(Path(folders["pose"])).gains
    row = next(row for row in compare([one, other]).rows if (row.quantity, row.k) == ("gain_sparse_nats", 2))
    assert [value and value.mean for value in row.values] == pytest.approx(
        [gains[name, "real", 2].mean() for name in ("random", "kl")]
    )
    folder = tmp_path / "run:kl"
    folder.mkdir()
    assert reading._split(str(folder)) == (folder, None)  # a path that exists is a run as it is
    assert reading._split(f"{folder}:kl") == (folder, "kl")


def test_mistakes(folders: dict[str, str], tmp_path: Path) -> None:
    pose = folders["pose"]
    for texts, said in (
        ([pose], "two runs or more"),
        ([f"{pose}:kl", pose], "name a selector for every run"),
        ([pose, str(tmp_path / "nowhere")], "no such folder"),
        ([pose, str(tmp_path)], "nothing has been measured"),
        ([pose, f"{tmp_path}/nowhere:mine"], "nowhere:mine: no such folder"),
        ([pose, f"{tmp_path}:mine"], f"{tmp_path}: nothing has been measured"),
    ):
        with pytest.raises(UserError, match=said):
            read_subjects(texts)


def test_three_runs_are_printed(folders: dict[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    subjects = read_subjects([folders["pose"], folders["weaker"], folders["other"]])
    numbers = compare(subjects)
    print_comparison(subjects)
    said = capsys.readouterr().out
    assert "weaker minus pose: paired" in said and "other minus pose: NOT PAIRED" in said
    assert "gain over random" in said and "corrected gain" in said and "gain beyond the training row" in said
    assert " ".join(said.split()).count(gates_words(numbers.subjects[1].summary)) == 1
