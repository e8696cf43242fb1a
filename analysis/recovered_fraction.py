"""Sparse gain and R(k) against k, for every selector and control, with 95% intervals over documents."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.style import CONTEXT_WORDS, LINE_LOOKS, LOOKS, caption, gate_reason, save, script
from olmo_sparsity.statistics import Measurement


def _lines(axis: Axes, entries: list[dict[str, Any]], quantity: str, contexts: tuple[str, ...]) -> None:
    selectors = list(dict.fromkeys(entry["selector"] for entry in entries))
    for number, selector in enumerate(selectors):
        for context in contexts:
            rows = [
                e for e in entries if (e["selector"], e["context"]) == (selector, context) and e[quantity] is not None
            ]
            if not rows:
                continue
            spread = 1 + 0.018 * (number - (len(selectors) - 1) / 2)  # side by side on the logarithmic axis
            means = [e[quantity]["mean"] for e in rows]
            errors = None
            if rows[0][quantity]["low"] is not None:
                errors = [
                    [e[quantity]["mean"] - e[quantity]["low"] for e in rows],
                    [e[quantity]["high"] - e[quantity]["mean"] for e in rows],
                ]
            axis.errorbar(
                [e["k"] * spread for e in rows], means, yerr=errors, **LINE_LOOKS[context], markersize=4.5,
                linewidth=1.2, capsize=2, markerfacecolor="white" if context == "null" else None, **LOOKS[selector],
            )  # fmt: skip
    ks = sorted({entry["k"] for entry in entries})
    axis.set_xscale("log", base=2)
    axis.set_xticks(ks, [str(k) for k in ks])
    axis.minorticks_off()
    axis.set_xlabel("k, unmasked long-range tokens")
    axis.axhline(0, color="grey", linewidth=0.5)


def draw(tables: Path, measurement: Measurement, summary: dict[str, Any], out: Path) -> list[Path]:
    """Writes ``recovered-fraction``."""
    entries = summary["selections"]
    figure, places = plt.subplot_mosaic(
        [["gain", "fraction", "excess"], ["legend"] * 3],
        height_ratios=[1, 0.07],
        figsize=(9.6, 3.7),
        layout="constrained",
    )
    axes = [places[name] for name in ("gain", "fraction", "excess")]
    _lines(axes[0], entries, "gain_sparse_nats", ("real", "null"))
    gain = summary["long_gain_nats"]
    axes[0].axhline(gain["mean"], color="black", linestyle="--", linewidth=1)
    if gain["low"] is not None:
        axes[0].axhspan(gain["low"], gain["high"], color="grey", alpha=0.25, linewidth=0)
    axes[0].set_ylabel("mean sparse gain, nats")
    axes[0].set_title("sparse gain")
    for axis, quantity, title, label, contexts in (
        (axes[1], "recovered_fraction", "R(k)", "recovered fraction of the long gain", ("real", "null")),
        (axes[2], "excess_recovered_fraction", "excess over the null context", "excess recovered fraction", ("real",)),
    ):
        axis.set_title(title)
        axis.set_ylabel(label)
        if summary["gate"] == "failed":
            axis.text(
                0.5,
                0.5,
                "gate failed:\n" + "\n".join(textwrap.wrap(gate_reason(summary), 24)),
                ha="center",
                va="center",
                transform=axis.transAxes,
            )
            axis.set_xticks([])
            axis.set_yticks([])
            continue
        _lines(axis, entries, quantity, contexts)
        axis.axhline(1, color="black", linestyle="--", linewidth=1)
    selectors = list(dict.fromkeys(entry["selector"] for entry in entries))
    handles = [Line2D([], [], linestyle="-", markersize=4.5, label=name, **LOOKS[name]) for name in selectors]
    handles += [Line2D([], [], color="black", label=CONTEXT_WORDS[c], **line) for c, line in LINE_LOOKS.items()]
    handles.append(Line2D([], [], color="black", linestyle="--", label="long gain"))
    places["legend"].axis("off")
    places["legend"].legend(handles=handles, loc="center", ncols=len(handles), fontsize=7.5)
    caption(
        figure,
        summary,
        "Means with 95% intervals by bootstrap over documents. Dotted, open markers: the null context, where all gain is "
        "selection's own luck (and where foreign tokens may mislead). Excess: real minus null, window by window; to be read "
        "beside that of random and nearest, which select nothing.",
    )
    return save(figure, out, "recovered-fraction")


if __name__ == "__main__":
    script(draw)
