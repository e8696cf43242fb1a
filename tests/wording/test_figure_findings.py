"""What figures say to those who do not see them: one text with the main numbers, those of the measurement."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from drawn_figures import FIGURES, read

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.agreement import agreement
from olmo_sparsity.statistics.single.breakdowns import ClassSummary
from olmo_sparsity.wording.findings import (
    NO_CLASSES,
    agreement_finding,
    classes_finding,
    distance_finding,
    gains_finding,
)
from olmo_sparsity.wording.numbers import interval, percent


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_every_figure_says_a_number(tables: Path, name: str) -> None:
    """A title of what is drawn would have none."""
    for drawn in FIGURES[name](read(tables, "unmask-one", "kl", "random")):
        assert any(character.isdigit() for character in drawn.finding) and drawn.finding.endswith(".")
        assert "\n" not in drawn.finding and drawn.finding != drawn.figure.get_label()


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
    assert f"at most {spectrum.reaching(0.9).value} [" in drawn.finding and "chosen by greedy-kl" in drawn.finding


def with_gain(entry: ClassSummary, gain: Estimate) -> ClassSummary:
    return dataclasses.replace(entry, summary=dataclasses.replace(entry.summary, long_gain_nats=gain))


def test_the_classes_with_the_highest_and_the_lowest_gain_of_those_with_an_interval(tables: Path) -> None:
    measured = read(tables, "kl", "random")
    named = {entry.target_class: entry for entry in measured.classes}
    assert {"repeat", "induction", "other", "function-word"} <= set(named)
    few = with_gain(named["function-word"], Estimate(9.0))
    means = {"repeat": 0.6, "induction": 0.4, "other": 0.2}
    repeat, induction, other = (with_gain(named[of], Estimate(mean, 0.05, 0.9)) for of, mean in means.items())
    whole = interval(measured.summary.long_gain_nats, 3)
    assert repeat.contrast is not None
    foreign = interval(repeat.contrast.null_gain_nats, 3)
    start = "3 with enough documents, the long context is worth most to repeat, 0.600 [0.050, 0.900] nats"
    assert classes_finding([few, repeat, induction, other], measured.summary) == (
        f"Of 4 classes of targets, {start} (the same rule on the null context: {foreign}), and least to other, "
        f"0.200 [0.050, 0.900]; over all targets {whole}."
    )
    assert "least" not in classes_finding([other], measured.summary)
    assert classes_finding([few], measured.summary) == classes_finding([], measured.summary) == NO_CLASSES


def test_the_nearest_places(tables: Path) -> None:
    measured = read(tables, "kl", "random")
    finding = distance_finding(measured.distances, measured.summary, selector="kl", k=8)
    shares = {entry.context: entry.bins[0] for entry in measured.distances if (entry.selector, entry.k) == ("kl", 8)}
    real, null = shares["real"], shares["null"]
    assert f"Of the 8 tokens that kl chooses, a share of {interval(real.share, 3)} lies {real.from_tokens}" in finding
    null_words = f"under the null context {interval(null.share, 3)}."
    assert finding.endswith(f"of a random choice {real.uniform:.3f}, {null_words}")


def test_the_pairs_that_choose_most_and_least_alike(tables: Path) -> None:
    measured = read(tables, "unmask-one", "kl", "random")
    pairs = agreement(tables, measured.measurement)
    shares = {pair.selectors: pair.overlap_at(8).share for pair in pairs}
    means = {names: share.mean for names, share in shares.items() if share is not None}
    assert len(means) == 3
    most, least = max(means, key=lambda names: means[names]), min(means, key=lambda names: means[names])
    finding = agreement_finding(pairs, k=8, what="positions")
    assert f"{most[0]} and {most[1]} have {means[most]:.0%} in common, the most of all pairs" in finding
    assert f"{least[0]} and {least[1]} {means[least]:.0%}, the least" in finding
    undefined = [
        dataclasses.replace(pair, overlap=tuple(dataclasses.replace(of, share=None) for of in pair.overlap))
        for pair in pairs
    ]
    assert agreement_finding(undefined, k=8, what="words") == "No two selectors have a common share of their 8 words."
    (one,) = (pair for pair in pairs if pair.selectors == most)
    chance = pairs[0].overlap_at(8).chance
    assert agreement_finding([*undefined[:1], one], k=8, what="words") == (
        f"Of the 8 words that each chooses, {most[0]} and {most[1]} have {means[most]:.0%} in common; two random choices: "
        f"{chance:.0%}."
    )
