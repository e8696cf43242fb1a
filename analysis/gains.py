"""Gains of chosen tokens: a panel for each quantity that names this figure, ``figure:gains``."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from olmo_sparsity.statistics.quantities import QUANTITIES, selectors_of, units_of

from .drawing import (
    INK,
    colors_of,
    count_axis,
    draw_line,
    main_selectors,
    new_figure,
    sample_of,
    selections,
    styled,
)

NEEDS = "frame"
COLUMNS = 2


@styled
def figure(frame: pd.DataFrame) -> Figure:
    """A line for each main selector over k, under the real context."""
    panels = [of for of in QUANTITIES.values() if "figure:gains" in of.show and (frame["quantity"] == of.name).any()]
    rows, units, selectors = -(-len(panels) // COLUMNS), units_of(frame.attrs["manifest"]), selectors_of(frame)
    drawn, axes = new_figure(
        rows, COLUMNS, height=0.5 + 2.1 * rows, title=f"What k {units} gain, against random, null context and blending",
        caption=f"Bands: 95% intervals; {sample_of(frame)}.",
    )  # fmt: skip
    for axis, quantity in zip(axes.flat, panels, strict=False):
        axis.set_title(quantity.label)
        names = main_selectors(frame, "attention", "unmask-one", "nearest", "random")
        if len(selections(frame, quantity.name, names[0])):  # luck would dwarf the others
            names = [name for name in names if name == names[0] or not selectors.loc[name, "sees_target"]]
        for name in names:
            of_selector = selections(frame, quantity.name, name)
            draw_line(axis, of_selector.astype({"k": float}), x="k", color=colors_of(frame)[name], label=name)
        axis.axhline(0, color=INK, linewidth=0.7)
        count_axis(axis, frame.loc[frame["quantity"] == quantity.name, "k"].dropna().unique().tolist())
        axis.set(xlabel=f"k, {units}", ylabel=quantity.unit)
    for axis in axes.flat[len(panels) :]:
        axis.remove()
    return drawn
