"""Scale: long gain, R(k) and effective sparsity against the number of parameters, a point a run.

``python -m analysis.scale --run runs/scale/cpu-d64 --run runs/scale/cpu-d128 ... --out runs/scale/figures``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from analysis.runs import script_of_runs
from analysis.style import LOOKS, caption_text, save
from olmo_sparsity.statistics import length_words, load, summarize
from olmo_sparsity.tables import UserError, list_finished, read_facts

SHOWN = ("unmask-one", "kl", "random")


def _points(axis: Axes, sizes: list[float], values: list[Any], shift: float, **look: Any) -> None:
    """Estimates with their intervals, joined by a line; what is missing leaves a gap."""
    there = [(size * shift, value) for size, value in zip(sizes, values, strict=True) if value is not None]
    if not there:
        return
    x, y = [size for size, _ in there], [value["mean"] for _, value in there]
    bounded = all(value["low"] is not None for _, value in there)
    errors = [[v["mean"] - v["low"] for _, v in there], [v["high"] - v["mean"] for _, v in there]] if bounded else None
    axis.errorbar(x, y, yerr=errors, capsize=2, markersize=4.5, linewidth=1.2, **look)


def _smallest(axis: Axes, sizes: list[float], found: list[Any], selector: str, max_k: int, shift: float) -> None:
    """Smallest k and its interval; more than the largest measured k stands at twice that."""
    for size, one in zip(sizes, found, strict=True):
        if one is None:
            continue
        value, *bounds = (2 * max_k if one[key] is None else one[key] for key in ("value", "low", "high"))
        axis.plot([size * shift] * 2, bounds, color=LOOKS[selector]["color"], linewidth=1.2)
        axis.plot(size * shift, value, **LOOKS[selector], markersize=5)


def draw(runs: list[Path], out: Path) -> list[Path]:
    """Writes ``scale``, of the newest measurement of each run.

    Raises:
        UserError: a run has none, or the runs were measured on different text or lengths.
    """
    summaries, sizes = [], []
    for run in runs:
        finished = list_finished(run)
        if not finished:
            raise UserError(f"{run}: nothing has been measured in this run; run `olmo-sparsity influence` first")
        facts = read_facts(finished[-1])
        summaries.append((summarize(load(finished[-1])), facts))
        sizes.append(float(facts["num_parameters"]))
    alike = {(f["tokens_sha256"], f["context"]["local_len"], f["context"]["full_len"]) for _, f in summaries}
    if len(alike) > 1:
        raise UserError(
            "these runs were measured on different text or lengths, so that they make no ladder; name runs that differ in "
            "size alone"
        )
    order = sorted(range(len(runs)), key=lambda i: sizes[i])
    sizes, numbers = [sizes[i] for i in order], [summaries[i][0] for i in order]
    max_k = max(e["k"] for e in numbers[0]["selections"])
    selectors = [name for name in SHOWN if any(e["selector"] == name for e in numbers[0]["selections"])]
    figure, axes = plt.subplots(1, 4, figsize=(12.4, 3.4), layout="constrained")
    _points(axes[0], sizes, [n["long_gain_nats"] for n in numbers], 1.0, color="black", marker="D")
    axes[0].axhline(0, color="grey", linewidth=0.5)
    axes[0].set_title("long gain")
    axes[0].set_ylabel("nats")

    def entry(summary: dict[str, Any], selector: str, context: str, k: int) -> dict[str, Any]:
        wanted = (selector, context, k)
        return next(e for e in summary["selections"] if (e["selector"], e["context"], e["k"]) == wanted)

    for axis, quantity, k, title in (
        (axes[1], "recovered_fraction", max_k, f"R({max_k}); dotted: null context"),
        (axes[2], "gain_over_random_nats", 1, "sparse gain over random, k = 1"),
    ):
        for i, selector in enumerate(selectors):
            shift = 1 + 0.03 * (i - 1)
            for context, line in (("real", "-"), ("null", ":")):
                if selector == "random" and quantity == "gain_over_random_nats":
                    continue
                values = [entry(n, selector, context, k)[quantity] for n in numbers]
                face = LOOKS[selector]["color"] if context == "real" else "white"
                _points(axis, sizes, values, shift, **LOOKS[selector], linestyle=line, markerfacecolor=face)
        axis.axhline(1 if quantity == "recovered_fraction" else 0, color="grey", linewidth=0.5)
        axis.set_title(title)
    axes[2].set_ylabel("nats")
    for i, selector in enumerate(selectors):
        found = [
            next(e for e in n["effective_sparsity"] if (e["selector"], e["fraction"]) == (selector, 0.8))["smallest_k"]
            for n in numbers
        ]
        _smallest(axes[3], sizes, found, selector, max_k, 1 + 0.03 * (i - 1))
    axes[3].set_title("effective sparsity: smallest k with R(k) at least 0.8")
    ks = sorted({e["k"] for e in numbers[0]["selections"]})
    axes[3].set_yscale("log", base=2)
    axes[3].set_yticks([*ks, 2 * max_k], [*map(str, ks), f"> {max_k}"])
    axes[3].set_ylim(ks[0] / 1.3, 2.6 * max_k)
    for axis in axes:
        axis.set_xscale("log")
        axis.set_xlim(sizes[0] / 1.4, sizes[-1] * 1.4)
        axis.set_xticks(sizes, [f"{size / 1e6:.3g}M" for size in sizes])
        axis.minorticks_off()
        axis.set_xlabel("parameters")
    handles = [Line2D([], [], markersize=4.5, label=name, **LOOKS[name]) for name in selectors]
    axes[1].legend(handles=handles, fontsize=7)
    failed = [f"{size / 1e6:.3g}M" for size, n in zip(sizes, numbers, strict=True) if n["gate"] == "failed"]
    gate = (
        f"VALIDITY GATE FAILED at {', '.join(failed)}: no R(k) there. "
        if failed
        else "The validity gate passed at every size. "
    )
    caption_text(
        figure,
        f"{gate}Bars: 95% intervals by bootstrap over documents (the models' own seeds are not varied). "
        f"{numbers[0]['num_windows']} windows of {numbers[0]['num_documents']} documents ({numbers[0]['source']}, "
        f"{numbers[0]['split']}); {length_words(numbers[0])}",
    )
    return save(figure, out, "scale")


if __name__ == "__main__":
    script_of_runs(draw)
