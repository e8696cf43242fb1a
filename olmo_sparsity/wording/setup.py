"""Sentences about what was measured: the model or run, its text, lengths, definition of visible, first token and null context."""

from __future__ import annotations

from typing import Optional, Union

from olmo_sparsity.records.measured import HASH_DIGITS, Anchor, NullContext
from olmo_sparsity.statistics.curves import ContextCurve
from olmo_sparsity.statistics.single.measurement import Estimand, Lengths
from olmo_sparsity.statistics.single.model_setup import ModelSetup, Visibility
from olmo_sparsity.statistics.single.summary import Summary

NULL_WORDS = {
    "document": "text of another document",
    "shuffled": "the same tokens in random order",
}
# Who sees what under each definition.
VISIBILITY_WORDS: dict[Visibility, str] = {
    "hidden": "a hidden token is seen by no one",
    "contextual": "the long-range tokens see one another, the local tokens see only the chosen ones",
}
ESTIMAND_WORDS: dict[Estimand, str] = {
    "targets": "mean over eligible targets",
    "given": "mean over the given windows",
}
UNKNOWN_TRAINING_TEXT = "Whether the model was trained on this text is unknown."
NOT_LOOKED_FOR = "Whether the windows share text with training was not looked for."


def data_words(result: Union[Summary, ContextCurve]) -> str:
    """Return how much was measured, of which text, and whose mean the numbers are."""
    measured = f"{result.num_windows:,} windows of {result.num_documents:,} documents"
    estimand = result.estimand if isinstance(result, Summary) else "targets"
    return f"{measured} ({result.source}, {result.split}), {estimand_words(estimand, result.lengths)}"


def measured_words(result: Union[Summary, ContextCurve]) -> str:
    """Return which run or model was measured, the definition of visible and the anchor, as a sentence without full stop."""
    return setup_words(result.run, result.setup)


def overlap_words(summary: Summary) -> str:
    """Return how many windows share text with training, in one sentence.

    Where it is not known, the sentence says why; it is empty where the manifest of a run does not tell.
    """
    if summary.overlap_percent is None:
        of_run = NOT_LOOKED_FOR if summary.looked_for_overlap is False else ""
        return of_run if summary.setup.model is None else UNKNOWN_TRAINING_TEXT
    return (
        f"{summary.overlap_percent:.1f}% of the windows hold 13 consecutive tokens that the training text holds, too."
    )


def positions_words(lengths: Lengths) -> str:
    """Return which position IDs a training row carried."""
    if lengths.pose_method == "randpos":  # it has no chunks, so their contents do not matter
        return f"random positions (RandPos) below {lengths.max_position}"
    if lengths.num_chunks == 1:
        return "ordinary positions, no PoSE"
    matched = ", with chunks of text as far apart as their positions" * (lengths.pose_contents == "matched")
    return f"PoSE positions below {lengths.max_position}{matched}"


def length_words(lengths: Lengths) -> str:
    """Return the lengths, and how much of the full context lies beyond a training row, where one is known."""
    words = f"local {lengths.local_len} + long-range {lengths.num_long_range} = full {lengths.full_len} tokens"
    if lengths.train_len is None:
        return f"{words}; no training row of this model is known."
    beyond = lengths.full_len - lengths.train_len
    if lengths.train_len_is_stated:
        words += f"; stated training row of {lengths.train_len} tokens, {lengths.max_position} positions"
    else:
        words += f"; trained on rows of {lengths.train_len} with {positions_words(lengths)}"
    if lengths.train_len > lengths.full_len:
        return f"{words}. A row is longer than the full context: nothing lies beyond it."
    if lengths.is_ceiling:
        return f"{words}. A row is as long as the full context: nothing lies beyond it."
    if lengths.train_len == lengths.local_len:
        return f"{words}; all {beyond} long-range tokens lie beyond what training saw at once."
    if lengths.train_len < lengths.local_len:
        return f"{words}. A row is shorter than the local context: {beyond} of the {lengths.full_len} tokens lie beyond it."
    return f"{words}. A row is longer than the local context: only {beyond} of the {lengths.full_len} tokens lie beyond it."


def row_words(lengths: Lengths, determiner: str = "a") -> str:
    """Return ``a training row``, with another determiner where one is given, or that the row was stated."""
    return "the stated training row" if lengths.train_len_is_stated else f"{determiner} training row"


def null_sentence(summary: Summary) -> str:
    """Return what stands in place of the long-range tokens in the null context, and where it is foreign text what that shows."""
    shows = "; it shows whether the content matters" if summary.null_context == "document" else ""
    return f"Null context, in place of the long-range tokens: {NULL_WORDS[summary.null_context]}{shows}."


def foreign_words(null_context: NullContext) -> str:
    """Return ``foreign text``, or where it is none ``the null context``."""
    return "foreign text" if null_context == "document" else "the null context"


def null_label(null: str) -> str:
    """Return what ``foreign_words`` returns as a label: without an article."""
    return null.removeprefix("the ")


def short_positions_words(lengths: Lengths) -> str:
    """Return in a few words how long the training rows were for the window, and which position IDs they carried."""
    if lengths.pose_method == "randpos":
        positions = "RandPos"
    elif lengths.num_chunks == 1:
        positions = "no PoSE"
    else:
        positions = f"PoSE, {lengths.num_chunks} chunks" + ", matched" * (lengths.pose_contents == "matched")
    if not lengths.is_ceiling:
        return positions
    return f"ceiling, rows of {lengths.train_len}" + ("" if positions == "no PoSE" else f", {positions}")


def estimand_words(estimand: Estimand, lengths: Lengths) -> str:
    """Return whose mean the numbers are, and which targets are eligible where ``influence.min_preceding`` says so."""
    preceding = lengths.min_preceding
    eligible = "" if preceding is None else f" (at least {preceding} tokens before each target)"
    return f"{ESTIMAND_WORDS[estimand]}{eligible}"


def subject_words(run: str, setup: ModelSetup) -> str:
    """Return which pretrained model was measured, in which form, or which run."""
    model = setup.model
    if model is None:
        return f"run {run}"
    revision = "" if model.revision is None else f", revision {model.revision[:HASH_DIGITS]}"
    return (
        f"model {model.short_name} ({model.num_parameters / 1e6:.4g}M parameters, {model.dtype}{revision}"
        f"{'' if model.rope_scaling is None else f', RoPE scaling {model.rope_scaling}'}, "
        f"weights {model.weights_sha256[:HASH_DIGITS]})"
    )


def visibility_words(setup: ModelSetup) -> str:
    """Return the definition of visible, by name and in words."""
    return f"visibility {setup.visibility} ({VISIBILITY_WORDS[setup.visibility]})"


def anchor_words(anchor: Optional[Anchor]) -> str:
    """Return which first token is always visible, if any."""
    return short_anchor_words(anchor) + ("" if anchor is None else " (a first token that is always visible)")


def short_anchor_words(anchor: Optional[Anchor]) -> str:
    """Return which first token is always visible, if any, in a few words."""
    return "no anchor" if anchor is None else f'anchor "{anchor.text}"'


def definition_words(setup: ModelSetup) -> str:
    """Return the definition of visible and the anchor."""
    return f"{visibility_words(setup)}; {anchor_words(setup.anchor)}"


def setup_words(run: str, setup: ModelSetup) -> str:
    """Return what was measured, the definition of visible and the anchor, as a sentence without its full stop."""
    words = f"{subject_words(run, setup)}; {definition_words(setup)}"
    return f"{words[0].upper()}{words[1:]}"


def anchor_warning(setup: ModelSetup) -> str:
    """Return that a mean loss is clearly lower with the other choice of the first token, in one sentence; empty where none is."""
    check = setup.anchor_check
    if check is None:
        return ""
    of_length = {
        "short": ("with the local tokens alone", check.loss_short_nats, check.standard_error_short_nats),
        "long": ("with all tokens visible", check.loss_long_nats, check.standard_error_nats),
    }
    by = f'with the anchor "{check.text}"' if check.other == "bos" else "without an anchor"
    lower = []
    for length, choice in check.lower_with.items():
        if choice == check.other:
            visible, losses, error = of_length[length]
            with_it, without = (f"{losses[each]:.4f}" for each in ("bos", "none"))
            lower.append(
                f"the mean loss {visible} is lower {by} ({with_it} nats with it, {without} nats without it, "
                f"{check.num_windows:,} windows; standard error of the difference {error:.4f})"
            )
    return f"WARNING: this measurement is not of the better first token: {', and '.join(lower)}." if lower else ""


def short_anchor_warning(setup: ModelSetup) -> str:
    """Return ``anchor_warning`` in a few words, for where its numbers have no room; empty where there is none."""
    return "WARNING: not of the better first token." if anchor_warning(setup) else ""
