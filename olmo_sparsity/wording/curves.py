"""Words about context curves of several models, and about means over seeds of training."""

from __future__ import annotations

from olmo_sparsity.statistics.curves import ContextCurve
from olmo_sparsity.statistics.several.curve_comparison import ComparedCurves, ModelCurve
from olmo_sparsity.statistics.single.model_setup import subject_names
from olmo_sparsity.statistics.single.summary import ROBUST_RATIO
from olmo_sparsity.wording.numbers import FRAGILE, REACHES_ZERO, against_zero, interval, interval_beside_zero
from olmo_sparsity.wording.setup import anchor_words, row_words, short_positions_words, subject_words

SHOWS_NOTHING = "the curve shows nothing about length generalization"
OF_ONE_SEED = "intervals of models with 1 seed do not include what another seed would change"


def model_labels(compared: ComparedCurves) -> list[str]:
    """Return short distinct names of the models.

    These are the names of pretrained models, and the positions of others, with the name of the run where positions are the same.
    """
    names = subject_names([(model.curve.run, model.curve.setup) for model in compared.models])
    words = [
        short_positions_words(model.curve.lengths) if model.curve.setup.model is None else name
        for name, model in zip(names, compared.models, strict=True)
    ]
    return [
        word if words.count(word) == 1 else f"{model.curve.run} ({word})"
        for word, model in zip(words, compared.models, strict=True)
    ]


def curve_finding(curve: ContextCurve) -> str:
    """Return what the tokens beyond a training row, or beyond the local ones where no row is known, do to the loss."""
    lengths = curve.lengths
    if lengths.is_ceiling:
        return f"Nothing of the full context lies beyond {row_words(lengths)}, so {SHOWS_NOTHING}."
    end = [point for point in curve.points if point.num_visible_tokens <= lengths.full_len][-1]
    row, unknown = row_words(lengths), ""
    if lengths.train_len is None:
        row, unknown = "the local tokens", f". No training row is known, so {SHOWS_NOTHING}"
    if end.num_visible_tokens <= lengths.len_before_gain:
        return f"No tokens beyond {row} were visible, so {SHOWS_NOTHING}."
    return (
        f"Seeing {end.num_visible_tokens} recent tokens in place of {lengths.len_before_gain} ({row}) changes the loss by "
        f"{interval_beside_zero(end.change_nats, 4)} nats, {against_zero(end.change_nats)}{unknown}."
    )


def curves_words(compared: ComparedCurves) -> str:
    """Return which runs or models the curves are of, and their anchors, in one sentence."""
    curves = [(seed.run, model.curve.setup) for model in compared.models for seed in model.seeds]
    listed = "; ".join(f"{subject_words(run, setup)}, {anchor_words(setup.anchor)}" for run, setup in curves)
    return f"{listed[0].upper()}{listed[1:]}."


def seeds_words(num_seeds: int) -> str:
    """Return over how many seeds a number is a mean, such as ``3 seeds``."""
    return "1 seed" if num_seeds == 1 else f"{num_seeds} seeds"


def seed_intervals_words(num_seeds: int) -> str:
    """Return what the intervals of means over so many seeds include."""
    words = (
        f"means over {seeds_words(num_seeds)} of training; brackets: 95% t intervals that include the choice of the seed and of "
        "the documents"
    )
    return f"{words}; with two seeds they may cover as little as 88%" if num_seeds == 2 else words


def gain_beyond_lines(compared: ComparedCurves) -> list[str]:
    """Return what each model gains beyond the training row, a line each, with a heading; none where nothing lies beyond."""
    lines = []
    for label, model in zip(model_labels(compared), compared.models, strict=True):
        if model.gain_beyond_nats is not None:
            gain = interval(model.gain_beyond_nats, 4)
            lines.append(f"{label} ({seeds_words(len(model.seeds))}): {gain}{_share_words(model)}")
    if not lines:
        return []
    stated = "stated " if any(model.curve.lengths.train_len_is_stated for model in compared.models) else ""
    heading = (
        f"gain beyond the {stated}training row, from {compared.row_len} to {compared.full_len} visible tokens, nats "
        "[95% interval]:"
    )
    return [heading, *lines, *_warnings_of_shares(compared)]


def _share_words(model: ModelCurve) -> str:
    """Return the share of the ceiling's gain, as the end of a line; a model that loses has none."""
    if model.share_of_ceiling is None or model.gain_beyond_nats is None:
        return ""
    if model.gain_beyond_nats.is_below_zero:
        return ", a loss"
    return f", {interval(model.share_of_ceiling, 2)} of the ceiling's"


def _warnings_of_shares(compared: ComparedCurves) -> list[str]:
    warnings = []
    if compared.ceiling is not None and len(compared.models) > 1:
        if compared.shares_are_fragile:
            warnings.append(
                f"{FRAGILE}: the ceiling's gain is below {ROBUST_RATIO} standard errors, so the shares miss low"
            )
        elif all(model.share_of_ceiling is None for model in compared.models):
            gain = compared.ceiling.gain_beyond_nats
            reason = f"the interval of the ceiling's gain {REACHES_ZERO}"
            if gain is None or not gain.has_interval:
                reason = "the ceiling's gain has no interval"
            warnings.append(f"{reason}, so there are no shares of it")
    if any(len(model.seeds) == 1 for model in compared.models):
        warnings.append(OF_ONE_SEED)
    return warnings
