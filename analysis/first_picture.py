"""The first picture: how few tokens give the gain back, and whether the model uses more than it was trained on."""

from __future__ import annotations

from textwrap import fill
from typing import Literal

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from olmo_sparsity.statistics.quantities import counted, gate, pick, shown_ks, units_of
from olmo_sparsity.tables import lengths_of

from .drawing import (
    BLUE,
    GREY,
    INK,
    SHADE,
    WIDTH,
    colors_of,
    count_axis,
    draw_line,
    label_end,
    main_selectors,
    new_figure,
    picked_by,
    sample_of,
    selections,
    styled,
)

NEEDS = "frame"
TITLES = {"few": "How few tokens give the gain back?", "beyond": "Does it use more than it was trained on?"}


@styled
def figure(frame: pd.DataFrame, panel: Literal["both", "few", "beyond"] = "both") -> Figure:
    """Both panels side by side, or one alone without the caption."""
    panels = list(TITLES) if panel == "both" else [panel]
    drawn, axes = new_figure(
        1, len(panels), height=2.7, width=WIDTH / 2 * len(panels), title=" ".join(TITLES[name] for name in panels),
        caption=caption(frame) if panel == "both" else "", has_heading=False,
    )  # fmt: skip
    for column, (axis, name) in enumerate(zip(axes.flat, panels, strict=True)):
        axis.set_title(" ")  # room for the question, which begins further to the left
        drawn.text(column / len(panels) + 0.01, 0.99, TITLES[name], va="top", fontsize=9, fontweight="bold")
        (_few if name == "few" else _beyond)(axis, frame)
    return drawn


def caption(frame: pd.DataFrame) -> str:
    """What the gain is, and how much was measured."""
    gain, number = pick(frame, "long_gain_nats"), frame.attrs["num_units"]
    assert gain is not None
    return (
        f"Gain: how far all {number:.0f} earlier {units_of(frame.attrs['manifest'])} lower the loss, {gain['value']:.3f} nats. "
        f"Bands: 95% intervals; {sample_of(frame)}."
    )


def _few(axis: Axes, frame: pd.DataFrame) -> None:
    units, number = units_of(frame.attrs["manifest"]), f"{frame.attrs['num_units']:.0f}"
    names = main_selectors(frame, "attention", "random")
    axis.set_xlabel(f"earlier {units} shown, of {number}")
    axis.set_ylabel("share of the gain, %")
    if (side := gate(frame)) != "above":
        words = "too few documents" if side == "too few" else "no clear gain\nto give back"
        axis.text(0.5, 0.5, words, ha="center", va="center", transform=axis.transAxes)
        axis.set(xticks=[], yticks=[])
        return
    ks = shown_ks(frame)
    for name in names:
        rows = selections(frame, "recovered_fraction", name)
        rows = rows[rows["k"].isin(ks)]
        start = pd.DataFrame({"k": [0], "value": [0.0], "low": [0.0], "high": [0.0]})  # by definition
        words = fill(picked_by(name, frame), 15)
        if name == names[0]:
            words += f":\n{counted(ks[0], frame.attrs['manifest'])}, {100 * rows.loc[rows['k'].idxmin(), 'value']:.0f}%"
        rows = pd.concat([start, rows[["k", "value", "low", "high"]].astype(float)])
        draw_line(axis, rows, x="k", color=colors_of(frame)[name], label=words, scale=100)
    axis.axhline(100, color=INK, linestyle="--", linewidth=0.9)
    axis.annotate(f"all {number} {units}", (0, 100), (4, 2), textcoords="offset points", va="bottom", color=INK)
    axis.set_ylim(min(0, axis.dataLim.y0), max(115, axis.get_ylim()[1]))
    count_axis(axis, [0, *ks])


def _beyond(axis: Axes, frame: pd.DataFrame) -> None:
    lengths = lengths_of(frame.attrs["manifest"])
    start, row = lengths.train_len or lengths.local_len, lengths.train_len
    rows = frame[frame["quantity"] == "gain_over_row_nats"]
    rows = rows[rows["x"] >= (start / 2 if row else start)]  # far fewer tokens would flatten the rest
    draw_line(axis, rows, x="x", color=BLUE)
    axis.axhline(0, color=INK, linewidth=0.7)
    count_axis(axis, rows["x"].tolist(), marked=row)
    axis.set_xlabel("latest tokens shown")
    axis.set_ylabel(f"gain over {'the training row' if row else 'the local tokens'}, nats")
    last = rows.loc[rows["x"].idxmax()]
    label_end(axis, f"{last['value']:+.3f}\nnats".replace("-", "\u2212"), (last["x"], last["value"]), color=BLUE)
    words = f"training row:\n{row} tokens" if row else "training rows unknown"
    if row:
        axis.axvspan(rows["x"].min(), min(row, last["x"]), color=SHADE, linewidth=0, zorder=0)
    axis.text(0.03, 0.97, words, transform=axis.transAxes, va="top", ha="left", color=GREY)
