"""Words about whether sparsity predicts the gain from beyond the training row."""

from __future__ import annotations

from collections.abc import Iterator

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.hypothesis import MIN_SEEDS, Hypothesis, SparsityAndGain
from olmo_sparsity.wording.curves import seeds_words
from olmo_sparsity.wording.numbers import TOO_FEW_TO_TELL, interval
from olmo_sparsity.wording.setup import definition_words, foreign_words, null_label

GAIN_DIGITS, SHARE_DIGITS = 4, 2
SAME_RUN = (
    "Sparsity and {gain} are of one run, so its noise is in both; train further seeds{of_it}, and name them with --run, to "
    "separate them."
)
SAME_MODEL = "Sparsity and gain are of one pretrained model, which has no further seeds, so its noise is in both."
NO_CEILING = "Without a ceiling there is no share: in any model sparse reactions may gain more."


def hypothesis_sentences(found: Hypothesis) -> Iterator[str]:
    """Yield what was found about each model, the answer first."""
    for entry in found.main:
        if entry.sparsity_from == entry.gain_of:
            yield gain_sentence(entry, null_name(found))
            if entry.is_same_run:
                is_pretrained = entry.gain_of in found.pretrained
                yield SAME_MODEL if is_pretrained else SAME_RUN.format(gain="gain", of_it="")
        else:
            yield share_sentence(entry)
            if entry.is_same_run:
                yield SAME_RUN.format(gain="the ceiling's gain", of_it=" of the ceiling")
    if found.ceiling is None:
        yield NO_CEILING


def null_name(found: Hypothesis) -> str:
    """Return ``foreign text``, or ``the null context`` where it is not text of another document."""
    return foreign_words(found.null_context)


def short_null_name(null: str) -> str:
    """Return ``foreign`` or ``null``, beside ``real``, of what ``null_name`` returns."""
    return null_label(null).split()[0]


def gain_sentence(entry: SparsityAndGain, null: str) -> str:
    """Return whether sparse reactions gain more than dense ones, and by more than under the null context; ``null``: its name."""
    difference = entry.contrasts.real_minus_null_nats
    numbers = (
        f"{interval(difference, GAIN_DIGITS)} nats more than under {null} (real "
        f"{interval(entry.contrasts.gain_nats, GAIN_DIGITS)}, {short_null_name(null)} "
        f"{interval(entry.contrasts.null_gain_nats, GAIN_DIGITS)})"
    )
    return f"{entry.gain_of}: {_gain_verdict(entry, null)}. Sparse minus dense: {numbers}."


def _gain_verdict(entry: SparsityAndGain, null: str) -> str:
    """Return which reactions gain more by the gain itself, and where it is the sparse ones, whether the null context gives less.

    The gain over the null context alone does not tell: sparse reactions may gain less than dense ones, and lose less there.
    """
    gain, difference = entry.contrasts.gain_nats, entry.contrasts.real_minus_null_nats
    words = _verdict(gain if difference.has_interval else difference, _OF_GAIN)
    if not (difference.has_interval and gain.is_above_zero) or difference.is_above_zero:
        return words
    return f"{words}, but {'by less' if difference.is_below_zero else 'not clearly by more'} than under {null}"


def share_sentence(entry: SparsityAndGain) -> str:
    """Return whether the model reaches a larger share of the ceiling's gain where reactions are sparse."""
    difference = entry.contrasts.share_of_ceiling
    if difference is None:
        return (
            f"{entry.gain_of}: the ceiling does not gain from all of these targets, so there is no share of its gain."
        )
    shares = ", ".join(interval(third.share_of_ceiling, SHARE_DIGITS) for third in entry.thirds)
    return (
        f"{entry.gain_of}: {_verdict(difference, _OF_SHARE)}. Its share of the ceiling's gain is {shares} (dense, middle, "
        f"sparse); sparse minus dense {interval(difference, SHARE_DIGITS)}."
    )


_OF_GAIN = (
    "targets whose reaction is sparse gain more from beyond the training row than targets whose reaction is as large and dense",
    "targets whose reaction is sparse gain less from beyond the training row than targets whose reaction is as large and dense",
    "it is not shown that targets whose reaction is sparse gain more from beyond the training row than dense ones",
)
_OF_SHARE = (
    "it reaches a larger share of the ceiling's gain where the reaction is sparse",
    "it reaches a smaller share of the ceiling's gain where the reaction is sparse",
    "it is not shown that it reaches a larger share of the ceiling's gain where the reaction is sparse",
)


def _verdict(difference: Estimate, words: tuple[str, str, str]) -> str:
    """Return the words for a difference whose interval lies above 0, below 0, or neither."""
    if not difference.has_interval:
        return f"there are {TOO_FEW_TO_TELL} sparse from dense reactions"
    if difference.is_above_zero:
        return words[0]
    return words[1] if difference.is_below_zero else words[2]


def measured_words(found: Hypothesis) -> str:
    """Return what was compared, and what the intervals include."""
    seeds = ", ".join(f"{label} ({seeds_words(number)})" for label, number in found.models.items())
    stated = f" (stated for {', '.join(found.pretrained)})" if found.pretrained else ""
    includes = "the documents"
    if max(found.models.values()) >= MIN_SEEDS:
        includes += f" and the seeds of models with {MIN_SEEDS} or more"
    return (
        f"{found.num_windows:,} targets of {found.num_documents:,} documents; gain: loss with the last {found.row_len} tokens, "
        f"as many as a training row has{stated}, minus loss with {found.full_len}; {definition_words(found.setup)}. Models: "
        f"{seeds}; brackets: 95% intervals that include {includes}."
    )


def matched_words(entry: SparsityAndGain) -> str:
    """Return what the dense, middling and sparse targets have in common."""
    of = {
        "reaction": "the size of the reaction",
        "distance": "the distance of the chosen token",
        "entropy": "the entropy of the short prediction",
    }
    matched = [of[name] for name in entry.analysis.matched]
    words = f"thirds of {entry.num_targets:,} targets"
    if matched:
        words += f" that are alike in {', '.join(matched[:-1])}{' and ' if matched[1:] else ''}{matched[-1]}"
    return words
