"""R against D: does a choice gain more than a reaction of the same size that chooses nothing?"""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from olmo_sparsity.statistics.quantities import gate, pick, units_of

from .drawing import (
    INK,
    WIDTH,
    NothingToDraw,
    colors_of,
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
    """A line for each main selector over k, and the line of blends of the short and the full prediction."""
    gain = pick(frame, "long_gain_nats")
    if gate(frame) != "above" or gain is None:
        raise NothingToDraw("recovered: the long context gives no clear gain, so there is no R(k)")
    drawn, axes = new_figure(
        height=3.6, width=0.8 * WIDTH, title="Share of the gain, against share of the reaction",
        caption=f"Numbers: k {units_of(frame.attrs['manifest'])}. Bands: 95%; {sample_of(frame)}.",
    )  # fmt: skip
    axis = axes[0, 0]
    blends = pd.DataFrame({
        name: frame[(frame["quantity"] == quantity) & (frame["context"] == "real")].set_index("x")["value"]
        for name, quantity in (("x", "damped_recovered"), ("value", "damped_gain_nats"))
    })  # fmt: skip
    blends["value"] /= gain["value"]
    ends = pd.DataFrame({"x": [0.0, 1.0], "value": [0.0, 1.0]})  # by definition
    line = pd.concat([blends, ends]).assign(low=float("nan"), high=float("nan"))
    blended = "weaker reaction,\nnothing chosen"
    draw_line(axis, line, x="x", color=INK, is_dashed=True, marker="", label=blended)
    for name in main_selectors(frame, "attention", "random"):
        rows = selections(frame, "recovered_fraction", name)
        share = selections(frame, "prediction_recovered", name).set_index("k")["value"]
        rows = rows.assign(x=rows["k"].map(share).astype(float)).sort_values("k")
        color = colors_of(frame)[name]
        draw_line(axis, rows, x="x", color=color, label=name, label_x=1)
        for _, row in rows.iterrows():
            axis.annotate(
                f"{row['k']}", (row["x"], row["value"]), (0, -5), textcoords="offset points", ha="center", va="top",
                color=color, fontsize=7,
            )  # fmt: skip
    axis.axhline(1, color=INK, linewidth=0.7)
    axis.set(xlim=(0, 1), xlabel="D(k), share of the reaction reproduced", ylabel="R(k), share of the gain")
    return drawn
