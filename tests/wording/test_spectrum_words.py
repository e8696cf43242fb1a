"""The sentences, tables and JSON of the dependency spectrum: their words follow the intervals, and no number is lost."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from known_selectors import only_here as only_here
from made_up import made_up_tables

from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.spectrum import TOLERANCES, Curve, Spectra, Spectrum, spectra
from olmo_sparsity.statistics.single.summary import summarize
from olmo_sparsity.view.as_json import spectra_json
from olmo_sparsity.view.summary_tables import every_spectrum_table, spectrum_table
from olmo_sparsity.wording.spectrum import spectrum_sentences

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


@pytest.mark.usefixtures("only_here")
@pytest.mark.parametrize(("recorded", "now"), [("attention", True), ("unmask-one", False)])
def test_the_tables_say_whether_a_selector_sees_the_target(measured: Measured, recorded: str, now: bool) -> None:
    """One of one's own may have been declared anew since, under the same name."""
    SELECTORS["mine"] = replace(SELECTORS["bm25"], name="mine", sees_target=now)
    measurement = measured.measurement.restrict_selectors({recorded: "mine", "nearest": "nearest", "random": "random"})
    _, words, _ = spectrum_sentences(spectra(measurement), summarize(measurement))
    assert ("chosen by mine" in words) == (recorded == "attention")


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


def test_tables_hold_what_the_spectra_say(measured: Measured) -> None:
    spectra, summary = measured.spectra, measured.summary
    table = spectrum_table(spectra, summary)
    names = [row[0].text for row in table.rows]
    assert names == ["kl", "greedy-kl", "attention", "nearest", "random"]
    for row in table.rows:
        expected = [spectra.of(row[0].text, c).reaching(s) for c in ("real", "null") for s in (0.5, 0.8, 0.9)]  # type: ignore[union-attr]
        assert [(cell.value, cell.low, cell.high) for cell in row[1:]] == [(k.value, k.low, k.high) for k in expected]
    assert len(every_spectrum_table(spectra, summary).rows) == len(spectra.by_curve) == 2 * 4 * 10


def test_json_flags_what_needs_more_than_every_measured_k(measured: Measured) -> None:
    found = json.loads(json.dumps(spectra_json(measured.spectra), allow_nan=False))
    assert (found["row_k"], found["max_k"], len(found["curves"])) == (0, 8, 80)
    for entry, (curve, spectrum) in zip(found["curves"], measured.spectra.by_curve.items(), strict=True):
        assert (entry["family"], entry["tolerance_nats"]) == (curve[0], curve[2])
        assert [share["mean"] for share in entry["shares"]] == [share.mean for share in spectrum.shares]
        assert [one["value"] for one in entry["reaching"]] == [spectrum.reaching(s).value for s in (0.5, 0.8, 0.9)]
    assert any(one["value"] is None for entry in found["curves"] for one in entry["reaching"])
    assert [one["tolerance_nats"] for one in found["beyond_row"]] == [*TOLERANCES] * 2
