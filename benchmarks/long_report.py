"""The table and the figures of ``benchmarks.long_peers``."""

from __future__ import annotations

import math
from pathlib import Path
from statistics import fmean, median
from typing import Any

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from rich.table import Table

from benchmarks.long_methods import CAPTUM, EXACT, WHOSE
from benchmarks.long_problems import K

COLORS = {
    "ours": "#0072B2", "AttriBoT": "#D55E00", "ContextCite": "#009E73", "captum": "#444444", "cache policy": "#CC79A7",
}  # fmt: skip
MARKERS = "os^Dv<>ph*X"
AIM_RECALL, AIM_TIMES = 0.95, 300  # what the comparison aims at: at so much recall, so many times cheaper than plain
TITLES = {
    "tokens": "unmasking one token of the long-range text (contextual visibility)",
    "sentences": "leaving out one sentence of the long-range text (hidden visibility)",
}
MEASURES = {
    "recall": f"recall at {K}",
    "rank_correlation": "rank correlation",
    "gain_lost_nats": "gain lost, nats",
    "prediction_recovered": f"D({K})",
}


def family(method: str) -> str:
    """Return who proposed a method; exact scores may follow its ranking."""
    return WHOSE[method.partition(", best ")[0]]


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if len(known) == len(values) else None


def _times(compared: list[dict[str, Any]], found: list[dict[str, Any]], *, cost: str) -> float | None:
    """Return how many times as much one method costs as another, by medians over the windows that both ran on; None: on none."""
    common = {row["window"] for row in compared} & {row["window"] for row in found}
    if not common:
        return None
    of_compared, of_found = (median(row[cost] for row in rows if row["window"] in common) for rows in (compared, found))
    return of_compared / of_found if of_found else None


def summarize(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one row for each quantity, size and method: medians of the cost, means of the fidelity over windows."""
    summary = []
    keys = dict.fromkeys((row["quantity"], row["size"], row["method"]) for row in rows)
    of_key = {key: [row for row in rows if (row["quantity"], row["size"], row["method"]) == key] for key in keys}
    for (quantity, size, method), found in of_key.items():
        costs = {name: median(row[name] for row in found) for name in ("seconds", "tokens")}
        entry = {"quantity": quantity, "size": size, "method": method, "windows": len(found), **costs}
        for name, reference in (("times_plain", CAPTUM), ("times_exact", EXACT)):
            compared = of_key.get((quantity, size, reference))
            for cost in ("seconds", "tokens"):
                entry[f"{name}_{cost}"] = _times(compared or [], found, cost=cost)
        for name in ("recall", "rank_correlation", "gain_lost_nats", "gain_nats"):
            entry[name] = _mean([row[name] for row in found])
        entry["prediction_recovered"] = 1 - fmean(row["kl_nats"] for row in found) / fmean(
            row["kl_short_nats"] for row in found
        )
        entry["groups"] = median(row["groups"] for row in found)
        entry["num_extrapolated"] = sum(row["num_timed"] is not None for row in found)
        differences = [row["largest_difference_nats"] for row in found if row["largest_difference_nats"] is not None]
        entry["largest_difference_nats"] = max(differences, default=None)
        summary.append(entry)
    return summary


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def table(summary: list[dict[str, Any]], *, quantity: str, size: int) -> Table:
    """Return the table of one quantity and size, the fastest method last."""
    entries = [entry for entry in summary if (entry["quantity"], entry["size"]) == (quantity, size)]
    entries.sort(key=lambda entry: -entry["tokens"])
    number, groups = entries[0]["windows"], entries[0]["groups"]
    notes = []
    if any(entry["num_extrapolated"] for entry in entries):
        notes.append("* the exact quantity; its cost is extrapolated by count from a few groups")
    for entry in entries:
        if entry["largest_difference_nats"] is not None:
            notes.append(f"{entry['method']}: at most {entry['largest_difference_nats']:.0e} nats from ours")
    shown = Table(
        "method", "CPU seconds", "tokens", "times plain, s", "times plain, tokens", "times exact, tokens", "recall at 8",
        "rank corr.", "gain lost, nats", "D(8)",
        title=f"{size} tokens, {number} windows, {groups:g} {quantity} each (median cost, mean fidelity): {TITLES[quantity]}",
        caption="; ".join(notes),
    )  # fmt: skip
    for column in shown.columns[1:]:
        column.justify = "right"
    for entry in entries:
        star = "*" if entry["num_extrapolated"] else ""
        shown.add_row(
            entry["method"],
            _number(entry["seconds"], 1) + star,
            _number(entry["tokens"], 0) + star,
            _number(entry["times_plain_seconds"], 1),
            _number(entry["times_plain_tokens"], 1),
            _number(entry["times_exact_tokens"], 1),
            _number(entry["recall"], 2),
            _number(entry["rank_correlation"], 2),
            _number(entry["gain_lost_nats"], 3),
            _number(entry["prediction_recovered"], 2),
        )
    return shown


def _value(row: dict[str, Any], measure: str) -> float | None:
    if measure == "prediction_recovered":
        return 1 - row["kl_nats"] / row["kl_short_nats"]
    return row[measure]


def _looks(names: list[str]) -> dict[str, dict[str, Any]]:
    """Return colour, marker and fill of each method; methods of a family share the colour."""
    seen: dict[str, int] = {}
    looks: dict[str, dict[str, Any]] = {}
    for name in names:
        whose = family(name)
        number = seen.setdefault(whose, 0)
        looks[name] = {
            "color": COLORS[whose],
            "marker": MARKERS[number % len(MARKERS)],
            "markerfacecolor": COLORS[whose] if number < len(MARKERS) else "white",
            "linestyle": "none",
        }
        seen[whose] += 1
    return looks


def draw_recall(rows: list[dict[str, Any]], path: Path) -> None:
    """Draw the tokens that the model runs for a window against recall: a row of panels each quantity, a column each size."""
    summary = summarize(rows)
    quantities, sizes = (sorted({entry[name] for entry in summary}) for name in ("quantity", "size"))
    figure, axes = plt.subplots(
        len(quantities),
        len(sizes),
        figsize=(2.7 * len(sizes) + 2.2, 3.1 * len(quantities) + 0.3),
        layout="constrained",
        squeeze=False,
        sharey=True,
    )
    for row, quantity in enumerate(reversed(quantities)):  # tokens first
        of_quantity = [entry for entry in summary if entry["quantity"] == quantity]
        looks = _looks(list(dict.fromkeys(entry["method"] for entry in of_quantity)))
        for axis, size in zip(axes[row], sizes, strict=True):
            of_size = [entry for entry in of_quantity if entry["size"] == size]
            for entry in of_size:
                axis.plot(
                    entry["tokens"],
                    entry["recall"],
                    label=entry["method"],
                    alpha=0.8,
                    markersize=6,
                    **looks[entry["method"]],
                )
            axis.axhline(AIM_RECALL, color="#999999", linewidth=0.8, linestyle=":")
            plain = [entry["tokens"] for entry in of_size if entry["method"] == CAPTUM]
            for tokens in plain:
                axis.axvline(tokens / AIM_TIMES, color="#999999", linewidth=0.8, linestyle=":")
            axis.set(xscale="log", ylim=(-0.05, 1.05))
            if of_size:  # whole powers of ten, so that each axis has at least two labels
                least, most = (limit(entry["tokens"] for entry in of_size) for limit in (min, max))
                left = min([least, *(tokens / AIM_TIMES for tokens in plain)])
                axis.set_xlim(10.0 ** math.floor(math.log10(left / 1.2)), 10.0 ** math.ceil(math.log10(1.2 * most)))
            axis.grid(alpha=0.3)
            if of_size:
                number = of_size[0]["windows"]
                axis.set_title(f"{size} tokens, {number} window{'s' * (number > 1)}", fontsize=9)
        axes[row, 0].set_ylabel(f"{quantity}: recall at {K}")
        handles: dict[str, Any] = {}
        for axis in axes[row]:
            handles.update(zip(*reversed(axis.get_legend_handles_labels()), strict=True))
        axes[row, -1].legend(
            handles.values(), handles.keys(), loc="center left", bbox_to_anchor=(1.02, 0.5), fontsize=7
        )
    for axis in axes[-1]:
        axis.set_xlabel("tokens that the model runs")
    figure.suptitle(f"Dotted: recall {AIM_RECALL}, and {AIM_TIMES} times fewer tokens than captum", fontsize=9)
    for suffix in (".png", ".pdf"):
        figure.savefig(path.with_suffix(suffix), dpi=110)
    plt.close(figure)


def draw(rows: list[dict[str, Any]], quantity: str, path: Path) -> None:
    """Draw seconds a window against fidelity: a row of panels each measure, a column each size; the table, and faint windows."""
    means = {(entry["size"], entry["method"]): entry for entry in summarize(rows) if entry["quantity"] == quantity}
    of_quantity = [row for row in rows if row["quantity"] == quantity]
    sizes = sorted({row["size"] for row in of_quantity})
    names = list(dict.fromkeys(row["method"] for row in of_quantity))
    looks = _looks(names)
    figure, axes = plt.subplots(
        len(MEASURES),
        len(sizes),
        figsize=(4.2 * len(sizes) + 3, 2.6 * len(MEASURES)),
        layout="constrained",
        squeeze=False,
    )
    for column, size in enumerate(sizes):
        for axis, (measure, label) in zip(axes[:, column], MEASURES.items(), strict=True):
            for name in names:
                points = [
                    (row["seconds"], value)
                    for row in of_quantity
                    if (row["size"], row["method"]) == (size, name) and (value := _value(row, measure)) is not None
                ]
                if not points:
                    continue
                seconds, values = zip(*points, strict=True)
                axis.plot(seconds, values, alpha=0.2, markersize=3, **looks[name])
                mean = means[size, name]
                if mean[measure] is not None:  # it is where some window has none
                    axis.plot(mean["seconds"], mean[measure], markersize=6, label=name, **looks[name])
            axis.set_xscale("log")
            axis.grid(alpha=0.3)
            axis.set_ylabel(label)
        axes[0, column].set_title(f"{size} tokens", fontsize=10)
        axes[-1, column].set_xlabel("CPU seconds a window, one thread")
    handles = {}
    for axis in axes.flat:
        handles.update(dict(zip(*axis.get_legend_handles_labels()[::-1], strict=True)))
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=7)
    title, _, where = TITLES[quantity].partition(" (")
    number = max(entry["windows"] for entry in means.values())
    figure.suptitle(
        f"{title}\n({where}\nmeans of {number} windows at most, median seconds; faint: single windows", fontsize=9
    )
    for suffix in (".png", ".pdf"):
        figure.savefig(path.with_suffix(suffix), dpi=150)
    plt.close(figure)
