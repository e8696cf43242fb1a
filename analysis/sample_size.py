"""Were enough windows measured? Long gain, R(k) and effective sparsity as they would have come out with fewer of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from olmo_sparsity.statistics.breakdowns import by_sample_size
from olmo_sparsity.statistics.measurement import Measurement

from .style import LOOKS, band, caption, legend_entry, main_selectors, save, script, signed_log

FRACTION = 0.8
SMALLEST = {
    "smallest_k": f"smallest k with R(k) at least {FRACTION}",
    "smallest_k_excess": f"smallest k with excess fraction at least {FRACTION}",
}


def _smallest(axis: Axes, measurement: Measurement, summaries: list[dict[str, Any]], name: str) -> None:
    """The smallest k as steps of equal height, "more than the largest" being the last; intervals as bars."""
    ks, selectors = measurement.ks, main_selectors(measurement)
    height = {k: i for i, k in enumerate(ks)} | {None: len(ks)}
    for number, selector in enumerate(selectors):
        offset = number - (len(selectors) - 1) / 2
        sizes, means, lows, highs = [], [], [], []
        for summary in summaries:
            (entry,) = (
                e for e in summary["effective_sparsity"] if (e["selector"], e["fraction"]) == (selector, FRACTION)
            )
            if entry[name] is not None:
                sizes.append(summary["num_windows"] * (1 + 0.05 * offset))
                value, low, high = (height[entry[name][bound]] for bound in ("value", "low", "high"))
                means.append(value + 0.09 * offset)
                lows.append(value - low)
                highs.append(high - value)
        axis.errorbar(
            sizes, means, yerr=[lows, highs], linestyle="-", linewidth=0.8, markersize=4, elinewidth=0.9, capsize=2,
            **LOOKS[selector],
        )  # fmt: skip
    axis.set_yticks(range(len(ks) + 1), [*(str(k) for k in ks), f">{ks[-1]}"])
    axis.set_ylim(-0.5, len(ks) + 0.5)
    axis.set_title(SMALLEST[name])
    axis.set_ylabel("k, long-range tokens")


def draw(tables: Path, measurement: Measurement, summary: dict[str, Any], out: Path) -> list[Path]:
    """Writes ``sample-size``."""
    summaries = by_sample_size(measurement)
    sizes = [one["num_windows"] for one in summaries]
    k, selectors = measurement.ks[-1], main_selectors(measurement)
    figure, places = plt.subplots(2, 2, figsize=(9.6, 6.2), sharex=True, layout="constrained")
    axes = list(places.flat)
    band(axes[0], sizes, [one["long_gain_nats"] for one in summaries], color="black", marker="o")
    axes[0].axhline(0, color="grey", linewidth=0.8)
    axes[0].set_title("long gain")
    axes[0].set_ylabel("mean long gain, nats")
    for selector in selectors:
        found = []
        for one in summaries:
            (entry,) = (e for e in one["selections"] if (e["selector"], e["context"], e["k"]) == (selector, "real", k))
            found.append(entry["recovered_fraction"])
        band(axes[1], sizes, found, **LOOKS[selector])
    signed_log(axes[1], "y")
    axes[1].axhline(1, color="black", linestyle="--", linewidth=0.9)
    axes[1].set_title(f"R({k})")
    axes[1].set_ylabel("recovered fraction")
    for axis, name in zip(axes[2:], SMALLEST, strict=True):
        _smallest(axis, measurement, summaries, name)
        axis.set_xlabel("windows")
    failed = [one["num_windows"] for one in summaries if one["gate"] == "failed"]
    for axis in axes:
        axis.set_xscale("log")
        axis.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
        axis.set_xticks([], minor=True)
        if failed and axis is not axes[0]:
            every = len(failed) == len(sizes)
            which = "any number of windows" if every else f"{', '.join(str(size) for size in failed)} windows"
            axis.text(
                0.02, 0.5, f"gate failed with\n{which}", transform=axis.transAxes, fontsize=7.5,
                bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},  # the line at 1 may run behind it
            )  # fmt: skip
    caption(
        figure,
        summary,
        "What the first so many windows say: of the same text, window i is the same however many are measured. Bands and "
        "bars: 95% intervals by bootstrap over documents. Enough were measured where the numbers stay what they are and the "
        "intervals are as narrow as the question asks. R(k): linear up to 1, logarithmic beyond. Of a selector that sees the "
        "target the smallest k is mostly luck; the excess takes that off, and adds what foreign tokens mislead.",
        [legend_entry(name) for name in selectors],
    )
    return save(figure, out, "sample-size", one_column=1)


if __name__ == "__main__":
    script(draw)
