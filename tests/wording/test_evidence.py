"""What the evidence says about the paper's claim: the numbers of the summary, and no more than its intervals allow."""

from __future__ import annotations

import dataclasses
from typing import Any, Optional

import pytest
from planted_gains import made_up

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.summary import SelectionSummary, Summary, beyond_gate_of, summarize
from olmo_sparsity.wording.evidence import (
    CLAIM,
    NO_EVIDENCE,
    blind_words,
    evidence_sentences,
    prediction_words,
    seeing_words,
    value_words,
    verdict_words,
)
from olmo_sparsity.wording.gates import (
    MAY_BE_GAP,
    NO_LONG_GAIN,
    SELECTION_ONLY,
    beyond_gate_words,
    gap_words,
    gate_sentences,
    gate_words,
    gates_not_passed,
)
from olmo_sparsity.wording.numbers import interval

CLEAR, UNCLEAR, LOSS = (
    Estimate(0.05, 0.02, 0.08, 0.015),
    Estimate(0.05, 0.0, 0.1, 0.03),
    Estimate(-0.05, -0.08, -0.02, 0.02),
)
HALF = Estimate(0.6, 0.5001, 0.7, 0.05)  # an R(k) that lies above a half


@pytest.fixture(scope="module")
def passed() -> Summary:
    return summarize(made_up(200, long_gain=0.5))


@pytest.fixture(scope="module")
def failed() -> Summary:
    return summarize(made_up(200, long_gain=0.0))


def only(*selectors: str, num_documents: int = 200) -> Summary:
    """Return the summary of some selectors alone."""
    return summarize(made_up(num_documents, long_gain=0.5).restrict_selectors({name: name for name in selectors}))


def planted(
    summary: Summary, selector: str, *, k: Optional[int] = None, context: str = "real", **values: Any
) -> Summary:
    """Return a summary with these values of a selector, at one k or at all."""

    def changed(entry: SelectionSummary) -> SelectionSummary:
        is_meant = (entry.selector, entry.context) == (selector, context) and k in (None, entry.k)
        return dataclasses.replace(entry, **values) if is_meant else entry

    return dataclasses.replace(summary, selections=tuple(map(changed, summary.selections)))


def with_row(summary: Summary, row: Optional[int], gain: Optional[Estimate]) -> Summary:
    """Return a summary of rows of so many tokens, beyond which the gain is this."""
    lengths = dataclasses.replace(summary.lengths, train_len=row)
    return dataclasses.replace(
        summary, lengths=lengths, gain_beyond_nats=gain, beyond_gate=beyond_gate_of(gain, lengths)
    )


def clear(summary: Summary, recovered: Estimate = HALF, **values: Any) -> Summary:
    """Return a summary whose `kl` gains clearly over random at k = 1, and has this R(1), and nothing clear at k = 4."""
    nothing = {"gain_over_random_nats": UNCLEAR, "recovered_fraction": Estimate(0.1, -0.1, 0.3)}
    null = planted(planted(summary, "kl", k=4, **nothing), "kl", context="null", gain_over_random_nats=UNCLEAR)
    return planted(null, "kl", k=1, **{"gain_over_random_nats": CLEAR, "recovered_fraction": recovered, **values})


def conclusion(summary: Summary) -> str:
    *_, last = evidence_sentences(summary)
    assert last.startswith(f"{CLAIM} ")
    return last.removeprefix(f"{CLAIM} ")


# --- the verdict


def test_the_verdict_without_a_gain(passed: Summary, failed: Summary) -> None:
    assert verdict_words(failed) == "Not shown: these windows show no clear gain of the model from the long context."
    assert "too few" in verdict_words(only("kl", num_documents=49))
    assert MAY_BE_GAP in verdict_words(dataclasses.replace(passed, gate="failed", long_gain_nats=CLEAR))
    assert verdict_words(only("unmask-one", "random")).endswith(
        "; whether few tokens give the gain back is not shown without a selector that does not see the target."
    )


# --- the gates


def test_the_gates_in_short_leave_their_numbers_to_the_sentences(passed: Summary, failed: Summary) -> None:
    assert gate_words(passed, short=True) == "Gate passed: the mean long gain is clearly above 0."
    assert gate_words(failed, short=True) == f"GATE FAILED: {NO_LONG_GAIN}."
    few = only("kl", num_documents=49)
    too_few = "not assessed: fewer than 50 documents are too few for an interval"
    assert (few.gate, few.beyond_gate) == ("not-assessed", "not-assessed")
    assert gate_words(few) == f"Gate {too_few}, so no recovered fraction is shown."
    assert gate_words(few, short=True) == f"Gate {too_few}."
    for short in (False, True):
        assert beyond_gate_words(few, short=short) == f"Gate beyond the training row {too_few}."
    assert gates_not_passed(few) == [f"Gate {too_few}", f"Gate beyond the training row {too_few}"]
    assert not any(
        "FAILED" in words or SELECTION_ONLY in words for words in (*gate_sentences(few), *evidence_sentences(few))
    )
    for summary in (passed, failed, few):
        assert "nats" not in gate_words(summary, short=True) + beyond_gate_words(summary, short=True)


def test_the_gate_has_no_minus_0(failed: Summary) -> None:
    gain = Estimate(0.0123, -0.00004, 0.02)
    words = gate_words(dataclasses.replace(failed, long_gain_nats=gain, gate_gain_nats=gain))
    assert "+0.0123 nats, 95% interval [+0.0000, +0.0200]" in words


@pytest.mark.parametrize(
    ("row", "gain", "words"),
    [
        (None, None, "The gate beyond the training row does not apply: no training row of this model is known."),
        (
            20,
            CLEAR,
            "The gate beyond the training row does not apply: a training row has all 20 tokens, so nothing lies beyond it.",
        ),
        (8, CLEAR, "Gate beyond the training row passed: it is the same gate, since"),
        (8, UNCLEAR, "GATE BEYOND THE TRAINING ROW FAILED: it is the same gate, since"),
        (14, CLEAR, "Gate beyond the training row passed: the mean gain beyond the training row is clearly above 0."),
        (
            14,
            UNCLEAR,
            "GATE BEYOND THE TRAINING ROW FAILED: the windows show no clear gain of this model from more tokens than",
        ),
    ],
)
def test_the_gate_beyond_the_row_in_short(
    passed: Summary, row: Optional[int], gain: Optional[Estimate], words: str
) -> None:
    assert beyond_gate_words(with_row(passed, row, gain), short=True).startswith(words)


# --- one to four


def test_a_long_gain_that_may_be_the_cost_of_the_gap_is_not_said_to_be_given_back(passed: Summary) -> None:
    said = conclusion(dataclasses.replace(passed, gate="failed", gate_gain_nats=UNCLEAR))
    assert said.startswith(f"Here {MAY_BE_GAP}, so it is not shown that there is one that few tokens could give back.")


def test_the_value_of_the_long_context(passed: Summary) -> None:
    words = value_words(passed)
    assert "all 12 long-range tokens in addition to the 8 local ones" in words
    assert f"{interval(passed.long_gain_nats, 3)} nats, clearly above 0" in words
    assert interval(passed.null_long_gain_nats, 3) in words and words.endswith(
        f"nats, so it does harm. {gap_words(passed)}"
    )
    harmless = dataclasses.replace(passed, null_long_gain_nats=Estimate(-0.1, -0.2, 0.1))
    assert "harm" not in value_words(harmless)


def test_a_selector_that_does_not_see_the_target_is_described_alike_at_both_ends(
    passed: Summary, failed: Summary
) -> None:
    words = blind_words(passed, "kl")
    for k, chosen, ones in ((1, "one token gains", "a random one"), (4, "4 tokens gain", "4 random ones")):
        entry, random = passed.at("kl", "real", k), passed.at("random", "real", k)
        over, null = entry.gain_over_random_nats, passed.at("kl", "null", k).gain_over_random_nats
        assert over is not None and null is not None
        assert f"{chosen} {interval(over, 3)} nats over {ones} (null context: {interval(null, 3)}), " in words
        recovered = f"R({k}) = {interval(entry.recovered_fraction)} (random: {interval(random.recovered_fraction)})"
        assert recovered in words
    words = blind_words(failed, "kl")
    assert "R(1)" not in words and "R(4)" not in words and "no R(k) is shown, since the gate did not pass" in words


def test_optimism_is_taken_off_a_selector_that_sees_the_target(passed: Summary) -> None:
    words = seeing_words(passed, "unmask-one")
    for k in (1, 4):
        entry = passed.at("unmask-one", "real", k)
        for estimate in (entry.gain_sparse_nats, entry.optimism_nats, entry.corrected_gain_nats):
            assert interval(estimate, 3) in words
        placebo = passed.at("unmask-one", "null", k).corrected_gain_nats
        assert f"(null context: {interval(placebo, 3)})" in words
    assert "R(" not in words
    unknown = planted(passed, "unmask-one", optimism_nats=None, corrected_gain_nats=None)
    assert seeing_words(unknown, "unmask-one").count("of which an unknown part is optimism") == 2


def test_d_is_never_without_its_company(passed: Summary, failed: Summary) -> None:
    words = prediction_words(passed, "kl")
    for k in (1, 4):
        of = passed.prediction_recovered("kl", k)
        assert f"D({k}) = {interval(of.real)} (random {interval(of.random)}, null context {interval(of.null)})" in words
    assert words.endswith(NO_EVIDENCE) and "not measured" not in words and "gate" not in words
    assert "No R(k) stands beside it, since the gate did not pass." in prediction_words(failed, "kl")


def test_d_of_a_selector_that_sees_the_target_has_its_recovered_fraction(passed: Summary, failed: Summary) -> None:
    """No other sentence has it."""
    words = prediction_words(passed, "unmask-one")
    for k in (1, 4):
        recovered = interval(passed.at("unmask-one", "real", k).recovered_fraction)
        assert f"R({k}) with its optimism {recovered})" in words
    assert "R(1)" not in prediction_words(failed, "unmask-one")


# --- the conclusion


def test_a_failed_gate_is_no_proof_of_absence(failed: Summary) -> None:
    words = conclusion(failed)
    assert words.startswith(
        "These windows do not show a long gain that few tokens could give back, which is no proof that"
    )
    assert "Few tokens" not in words
    few = conclusion(only("kl", "random", num_documents=49))
    assert few.startswith("Here there are too few documents to tell whether there is a long gain")
    assert "do not show" not in few and "from too few documents to tell it from 0" in few


# --- what selection does
