"""Figure of sample size: long gain, R(k) and effective sparsity as a measurement of fewer windows gives them."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from olmo_sparsity.statistics.breakdowns import by_sample_size
from olmo_sparsity.statistics.summary import Summary

from .measured import Measured, script
from .output import caption, save
from .style import LOOKS, band, legend_entry, main_selectors, signed_log

FRACTION = 0.8
WORDS = (
    "The numbers of the first n windows: on the same text, window i does not depend on how many windows are measured. Bands and "
    "bars: 95% intervals by bootstrap over documents. Enough windows were measured if the numbers no longer change and the "
    "intervals are as narrow as the question requires. R(k): linear up to 1, logarithmic beyond. For a selector that sees the "
    "target, the smallest k is mostly selection luck; the excess takes this luck off, and adds the harm that foreign tokens do."
)


def _draw_smallest(axis: Axes, summaries: list[Summary], *, selectors: list[str]) -> None:
    """Draw the smallest k as steps of equal height, the last for more than the largest measured k; intervals as bars."""
    ks = summaries[-1].ks
    height = {k: i for i, k in enumerate(ks)} | {None: len(ks)}
    for number, selector in enumerate(selectors):
        offset = number - (len(selectors) - 1) / 2
        sizes, values, below, above = [], [], [], []
        for summary in summaries:
            smallest = summary.sparsity_at(selector, FRACTION).smallest_k
            if smallest is not None:
                sizes.append(summary.num_windows * (1 + 0.05 * offset))
                value, low, high = height[smallest.value], height[smallest.low], height[smallest.high]
                values.append(value + 0.09 * offset)
                below.append(value - low)
                above.append(high - value)
        axis.errorbar(
            sizes, values, yerr=[below, above], linestyle="-", linewidth=0.8, markersize=4, elinewidth=0.9, capsize=2,
            **LOOKS[selector],
        )  # fmt: skip
    axis.set_yticks(range(len(ks) + 1), [*(str(k) for k in ks), f">{ks[-1]}"])
    axis.set_ylim(-0.5, len(ks) + 0.5)
    axis.set_title(f"smallest k with R(k) at least {FRACTION}")
    axis.set_ylabel("k, long-range tokens")
    axis.set_xlabel("windows")


def _draw_long_gain(axis: Axes, summaries: list[Summary]) -> None:
    sizes = [summary.num_windows for summary in summaries]
    band(axis, sizes, estimates=[summary.long_gain_nats for summary in summaries], color="black", marker="o")
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set_title("long gain")
    axis.set_ylabel("mean long gain, nats")


def _draw_recovered_fraction(axis: Axes, summaries: list[Summary], *, selectors: list[str]) -> None:
    sizes, k = [summary.num_windows for summary in summaries], summaries[-1].ks[-1]
    for selector in selectors:
        fractions = [summary.at(selector, "real", k).recovered_fraction for summary in summaries]
        band(axis, sizes, estimates=fractions, **LOOKS[selector])
    signed_log(axis, "y")
    axis.axhline(1, color="black", linestyle="--", linewidth=0.9)
    axis.set_title(f"R({k})")
    axis.set_ylabel("recovered fraction")


def _write_failed_gates(axis: Axes, summaries: list[Summary]) -> None:
    """Write at which numbers of windows the gate failed, if at any."""
    failed = [summary.num_windows for summary in summaries if not summary.gate_passed]
    if not failed:
        return
    sizes = f"{', '.join(map(str, failed))} windows" if len(failed) < len(summaries) else "any number of windows"
    axis.text(
        0.02, 0.5, f"gate failed with\n{sizes}", transform=axis.transAxes, fontsize=7.5,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 1.5},  # the line at 1 may run behind it
    )  # fmt: skip


def draw(measured: Measured, out: Path) -> list[Path]:
    """Draw ``sample-size``."""
    summaries, selectors = by_sample_size(measured.measurement), main_selectors(measured.measurement)
    sizes = [summary.num_windows for summary in summaries]
    figure, places = plt.subplots(2, 2, figsize=(9.6, 6.2), sharex=True, layout="constrained")
    axes = list(places.flat)
    _draw_long_gain(axes[0], summaries)
    _draw_recovered_fraction(axes[1], summaries, selectors=selectors)
    _draw_smallest(axes[2], summaries, selectors=selectors)
    axes[3].axis("off")
    for axis in axes:
        axis.set_xscale("log")
        axis.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
        axis.set_xticks([], minor=True)
        if axis is not axes[0]:
            _write_failed_gates(axis, summaries)
    caption(figure, measured.summary, words=WORDS, handles=[legend_entry(name) for name in selectors])
    return save(figure, out, name="sample-size", one_column=1)


if __name__ == "__main__":
    script(draw)
