"""Sparse gain, gain over random, R(k) and excess against k, for every selector and control, with 95% intervals over documents."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from olmo_sparsity.statistics.measurement import Measurement

from .style import (
    CONTEXT_WORDS,
    LINE_LOOKS,
    LOOKS,
    caption,
    errors,
    legend_entry,
    ordered,
    save,
    say_gate_failed,
    script,
    signed_log,
)

PANELS = {
    "gain_sparse_nats": ("sparse gain", "mean sparse gain, nats", ("real", "null")),
    "recovered_fraction": ("R(k)", "recovered fraction of the long gain", ("real", "null")),
    "gain_over_random_nats": ("gain over random", "sparse gain minus that of random, nats", ("real",)),
    "excess_recovered_fraction": ("excess over the null context", "excess recovered fraction", ("real",)),
}


def _lines(
    axis: Axes, selectors: list[str], entries: list[dict[str, Any]], quantity: str, contexts: tuple[str, ...]
) -> None:
    for number, selector in enumerate(selectors):
        for context in contexts:
            rows = [
                e for e in entries if (e["selector"], e["context"]) == (selector, context) and e[quantity] is not None
            ]
            if not rows:
                continue
            spread = 1 + 0.022 * (number - (len(selectors) - 1) / 2)  # side by side on the logarithmic axis
            real = context == "real"
            axis.errorbar(
                [e["k"] * spread for e in rows], [e[quantity]["mean"] for e in rows], yerr=errors([e[quantity] for e in rows]),
                **LINE_LOOKS[context], markersize=4, linewidth=1.1 if real else 0.8, elinewidth=0.8, capsize=1.5,
                alpha=1.0 if real else 0.6, markerfacecolor=None if real else "white", **LOOKS[selector],
            )  # fmt: skip
    ks = sorted({entry["k"] for entry in entries})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ks, [str(k) for k in ks])
    axis.minorticks_off()
    axis.set_xlabel("k, unmasked long-range tokens")
    axis.axhline(0, color="grey", linewidth=0.5)


def draw(tables: Path, measurement: Measurement, summary: dict[str, Any], out: Path) -> list[Path]:
    """Writes ``recovered-fraction``."""
    selectors, entries = ordered(measurement), summary["selections"]
    figure, places = plt.subplots(2, 2, figsize=(9.6, 7), layout="constrained")
    for axis, (quantity, (title, label, contexts)) in zip(places.flat, PANELS.items(), strict=True):
        axis.set_title(title)
        axis.set_ylabel(label)
        if summary["gate"] == "failed" and quantity.endswith("fraction"):
            say_gate_failed(axis, summary)
            continue
        _lines(axis, selectors, entries, quantity, contexts)
        if quantity.endswith("fraction"):
            signed_log(axis, "y")
            axis.axhline(1, color="black", linestyle="--", linewidth=1)
    gain = summary["long_gain_nats"]
    for axis in places[:, 0]:
        axis.axhline(gain["mean"], color="black", linestyle="--", linewidth=1)
        if gain["low"] is not None:
            axis.axhspan(gain["low"], gain["high"], color="grey", alpha=0.25, linewidth=0)
    handles = [legend_entry(name) for name in selectors]
    handles += [Line2D([], [], color="black", label=CONTEXT_WORDS[c], **line) for c, line in LINE_LOOKS.items()]
    handles.append(Line2D([], [], color="black", linestyle="--", label="long gain"))
    caption(
        figure,
        summary,
        "Means with 95% intervals by bootstrap over documents. Dotted, open markers: the null context, where all gain is "
        "selection's own luck (and where foreign tokens may mislead). Fractions: linear up to 1, logarithmic beyond. Gain over "
        "random: real context, window by window; of a selector that does not see the target (kl, attention, nearest) it is no "
        "luck. Excess: real minus null, window by window; to be read beside that of random and nearest, which select nothing.",
        handles,
    )
    return save(figure, out, "recovered-fraction")


if __name__ == "__main__":
    script(draw)
