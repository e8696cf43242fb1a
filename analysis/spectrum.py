"""The dependency spectrum: for how many targets k tokens suffice."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure
from matplotlib.ticker import PercentFormatter

from olmo_sparsity.statistics.quantities import gate, units_of
from olmo_sparsity.statistics.spectrum import TOLERANCE
from olmo_sparsity.view.console import null_context

from .drawing import (
    NothingToDraw,
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


@styled
def figure(frame: pd.DataFrame) -> Figure:
    """A panel for the text and one for the null context; a line for the first blind selector, `nearest` and `random`."""
    if gate(frame) != "above":
        raise NothingToDraw("spectrum: the long context gives no clear gain, so nothing is needed of it")
    units = units_of(frame.attrs["manifest"])
    drawn, axes = new_figure(
        1, 2, height=2.9, title=f"Share of the targets that need at most k {units}", sharey=True,
        caption=f"Within {TOLERANCE:g} nats of the prediction with all {units}. Simultaneous 95% bands; {sample_of(frame)}.",
    )  # fmt: skip
    panels = {"real": "the document", "null": "null context: " + null_context(frame.attrs["manifest"])}
    for axis, (context, words) in zip(axes.flat, panels.items(), strict=True):
        axis.set_title(words)
        for name in main_selectors(frame, "nearest", "random"):
            rows = selections(frame, "spectrum_share", name, context)
            rows = rows[rows["x"] == TOLERANCE].astype({"k": float})
            draw_line(axis, rows, x="k", color=colors_of(frame)[name], label=name)
        count_axis(axis, frame.loc[frame["quantity"] == "spectrum_share", "k"].unique().tolist())
        axis.set(ylim=(0, 1.02), xlabel=f"k, {units} picked")
    axes[0, 0].yaxis.set_major_formatter(PercentFormatter(1.0))
    axes[0, 0].set_ylabel("targets")
    return drawn
