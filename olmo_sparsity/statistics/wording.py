"""Sentences about results: intervals, gates, lengths, verdicts. Every output takes its words from here."""

from __future__ import annotations

from typing import Optional, Union

from olmo_sparsity.statistics.bootstrap import CONFIDENCE, MIN_DOCUMENTS
from olmo_sparsity.statistics.breakdowns import CONDITIONED_CLASSES, ClassSummary
from olmo_sparsity.statistics.curves import ContextCurve
from olmo_sparsity.statistics.effective_sparsity import SmallestK
from olmo_sparsity.statistics.estimate import Estimate
from olmo_sparsity.statistics.measurement import Lengths
from olmo_sparsity.statistics.summary import ROBUST_RATIO, Summary
from olmo_sparsity.wording.setup import UNKNOWN_TRAINING_TEXT, estimand_words, setup_words
from olmo_sparsity.wording.units import counted_words, unit_words

NO_LONG_GAIN = "the windows show no gain of this model from the long context"
SELECTION_ONLY = "the run shows selection, not length generalization"
NO_GENERALIZATION = "it shows nothing about length generalization"
# What a measurement without a known training row is about.
ABOUT_SELECTION = (
    "the measurement is about selection: how little of the long context gives back the long gain, and the model's reaction "
    "to it"
)
REACHES_ZERO = "reaches down to 0 or below"  # of the interval of a gain whose gate failed
TOO_FEW_DOCUMENTS = "too few documents"
TOO_FEW_TO_TELL = f"{TOO_FEW_DOCUMENTS} to tell"
FRAGILE = "fragile"
GATE_CHANCE = (1 - CONFIDENCE) / 2  # that a gate passes where there is no gain
SEEING_CAPTION = (
    "luck: sparse gain on resampled targets, drawn from the short-context prediction, for which the long context cannot matter; "
    "the selector chooses again for each."
)
EVERY_CAPTION = (
    "R(k), sparse gain and gain over random of a selector that sees the target include luck. excess: real minus null context. "
    "D(k) is no evidence that the context helps: compare random, the null context and mimicry."
)
# What the chunks of a training row hold, where it is not consecutive text.
CONTENTS_WORDS = {
    "matched": ", with chunks of text as far apart as their positions",
    "uniform": ", with chunks from random places of a document",
}


def number_words(value: Optional[int], max_k: int) -> str:
    """Return a smallest k as text; None is more than ``max_k``."""
    return f"> {max_k}" if value is None else str(value)


def smallest_k_words(smallest: Optional[SmallestK], max_k: int) -> str:
    """Return a smallest k with its interval, such as ``2 [1, > 8]``; a dash where the gate failed."""
    if smallest is None:
        return "-"
    value, low, high = (number_words(number, max_k) for number in (smallest.value, smallest.low, smallest.high))
    return f"{value} [{low}, {high}]"


def interval(estimate: Optional[Estimate], digits: int = 2) -> str:
    """Return an estimate with its interval, such as ``0.41 [0.36, 0.47]``; a dash where there is none."""
    if estimate is None:
        return "-"
    if estimate.bounds is None:
        return f"{estimate.mean:.{digits}f}"
    low, high = estimate.bounds
    return f"{estimate.mean:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def data_words(result: Union[Summary, ContextCurve]) -> str:
    """Return how much was measured, of which text, and whose mean the numbers are."""
    measured = f"{result.num_windows:,} windows of {result.num_documents:,} documents"
    return f"{measured} ({result.source}, {result.split}), {estimand_words(result.estimand, result.lengths)}"


def measured_words(result: Union[Summary, ContextCurve]) -> str:
    """Return which run or model was measured, the definition of visible and the anchor, as a sentence without full stop."""
    return setup_words(result.run, result.setup)


def overlap_words(summary: Summary) -> str:
    """Return how many windows share text with training, in one sentence.

    Where it is not known, the sentence says so of a pretrained model, and is empty of a run.
    """
    if summary.overlap_percent is None:
        return "" if summary.setup.model is None else UNKNOWN_TRAINING_TEXT
    return (
        f"{summary.overlap_percent:.1f}% of the windows hold 13 consecutive tokens that the training text holds, too."
    )


def _signed(gain: Estimate) -> str:
    """Return a gain that has an interval, in nats, with signs."""
    assert gain.low is not None and gain.high is not None
    return f"{gain.mean:+.4f} nats, 95% interval [{gain.low:+.4f}, {gain.high:+.4f}]"


def gate_words(summary: Summary) -> str:
    """Return the validity gate in one sentence; see ``gates_words`` for both gates."""
    gain = summary.long_gain_nats
    if not gain.has_interval:
        return f"GATE FAILED: fewer than {MIN_DOCUMENTS} documents are too few for an interval; no recovered fraction is shown."
    if summary.gate_passed:
        return f"Gate passed: the long context is worth {_signed(gain)}."
    return (
        f"GATE FAILED: the interval of the mean long gain ({_signed(gain)}) {REACHES_ZERO}. "
        f"{NO_LONG_GAIN.capitalize()}, so no recovered fraction is shown."
    )


def beyond_gate_words(summary: Summary) -> str:
    """Return the gate beyond the training row in one sentence."""
    gain, lengths = summary.gain_beyond_nats, summary.lengths
    row, full = lengths.train_len, lengths.full_len
    if row is None or gain is None:
        return (
            f"The gate beyond the training row does not apply: no training row of this model is known; {ABOUT_SELECTION}; "
            f"{NO_GENERALIZATION}."
        )
    if summary.beyond_gate == "not-applicable":
        return (
            f"The gate beyond the training row does not apply: a training row has all {full} tokens, so nothing lies beyond "
            f"it; {SELECTION_ONLY}."
        )
    if row == lengths.local_len and gain.has_interval:
        same = f"it is the same gate, since a training row has as many tokens as the local context, {row}"
        return (
            f"Gate beyond the training row passed: {same}."
            if summary.beyond_gate_passed
            else f"GATE BEYOND THE TRAINING ROW FAILED: {same}; {SELECTION_ONLY}."
        )
    if summary.beyond_gate_passed:
        return (
            f"Gate beyond the training row passed: all {full} tokens instead of the last {row}, as many as a training row "
            f"has, are worth {_signed(gain)}."
        )
    if not gain.has_interval:
        reason = f"fewer than {MIN_DOCUMENTS} documents are too few for an interval"
    else:
        reason = (
            f"the interval of what all {full} tokens instead of the last {row}, as many as a training row has, are worth "
            f"({_signed(gain)}) {REACHES_ZERO}"
        )
    return f"GATE BEYOND THE TRAINING ROW FAILED: {reason}; {SELECTION_ONLY}."


def fragile_words(summary: Summary) -> str:
    """Return the warning about a fragile R(k) in one sentence; empty where it is not."""
    gain = summary.long_gain_nats
    if not summary.is_fragile or not gain.standard_error:
        return ""
    return (
        f"R(k) is {FRAGILE}: the long gain is {gain.mean / gain.standard_error:.1f} standard errors above 0, fewer than "
        f"{ROBUST_RATIO}. Given that the gate passed, such an R(k) misses low: the truth may lie above its interval."
    )


def gates_words(summary: Summary) -> str:
    """Return both gates, and the warning about a fragile R(k), in one or more sentences."""
    words = (gate_words(summary), beyond_gate_words(summary), fragile_words(summary))
    return " ".join(sentence for sentence in words if sentence)


def gate_reason(long_gain: Estimate) -> str:
    """Return why a gate failed, in a few words."""
    return NO_LONG_GAIN if long_gain.has_interval else TOO_FEW_TO_TELL


def no_fraction_words(long_gain: Estimate) -> str:
    """Return why a measurement, or a class of its targets, has no R(k), in two or three words."""
    return "gate failed" if long_gain.has_interval else TOO_FEW_DOCUMENTS


def failed_gates(summary: Summary) -> list[str]:
    """Return each gate that failed and what follows, in a few words each; a gate that does not apply has not failed."""
    failed = []
    if not summary.gate_passed:
        failed.append(f"VALIDITY GATE FAILED: {gate_reason(summary.long_gain_nats)}")
    if summary.beyond_gate == "failed":
        gain = summary.gain_beyond_nats
        unknown = "" if gain is not None and gain.has_interval else f"{TOO_FEW_TO_TELL}; "
        failed.append(f"GATE BEYOND THE TRAINING ROW FAILED: {unknown}{SELECTION_ONLY}")
    return failed


def recovered_words(summary: Summary, recovered: Optional[Estimate], digits: int = 2) -> str:
    """Return an R(k) with its interval, marked where it is fragile; a dash where the gate failed."""
    mark = f" {FRAGILE}" if summary.is_fragile and recovered is not None else ""
    return f"{interval(recovered, digits)}{mark}"


def positions_words(lengths: Lengths) -> str:
    """Return which position IDs a training row carried."""
    if lengths.pose_method == "randpos":  # it has no chunks, so their contents do not matter
        return f"random positions (RandPos) below {lengths.max_position}"
    if lengths.num_chunks == 1:
        return "ordinary positions, no PoSE"
    contents = CONTENTS_WORDS.get(lengths.pose_contents or "contiguous", "")
    return f"PoSE positions below {lengths.max_position}{contents}"


def length_words(lengths: Lengths) -> str:
    """Return the lengths, and how much of the full context lies beyond a training row, where one is known."""
    words = f"local {lengths.local_len} + long-range {lengths.num_long_range} = full {lengths.full_len} tokens"
    if lengths.train_len is None:
        return f"{words}; no training row of this model is known."
    beyond = lengths.full_len - lengths.train_len
    words += f"; trained on rows of {lengths.train_len} with {positions_words(lengths)}"
    if lengths.is_ceiling:
        return f"{words}. A row is as long as the full context: nothing lies beyond it."
    if lengths.train_len == lengths.local_len:
        return f"{words}; all {beyond} long-range tokens lie beyond what training saw at once."
    if lengths.train_len < lengths.local_len:
        return f"{words}. A row is shorter than the local context: {beyond} of the {lengths.full_len} tokens lie beyond it."
    return f"{words}. A row is longer than the local context: only {beyond} of the {lengths.full_len} tokens lie beyond it."


def blind_caption(summary: Summary) -> str:
    """Return what a reader of the table of selectors that do not see the target must know."""
    units, notes = unit_words(summary.unit), (units_words(summary), all_tokens_words(summary))
    return (
        f"Means at {shown_ks_words(summary)} alike. These selectors choose without the target, so their gain over random has "
        "no selection luck; it is no proof of information, so compare the null context. D(k): share of the model's reaction to "
        f"the long context that k {units} reproduce, useful or not; no evidence that the context helps. null "
        f"context: D of the same selector there. mimicry: D of {units} of the null context that were chosen to "
        "imitate the real prediction. cost: evaluations of the model for the scores of one window."
        + "".join(f" {note}" for note in notes if note)
    )


def shown_ks_words(summary: Summary) -> str:
    """Return which of the measured k a table shows: ``the smallest and the largest k``, or the numbers."""
    ks, shown = summary.ks, summary.shown_ks
    if set(shown) == {ks[0], ks[-1]}:
        return "the smallest and the largest k"
    return f"k = {', '.join(map(str, shown))} (of {len(ks)} measured)"


def all_tokens_words(summary: Summary) -> str:
    """Return that the k shown is all long-range tokens, in one sentence; empty where a smaller one is shown."""
    k = summary.shown_ks[0]
    if summary.at(summary.selectors[0], "real", k).all_visible_share < 1:
        return ""
    return (
        f"k = {k} is all of the long-range tokens, so by definition every selector chooses the same, and R(k) and D(k) are 1; "
        "measure smaller k."
    )


def units_words(summary: Summary) -> str:
    """Return what a reader of k must know where it does not count tokens, in one or two sentences; empty where it does.

    They say how many tokens the chosen ones hold, and in how many windows J_k is all long-range tokens.
    """
    if summary.unit == "token":
        return ""
    name, random = summary.selectors[0], "random" in summary.selectors
    name = next(iter(summary.blind_selectors), name)
    clauses = []
    for k in summary.end_ks:
        at = summary.at(name, "real", k)
        of_random = (
            f" ({summary.at('random', 'real', k).mean_tokens:.1f} of random)" if random and name != "random" else ""
        )
        clauses.append(f"{counted_words(summary.unit, k)} of {name}: {at.mean_tokens:.1f} tokens on average{of_random}")
    all_tokens = f"{summary.lengths.num_long_range} long-range tokens in all"
    words = f"k counts {unit_words(summary.unit)}; {'; '.join(clauses)}; {all_tokens}."
    shares = {k: summary.at(name, "real", k).all_visible_share for k in summary.ks}
    whole = [f"{share:.1%} at k = {k}" for k, share in shares.items() if share > 0]
    if not whole:
        return words
    return (
        f"{words} Share of the windows that have no more than k {unit_words(summary.unit)}, so that J_k is all of the long "
        f"context: {', '.join(whole)}."
    )


def multiplicity_words(num_classes: int) -> str:
    """Return how often some class passes its gate by chance, in one sentence."""
    chance = 1 - (1 - GATE_CHANCE) ** num_classes
    return (
        f"Each class has a gate of its own, which passes by chance in {GATE_CHANCE:.1%} of measurements: of {num_classes} "
        f"classes without long gain, at least one passes in {chance:.0%}."
    )


def classes_caption(whole: Summary, num_classes: int) -> str:
    """Return what a reader of a table or figure of classes must know."""
    no_fraction = "" if whole.gate_passed else " No class has an R(k), since the gate of all windows failed."
    return (
        f"{multiplicity_words(num_classes)}{no_fraction} The rules of {' and '.join(CONDITIONED_CLASSES)} look for the "
        "target among the long-range tokens, so a model that merely repeats words gains there: compare the long gain under the "
        "null context of the windows that the same rule picks there, and of the other windows. BCa intervals."
    )


def contrast_words(entry: ClassSummary) -> str:
    """Return what the long gain of a class is to be compared with, in one sentence; empty for classes without contrast."""
    contrast = entry.contrast
    if contrast is None:
        return ""
    return (
        f"{entry.target_class}: its rule looks for the target among the long-range tokens, so compare its long gain, "
        f"{interval(entry.summary.long_gain_nats, 3)} nats, with the same rule on the null context: "
        f"{interval(contrast.null_gain_nats, 3)} under the null context ({contrast.null_num_windows:,} windows), where other "
        f"targets have {interval(contrast.null_others_gain_nats, 3)}; targets of other classes have "
        f"{interval(contrast.others_gain_nats, 3)} under the real one."
    )


def verdict(difference: Optional[Estimate]) -> str:
    """Return what the interval of a difference shows: higher, lower, equal, or no clear difference."""
    if difference is None:
        return "-"
    if difference.bounds is None:
        return f"fewer than {MIN_DOCUMENTS} documents"
    if difference.bounds == (0, 0):
        return "equal"
    if difference.is_above_zero:
        return "higher"
    return "lower" if difference.is_below_zero else "no clear difference"


def against_zero(estimate: Estimate) -> str:
    """Return where an interval lies relative to 0, as the end of a sentence."""
    if not estimate.has_interval:
        return f"from {TOO_FEW_TO_TELL} it from 0"
    if estimate.is_above_zero:
        return "clearly above 0"
    return "clearly below 0" if estimate.is_below_zero else "not clearly different from 0"
