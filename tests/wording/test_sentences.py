"""Sentences about results: each number and each verdict in them is that of the summary."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from made_up import LENGTHS
from planted_gains import made_up

from olmo_sparsity.statistics.intervals.estimate import Estimate, SmallestK
from olmo_sparsity.statistics.single.breakdowns import ClassContrast, ClassSummary
from olmo_sparsity.statistics.single.measurement import Lengths, NullContext
from olmo_sparsity.statistics.single.summary import Summary, beyond_gate_of, summarize
from olmo_sparsity.view.as_json import lengths_json
from olmo_sparsity.wording.captions import classes_caption, contrast_words
from olmo_sparsity.wording.exploration import found_words
from olmo_sparsity.wording.gates import (
    MAY_BE_GAP,
    NO_LONG_GAIN,
    SELECTION_ONLY,
    beyond_gate_words,
    fragile_words,
    gap_words,
    gate_words,
    gates_not_passed,
    gates_words,
    multiplicity_words,
)
from olmo_sparsity.wording.numbers import (
    against_zero,
    interval,
    recovered_words,
    smallest_k_words,
    verdict,
)
from olmo_sparsity.wording.setup import NULL_WORDS, data_words, length_words, null_sentence, overlap_words


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


def test_a_passed_gate_says_what_is_left_without_the_gap(passed: Summary) -> None:
    left = f"{passed.gate_gain_nats.mean:+.4f} nats"
    assert f", and from the local tokens without the gap in the position IDs {left}" in gate_words(passed)
    harmless = summarize(made_up(200, long_gain=0.5, gap_cost=-0.1))
    assert harmless.gate_gain_nats == harmless.long_gain_nats and "without the gap" not in gate_words(harmless)
    assert "% of" not in gap_words(harmless) and gap_words(harmless).endswith("] nats.")
    assert "of the long gain" not in gap_words(
        dataclasses.replace(passed, long_gain_nats=Estimate(0.1, -0.1, 0.3, 0.1))
    )


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


def test_a_fragile_recovered_fraction_is_marked(passed: Summary) -> None:
    assert not passed.is_fragile and fragile_words(passed) == ""
    entry = passed.at("kl", "real", 1).recovered_fraction
    assert recovered_words(passed, entry) == interval(entry)
    near = Estimate(0.25, 0.05, 0.45, 0.1)
    fragile = dataclasses.replace(passed, long_gain_nats=near, is_fragile=True)
    assert "R(k) is fragile: the long gain is 2.5 standard errors above 0, fewer than 3" in fragile_words(fragile)
    for mean, shown in ((0.29999, "2.9"), (0.25, "2.5"), (0.201, "2.0")):
        near_3 = dataclasses.replace(fragile, long_gain_nats=Estimate(mean, 0.05, 0.45, 0.1))
        assert f"is {shown} standard errors above 0, fewer than 3" in fragile_words(near_3)
    assert "misses low" in fragile_words(fragile)
    assert recovered_words(fragile, entry) == f"{interval(entry)} fragile"
    assert recovered_words(fragile, None) == "-"
    assert "fragile" in gates_words(fragile)


def test_the_gates_together(failed: Summary) -> None:
    unclear = with_beyond(failed, Estimate(0.002, -0.001, 0.005, 0.0015))
    assert gates_words(unclear) == f"{gate_words(unclear)} {gap_words(unclear)} {beyond_gate_words(unclear)}"


def test_the_text_and_the_estimand_are_named(passed: Summary) -> None:
    assert data_words(passed).endswith("windows of 200 documents (s, validation), mean over eligible targets")
    assert data_words(dataclasses.replace(passed, estimand="given")).endswith(", mean over the given windows")


def test_the_tokens_before_each_target_are_told_where_they_were_set(passed: Summary) -> None:
    assert "before each target" not in data_words(passed)
    lengths = Lengths.from_manifest({"context": LENGTHS, "influence": {"min_preceding": 512}})
    assert lengths.min_preceding == lengths_json(lengths)["min_preceding"] == 512
    said = data_words(dataclasses.replace(passed, lengths=lengths))
    assert said.endswith("mean over eligible targets (at least 512 tokens before each target)")


def test_the_overlap_with_training(passed: Summary) -> None:
    assert overlap_words(dataclasses.replace(passed, overlap_percent=12.34)).startswith(
        "12.3% of the windows hold 13 consecutive"
    )
    assert overlap_words(dataclasses.replace(passed, overlap_percent=None)) == ""


@pytest.mark.parametrize("kind", NULL_WORDS)
def test_only_foreign_text_shows_whether_the_content_matters(passed: Summary, kind: NullContext) -> None:
    said = null_sentence(dataclasses.replace(passed, null_context=kind))
    shows = "; it shows whether the content matters" if kind == "document" else ""
    assert said == f"Null context, in place of the long-range tokens: {NULL_WORDS[kind]}{shows}."


@pytest.mark.parametrize(("num_classes", "percent"), [(2, "5%"), (4, "10%"), (8, "18%")])
def test_the_chance_that_some_class_passes(num_classes: int, percent: str) -> None:
    """It is 1 - 0.975^n."""
    assert f"at least one passes in {percent}." in multiplicity_words(num_classes)


def test_the_caption_of_classes(passed: Summary, failed: Summary) -> None:
    classes = [ClassSummary(name, Estimate(0.125), passed, None) for name in "abcdefgh"]
    # Of too few documents it did not fail: it is not assessed.
    assert "No class has an R(k), since the gate of all windows did not pass." in classes_caption(failed, classes)
    assert "No class has an R(k)" not in classes_caption(passed, classes)
    # The gate beyond the training row has no part in it.
    assert "No class has an R(k)" not in classes_caption(dataclasses.replace(passed, beyond_gate="failed"), classes)
    assert "No class has an R(k)" in classes_caption(dataclasses.replace(failed, beyond_gate="passed"), classes)
    assert "18%" in classes_caption(passed, classes) and "induction and repeat" in classes_caption(passed, classes)
    few = dataclasses.replace(passed, gate="not-assessed", long_gain_nats=Estimate(0.5))
    of_few = [dataclasses.replace(entry, summary=few) for entry in classes]
    assert "of 4 classes with enough documents and without long gain, at least one passes in 10%." in classes_caption(
        passed, [*classes[:4], *of_few[4:]]
    )
    assert classes_caption(passed, of_few).startswith(
        "Each class has a gate of its own; none is assessed: fewer than 50 "
    )


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


@pytest.mark.parametrize(
    ("estimate", "words", "position"),
    [
        (Estimate(0.2, 0.1, 0.3), "higher", "clearly above 0"),
        (Estimate(-0.2, -0.3, -0.1), "lower", "clearly below 0"),
        (Estimate(0.2, -0.1, 0.5), "no clear difference", "not clearly different from 0"),
        (Estimate(0.2), "fewer than 50 documents", "from too few documents to tell it from 0"),
    ],
)
def test_where_an_interval_lies_in_words(estimate: Estimate, words: str, position: str) -> None:
    assert verdict(estimate) == words
    assert against_zero(estimate) == position


def test_a_smallest_k_in_words() -> None:
    assert smallest_k_words(SmallestK(2, 1, 8), 8) == "2 [1, 8]"
    assert smallest_k_words(SmallestK(2, 1, None), 8) == "2 [1, > 8]"
    assert smallest_k_words(SmallestK(None, None, None), 8) == "> 8 [> 8, > 8]"
    assert smallest_k_words(None, 8) == "-"


def test_the_words_about_lengths_state_how_much_lies_beyond_training() -> None:
    lengths = Lengths(local_len=16, full_len=48, train_len=32, num_long_range=32, max_position=64, num_chunks=2)

    def words(**changes: Any) -> str:
        return length_words(dataclasses.replace(lengths, **changes))

    assert "only 16 of the 48 tokens lie beyond" in words()
    assert "A row is shorter than the local context: 36 of the 48 tokens lie beyond it." in words(train_len=12)
    assert "all 32 long-range tokens lie beyond" in words(train_len=16)
    assert "PoSE positions below 64." in words()
    assert "PoSE positions below 64." in words(pose_method="pose", pose_contents="contiguous")
    assert "PoSE positions below 64, with chunks of text as far apart as their positions" in words(
        pose_contents="matched"
    )
    assert "random positions (RandPos) below 64" in words(pose_method="randpos")
    assert "ordinary positions, no PoSE" in words(num_chunks=1)
    start = "local 16 + long-range 32 = full 48 tokens"
    assert words() == (
        f"{start}; trained on rows of 32 with PoSE positions below 64. A row is longer than the local context: only 16 of the 48 "
        "tokens lie beyond it."
    )
    assert words(train_len=48).endswith("below 64. A row is as long as the full context: nothing lies beyond it.")
    assert words(train_len=49).endswith("below 64. A row is longer than the full context: nothing lies beyond it.")
    assert words(train_len=47).endswith("longer than the local context: only 1 of the 48 tokens lie beyond it.")
    assert words(train_len=17, train_len_is_stated=True) == (
        f"{start}; stated training row of 17 tokens, 64 positions. A row is longer than the local context: only 31 of the 48 "
        "tokens lie beyond it."
    )
    assert words(train_len=None) == f"{start}; no training row of this model is known."


def test_exactly_half_of_the_targets_are_half_of_them() -> None:
    """Of the four targets that need tokens, two need one."""
    words = found_words(
        "a.txt",
        np.array([0, 1, 1, 4, np.inf]),
        ks=[1, 2, 4],
        selector="kl",
        tolerance=0.05,
        unit=("token", "tokens"),
    )
    assert words == (
        "the long context changes the prediction of 4 of the 5 targets of a.txt by more than 0.05 nats; for half of them 1 token "
        "chosen by kl is enough"
    )


@pytest.mark.parametrize(
    ("needed", "ks", "ending"),
    [
        (
            [0, 1, 1, np.inf],
            [1, 2],
            "3 of the 4 targets of a by more than 0.1 nats; for half of them 1 token chosen by kl is enough",
        ),
        (
            [2, 4, 4],
            [2, 4],
            "3 of the 3 targets of a by more than 0.1 nats; for half of them 4 tokens chosen by kl are enough",
        ),
        (
            [np.inf, np.inf, 1],
            [1],
            "3 of the 3 targets of a by more than 0.1 nats; half of them need more than 1 token chosen by kl",
        ),
        (
            [np.inf],
            [1, 4],
            "1 of the 1 targets of a by more than 0.1 nats; half of them need more than 4 tokens chosen by kl",
        ),
        ([0, 0], [1], "none of the 2 targets of a by more than 0.1 nats"),
    ],
)
def test_the_number_of_tokens_that_half_of_the_targets_need_has_its_plural(
    needed: list[float], ks: list[int], ending: str
) -> None:
    words = found_words("a", np.array(needed), ks=ks, selector="kl", tolerance=0.1, unit=("token", "tokens"))
    assert words == f"the long context changes the prediction of {ending}"
