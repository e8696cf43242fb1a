"""Scale: long gain, R(k) and effective sparsity against the number of parameters, a point a run.

``python -m analysis.scale --run runs/scale/cpu-d64 --run runs/scale/cpu-d128 ... --out runs/scale/figures``
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.differences import paired_difference
from olmo_sparsity.statistics.measurement import Measurement, load
from olmo_sparsity.statistics.summary import summarize
from olmo_sparsity.statistics.wording import interval, length_words
from olmo_sparsity.tables.reading import newest_finished, read_manifest

from .runs import script_of_runs
from .style import LINE_LOOKS, LOOKS, caption_text, errors, legend_entry, main_selectors, save, signed_log


def _points(axis: Axes, sizes: list[float], values: list[Any], shift: float, **look: Any) -> None:
    """Estimates with their intervals, joined by a line; what is missing leaves a gap."""
    there = [(size * shift, value) for size, value in zip(sizes, values, strict=True) if value is not None]
    if there:
        found = [value for _, value in there]
        means = [value["mean"] for value in found]
        axis.errorbar(
            [x for x, _ in there], means, yerr=errors(found), capsize=2, markersize=4.5, linewidth=1.2, **look
        )


def _smallest(axis: Axes, sizes: list[float], found: list[Any], selector: str, max_k: int, shift: float) -> None:
    """Smallest k and its interval; more than the largest measured k stands at twice that."""
    for size, one in zip(sizes, found, strict=True):
        if one is not None:
            value, *bounds = (2 * max_k if one[key] is None else one[key] for key in ("value", "low", "high"))
            axis.plot([size * shift] * 2, bounds, color=LOOKS[selector]["color"], linewidth=1.2)
            axis.plot(size * shift, value, **LOOKS[selector], markersize=5)


def ladder(runs: list[Path]) -> tuple[list[float], list[Measurement]]:
    """(parameters, newest measurement) of each run, the smallest first.

    Raises:
        UserError: a run has none, or they differ in more than size: in windows, lengths, PoSE, k or selectors.
    """
    rungs = []
    for run in runs:
        folder = newest_finished(run)
        facts = read_manifest(folder)
        rungs.append((float(facts["num_parameters"]), facts, load(folder)))
    for what, of in (
        ("windows", lambda facts: (facts["tokens_sha256"], facts["windows_sha256"])),
        ("lengths", lambda facts: facts["context"]),
        ("PoSE settings", lambda facts: facts["pose"]),
        ("k", lambda facts: facts["influence"]["k"]),
        ("selectors", lambda facts: facts["influence"]["selectors"]),
        ("numbers of training steps", lambda facts: facts["checkpoint"]["step"]),
    ):
        if any(of(facts) != of(rungs[0][1]) for _, facts, _ in rungs):
            raise UserError(f"these runs' newest measurements are of different {what}; a ladder differs in size alone")
    rungs.sort(key=lambda rung: rung[0])
    return [size for size, _, _ in rungs], [measurement for _, _, measurement in rungs]


def draw(runs: list[Path], out: Path) -> list[Path]:
    """Writes ``scale``, of the newest measurement of each run.

    Raises:
        UserError: they make no ladder.
    """
    sizes, measurements = ladder(runs)
    numbers = [summarize(measurement) for measurement in measurements]
    ks, selectors = measurements[0].ks, main_selectors(measurements[0])
    figure, axes = plt.subplots(2, 3, figsize=(10.6, 6.0), layout="constrained")
    _points(axes[0, 0], sizes, [n["long_gain_nats"] for n in numbers], 1.0, color="black", marker="D")
    axes[0, 0].axhline(0, color="grey", linewidth=0.5)
    axes[0, 0].set_title("long gain")
    axes[0, 0].set_ylabel("nats")
    shifts = {name: 1 + 0.03 * (i - (len(selectors) - 1) / 2) for i, name in enumerate(selectors)}
    for axis, quantity, k, contexts, title, unit in (
        (axes[0, 1], "recovered_fraction", ks[-1], ("real", "null"), f"R({ks[-1]})", "recovered fraction"),
        (axes[0, 2], "excess_recovered_fraction", ks[-1], ("real",), f"excess over null, k = {ks[-1]}", "excess fraction"),
        (axes[1, 0], "gain_over_random_nats", ks[0], ("real",), f"gain over random, k = {ks[0]}", "nats"),
    ):  # fmt: skip
        for selector in selectors:
            for context in contexts:
                wanted = [
                    next(e for e in n["selections"] if (e["selector"], e["context"], e["k"]) == (selector, context, k))
                    for n in numbers
                ]
                face = {"markerfacecolor": "white"} if context == "null" else {}
                values = [entry[quantity] for entry in wanted]
                _points(axis, sizes, values, shifts[selector], **LOOKS[selector], **LINE_LOOKS[context], **face)
        axis.axhline(1 if quantity.endswith("fraction") else 0, color="grey", linewidth=0.8, linestyle="--")
        if quantity.endswith("fraction"):
            signed_log(axis, "y")
        axis.set_title(title)
        axis.set_ylabel(unit)
    for axis, key, title in (
        (axes[1, 1], "smallest_k", "smallest k with R(k) at least 0.8"),
        (axes[1, 2], "smallest_k_excess", "smallest k with excess fraction at least 0.8"),
    ):
        for selector in selectors:
            found = [
                next(e for e in n["effective_sparsity"] if (e["selector"], e["fraction"]) == (selector, 0.8))[key]
                for n in numbers
            ]
            _smallest(axis, sizes, found, selector, ks[-1], shifts[selector])
        axis.set_title(title)
        axis.set_yscale("log", base=2)
        axis.set_yticks([*ks, 2 * ks[-1]], [*map(str, ks), f">{ks[-1]}"])
        axis.set_ylim(ks[0] / 1.3, 2.6 * ks[-1])
        axis.set_ylabel("k, long-range tokens")
    for axis in axes.flat:
        axis.set_xscale("log")
        axis.set_xlim(sizes[0] / 1.4, sizes[-1] * 1.4)
        axis.set_xticks(sizes, [f"{size / 1e6:.2g}M" for size in sizes])
        axis.minorticks_off()
    for axis in axes[1]:
        axis.set_xlabel("parameters")
    failed = [f"{size / 1e6:.2g}M" for size, n in zip(sizes, numbers, strict=True) if n["gate"] == "failed"]
    gate = (
        f"VALIDITY GATE FAILED at {', '.join(failed)}: no R(k) there."
        if failed
        else "The validity gate passed everywhere."
    )
    change = paired_difference(measurements[0], measurements[-1])
    words = [f"long gain {interval(change['long_gain_nats'], 3)}"]
    for name in ("kl", "attention"):
        over_random = change.get(((name, "real", ks[0]), "gain_over_random_nats"))
        if over_random is not None:
            words.append(f"gain over random of {name}, k = {ks[0]}, {interval(over_random, 3)}")
    caption_text(
        figure,
        f"{gate} Largest minus smallest, paired, nats: {'; '.join(words)}. Bars: 95% intervals by bootstrap over documents; the "
        "seed of training is not varied. Dotted, open: the null context. Of a selector that sees the target, R(k) and the "
        "smallest k are mostly luck; the excess takes that off, and adds what foreign tokens mislead. Fractions: linear up to "
        "1, logarithmic beyond. "
        f"{numbers[0]['num_windows']} windows of {numbers[0]['num_documents']} documents ({numbers[0]['source']}, "
        f"{numbers[0]['split']}); {length_words(numbers[0])}",
        [legend_entry(name) for name in selectors],
    )
    return save(figure, out, "scale")


if __name__ == "__main__":
    script_of_runs(draw)
