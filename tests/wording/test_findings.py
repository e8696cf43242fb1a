"""What figures say to those who do not see them: one text with the main numbers, those of the measurement."""

from __future__ import annotations

from pathlib import Path

import pytest
from drawn_figures import FIGURES, read

from olmo_sparsity.statistics.single.agreement import agreement
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
        f"{percent(spectrum.none_needed)} of the targets need no long-range token; 90% of the"
    )
    assert f"at most {spectrum.reaching(0.9).value} [" in drawn.finding and "chosen by greedy-kl" in drawn.finding


def test_the_classes_with_the_highest_and_the_lowest_gain(tables: Path) -> None:
    measured = read(tables, "kl", "random")
    gains = {entry.target_class: entry.summary.long_gain_nats for entry in measured.classes}
    most, least = (choose(gains, key=lambda name: gains[name].mean) for choose in (max, min))
    finding = classes_finding(measured.classes, measured.summary)
    assert f"worth most to {most}, {interval(gains[most], 3)} nats" in finding
    assert f"least to {least}, {interval(gains[least], 3)}; over all targets" in finding
    assert interval(measured.summary.long_gain_nats, 3) in finding
    assert classes_finding([], measured.summary) == NO_CLASSES


def test_the_class_whose_rule_looks_for_the_target_is_named_with_its_contrast(tables: Path) -> None:
    measured = read(tables, "kl", "random")
    (entry,) = (entry for entry in measured.classes if entry.target_class == "repeat")
    assert entry.contrast is not None
    finding = classes_finding([entry], measured.summary)
    assert f"(the same rule on the null context: {interval(entry.contrast.null_gain_nats, 3)})" in finding


def test_the_nearest_places(tables: Path) -> None:
    measured = read(tables, "kl", "random")
    finding = distance_finding(measured.distances, measured.summary, selector="kl", k=8)
    shares = {entry.context: entry.bins[0] for entry in measured.distances if (entry.selector, entry.k) == ("kl", 8)}
    real, null = shares["real"], shares["null"]
    assert f"Of the 8 tokens that kl chooses, {percent(real.share)} lie {real.from_tokens}" in finding
    assert finding.endswith(f"of a random choice {real.uniform:.0%}, under the null context {percent(null.share)}.")


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
