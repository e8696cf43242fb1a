"""Figure 4: sparse gain against long gain, window by window; one panel for each k, the null context below the real one.

With more than ``MAX_POINTS`` windows, points would hide one another and fill the PDF. Each panel then shows how many windows
lie in each hexagon.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from olmo_sparsity.statistics.measurement import CONTEXTS, LONG_GAIN, Measurement
from olmo_sparsity.statistics.summary import SelectionSummary
from olmo_sparsity.statistics.wording import interval

from .measured import Measured, script
from .output import caption, save
from .style import CONTEXT_WORDS, LOOKS, ordered

FRAME_PERCENTILES = (0.2, 99.8)
MAX_POINTS = 20_000
HEXAGONS = 40  # across a panel
WORDS = (
    "Dashed: sparse gain equals long gain. R(k): mean sparse gain over mean long gain of the real context. In the corners: "
    "correlation, and slope of long gain on sparse gain by ordinary and by total least squares. [95% intervals over documents.] "
    "In the lower row the long-range tokens come from another document: the gain there is the selector's luck. R(k) above 1: "
    "the k tokens gain more than the whole context is worth."
)


@dataclass(frozen=True)
class Frame:
    """Limits of the panels of one figure, in nats; sparse gain across, long gain up."""

    left: float
    right: float
    bottom: float
    top: float

    def contains(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return which points lie inside, bool [W]."""
        return (x >= self.left) & (x <= self.right) & (y >= self.bottom) & (y <= self.top)


def _frame_of(measurement: Measurement, selector: str) -> Frame:
    left, right = np.percentile(measurement.gains[selector], FRAME_PERCENTILES)
    long_gains = np.concatenate([measurement.windows[name].to_numpy() for name in LONG_GAIN.values()])
    bottom, top = np.percentile(long_gains, FRAME_PERCENTILES)
    return Frame(left, right, bottom, top)


def _points(axis: Axes, x: np.ndarray, *, y: np.ndarray, num_windows: int, color: str) -> None:
    alpha = min(0.4, max(0.08, 600 / num_windows))
    axis.scatter(x, y, s=5, alpha=alpha, color=color, linewidths=0, rasterized=True)


def _density(axis: Axes, x: np.ndarray, *, y: np.ndarray, frame: Frame) -> PolyCollection:
    """Draw hexagons whose array holds the number of windows in each; empty ones are left out."""
    extent = (frame.left, frame.right, frame.bottom, frame.top)
    return axis.hexbin(x, y, gridsize=HEXAGONS, extent=extent, mincnt=1, linewidths=0.1, rasterized=True)


def _colour_densities(figure: Figure, axes: np.ndarray, *, densities: list[PolyCollection]) -> None:
    """Give all panels the same logarithmic scale, and draw its colour bar."""
    most = max(np.asarray(density.get_array()).max() for density in densities)
    for density in densities:
        density.set(norm=LogNorm(1, max(2, most)), cmap="viridis_r")
    figure.colorbar(
        densities[0], ax=axes, label="windows in a hexagon", format="{x:.0f}", shrink=0.6, pad=0.01, aspect=30
    )


def _panel(
    axis: Axes, measurement: Measurement, *, selection: SelectionSummary, frame: Frame
) -> Optional[PolyCollection]:
    """Draw the windows of one selection; returns the density if there are too many windows for points."""
    x = measurement.gains[selection.key].to_numpy()
    y = measurement.windows[LONG_GAIN[selection.context]].to_numpy()
    inside, density, halo = frame.contains(x, y), None, []
    if len(x) > MAX_POINTS:
        density = _density(axis, x[inside], y=y[inside], frame=frame)
        halo = [withStroke(linewidth=2.2, foreground="white")]
    else:
        _points(axis, x[inside], y=y[inside], num_windows=len(x), color=LOOKS[selection.selector]["color"])
    diagonal = [frame.bottom, frame.top]
    axis.plot(diagonal, diagonal, color="black", linewidth=0.9, linestyle="--", path_effects=halo)
    axis.axhline(0, color="grey", linewidth=0.5)
    axis.axvline(0, color="grey", linewidth=0.5)
    _write_numbers(axis, selection, num_outside=int((~inside).sum()))
    return density


def _write_numbers(axis: Axes, selection: SelectionSummary, *, num_outside: int) -> None:
    k, fraction, line = selection.k, selection.recovered_fraction, selection.figure4
    recovered = "gate failed" if fraction is None else f"R({k}) = {interval(fraction)}"
    axis.set_title(f"k = {k}, {selection.context}\n{recovered}")
    lines = (f"r {interval(line.correlation)}", f"OLS {interval(line.ols_slope)}", f"TLS {interval(line.tls_slope)}")
    axis.text(
        0.02, 0.99, "\n".join(lines), transform=axis.transAxes, ha="left", va="top", fontsize=6.3,
        bbox={"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 1},
    )  # fmt: skip
    if num_outside:
        axis.text(0.98, 0.02, f"{num_outside} outside", transform=axis.transAxes, ha="right", fontsize=7)


def _draw_selector(measured: Measured, selector: str, *, out: Path) -> list[Path]:
    measurement, ks = measured.measurement, measured.measurement.ks
    frame = _frame_of(measurement, selector)
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
    for row, context in enumerate(CONTEXTS):
        for axis, k in zip(axes[row], ks, strict=True):
            density = _panel(axis, measurement, selection=measured.summary.at(selector, context, k), frame=frame)
            if density is not None:
                densities.append(density)
        axes[row, 0].set_ylabel(f"{CONTEXT_WORDS[context].split(' (')[0]}\nlong gain, nats")
    for axis in axes[1]:
        axis.set_xlabel("sparse gain, nats")
    axes[0, 0].set_xlim(frame.left, frame.right)
    axes[0, 0].set_ylim(frame.bottom, frame.top)
    if densities:
        _colour_densities(figure, axes, densities=densities)
    mark = "Colour: windows in a hexagon, on a logarithmic scale" if densities else "Each point is a window"
    caption(figure, measured.summary, words=f"Selector {selector}. {mark}. {WORDS}")
    return save(figure, out, name=f"figure4-{selector}")


def draw(measured: Measured, out: Path) -> list[Path]:
    """Draw ``figure4-SELECTOR`` for every selector."""
    return [path for selector in ordered(measured.measurement) for path in _draw_selector(measured, selector, out=out)]


if __name__ == "__main__":
    script(draw)
