"""Figure of scale: gains, R(k) and D(k) against the number of parameters, one point for each size of model.

``python -m analysis.scale --run runs/small --run runs/large ... --out runs/scale/figures``. Runs that differ in
the seed of training only are one point: the mean over the seeds with its interval, and a small dot for each seed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Optional

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.seed_summary import SeedSummary, difference_over_seeds, summarize_seeds
from olmo_sparsity.statistics.several.trained_models import trained_models
from olmo_sparsity.statistics.single.measurement import Measurement, SelectionKey, load
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.tables.reading import newest_finished
from olmo_sparsity.wording.curves import seed_intervals_words
from olmo_sparsity.wording.gates import gates_of_models_words
from olmo_sparsity.wording.numbers import interval, no_interval_words
from olmo_sparsity.wording.setup import (
    anchor_warning,
    data_words,
    definition_words,
    length_words,
    short_anchor_warning,
    subject_words,
)
from olmo_sparsity.wording.units import units_words

from .drawing import FigureOfRuns
from .output import Drawn, caption_text, lines_of_gates_not_passed, write_above
from .style import dodges, error_bars, filled, legend_entry, main_selectors, signed_log, write_nothing_measured

BLACK: dict[str, Any] = {"color": "black", "marker": "D", "linestyle": "-"}
NULL: dict[str, Any] = {"linestyle": ":", "markerfacecolor": "white"}
MIMICRY: dict[str, Any] = {"linestyle": "-.", "markerfacecolor": "white"}
SMALLEST_K: dict[str, Any] = {"linestyle": "--", "markerfacecolor": "white"}
Value = Callable[[Summary], Optional[Estimate]]


@dataclass(frozen=True)
class Rung:
    """One size of model.

    Attributes:
        num_parameters: size of the model.
        numbers: its numbers over the seeds of its training.
        measurements: the newest measurement of each seed.
    """

    num_parameters: float
    numbers: SeedSummary
    measurements: tuple[Measurement, ...]


def _names(rungs: list[Rung], digits: int = 2) -> list[str]:
    """Return the sizes in words, with as many digits, at least these, as make them differ."""
    millions = [rung.num_parameters / 1e6 for rung in rungs]
    names = [
        np.format_float_positional(size, max(digits, len(str(int(size)))), fractional=False, trim="-") + "M"
        for size in millions
    ]
    return names if len(set(names)) == len(names) else _names(rungs, digits + 1)


def ladder(runs: list[Path]) -> list[Rung]:
    """Return the newest measurements of the runs, the smallest model first.

    Raises:
        UserError: a run has no measurement, or they differ in windows, lengths, PoSE, precision, k or selectors, for example.
    """
    tables = {run: newest_finished(run) for run in runs}
    measurements = {run: load(folder) for run, folder in tables.items()}
    manifests = [measurement.manifest for measurement in measurements.values()]
    setups = [measurement.setup for measurement in measurements.values()]
    for name, values in (
        ("windows", [(m["tokens_sha256"], m["windows_sha256"]) for m in manifests]),
        ("lengths", [m["context"] for m in manifests]),
        ("PoSE settings", [m.get("pose") for m in manifests]),
        ("definitions of visible", [(m.visibility, m.positions, m.anchor is None) for m in setups]),
        ("precisions", [setup.precision for setup in setups]),
        ("units", [measurement.unit for measurement in measurements.values()]),
        ("null contexts", [measurement.null_context for measurement in measurements.values()]),
        ("k", [m["influence"]["k"] for m in manifests]),
        ("selectors", [m["influence"]["selectors"] for m in manifests]),
        ("ways of screening", [setup.screening for setup in setups]),
        ("numbers of training steps", [m.get("checkpoint", {}).get("step") for m in manifests]),
    ):
        if any(value != values[0] for value in values):
            raise UserError(
                f"these runs' newest measurements are of different {name}; a ladder differs in size and seed alone"
            )
    rungs = []
    for model in trained_models(list(measurements)):
        of_model = tuple(measurements[run] for run in model.runs)
        numbers = summarize_seeds(model, [tables[run] for run in model.runs], measurements=of_model)
        pretrained = of_model[0].setup.model
        size = of_model[0].manifest["num_parameters"] if pretrained is None else pretrained.num_parameters
        rungs.append(Rung(float(size), numbers, of_model))
    rungs.sort(key=lambda rung: rung.num_parameters)
    for one, other in pairwise(rungs):
        if one.num_parameters == other.num_parameters:
            raise UserError(
                f"{one.numbers.model.runs[0]} and {other.numbers.model.runs[0]} are two models of {one.num_parameters:,.0f} "
                "parameters; a ladder differs in size and seed alone"
            )
    return rungs


def _draw_line(
    axis: Axes, rungs: list[Rung], *, value: Value, shift: float = 1.0, aside: float = 1.05, **look: Any
) -> None:
    """Draw a number of each size with its interval, joined by a line, and its seeds as dots; a missing one leaves a gap.

    Args:
        axis: the panel.
        rungs: the sizes.
        value: the number.
        shift: factor on the axis of sizes that sets the line beside others.
        aside: factor that sets the dots of seeds beside the line.
        look: how the line is drawn.
    """
    of_sizes = [value(rung.numbers.mean) for rung in rungs]
    drawn = [i for i, estimate in enumerate(of_sizes) if estimate is not None]
    for first, last in _runs_of_neighbours(drawn):  # a line through a missing one would be a number that is not there
        estimates = [estimate for estimate in of_sizes[first : last + 1] if estimate is not None]
        axis.errorbar(
            [rung.num_parameters * shift for rung in rungs[first : last + 1]],
            [estimate.mean for estimate in estimates], yerr=error_bars(estimates), markersize=4, linewidth=1.2, **look,
        )  # fmt: skip
    for rung in rungs:
        of_seeds = [value(summary) for summary in rung.numbers.of_seeds] if rung.numbers.num_seeds > 1 else []
        means = [estimate.mean for estimate in of_seeds if estimate is not None]
        x = [rung.num_parameters * shift * aside] * len(means)
        axis.plot(x, means, linestyle="", marker=".", markersize=2.5, color=look["color"], alpha=0.7)


def _runs_of_neighbours(rising: list[int]) -> list[tuple[int, int]]:
    """Return the first and last of each run of consecutive numbers."""
    firsts = [i for i in rising if i - 1 not in rising]
    lasts = [i for i in rising if i + 1 not in rising]
    return list(zip(firsts, lasts, strict=True))


def _places(number: int, rungs: list[Rung]) -> list[dict[str, float]]:
    """Return the factors that set lines, and the dots of their seeds, side by side on the axis of sizes."""
    of_all = dodges(2 * number, [rung.num_parameters for rung in rungs])
    return [
        {"shift": of_line, "aside": of_dots / of_line}
        for of_line, of_dots in zip(of_all[::2], of_all[1::2], strict=True)
    ]


def _of_selection(name: str, selector: str, k: int) -> Value:
    return lambda summary: summary.at(selector, "real", k).estimate(name)


def _draw_windows(axis: Axes, rungs: list[Rung], *, name: str, title: str) -> None:
    axis.set_title(title)
    if all(rung.numbers.mean.of_windows(name) is None for rung in rungs):
        is_known = rungs[0].numbers.mean.lengths.train_len is not None
        words = "nothing lies beyond the training row" if is_known else "no training row is known"
        write_nothing_measured(axis, words)
        return
    _draw_line(axis, rungs, value=lambda summary: summary.of_windows(name), **BLACK)
    axis.axhline(0, color="grey", linewidth=0.5)
    axis.set_ylabel("nats")


def _draw_selectors(axis: Axes, rungs: list[Rung], *, name: str, selectors: Sequence[str], title: str) -> None:
    """Draw a number of selectors at the smallest shown k (open, dashed) and at the largest (filled, solid)."""
    axis.set_title(title)
    if not selectors:
        write_nothing_measured(axis)
        return
    ks = rungs[0].numbers.mean.end_ks
    looks: dict[int, dict[str, Any]] = {ks[0]: SMALLEST_K, ks[-1]: {"linestyle": "-"}}
    lines = [(selector, k, look) for selector in selectors for k, look in looks.items()]
    for (selector, k, look), place in zip(lines, _places(len(lines), rungs), strict=True):
        _draw_line(axis, rungs, value=_of_selection(name, selector, k), **place, **filled(selector), **look)
    is_fraction = name == "recovered_fraction"
    axis.axhline(1 if is_fraction else 0, color="grey", linewidth=0.8, linestyle="--")
    if is_fraction:
        signed_log(axis, "y")
    axis.set_ylabel("recovered fraction" if is_fraction else "nats")


def _draw_prediction(axis: Axes, rungs: list[Rung], *, selector: str, k: int) -> None:
    """Draw D(k) of a selector, with that of `random`, under the null context, and of mimicry."""
    lines: list[tuple[Value, dict[str, Any]]] = [
        (lambda summary: summary.prediction_recovered(selector, k).real, {**filled(selector), "linestyle": "-"}),
        (lambda summary: summary.prediction_recovered(selector, k).null, {**filled(selector), **NULL}),
        (lambda summary: summary.prediction_recovered(selector, k).mimicry, {**filled(selector), **MIMICRY}),
        (lambda summary: summary.prediction_recovered(selector, k).random, {**filled("random"), "linestyle": "-"}),
    ]
    for (value, look), place in zip(lines, _places(len(lines), rungs), strict=True):
        _draw_line(axis, rungs, value=value, **place, **look)
    axis.set_title(f"prediction recovered by {selector}, D({k})")
    axis.set_ylabel("D(k)")


def _legend(selectors: Sequence[str], *, ks: Sequence[int], has_prediction: bool) -> list[Line2D]:
    kinds = {f"k = {ks[-1]}": {"linestyle": "-"}, **({f"k = {ks[0]}": SMALLEST_K} if len(ks) > 1 else {})}
    if has_prediction:
        kinds |= {"D: null context": NULL, "D: mimicry": MIMICRY}
    entries = [
        Line2D([], [], color="grey", marker="o", markersize=4, label=name, **look) for name, look in kinds.items()
    ]
    return [*(legend_entry(name, look=filled(name)) for name in selectors), *entries]


def _set_axes(axes: np.ndarray, rungs: list[Rung]) -> None:
    sizes = [rung.num_parameters for rung in rungs]
    for axis in axes.flat:
        axis.set_xscale("log")
        axis.set_xlim(sizes[0] / 1.4, sizes[-1] * 1.4)
        axis.set_xticks(sizes, [printable(name) for name in _names(rungs)])
        axis.minorticks_off()
    for axis in axes[1]:
        axis.set_xlabel("parameters")


def _differences_words(rungs: list[Rung]) -> str:
    """Return the largest model's numbers minus the smallest's, paired; nothing of one model alone."""
    if len(rungs) == 1:
        return ""
    change = difference_over_seeds(rungs[0].measurements, rungs[-1].measurements)
    changes = [f"long gain {interval(change.of_windows('long_gain_nats'), 3)}"]
    for name in rungs[0].numbers.mean.blind_selectors:
        if name in ("kl", "attention"):
            for k in rungs[0].numbers.mean.end_ks:
                over_random = change.of_selection(SelectionKey(name, "real", k), "gain_over_random_nats")
                if over_random is not None:
                    changes.append(f"gain over random of {name}, k = {k}, {interval(over_random, 3)}")
    return f"Largest minus smallest, paired, nats: {'; '.join(changes)}."


def _finding(rungs: list[Rung]) -> str:
    """Return the long gain of each size."""
    gains = ", ".join(
        f"{name} {interval(rung.numbers.mean.long_gain_nats, 3)}"
        for name, rung in zip(_names(rungs), rungs, strict=True)
    )
    return f"Long gain in nats by the number of parameters: {gains}."


def _words(rungs: list[Rung]) -> str:
    nums_seeds = sorted({rung.numbers.num_seeds for rung in rungs})
    summary = rungs[0].numbers.mean
    bars = "Bars: 95% intervals by bootstrap over documents; they do not include what another seed would change."
    if nums_seeds != [1]:
        bars = f"Points: {seed_intervals_words(*nums_seeds)}. Dots: single seeds."
    means = [rung.numbers.mean for rung in rungs]
    few = no_interval_words("D(k)", min(mean.num_documents for mean in means))
    models = [subject_words(mean.run, mean.setup) for mean in means if mean.setup.model is not None]
    measured = "; ".join([*models, definition_words(summary.setup)])
    sentences = (
        gates_of_models_words(dict(zip(_names(rungs), means, strict=True))),
        _differences_words(rungs),
        bars,
        few,
        "D(k) alone is no evidence that the context helps: compare the null context. R(k): linear up to 1, logarithmic beyond.",
        f"{measured[0].upper()}{measured[1:]}.",
        f"{data_words(summary)}; {length_words(summary.lengths)}",
        units_words(summary),
        _anchor_warnings(rungs, anchor_warning),
    )
    return " ".join(sentence for sentence in sentences if sentence)


def _anchor_warnings(rungs: list[Rung], words_of: Callable[[ModelSetup], str]) -> str:
    """Return the warning of each size that another first token is the better one, with its name before it."""
    warnings = [words_of(rung.numbers.mean.setup) for rung in rungs]
    return " ".join(f"{name}: {words}" for name, words in zip(_names(rungs), warnings, strict=True) if words)


def draw(runs: list[Path]) -> Iterator[Drawn]:
    """Draw ``scale``, of the newest measurement of each run.

    Raises:
        UserError: the runs differ in more than size and seed.
    """
    rungs = ladder(runs)
    summary, selectors = rungs[0].numbers.mean, main_selectors(rungs[0].measurements[0])
    blind = [name for name in selectors if not summary.sees_target(name)]
    seeing = [name for name in selectors if summary.sees_target(name)]
    figure, axes = plt.subplots(2, 3, figsize=(10.6, 6.0), layout="constrained")
    _draw_windows(axes[0, 0], rungs, name="long_gain_nats", title="long gain")
    _draw_windows(axes[0, 1], rungs, name="gain_beyond_nats", title="gain beyond the training row")
    _draw_selectors(axes[0, 2], rungs, name="recovered_fraction", selectors=blind, title="R(k), target not seen")
    over_random = [name for name in blind if name != "random"]
    title = "gain over random, target not seen"
    _draw_selectors(axes[1, 0], rungs, name="gain_over_random_nats", selectors=over_random, title=title)
    title = "corrected gain, target seen"
    _draw_selectors(axes[1, 1], rungs, name="corrected_gain_nats", selectors=seeing, title=title)
    reacting = next((name for name in ("greedy-kl", "kl", *over_random) if name in blind), None)
    if reacting is None:
        axes[1, 2].axis("off")
    else:
        _draw_prediction(axes[1, 2], rungs, selector=reacting, k=summary.end_ks[-1])
    _set_axes(axes, rungs)
    caption_text(
        figure,
        _words(rungs),
        last=_anchor_warnings(rungs, short_anchor_warning),
        handles=_legend(selectors, ks=summary.end_ks, has_prediction=reacting is not None),
    )
    means = [rung.numbers.mean for rung in rungs]
    if failed := lines_of_gates_not_passed(zip(_names(rungs), means, strict=True)):
        write_above(figure, failed)
    yield Drawn(figure, "scale", _finding(rungs))


FIGURE = FigureOfRuns(draw)

if __name__ == "__main__":
    FIGURE.command()
