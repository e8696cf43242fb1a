"""How a command ends: its exit code, and for a mistake one line on standard error, of one form whatever found it.

Exit codes: 0 success; 1 whoever read the output closed it; 2 a mistake of the user, reported in one line; 130 interrupted, with
all work saved. A bug ends with its traceback and code 1.
"""

from __future__ import annotations

import errno
import io
import logging
import os
import re
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, Optional

import typer

from olmo_sparsity.errors import Interrupted, UserError, printable

PROGRAM = "olmo-sparsity"
CLOSED_PIPE, MISTAKE, INTERRUPTED = 1, 2, 130  # 1 is also what rich and Typer end with at a closed pipe
LONGEST_LINE = 2000  # characters; a number of thousands of digits is not worth printing

# No space on the device, quota used up, file larger than allowed.
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
REASONS = {
    errno.EACCES: "permission denied; allow it, or name another",
    errno.EPERM: "permission denied; allow it, or name another",
    errno.EROFS: "this file system is read-only; name a folder that can be written",
    errno.ENAMETOOLONG: "the name is too long; choose a shorter one",
    errno.ELOOP: "its symbolic links lead back to themselves; correct them, or name another",
    errno.EISDIR: "this is a folder, where a file was expected",
    errno.ENOTDIR: "a file stands where this path needs a folder; choose another",
    errno.EEXIST: "something else has this name already; choose another",
    errno.ENOENT: "no such file or folder",
    errno.EMFILE: "too many open files; allow more (ulimit -n)",
    errno.ENFILE: "too many open files on this machine; close some",
    errno.EIO: "the disk cannot be read or written (input/output error); copy what is there to another",
    errno.ESTALE: "the network file system has lost this file; run the same command again",
}

# Typer's base class of mistakes in arguments. It comes from click, or from Typer's own copy of click.
UsageError: Any = typer.BadParameter.__bases__[0]

logger = logging.getLogger(__name__)


def run(app: Callable[..., Any], arguments: Optional[Sequence[str]] = None) -> int:
    """Run a command and return its exit code. A mistake prints one line; a bug raises.

    Args:
        app: the Typer application.
        arguments: of the command line, without the name of the program; None: ``sys.argv``.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    cause: Optional[Exception] = None
    _set_up_streams()
    _forget_impossible_sizes()
    try:
        _check_encoding(arguments)
        code = app(list(arguments), prog_name=PROGRAM, standalone_mode=False)
        sys.stdout.flush()
        if code == INTERRUPTED:  # Typer's, of Ctrl-C before or after the work that a command saves
            _print_line("interrupted")
        return int(code or 0)
    except UserError as error:
        line = str(error)
    except Interrupted as error:
        _print_line(str(error))
        return INTERRUPTED
    except UsageError as error:
        if type(error).__name__ == "NoArgsIsHelpError":  # its message is the help
            error.show()
            return MISTAKE
        line = _usage_line(error)
    except BrokenPipeError:
        return CLOSED_PIPE
    except OSError as error:
        if error.errno is None:
            raise
        line, cause = os_error_line(error), error
    except Exception as error:
        cause = error
        if says_disk_full(error):  # a library that does not raise OSError
            line = disk_full_line("no space left, or the file too large")
        elif is_out_of_memory(error):
            reason = (str(error).splitlines() or ["it cannot be had"])[0]
            line = f"not enough memory ({reason[:200]}); use smaller batches or a smaller model"
        else:
            raise
    finally:
        _drop_unwritten()
    if cause is not None:
        logger.debug("the line below comes from here:", exc_info=cause)
    _print_line(f"error: {line}")
    return MISTAKE


def _usage_line(error: Any) -> str:
    """Return one line about a mistake in the arguments, with the command that it was made in."""
    message = " ".join(error.format_message().split()).rstrip(".").replace(": Value error, ", ": ")
    command = error.ctx.command_path if error.ctx is not None else PROGRAM
    words = command.removeprefix(PROGRAM).strip()
    see = " See" if message.endswith("?") else "; see"
    return f"{words + ': ' if words else ''}{message[:1].lower()}{message[1:]}{see} {command} --help"


def _drop_unwritten() -> None:
    """Let output that cannot be written go nowhere. Otherwise Python would fail again when it flushes at its end."""
    with suppress(ValueError):  # closed, or no file
        try:
            sys.stdout.flush()
        except OSError:
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _print_line(line: str) -> None:
    line = printable(line)
    if len(line) > LONGEST_LINE:
        line = f"{line[: LONGEST_LINE // 2]} ... {line[-LONGEST_LINE // 2 :]}"
    print(f"{PROGRAM}: {line}", file=sys.stderr, flush=True)


def _set_up_streams() -> None:
    """Make standard output accept all characters, and exist: a terminal may be ASCII, and a stream closed."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, it stays open
        elif isinstance(stream, io.TextIOWrapper) and stream.errors == "strict":
            stream.reconfigure(errors="replace")


def _forget_impossible_sizes() -> None:
    """Leave out sizes of a terminal that are no positive numbers. Programs without one set 0, with which nothing is printed."""
    for name in ("COLUMNS", "LINES", "TERMINAL_WIDTH"):  # the last one is read by Typer
        if not re.fullmatch("0*[1-9][0-9]{0,5}", os.environ.get(name, "1")):
            del os.environ[name]


def _check_encoding(arguments: Sequence[str]) -> None:
    """Check that all arguments and the current folder are UTF-8, as everything is that they are written into.

    Raises:
        UserError: one is not.
    """
    folder = []
    with suppress(OSError):  # it was deleted; what needs it says so
        folder.append(os.getcwd())
    for argument in [*arguments, *folder]:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise UserError(
                f"{argument}: this name is not UTF-8, and could not be written into tables and pages; rename it"
            ) from None


def disk_full_line(reason: str) -> str:
    """Return the line about a disk that is full."""
    return f"cannot write to disk ({reason}); free some space and run the same command again, to continue from what was saved"


def says_disk_full(error: Exception) -> bool:
    """Return True for an error of safetensors, or of tokenizers, that wraps one of ``DISK_FULL``. The latter are bare."""
    numbers = "|".join(map(str, DISK_FULL))
    is_theirs = type(error) is Exception or type(error).__name__ == "SafetensorError"
    return is_theirs and re.search(rf"os error ({numbers})\b", str(error)) is not None


def is_out_of_memory(error: Exception) -> bool:
    """Return True for an error of Python, numpy or torch that says that memory is not enough. Torch is not imported."""
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"
        or "can't allocate memory" in str(error)
    )


def os_error_line(error: OSError) -> str:
    """Return one line about an error of the operating system: the file, why, and what to do."""
    if error.errno in DISK_FULL:
        return disk_full_line(str(error.strerror))
    reason = REASONS.get(error.errno or 0, f"{error.strerror}; choose another")
    if error.filename is None or isinstance(error.filename, int):
        return f"a file cannot be read or written: {reason}"
    return f"{os.fsdecode(error.filename)}: {reason}"
