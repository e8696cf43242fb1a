"""Sentences about what selection does: optimism, corrected gain, and the checks that stand beside them."""

from __future__ import annotations

from olmo_sparsity.statistics.single.measurement import SelectionKey
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.wording.numbers import interval

ALL_TOKENS = "all tokens"
BLIND = "that does not see the target"
RANDOM = "random"  # the selector that is the check
SEEING = "A selector that sees the target gains by choosing for this target alone."
SELECTION_CAPTION = (
    "optimism: what a choice gains on the label that it was made for, minus what it gains on another one; both labels are drawn "
    "from the short-context prediction. corrected gain: sparse gain minus optimism, window by window. placebo: the corrected "
    "gain under the null context; it must not be above 0. The placebo of all tokens, which select nothing, is their gain."
)


def selection_words(summary: Summary) -> str:
    """Return the sentences above the table of what selection does: how to read it, its checks, and calibration."""
    if all(entry.optimism_nats is None for entry in summary.selections):
        return f"{SEEING} How much, its optimism, was not measured: no label was drawn (influence.resampled_draws)."
    words = [
        f"{SEEING} Optimism is how much; read the corrected gain.",
        *_checks(summary),
        "The short-context prediction, from which labels are drawn, need not be calibrated: its entropy minus its loss is "
        f"{interval(summary.calibration_nats, 3)} nats.",
    ]
    return " ".join(words)


def _checks(summary: Summary) -> list[str]:
    """Return what the checks say: the optimism of rules that select nothing, and the placebo."""
    keys = {(entry.selector, entry.context, entry.k): entry for entry in summary.selections}
    blind = {
        f"{RANDOM} at k = {k}": keys[RANDOM, "real", k].optimism_nats
        for k in summary.shown_ks
        if SelectionKey(RANDOM, "real", k) in keys
    }
    measured = {
        name: value
        for name, value in {**blind, ALL_TOKENS: summary.optimism_all_nats}.items()
        if value is not None and value.has_interval
    }
    rules, hold = "Random and all tokens", "intervals of their optimism hold 0, as they"
    if measured.keys() == {ALL_TOKENS}:
        rules, hold = "All tokens", "interval of their optimism holds 0, as it"
    failed = [name for name, value in measured.items() if value.is_above_zero or value.is_below_zero]
    words = []
    if failed:
        words.append(
            f"{rules} select nothing, yet the interval of the optimism of {', '.join(failed)} does not hold 0."
        )
    elif measured:
        words.append(f"{rules} select nothing, and the {hold} must.")
    above = []
    for name in (*summary.seeing_selectors, RANDOM):
        for k in summary.shown_ks:
            entry = keys.get((name, "null", k))
            if entry is not None and entry.corrected_gain_nats is not None and entry.corrected_gain_nats.is_above_zero:
                above.append(f"{name} at k = {k}")
    if above:
        words.append(
            f"The placebo of {', '.join(above)} is above 0, so not all of the corrected gain need be information."
        )
    return words
