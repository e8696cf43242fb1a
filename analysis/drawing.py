"""What the scripts of this folder declare as ``FIGURE``, and the command line that each has.

Every figure of one measurement, or of one run, is drawn by ``olmo-sparsity figures``: a new script needs no entry elsewhere.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from olmo_sparsity.errors import UserError, only_one, printable, usage_line
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.storage.folders import check_writable
from olmo_sparsity.tables.reading import figures_folder, newest_shown, run_of_tables

from .output import Drawn, save
from .paper import Width, drawn_for, folder_for

DEFAULT_RUN = Path("runs/demo")
UsageError: Any = typer.BadParameter.__bases__[0]  # Typer's base class of mistakes in arguments
WidthOption = Annotated[
    Width,
    typer.Option(
        help="screen, or the columns of a paper: one (3.25 in) or two (6.75 in), written into a folder paper-WIDTH."
    ),
]


@dataclass(frozen=True)
class FigureOfMeasurement:
    """A figure of one measurement.

    Attributes:
        draw: draws it, in one picture or several.
    """

    draw: Callable[[Measured], Iterator[Drawn]]

    def command(self) -> None:
        """Run the command line of the script."""
        command_of([self])


@dataclass(frozen=True)
class FigureOfRuns:
    """A figure of whole runs, one or several.

    Attributes:
        draw: draws it, in one picture or several.
        is_of: whether it can be drawn of a run alone, so that it belongs to the run's figures.
    """

    draw: Callable[[list[Path]], Iterator[Drawn]]
    is_of: Callable[[Path], bool] = lambda run: False

    def command(self) -> None:
        """Run the command line of the script."""

        def command(
            run: Annotated[list[Path], typer.Option(help="Folder of a run; may be repeated.")] = [DEFAULT_RUN],  # noqa: B006
            out: Annotated[
                Optional[Path], typer.Option(help="Folder for the pictures. Default: figures/ of the first run.")
            ] = None,
            width: WidthOption = Width.screen,
        ) -> None:
            first = run[0] if run[0].exists() else Path(str(run[0]).rpartition(":")[0])  # RUN:SELECTOR
            with mistakes_in_one_line(), drawn_for(width):
                print_pictures(self.draw(run), out or first / "figures")

        run_command(command)


def command_of(figures: Iterable[FigureOfMeasurement]) -> None:
    """Run the command line of figures of a measurement."""

    def command(
        run: Annotated[
            Optional[list[Path]],
            typer.Option(help=f"Folder of the run. Default: that of --tables, or {DEFAULT_RUN}.", show_default=False),
        ] = None,
        tables: Annotated[
            Optional[list[Path]], typer.Option(help="Influence folder. Default: the run's newest.", show_default=False)
        ] = None,
        out: Annotated[
            Optional[Path], typer.Option(help="Folder for the pictures. Default: RUN/figures/NAME OF THE TABLES.")
        ] = None,
        width: WidthOption = Width.screen,
    ) -> None:
        with mistakes_in_one_line(), drawn_for(width):
            advice = "these figures are of one measurement; draw each by itself"
            of_run = only_one("--run", run, advice=advice)
            shown = only_one("--tables", tables, advice=advice) or newest_shown(of_run or DEFAULT_RUN)
            folder = of_run or run_of_tables(shown)
            if out is None:
                if folder is None:
                    raise UserError(
                        f"{shown}: these tables are not in a run folder; name the folder for the pictures with --out DIR"
                    )
                out = figures_folder(folder, shown)
            measured = Measured.read(shown)
            for figure in figures:
                print_pictures(figure.draw(measured), out)

    run_command(command)


def run_command(command: Callable[..., None]) -> None:
    """Run the command line of a script. As in ``olmo-sparsity``, ``-h`` is help, and a mistake is one line and exit code 2."""
    app = typer.Typer(
        add_completion=False,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.command()(command)
    program = _program()
    try:
        code = app(prog_name=program, standalone_mode=False)
    except UsageError as error:
        code = 2
        _print_mistake(usage_line(error, program=program, advice=_advice(error)))
    raise SystemExit(code)


def _program() -> str:
    """Return how the script was started."""
    module = sys.modules["__main__"].__spec__
    return Path(sys.argv[0]).name if module is None else f"python -m {module.name.removesuffix('.__main__')}"


def _advice(error: Any) -> str:
    """Return by which options folders are named, where one was given without an option."""
    if "unexpected extra argument" not in error.format_message():
        return ""
    options = [f"--{param.name}" for param in error.ctx.command.params if param.name in ("run", "tables")]
    return f"; name a folder with {' or '.join(options)}"


def print_pictures(drawn: Iterable[Drawn], out: Path) -> None:
    """Save pictures into a folder, and print their paths."""
    for path in saved(drawn, out):
        print(printable(str(path)))


def saved(drawn: Iterable[Drawn], out: Path) -> Iterator[Path]:
    """Save pictures into a folder, or for a paper into one inside it, and yield the path of each file."""
    check_writable(folder_for(out))
    for picture in drawn:
        yield from save(picture, folder_for(out))


class _OneLine(logging.Formatter):
    """Format a record as one line without control characters: names of files and runs may hold them."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(f"{record.levelname.lower()}: {record.getMessage()}")


@contextmanager
def mistakes_in_one_line() -> Iterator[None]:
    """Turn a mistake of the user, or an error of the operating system about a file, into one line and exit code 2.

    Warnings of the package are a line each.
    """
    handler = logging.StreamHandler()
    handler.setFormatter(_OneLine())
    logging.getLogger("olmo_sparsity").addHandler(handler)
    try:
        yield
    except UserError as error:
        line = str(error)
    except OSError as error:
        if error.errno is None:  # not of the operating system
            raise
        line = f"{error.filename or 'a file cannot be read or written'}: {error.strerror}"
    else:
        return
    finally:
        logging.getLogger("olmo_sparsity").removeHandler(handler)
    _print_mistake(line)
    raise typer.Exit(2)


def _print_mistake(line: str) -> None:
    typer.echo(f"analysis: error: {printable(line)}", err=True)
