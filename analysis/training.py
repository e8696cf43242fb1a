"""Training: the losses of one run or several over the tokens trained on, and the held-out loss by position."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator

from olmo_sparsity.config import read_config_of
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import folder_name

from .drawing import BLUE, GREEN, GREY, INK, ORANGE, SERIES, SHADE, NothingToDraw, label_end, new_figure, styled

NEEDS = "run"
EVALUATED = {  # column -> words, colour
    "validation_loss_nats": ("validation rows", GREEN),
    "loss_within_train_len_nats": ("held out,\nwithin a row", BLUE),
    "loss_beyond_train_len_nats": ("held out,\nbeyond it", ORANGE),
}
BY_POSITION = "loss_by_position_nats"
START = 0.05  # share of a run whose losses may lie above the frame: they fall by nats


@styled
def figure(runs: list[Path]) -> Figure:
    """The training and held-out losses of one run; of several the losses beyond a row, a line each."""
    names = list(map(folder_name, runs))
    names = names if len(set(names)) == len(names) else list(map(str, runs))
    read = {name: read_metrics(run) for name, run in zip(names, runs, strict=True)}
    steps = ", ".join(f"{name}: step {lines['step'].iloc[-1]:,}" for name, lines in read.items())
    drawn, axes = new_figure(
        1, 2, height=2.9, title="Losses during training, and after it by position",
        caption=f"{steps}. Held out: consecutive text, positions 0, 1, ... Shaded: within a training row.",
    )  # fmt: skip
    over_time, by_position = axes.flat
    for number, (name, lines) in enumerate(read.items()):
        color = SERIES[number % len(SERIES)]
        if len(read) == 1:
            median = lines["loss_nats"].rolling(max(1, len(lines) // 12), center=True, min_periods=1).median()
            over_time.plot(lines["tokens"], lines["loss_nats"], color=GREY, linewidth=0.5, alpha=0.5, label="loss_nats")
            over_time.plot(lines["tokens"], median, color=GREY)
            _label(over_time, "training", lines["tokens"], median, GREY)
            for column, (words, own_color) in EVALUATED.items():
                _evaluations(over_time, lines, column, words, own_color)
        else:
            _evaluations(over_time, lines, "loss_beyond_train_len_nats", name, color)
        last = lines[lines[BY_POSITION].notna()].tail(1)
        for losses in last[BY_POSITION]:
            places = np.arange(1, len(losses) + 1)
            by_position.plot(places, losses, color=color if len(read) > 1 else INK, label=BY_POSITION)
            if len(read) > 1:
                _label(by_position, name, pd.Series(places), pd.Series(losses), color)
    late = pd.concat([lines[lines["tokens"] >= START * lines["tokens"].max()] for lines in read.values()])
    columns = [*EVALUATED, "loss_nats"] if len(read) == 1 else ["loss_beyond_train_len_nats"]
    over_time.set_ylim(late[columns].min().min() - 0.2, late[columns].max().max() + 0.1)
    over_time.xaxis.set_major_formatter(EngFormatter(sep=""))
    over_time.set(title="during training", xlabel="tokens trained on", ylabel="loss, nats")
    by_position.set(title="by position, at the end", xlabel="visible tokens", ylabel="held-out loss, nats")
    if by_position.lines:
        values = np.concatenate([np.asarray(line.get_ydata(), float) for line in by_position.lines])
        by_position.set_ylim(values.min() - 0.1, np.quantile(values, 0.97) + 0.2)  # the first sees almost nothing
    by_position.axvspan(0, read_config_of(runs[0]).context.row_len, color=SHADE, linewidth=0, zorder=0)
    by_position.set_xlim(left=0)
    by_position.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    return drawn


def _evaluations(axis: Axes, lines: pd.DataFrame, column: str, words: str, color: str) -> None:
    lines = lines[lines[column].notna()]
    if len(lines):
        axis.plot(lines["tokens"], lines[column], color=color, marker="o", markersize=2.5, label=column)
        _label(axis, words, lines["tokens"], lines[column], color)


def _label(axis: Axes, words: str, x: pd.Series, y: pd.Series, color: str) -> None:
    label_end(axis, words, (x.iloc[-1], y.iloc[-1]), color=color)


def read_metrics(run: Path) -> pd.DataFrame:
    """What a run has logged so far, without a last line that was cut short.

    Raises:
        UserError: there is no ``metrics.jsonl`` here, or it is damaged.
    """
    path = run / "metrics.jsonl"
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise NothingToDraw(f"{path}: no such file; name the folder of a run that was trained") from None
    text = text[: text.rfind("\n") + 1]
    if not text.strip():
        raise NothingToDraw(f"{path}: nothing is written there yet; a run writes every training.log_every steps")
    try:
        lines = pd.read_json(StringIO(text), lines=True, convert_dates=False, precise_float=True)
        lines = lines.reindex(columns=["step", "tokens", "loss_nats", *EVALUATED, BY_POSITION])
        lines = lines.astype(dict.fromkeys(["tokens", "loss_nats", *EVALUATED], float))
    except (ValueError, TypeError):
        lines = pd.DataFrame({"step": [None]})
    if lines["step"].isna().any() or lines["loss_nats"].isna().any():
        raise UserError(f"{path}: not the metrics of a run, or damaged")
    return lines
