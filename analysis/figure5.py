"""Figure 5: one window, the tokens that a selector picked in it, and how likely they make the target."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from olmo_sparsity.statistics.frames import read_windows as read_table
from olmo_sparsity.statistics.quantities import counted, read_estimates, shown_ks
from olmo_sparsity.view.window import read_windows

from .drawing import BLUE, GREY, INK, WIDTH, named_selector, new_figure, picked_by, styled

NEEDS = "tables"
LIKELY = 0.5  # probability of a likely target
MOST_K = 8
LINE = 112  # characters of a line, which span the figure
SIZE, LINE_INCHES = 7, 0.17  # points of the text, and what a line takes
PICKED = "#f0e442"
UNKNOWN = "\u25a1"  # for what the font may lack


@styled
def figure(tables: Path, selector: Optional[str] = None) -> Figure:
    """The window whose target the long context makes likely (``chosen_window``), by default for the first blind selector."""
    frame = read_estimates(tables)
    selector = named_selector(frame, selector)
    k = max([k for k in shown_ks(frame) if k <= MOST_K], default=shown_ks(frame)[0])
    window_id, rule = chosen_window(read_table(tables, ["window_id", "loss_short_nats", "loss_long_nats"]))
    (window,) = read_windows(tables, [window_id])
    shown = counted(k, frame.attrs["manifest"])
    texts = [*window.texts, window.target.space + window.target.text]
    places = _places(texts)
    text_inches = LINE_INCHES * (places[-1][0] + 1)
    drawn, axes = new_figure(
        2, 1, height=text_inches + 1.7, width=WIDTH, height_ratios=(text_inches, 0.75),
        title="One window: how likely its next token is with few tokens, and with all",
        caption=f"Window {window_id}: {rule}, so not a typical one.",
    )  # fmt: skip
    _draw_text(axes[0, 0], texts, window.num_long_range, window.visible(selector, k), places)
    axes[0, 0].set_title(
        f"marked: {shown} {picked_by(selector, frame)} (ranks)   black: local   grey: hidden   boxed: the next token",
        fontsize=7.5, color=GREY,
    )  # fmt: skip
    labels = (
        f"with the {window.local_len} local tokens", f"with these and {shown} picked by {selector}",
        f"with all {len(window.texts)} tokens",
    )  # fmt: skip
    _draw_bars(axes[1, 0], dict(zip(labels, np.exp(np.negative(window.losses(selector, k))).tolist(), strict=True)))
    return drawn


def chosen_window(windows: pd.DataFrame) -> tuple[int, str]:
    """The window whose target all tokens make likely and whose probability they raise most, and the rule in words."""
    likely, short = np.exp(-windows["loss_long_nats"]), np.exp(-windows["loss_short_nats"])
    is_likely = likely >= LIKELY
    rise = (likely - short).where(is_likely | ~is_likely.any())
    of_which = f"windows that reach {LIKELY:.0%}" if is_likely.any() else "all windows"
    return int(windows["window_id"].iloc[int(rise.argmax())]), f"of {of_which} the one with the largest rise"


def _places(texts: list[str]) -> list[tuple[int, int]]:
    """Line and column of each token."""
    line, column, places = 0, 0, []
    for text in texts:
        if column and column + len(text) > LINE:
            line, column = line + 1, 0
        places.append((line, column))
        column += len(text)
    return places


def _draw_text(
    axis: Axes, texts: list[str], num_far: int, ranks: dict[int, int], places: list[tuple[int, int]]
) -> None:
    for position, (text, (line, column)) in enumerate(zip(texts, places, strict=True)):
        is_target = position == len(texts) - 1
        is_hidden = position < num_far and position not in ranks
        shown = "".join(letter if ord(letter) < 0x2500 else UNKNOWN for letter in text)
        indent = len(shown) - len(shown.lstrip())
        begin, width = column + indent, max(1, len(shown) - indent)
        if is_target or position in ranks:
            face = "none" if is_target else PICKED
            edge = BLUE if is_target else "none"
            axis.add_patch(Rectangle((begin - 0.05, -line - 0.42), width + 0.1, 0.84, facecolor=face, edgecolor=edge))
        color = GREY if is_hidden else BLUE if is_target else "black" if position in ranks else INK
        axis.text(
            column, -line, shown, family="monospace", fontsize=SIZE, va="center", ha="left", color=color,
            fontweight="bold" if is_target or position in ranks else "normal", gid=f"token {position}",
        )  # fmt: skip
        if position in ranks:
            axis.text(
                begin + width, -line + 0.5, f"{ranks[position]}", fontsize=5.5, va="center", ha="left", gid="rank"
            )
    axis.set(xlim=(-0.5, LINE + 1), ylim=(-places[-1][0] - 0.6, 0.8))
    axis.axis("off")


def _draw_bars(axis: Axes, probabilities: dict[str, float]) -> None:
    values = list(probabilities.values())
    axis.barh(range(len(values)), values, color=[GREY, BLUE, INK], height=0.7)
    for height, (words, value) in enumerate(probabilities.items()):
        number = f"{value:.0%}" if value >= 0.01 else "below 1%"
        axis.text(value + 0.02, height, f"{number} {words}", va="center", ha="left")
    axis.set(xlim=(0, 2), xticks=[], yticks=[], ylim=(len(values) - 0.5, -0.5))
    axis.set_title("probability of the next token")
    axis.spines[["left", "bottom"]].set_visible(False)
