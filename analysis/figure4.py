"""Figure 4: sparse gain against long gain, window by window; one panel a k, the null context below the real one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from analysis.style import CONTEXT_WORDS, LOOKS, caption, number, save, script
from olmo_sparsity.statistics import Measurement

FRAME_PERCENTILES = (0.2, 99.8)


def draw(tables: Path, measurement: Measurement, summary: dict[str, Any], out: Path) -> list[Path]:
    """Writes ``figure4-SELECTOR`` for every selector."""
    paths = []
    windows = measurement.windows.set_index("window_id")
    long_gain = {"real": windows["gain_long_nats"], "null": windows["null_gain_long_nats"]}
    for selector, rows in measurement.selections.groupby("selector", sort=False):
        ks = sorted(rows["k"].unique())
        left, right = np.percentile(rows["gain_sparse_nats"], FRAME_PERCENTILES)
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
        for row, context in enumerate(("real", "null")):
            for column, k in enumerate(ks):
                axis = axes[row, column]
                points = rows[(rows["context"] == context) & (rows["k"] == k)].set_index("window_id")[
                    "gain_sparse_nats"
                ]
                x, y = points.to_numpy(), long_gain[context].reindex(points.index).to_numpy()
                inside = (x >= left) & (x <= right) & (y >= bottom) & (y <= top)
                axis.scatter(
                    x[inside],
                    y[inside],
                    s=5,
                    alpha=min(0.4, max(0.08, 600 / len(x))),
                    color=LOOKS[str(selector)]["color"],
                    linewidths=0,
                    rasterized=True,
                )
                axis.plot([bottom, top], [bottom, top], color="black", linewidth=0.9, linestyle="--")
                axis.axhline(0, color="grey", linewidth=0.5)
                axis.axvline(0, color="grey", linewidth=0.5)
                entry = next(
                    e for e in summary["selections"] if (e["selector"], e["context"], e["k"]) == (selector, context, k)
                )
                fraction = entry["recovered_fraction"]
                gap = "gate failed" if fraction is None else f"R({k}) = {number(fraction)}"
                axis.set_title(f"k = {k}, {context}\n{gap}")
                outside = int((~inside).sum())
                if outside:
                    axis.text(0.98, 0.02, f"{outside} outside", transform=axis.transAxes, ha="right", fontsize=7)
            axes[row, 0].set_ylabel(f"{CONTEXT_WORDS[context].split(' (')[0]}\nlong gain, nats")
        for axis in axes[1]:
            axis.set_xlabel("sparse gain, nats")
        axes[0, 0].set_xlim(left, right)
        axes[0, 0].set_ylim(bottom, top)
        caption(
            figure,
            summary,
            f"Selector {selector}. Each point is a window; dashed: sparse gain equals long gain. R(k): mean sparse gain "
            "over mean long gain of the real context, with its 95% interval over documents. Below, the long-range tokens "
            "come from another document: what shows there is the selector's luck. R(k) above 1: the k tokens gain more than "
            "the whole context is worth.",
        )
        paths += save(figure, out, f"figure4-{selector}")
    return paths


if __name__ == "__main__":
    script(draw)
