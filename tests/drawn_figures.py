"""Figures that tests draw from made-up tables, and how their words and numbers are read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from analysis.drawing import FigureOfMeasurement
from analysis.every_figure import figures_of as declared
from analysis.output import Drawn
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.measurement import Measurement, load
from olmo_sparsity.statistics.single.summary import summarize
from olmo_sparsity.tables.reading import read_table

# Every figure of a measurement, by the name of its script.
FIGURES = {
    figure.draw.__module__.removeprefix("analysis.").replace("_", "-"): figure.draw
    for figure in declared(FigureOfMeasurement)
}


def figures_of(drawn: Iterable[Drawn]) -> list[Figure]:
    """Return the figures of what a script draws."""
    return [one.figure for one in drawn]


def mean(estimate: Optional[Estimate]) -> float:
    """Return the mean of an estimate that is there."""
    assert estimate is not None
    return estimate.mean


def words_on(figure: Figure) -> str:
    """Return all text of a figure, its lines joined by spaces, and the whole caption, which is written beside the picture."""
    drawn = (text.get_text().replace("\n", " ") for text in figure.findobj(lambda a: hasattr(a, "get_text")))
    return " ".join([*drawn, str(figure.get_label())])


def num_cut_off(axis: Axes) -> int:
    """Return how many lines, boxes and bars of a panel reach beyond it."""
    axis.get_xlim(), axis.get_ylim()  # where limits follow from the data, they are computed now
    drawn = [line.get_transform().transform(line.get_xydata()) for line in axis.lines]
    drawn += [patch.get_window_extent().get_points() for patch in axis.patches]
    drawn += [axis.transData.transform(bars.get_datalim(axis.transData).get_points()) for bars in axis.collections]
    low, high = axis.bbox.get_points()
    finite = [points[np.isfinite(points).all(axis=1)] for points in map(np.asarray, drawn)]
    return sum(not ((low - 0.5 <= points) & (points <= high + 0.5)).all() for points in finite)


def heights(axis: Axes) -> list[tuple[float, ...]]:
    """Return the vertical coordinates of each line of a panel."""
    return [tuple(line.get_ydata()) for line in axis.lines]


def assert_bars(container: Any, estimates: Sequence[Estimate], *, upright: bool = True) -> None:
    """Check that the bars of a container of matplotlib's ``errorbar`` reach from the low to the high end of each interval.

    Args:
        container: what ``errorbar`` drew.
        estimates: of its points.
        upright: whether the bars stand upright.
    """
    segments = [segment for bars in container.lines[2] for segment in bars.get_segments()]  # none without intervals
    ends = [sorted(float(end[int(upright)]) for end in segment) for segment in segments]
    assert [bound for of in ends for bound in of] == pytest.approx(
        [bound for estimate in estimates for bound in estimate.bounds or ()]
    )


def only(measurement: Measurement, selectors: Sequence[str]) -> Measurement:
    """Return the measurement of some selectors."""
    return measurement.restrict_selectors({name: name for name in selectors})


def reweighted(measurement: Measurement) -> Measurement:
    """Return the measurement with weights 1, 2, 3, 1, 2, 3 ..."""
    weights_W = 1.0 + np.arange(len(measurement.windows)) % 3
    return dataclasses.replace(measurement, windows=measurement.windows.assign(weight=weights_W))


def measured(tables: Path, measurement: Measurement) -> Measured:
    """Return what figures are drawn from: these tables, with other numbers."""
    return Measured(tables, measurement, summarize(measurement))


@cache
def read(tables: Path, *selectors: str) -> Measured:
    """Return what figures are drawn from: these tables, or some of their selectors. Tests share it, and must not change it."""
    measurement = load(tables)
    return measured(tables, only(measurement, selectors) if selectors else measurement)


@cache
def rows(tables: Path, table: str) -> list[dict[str, Any]]:
    """Return the rows of a table as they were written. Tests share them, and must not change them."""
    return list(read_table(tables, table).to_pylist())


def fragile(drawn: Measured) -> Measured:
    """Return the same numbers, with R(k) marked as fragile."""
    return dataclasses.replace(drawn, summary=dataclasses.replace(drawn.summary, is_fragile=True))
