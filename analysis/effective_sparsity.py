"""Figure of effective sparsity against context length: how many tokens reach 50, 80, 90% of D(k), the local context fixed.

``python -m analysis.effective_sparsity --tables A --tables B ... --out FOLDER``: measurements of one model, or several, at
several lengths and of the same targets (``influence.min_preceding``), such as ``make lengths`` makes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Optional

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from olmo_sparsity.errors import printable
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.same_targets import read_length
from olmo_sparsity.statistics.several.sparsity_by_length import (
    MIN_SLOPE_DOCUMENTS,
    SHARES,
    LineKey,
    PointKey,
    ReachingK,
    SparsityByLength,
    SparsityOfModel,
    sparsity_by_length,
)
from olmo_sparsity.statistics.single.summary import gate_of
from olmo_sparsity.wording.numbers import interval, no_interval_words
from olmo_sparsity.wording.setup import null_kind_words
from olmo_sparsity.wording.units import entry_words, unit_words

from .drawing import run_command
from .of_lengths import (
    add_mark,
    command_of_lengths,
    company_words,
    make_room,
    set_length_axis,
    targets_words,
    write_gates_not_passed,
)
from .output import Drawn, caption_text
from .style import dodges, looks_of_runs

NAME = "effective-sparsity"
# Of the lines of a model, which have its colour: the selector, the same under the null context, and `random`.
LOOKS_OF_LINES: tuple[dict[str, Any], ...] = (
    {"linestyle": "-", "marker": "o"},
    {"linestyle": ":", "marker": "o", "markerfacecolor": "white"},
    {"linestyle": "--", "marker": "x"},
)
RELATIVE_TICKS = (0.001, 0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
POWERS = tuple(2.0**i for i in range(24))
MOST_TICKS = 8


def _draw_line(
    axis: Axes,
    points: dict[int, ReachingK],
    *,
    name: str,
    divisors: dict[int, int],
    shift: float,
    below: dict[tuple[int, float], int],
    look: dict[str, Any],
) -> None:
    """Draw the smallest k at each length over a number; a length that does not reach the share has a mark in place of a point.

    Args:
        axis: the panel.
        points: by length; none where nothing reacts.
        name: of the line, in marks.
        divisors: what k is divided by at each length.
        shift: factor on the axis of lengths that sets the line beside others.
        below: number of the topmost mark at each place of the panel, which this line's marks are added to.
        look: how the line is drawn.
    """
    reached = {n: point.value / divisors[n] for n, point in points.items() if point.value is not None}
    values = [reached.get(n, np.nan) for n in divisors]  # a line ends at a length without a point
    axis.plot([n * shift for n in divisors], values, markersize=4, linewidth=1.3, **look)
    for length, point in points.items():
        x, most = length * shift, point.max_k / divisors[length]
        if point.has_interval and point.low is not None:
            high = most if point.high is None else point.high / divisors[length]
            axis.vlines(x, point.low / divisors[length], high, color=look["color"], linewidth=1.0)
        if point.value is None:
            words = f">{most:,.3g} {name}" if max(divisors.values()) > 1 else f">{most:,.0f} {name}"
            add_mark(axis, words, at=(x, most), below=below, length=length, color=look["color"])
        elif point.has_interval and point.high is None:
            axis.annotate(
                "", (x, most * 1.12), (x, most), arrowprops={"arrowstyle": "->", "color": look["color"], "linewidth": 1}
            )


def _draw_panel(
    axis: Axes, found: SparsityByLength, *, share: float, is_relative: bool
) -> dict[tuple[int, float], int]:
    """Draw a panel, and return the number of the topmost mark of each length and k."""
    lines = [(model, line) for model in found.models for line in found.lines]
    shifts, below = dodges(len(lines), found.lengths), dict[tuple[int, float], int]()
    looks = [
        {**of_line, "color": of_model["color"]}
        for of_model in looks_of_runs(len(found.models))
        for of_line in LOOKS_OF_LINES
    ]
    for (model, line), shift, look in zip(lines, shifts, looks, strict=True):
        measured = model.measurements
        points = {n: point for n in measured if (point := model.points.get(PointKey(line, share, n))) is not None}
        divisors = {n: m.lengths.num_long_range if is_relative else 1 for n, m in measured.items()}
        _draw_line(axis, points, name=_mark_words(line), divisors=divisors, shift=shift, below=below, look=look)
    axis.set_yscale("log")
    return below


def _set_ticks(axis: Axes, lengths: list[int], *, is_relative: bool) -> None:
    """Set ticks at the lengths, and at some powers of two or some shares; all panels of a row are drawn."""
    set_length_axis(axis, lengths)
    low, high = axis.get_ylim()
    ticks = [tick for tick in (RELATIVE_TICKS if is_relative else POWERS) if low <= tick <= high]
    ticks = ticks[:: max(1, -(-len(ticks) // MOST_TICKS))]
    if len(ticks) >= 2:
        axis.set_yticks(ticks, [f"{tick:,g}" for tick in ticks])
    axis.minorticks_off()


def _mark_words(line: LineKey) -> str:
    return line.selector if line.context == "real" else line.context


def _line_words(line: LineKey) -> str:
    return line.selector if line.context == "real" else f"{line.selector}, null context"


def slope_lines(found: SparsityByLength) -> list[str]:
    """Return how the smallest k grows with the length, one line for each model and each line of the figure."""
    growths = [
        f"Growth of k of {model.name}, {_line_words(line)}: "
        + ", ".join(_slope_words(model.slopes[line, share], share) for share in SHARES)
        for model in found.models
        for line in found.lines
    ]
    few = [line for model in found.models for line in _few_lines(model)]
    return [*growths, *(_constant_share_words(model) for model in found.models), *few]


def _slope_words(slope: Optional[Estimate], share: float) -> str:
    if slope is None:
        return f"none for {share:.0%} (some length does not reach it)"
    return f"full_len^{interval(slope)}{'' if slope.has_interval else ' (no interval)'} for {share:.0%}"


def _few_lines(model: SparsityOfModel) -> list[str]:
    """Return why the numbers of tokens of a model, or their growth, have no intervals; none where they have."""
    num_documents = next(iter(model.measurements.values())).num_documents
    of_k = no_interval_words(f"k of {model.name}", num_documents)
    of_growth = no_interval_words(f"Growth of k of {model.name}", num_documents, at_least=MIN_SLOPE_DOCUMENTS)
    return [words.rstrip(".") for words in (of_k, of_growth) if words]


def _constant_share_words(model: SparsityOfModel) -> str:
    growth = model.growth_of_constant_share
    return f"If k of {model.name} were always the same share of the long-range tokens, it would grow as full_len^{growth:.2f}"


def _words(found: SparsityByLength) -> str:
    first, local_len = found.first, found.first.lengths.local_len
    slopes = ". ".join(slope_lines(found))
    null = null_kind_words(first.null_context, first.manifest.get("null_contexts") or {})
    sentences = (
        f"The smallest k with D(k) of at least 50, 80, 90%, against the length of the full context, the local context fixed at "
        f"{local_len} tokens. {slopes}. A mark such as >64: no measured k reaches the share. "
        f"The k of a selector is an upper bound of the {unit_words('token', first.setup.visibility)} that suffice: another "
        "choice may need fewer.",
        entry_words(first.setup.visibility),
        f"k is interpolated in log k between the measured ones. {targets_words(found.models)} Bars: every k at which the 95% "
        "interval of D(k), by bootstrap over documents, holds the share; the slopes, by least squares, are paired over the "
        f"lengths. D(k) alone is no evidence that the context helps: compare random, and the null context ({null}).",
        company_words(found.models),
    )
    return " ".join(sentence for sentence in sentences if sentence)


def _legend(found: SparsityByLength) -> list[Line2D]:
    entries = [
        Line2D([], [], color="black", markersize=4, label=_line_words(line), **look)
        for line, look in zip(found.lines, LOOKS_OF_LINES, strict=True)
    ]
    models = zip(found.models, looks_of_runs(len(found.models)), strict=True)
    return [Line2D([], [], color=look["color"], label=model.name) for model, look in models] + entries


def table(found: SparsityByLength) -> pd.DataFrame:
    """Return the numbers of the figure, a row for each model, line, share and length. A k of more than ``max_k`` is missing."""
    rows = []
    for model in found.models:
        for key, point in model.points.items():
            slope = model.slopes[key.line, key.share]
            num_long_range = model.measurements[key.full_len].lengths.num_long_range
            ends = {"k_low": point.low, "k_high": point.high} if point.has_interval else {}
            rows.append(
                {
                    "model": model.name, "selector": key.line.selector, "context": key.line.context, "share": key.share,
                    "full_len": key.full_len, "gate": gate_of(model.gate_gains_nats[key.full_len]),
                    "num_long_range": num_long_range, "max_k": point.max_k, "k": point.value,
                    "k_low": None, "k_high": None, **ends, "has_interval": point.has_interval,
                    "k_share": None if point.value is None else point.value / num_long_range,
                    "slope": None if slope is None else slope.mean,
                    "slope_low": None if slope is None else slope.low,
                    "slope_high": None if slope is None else slope.high,
                }
            )  # fmt: skip
    return pd.DataFrame(rows)


def _finding(found: SparsityByLength) -> str:
    """Return the smallest k of the first line that reaches the middle share, at the shortest and at the longest context."""
    line, share = found.lines[0], SHARES[len(SHARES) // 2]
    clauses = []
    for model in found.models:
        lengths = dict.fromkeys((min(model.measurements), max(model.measurements)))
        ks = [f"{_k_words(model.points.get(PointKey(line, share, n)))} at {n:,} tokens" for n in lengths]
        clauses.append(f"{model.name} {', '.join(ks)}")
    return f"Smallest k, chosen by {_line_words(line)}, of which D(k) reaches {share:.0%}: {'; '.join(clauses)}."


def _k_words(point: Optional[ReachingK]) -> str:
    if point is None:
        return "undefined, since nothing reacts,"
    values = [point.value, *((point.low, point.high) if point.has_interval else ())]
    value, *ends = (f"> {point.max_k}" if number is None else f"{number:.1f}" for number in values)
    return f"{value} [{', '.join(ends)}]" if ends else value


def draw_found(found: SparsityByLength) -> Drawn:
    """Draw ``effective-sparsity``, with its numbers as CSV."""
    figure, axes = plt.subplots(2, len(SHARES), figsize=(10.6, 6.2), sharex=True, sharey="row", layout="constrained")
    marks = {}
    for number, share in enumerate(SHARES):
        for row, is_relative in enumerate((False, True)):
            marks[row, number] = _draw_panel(axes[row, number], found, share=share, is_relative=is_relative)
    for place, below in marks.items():  # all panels of a row, which have one axis, are drawn
        make_room(axes[place], below)
    for number, share in enumerate(SHARES):
        for row, is_relative in enumerate((False, True)):
            _set_ticks(axes[row, number], found.lengths, is_relative=is_relative)
        axes[0, number].set_title(f"D(k) of at least {share:.0%}")
        axes[1, number].set_xlabel("full context, tokens")
    units = unit_words("token", found.first.setup.visibility)
    axes[0, 0].set_ylabel(f"smallest k, {units}\n(interpolated in log k)")
    axes[1, 0].set_ylabel("smallest k as a share of\nthe long-range tokens")
    caption_text(figure, _words(found), handles=_legend(found))
    write_gates_not_passed(figure, found.models)
    return Drawn(figure, NAME, _finding(found), numbers=(".csv", table(found).to_csv(index=False, lineterminator="\n")))


def draw(tables: list[Path], selector: str = "attention") -> Iterator[Drawn]:
    """Draw ``effective-sparsity`` from influence folders, and print how k grows with the length.

    Raises:
        UserError: the measurements cannot be compared.
    """
    found = sparsity_by_length([read_length(folder) for folder in tables], selector=selector)
    for line in slope_lines(found):
        print(printable(line))
    yield draw_found(found)


if __name__ == "__main__":
    run_command(command_of_lengths(draw))
