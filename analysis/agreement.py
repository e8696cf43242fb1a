"""Do the selectors choose the same tokens? Overlap of their choices and correlation of their rankings, two at a time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from olmo_sparsity.statistics.agreement import agreement
from olmo_sparsity.statistics.measurement import Measurement

from .style import caption, ordered, save, script


def _heatmap(figure: Figure, axis: Axes, names: list[str], values: np.ndarray, low: float, cmap: str) -> None:
    """Numbers in the cells below the diagonal; ``values`` [names, names], NaN where there is none."""
    image = axis.imshow(values, vmin=low, vmax=1, cmap=cmap)
    for row, column in zip(*np.nonzero(np.isfinite(values)), strict=True):
        value = values[row, column]
        red, green, blue, _ = image.cmap(image.norm(value))
        dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
        axis.text(
            column,
            row,
            f"{round(value, 2) + 0.0:.2f}",  # no -0.00
            ha="center",
            va="center",
            fontsize=7.5,
            color="white" if dark else "black",
        )
    axis.set_xticks(range(len(names) - 1), names[:-1], rotation=45, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(1, len(names)), names[1:])
    axis.set_xlim(-0.5, len(names) - 1.5)
    axis.set_ylim(len(names) - 0.5, 0.5)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    figure.colorbar(image, ax=axis, shrink=0.8)


def draw(tables: Path, measurement: Measurement, summary: dict[str, Any], out: Path) -> list[Path]:
    """Writes ``agreement``; nothing where only one selector was measured."""
    names, k = ordered(measurement), measurement.ks[-1]
    pairs = agreement(tables, measurement)
    if not pairs:
        return []
    overlap, correlation = np.full((2, len(names), len(names)), np.nan)
    widths = []
    for pair in pairs:
        column, row = sorted(names.index(name) for name in pair["selectors"])
        at_k = pair["overlap"][-1]
        overlap[row, column] = at_k["mean"]
        widths += [at_k]
        if pair["rank_correlation"] is not None:
            correlation[row, column] = pair["rank_correlation"]["mean"]
            widths += [pair["rank_correlation"]]
    size = max(2.6, 0.5 * len(names))
    figure, axes = plt.subplots(1, 2, figsize=(2 * size + 2.4, size + 0.6), layout="constrained")
    chance = pairs[0]["overlap"][-1]["chance"]
    _heatmap(figure, axes[0], names, overlap, 0.0, "viridis")
    axes[0].set_title(f"common positions among the {k} chosen\n(share; two random choices: {chance:.2f})")
    _heatmap(figure, axes[1], names, correlation, -1.0, "RdBu_r")
    axes[1].set_title("rank correlation of the scores\n(Spearman; two random rankings: 0)")
    words = "Each two selectors on the same windows, real context; means over windows."
    if all(one["low"] is not None for one in widths):
        reach = max(max(one["high"] - one["mean"], one["mean"] - one["low"]) for one in widths)
        words += f" 95% intervals over documents reach at most {reach:.2f} to either side."
    if "greedy" in names:
        words += (
            " The rank correlation with greedy cannot reach 1: greedy ranks only the positions it takes, the others tie."
            " Likewise lasso, where coefficients are 0; its ties choose the nearer positions."
        )
    left_out = max(pair["num_windows_left_out"] for pair in pairs)
    if left_out:
        words += " Where a selector scores all positions of a window alike there is no rank correlation: "
        words += f"up to {left_out} windows are left out of a cell."
    caption(figure, summary, words)
    return save(figure, out, "agreement", one_column=1)


if __name__ == "__main__":
    script(draw)
