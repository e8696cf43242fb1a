"""Summaries over the seeds of a model: the numbers, which measurements they are of, the table, JSON and errors."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import planted_gains
import pytest
from conftest import Messages
from known_selectors import only_here as only_here
from made_up import KS, SEES_TARGET
from made_up_runs import made_up_measurement, made_up_run
from scipy import stats

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.selectors import MAIN_SELECTORS
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.seed_summary import (
    SeedRow,
    SeedSummary,
    _matching_tables,
    read_seeds,
    seed_rows,
    summarize_seeds,
)
from olmo_sparsity.statistics.several.trained_models import same_model
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.summary import summarize
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.view.console import Form
from olmo_sparsity.view.seed_table import print_seeds
from olmo_sparsity.wording.numbers import interval

LONG_GAINS = (0.4, 0.5, 0.7)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three seeds of a model. The first was also measured with other windows, after that."""
    folder = tmp_path_factory.mktemp("seeds")
    runs = [made_up_run(folder / f"seed{seed}", seed=seed) for seed in range(3)]
    for seed, (run, long_gain) in enumerate(zip(runs, LONG_GAINS, strict=True)):
        made_up_measurement(run, long_gain, windows_per_part=100 + seed)
    made_up_measurement(runs[0], 0.3, name="newer", windows_sha256="other windows")
    return runs


@pytest.fixture(scope="module")
def numbers(runs: list[Path]) -> SeedSummary:
    return read_seeds(runs)


@pytest.fixture(scope="module")
def unequal(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Two seeds, of whose measurements a test makes one another for a moment."""
    folder = tmp_path_factory.mktemp("unequal")
    runs = [made_up_run(folder / f"seed{seed}", seed=seed) for seed in range(2)]
    for run in runs:
        made_up_measurement(run, 0.5)
    return runs


def value(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.mean


def row_of(
    rows: list[SeedRow], quantity: str, selector: str | None = None, context: str = "real", k: int = 8
) -> SeedRow:
    (row,) = (
        row for row in rows
        if row.quantity == quantity and (selector is None or (row.selector, row.context, row.k) == (selector, context, k))
    )  # fmt: skip
    return row


def test_the_newest_measurement_that_all_seeds_have_is_read(numbers: SeedSummary, runs: list[Path]) -> None:
    assert numbers.tables == tuple(run / "influence" / "made-up" for run in runs)
    assert numbers.model.seeds == (0, 1, 2)
    assert list(numbers.of_seeds) == [summarize(load(tables)) for tables in numbers.tables]


def test_means_are_over_the_seeds_and_intervals_include_them(numbers: SeedSummary) -> None:
    of_seeds = np.array([summary.long_gain_nats.mean for summary in numbers.of_seeds])
    gain = numbers.mean.long_gain_nats
    assert gain.mean == pytest.approx(of_seeds.mean())
    over_documents = numbers.of_seeds[1].long_gain_nats.standard_error
    assert over_documents is not None and gain.standard_error is not None
    expected = np.hypot(
        stats.sem(of_seeds), over_documents
    )  # the documents' part of the mean is that of any seed, nearly
    assert gain.standard_error == pytest.approx(expected, rel=0.05)
    assert gain.bounds is not None and np.ptp(gain.bounds) > 3 * stats.sem(of_seeds)


def test_ratios_are_of_the_means_over_the_seeds(numbers: SeedSummary) -> None:
    sparse = [value(summary.at("kl", "real", 8).gain_sparse_nats) for summary in numbers.of_seeds]
    long_gains = [summary.long_gain_nats.mean for summary in numbers.of_seeds]
    assert value(numbers.mean.at("kl", "real", 8).recovered_fraction) == pytest.approx(
        np.mean(sparse) / np.mean(long_gains)
    )


def test_numbers_that_no_seed_changes_have_the_interval_over_documents(numbers: SeedSummary) -> None:
    """The divergences are the same for all seeds."""
    of_mean, of_seed = (s.at("kl", "real", 1).prediction_recovered for s in (numbers.mean, numbers.of_seeds[0]))
    assert of_mean is not None and of_seed is not None
    assert of_mean.mean == pytest.approx(of_seed.mean)
    assert of_mean.standard_error == pytest.approx(of_seed.standard_error)


def test_the_gates_are_those_of_the_interval_over_seeds(tmp_path: Path) -> None:
    """Each seed passes by its documents, but a fourth seed could be one without a gain."""
    runs = [made_up_run(tmp_path / f"seed{seed}", seed=seed) for seed in range(3)]
    for run, long_gain in zip(runs, (0.15, 0.2, 0.9), strict=True):
        made_up_measurement(run, long_gain)
    numbers = read_seeds(runs)
    assert [summary.gate for summary in numbers.of_seeds] == ["passed"] * 3
    assert numbers.mean.gate == "failed"
    assert numbers.mean.at("kl", "real", 8).recovered_fraction is None
    assert numbers.of_seeds[0].at("kl", "real", 8).recovered_fraction is not None


@pytest.mark.parametrize(
    ("baseline", "gain", "gate"),
    [
        ("loss_short_nats", "gate_gain_nats", "gate"),
        ("loss_short_no_gap_nats", "gate_gain_nats", "gate"),
        ("loss_train_len_nats", "gain_beyond_nats", "beyond_gate"),
        ("loss_train_len_no_gap_nats", "gain_beyond_nats", "beyond_gate"),
    ],
)
def test_a_gate_passes_over_seeds_only_where_it_would_with_both_losses(
    tmp_path: Path, baseline: str, gain: str, gate: str
) -> None:
    """The seeds differ in one of the two losses alone, which is the higher one in each of them."""
    runs = [made_up_run(tmp_path / f"seed{seed}", seed=seed) for seed in range(3)]
    measurements = []
    for run, more in zip(runs, (0.06, 0.11, 2.3), strict=True):
        measurement = load(made_up_measurement(run, 0.5))
        columns = {baseline: measurement.windows[baseline] + more}
        if baseline == "loss_short_nats":
            columns["gain_long_nats"] = measurement.windows["gain_long_nats"] + more
        measurements.append(dataclasses.replace(measurement, windows=measurement.windows.assign(**columns)))
    numbers = summarize_seeds(same_model(runs), runs, measurements=measurements)
    assert [getattr(summary, gate) for summary in numbers.of_seeds] == ["passed"] * 3
    of_mean, of_seed = numbers.mean.of_windows(gain), numbers.of_seeds[1].of_windows(gain)
    assert of_mean is not None and of_seed is not None
    assert of_mean.mean == pytest.approx(of_seed.mean, abs=1e-6)
    assert of_mean.low is not None and of_mean.low < -0.5
    assert of_mean.high == pytest.approx(of_seed.high, abs=0.01)
    assert getattr(numbers.mean, gate) == "failed"
    if baseline == "loss_short_nats":
        assert of_mean.low == pytest.approx(numbers.mean.long_gain_nats.low, abs=1e-6)
        assert not numbers.mean.may_be_gap and numbers.mean.at("kl", "real", 8).recovered_fraction is None


def test_intervals_of_shares_over_seeds_do_not_leave_their_range(tmp_path: Path) -> None:
    """Two seeds of which nearly all targets need nothing, or one token, differ enough for a t interval far beyond 1."""
    runs = [made_up_run(tmp_path / f"seed{seed}", seed=seed) for seed in range(2)]
    measurements = []
    for small, left in ((0.9, 0.02), (0.97, 0.3)):
        measurement = planted_gains.made_up(320, 0.5)
        num = len(measurement.windows)
        short = np.where(np.arange(num) < small * num, 0.01, 2.0)
        windows = measurement.windows.assign(kl_short_nats=short, null_kl_short_nats=2.01 - short)
        divergences = measurement.divergences.mul(0.0).add(left * short, axis=0)
        measurements.append(dataclasses.replace(measurement, windows=windows, divergences=divergences))
    mean = summarize_seeds(same_model(runs), runs, measurements=measurements).mean
    entry = mean.at("kl", "real", 4)
    for share, least, most in (
        (mean.none_needed_share, 0, 1), (mean.null_none_needed_share, 0, 1), (entry.sufficient_share, 0, 1),
        (entry.prediction_recovered, -100, 1),
    ):  # fmt: skip
        assert share is not None and share.low is not None and share.high is not None
        assert least <= share.low < share.mean < share.high <= most
    assert mean.none_needed_share is not None and mean.none_needed_share.high == 1
    assert mean.null_none_needed_share is not None and mean.null_none_needed_share.low == 0
    assert entry.prediction_recovered is not None and entry.prediction_recovered.high == 1
    assert mean.long_gain_nats.has_interval and mean.loss_short_nats.low is not None and mean.loss_short_nats.low > 1


def test_intervals_of_losses_divergences_and_correlations_over_seeds_do_not_leave_their_range(tmp_path: Path) -> None:
    """Of two seeds one is near 0, or near a correlation of 1, and the other far from it."""
    runs = [made_up_run(tmp_path / f"seed{seed}", seed=seed) for seed in range(2)]
    measurements = []
    for size, correlated in ((0.02, True), (0.4, False)):
        measurement = planted_gains.made_up(320, 0.5)
        noise = np.random.default_rng(4).normal(0, 1, len(measurement.windows))
        names = ("kl_short_nats", "null_kl_short_nats", "loss_long_nats", "loss_short_no_gap_nats")
        columns = {name: size + 0.001 * i + 0.001 * noise for i, name in enumerate(names, 1)}
        gain = measurement.windows["gain_long_nats"]
        gains = measurement.gains.copy()
        gains["kl", "real", 1] = gain if correlated else 0.2 * noise
        gains["kl", "real", 4] = -gain if correlated else 0.2 * noise
        measurements.append(
            dataclasses.replace(measurement, windows=measurement.windows.assign(**columns), gains=gains)
        )
    mean = summarize_seeds(same_model(runs), runs, measurements=measurements).mean
    for name in names:
        of_windows = mean.of_windows(name)
        assert of_windows is not None and of_windows.low == 0.0 < of_windows.mean < 0.3 and of_windows.high is not None
        assert of_windows.high > 1
    up, down = (mean.at("kl", "real", k).figure4.correlation for k in (1, 4))
    assert up is not None and up.high == 1.0 and up.low is not None and up.low < up.mean < 1
    assert down is not None and down.low == -1.0 and down.high is not None and -1 < down.mean < down.high


def test_the_mean_number_of_tokens_is_over_the_seeds(tmp_path: Path) -> None:
    """Seeds choose other groups, which have other numbers of tokens."""
    runs = [made_up_run(tmp_path / f"seed{seed}", seed=seed) for seed in range(3)]
    measurements = []
    for run, tokens in zip(runs, (3.0, 4.0, 9.5), strict=True):
        measurement = load(made_up_measurement(run, 0.5))
        num_tokens = measurement.gains.mul(0.0).add(tokens) + measurement.gains.columns.get_level_values("k")
        measurements.append(dataclasses.replace(measurement, num_tokens=num_tokens))
    mean = summarize_seeds(same_model(runs), runs, measurements=measurements).mean
    assert [mean.at("kl", "real", k).mean_tokens for k in KS] == pytest.approx([5.5 + k for k in KS])
    assert mean.at("random", "null", 2).mean_tokens == pytest.approx(7.5)


def test_rows_hold_the_numbers_of_interest(numbers: SeedSummary) -> None:
    rows = seed_rows(numbers, every=False)
    assert [row.quantity for row in rows if row.selector is None] == [
        "loss_short_nats", "loss_long_nats", "long_gain_nats", "gain_beyond_nats", "null_long_gain_nats",
        "none_needed_share",
    ]  # fmt: skip
    shown = {(row.selector, row.quantity) for row in rows if row.selector is not None}
    for selector in MAIN_SELECTORS:
        of_blind = {"recovered_fraction", "gain_over_random_nats", "sufficient_share"}
        wanted = {"corrected_gain_nats"} if SEES_TARGET[selector] else of_blind
        assert {name for of, name in shown if of == selector} == wanted - (
            {"gain_over_random_nats"} if selector == "random" else set()
        )
    assert {row.k for row in rows if row.selector is not None} == set(KS)  # the ends, and the largest k up to a quarter
    row = row_of(rows, "gain_over_random_nats", "kl")
    assert row.mean == numbers.mean.at("kl", "real", 8).gain_over_random_nats
    assert row.of_seeds == tuple(summary.at("kl", "real", 8).gain_over_random_nats for summary in numbers.of_seeds)


def test_a_k_that_is_not_shown_has_rows_only_where_every_k_is_asked_for(numbers: SeedSummary) -> None:
    """Of 100 tokens the k 1 and 8 are shown, and 2 between them is not."""
    of_many = dataclasses.replace(numbers, mean=dataclasses.replace(numbers.mean, num_units=100.0))
    for every, ks in ((False, {1, 8}), (True, {1, 2, 8})):
        assert {row.k for row in seed_rows(of_many, every=every) if row.k is not None} == ks


def test_what_does_not_apply_has_no_row(numbers: SeedSummary) -> None:
    """Of a ceiling nothing lies beyond the training row."""
    ceiling = dataclasses.replace(numbers, mean=dataclasses.replace(numbers.mean, beyond_gate="not-applicable"))
    names = [[row.quantity for row in seed_rows(of, every=False)] for of in (numbers, ceiling)]
    assert names[1] == [name for name in names[0] if name != "gain_beyond_nats"] != names[0]


def test_every_row_has_prediction_recovered_with_its_company(numbers: SeedSummary) -> None:
    rows = seed_rows(numbers, every=True)
    assert {row.k for row in rows if row.selector is not None} == set(KS)
    for selector, context, words in (
        ("kl", "real", "D(k)"), ("random", "real", "D(k)"), ("kl", "null", "D(k), null"),
    ):  # fmt: skip
        row = row_of(rows, "prediction_recovered", selector, context, 2)
        assert (row.words, row.mean) == (words, numbers.mean.at(selector, context, 2).prediction_recovered)


def test_the_table_shows_mean_and_seeds(
    runs: list[Path], numbers: SeedSummary, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    print_seeds(runs)
    printed = capsys.readouterr().out
    assert "means over 3 seeds of training" in printed and "Gate passed" in printed
    line = next(line for line in printed.splitlines() if "│ long gain, nats" in line)
    assert [cell.strip() for cell in line.split("│")[1:-1]] == [
        "long gain, nats", "", "", interval(numbers.mean.long_gain_nats, 4),
        *(f"{summary.long_gain_nats.mean:.4f}" for summary in numbers.of_seeds),
    ]  # fmt: skip


def test_json_holds_the_mean_and_every_seed(
    runs: list[Path], numbers: SeedSummary, capsys: pytest.CaptureFixture[str]
) -> None:
    print_seeds(runs, form=Form.json)
    printed = json.loads(capsys.readouterr().out)
    assert (printed["seeds"], printed["runs"]) == ([0, 1, 2], [str(run) for run in runs])
    assert printed["mean"]["long_gain_nats"]["mean"] == numbers.mean.long_gain_nats.mean
    assert [of["long_gain_nats"]["mean"] for of in printed["of_seeds"]] == [
        summary.long_gain_nats.mean for summary in numbers.of_seeds
    ]


def test_csv_names_the_definition_and_every_run(runs: list[Path], capsys: pytest.CaptureFixture[str]) -> None:
    print_seeds(runs, form=Form.csv)
    header, first, *_ = csv.reader(io.StringIO(capsys.readouterr().out))
    row = dict(zip(header, first, strict=True))
    assert row["run"] == ", ".join(run.name for run in runs)
    assert [row[name] for name in ("model", "visibility", "anchor", "k_unit")] == ["", "hidden", "", "token"]


@pytest.mark.parametrize("form", [Form.csv, Form.text])
@pytest.mark.parametrize("every", [False, True])
def test_csv_always_holds_every_k_and_d(
    runs: list[Path], form: Form, every: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    print_seeds(runs, every=every, form=form)
    assert ("D(k), null" in capsys.readouterr().out) == (every or form is Form.csv)


def test_below_the_means_stand_the_controls_of_one_measurement(
    runs: list[Path], numbers: SeedSummary, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The optimism and the placebo of a selector that sees the target, D under the null context of one that does not."""
    monkeypatch.setenv("COLUMNS", "240")
    print_seeds(runs)
    lines = [[cell.strip() for cell in line.split("│")[1:-1]] for line in capsys.readouterr().out.splitlines()]
    real, null = (numbers.mean.at("unmask-one", context, 8) for context in ("real", "null"))
    gains = (real.gain_sparse_nats, real.optimism_nats, real.corrected_gain_nats, null.corrected_gain_nats)
    assert ["unmask-one", "8", *(interval(gain, 3) for gain in gains)] in [line[:2] + line[-4:] for line in lines]
    of_kl = numbers.mean.at("kl", "null", 8).prediction_recovered
    assert of_kl is not None
    (row,) = (line for line in lines if line[:2] == ["kl", "8"])
    assert row[-1] == interval(of_kl, 2)
    of_seeds = [value(summary.at("unmask-one", "real", 8).corrected_gain_nats) for summary in numbers.of_seeds]
    assert len(set(of_seeds)) == 3 and value(real.corrected_gain_nats) == pytest.approx(np.mean(of_seeds))


@pytest.mark.parametrize("form", [Form.csv, Form.md, Form.tex])
def test_every_form_has_the_controls(runs: list[Path], form: Form, capsys: pytest.CaptureFixture[str]) -> None:
    print_seeds(runs, form=form)
    printed = capsys.readouterr().out
    for name in ("optimism", "placebo", "null context"):
        assert name in printed
    if form is Form.csv:
        rows = list(csv.DictReader(io.StringIO(printed)))
        of_every_k = {(row["selector"], row["context"], row["k"]) for row in rows if row["table"] == "every k"}
        assert {("unmask-one", "null", "2"), ("random", "real", "8")} <= of_every_k


def test_seeds_without_a_common_measurement_are_refused_in_one_line(tmp_path: Path) -> None:
    runs = [made_up_run(tmp_path / f"seed{seed}", seed=seed) for seed in range(2)]
    with pytest.raises(UserError, match="seed0: nothing has been measured"):
        read_seeds(runs)
    made_up_measurement(runs[0], 0.5)
    made_up_measurement(runs[1], 0.5, seed=4)
    with pytest.raises(
        UserError, match=r"seed0, .*seed1: these runs have no measurement with the same windows"
    ) as caught:
        read_seeds(runs)
    assert "\n" not in str(caught.value)


def test_of_several_common_measurements_the_newest_of_each_seed_is_read(tmp_path: Path) -> None:
    runs = [made_up_run(tmp_path / f"seed{seed}", seed=seed) for seed in range(2)]
    made_up = made_up_measurement(tmp_path / "template", 0.5)
    for name, number in (("a", 5), ("b", 5), ("c", 6), ("d", 6), ("e", 5)):
        for run in runs[: 1 if name == "e" else 2]:
            folder = run / "influence" / name
            shutil.copytree(made_up, folder)
            manifest = read_json(folder / "manifest.json")
            write_manifest(
                folder, {**manifest, "finished": name, "influence": {**manifest["influence"], "seed": number}}
            )
    assert _matching_tables(runs) == [runs[0] / "influence" / "e", runs[1] / "influence" / "b"]
    assert _matching_tables(runs[::-1]) == [runs[1] / "influence" / "d", runs[0] / "influence" / "d"]


def test_measurements_of_other_windows_or_selections_are_not_summarized(runs: list[Path], numbers: SeedSummary) -> None:
    first, second, _ = (load(tables) for tables in numbers.tables)
    model = same_model(runs[:2])
    assert summarize_seeds(model, numbers.tables[:2], measurements=[first, second]).num_seeds == 2
    fewer = second.restrict_selectors({"kl": "kl", "random": "random"})
    for other in (fewer, second.restrict(np.arange(len(second.windows)) > 0)):
        with pytest.raises(UserError, match=r"seed0 and .*seed1 were not measured on the same windows with the same"):
            summarize_seeds(model, numbers.tables[:2], measurements=[first, other])


@pytest.mark.parametrize(
    "changed",
    [
        {"checkpoint": {"step": 200, "model_sha256": "seed1"}},
        {"windows_sha256": "others"},
        {"tokens_sha256": "others"},
        {"visibility": "contextual"},
        {"anchor": {"id": 7, "text": "<bos>"}},
        {"influence": {"seed": 1}},
        {"influence": {"k": [1, 2, 4]}},
        {"context": {"local_len": 4}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_seeds_that_were_measured_otherwise_are_not_pooled(changed: dict[str, Any], unequal: list[Path]) -> None:
    """At another step of training, on other windows or text, under another definition, or with other settings."""
    folder = unequal[1] / "influence" / "made-up"
    manifest = read_json(folder / "manifest.json")
    sections = ("influence", "context")
    entries = {name: {**manifest[name], **value} if name in sections else value for name, value in changed.items()}
    write_manifest(folder, {**manifest, **entries})
    with pytest.raises(UserError, match="these runs have no measurement with the same windows and settings"):
        read_seeds(unequal)
    write_manifest(folder, manifest)
    assert _matching_tables(unequal) == [run / "influence" / "made-up" for run in unequal]


def test_seeds_whose_own_selectors_have_other_sources_are_not_pooled(
    unequal: list[Path], only_here: None, messages: Messages
) -> None:
    look = {"color": "#112233", "marker": "o", "on_light": "#112233", "on_dark": "#ddeeff"}
    entry = {"file": "mine.py", "needs": [], "sees_target": False, "meaning": "mine.", "look": look}
    folders = [run / "influence" / "made-up" for run in unequal]
    manifests = [read_json(folder / "manifest.json") for folder in folders]

    def write_sources(*sources: str | None) -> None:
        for folder, manifest, sha256 in zip(folders, manifests, sources, strict=True):
            write_manifest(folder, {**manifest, "own_selectors": {"mine": {**entry, "sha256": sha256}}})

    write_sources("0", "1")
    with pytest.raises(UserError, match="these runs have no measurement with the same windows and settings"):
        read_seeds(unequal)
    write_sources("0", "0")
    assert _matching_tables(unequal) == folders
    read_seeds(unequal)
    assert list(messages) == []
    write_sources(None, None)
    assert read_seeds(unequal).num_seeds == 2
    assert f"{folders[0]} and {folders[1]}: it cannot be told whether the selector mine is the same" in messages[-1]
    for folder, manifest in zip(folders, manifests, strict=True):
        write_manifest(folder, manifest)


def test_how_a_measurement_was_computed_does_not_matter(unequal: list[Path]) -> None:
    folder = unequal[1] / "influence" / "made-up"
    manifest = read_json(folder / "manifest.json")
    computed = {
        "path": "masked",
        "batch_tokens": 99,
        "windows_per_part": 3,
    }
    write_manifest(folder, {**manifest, "influence": {**manifest["influence"], **computed}})
    assert _matching_tables(unequal) == [run / "influence" / "made-up" for run in unequal]
    write_manifest(folder, manifest)
