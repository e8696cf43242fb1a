"""Results in words: intervals, gates and lengths, the same in every output."""

from __future__ import annotations

from typing import Any, Optional

from olmo_sparsity.statistics.bootstrap import (
    MIN_DOCUMENTS,
)


def smallest_k_words(smallest: Optional[dict[str, Any]], max_k: int) -> str:
    """A smallest k of ``effective_sparsity``: ``2 [1, > 8]``, or a dash where the gate failed."""
    if smallest is None:
        return "-"
    value, low, high = (
        f"> {max_k}" if smallest[name] is None else str(smallest[name]) for name in ("value", "low", "high")
    )
    return f"{value} [{low}, {high}]"


def interval(value: Optional[dict[str, Any]], digits: int = 2) -> str:
    """An estimate in words: ``0.41 [0.36, 0.47]``, or a dash where there is none."""
    if value is None:
        return "-"
    if value["low"] is None:
        return f"{value['mean']:.{digits}f}"
    return f"{value['mean']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"


def gate_words(summary: dict[str, Any]) -> str:
    """The validity gate in one sentence, for every table and figure."""
    gain = summary["long_gain_nats"]
    if gain["low"] is None:
        return f"GATE FAILED: fewer than {MIN_DOCUMENTS} documents are too few for an interval; no recovered fraction is shown."
    numbers = f"{gain['mean']:+.4f} nats, 95% interval [{gain['low']:+.4f}, {gain['high']:+.4f}]"
    if summary["gate"] == "passed":
        return f"Gate passed: the long context is worth {numbers}."
    return (
        f"GATE FAILED: the mean long gain ({numbers}) is not above 0. This model does not profit from the long context, "
        "so no recovered fraction is shown."
    )


# What the chunks of a training row held, where it was not consecutive text; manifests older than this choice do not say.
CONTENTS_WORDS = {
    "matched": ", over text as far apart as they say",
    "uniform": ", over pieces of text drawn apart from them",
}


def length_words(summary: dict[str, Any]) -> str:
    """How much of the full context lies beyond what a training row held."""
    if summary.get("pose_method") == "randpos":  # nor of RandPos
        positions = f"random positions (RandPos) below {summary['max_position']}"
    elif summary["num_chunks"] > 1:
        positions = f"PoSE positions below {summary['max_position']}"
        positions += CONTENTS_WORDS.get(summary.get("pose_contents", "contiguous"), "")
    else:
        positions = "ordinary positions, no PoSE"
    beyond = summary["full_len"] - summary["train_len"]
    words = (
        f"local {summary['local_len']} + long-range {summary['num_long_range']} = full {summary['full_len']} tokens; "
        f"trained on rows of {summary['train_len']} with {positions}"
    )
    if summary["train_len"] == summary["local_len"]:
        return f"{words}, so that all {beyond} long-range tokens lie beyond what training saw at once."
    return f"{words}. A row is longer than the local context: only {beyond} of the {summary['full_len']} tokens lie beyond it."


def verdict(difference: Optional[dict[str, Any]]) -> str:
    """What the interval of a difference says: more, less, or not to be told."""
    if difference is None:
        return "-"
    if difference["low"] is None:
        return f"fewer than {MIN_DOCUMENTS} documents"
    if difference["low"] == difference["high"] == 0:
        return "the same"
    if difference["low"] > 0:
        return "more"
    return "less" if difference["high"] < 0 else "not to be told apart"
