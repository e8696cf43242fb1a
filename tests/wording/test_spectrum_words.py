"""The sentences, tables and JSON of the dependency spectrum: their words follow the intervals, and no number is lost."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from known_selectors import only_here as only_here
from made_up import PRETRAINED, made_up_tables

from analysis import spectrum as spectrum_figure
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.spectrum import TOLERANCES, Curve, Spectra, Spectrum, spectra
from olmo_sparsity.statistics.single.summary import Summary, summarize
from olmo_sparsity.view.as_json import spectra_json
from olmo_sparsity.view.summary_tables import every_spectrum_table, spectrum_table
from olmo_sparsity.wording.spectrum import spectrum_caption, spectrum_sentences

KS = (0, 1, 2, 4, 8)


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Measured:
    folder = made_up_tables(tmp_path_factory.mktemp("words") / "tables", long_gain=0.6)
    return Measured.read(folder)


def curve_at(family: str, context: str, ninety: tuple[int, int, int] | None, *, has_band: bool = True) -> Spectrum:
    """Return a spectrum of which 90% of the targets need some k, with the ends of its interval; None: more than measured."""

    def share(k: int) -> Estimate:
        if ninety is None:
            return Estimate(0.3, 0.2, 0.4)
        low, value, high = ninety
        enough = [0.95 if k >= limit else 0.4 for limit in (value, high, low)]
        return Estimate(enough[0], min(enough), max(enough)) if has_band else Estimate(enough[0])

    return Spectrum(Curve(family, context, 0.05), KS, tuple(map(share, KS)))


def spectra_of(
    chosen: tuple[int, int, int] | None,
    near: tuple[int, int, int] | None,
    row_k: int | None = None,
    *,
    has_band: bool = True,
) -> Spectra:
    numbers = {"kl": chosen, "nearest": near, "random": (8, 8, 8)}
    by_curve = {
        spectrum.curve: spectrum
        for context in ("real", "null")
        for family, ninety in numbers.items()
        for spectrum in [curve_at(family, context, ninety, has_band=has_band)]
    }
    return Spectra(by_curve, row_k=row_k, max_k=8)


@pytest.mark.parametrize(
    ("chosen", "near", "said", "not_said"),
    [
        ((1, 2, 2), (8, 8, 8), "sparse, few chosen ones", "near, "),
        ((1, 2, 2), (4, 4, 8), "is not clear", "sparse"),  # more than 2, and 3 were not measured
        ((1, 2, 2), None, "sparse, few chosen ones", "near, "),
        ((1, 1, 1), (1, 2, 2), "near, a short suffix", "sparse"),
        ((0, 0, 0), (0, 0, 0), "of 12 long-range tokens: these targets need none of them.", "near, "),
        ((0, 0, 1), (0, 0, 1), "near, a short suffix", "need none"),  # not shown of all of them
        ((2, 2, 4), (8, 8, 8), "few are not shown to suffice", "sparse"),  # 4 of 12 are more than a quarter
        (None, None, "few are not shown to suffice", "sparse"),
        ((1, 2, 2), (2, 4, 8), "is not clear", "sparse"),
    ],
)
def test_sparse_and_near_follow_the_intervals(
    measured: Measured, chosen: tuple[int, int, int], near: tuple[int, int, int], said: str, not_said: str
) -> None:
    """Few are at most a quarter of the 12 long-range tokens, 3."""
    _, words, _ = spectrum_sentences(spectra_of(chosen, near), measured.summary)
    assert said in words and not_said not in words


@pytest.mark.usefixtures("only_here")
@pytest.mark.parametrize(("recorded", "now"), [("attention", True), ("unmask-one", False)])
def test_the_tables_say_whether_a_selector_sees_the_target(measured: Measured, recorded: str, now: bool) -> None:
    """One of one's own may have been declared anew since, under the same name."""
    SELECTORS["mine"] = replace(SELECTORS["bm25"], name="mine", sees_target=now)
    measurement = measured.measurement.restrict_selectors({recorded: "mine", "nearest": "nearest", "random": "random"})
    _, words, _ = spectrum_sentences(spectra(measurement), summarize(measurement))
    assert ("chosen by mine" in words) == (recorded == "attention")


def test_more_than_every_measured_k_is_not_long_where_few_are_more(measured: Measured) -> None:
    """A quarter of 64 is 16, and the largest measured k is 8: between 9 and 16 nearest tokens may suffice."""
    of_64 = dataclasses.replace(measured.summary, num_units=64.0)
    _, words, _ = spectrum_sentences(spectra_of((1, 2, 2), None), of_64)
    assert "is not clear" in words and "sparse" not in words


def test_without_a_band_nothing_is_told(measured: Measured) -> None:
    _, words, _ = spectrum_sentences(spectra_of((1, 1, 1), (8, 8, 8), has_band=False), measured.summary)
    assert words.endswith("of 12 long-range tokens: too few documents to tell.")
    assert "it takes 1 chosen by kl, 8 nearest ones" in words


def test_what_too_few_measured_tokens_are_enough_for_is_not_said_to_need_more(measured: Measured) -> None:
    """8 nearest tokens are enough for 30% of the targets: 70% of them need more, not 90%."""
    _, words, reaction = spectrum_sentences(spectra_of((1, 2, 2), None), measured.summary)
    assert words.startswith(
        "For 90% of the targets it takes 2 [1, 2] chosen by kl, more than 8 [> 8, > 8] nearest ones, 8 [8, 8] "
    )
    assert "for 90% it takes 2 [1, 2] chosen by kl, more than 8 [> 8, > 8] nearest ones" in reaction
    assert "need" not in words + reaction


def test_the_interval_stands_where_no_measured_k_is_enough(measured: Measured) -> None:
    """At k = 8 the share is 0.4 and its band reaches 0.95: 8 may be enough for 90%."""
    of = spectra_of((1, 2, 2), (8, 9, 9))
    _, words, _ = spectrum_sentences(of, measured.summary)
    assert spectrum_table(of, measured.summary).rows[1][3].text == "> 8 [8, > 8]"
    assert ", more than 8 [8, > 8] nearest ones, " in words


def test_the_row_is_mentioned_where_it_is_known(measured: Measured) -> None:
    none, _, _ = spectrum_sentences(spectra_of((2, 2, 2), (4, 4, 4), row_k=2), measured.summary)
    assert "60% [60, 60] need tokens beyond the training row" in none and "is no gain" in none
    none, _, _ = spectrum_sentences(spectra_of((2, 2, 2), (4, 4, 4)), measured.summary)
    assert "row" not in none and none.startswith("40% [40, 40] of the targets need no long-range token:")


def test_shares_under_the_null_context_are_those_of_the_null_context(measured: Measured) -> None:
    of_real = spectra_of((1, 2, 2), (4, 4, 4), row_k=2)
    of_null = [
        curve_at("kl", "null", None),
        curve_at("nearest", "null", (1, 1, 2)),
        curve_at("random", "null", (2, 4, 4)),
    ]
    both = replace(of_real, by_curve=of_real.by_curve | {spectrum.curve: spectrum for spectrum in of_null})
    none, needed, reaction = spectrum_sentences(both, measured.summary)
    assert none.startswith("40% [40, 40] of the targets need no long-range token:")
    assert "of the full context (null context: 30% [20, 40])." in none
    assert "60% [60, 60] need tokens beyond the training row, more than the last 8 (null context: 5% [5, 5])." in none
    assert needed.startswith(
        "For 90% of the targets it takes 2 [1, 2] chosen by kl, 4 [4, 4] nearest ones, 8 [8, 8] random ones"
    )
    assert (
        "under the null context, for 90% it takes more than 8 [> 8, > 8] chosen by kl, 1 [1, 2] nearest ones, 4 [2, 4] random "
        "ones." in reaction
    )


def test_r_of_k_stands_beside_unless_the_gate_failed(measured: Measured) -> None:
    def reaction(summary: Summary) -> str:
        return spectrum_sentences(spectra_of((2, 2, 2), (8, 8, 8)), summary)[2]

    summary = measured.summary
    assert summary.gate_passed
    recovered = summary.at("greedy-kl", "real", 2).recovered_fraction
    assert recovered is not None
    kl_only = replace(summary, selections=tuple(s for s in summary.selections if s.selector != "greedy-kl"))
    assert (
        f"2 tokens chosen by kl give back R(2) = {summary.at('kl', 'real', 2).recovered_fraction.mean:.2f}"
        in reaction(kl_only)
    )  # type: ignore[union-attr]
    (_, _, one) = spectrum_sentences(spectra_of((1, 1, 1), (8, 8, 8)), kl_only)
    assert "In the real context one token chosen by kl gives back R(1) = " in one
    failed = replace(kl_only.without_recovered_fractions(), gate="failed")
    assert "R(2)" not in reaction(failed) and "No R(k) stands beside it" in reaction(failed)


def test_tables_hold_what_the_spectra_say(measured: Measured) -> None:
    spectra, summary = measured.spectra, measured.summary
    table = spectrum_table(spectra, summary)
    names = [row[0].text for row in table.rows]
    assert names == ["kl", "greedy-kl", "attention", "nearest", "random"]
    for row in table.rows:
        expected = [spectra.of(row[0].text, c).reaching(s) for c in ("real", "null") for s in (0.5, 0.8, 0.9)]  # type: ignore[union-attr]
        assert [(cell.value, cell.low, cell.high) for cell in row[1:]] == [(k.value, k.low, k.high) for k in expected]
    assert len(every_spectrum_table(spectra, summary).rows) == len(spectra.by_curve) == 2 * 4 * 10


def test_captions_say_which_k_is_enough(measured: Measured) -> None:
    spectra = spectra_of((1, 2, 4), (2, 4, 8))
    short, every = (spectrum_caption(spectra, measured.summary, every=every) for every in (False, True))
    assert short.startswith(
        "k is enough where KL(p_all, p_{J_k}) is at most 0.05 nats. 0: the local tokens are enough. > 8: more"
    )
    assert every.startswith("k is enough where KL(p_all, p_{J_k}) is at most the tolerance. 0: ")
    assert every.replace("the tolerance", "0.05 nats") == short
    assert spectrum_table(measured.spectra, measured.summary).caption.startswith(short[:55])
    assert every_spectrum_table(measured.spectra, measured.summary).caption.startswith(every[:55])


def test_of_entries_no_target_is_called_near(measured: Measured) -> None:
    """An entry has read all before it: by way of the nearest ones a target may reach further back than they lie."""
    near, tokens = spectra_of((1, 2, 2), (2, 2, 2)), measured.summary
    entries = replace(tokens, setup=replace(tokens.setup, visibility="contextual"))
    needed = [spectrum_sentences(near, summary)[1] for summary in (tokens, entries)]
    assert needed[0].endswith(" long-range tokens: these targets are near, a short suffix suffices.")
    assert needed[1].endswith(" long-range entries: few of the nearest suffice.")
    assert "the last k long-range tokens, so how far a target reaches. Of a" in spectrum_caption(near, tokens)
    caption = spectrum_caption(near, entries)
    assert (
        "the last k long-range entries, so how far back a target's attention must go; what stands further back may "
        in caption
    )
    assert "how far a target reaches" not in caption


def test_json_flags_what_needs_more_than_every_measured_k(measured: Measured) -> None:
    found = json.loads(json.dumps(spectra_json(measured.spectra), allow_nan=False))
    assert (found["row_k"], found["max_k"], len(found["curves"])) == (0, 8, 80)
    for entry, (curve, spectrum) in zip(found["curves"], measured.spectra.by_curve.items(), strict=True):
        assert (entry["family"], entry["tolerance_nats"]) == (curve[0], curve[2])
        assert [share["mean"] for share in entry["shares"]] == [share.mean for share in spectrum.shares]
        assert [one["value"] for one in entry["reaching"]] == [spectrum.reaching(s).value for s in (0.5, 0.8, 0.9)]
    assert any(one["value"] is None for entry in found["curves"] for one in entry["reaching"])
    assert [one["tolerance_nats"] for one in found["beyond_row"]] == [*TOLERANCES] * 2


def test_without_a_blind_selector_only_the_local_tokens_are_spoken_of(measured: Measured) -> None:
    few = measured.measurement.restrict_selectors({"unmask-one": "unmask-one"})
    none, needed, reaction = spectrum_sentences(spectra(few), summarize(few))
    assert "need no long-range token" in none and needed.startswith("No selector that does not see the target")
    assert reaction == "This is the model's reaction, useful or not."


def test_entries_are_counted_under_contextual(tmp_path: Path) -> None:
    setup = {**PRETRAINED, "visibility": "contextual"}
    measured = Measured.read(made_up_tables(tmp_path / "tables", setup=setup))
    none, needed, _ = spectrum_sentences(measured.spectra, measured.summary)
    assert "need no long-range entry" in none and "long-range entries" in needed and "row" not in none


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_every_output_says_where_rounding_distorts_small_tolerances(precision: str, measured: Measured) -> None:
    measurement = replace(measured.measurement, manifest={**measured.measurement.manifest, "precision": precision})
    found = spectra(measurement, tolerances=[0.05])
    assert found.is_rounded == spectra_json(found)["is_rounded"] == (precision == "bf16")
    captions = [table(found, measured.summary).caption for table in (spectrum_table, every_spectrum_table)]
    assert {"Measured in bf16" in caption for caption in captions} == {precision == "bf16"}
    (drawn,) = spectrum_figure.draw(Measured(measured.tables, measurement, measured.summary))
    plt.close(drawn.figure)
    assert ("Measured in bf16" in str(drawn.figure.get_label())) == (precision == "bf16")
