"""What figures say to those who do not see them: one text with the main numbers, those of the measurement."""

from __future__ import annotations

from pathlib import Path

from drawn_figures import FIGURES, read

from olmo_sparsity.wording.findings import (
    distance_finding,
    gains_finding,
)
from olmo_sparsity.wording.numbers import interval, percent


def test_gains_are_those_of_a_selector_that_does_not_see_the_target(tables: Path) -> None:
    both = read(tables, "unmask-one", "kl", "random").summary
    seeing = read(tables, "unmask-one").summary
    for k in (1, 8):
        entry, unseen = both.at("kl", "real", k), both.at("unmask-one", "real", k)
        assert f"R({k}) = {interval(entry.recovered_fraction)}" in gains_finding(both)
        assert interval(unseen.corrected_gain_nats, 3) not in gains_finding(both)
        assert interval(unseen.corrected_gain_nats, 3) in gains_finding(seeing)


def test_the_spectrum_says_how_many_tokens_most_targets_need(tables: Path) -> None:
    measured = read(tables, "greedy-kl", "nearest", "random")
    (drawn,) = FIGURES["spectrum"](measured)
    spectrum = measured.spectra.of("greedy-kl")
    assert spectrum is not None
    assert drawn.finding.startswith(
        f"Within 0.05 nats {percent(spectrum.none_needed)} of the targets need no long-range token (null context: "
    )
    assert f"; for 90% of the targets it takes {spectrum.reaching(0.9).value} [" in drawn.finding
    assert "chosen by greedy-kl" in drawn.finding


def test_the_nearest_places(tables: Path) -> None:
    measured = read(tables, "kl", "random")
    finding = distance_finding(measured.distances, measured.summary, selector="kl", k=8)
    shares = {entry.context: entry.bins[0] for entry in measured.distances if (entry.selector, entry.k) == ("kl", 8)}
    real, null = shares["real"], shares["null"]
    assert f"Of the 8 tokens that kl chooses, a share of {interval(real.share, 3)} lies {real.from_tokens}" in finding
    null_words = f"under the null context {interval(null.share, 3)}."
    assert finding.endswith(f"of a random choice {real.uniform:.3f}, {null_words}")
