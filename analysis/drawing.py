"""What the files of this folder declare as ``FIGURE``, and what their command lines share.

Every figure of one measurement, or of one run, is drawn by ``olmo-sparsity figures``: a new file needs no entry elsewhere.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Union

import typer

from olmo_sparsity.errors import UserError, printable, usage_line
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.storage.folders import check_writable

from .output import Drawn, save

UsageError: Any = typer.BadParameter.__bases__[0]  # Typer's base class of mistakes in arguments


@dataclass(frozen=True)
class FigureOfMeasurement:
    """A figure of one measurement, in one picture or several."""

    draw: Callable[[Measured], Iterator[Drawn]]


@dataclass(frozen=True)
class FigureOfRuns:
    """A figure of whole runs, one or several, in one picture or several.

    Attributes:
        draw: draws it.
        is_of: whether it can be drawn of a run alone, so that it belongs to the run's figures.
    """

    draw: Callable[[list[Path]], Iterator[Drawn]]
    is_of: Callable[[Path], bool] = lambda run: False


@dataclass(frozen=True)
class FigureOfLengths:
    """A figure of measurements of the same targets at several lengths, by the folders of their tables."""

    draw: Callable[[list[Path]], Iterator[Drawn]]


Figure = Union[FigureOfMeasurement, FigureOfRuns, FigureOfLengths]


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


def saved(drawn: Iterable[Drawn], out: Path) -> Iterator[Path]:
    """Save pictures into a folder, and yield the path of each file."""
    check_writable(out)
    for picture in drawn:
        yield from save(picture, out)


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
