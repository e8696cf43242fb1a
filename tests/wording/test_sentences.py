"""Sentences about results: each number and each verdict in them is that of the summary."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from planted_gains import made_up

from olmo_sparsity.statistics.intervals.estimate import Estimate, SmallestK
from olmo_sparsity.statistics.single.breakdowns import ClassContrast, ClassSummary
from olmo_sparsity.statistics.single.summary import Summary, beyond_gate_of, summarize
from olmo_sparsity.wording.captions import classes_caption, contrast_words
from olmo_sparsity.wording.gates import (
    MAY_BE_GAP,
    NO_LONG_GAIN,
    SELECTION_ONLY,
    beyond_gate_words,
    gap_words,
    gate_words,
    gates_not_passed,
)
from olmo_sparsity.wording.numbers import (
    interval,
    smallest_k_words,
)


@pytest.fixture(scope="module")
def passed() -> Summary:
    return summarize(made_up(200, long_gain=0.5))


@pytest.fixture(scope="module")
def failed() -> Summary:
    return summarize(made_up(200, long_gain=0.0))


def with_lengths(summary: Summary, **lengths: Any) -> Summary:
    return dataclasses.replace(summary, lengths=dataclasses.replace(summary.lengths, **lengths))


def with_beyond(summary: Summary, gain: Estimate) -> Summary:
    """Return a summary of rows of 14 tokens, beyond which the gain is this."""
    longer = with_lengths(summary, train_len=14)
    return dataclasses.replace(longer, gain_beyond_nats=gain, beyond_gate=beyond_gate_of(gain, longer.lengths))


def test_the_gate_in_words(passed: Summary, failed: Summary) -> None:
    assert gate_words(passed).startswith("Gate passed: the long context is worth +0.")
    assert gate_words(failed).startswith(f"GATE FAILED: {NO_LONG_GAIN} (")
    assert "no recovered fraction is shown" in gate_words(failed)
    low = passed.long_gain_nats.low
    assert low is not None and f"[{low:+.4f}, " in gate_words(passed)


def test_a_failed_gate_speaks_of_the_interval_because_the_mean_may_be_above_0(passed: Summary) -> None:
    unclear = dataclasses.replace(passed, gate="failed", long_gain_nats=Estimate(0.191, -0.055, 0.437, 0.1))
    words = gate_words(unclear)
    gain = "+0.1910 nats, 95% interval [-0.0550, +0.4370]"
    assert words == f"GATE FAILED: {NO_LONG_GAIN} ({gain}), so no recovered fraction is shown."
    assert "no clear gain" in words


def test_a_gate_that_only_the_gap_lets_pass_says_so() -> None:
    """The long gain lies above 0, but from the lower of the two losses nothing is left. R(k) and what follows is hidden."""
    summary = summarize(made_up(200, long_gain=0.3, gap_cost=0.35))
    gain, at_gate, cost = summary.long_gain_nats, summary.gate_gain_nats, summary.gap_cost_nats
    assert gain.is_above_zero and at_gate is not None and not at_gate.is_above_zero and cost is not None
    assert (summary.gate, summary.may_be_gap, summary.is_fragile) == ("failed", True, False)
    assert all(entry.recovered_fraction is None for entry in summary.selections)
    assert gate_words(summary, short=True) == f"GATE FAILED: {MAY_BE_GAP}."
    assert gates_not_passed(summary)[0] == f"GATE FAILED: {MAY_BE_GAP}"
    in_place, without = (f"{of.mean:+.4f} nats, 95% interval [{of.low:+.4f}, {of.high:+.4f}]" for of in (gain, at_gate))
    assert gate_words(summary) == (
        f"GATE FAILED: {MAY_BE_GAP}: it is {in_place} in place, and {without} from the local tokens without the gap in the "
        "position IDs, so no recovered fraction is shown."
    )
    share = cost.mean / gain.mean
    assert share > 1 and gap_words(summary).endswith(f"costs {interval(cost, 3)} nats, {share:.0%} of the long gain.")
    assert summarize(made_up(200, long_gain=0.3, gap_cost=0.0)).gate == "passed"


def test_a_cost_whose_interval_excludes_0_is_not_shown_as_touching_it(passed: Summary) -> None:
    for cost, shown in (
        (Estimate(-0.0094, -0.0288, -0.0001), "-0.0094 [-0.0288, -0.0001]"),
        (Estimate(0.0094, 0.00002, 0.0288), "0.00940 [0.00002, 0.02880]"),
        (Estimate(0.0094, 0.0, 0.0288), "0.009 [0.000, 0.029]"),
        (Estimate(0.0094, -0.0001, 0.0288), "0.009 [0.000, 0.029]"),
        (Estimate(0.0094, 0.001, 0.0288), "0.009 [0.001, 0.029]"),
        (Estimate(1e-9, 1e-9, 1e-9), "0.000 [0.000, 0.000]"),
        (Estimate(-0.0094), "-0.009"),
    ):
        words = gap_words(dataclasses.replace(passed, gap_cost_nats=cost)).partition(" nats")[0]
        assert words == f"The gap in the position IDs in front of the local tokens costs {shown}"


def test_the_gate_beyond_the_training_row_in_words(passed: Summary) -> None:
    clear, unclear = Estimate(0.02, 0.01, 0.03, 0.005), Estimate(0.002, -0.001, 0.005, 0.0015)
    words = beyond_gate_words(with_beyond(passed, clear))
    assert words.startswith("Gate beyond the training row passed: the gain from all 20 tokens instead of the last 14")
    assert "+0.0200 nats, 95% interval [+0.0100, +0.0300]" in words and SELECTION_ONLY not in words
    words = beyond_gate_words(with_beyond(passed, unclear))
    assert words.startswith("GATE BEYOND THE TRAINING ROW FAILED")
    assert words.endswith(
        f"no clear gain of this model from more tokens than a training row has, 14 "
        f"(+0.0020 nats, 95% interval [-0.0010, +0.0050]); {SELECTION_ONLY}."
    )
    words = beyond_gate_words(with_beyond(passed, Estimate(0.1)))
    assert "fewer than 50 documents" in words and SELECTION_ONLY not in words and "FAILED" not in words


def test_where_rows_are_as_long_as_the_local_context_both_gates_are_one(passed: Summary, failed: Summary) -> None:
    assert passed.lengths.train_len == passed.lengths.local_len
    assert "passed: it is the same gate" in beyond_gate_words(passed)
    failed = dataclasses.replace(failed, gain_beyond_nats=failed.long_gain_nats, beyond_gate="failed")
    words = beyond_gate_words(failed)
    assert "FAILED: it is the same gate" in words and SELECTION_ONLY in words


def test_a_class_whose_long_gain_may_be_the_cost_of_the_gap_is_named(passed: Summary, failed: Summary) -> None:
    """Its long gain lies above 0, and yet its gate failed."""
    gap = summarize(made_up(200, long_gain=0.3, gap_cost=0.35))
    assert gap.long_gain_nats.is_above_zero and gap.gate == "failed"
    of_names = {"name": passed, "closing": gap, "number": failed, "repeat": gap}
    classes = [ClassSummary(name, Estimate(0.25), summary, None) for name, summary in of_names.items()]
    assert (
        " The gate of closing, repeat failed: the long gain may be the cost of the gap in the position IDs. The rules of"
    ) in classes_caption(passed, classes)
    assert "cost of the gap" not in classes_caption(passed, [classes[0], classes[2]])


def test_the_contrast_of_a_class(passed: Summary) -> None:
    share = Estimate(0.1, 0.05, 0.15, 0.02)
    contrast = ClassContrast(Estimate(0.011, 0.0, 0.02), 37, Estimate(0.148, 0.04, 0.28), Estimate(-0.321, -0.4, -0.2))
    words = contrast_words(ClassSummary("repeat", share, passed, contrast))
    for number in (interval(passed.long_gain_nats, 3), "0.148 [0.040, 0.280]", "(37 windows)", "-0.321", "0.011"):
        assert number in words
    assert contrast_words(ClassSummary("other", share, passed, None)) == ""


def test_a_smallest_k_in_words() -> None:
    assert smallest_k_words(SmallestK(2, 1, 8), 8) == "2 [1, 8]"
    assert smallest_k_words(SmallestK(2, 1, None), 8) == "2 [1, > 8]"
    assert smallest_k_words(SmallestK(None, None, None), 8) == "> 8 [> 8, > 8]"
    assert smallest_k_words(None, 8) == "-"
