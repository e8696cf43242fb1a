"""Figure 4: sparse gain against long gain, window by window; one panel a k, the null context below the real one.

With more than ``MAX_POINTS`` windows points would hide one another, and fill a PDF: then each panel shows how many windows
lie in each hexagon instead.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from olmo_sparsity.statistics.measurement import LONG_GAIN, Measurement
from olmo_sparsity.statistics.wording import interval

from .style import CONTEXT_WORDS, LOOKS, caption, ordered, save, script

FRAME_PERCENTILES = (0.2, 99.8)
MAX_POINTS = 20_000
HEXAGONS = 40  # across a panel
LINE_WORDS = {"correlation": "r", "ols_slope": "OLS", "tls_slope": "TLS"}


def _points(axis: Axes, x: np.ndarray, y: np.ndarray, num_windows: int, color: str) -> None:
    alpha = min(0.4, max(0.08, 600 / num_windows))
    axis.scatter(x, y, s=5, alpha=alpha, color=color, linewidths=0, rasterized=True)


def _density(axis: Axes, x: np.ndarray, y: np.ndarray, frame: tuple[float, float, float, float]) -> PolyCollection:
    """Hexagons, the number of windows in each being their array; empty ones are left out."""
    return axis.hexbin(x, y, gridsize=HEXAGONS, extent=frame, mincnt=1, linewidths=0.1, rasterized=True)


def _colour_densities(figure: Figure, axes: np.ndarray, densities: list[PolyCollection]) -> None:
    """One logarithmic scale for all panels, so that they compare, and its bar."""
    most = max(np.asarray(density.get_array()).max() for density in densities)
    for density in densities:
        density.set(norm=LogNorm(1, max(2, most)), cmap="viridis_r")
    figure.colorbar(
        densities[0], ax=axes, label="windows in a hexagon", format="{x:.0f}", shrink=0.6, pad=0.01, aspect=30
    )


def draw(tables: Path, measurement: Measurement, summary: dict[str, Any], out: Path) -> list[Path]:
    """Writes ``figure4-SELECTOR`` for every selector."""
    paths = []
    long_gain = {context: measurement.windows[name].to_numpy() for context, name in LONG_GAIN.items()}
    ks = measurement.ks
    dense = len(measurement.windows) > MAX_POINTS
    for selector in ordered(measurement):
        left, right = np.percentile(measurement.gains[selector], FRAME_PERCENTILES)
        bottom, top = np.percentile(np.concatenate(list(long_gain.values())), FRAME_PERCENTILES)
        figure, axes = plt.subplots(
            2,
            len(ks),
            figsize=(2.5 * len(ks) + 0.6, 5.4),
            sharex=True,
            sharey=True,
            squeeze=False,
            layout="constrained",
        )
        densities = []
        for row, context in enumerate(("real", "null")):
            for column, k in enumerate(ks):
                axis = axes[row, column]
                x, y = measurement.gains[selector, context, k].to_numpy(), long_gain[context]
                inside = (x >= left) & (x <= right) & (y >= bottom) & (y <= top)
                if dense:
                    densities.append(_density(axis, x[inside], y[inside], (left, right, bottom, top)))
                else:
                    _points(axis, x[inside], y[inside], len(x), LOOKS[selector]["color"])
                halo = [withStroke(linewidth=2.2, foreground="white")] if dense else []
                axis.plot([bottom, top], [bottom, top], color="black", linewidth=0.9, linestyle="--", path_effects=halo)
                axis.axhline(0, color="grey", linewidth=0.5)
                axis.axvline(0, color="grey", linewidth=0.5)
                entry = next(
                    e for e in summary["selections"] if (e["selector"], e["context"], e["k"]) == (selector, context, k)
                )
                fraction = entry["recovered_fraction"]
                gap = "gate failed" if fraction is None else f"R({k}) = {interval(fraction)}"
                axis.set_title(f"k = {k}, {context}\n{gap}")
                lines = [f"{words} {interval(entry['figure4'][name])}" for name, words in LINE_WORDS.items()]
                axis.text(
                    0.02, 0.99, "\n".join(lines), transform=axis.transAxes, ha="left", va="top", fontsize=6.3,
                    bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1},
                )  # fmt: skip
                outside = int((~inside).sum())
                if outside:
                    axis.text(0.98, 0.02, f"{outside} outside", transform=axis.transAxes, ha="right", fontsize=7)
            axes[row, 0].set_ylabel(f"{CONTEXT_WORDS[context].split(' (')[0]}\nlong gain, nats")
        for axis in axes[1]:
            axis.set_xlabel("sparse gain, nats")
        axes[0, 0].set_xlim(left, right)
        axes[0, 0].set_ylim(bottom, top)
        if densities:
            _colour_densities(figure, axes, densities)
        mark = "Colour: windows in a hexagon, on a logarithmic scale" if dense else "Each point is a window"
        caption(
            figure,
            summary,
            f"Selector {selector}. {mark}; dashed: sparse gain equals long gain. R(k): mean sparse gain "
            "over mean long gain of the real context. In the corners: correlation, and slope of long on sparse gain by "
            "ordinary and by total least squares. [95% intervals over documents.] Below, the long-range tokens come from "
            "another document: what shows there is the selector's luck. R(k) above 1: the k tokens gain more than the "
            "whole context is worth.",
        )
        paths += save(figure, out, f"figure4-{selector}")
    return paths


if __name__ == "__main__":
    script(draw)
