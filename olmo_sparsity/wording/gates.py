"""Sentences about the two gates: each has one long form, with its number and what follows, and one short form."""

from __future__ import annotations

import math

from olmo_sparsity.statistics.intervals.bootstrap import MIN_DOCUMENTS
from olmo_sparsity.statistics.intervals.estimate import CONFIDENCE, Estimate
from olmo_sparsity.statistics.single.measurement import Lengths
from olmo_sparsity.statistics.single.summary import ROBUST_RATIO, Gate, Summary
from olmo_sparsity.wording.numbers import FRAGILE, TOO_FEW_DOCUMENTS, fixed, interval_beside_zero
from olmo_sparsity.wording.setup import row_words

WITHOUT_GAP = "without the gap in the position IDs"  # of recent tokens that begin where a row of training begins
MAY_BE_GAP = "the long gain may be the cost of the gap in the position IDs"
EITHER_WAY = "with or without the gap, whichever has the lower loss"
NO_LONG_GAIN = "the windows show no clear gain of this model from the long context"
SELECTION_ONLY = "the run shows selection, not length generalization"
NO_GENERALIZATION = "it shows nothing about length generalization"
# What a measurement without a known training row is about.
ABOUT_SELECTION = (
    "the measurement is about selection: how little of the long context gives back the long gain, and the model's reaction "
    "to it"
)
TOO_FEW_FOR_INTERVAL = f"fewer than {MIN_DOCUMENTS} documents are too few for an interval"
BEYOND_GATE: dict[Gate, str] = {
    "passed": "Gate beyond the training row passed",
    "failed": "GATE BEYOND THE TRAINING ROW FAILED",
    "not-assessed": "Gate beyond the training row not assessed",
    "not-applicable": "The gate beyond the training row does not apply",
}
GATE_CHANCE = (1 - CONFIDENCE) / 2  # that a gate passes where there is no gain


def _signed(gain: Estimate) -> str:
    """Return a gain that has an interval, in nats, with signs."""
    assert gain.low is not None and gain.high is not None
    mean, low, high = (fixed(number, 4, sign="+") for number in (gain.mean, gain.low, gain.high))
    return f"{mean} nats, 95% interval [{low}, {high}]"


def gate_reason(summary: Summary) -> str:
    """Return why the validity gate failed, or is not assessed."""
    if summary.gate == "not-assessed":
        return TOO_FEW_FOR_INTERVAL
    return MAY_BE_GAP if summary.may_be_gap else NO_LONG_GAIN


def gate_words(summary: Summary, *, short: bool = False) -> str:
    """Return the validity gate in one sentence; ``short``: without its number and what follows from it."""
    gain, at_gate = summary.long_gain_nats, summary.gate_gain_nats
    if summary.gate_passed and short:
        return "Gate passed: the mean long gain is clearly above 0."
    if summary.gate_passed:
        return f"Gate passed: the long context is worth {_signed(gain)}{_without_gap_words(summary)}."
    if summary.gate == "not-assessed":
        follows = "" if short else ", so no recovered fraction is shown"
        return f"Gate not assessed: {gate_reason(summary)}{follows}."
    if short:
        return f"GATE FAILED: {gate_reason(summary)}."
    number = f" ({_signed(gain)})"
    if summary.may_be_gap:
        number = f": it is {_signed(gain)} in place, and {_signed(at_gate)} from the local tokens {WITHOUT_GAP}"
    return f"GATE FAILED: {gate_reason(summary)}{number}, so no recovered fraction is shown."


def _without_gap_words(summary: Summary) -> str:
    """Return what is left of a long gain without the cost of the gap, as the end of a sentence; empty where the gap costs
    nothing that is seen."""
    at_gate = summary.gate_gain_nats
    if not at_gate.has_interval or _signed(at_gate) == _signed(summary.long_gain_nats):
        return ""
    return f", and from the local tokens {WITHOUT_GAP} {_signed(at_gate)}"


def gap_words(summary: Summary) -> str:
    """Return what the gap in front of the local tokens costs, and of a clear long gain the share, in one sentence."""
    cost, gain = summary.gap_cost_nats, summary.long_gain_nats
    share = f", {cost.mean / gain.mean:.0%} of the long gain" if gain.is_above_zero and cost.mean > 0 else ""
    return (
        f"The gap in the position IDs in front of the local tokens costs {interval_beside_zero(cost, 3)} nats{share}."
    )


def row_has_words(lengths: Lengths) -> str:
    """Return how many tokens a training row has that is at least as long as the full context, as a clause."""
    row, full = lengths.train_len, lengths.full_len
    has = f"all {full} tokens" if row == full else f"{row} tokens, more than the {full} of a window"
    return f"{row_words(lengths)} has {has}"


def beyond_gate_words(summary: Summary, *, short: bool = False) -> str:
    """Return the gate beyond the training row in one sentence; ``short``: without its number, and what follows only of a failed
    one."""
    gain, lengths = summary.gain_beyond_nats, summary.lengths
    row, full, a_row = lengths.train_len, lengths.full_len, row_words(lengths)
    if row is None:
        reason, follows = "no training row of this model is known", f"{ABOUT_SELECTION}; {NO_GENERALIZATION}"
    elif gain is None or summary.beyond_gate == "not-applicable":
        reason, follows = f"{row_has_words(lengths)}, so nothing lies beyond it", SELECTION_ONLY
    elif summary.beyond_gate == "not-assessed":
        reason, follows = TOO_FEW_FOR_INTERVAL, ""
    elif row == lengths.local_len:
        reason = f"it is the same gate, since {a_row} has as many tokens as the local context, {row}"
        follows = "" if summary.beyond_gate_passed else SELECTION_ONLY
    elif summary.beyond_gate_passed:
        worth = (
            f"the gain from all {full} tokens instead of the last {row}, as many as {a_row} has, is {_signed(gain)} "
            f"({EITHER_WAY})"
        )
        stated = "stated " if lengths.train_len_is_stated else ""
        clear = f"the mean gain beyond the {stated}training row is clearly above 0"
        reason, follows = clear if short else worth, ""
    else:
        number = "" if short else f" ({_signed(gain)})"
        reason = f"the windows show no clear gain of this model from more tokens than {a_row} has, {row}{number}"
        follows = SELECTION_ONLY
    ending = f"; {follows}" if follows and not (short and summary.beyond_gate == "not-applicable") else ""
    return f"{BEYOND_GATE[summary.beyond_gate]}: {reason}{ending}."


def fragile_words(summary: Summary) -> str:
    """Return the warning about a fragile R(k) in one sentence; empty where it is not."""
    gain = summary.long_gain_nats
    if not summary.is_fragile or not gain.standard_error:
        return ""
    errors = math.floor(10 * gain.mean / gain.standard_error) / 10  # rounded down: 2.96 is no 3.0
    return (
        f"R(k) is {FRAGILE}: the long gain is {errors:.1f} standard errors above 0, fewer than "
        f"{ROBUST_RATIO}. Given that the gate passed, such an R(k) misses low: the truth may lie above its interval."
    )


def gates_words(summary: Summary) -> str:
    """Return both gates, the cost of the gap, and the warning about a fragile R(k), in one or more sentences."""
    return " ".join(gate_sentences(summary))


def gate_sentences(summary: Summary) -> list[str]:
    """Return both gates in their long form, the cost of the gap, and the warning about a fragile R(k), a sentence each."""
    words = (gate_words(summary), gap_words(summary), beyond_gate_words(summary), fragile_words(summary))
    return [sentence for sentence in words if sentence]


def gate_in_words(gate: Gate) -> str:
    """Return the value of a gate as words."""
    return "does not apply" if gate == "not-applicable" else gate.replace("-", " ")


def no_fraction_words(gate: Gate) -> str:
    """Return why a measurement, or a class of its targets, has no R(k), in two or three words; its gate did not pass."""
    return TOO_FEW_DOCUMENTS if gate == "not-assessed" else "gate failed"


def gates_not_passed(summary: Summary) -> list[str]:
    """Return the short form of each gate that failed or is not assessed, without full stop; not of one that does not apply."""
    gates = (
        (summary.gate, gate_words(summary, short=True)),
        (summary.beyond_gate, beyond_gate_words(summary, short=True)),
    )
    return [words.removesuffix(".") for gate, words in gates if gate in ("failed", "not-assessed")]


def multiplicity_words(num_classes: int) -> str:
    """Return how often some class passes its gate by chance, in one sentence; ``num_classes``: those that can."""
    if num_classes == 0:
        return f"Each class has a gate of its own; none is assessed: {TOO_FEW_FOR_INTERVAL}."
    each = f"Each class has a gate of its own, which passes by chance in {GATE_CHANCE:.1%} of measurements"
    if num_classes == 1:
        return f"{each}; one class has enough documents for it."
    chance = 1 - (1 - GATE_CHANCE) ** num_classes
    return f"{each}: of {num_classes} classes with enough documents and without long gain, at least one passes in {chance:.0%}."
