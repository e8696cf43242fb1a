"""Figure of measurements side by side: the values of each, and differences from the first, with 95% intervals.

``python -m analysis compare --run runs/demo --run runs/demo-no-pose``; ``--run runs/demo:kl`` compares by that selector.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.comparison import (
    ComparedSubject,
    Comparison,
    ComparisonRow,
    compare,
    main_rows,
)
from olmo_sparsity.statistics.several.subjects import read_subjects
from olmo_sparsity.wording.comparison import (
    compared_words,
    differences_sentences,
    optimism_warning,
    pairings_words,
    subject_units_words,
)
from olmo_sparsity.wording.gates import beyond_gate_words, fragile_words, gates_not_passed
from olmo_sparsity.wording.numbers import FRAGILE
from olmo_sparsity.wording.setup import anchor_warning, measured_words

from .drawing import FigureOfRuns
from .medium import is_for_page
from .output import SENTENCE_END, Drawn, caption_text, lines_of_gates_not_passed, write_above
from .style import error_bars, looks_of_runs, offsets_in_row, write_nothing_measured

WORDS = (
    "Means over windows with 95% intervals by bootstrap over documents. Gain over random: of selectors that do not see the "
    "target (of one that does it would hold optimism); corrected gain: of the others. R(k): only where the validity gate passed."
)
APART = 0.2  # of the height of a row, between the marks of two measurements
TITLE_CHARS = 30  # of a line of a panel's title
CONTROLLED = ("gain_over_random_nats", "corrected_gain_nats")  # gains of selections from which a control is taken off


def _panel(axis: Axes, rows: list[Sequence[Optional[Estimate]]], *, looks: Sequence[dict[str, Any]], unit: str) -> None:
    """Draw one row of estimates for each quantity, the first on top."""
    for row, values in enumerate(rows):
        for value, look, offset in zip(values, looks, offsets_in_row(len(values), apart=APART), strict=False):
            if value is not None:
                axis.errorbar(
                    [value.mean], [row + offset], xerr=error_bars([value]), linestyle="",
                    color=look["color"], marker=look["marker"], markersize=4, elinewidth=1.1, capsize=2,
                )  # fmt: skip
    axis.axvline(0, color="grey", linewidth=0.8)
    axis.grid(axis="x", color="#DDDDDD", linewidth=0.5)
    axis.set_axisbelow(True)
    axis.set_xlabel(unit)


def _name(row: ComparisonRow) -> str:
    name = compared_words(row).removesuffix(", nats")
    return name if row.selector is None else f"{row.selector}, k = {row.k}: {name}"


def shown_rows(comparison: Comparison) -> list[ComparisonRow]:
    """Return the rows of gains that the figure shows.

    These are the gains of all windows, and at the smallest and the largest shown k alike the gain over `random` of selectors that
    do not see the target, and the corrected gain of those that do.
    """
    return [
        row for row in main_rows(comparison) if (row.is_gain if row.selector is None else row.quantity in CONTROLLED)
    ]


def fraction_rows(comparison: Comparison) -> list[ComparisonRow]:
    """Return the rows of R(k) that the figure shows: those that any measurement has."""
    return [row for row in main_rows(comparison) if row.is_fraction and any(row.values)]


def _fragile(comparison: Comparison) -> list[ComparedSubject]:
    """Return the subjects whose R(k) the figure shows and which is fragile."""
    rows = fraction_rows(comparison)
    return [
        subject
        for number, subject in enumerate(comparison.subjects)
        if subject.summary.is_fragile and any(row.values[number] for row in rows)
    ]


def _words(comparison: Comparison) -> str:
    first, *later = comparison.labels
    pairings = "; ".join(
        f"{label} minus {first}: {words}" for label, words in zip(later, pairings_words(comparison), strict=True)
    )
    failed = [
        f"{subject.label}: {'; '.join(gates_not_passed(subject.summary))}. "
        for subject in comparison.subjects
        if gates_not_passed(subject.summary)
    ]
    without = "".join(
        f"{subject.label}: {beyond_gate_words(subject.summary)} "
        for subject in comparison.subjects
        if subject.summary.beyond_gate == "not-applicable"
    )
    passed = "Every gate that applies passed. " if without else "Both gates of all measurements passed. "
    gates = ("".join(failed) or passed) + without
    fragile = "".join(f"{subject.label}: {fragile_words(subject.summary)} " for subject in _fragile(comparison))
    measured = " ".join(f"{subject.label}: {measured_words(subject.summary)}." for subject in comparison.subjects)
    warnings = "".join(
        f"{subject.label}: {words} "
        for subject in comparison.subjects
        for words in (optimism_warning(subject), anchor_warning(subject.summary.setup))
        if words
    )
    units = " ".join(filter(None, map(subject_units_words, comparison.subjects)))
    units = " ".join(dict.fromkeys(SENTENCE_END.split(units)))  # most are the same of all
    return f"{gates}{fragile}{warnings}{f'{units} ' if units else ''}{pairings}. {measured} {WORDS}"


def _lines_above(comparison: Comparison) -> list[str]:
    """Return which gates did not pass, which R(k) are fragile, and what is not of the same windows or setting, a line each."""
    first, *later = comparison.labels
    lines = lines_of_gates_not_passed((subject.label, subject.summary) for subject in comparison.subjects)
    lines += [f"{subject.label}: R(k) {FRAGILE}" for subject in _fragile(comparison)]
    for label, of_pairing in zip(later, pairings_words(comparison), strict=True):
        said = [words for words in ("NOT PAIRED", "NOT THE SAME SETTING") if words in of_pairing]
        if said:
            lines.append(f"{label} minus {first}: {', '.join(said)}")
    return lines


def drawn_of(comparison: Comparison) -> Drawn:
    """Draw ``compare``: gains above, and R(k) below where there is one. Losses would flatten the gains."""
    looks = looks_of_runs(len(comparison.labels))
    units = {"nats": shown_rows(comparison), "fraction of the long gain": fraction_rows(comparison)}
    units = {unit: rows for unit, rows in units.items() if rows}
    heights = [len(rows) + 2 for rows in units.values()]
    row_height = 0.3 * max(1, len(looks) / 4)  # inches
    figure, axes = plt.subplots(
        len(units), 2, figsize=(9.2, row_height * sum(heights) + 0.4), sharey="row", squeeze=False, height_ratios=heights,
        layout="constrained",
    )  # fmt: skip
    for (left, right), (unit, rows) in zip(axes, units.items(), strict=True):
        _panel(left, [row.values for row in rows], looks=looks, unit=unit)
        _panel(right, [row.differences for row in rows], looks=looks[1:], unit=unit)
        left.set_title("value")
        right.set_title(textwrap.fill(f"minus {comparison.labels[0]}", TITLE_CHARS))
        if not right.containers:
            write_nothing_measured(right, "no difference of these is known")
        left.set_yticks(range(len(rows)), [_name(row) for row in rows])  # after that: both panels have these ticks
        left.set_ylim(len(rows) - 0.5, -0.5)
    handles = [
        Line2D([], [], **{**look, "linestyle": ""}, markersize=4, label=label)
        for label, look in zip(comparison.labels, looks, strict=True)
    ]
    caption_text(figure, WORDS if is_for_page() else _words(comparison), handles=handles)
    if above := _lines_above(comparison):
        write_above(figure, above)
    return Drawn(figure, "compare", " ".join(differences_sentences(comparison)))


def draw(runs: list[Path]) -> Iterator[Drawn]:
    """Draw ``compare``.

    Raises:
        UserError: there are fewer than two runs, or they cannot be compared.
    """
    looks_of_runs(len(runs))
    yield drawn_of(compare(read_subjects([str(run) for run in runs])))


FIGURE = FigureOfRuns(draw)
