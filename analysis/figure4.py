"""Figure 4: for every window, the gain from few chosen tokens against the gain from all."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from olmo_sparsity.statistics.frames import read_sparse_gains, read_windows
from olmo_sparsity.statistics.quantities import counted, pick, read_estimates, shown_ks, units_of

from .drawing import INK, WIDTH, named_selector, new_figure, picked_by, sample_of, styled

NEEDS = "tables"
MOST_PANELS = 4
SHOWN = (0.2, 99.8)  # percentiles of the gains between which the panels reach
# The light end of viridis is lost on white.
DENSITY = LinearSegmentedColormap.from_list("density", plt.get_cmap("viridis_r")(np.linspace(0.3, 1, 64)))


@styled
def figure(tables: Path, selector: Optional[str] = None) -> Figure:
    """A panel for each shown k; ``selector``: by default the first that does not see the target.

    Raises:
        UserError: the selector was not measured.
    """
    frame = read_estimates(tables)
    selector = named_selector(frame, selector)
    ks = shown_ks(frame)
    ks = [ks[at] for at in np.unique(np.linspace(0, len(ks) - 1, MOST_PANELS).round().astype(int))]
    long_W, weight_W = (
        read_windows(tables, ["window_id", "gain_long_nats", "weight"])[["gain_long_nats", "weight"]].to_numpy().T
    )
    sparse_KW = read_sparse_gains(tables, selector, ks).to_numpy(float).T
    low, high = np.percentile(np.concatenate([long_W, *sparse_KW]), SHOWN)
    drawn, axes = new_figure(
        1, len(ks), height=1.0 + WIDTH / max(len(ks), 3), sharex=True, sharey=True, layout="compressed",
        title=f"Every window: gain with few {units_of(frame.attrs['manifest'])}, against its gain with all",
        caption=f"{picked_by(selector, frame).capitalize()}. Line: equal gains. Cross: means. {sample_of(frame)}.",
    )  # fmt: skip
    clouds = []
    for axis, k, sparse_W in zip(axes.flat, ks, sparse_KW, strict=True):
        clouds.append(_cloud(axis, sparse_W, long_W, weight_W, extent=(low, high, low, high)))
        share = pick(frame, "recovered_fraction", selector=selector, context="real", k=k)
        axis.set_title(
            counted(k, frame.attrs["manifest"]) + ("" if share is None else f": {share['value']:.0%} of the gain")
        )
        axis.set_xlabel("sparse gain, nats")
    axes[0, 0].set_ylabel("long gain, nats")
    axes[0, 0].set(xlim=(low, high), ylim=(low, high))
    most = np.concatenate([[2.0], *(np.ma.getdata(cloud.get_array()) for cloud in clouds)]).max()
    for cloud in clouds:
        cloud.set_norm(LogNorm(1, most))
    bar = drawn.colorbar(clouds[0], ax=axes, label="windows in a hexagon", format="{x:.0f}", aspect=30, shrink=0.8)
    bar.minorticks_off()
    return drawn


def _cloud(
    axis: Axes, x: np.ndarray, y: np.ndarray, weight: np.ndarray, *, extent: tuple[float, float, float, float]
) -> PolyCollection:
    """Draw how much weight of the windows lies in each hexagon, the diagonal and the means."""
    low, high, *_ = extent
    inside = (np.minimum(x, y) >= low) & (np.maximum(x, y) <= high)
    cloud = axis.hexbin(
        x[inside], y[inside], C=weight[inside], reduce_C_function=np.sum, gridsize=30, extent=extent, cmap=DENSITY,
        linewidths=0.1, rasterized=True,
    )  # fmt: skip
    white = [withStroke(linewidth=2.5, foreground="white")]
    axis.plot([low, high], [low, high], color=INK, linewidth=0.9, path_effects=white)
    axis.axhline(0, color=INK, linewidth=0.5)
    axis.axvline(0, color=INK, linewidth=0.5)
    means = np.average([x, y], axis=1, weights=weight)
    axis.plot(*means, "+", color=INK, markersize=9, markeredgewidth=1.8, path_effects=white, gid="means")
    axis.set_aspect("equal")
    return cloud
