"""Which kinds of targets profit from the long context, and how much of it few tokens give back, class by class."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from olmo_sparsity.statistics.breakdowns import by_class
from olmo_sparsity.statistics.measurement import Measurement

from .style import LOOKS, caption, errors, legend_entry, main_selectors, save, script, signed_log

PANELS = ("share of windows", "long gain, nats", "R({k}), recovered fraction", "excess gain, k = {k}, nats")
FAILED = "#EFEFEF"


def _points(axis: Axes, heights: list[float], found: list[dict[str, Any]], **looks: Any) -> None:
    axis.errorbar(
        [e["mean"] for e in found], heights, xerr=errors(found), linestyle="", markersize=4.5, elinewidth=1, capsize=2, **looks
    )  # fmt: skip


def draw(tables: Path, measurement: Measurement, summary: dict[str, Any], out: Path) -> list[Path]:
    """Writes ``classes``."""
    entries = by_class(measurement)
    k, selectors = measurement.ks[-1], main_selectors(measurement)
    figure, axes = plt.subplots(
        1,
        4,
        figsize=(10.8, 0.52 * len(entries) + 1.7),
        sharey=True,
        width_ratios=[0.7, 1, 1.2, 1.2],
        layout="constrained",
    )
    heights = list(range(len(entries)))
    for row, entry in enumerate(entries):
        failed = entry["gate"] == "failed"
        for column, axis in enumerate(axes):
            if failed:
                axis.axhspan(row - 0.5, row + 0.5, color=FAILED, linewidth=0, zorder=0)
            if failed and column == 2:
                axis.text(
                    0.5, row, "gate failed: no R(k)", ha="center", va="center", fontsize=7.5,
                    transform=axis.get_yaxis_transform(), bbox={"facecolor": FAILED, "edgecolor": "none", "pad": 1},
                )  # fmt: skip
    for axis, name in ((axes[0], "window_share"), (axes[1], "long_gain_nats")):
        for row, entry in enumerate(entries):  # one by one: a rare class has no interval
            _points(axis, [row], [entry[name]], color="black", marker="o")
    for number, selector in enumerate(selectors):
        offset = 0.17 * (number - (len(selectors) - 1) / 2)
        for row, entry in enumerate(entries):
            (one,) = (e for e in entry["selections"] if (e["selector"], e["context"], e["k"]) == (selector, "real", k))
            for axis, name in ((axes[2], "recovered_fraction"), (axes[3], "excess_gain_nats")):
                if one[name] is not None:
                    _points(axis, [row + offset], [one[name]], **LOOKS[selector])
    labels = [f"{e['target_class']}\n{e['num_windows']} windows, {e['num_documents']} documents" for e in entries]
    axes[0].set_yticks(heights, labels, fontsize=7.5)
    axes[0].set_ylim(len(entries) - 0.5, -0.5)  # the highest long gain on top
    axes[0].set_xlim(left=0)
    for axis, title in zip(axes, PANELS, strict=True):
        axis.set_title(title.format(k=k))
        axis.grid(axis="x", color="#DDDDDD", linewidth=0.5)
        axis.set_axisbelow(True)
    for axis in (axes[1], axes[3]):
        axis.axvline(0, color="grey", linewidth=0.8)
    axes[2].axvline(1, color="black", linestyle="--", linewidth=0.9)
    if any(e["gate"] == "passed" for e in entries):
        signed_log(axes[2], "x")
    else:
        axes[2].set_xticks([])
    caption(
        figure,
        summary,
        "Targets by class, the highest mean long gain on top; points with 95% intervals by bootstrap over the documents that "
        "hold such targets. Grey: the interval of the class's own mean long gain reaches 0, or it has too few documents, and "
        "no R(k) is shown; a class without any long gain would pass once in 40 times. R(k): linear up to 1, logarithmic "
        "beyond. Excess: real minus null context, to be read beside that of random.",
        [legend_entry(name) for name in selectors],
    )
    return save(figure, out, "classes")


if __name__ == "__main__":
    script(draw)
