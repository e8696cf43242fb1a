"""The answer of the report, in three sentences."""

from __future__ import annotations

from typing import Optional

from olmo_sparsity.statistics.estimate import Estimate
from olmo_sparsity.statistics.summary import Summary
from olmo_sparsity.statistics.wording import against_zero
from olmo_sparsity.view import pages
from olmo_sparsity.view.report_data import SELECTOR_ORDER


def answer(summary: Summary, first: str) -> list[str]:
    """Return the answer in three sentences.

    They are about the value of the long context, how much of it few tokens give back, and how much of that is selection luck.
    The third is left out if no selector that sees the target was measured.

    Args:
        summary: the numbers.
        first: the selector of the second sentence; one that does not see the target, if there is one.
    """
    sentences = [_value_of_long_context(summary), _value_of_few_tokens(summary, first)]
    seeing = next((name for name in SELECTOR_ORDER if name in summary.selectors and _sees_target(summary, name)), None)
    if seeing is not None:
        sentences.append(_selection_luck(summary, seeing))
    return sentences


def _value_of_long_context(summary: Summary) -> str:
    gain, null_gain, lengths = summary.long_gain_nats, summary.null_long_gain_nats, summary.lengths
    harm = ", so it does harm" if null_gain.is_below_zero else ""
    return (
        f"Seeing all {lengths.num_long_range} long-range tokens in addition to the {lengths.local_len} local ones is worth "
        f"{_number(gain)} nats per target, {against_zero(gain)}; foreign text in their place is worth {_number(null_gain)} "
        f"nats{harm}."
    )


def _value_of_few_tokens(summary: Summary, selector: str) -> str:
    low, high = summary.ks[0], summary.ks[-1]
    at_low = summary.at(selector, "real", low)
    sees = (
        "which sees the target, so part of this is luck" if at_low.info.sees_target else "which does not see the target"
    )
    if summary.gate_passed:
        text = (
            f"Of this gain, the {_tokens(low)} that {selector} picks, {sees}, {_verb('give', low)} back the fraction "
            f"R({low}) = {_number(at_low.recovered_fraction, 2)}"
        )
        if high > low:
            recovered = summary.at(selector, "real", high).recovered_fraction
            text += f", and {high} of them R({high}) = {_number(recovered, 2)}"
    else:
        text = (
            "There is no long gain that few tokens could give back, so no recovered fraction R(k) is shown; "
            f"the {_tokens(low)} that {selector} picks, {sees}, {_verb('gain', low)} {_number(at_low.gain_sparse_nats)} nats"
        )
    over = at_low.gain_over_random_nats
    if over is not None:
        text += f"; the gain over {_tokens(low)} taken at random is {_number(over)} nats, {against_zero(over)}"
    return text + "."


def _selection_luck(summary: Summary, selector: str) -> str:
    k = summary.ks[-1]
    real, null = summary.at(selector, "real", k), summary.at(selector, "null", k)
    text = (
        f"{selector}, which sees the target, gains {_number(real.gain_sparse_nats)} nats with its {_tokens(k)}, but "
        f"{_number(null.gain_sparse_nats)} nats with foreign text in their place, which is the luck of its choice"
    )
    rest = real.real_minus_luck_nats
    if rest is not None:
        text += f"; its gain minus that on resampled targets is {_number(rest)} nats, {against_zero(rest)}"
    return text + "."


def _sees_target(summary: Summary, selector: str) -> bool:
    return summary.at(selector, "real", summary.ks[-1]).info.sees_target


def _number(estimate: Optional[Estimate], digits: int = 3) -> str:
    return pages.minus_interval(estimate, digits)


def _tokens(k: int) -> str:
    return "one token" if k == 1 else f"{k} tokens"


def _verb(verb: str, k: int) -> str:
    """Return the verb for k tokens, in the singular or the plural."""
    return f"{verb}s" if k == 1 else verb
