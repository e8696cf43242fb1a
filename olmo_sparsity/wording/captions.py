"""Captions of tables and figures: what a reader of the numbers must know."""

from __future__ import annotations

from collections.abc import Sequence

from olmo_sparsity.statistics.single.breakdowns import CONDITIONED_CLASSES, ClassSummary
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.wording.gates import MAY_BE_GAP, multiplicity_words
from olmo_sparsity.wording.numbers import interval, no_interval_words
from olmo_sparsity.wording.units import all_tokens_words, shown_ks_words, units_of, units_words

EVERY = (
    "Of a selector that sees the target, R(k), sparse gain and gain over random include optimism; corrected gain does not. "
    "Corrected gain under the null context is the placebo. excess: real minus null context. D(k) is no evidence that the context "
    "helps: compare random and the null context."
)


def every_caption(summary: Summary) -> str:
    """Return what a reader of the table of every k must know."""
    return " ".join(filter(None, (EVERY, no_interval_words("D(k)", summary.num_documents), units_words(summary))))


def blind_caption(summary: Summary) -> str:
    """Return what a reader of the table of selectors that do not see the target must know."""
    units, few = units_of(summary), no_interval_words("D(k)", summary.num_documents)
    notes = (few, units_words(summary), all_tokens_words(summary))
    return (
        f"Shown: {shown_ks_words(summary)}. These selectors choose without the target, so their gain over random has no "
        "optimism. It is no proof of information: compare the null context. D(k): the share of the model's reaction to the long "
        f"context that k {units} reproduce. A reaction need not be useful, so D(k) is no evidence that the context helps. null "
        f"context: D of the same selector there. cost: evaluations of the model for the scores of one window."
        + "".join(f" {note}" for note in notes if note)
    )


def class_gates_words(classes: Sequence[ClassSummary]) -> str:
    """Return how often some class passes its gate by chance, and which classes fail it although their long gain is above 0.

    Classes of too few documents for an interval pass no gate, and do not count.
    """
    num_assessed = sum(entry.summary.gate != "not-assessed" for entry in classes)
    of_gap = ", ".join(entry.target_class for entry in classes if entry.summary.may_be_gap)
    return multiplicity_words(num_assessed) + (f" The gate of {of_gap} failed: {MAY_BE_GAP}." if of_gap else "")


def classes_caption(whole: Summary, classes: Sequence[ClassSummary]) -> str:
    """Return what a reader of a table or figure of classes must know."""
    no_fraction = "" if whole.gate_passed else " No class has an R(k), since the gate of all windows did not pass."
    return (
        f"{class_gates_words(classes)}{no_fraction} The rules of {' and '.join(CONDITIONED_CLASSES)} look for the "
        "target among the long-range tokens, so a model that merely repeats words gains there. Compare the long gain under the "
        "null context: of the windows that the same rule picks there, and of the others. BCa intervals."
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
