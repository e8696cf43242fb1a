"""The medium that figures are drawn for: pictures, or an HTML page, which has panels, legend and caption apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from matplotlib.figure import Figure
from matplotlib.lines import Line2D

LEGEND_INCHES = 3.3  # on a page

_for_page = False  # global to the process, as the settings of matplotlib are


@contextmanager
def drawn_for_page() -> Iterator[None]:
    """Draw the figures inside for an HTML page."""
    global _for_page
    before, _for_page = _for_page, True
    try:
        yield
    finally:
        _for_page = before


def is_for_page() -> bool:
    """Return True if figures are drawn for an HTML page."""
    return _for_page


def legend_below(figure: Figure, handles: Sequence[Line2D]) -> None:
    """Draw a legend below the panels of a page, in as many columns as fit."""
    for columns in range(len(handles), 0, -1):
        legend = figure.legend(handles=handles, loc="outside lower center", ncols=columns)
        if columns == 1 or legend.get_window_extent().width < LEGEND_INCHES * figure.dpi * 0.98:
            return
        legend.remove()
