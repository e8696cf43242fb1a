"""Messages of the commands: which log records are shown on standard error, and how. The options that say so."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from olmo_sparsity.cli.endings import UsageError
from olmo_sparsity.errors import printable, printable_lines
from olmo_sparsity.torchrun import current_process

PACKAGE_LOGGER = logging.getLogger("olmo_sparsity")


class _StderrHandler(logging.Handler):
    """Write records to standard error; if a progress bar is shown, above it."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm  # importing it takes longer than --help may

        try:
            tqdm.write(self.format(record), file=sys.stderr)
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class _LineFormatter(logging.Formatter):
    """Format a record as ``message`` or ``warning: message``; with ``verbose``, time and module come first."""

    def __init__(self, *, verbose: bool) -> None:
        super().__init__("%(asctime)s %(name)s: %(level)s%(message)s" if verbose else "%(level)s%(message)s")

    def format(self, record: logging.LogRecord) -> str:
        record.level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return printable_lines(super().format(record))  # a traceback keeps its lines


def set_up_messages(*, verbose: bool = False, quiet: bool = False) -> None:
    """Send the log of this package to standard error. Standard output is for results.

    Under ``torchrun``, only the leader (rank 0) shows messages; the other processes show errors only.

    Args:
        verbose: show debug messages, too, and the time and module of every message.
        quiet: show warnings and errors only; takes precedence over ``verbose``.

    Raises:
        UserError: the environment variables of torchrun contradict each other.
    """
    if not current_process().is_leader:
        level = logging.ERROR
    elif quiet:
        level = logging.WARNING
    else:
        level = logging.DEBUG if verbose else logging.INFO
    handler = _StderrHandler()
    handler.setFormatter(_LineFormatter(verbose=verbose))
    for earlier in [handler for handler in PACKAGE_LOGGER.handlers if isinstance(handler, _StderrHandler)]:
        PACKAGE_LOGGER.removeHandler(earlier)
    PACKAGE_LOGGER.addHandler(handler)
    PACKAGE_LOGGER.setLevel(level)


def set_up_asked_messages(context: typer.Context) -> None:
    """Send the log to standard error as ``--verbose`` and ``--quiet`` say, wherever on the command line they stand."""
    set_up_messages(verbose="verbose" in context.meta, quiet="quiet" in context.meta)


def note_option(context: typer.Context, option: typer.CallbackParam, is_given: bool) -> None:
    """Do what ``--verbose`` or ``--quiet`` says."""
    if is_given:
        context.meta[str(option.name)] = True  # the program and its command have this in common
        set_up_asked_messages(context)


def _parsed(parse: Callable[[Any, list[str]], list[str]], context: Any, arguments: list[str]) -> list[str]:
    """Parse arguments; a mistake in them names its command, which the parser leaves out of some."""
    try:
        return parse(context, arguments)
    except UsageError as error:
        error.ctx = error.ctx or context
        raise


def _without_types_of_flags(params: list[Any]) -> list[Any]:
    """Return parameters; help shows no type of those that take no value, where Typer writes ``<bool>``."""
    for param in params:
        if getattr(param, "is_flag", False):
            param.metavar = ""
    return params


class Command(TyperCommand):
    """A command whose mistakes name it."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of the command."""
        return _without_types_of_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the command."""
        return _parsed(super().parse_args, ctx, args)


class Group(TyperGroup):
    """A group of commands whose mistakes name it."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the parameters of the group."""
        return _without_types_of_flags(super().get_params(ctx))

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Parse the arguments of the group."""
        return _parsed(super().parse_args, ctx, args)


class Program(Group):
    """The commands of a program; ``--verbose`` and ``--quiet`` may also stand after each of them."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self._share([option for option in self.params if option.name in ("verbose", "quiet")], self)

    def _share(self, options: list[Any], group: TyperGroup) -> None:
        for command in group.commands.values():
            command.params += options
            if isinstance(command, TyperGroup):
                self._share(options, command)


def print_line(result: object, *, to_stderr: bool = False) -> None:
    """Print one result, such as a path, on a line of its own, without control characters."""
    print(printable(str(result)), file=sys.stderr if to_stderr else sys.stdout, flush=to_stderr)
