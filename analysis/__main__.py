"""Draw one figure: ``python -m analysis FIGURE [--run DIR ...] [--tables DIR ...] [--out DIR]``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Optional

import typer

from olmo_sparsity.errors import UserError, only_one, printable
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.tables.reading import figures_folder, newest_shown, run_of_tables

from .drawing import FigureOfLengths, FigureOfRuns, mistakes_in_one_line, run_command, saved
from .every_figure import figure_named
from .output import Drawn

DEFAULT_RUN = Path("runs/demo")


def draw(
    figure: Annotated[str, typer.Argument(help="Name of a file in analysis/, such as figure4.")],
    run: Annotated[
        Optional[list[Path]],
        typer.Option(
            help=f"Folder of a run; repeated for a figure of several. Default: that of --tables, or {DEFAULT_RUN}."
        ),
    ] = None,
    tables: Annotated[
        Optional[list[Path]],
        typer.Option(help="Influence folder; repeated for a figure of several. Default: the run's newest."),
    ] = None,
    out: Annotated[Optional[Path], typer.Option(help="Folder for the pictures. Default: figures/ of the run.")] = None,
) -> None:
    """Draw a figure, and print what it shows and where it is."""
    with mistakes_in_one_line():
        pictures, folder = _pictures(figure, run or [], tables or [], out)
        for path in saved(_with_findings(pictures), folder):
            print(printable(str(path)))


def _pictures(name: str, runs: list[Path], tables: list[Path], out: Optional[Path]) -> tuple[Iterator[Drawn], Path]:
    """Return the pictures of a figure, and the folder for them."""
    figure = figure_named(name)
    if isinstance(figure, FigureOfRuns):
        if tables:
            raise UserError(f"--tables {tables[0]}: {name} is a figure of runs; name them with --run")
        runs = runs or [DEFAULT_RUN]
        first = runs[0] if runs[0].exists() else Path(str(runs[0]).rpartition(":")[0])  # RUN:SELECTOR
        return figure.draw(runs), out or first / "figures"
    if isinstance(figure, FigureOfLengths):
        if not tables:
            raise UserError(f"{name} is a figure of several lengths; name the tables of each with --tables")
        return figure.draw(tables), out or _run_of(runs, tables[0]) / "figures"
    advice = f"{name} is a figure of one measurement; draw each by itself"
    run = only_one("--run", runs, advice=advice)
    shown = only_one("--tables", tables, advice=advice) or newest_shown(run or DEFAULT_RUN)
    out = out or figures_folder(_run_of(runs, shown), shown)
    return figure.draw(Measured.read(shown)), out


def _run_of(runs: list[Path], tables: Path) -> Path:
    folder = runs[0] if runs else run_of_tables(tables)
    if folder is None:
        raise UserError(
            f"{tables}: these tables are not in a run folder; name the folder for the pictures with --out DIR"
        )
    return folder


def _with_findings(pictures: Iterator[Drawn]) -> Iterator[Drawn]:
    """Yield pictures, and print what each shows."""
    for picture in pictures:
        print(printable(picture.finding))
        yield picture


if __name__ == "__main__":
    run_command(draw)
