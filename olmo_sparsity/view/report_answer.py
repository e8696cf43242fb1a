"""The answer of a report in three sentences."""

from __future__ import annotations

from typing import Any

from olmo_sparsity.view import pages
from olmo_sparsity.view.report_data import SELECTOR_ORDER


def answer(summary: dict[str, Any], first: str) -> list[str]:
    """The answer in three sentences: is the long context worth anything, do few tokens give it back, how much is luck.

    Args:
        summary: of ``summarize``.
        first: the selector to speak of, best one that does not see the target.
    """
    of = {(e["selector"], e["context"], e["k"]): e for e in summary["selections"]}
    ks = sorted({k for _, _, k in of})
    low, high = ks[0], ks[-1]
    gain, null_gain = summary["long_gain_nats"], summary["null_long_gain_nats"]
    harm = ", which is harm" if null_gain["high"] is not None and null_gain["high"] < 0 else ""
    sentences = [
        f"Seeing all {summary['num_long_range']} long-range tokens besides the {summary['local_len']} local ones is worth "
        f"{_number(gain)} nats a target, {_above_zero(gain)}; foreign text in their place, {_number(null_gain)} nats{harm}."
    ]
    one = of[first, "real", low]
    sees = "which sees the target, so that luck is in it" if one["sees_target"] else "which does not see the target"
    if summary["gate"] == "passed":
        text = (
            f"Of this gain, the {_tokens(low)} that {first} picks, {sees}, {_give(low)} back the "
            f"fraction R({low}) = {_number(one['recovered_fraction'], 2)}"
        )
        if high > low:
            text += f", and {high} of them R({high}) = {_number(of[first, 'real', high]['recovered_fraction'], 2)}"
    else:
        text = (
            "So there is nothing that few tokens could be shown to give back, and no recovered fraction R(k) is given; "
            f"the {_tokens(low)} that {first} picks, {sees}, "
            f"{'gains' if low == 1 else 'gain'} {_number(one['gain_sparse_nats'])} nats"
        )
    over = one["gain_over_random_nats"]
    if over is not None:
        gains, tokens = ("it gains", "a token") if low == 1 else (f"{low} gain", "tokens")
        text += f"; what {gains} over {tokens} taken at random is {_number(over)} nats, {_above_zero(over)}"
    sentences.append(text + ".")
    seeing = next(
        (name for name in SELECTOR_ORDER if (name, "real", high) in of and of[name, "real", high]["sees_target"]), None
    )
    if seeing is not None:
        entry, null = of[seeing, "real", high], of[seeing, "null", high]
        text = (
            f"{seeing}, which sees the target, gains {_number(entry['gain_sparse_nats'])} nats with its {_tokens(high)}, but "
            f"{_number(null['gain_sparse_nats'])} with foreign text in their place, which is the luck of its choice"
        )
        left = entry["excess_over_random_nats"]
        if left is not None:
            text += f"; what is left over random is {_number(left)} nats, {_above_zero(left)}"
        sentences.append(text + ".")
    return sentences


def _number(value: dict[str, Any], digits: int = 3) -> str:
    return pages.minus_interval(value, digits)


def _tokens(k: int) -> str:
    return "one token" if k == 1 else f"{k} tokens"


def _give(k: int) -> str:
    return "gives" if k == 1 else "give"


def _above_zero(value: dict[str, Any]) -> str:
    """What an interval says about 0."""
    if value["low"] is None:
        return "from too few documents to tell it from 0"
    if value["low"] > 0:
        return "clearly above 0"
    return "clearly below 0" if value["high"] < 0 else "not to be told from 0"
