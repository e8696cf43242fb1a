"""Figure of scale: long gain, R(k) and effective sparsity against the number of parameters, one point for each run.

``python -m analysis.scale --run runs/scale/cpu-d64 --run runs/scale/cpu-d128 ... --out runs/scale/figures``
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.differences import paired_difference
from olmo_sparsity.statistics.effective_sparsity import SmallestK
from olmo_sparsity.statistics.estimate import Estimate
from olmo_sparsity.statistics.measurement import Measurement, SelectionKey, load
from olmo_sparsity.statistics.summary import FRACTIONS, Summary, summarize
from olmo_sparsity.statistics.wording import data_words, interval, length_words
from olmo_sparsity.tables.reading import newest_finished

from .output import caption_text, save
from .runs import script_of_runs
from .style import LINE_LOOKS, LOOKS, error_bars, legend_entry, main_selectors, signed_log

FRACTION = 0.8


@dataclass(frozen=True)
class Rung:
    """One run of the ladder.

    Attributes:
        num_parameters: size of its model.
        measurement: its newest measurement.
        summary: the numbers of that.
    """

    num_parameters: float
    measurement: Measurement
    summary: Summary

    @property
    def name(self) -> str:
        """The size in words."""
        return f"{self.num_parameters / 1e6:.2g}M"


@dataclass(frozen=True)
class Panel:
    """What a panel of gains or fractions shows; ``quantity`` is one of ``ESTIMATES``."""

    quantity: str
    k: int
    contexts: tuple[str, ...]
    title: str
    label: str


def ladder(runs: list[Path]) -> list[Rung]:
    """Return the newest measurements of the runs, the smallest model first.

    Raises:
        UserError: a run has no measurement, or they differ in more than size: in windows, lengths, PoSE, k or selectors.
    """
    measurements = [load(newest_finished(run)) for run in runs]
    manifests = [measurement.manifest for measurement in measurements]
    for name, values in (
        ("windows", [(m["tokens_sha256"], m["windows_sha256"]) for m in manifests]),
        ("lengths", [m["context"] for m in manifests]),
        ("PoSE settings", [m["pose"] for m in manifests]),
        ("k", [m["influence"]["k"] for m in manifests]),
        ("selectors", [m["influence"]["selectors"] for m in manifests]),
        ("numbers of training steps", [m["checkpoint"]["step"] for m in manifests]),
    ):
        if any(value != values[0] for value in values):
            raise UserError(f"these runs' newest measurements are of different {name}; a ladder differs in size alone")
    measurements.sort(key=lambda measurement: float(measurement.manifest["num_parameters"]))
    return [Rung(float(m.manifest["num_parameters"]), m, summarize(m)) for m in measurements]


def _draw_line(axis: Axes, sizes: list[float], *, values: Sequence[Optional[Estimate]], **look: Any) -> None:
    """Draw estimates with their intervals, joined by a line; a missing one leaves a gap."""
    defined = [(size, value) for size, value in zip(sizes, values, strict=True) if value is not None]
    if defined:
        estimates = [value for _, value in defined]
        means = [estimate.mean for estimate in estimates]
        axis.errorbar(
            [x for x, _ in defined], means, yerr=error_bars(estimates), capsize=2, markersize=4.5, linewidth=1.2, **look
        )


def _shifts(selectors: list[str]) -> dict[str, float]:
    """Return the factors that separate the selectors on the logarithmic axis."""
    return {name: 1 + 0.03 * (i - (len(selectors) - 1) / 2) for i, name in enumerate(selectors)}


def _draw_panel(axis: Axes, panel: Panel, *, rungs: list[Rung], selectors: list[str]) -> None:
    for selector, shift in _shifts(selectors).items():
        sizes = [rung.num_parameters * shift for rung in rungs]
        for context in panel.contexts:
            face = {"markerfacecolor": "white"} if context == "null" else {}
            values = [rung.summary.at(selector, context, panel.k).estimate(panel.quantity) for rung in rungs]
            _draw_line(axis, sizes, values=values, **LOOKS[selector], **LINE_LOOKS[context], **face)
    is_fraction = panel.quantity in FRACTIONS
    axis.axhline(1 if is_fraction else 0, color="grey", linewidth=0.8, linestyle="--")
    if is_fraction:
        signed_log(axis, "y")
    axis.set_title(panel.title)
    axis.set_ylabel(panel.label)


def _draw_smallest(axis: Axes, rungs: list[Rung], *, selectors: list[str]) -> None:
    """Draw the smallest k and its interval; more than the largest measured k stands at twice that."""
    ks = rungs[0].measurement.ks
    for selector, shift in _shifts(selectors).items():
        for rung in rungs:
            smallest = rung.summary.sparsity_at(selector, FRACTION).smallest_k
            if smallest is not None:
                _draw_smallest_k(axis, rung.num_parameters * shift, smallest=smallest, max_k=ks[-1], selector=selector)
    axis.set_title(f"smallest k with R(k) at least {FRACTION}")
    axis.set_yscale("log", base=2)
    axis.set_yticks([*ks, 2 * ks[-1]], [*map(str, ks), f">{ks[-1]}"])
    axis.set_ylim(ks[0] / 1.3, 2.6 * ks[-1])
    axis.set_ylabel("k, long-range tokens")


def _draw_smallest_k(axis: Axes, x: float, *, smallest: SmallestK, max_k: int, selector: str) -> None:
    value, low, high = (2 * max_k if k is None else k for k in (smallest.value, smallest.low, smallest.high))
    axis.plot([x, x], [low, high], color=LOOKS[selector]["color"], linewidth=1.2)
    axis.plot(x, value, **LOOKS[selector], markersize=5)


def _set_axes(axes: np.ndarray, rungs: list[Rung]) -> None:
    sizes = [rung.num_parameters for rung in rungs]
    for axis in axes.flat:
        axis.set_xscale("log")
        axis.set_xlim(sizes[0] / 1.4, sizes[-1] * 1.4)
        axis.set_xticks(sizes, [rung.name for rung in rungs])
        axis.minorticks_off()
    for axis in axes[1]:
        axis.set_xlabel("parameters")


def _words(rungs: list[Rung]) -> str:
    failed = [rung.name for rung in rungs if not rung.summary.gate_passed]
    gate = "The validity gate passed everywhere."
    if failed:
        gate = f"VALIDITY GATE FAILED at {', '.join(failed)}: no R(k) there."
    k, change = rungs[0].measurement.ks[0], paired_difference(rungs[0].measurement, rungs[-1].measurement)
    changes = [f"long gain {interval(change.of_windows('long_gain_nats'), 3)}"]
    for name in ("kl", "attention"):
        over_random = change.of_selection(SelectionKey(name, "real", k), "gain_over_random_nats")
        if over_random is not None:
            changes.append(f"gain over random of {name}, k = {k}, {interval(over_random, 3)}")
    summary = rungs[0].summary
    return (
        f"{gate} Largest minus smallest, paired, nats: {'; '.join(changes)}. Bars: 95% intervals by bootstrap over documents; "
        "the seed of training is not varied. Dotted, open: the null context. For a selector that sees the target, R(k) and "
        "the smallest k are mostly selection luck; the excess takes this luck off, and adds the harm that foreign tokens do. "
        f"Fractions: linear up to 1, logarithmic beyond. {data_words(summary)}; {length_words(summary.lengths)}"
    )


def draw(runs: list[Path], out: Path) -> list[Path]:
    """Draw ``scale``, of the newest measurement of each run.

    Raises:
        UserError: the runs differ in more than size.
    """
    rungs = ladder(runs)
    ks, selectors = rungs[0].measurement.ks, main_selectors(rungs[0].measurement)
    first, last = ks[0], ks[-1]
    figure, axes = plt.subplots(2, 3, figsize=(10.6, 6.0), layout="constrained")
    sizes, long_gains = [rung.num_parameters for rung in rungs], [rung.summary.long_gain_nats for rung in rungs]
    _draw_line(axes[0, 0], sizes, values=long_gains, color="black", marker="D")
    axes[0, 0].axhline(0, color="grey", linewidth=0.5)
    axes[0, 0].set_title("long gain")
    axes[0, 0].set_ylabel("nats")
    excess_title, random_title = f"excess over null, k = {last}", f"gain over random, k = {first}"
    for axis, panel in (
        (axes[0, 1], Panel("recovered_fraction", last, ("real", "null"), f"R({last})", "recovered fraction")),
        (axes[0, 2], Panel("excess_gain_nats", last, ("real",), excess_title, "nats")),
        (axes[1, 0], Panel("gain_over_random_nats", first, ("real",), random_title, "nats")),
    ):
        _draw_panel(axis, panel, rungs=rungs, selectors=selectors)
    _draw_smallest(axes[1, 1], rungs, selectors=selectors)
    axes[1, 2].axis("off")
    _set_axes(axes, rungs)
    caption_text(figure, _words(rungs), handles=[legend_entry(name) for name in selectors])
    return save(figure, out, name="scale")


if __name__ == "__main__":
    script_of_runs(draw)
