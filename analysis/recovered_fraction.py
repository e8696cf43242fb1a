"""Figure of sparse gain, gain over random, R(k) and excess against k, for every selector, with 95% intervals."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from olmo_sparsity.statistics.summary import FRACTIONS, Summary

from .measured import Measured, script
from .output import caption, save
from .style import (
    CONTEXT_WORDS,
    LINE_LOOKS,
    LOOKS,
    error_bars,
    legend_entry,
    ordered,
    signed_log,
    write_gate_failed,
)

WORDS = (
    "Means with 95% intervals by bootstrap over documents. Dotted, open markers: the null context, where all gain is selection "
    "luck (and where foreign tokens may mislead). Fractions: linear up to 1, logarithmic beyond. Gain over random: real "
    "context, window by window; for a selector that does not see the target (kl, attention, nearest) it is not luck. Excess: "
    "real minus null, window by window; compare it with that of random and nearest, which select nothing."
)


@dataclass(frozen=True)
class Panel:
    """What one panel shows.

    Attributes:
        quantity: name of the quantity, one of ``ESTIMATES``.
        title: title of the panel.
        label: label of its vertical axis.
        contexts: the contexts that are drawn.
    """

    quantity: str
    title: str
    label: str
    contexts: tuple[str, ...] = ("real",)


PANELS = (
    Panel("gain_sparse_nats", "sparse gain", "mean sparse gain, nats", ("real", "null")),
    Panel("recovered_fraction", "R(k)", "recovered fraction of the long gain", ("real", "null")),
    Panel("gain_over_random_nats", "gain over random", "sparse gain minus that of random, nats"),
    Panel("excess_gain_nats", "excess over the null context", "excess gain, nats"),
)


def _draw_line(axis: Axes, selector: str, *, panel: Panel, summary: Summary, context: str, spread: float) -> None:
    """Draw one selector in one context; ``spread`` separates the selectors on the logarithmic axis."""
    estimates = {k: summary.at(selector, context, k).estimate(panel.quantity) for k in summary.ks}
    drawn = {k: estimate for k, estimate in estimates.items() if estimate is not None}
    if not drawn:
        return
    is_real = context == "real"
    axis.errorbar(
        [k * spread for k in drawn], [estimate.mean for estimate in drawn.values()], yerr=error_bars(list(drawn.values())),
        **LINE_LOOKS[context], markersize=4, linewidth=1.1 if is_real else 0.8, elinewidth=0.8, capsize=1.5,
        alpha=1.0 if is_real else 0.6, markerfacecolor=None if is_real else "white", **LOOKS[selector],
    )  # fmt: skip


def _draw_panel(axis: Axes, panel: Panel, *, summary: Summary, selectors: list[str]) -> None:
    axis.set_title(panel.title)
    axis.set_ylabel(panel.label)
    if not summary.gate_passed and panel.quantity in FRACTIONS:
        write_gate_failed(axis, summary)
        return
    for number, selector in enumerate(selectors):
        spread = 1 + 0.022 * (number - (len(selectors) - 1) / 2)
        for context in panel.contexts:
            _draw_line(axis, selector, panel=panel, summary=summary, context=context, spread=spread)
    axis.set_xscale("log", base=2)
    axis.set_xticks(summary.ks, [str(k) for k in summary.ks])
    axis.minorticks_off()
    axis.set_xlabel("k, unmasked long-range tokens")
    axis.axhline(0, color="grey", linewidth=0.5)
    if panel.quantity in FRACTIONS:
        signed_log(axis, "y")
        axis.axhline(1, color="black", linestyle="--", linewidth=1)


def draw(measured: Measured, out: Path) -> list[Path]:
    """Draw ``recovered-fraction``."""
    summary, selectors = measured.summary, ordered(measured.measurement)
    figure, axes = plt.subplots(2, 2, figsize=(9.6, 7), layout="constrained")
    for axis, panel in zip(axes.flat, PANELS, strict=True):
        _draw_panel(axis, panel, summary=summary, selectors=selectors)
    gain = summary.long_gain_nats
    for axis in axes[:, 0]:
        axis.axhline(gain.mean, color="black", linestyle="--", linewidth=1)
        if gain.bounds is not None:
            axis.axhspan(*gain.bounds, color="grey", alpha=0.25, linewidth=0)
    handles = [legend_entry(name) for name in selectors]
    handles += [Line2D([], [], color="black", label=CONTEXT_WORDS[c], **line) for c, line in LINE_LOOKS.items()]
    handles.append(Line2D([], [], color="black", linestyle="--", label="long gain"))
    caption(figure, summary, words=WORDS, handles=handles)
    return save(figure, out, name="recovered-fraction")


if __name__ == "__main__":
    script(draw)
