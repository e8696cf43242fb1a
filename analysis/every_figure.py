"""Every figure of a run: of its newest measurement, its context curve and its training."""

from __future__ import annotations

import gc
import importlib
import pkgutil
from collections.abc import Iterator
from pathlib import Path
from typing import Optional, TypeVar

from olmo_sparsity.errors import UserError
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.storage.folders import check_writable
from olmo_sparsity.tables.reading import figures_folder, newest_shown

from .drawing import Figure, FigureOfMeasurement, FigureOfRuns, saved

Kind = TypeVar("Kind", FigureOfMeasurement, FigureOfRuns)


def declared() -> dict[str, Figure]:
    """Return what the files beside this one declare as ``FIGURE``, by their names."""
    names = [found.name for found in pkgutil.iter_modules([str(Path(__file__).parent)]) if found.name != "__main__"]
    modules = {name: importlib.import_module(f".{name}", __package__) for name in names}
    return {name: module.FIGURE for name, module in modules.items() if hasattr(module, "FIGURE")}


def figures_of(kind: type[Kind]) -> list[Kind]:
    """Return the figures of one kind."""
    return [figure for figure in declared().values() if isinstance(figure, kind)]


def figure_named(name: str) -> Figure:
    """Return the figure that a file declares.

    Raises:
        UserError: there is no such figure.
    """
    figures = declared()
    if name not in figures:
        raise UserError(f"{name}: there is no such figure; choose of {', '.join(figures)}")
    return figures[name]


def draw_run(run: Path, tables: Optional[Path] = None) -> Iterator[Path]:
    """Draw all figures that the tables of a run allow, and yield the path of each picture when it is drawn.

    Args:
        run: folder of the run.
        tables: an influence folder; None: the run's newest measurement.

    Raises:
        UserError: the run has no finished measurement, or its tables are damaged.
    """
    shown = tables or newest_shown(run)
    of_measurement = figures_of(FigureOfMeasurement)
    of_runs = [figure for figure in figures_of(FigureOfRuns) if figure.is_of(run)]
    check_writable(figures_folder(run, shown))
    with progress_bar("drawing", " figures", total=len(of_measurement) + len(of_runs)) as bar:
        measured = Measured.read(shown)
        gc.freeze()  # matplotlib makes so many objects that garbage is often looked for, each time in all modules and tables
        try:
            for one in of_measurement:
                yield from saved(one.draw(measured), figures_folder(run, shown))
                bar.update()
            for other in of_runs:
                yield from saved(other.draw([run]), run / "figures")
                bar.update()
        finally:
            gc.unfreeze()
