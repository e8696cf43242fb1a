"""Figure of context curves: the loss of the target against the number of visible recent tokens, of one run or several.

``python -m analysis context_curve --run runs/demo --run runs/demo-no-pose --run runs/demo-randpos --run runs/demo-ceiling`` draws
the four-way run, prints what each model gains beyond the training row, and writes the numbers into ``context-curve.json``. Runs
that differ in the seed of training only are one model: a line through the mean over the seeds, and a dot for each seed.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from olmo_sparsity.config.keys import counted
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.curve_comparison import ComparedCurves, ModelCurve, compare_curves
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.storage.files import to_json
from olmo_sparsity.tables.reading import list_finished
from olmo_sparsity.view.as_json import compared_curves_json
from olmo_sparsity.wording.curves import SHOWS_NOTHING, curves_words, gain_beyond_lines, model_labels
from olmo_sparsity.wording.setup import anchor_warning, data_words, short_anchor_warning

from .drawing import FigureOfRuns
from .line_labels import EndLabel, label_line_ends
from .output import Drawn, caption_text
from .style import looks_of_runs

CEILING_LOOK: dict[str, Any] = {"color": "#000000", "marker": "x", "linestyle": "--"}
LABEL_CHARS = 15  # of a line of a label
# A line that rises higher than this many times the largest gain leaves the frame of the changes: with ordinary positions, the
# loss may rise by ten times of what another model gains.
HIGHEST_RISE = 1.0
LEAST_RISE_NATS = 0.02


def _looks(compared: ComparedCurves) -> list[dict[str, Any]]:
    """Return the look of each model; the ceiling is black."""
    looks = iter(looks_of_runs(len(compared.models)))
    return [CEILING_LOOK if model.is_ceiling and len(compared.models) > 1 else next(looks) for model in compared.models]


def _draw_model(
    axis: Axes, model: ModelCurve, *, values: list[Estimate], of_seeds: list[np.ndarray], look: dict[str, Any]
) -> None:
    """Draw the mean over the seeds with its interval, and each seed as dots where there are several."""
    visible = [point.num_visible_tokens for point in model.curve.points]
    axis.plot(visible, [value.mean for value in values], **look, linewidth=1.4, markersize=4)
    bounds = [value.bounds for value in values if value.bounds is not None]
    if len(bounds) == len(values):
        low, high = np.transpose(bounds)
        axis.fill_between(visible, low, high, color=look["color"], alpha=0.2, linewidth=0)
    if len(of_seeds) > 1:
        for losses in of_seeds:
            axis.plot(visible, losses, linestyle="", marker=".", markersize=2.5, color=look["color"], alpha=0.7)


def _draw_losses(axis: Axes, compared: ComparedCurves) -> None:
    for model, look in zip(compared.models, _looks(compared), strict=True):
        losses = [point.loss_nats for point in model.curve.points]
        _draw_model(
            axis, model, values=losses, of_seeds=[np.array(seed.losses_nats) for seed in model.seeds], look=look
        )
    axis.set_ylabel("mean loss of the target, nats")
    axis.set_title("context curve")


def _draw_changes(axis: Axes, compared: ComparedCurves) -> None:
    """Draw the end of the curves, from the training row (or the local tokens) on, where the panel of losses looks flat."""
    for model, look in zip(compared.models, _looks(compared), strict=True):
        changes = [point.change_nats for point in model.curve.points]
        reference = [point.num_visible_tokens for point in model.curve.points].index(compared.reference_len)
        of_seeds = [np.array(seed.losses_nats) - seed.losses_nats[reference] for seed in model.seeds]
        _draw_model(axis, model, values=changes, of_seeds=of_seeds, look=look)
    axis.axhline(0, color="grey", linewidth=0.5)
    axis.set_ylabel("nats")
    axis.set_title(f"change from {compared.reference_len} visible tokens (paired)")


def _marked_lengths(compared: ComparedCurves) -> dict[str, int]:
    """Return the lengths that vertical lines mark, by their labels."""
    lengths = [model.curve.lengths for model in compared.models]
    last = compared.models[0].curve.points[-1].num_visible_tokens
    marked = {"local": lengths[0].local_len, "full": compared.full_len}
    if compared.row_len is not None:
        marked = {word: length for word, length in marked.items() if length != compared.row_len}
        marked["training row"] = compared.row_len
    trained = max((of_model.max_position or 0 for of_model in lengths if (of_model.num_chunks or 1) > 1), default=0)
    if compared.full_len < trained < last:
        marked["positions"] = trained
    return marked


def _set_x_axis(axis: Axes, compared: ComparedCurves, *, first: float) -> None:
    last = compared.models[0].curve.points[-1].num_visible_tokens
    ticks = [2**i for i in range(int(np.log2(last)) + 1) if 2**i >= first]
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xlim(first, last * 1.08)
    axis.minorticks_off()
    axis.set_xlabel("visible recent tokens")
    for word, length in _marked_lengths(compared).items():
        axis.axvline(length, color="grey", linestyle=":", linewidth=1, zorder=0.8)
        axis.annotate(
            f"{word} {length}", (length, 0.99), xycoords=("data", "axes fraction"), rotation=90, ha="right", va="top",
            fontsize=7, color="#505050", zorder=1,
            bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
        )  # fmt: skip


def _frame_changes(axis: Axes, compared: ComparedCurves, *, first: int) -> None:
    """Set the frame to the changes from ``first`` visible tokens on. Of several models, one that rises far leaves it."""
    drawn = [
        change
        for model in compared.models
        for point in model.curve.points
        if point.num_visible_tokens >= first
        for change in (point.change_nats.bounds or (point.change_nats.mean,))
    ]
    low, high = min(drawn), max(drawn)
    if len(compared.models) > 1:
        high = min(high, max(HIGHEST_RISE * -low, LEAST_RISE_NATS))
    margin = 0.08 * (high - low) + 0.001
    axis.set_ylim(low - margin, high + margin)


def _label_ends(axis: Axes, compared: ComparedCurves, *, change: bool) -> None:
    """Write the name of each model beside the end of its line; a line that leaves the frame has its last value there."""
    top = axis.get_ylim()[1]
    ends = []
    for model, label, look in zip(compared.models, model_labels(compared), _looks(compared), strict=True):
        point = model.curve.points[-1]
        end = (point.change_nats if change else point.loss_nats).mean
        words = textwrap.fill(label, LABEL_CHARS)
        ends.append(EndLabel(min(end, top), words if end <= top else f"{words}\nto {end:+.2f}", look["color"]))
    label_line_ends(axis, ends)


def _words(compared: ComparedCurves) -> str:
    gains = gain_beyond_lines(compared)
    if compared.row_len is None:
        about = _no_row_words(compared)
    else:
        about = (
            "For a model that generalizes in length, the curve keeps falling, or stays flat, to the right of the training row, "
            "up to the largest trained position."
        )
    listed = f" {gains[0].capitalize()} {'; '.join(gains[1:])}." if gains else ""
    seeds = " Dots: single seeds." if any(len(model.seeds) > 1 for model in compared.models) else ""
    return (
        "Mean loss of the same targets, given only the most recent tokens; bands: 95% intervals by bootstrap over documents, of "
        f"several seeds with their variance.{seeds} {about}{listed} {curves_words(compared)} "
        f"{data_words(compared.models[0].curve)}.{_anchor_warnings(compared, anchor_warning)}"
    )


def _no_row_words(compared: ComparedCurves) -> str:
    """Return why no training row is marked: none is known, or those that are stated are as long as the full context."""
    row_lens = [model.curve.lengths.train_len for model in compared.models]
    stated = sorted({row_len for row_len in row_lens if row_len is not None})
    if not stated:
        return f"No training row of these models is known, so {SHOWS_NOTHING}."
    rows = f"row{'s' * (len(stated) > 1)} of {' and '.join(map(str, stated))} tokens"
    others = " No training row of the other models is known." if None in row_lens else ""
    them = "it" if len(stated) == 1 else "them"
    return f"Nothing of the full context lies beyond the stated training {rows}, so no gain beyond {them} is given.{others}"


def _finding(compared: ComparedCurves) -> str:
    """Return what each model gains beyond the training row, or without a row from the first to the last point."""
    gains = gain_beyond_lines(compared)
    if gains:
        return f"{gains[0].capitalize()} {'; '.join(gains[1:])}."
    points = [(label, model.curve.points) for label, model in zip(model_labels(compared), compared.models, strict=True)]
    losses = (
        f"{label} {of[0].loss_nats.mean:.3f} nats with {counted(of[0].num_visible_tokens, 'visible token')}, "
        f"{of[-1].loss_nats.mean:.3f} with {of[-1].num_visible_tokens}"
        for label, of in points
    )
    return f"Mean loss: {'; '.join(losses)}."


def _anchor_warnings(compared: ComparedCurves, words_of: Callable[[ModelSetup], str]) -> str:
    """Return the warning of each model that another first token is the better one; of several, with its name before it."""
    labels = [f"{label}: " if len(compared.models) > 1 else "" for label in model_labels(compared)]
    warnings = [words_of(model.curve.setup) for model in compared.models]
    return "".join(f" {label}{words}" for label, words in zip(labels, warnings, strict=True) if words)


def draw_compared(compared: ComparedCurves) -> Drawn:
    """Draw ``context-curve`` of curves that were read, with their numbers."""
    first = min(compared.reference_len, compared.models[0].curve.lengths.local_len)
    figure, (left, right) = plt.subplots(1, 2, figsize=(10.6, 3.8), layout="constrained")
    _draw_losses(left, compared)
    _draw_changes(right, compared)
    _set_x_axis(left, compared, first=0.9)
    _set_x_axis(right, compared, first=first / 1.35)
    _frame_changes(right, compared, first=first)
    _label_ends(left, compared, change=False)
    _label_ends(right, compared, change=True)
    caption_text(figure, _words(compared), last=_anchor_warnings(compared, short_anchor_warning).strip())
    numbers = (".json", to_json(compared_curves_json(compared)))
    return Drawn(figure, "context-curve", _finding(compared), numbers=numbers)


def draw(runs: list[Path]) -> Iterator[Drawn]:
    """Draw ``context-curve``, of the newest curve of each run.

    Raises:
        UserError: a run has none, or the runs cannot be compared.
    """
    yield draw_compared(compare_curves(runs))


FIGURE = FigureOfRuns(draw, is_of=lambda run: bool(list_finished(run, "context-curve")))
