"""Classes of targets: which gain from the long context, and how much of it few tokens give back."""

from __future__ import annotations

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from olmo_sparsity.statistics.quantities import QUANTITIES, counted, shown_ks

from .drawing import BLUE, INK, NothingToDraw, main_selectors, new_figure, picked_by, sample_of, styled

NEEDS = "frame"


@styled
def figure(frame: pd.DataFrame) -> Figure:
    """A row for each class, the highest long gain on top: long gain, gain over random, R(k)."""
    of_classes = frame[frame["group"].notna()]
    gains = of_classes[of_classes["quantity"] == "long_gain_nats"].dropna(subset="low").sort_values("value")
    if gains.empty:
        raise NothingToDraw("classes: no class of targets is in enough documents")
    names = gains["group"].tolist()
    selector, k = main_selectors(frame)[0], shown_ks(frame)[0]
    chosen = of_classes[of_classes["group"].isin(names) & (of_classes["selector"] == selector) & (of_classes["k"] == k)]
    chosen = chosen[chosen["context"] == "real"]
    picked = f"{counted(k, frame.attrs['manifest'])} {picked_by(selector, frame)}"
    drawn, axes = new_figure(
        1, 3, height=0.3 * len(gains) + 1.3, title="Classes of targets: what the long context gives, and what few tokens do",
        sharey=True, caption=f"Blue: {picked}. Lines: 95% intervals; {sample_of(frame)}.",
    )  # fmt: skip
    _dots(axes[0, 0], gains, "long_gain_nats", names, color=INK)
    for axis, quantity in zip(axes[0, 1:], ("gain_over_random_nats", "recovered_fraction"), strict=True):
        _dots(axis, chosen[chosen["quantity"] == quantity], quantity, names, color=BLUE)
    shares = of_classes[of_classes["quantity"] == "window_share"].set_index("group")["value"]
    axes[0, 0].set_yticks(range(len(names)), [f"{name} ({shares[name]:.0%})" for name in names])
    return drawn


def _dots(axis: Axes, rows: pd.DataFrame, quantity: str, names: list[str], *, color: str) -> None:
    if rows.empty:
        axis.text(0.5, 0.5, "no clear gain", ha="center", va="center", transform=axis.transAxes)
    heights = np.array([names.index(name) for name in rows["group"]])
    axis.hlines(heights, rows["low"], rows["high"], color=color, linewidth=1.2)
    axis.plot(rows["value"], heights, "o", color=color, gid=quantity)
    axis.axvline(0, color=INK, linewidth=0.7)
    axis.set_xlabel(QUANTITIES[quantity].header)
    axis.set_ylim(-0.6, len(names) - 0.4)
