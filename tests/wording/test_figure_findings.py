"""What figures say to those who do not see them: one text with the main numbers, those of the measurement."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from drawn_figures import FIGURES, read

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.lines import LineFit
from olmo_sparsity.statistics.single.breakdowns import ClassSummary, DistanceBin, DistanceShares
from olmo_sparsity.statistics.single.summary import gate_of
from olmo_sparsity.wording.findings import (
    NO_CLASSES,
    classes_finding,
    cloud_finding,
    distance_finding,
    gains_finding,
    window_finding,
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
    assert f"; for 90% of the targets it takes {spectrum.reaching(0.9).value} [" in drawn.finding
    assert "chosen by greedy-kl" in drawn.finding


def with_gain(entry: ClassSummary, gain: Estimate) -> ClassSummary:
    summary = dataclasses.replace(entry.summary, gate=gate_of(gain), long_gain_nats=gain)
    return dataclasses.replace(entry, summary=summary)


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


def test_the_cloud_of_each_context(tables: Path) -> None:
    summary = read(tables, "kl", "random").summary
    fits = {"null": Estimate(0.11, -0.12, 0.13), "real": Estimate(0.44, 0.35, 0.56)}
    entries = {
        context: dataclasses.replace(summary.at("kl", context, 8), figure4=LineFit(None, None, correlation))
        for context, correlation in fits.items()
    }
    assert cloud_finding("kl", entries, summary) == (
        "Sparse gain with 8 tokens chosen by kl and long gain of a window correlate by 0.11 [-0.12, 0.13] under the null "
        "context, 0.44 [0.35, 0.56] under the real context; a correlation that foreign text shows, too, is no finding."
    )


def test_the_nearest_place_of_one_token_and_of_groups(tables: Path) -> None:
    summary = read(tables, "kl", "random").summary

    def of(selector: str, context: str, k: int, first: int) -> DistanceShares:
        share = Estimate(first / 100 + k / 1000, 0.001, 0.9)
        bins = [DistanceBin(9, first, 0.125, share), DistanceBin(first + 1, 20, 0.875, Estimate(0.5))]
        return DistanceShares(selector, context, k, tuple(bins))

    ends = {
        ("kl", "real", 1): 9,
        ("kl", "null", 1): 9,
        ("kl", "null", 8): 13,
        ("kl", "real", 8): 12,
        ("random", "real", 8): 15,
    }
    distances = [of(*key, first) for key, first in ends.items()]
    assert distance_finding(distances, summary, selector="kl", k=1) == (
        "Of the one token that kl chooses, a share of 0.091 [0.001, 0.900] lies 9 tokens before the target, the nearest "
        "long-range ones; of a random choice 0.125, under the null context 0.091 [0.001, 0.900]."
    )
    words = dataclasses.replace(summary, unit="word")
    assert distance_finding(distances, words, selector="kl", k=8) == (
        "Of the tokens of the 8 words that kl chooses, a share of 0.128 [0.001, 0.900] lies 9 to 12 tokens before the target, "
        "the nearest long-range ones; of a random choice 0.125, under the null context 0.138 [0.001, 0.900]."
    )


def test_a_cloud_under_shuffled_text_is_not_called_foreign(tables: Path) -> None:
    summary = read(tables, "kl").summary
    entries = {context: summary.at("kl", context, 8) for context in ("real", "null")}
    for kind, null in (("document", "foreign text"), ("shuffled", "the null context")):
        said = cloud_finding("kl", entries, dataclasses.replace(summary, null_context=kind))  # type: ignore[arg-type]
        assert said.endswith(f"; a correlation that {null} shows, too, is no finding.")


def test_the_losses_of_one_target() -> None:
    losses = {"short_nats": 3.216, "long_nats": 2.104, "sparse_nats": 2.555}
    for target, said in (("·a river", "a river"), (" ·", "space")):
        assert window_finding(target, **losses, chosen="2 words chosen by kl") == (
            f"The loss of the target {said} is 3.22 nats with the local tokens alone, 2.10 with all tokens, and 2.56 with the "
            "local tokens and 2 words chosen by kl."
        )
