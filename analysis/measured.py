"""The measurement that a figure is drawn from, and the command line of such figures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Optional

import typer

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.measurement import Measurement, load
from olmo_sparsity.statistics.summary import Summary, summarize
from olmo_sparsity.tables.reading import figures_folder, newest_finished, run_of_tables

from .mistakes import mistakes_in_one_line
from .paper import Width, drawn_for, folder_for


@dataclass(frozen=True)
class Measured:
    """A measurement to draw figures of.

    Attributes:
        tables: its influence folder.
        measurement: its numbers, window by window.
        summary: its numbers over all windows.
    """

    tables: Path
    measurement: Measurement
    summary: Summary

    @classmethod
    def read(cls, tables: Path) -> Measured:
        """Read a finished influence folder."""
        measurement = load(tables)
        return cls(tables, measurement, summarize(measurement))


Draw = Callable[[Measured, Path], list[Path]]  # draws into a folder and returns the paths of the pictures
WidthOption = Annotated[
    Width,
    typer.Option(
        help="screen, or the columns of a paper: one (3.25 in) or two (6.75 in), written into a folder paper-WIDTH."
    ),
]


DEFAULT_RUN = Path("runs/demo")


def find_tables(run: Path, tables: Optional[Path]) -> tuple[Path, Path]:
    """Return the influence folder and the folder for its figures; without ``tables``, of the run's newest measurement."""
    if tables is None:
        tables = newest_finished(run)
    return tables, figures_folder(run, tables)


def draw_measured(draws: tuple[Draw, ...], tables: Path, *, out: Path) -> Iterator[Path]:
    """Draw figures of one measurement, and yield the path of each picture when it is drawn."""
    measured = Measured.read(tables)
    for draw in draws:
        yield from draw(measured, folder_for(out))


def script(*draws: Draw) -> None:
    """Run the command line of a figure."""

    def command(
        run: Annotated[
            Optional[Path], typer.Option(help=f"Folder of the run. Default: that of --tables, or {DEFAULT_RUN}.")
        ] = None,
        tables: Annotated[Optional[Path], typer.Option(help="Influence folder. Default: the run's newest.")] = None,
        out: Annotated[
            Optional[Path], typer.Option(help="Folder for the pictures. Default: RUN/figures/NAME OF THE TABLES.")
        ] = None,
        width: WidthOption = Width.screen,
    ) -> None:
        with mistakes_in_one_line():
            shown = tables or newest_finished(run or DEFAULT_RUN)
            folder = run or run_of_tables(shown)
            if out is None:
                if folder is None:
                    raise UserError(
                        f"{tables}: these tables are not in a run folder; name the folder for the pictures with --out DIR"
                    )
                out = figures_folder(folder, shown)
            with drawn_for(width):
                for path in draw_measured(draws, shown, out=out):
                    print(path)

    typer.run(command)
