"""Figure of the classes of targets: which profit from the long context, and how much of it few tokens give back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from olmo_sparsity.statistics.breakdowns import ClassSummary, by_class
from olmo_sparsity.statistics.estimate import Estimate

from .measured import Measured, script
from .output import caption, save
from .style import LOOKS, error_bars, legend_entry, main_selectors, signed_log

PANELS = ("share of windows", "long gain, nats", "R({k}), recovered fraction", "excess gain, k = {k}, nats")
FAILED = "#EFEFEF"
WORDS = (
    "Targets by class, the highest mean long gain on top; points with 95% intervals by bootstrap over the documents that hold "
    "such targets. Grey: the interval of the class's own mean long gain reaches 0, or the class has too few documents, and no "
    "R(k) is shown. A class without any long gain passes its gate once in 40 times. R(k): linear up to 1, logarithmic beyond. "
    "Excess: real minus null context; compare it with that of random."
)


def _point(axis: Axes, height: float, *, estimate: Estimate, **looks: Any) -> None:
    axis.errorbar(
        [estimate.mean], [height], xerr=error_bars([estimate]), linestyle="", markersize=4.5, elinewidth=1, capsize=2, **looks
    )  # fmt: skip


def _mark_failed_gates(axes: np.ndarray, classes: list[ClassSummary]) -> None:
    """Shade the rows of classes whose gate failed, and say so in the panel of R(k)."""
    for row, entry in enumerate(classes):
        if entry.summary.gate_passed:
            continue
        for axis in axes:
            axis.axhspan(row - 0.5, row + 0.5, color=FAILED, linewidth=0, zorder=0)
        axes[2].text(
            0.5, row, "gate failed: no R(k)", ha="center", va="center", fontsize=7.5,
            transform=axes[2].get_yaxis_transform(), bbox={"facecolor": FAILED, "edgecolor": "none", "pad": 1},
        )  # fmt: skip


def _draw_points(axes: np.ndarray, classes: list[ClassSummary], *, selectors: list[str], k: int) -> None:
    for row, entry in enumerate(classes):
        for axis, estimate in ((axes[0], entry.window_share), (axes[1], entry.summary.long_gain_nats)):
            _point(axis, row, estimate=estimate, color="black", marker="o")
    for number, selector in enumerate(selectors):
        offset = 0.17 * (number - (len(selectors) - 1) / 2)
        for row, entry in enumerate(classes):
            selection = entry.summary.at(selector, "real", k)
            for axis, value in ((axes[2], selection.recovered_fraction), (axes[3], selection.excess_gain_nats)):
                if value is not None:
                    _point(axis, row + offset, estimate=value, **LOOKS[selector])


def _label_axes(axes: np.ndarray, classes: list[ClassSummary], *, k: int) -> None:
    labels = [
        f"{entry.target_class}\n{entry.summary.num_windows} windows, {entry.summary.num_documents} documents"
        for entry in classes
    ]
    axes[0].set_yticks(range(len(classes)), labels, fontsize=7.5)
    axes[0].set_ylim(len(classes) - 0.5, -0.5)  # the highest long gain on top
    axes[0].set_xlim(left=0)
    for axis, title in zip(axes, PANELS, strict=True):
        axis.set_title(title.format(k=k))
        axis.grid(axis="x", color="#DDDDDD", linewidth=0.5)
        axis.set_axisbelow(True)
    for axis in (axes[1], axes[3]):
        axis.axvline(0, color="grey", linewidth=0.8)
    axes[2].axvline(1, color="black", linestyle="--", linewidth=0.9)
    if any(entry.summary.gate_passed for entry in classes):
        signed_log(axes[2], "x")
    else:
        axes[2].set_xticks([])


def draw(measured: Measured, out: Path) -> list[Path]:
    """Draw ``classes``."""
    measurement = measured.measurement
    classes = by_class(measurement, measured.summary)
    k, selectors = measurement.ks[-1], main_selectors(measurement)
    figure, axes = plt.subplots(
        1,
        4,
        figsize=(10.8, 0.52 * len(classes) + 1.7),
        sharey=True,
        width_ratios=[0.7, 1, 1.2, 1.2],
        layout="constrained",
    )
    _mark_failed_gates(axes, classes)
    _draw_points(axes, classes, selectors=selectors, k=k)
    _label_axes(axes, classes, k=k)
    caption(figure, measured.summary, words=WORDS, handles=[legend_entry(name) for name in selectors])
    return save(figure, out, name="classes")


if __name__ == "__main__":
    script(draw)
