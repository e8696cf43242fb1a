"""Figure of training: losses, held-out loss by position, learning rate, gradient norm and speed, of one run or several.

``python -m analysis training --run runs/demo --run runs/demo-no-pose`` draws a run and its twin; it also draws runs that are
still training. It reads only ``metrics.jsonl`` and ``manifest.json``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator

from olmo_sparsity.storage.folders import distinct_names

from .drawing import FigureOfRuns
from .metrics import BY_POSITION, TrainingRun, read_training_run, running_median
from .output import Drawn, caption_text
from .style import looks_of_runs, mark_of_one, write_nothing_measured

# Columns of the evaluations; their words and looks.
EVALUATED: dict[str, tuple[str, dict[str, Any]]] = {
    "validation_loss_nats": (
        "validation, rows as in training",
        {"color": "#009E73", "marker": "o", "linestyle": "-."},
    ),
    "loss_within_train_len_nats": (
        "held-out text, within the length of a row",
        {"color": "#0072B2", "marker": "^", "linestyle": "--"},
    ),
    "loss_beyond_train_len_nats": (
        "held-out text, beyond it",
        {"color": "#D55E00", "marker": "s", "linestyle": ":"},
    ),
}
GREY = "#505050"  # the colour of training losses, where colours need not tell runs apart
NUM_MARKERS = 12  # on a line, roughly; more would overlap
START = 0.05  # the share of a run whose losses may lie above the frame
Looks = list[dict[str, Any]]  # one for each run: its colour, if there are several runs


def _raw_and_median(axis: Axes, run: TrainingRun, *, column: str, color: str) -> None:
    """Draw a column as a thin line, and its running median as a thick one."""
    values = run.lines[column]
    if values.notna().any():
        axis.plot(run.lines["tokens"], values, color=color, linewidth=0.6, alpha=0.4)
        marker = mark_of_one(values.dropna(), ".")
        axis.plot(run.lines["tokens"], running_median(values), color=color, linewidth=1.4, marker=marker)


def _draw_losses(axis: Axes, runs: list[TrainingRun], *, looks: Looks) -> None:
    """Draw the training loss and the evaluations.

    The frame leaves out the first steps, where the loss falls by nats: they would flatten everything that follows.
    """
    framed = []
    for run, look in zip(runs, looks, strict=True):
        _raw_and_median(axis, run, column="loss_nats", color=look.get("color", GREY))
        for column, (_, own_look) in EVALUATED.items():
            lines = run.evaluations(column)
            every = max(1, len(lines) // NUM_MARKERS)
            look_of_line = {**own_look, **look, "linewidth": 0.9, "markersize": 2.2, "markevery": every}
            axis.plot(lines["tokens"], lines[column], **look_of_line)
        late = run.lines[run.lines["tokens"] >= START * run.lines["tokens"].max()]
        framed.append(late[["loss_nats", *EVALUATED]].to_numpy(dtype=float).ravel())
    values = np.concatenate(framed)
    values = values[np.isfinite(values)]
    margin = 0.05 * (values.max() - values.min()) + 0.01
    axis.set_ylim(values.min() - margin, values.max() + margin)


def _draw_losses_by_position(axis: Axes, runs: list[TrainingRun], *, looks: Looks) -> list[Line2D]:
    """Draw the losses by position: several evaluations of a single run, the last one of several runs.

    Returns:
        Legend entries for the colours of a single run's evaluations.
    """
    handles: list[Line2D] = []
    drawn: list[np.ndarray] = []
    for run, look in zip(runs, looks, strict=True):
        lines = run.evaluations_by_position()
        lines = lines if len(runs) == 1 else lines.tail(1)
        colors = plt.get_cmap("viridis")(np.linspace(0.85, 0.0, len(lines))) if len(lines) > 1 else ["#440154"]
        for step, losses, color in zip(lines["step"], lines[BY_POSITION], colors, strict=False):
            values = np.asarray(losses, dtype=float)
            (line,) = axis.plot(np.arange(1, len(values) + 1), values, color=look.get("color", color), linewidth=1.2)
            drawn.append(values)
            if not look:
                handles.append(Line2D([], [], color=line.get_color(), label=f"by position, step {step}"))
    if drawn:
        _frame_losses_by_position(axis, drawn, row_lens={run.row_len for run in runs})
    return handles


def _frame_losses_by_position(axis: Axes, drawn: list[np.ndarray], *, row_lens: set[int]) -> None:
    """Leave out the first positions, which see almost nothing and would flatten the others; mark the training rows."""
    high = max(np.quantile(values, 0.97) for values in drawn)
    low = min(values.min() for values in drawn)
    margin = 0.06 * (high - low) + 0.01
    axis.set_ylim(low - margin, high + 3 * margin)  # with room for words at the top
    for row_len in sorted(row_lens):
        axis.axvline(row_len, color="grey", linestyle=":", linewidth=1)
        axis.annotate(
            "training row ", (row_len, 1.0), xycoords=("data", "axes fraction"), ha="right", va="top", fontsize=7,
            color=GREY,
        )  # fmt: skip


def _draw_learning_rate(axis: Axes, runs: list[TrainingRun], *, looks: Looks) -> None:
    for run, look in zip(runs, looks, strict=True):
        lines = run.evaluations("learning_rate")
        if len(lines):
            marker = mark_of_one(lines, ".")
            axis.plot(
                lines["tokens"], lines["learning_rate"], color=look.get("color", GREY), linewidth=1.4, marker=marker
            )


def _label(axis: Axes, title: str, *, x_label: str = "tokens trained on", y_label: str = "") -> None:
    """Label a panel; write into one without lines that there is nothing to draw."""
    by_position = x_label == "visible tokens"
    axis.set_title(title)
    axis.set_xlabel(x_label)
    axis.set_ylabel(y_label)
    if not by_position:
        axis.xaxis.set_major_locator(MaxNLocator(4))
        axis.xaxis.set_major_formatter(EngFormatter(sep=""))
    if not axis.lines:
        write_nothing_measured(axis, "no evaluation yet" if by_position else "not recorded")


def _format_norm(axis: Axes) -> None:
    """Make the axis logarithmic, unless norms differ so little that one tick or none would be left."""
    if not axis.lines:
        return
    axis.set_yscale("log")
    locator, (low, high) = LogLocator(subs=(1, 2, 5)), axis.get_ylim()
    if sum(low <= tick <= high for tick in locator.tick_values(low, high)) < 2:
        axis.set_yscale("linear")
        return
    axis.yaxis.set_major_locator(locator)
    axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.minorticks_off()


def _handles(runs: list[TrainingRun], looks: Looks) -> list[Line2D]:
    """Return the legend entries of the runs, if there are several, and of the losses."""
    several = len(runs) > 1
    handles = []
    if several:
        handles += [Line2D([], [], **look, linewidth=2, label=run.name) for run, look in zip(runs, looks, strict=True)]
    handles.append(Line2D([], [], color=GREY, linewidth=1.4, label="training, running median"))
    for column, (label, look) in EVALUATED.items():
        if any(len(run.evaluations(column)) for run in runs):
            color = GREY if several else look["color"]
            handles.append(Line2D([], [], **{**look, "color": color}, linewidth=1.1, markersize=3, label=label))
    return handles


def _words(runs: list[TrainingRun]) -> str:
    progress = "; ".join(f"{run.name}, step {run.lines['step'].iloc[-1]:,} of {run.steps:,}" for run in runs)
    return (
        f"Training: {progress}. Thin lines: each line of metrics.jsonl; thick lines: their running median. Validation: "
        "held-out rows, made in the same way as training rows. Held-out text: consecutive tokens at positions 0, 1, ...; its "
        "mean loss over the positions that a training row spans, over those beyond, and at each position. The losses of the "
        f"first {START:.0%} of a run's tokens, and of the first positions, may lie above the frame. Speed, relative: operations "
        "per second over those of a plain matrix product that ran before training; above 1 where that was slowed down."
    )


def _finding(runs: list[TrainingRun]) -> str:
    """Return the newest losses of each run in words."""
    words = []
    for run in runs:
        losses = [f"training {running_median(run.lines['loss_nats']).iloc[-1]:.2f}"]
        for column, (label, _) in EVALUATED.items():
            values = run.evaluations(column)[column]
            losses += [f"{label} {values.iloc[-1]:.2f}"] if len(values) else []
        words.append(f"{run.name} after {run.lines['step'].iloc[-1]:,} steps: {', '.join(losses)}")
    return f"Loss in nats of {'; '.join(words)}."


def draw(runs: list[Path]) -> Iterator[Drawn]:
    """Draw ``training``: what the runs have logged so far.

    Raises:
        UserError: a folder is not a run, or the run has not logged anything yet.
    """
    looks_of_all = looks_of_runs(len(runs))
    read = [
        dataclasses.replace(read_training_run(run), name=name)
        for run, name in zip(runs, distinct_names(runs), strict=True)
    ]
    several = len(read) > 1
    looks: Looks = [{"color": look["color"]} if several else {} for look in looks_of_all]
    figure, axes = plt.subplots(2, 3, figsize=(9.2, 5.2), width_ratios=(1.5, 1, 1), squeeze=False, layout="constrained")
    (losses, rate, speed), (positions, norm, share) = axes
    _draw_losses(losses, read, looks=looks)
    by_position = _draw_losses_by_position(positions, read, looks=looks)
    _draw_learning_rate(rate, read, looks=looks)
    for axis, column in ((norm, "grad_norm"), (speed, "tokens_per_second"), (share, "share_of_peak")):
        for run, look in zip(read, looks, strict=True):
            _raw_and_median(axis, run, column=column, color=look.get("color", GREY))
    _label(losses, "loss", y_label="nats")
    which = ", last evaluation" if several else ""
    _label(positions, f"held-out loss by position{which}", x_label="visible tokens", y_label="nats")
    _label(rate, "learning rate")
    _label(norm, "norm of the gradient")
    _label(speed, "tokens per second")
    _label(share, "speed, relative to\na matrix product")
    for axis in (rate, speed, share):
        if axis.lines:
            axis.set_ylim(bottom=0)
    _format_norm(norm)
    if speed.lines:
        speed.yaxis.set_major_formatter(EngFormatter(sep=""))
    if share.lines:
        share.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    caption_text(figure, _words(read), handles=[*_handles(read, looks), *by_position], columns=4)
    yield Drawn(figure, "training", _finding(read))


def _has_metrics(run: Path) -> bool:
    metrics = run / "metrics.jsonl"
    return metrics.is_file() and metrics.stat().st_size > 0


FIGURE = FigureOfRuns(draw, is_of=_has_metrics)
