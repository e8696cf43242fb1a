"""Messages of the commands: what the log shows on standard error, at which level."""

from __future__ import annotations

import logging
import sys

from tqdm import tqdm

from olmo_sparsity.torchrun import current_process

PACKAGE_LOGGER = logging.getLogger("olmo_sparsity")


class _StderrHandler(logging.Handler):
    """Write records to standard error, above a progress bar where there is one."""

    def emit(self, record: logging.LogRecord) -> None:
        try:
            tqdm.write(self.format(record), file=sys.stderr)
            sys.stderr.flush()
        except Exception:
            self.handleError(record)


class _LineFormatter(logging.Formatter):
    """``message``, ``warning: message``, and with ``verbose`` the time and the module before it."""

    def __init__(self, verbose: bool) -> None:
        super().__init__("%(asctime)s %(name)s: %(message)s" if verbose else "%(message)s")
        self._verbose = verbose

    def format(self, record: logging.LogRecord) -> str:
        line = super().format(record)
        level = f"{record.levelname.lower()}: " if record.levelno >= logging.WARNING else ""
        return level + line


def set_up_messages(*, verbose: bool = False, quiet: bool = False) -> None:
    """Send this package's log to standard error: standard output is for results.

    Of the processes that torchrun starts on one machine's terminal, the first alone shows messages.

    Args:
        verbose: also details, each line with its time and module.
        quiet: warnings and errors only.

    Raises:
        UserError: the environment variables of torchrun do not fit each other.
    """
    if not current_process().is_leader:
        level = logging.ERROR
    elif quiet:
        level = logging.WARNING
    else:
        level = logging.DEBUG if verbose else logging.INFO
    handler = _StderrHandler()
    handler.setFormatter(_LineFormatter(verbose))
    for earlier in [handler for handler in PACKAGE_LOGGER.handlers if isinstance(handler, _StderrHandler)]:
        PACKAGE_LOGGER.removeHandler(earlier)
    PACKAGE_LOGGER.addHandler(handler)
    PACKAGE_LOGGER.setLevel(level)
