"""What a measurement found, in words: three questions, a verdict each; one caution; and how numbers are written."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any, Literal, Optional

import numpy as np
import pandas as pd

from olmo_sparsity.config import MIN_DOCUMENTS
from olmo_sparsity.statistics.enough import few, share_at
from olmo_sparsity.statistics.quantities import QUANTITIES, Gate, first_blind, gate, pick, side_of_zero, units_of
from olmo_sparsity.statistics.spectrum import TOLERANCE
from olmo_sparsity.tables import lengths_of, model_name

Verdict = Literal["YES", "NO", "TOO FEW DOCUMENTS", "DOES NOT APPLY"]
VERDICTS: dict[Gate, Verdict] = {
    "above": "YES", "below": "NO", "unclear": "NO", "too few": "TOO FEW DOCUMENTS", "not applicable": "DOES NOT APPLY",
}  # fmt: skip
TOO_FEW = "Intervals need at least {least} documents; these are {documents}."
HELPS: dict[Gate, str] = {
    "above": "All {full} tokens predict the next one (the target) better than the last {some}.",
    "below": "The last {some} tokens predict the next one (the target) better than all {full}.",
    "unclear": "All {full} tokens are not shown to predict better than the last {some}.",
    "too few": TOO_FEW,
    "not applicable": "No training row shorter than the {full} tokens is known.",
}
ENOUGH = {  # on average, and of targets: question, sentence, what the share is of
    False: (
        "Are few tokens enough, on average?",
        "{k} of {all} {unit}, picked blind to the target ({selector}). Random: {random}, blending: {blend}.",
        "of the gain",
    ),
    True: (
        "Are few tokens enough, for 9 of 10 predictions?",
        f"{{k}} of {{all}} ({{selector}}) predict as all do, within {TOLERANCE:g} nats. Random: {{random}}, none: {{none}}.",
        "of them",
    ),
}
NO_GAIN = "No gain is shown that tokens could give back."
NO_CHOICE = "Needs the selector random, and one that does not see the target, at a small k."
DAMPED: dict[Gate, str] = {"above": "less", "below": "more", "unclear": "as much", "too few": "perhaps as much"}
BLENDING = "Blending the predictions without and with all tokens gains {}: choosing adds {} nats."
OVER_RANDOM = "The gain over random tokens is {} nats larger than on foreign text."


@dataclass(frozen=True)
class Answer:
    """The answer to a question; ``number`` is empty where there is none."""

    question: str
    verdict: Verdict
    sentence: str
    number: str = ""


def number(value: Any, low: float = np.nan, high: float = np.nan, digits: int = 2) -> str:
    """Write a number and its interval, ``0.071 [0.063, 0.080]``; a row of the frame has an interval and digits of its own."""
    if isinstance(value, pd.Series):
        digits = QUANTITIES[value["quantity"]].digits if value["quantity"] in QUANTITIES else digits
        value, low, high = value["value"], value["low"], value["high"]
    text = _rounded(value, digits)
    return text if np.isnan(low) else f"{text} [{_rounded(low, digits)}, {_rounded(high, digits)}]"


def percent(row: Optional[pd.Series]) -> str:
    """Write a share and its interval, ``91% [85, 98]``; ``-`` where there is none."""
    if row is None:
        return "-"
    value, low, high = (_rounded(100 * row[name], 0) for name in ("value", "low", "high"))
    return f"{value}%" if np.isnan(row["low"]) else f"{value}% [{low}, {high}]"


def _rounded(value: float, digits: int) -> str:
    return re.sub(r"^-(?=[0.]+$)", "", f"{value:.{digits}f}")  # -0.000 is 0.000


def measured_line(manifest: dict[str, Any], frame: pd.DataFrame) -> str:
    """What was measured: the model, windows, text and lengths."""
    lengths = lengths_of(manifest)
    name = model_name(manifest)
    rule = "contextual" if manifest.get("visibility") == "contextual" else None
    text = ", ".join(filter(None, (PurePath(manifest["source"]).name, manifest.get("split"), rule)))
    row = f"; training rows of {lengths.train_len} tokens" if lengths.train_len else ""
    counts = f"{frame['n_windows'].max():,} windows of {frame['n_documents'].max():,} documents ({text})"
    return f"{name}: {counts}; {lengths.local_len} local + {lengths.num_long_range} earlier tokens{row}"


def first_token_line(manifest: dict[str, Any]) -> str:
    """A warning where a loss is clearly lower with the other choice of a first token; else empty."""
    check = (manifest.get("fit") or {}).get("anchor")
    other = "none" if check and check["chosen"] == "bos" else "bos"
    if not check or other not in check["lower_with"].values():
        return ""
    better = "without a first token" if other == "none" else f"with the first token {check['text']}"
    return f"WARNING: a loss is lower {better}: measure again with influence.anchor={other}."


def answers(frame: pd.DataFrame) -> list[Answer]:
    """Does the long context help; beyond the training row; are few tokens enough, on average and for most predictions."""
    lengths, selector = lengths_of(frame.attrs["manifest"]), first_blind(frame)
    words: dict[str, Any] = {"least": MIN_DOCUMENTS, "documents": frame["n_documents"].max(), "full": lengths.full_len}
    words |= {"unit": units_of(frame.attrs["manifest"]), "selector": selector}
    words["all"] = f"{round(frame.attrs['num_units'], 1):g}"
    found = []
    for question, quantity, some in (
        ("Does the long context help?", "gate_gain_nats", lengths.local_len),
        ("Does it help beyond its training row?", "gain_beyond_nats", lengths.train_len),
    ):
        of, row = gate(frame, quantity), pick(frame, quantity)
        value = "" if row is None else f"gain {number(row)} nats"
        found.append(Answer(question, VERDICTS[of], HELPS[of].format(**words, some=some), value))
    for of_targets, name in ((False, "recovered_fraction"), (True, "spectrum_share")):
        if of_targets and name not in set(frame["quantity"]):  # means over seeds have no spectrum
            continue
        (question, sentence, what), (k, of) = ENOUGH[of_targets], few(frame, of_targets=of_targets)
        value = ""
        if k is None or of in ("too few", "not applicable"):
            sentence = TOO_FEW if of == "too few" else NO_CHOICE if gate(frame) == "above" else NO_GAIN
        else:
            rows = {"random": share_at(frame, name, "random", k), "none": share_at(frame, name, selector, 0)}
            words |= {"k": k, **{of: percent(row).partition(" ")[0] for of, row in rows.items()}}
            blend = pick(frame, "expected_gain_nats", selector=selector, context="real", k=k)
            gain = pick(frame, "long_gain_nats")
            words["blend"] = "-" if blend is None or gain is None else f"{blend['value'] / gain['value']:.0%}"
            value = f"{percent(share_at(frame, name, selector, k))} {what}"
        found.append(Answer(question, VERDICTS[of], sentence.format(**words), value))
    return found


def caution(frame: pd.DataFrame, k: Optional[int]) -> str:
    """What R(k) alone does not tell: whether a choice gains more than damping, and than on foreign text; k as of `few`."""
    if k is None:
        return f"{NO_CHOICE if gate(frame) == 'above' else NO_GAIN} Other numbers of selectors are evidence of nothing."
    at = {"selector": first_blind(frame), "context": "real", "k": k}
    damping, excess = (pick(frame, name, **at) for name in ("gain_over_damping_nats", "excess_over_random_nats"))
    sentences = ["R alone says little."]
    if damping is not None:
        sentences.append(BLENDING.format(DAMPED[side_of_zero(damping)], number(damping)))
    if excess is not None:
        sentences.append(OVER_RANDOM.format(number(excess)))
    return " ".join(sentences)
