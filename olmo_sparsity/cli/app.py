"""The program: its commands, its messages, and how it ends.

Exit codes: 0, done; 1, whoever read the output closed it; 2, a mistake of the user, in one line; 130, interrupted, with all work
saved. A bug ends with its traceback and code 1. Commands import torch only after their arguments are checked: that takes seconds.
"""

from __future__ import annotations

import errno
import gc
import io
import logging
import os
import pwd
import re
import sys
import tempfile
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Optional

import typer

from olmo_sparsity import __version__
from olmo_sparsity.cli import measuring, training, viewing
from olmo_sparsity.cli.options import option
from olmo_sparsity.errors import Interrupted, UserError, printable, printable_lines
from olmo_sparsity.torchrun import current_process

PROGRAM = "olmo-sparsity"
MISTAKE, INTERRUPTED = 2, 130
LONGEST_LINE = 2000  # characters
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
UsageError: Any = typer.BadParameter.__bases__[0]  # of click, or of Typer's own copy of it

logger = logging.getLogger(__name__)
app = typer.Typer(
    name=PROGRAM,
    help="How few of the earlier tokens does a language model need? Train short-context OLMo models with PoSE, unmask "
    "the k most influential long-range tokens, and measure how much of the long-context gain they recover.",
    epilog="Commands that measure train first if the run is not trained; figures also measures first. Start with: "
    "olmo-sparsity train",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
export = typer.Typer(help="Export a trained model for other programs.", no_args_is_help=True)
synth = typer.Typer(help="Synthetic tasks with known dependencies.", no_args_is_help=True)
for group, name, function in (
    (app, "prepare", training.prepare),
    (app, "train", training.train),
    (app, "influence", measuring.influence),
    (app, "list", viewing.list_runs),
    (app, "summary", viewing.summary),
    (app, "explore", measuring.explore),
    (app, "merge", measuring.merge),
    (app, "figures", viewing.figures),
    (app, "report", viewing.report),
    (app, "show", viewing.show),
    (app, "compare", viewing.compare),
    (app, "hypothesis", viewing.hypothesis),
    (app, "config", training.show_config),
    (export, "hf", training.export_hf),
    (synth, "train", training.synth_train),
    (synth, "eval", training.synth_eval),
    (synth, "summary", training.synth_summary),
):
    group.command(name)(function)
app.add_typer(export, name="export")
app.add_typer(synth, name="synth")


def _print_version(asked: bool) -> None:
    if asked:
        print(__version__)
        raise typer.Exit()


Version = Annotated[bool, option("--version", callback=_print_version, is_eager=True, help="Print the version.")]
Verbose = Annotated[bool, option("--verbose", "-v", help="Show more messages, with time and module.")]
Quiet = Annotated[bool, option("--quiet", "-q", help="Show only warnings and results.")]


@app.callback()
def _root(version: Version = False, verbose: Verbose = False, quiet: Quiet = False) -> None:
    set_up_messages(verbose=verbose, quiet=quiet)


class _StderrHandler(logging.Handler):
    """Writes ``message`` or ``warning: message`` to standard error; if a progress bar is shown, above it."""

    def emit(self, record: logging.LogRecord) -> None:
        from tqdm import tqdm  # importing it takes longer than --help may

        record.level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        with suppress(OSError, ValueError):
            tqdm.write(printable_lines(self.format(record)), file=sys.stderr)
            sys.stderr.flush()


def set_up_messages(*, verbose: bool, quiet: bool) -> None:
    """Send the log of this package to standard error; of several processes of torchrun only the leader's, and errors."""
    level = logging.WARNING if quiet else logging.DEBUG if verbose else logging.INFO
    handler = _StderrHandler()
    handler.setFormatter(logging.Formatter(("%(asctime)s %(name)s: " if verbose else "") + "%(level)s%(message)s"))
    package = logging.getLogger("olmo_sparsity")
    package.handlers = [handler]
    package.setLevel(level if current_process().is_leader else logging.ERROR)


def main(arguments: Optional[Sequence[str]] = None) -> None:
    """Run a command, and exit with its code. A mistake prints one line; a bug raises."""
    gc.set_threshold(200_000)  # modules that load make many objects and free none
    if sys.getfilesystemencoding() != "utf-8":  # an ASCII locale: names of files and text are UTF-8 all the same
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])
    _set_up_process()
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        for argument in arguments:
            if argument != argument.encode(errors="replace").decode():
                raise UserError(f"{argument}: this name is not UTF-8, which tables and pages need; rename it")
        code = app(arguments, prog_name=PROGRAM, standalone_mode=False)
        if code == INTERRUPTED:
            raise Interrupted("interrupted; the same command, without --overwrite, continues from here")
        sys.stdout.flush()
    except Interrupted as error:
        code = _end(str(error), INTERRUPTED)
    except BrokenPipeError:
        code = 1
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            error.show()
            code = MISTAKE
        else:
            code = _end(f"error: {_usage_line(error)}")
    except Exception as error:
        if (line := error_line(error)) is None:
            raise
        logger.debug("the line below comes from here:", exc_info=error)
        code = _end(f"error: {line}")
    finally:
        try:
            sys.stdout.flush()
        except OSError:  # Python would fail again when it flushes at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise SystemExit(code or 0)


def _set_up_process() -> None:
    """Give a process what daemons and containers take from it: open streams, a home, a terminal wider than 0."""
    with suppress(OSError):
        while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:  # a standard stream was closed
            pass
        os.close(opened)
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115, it stays open
        if isinstance(stream := getattr(sys, name), io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        pwd.getpwuid(os.getuid())
    except KeyError:
        os.environ.setdefault("HOME", tempfile.gettempdir())
        os.environ.setdefault("USER", str(os.getuid()))
    for name in ("COLUMNS", "LINES", "TERMINAL_WIDTH"):
        if not re.fullmatch("0*[1-9][0-9]{0,5}", os.environ.get(name, "1")):
            del os.environ[name]


def _end(line: str, code: int = MISTAKE) -> int:
    print(f"{PROGRAM}: {textwrap.shorten(printable(line), LONGEST_LINE)}", file=sys.stderr, flush=True)
    return code


def _usage_line(error: Any) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")
    command = error.ctx.command_path if error.ctx is not None else PROGRAM
    words = command.removeprefix(PROGRAM).strip()
    return f"{words + ': ' if words else ''}{message[:1].lower()}{message[1:]}; see {command} --help"


def error_line(error: Exception) -> Optional[str]:
    """One line about an error that is no bug: what is wrong, and what to do; None: it is one."""
    if isinstance(error, UserError):
        return str(error)
    text, number = str(error), getattr(error, "errno", None)
    of_rust = re.search(r"os error (\d+)\b", text)  # of safetensors and tokenizers, which raise no OSError
    if of_rust and (type(error) is Exception or type(error).__name__ == "SafetensorError"):
        number = int(of_rust[1])
    if number in DISK_FULL:
        return f"cannot write to disk ({os.strerror(number)}); free some space and run the same command again"
    if isinstance(error, OSError) and number is not None:
        name = None if isinstance(error.filename, (int, type(None))) else os.fsdecode(error.filename)
        advice = "wait, and run the same command again" if number == errno.ESTALE else "choose another, or correct it"
        return f"{name or 'a file'}: {str(error.strerror).lower()}; {advice}"
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError" or "can't allocate memory" in text:
        return f"not enough memory ({(text.splitlines() or ['none left'])[0][:200]}); use smaller batches or a smaller model"
    return None
