"""Figures at the size of a paper: exactly as wide as its columns, with panels rearranged to fit.

LaTeX sets the captions, so they are left out of the pictures.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from enum import Enum
from pathlib import Path
from typing import Optional

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

STYLE = Path(__file__).with_name("paper.mplstyle")


class Width(str, Enum):
    """The medium of a figure: a screen, or one or both columns of a paper."""

    screen = "screen"
    one = "one"
    two = "two"


INCHES: dict[Optional[Width], float] = {Width.one: 3.25, Width.two: 6.75, None: 3.3}  # None: a legend on a page
LEAST_SCALE = 0.55  # of the height of a panel, since its text does not shrink
CHARS_AN_INCH = 18
NUMBER_WITH_INTERVAL = re.compile(r"-?[\d.]+ \[[^\]\n]*\]")
NO_BREAK = "\u00a0"

_width: Optional[Width] = Width.screen  # global to the process, as the settings of matplotlib are


@contextmanager
def drawn_for(width: Optional[Width]) -> Iterator[None]:
    """Draw the figures inside for a medium; those for a paper use ``paper.mplstyle``. Afterwards all is as it was.

    Args:
        width: the medium; None: an HTML page, which has panels, legend and caption apart.
    """
    global _width
    before = _width
    with plt.rc_context():
        if width in (Width.one, Width.two):
            plt.style.use(STYLE)
        _width = width
        try:
            yield
        finally:
            _width = before


def width_in_force() -> Optional[Width]:
    """Return the medium of the figures; None for an HTML page."""
    return _width


def folder_for(out: Path) -> Path:
    """Return the folder for figures: ``out``, or for a paper a folder inside it."""
    return out / f"paper-{_width.value}" if _width in (Width.one, Width.two) else out


def legend_below(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Draw a legend below the panels, in as many columns as fit."""
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width < INCHES[_width] * figure.dpi * 0.98:
            return
        legend.remove()


def _wrap(text: str, inches: float) -> str:
    """Return text in lines that fit; a number and its interval stay on one line."""
    text = NUMBER_WITH_INTERVAL.sub(lambda number: number[0].replace(" ", NO_BREAK), text)
    return "\n".join(
        part for line in text.split("\n") for part in textwrap.wrap(line, int(inches * CHARS_AN_INCH)) or [""]
    )


def _restack(figure: Figure, panels: list[Axes], *, columns: int) -> tuple[int, int]:
    """Arrange panels in at most this many columns; two rows become two columns.

    Returns:
        The numbers of rows and columns before.
    """
    grid = panels[0].get_subplotspec().get_gridspec()  # type: ignore[union-attr]
    before = grid.nrows, grid.ncols
    if before[1] <= columns:
        return before
    if 1 < before[0] <= columns:
        panels[:] = [panels[row * before[1] + column] for column in range(before[1]) for row in range(before[0])]
        columns = before[0]
    shared_y = {axis: len(axis.get_shared_y_axes().get_siblings(axis)) > 1 for axis in panels}
    shared_x = {axis: len(axis.get_shared_x_axes().get_siblings(axis)) > 1 for axis in panels}
    y_label = next((axis.get_ylabel() for axis in panels if axis.get_ylabel()), "").split("\n")[-1]
    x_label = next((axis.get_xlabel() for axis in panels if axis.get_xlabel()), "")
    stacked = figure.add_gridspec(-(-len(panels) // columns), columns)
    for number, axis in enumerate(panels):
        axis.set_subplotspec(stacked[number // columns, number % columns])
        first, last = number % columns == 0, number + columns >= len(panels)
        if shared_y[axis]:
            axis.tick_params(labelleft=first)
            axis.set_ylabel(y_label if first else "")
        if shared_x[axis]:
            axis.tick_params(labelbottom=last)
            axis.set_xlabel(x_label if last else "")
    return before


def fit(figure: Figure, one_column: int) -> None:
    """Make a figure exactly as wide as the columns of the paper.

    Args:
        figure: a figure that was drawn for a screen, in constrained layout.
        one_column: panels side by side in one column of the paper.
    """
    panels = [axis for axis in figure.axes if axis.get_subplotspec() is not None]
    most = one_column if _width is Width.one else len(panels)
    old_width, old_height = figure.get_size_inches()
    rows, columns = _restack(figure, panels, columns=most)
    grid = panels[0].get_subplotspec().get_gridspec()  # type: ignore[union-attr]
    panel = INCHES[_width] / grid.ncols
    scale = max(LEAST_SCALE, panel / (old_width / columns))
    height = grid.nrows * (old_height / rows) * scale
    legends = sum(legend.get_window_extent().height / figure.dpi for legend in figure.legends)
    figure.set_size_inches(INCHES[_width], height + legends)
    figure.draw_without_rendering()  # computes the layout, and with it the sizes of the panels
    for axis in panels:
        wide, high = (1.15 * length / figure.dpi for length in axis.get_window_extent().size)
        if axis.get_aspect() != "auto":  # narrower than its share of the figure
            wide = max(wide, 0.9 * panel)
        for where in ("left", "center"):
            axis.set_title(_wrap(axis.get_title(loc=where), wide), loc=where)
        axis.set_ylabel(_wrap(axis.get_ylabel(), high))
        axis.set_xlabel(_wrap(axis.get_xlabel(), wide))
