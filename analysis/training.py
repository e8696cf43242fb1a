"""A training run as it went: losses, the held-out loss by position, learning rate, gradient, speed; of one run or of several.

``python -m analysis.training --run runs/demo --run runs/demo-no-pose`` draws a run and its twin, also while they train. Reads
``metrics.jsonl`` and ``manifest.json`` alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, PercentFormatter

from olmo_sparsity.config import ContextConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.folders import is_folder_of_kind

from .runs import RUN_LOOKS, script_of_runs
from .style import caption_text, save

EVALUATED: dict[str, tuple[str, dict[str, Any]]] = {
    "validation_loss_nats": (
        "validation, rows as in training",
        {"color": "#009E73", "marker": "o", "linestyle": "-."},
    ),
    "loss_within_train_len_nats": (
        "held-out text, within a row's length",
        {"color": "#0072B2", "marker": "^", "linestyle": "--"},
    ),
    "loss_beyond_train_len_nats": (
        "held-out text, beyond it",
        {"color": "#D55E00", "marker": "s", "linestyle": ":"},
    ),
}
NEEDED = ["step", "tokens", "loss_nats"]
OTHERS = [*EVALUATED, "loss_by_position_nats", "learning_rate", "grad_norm", "tokens_per_second", "share_of_peak"]
TRAINED = "#505050"  # the colour of what is seen of training, where colours need not tell runs apart
CURVES = 4  # of the losses by position: the first evaluation, the last, and some between
MARKERS = 12  # on a line, about: more would cover each other
START = 0.05  # the share of a run whose losses may lie above the frame


@dataclass(frozen=True)
class Course:
    """How one run went.

    Attributes:
        name: of its folder.
        lines: a row for a line of ``metrics.jsonl``; losses in nats, NaN or None where nothing was evaluated.
        row_len: tokens of a training row.
        steps: that it is to make.
    """

    name: str
    lines: pd.DataFrame
    row_len: int
    steps: int


def read_course(run: Path) -> Course:
    """What a run has written so far; a last line that was cut short is left out.

    Raises:
        UserError: there is no run, it has not written a line, or the file is not what a run writes.
    """
    if not is_folder_of_kind(run, "run"):
        raise UserError(
            f"{run}: there is no training run here; name the folder of one, or run `olmo-sparsity train` first"
        )
    path = run / "metrics.jsonl"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        text = ""
    except (OSError, UnicodeDecodeError):
        raise UserError(f"{path}: cannot be read as text") from None
    text = text[: text.rfind("\n") + 1]
    if not text.strip():
        raise UserError(f"{path}: nothing is written there yet; a run writes every training.log_every steps")
    try:
        lines = pd.read_json(StringIO(text), lines=True, convert_dates=False, precise_float=True)
    except ValueError:
        raise UserError(f"{path}: not lines of JSON, the file is damaged") from None
    if missing := [key for key in NEEDED if key not in lines or not pd.api.types.is_numeric_dtype(lines[key])]:
        raise UserError(f"{path}: no numbers under {', '.join(missing)}; this is not the metrics.jsonl of a run")
    try:
        config = read_json(run / "manifest.json")["config"]
        row_len, steps = ContextConfig(**config["context"]).row_len, int(config["training"]["steps"])
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{run / 'manifest.json'}: not the manifest of a training run, its config lacks keys") from None
    lines = lines.reindex(columns=NEEDED + OTHERS)  # what an older run did not write stays empty
    numbers = [key for key in OTHERS if key != "loss_by_position_nats"]
    lines[numbers] = lines[numbers].apply(pd.to_numeric, errors="coerce")
    return Course(run.resolve().name, lines, row_len, steps)


def running_median(values: pd.Series) -> pd.Series:
    """The median over some 8% of the lines, around each; of a few lines, those lines themselves."""
    return values.rolling(2 * (len(values) // 25) + 1, center=True, min_periods=1).median()


def chosen_evaluations(lines: pd.DataFrame) -> pd.DataFrame:
    """The lines with losses by position that are drawn: the first, the last, and those evenly between."""
    there = lines[lines["loss_by_position_nats"].notna()]
    return there.iloc[np.unique(np.linspace(0, len(there) - 1, CURVES).round().astype(int))] if len(there) else there


def _raw_and_median(axis: Axes, course: Course, key: str, color: str, **look: Any) -> None:
    values = course.lines[key]
    if values.notna().any():
        axis.plot(course.lines["tokens"], values, color=color, linewidth=0.6, alpha=0.4)
        axis.plot(course.lines["tokens"], running_median(values), color=color, linewidth=1.4, **look)


def _losses(axis: Axes, courses: list[Course], looks: list[dict[str, Any]]) -> None:
    seen = []
    for course, look in zip(courses, looks, strict=True):
        lines = course.lines
        _raw_and_median(axis, course, "loss_nats", look.get("color", TRAINED))
        for key, (_, own) in EVALUATED.items():
            there = lines[lines[key].notna()]
            every = max(1, len(there) // MARKERS)
            axis.plot(there["tokens"], there[key], **{**own, **look}, linewidth=0.9, markersize=2.2, markevery=every)
        late = lines[lines["tokens"] >= START * lines["tokens"].max()]
        seen.append(late[["loss_nats", *EVALUATED]].to_numpy(dtype=float).ravel())
    # The first steps, where the loss falls by nats, would squeeze all that follows.
    values = np.concatenate(seen)
    values = values[np.isfinite(values)]
    margin = 0.05 * (values.max() - values.min()) + 0.01
    axis.set_ylim(values.min() - margin, values.max() + margin)


def _by_position(axis: Axes, courses: list[Course], looks: list[dict[str, Any]]) -> list[Line2D]:
    """Draws the losses by position; returns what explains their colours, of a single run."""
    handles: list[Line2D] = []
    drawn: list[np.ndarray] = []
    for course, look in zip(courses, looks, strict=True):
        chosen = chosen_evaluations(course.lines)
        chosen = chosen if len(courses) == 1 else chosen.tail(1)
        colors = plt.get_cmap("viridis")(np.linspace(0.85, 0.0, len(chosen))) if len(chosen) > 1 else ["#440154"]
        for step, losses, color in zip(chosen["step"], chosen["loss_by_position_nats"], colors, strict=False):
            values = np.asarray(losses, dtype=float)
            (line,) = axis.plot(np.arange(1, len(values) + 1), values, color=look.get("color", color), linewidth=1.2)
            drawn.append(values)
            if not look:
                handles.append(Line2D([], [], color=line.get_color(), label=f"by position, step {step}"))
    if not drawn:
        return []
    # The first positions, which see hardly anything, would squeeze the others.
    high = max(np.quantile(values, 0.97) for values in drawn)
    low = min(values.min() for values in drawn)
    margin = 0.06 * (high - low) + 0.01
    axis.set_ylim(low - margin, high + 3 * margin)  # with room for words above
    for row_len in sorted({course.row_len for course in courses}):
        axis.axvline(row_len, color="grey", linestyle=":", linewidth=1)
        axis.annotate(
            "training row ", (row_len, 1.0), xycoords=("data", "axes fraction"), ha="right", va="top",
            fontsize=7, color="#505050",
        )  # fmt: skip
    return handles


def _handles(courses: list[Course], looks: list[dict[str, Any]]) -> list[Line2D]:
    several = len(courses) > 1
    found = [
        Line2D([], [], **look, linewidth=2, label=course.name) for course, look in zip(courses, looks, strict=True)
    ]
    found = found if several else []
    found.append(Line2D([], [], color=TRAINED, linewidth=1.4, label="training, running median"))
    for key, (label, look) in EVALUATED.items():
        if any(course.lines[key].notna().any() for course in courses):
            color = TRAINED if several else look["color"]
            found.append(Line2D([], [], **{**look, "color": color}, linewidth=1.1, markersize=3, label=label))
    return found


def draw(runs: list[Path], out: Path) -> list[Path]:
    """Writes ``training``: how the runs went, as far as they did.

    Raises:
        UserError: one is no run, or has written nothing yet.
    """
    courses = [read_course(run) for run in runs]
    several = len(courses) > 1
    looks = [{"color": look["color"]} if several else {} for look, _ in zip(cycle(RUN_LOOKS), courses, strict=False)]
    figure, axes = plt.subplots(
        2, 3, figsize=(9.2, 5.2), width_ratios=(1.5, 1, 1), squeeze=False, layout="constrained"
    )  # in one column of a paper each of these three columns becomes a row
    (losses, rate, speed), (positions, norm, share) = axes
    _losses(losses, courses, looks)
    shades = _by_position(positions, courses, looks)
    for course, look in zip(courses, looks, strict=True):
        color = look.get("color", TRAINED)
        there = course.lines[course.lines["learning_rate"].notna()]
        rate.plot(there["tokens"], there["learning_rate"], color=color, linewidth=1.4)
        for axis, key in ((norm, "grad_norm"), (speed, "tokens_per_second"), (share, "share_of_peak")):
            _raw_and_median(axis, course, key, color)
    for axis, title, label in (
        (losses, "loss", "nats"),
        (positions, "held-out loss by position" + (", last evaluation" if several else ""), "nats"),
        (rate, "learning rate", ""),
        (norm, "norm of the gradient", ""),
        (speed, "tokens a second", ""),
        (share, "share of peak", ""),
    ):
        axis.set_title(title)
        axis.set_ylabel(label)
        if axis is not positions:
            axis.set_xlabel("tokens trained on")
            axis.xaxis.set_major_locator(MaxNLocator(4))
            axis.xaxis.set_major_formatter(EngFormatter(sep=""))
        else:
            axis.set_xlabel("visible tokens")
        if not axis.lines:
            axis.text(
                0.5, 0.5, "no evaluation yet" if axis is positions else "not recorded", ha="center", va="center",
                transform=axis.transAxes, color="#505050",
            )  # fmt: skip
            axis.set_xticks([])
            axis.set_yticks([])
    for axis in (rate, speed, share):
        if axis.lines:
            axis.set_ylim(bottom=0)
    if norm.lines:
        norm.set_yscale("log")
        norm.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        norm.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        norm.minorticks_off()
    if speed.lines:
        speed.yaxis.set_major_formatter(EngFormatter(sep=""))
    if share.lines:
        share.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    went = "; ".join(f"{one.name}, step {one.lines['step'].iloc[-1]:,} of {one.steps:,}" for one in courses)
    caption_text(
        figure,
        f"Training as it went: {went}. Thin lines: each line of metrics.jsonl; thick: their running median. Validation: held-out "
        "rows, made as those of training are. Held-out text: consecutive tokens at positions 0, 1, ..., its mean loss over "
        "the positions that a training row spans, over those beyond, and each. What a run's first "
        f"{START:.0%} of tokens lost, and the very first positions, may lie above the frame. Peak: of the machine, in a plain "
        "matrix product.",
        [*_handles(courses, looks), *shades],
        columns=4,
    )
    return save(figure, out, "training")


if __name__ == "__main__":
    script_of_runs(draw)
