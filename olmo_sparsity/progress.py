"""Progress of long work: a bar in a terminal; elsewhere, for example in a log file, one line every half minute."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from tqdm import tqdm

logger = logging.getLogger(__name__)

_on_tokens: ContextVar[Callable[[int], object] | None] = ContextVar(
    "what is told how many tokens a model has run", default=None
)

SECONDS_BETWEEN_LINES = 30
LINE_FORMAT = (
    "{desc}: {percentage:3.0f}%, {n_fmt} of {total_fmt}{unit}, {elapsed} elapsed, {remaining} left, "
    "{rate_noinv_fmt}{postfix}"
)
SHORT_FORMAT = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}]"
TQDM_BAR = 10  # columns of tqdm's bar where the width is unknown
LEAST_BAR = 5  # columns of a bar in a terminal
COUNT_FORMAT = "{desc}: {n_fmt}{unit}, {elapsed} elapsed, {rate_noinv_fmt}{postfix}"


class _LogLines(io.TextIOBase):
    """A file whose lines become log records. tqdm writes each state of its bar as one line.

    At its end it writes the last state, even where it has just been written; such a line is left out.
    """

    _done = ""  # how much was done at the last line

    def write(self, text: str) -> int:
        if line := " ".join(text.split()):
            done = line.partition(" elapsed")[0].rpartition(", ")[0]
            if done != self._done:
                logger.info(line)
            self._done = done
        return len(text)


class _FittingBar(tqdm):
    """A bar that leaves out its last numbers, and then the rate, where the terminal has no room: none is cut."""

    def __str__(self) -> str:
        state = self.format_dict
        columns = state["ncols"]
        if not columns or not state["total"]:
            return super().__str__()
        numbers = state["postfix"].split(", ") if state["postfix"] else []
        shorter = [{"postfix": ", ".join(numbers[:count])} for count in range(len(numbers), -1, -1)]
        for change in (*shorter, {"postfix": "", "bar_format": SHORT_FORMAT}):
            state.update(change)
            if len(self.format_meter(**{**state, "ncols": None})) + LEAST_BAR - TQDM_BAR <= columns:
                break
        return self.format_meter(**state)


def progress_bar(desc: str, unit: str, *, total: int | None = None, initial: int = 0, **options: Any) -> tqdm[Any]:
    """Return a tqdm bar. If standard error is not a terminal, it logs a line every half minute instead.

    Nothing is shown if messages of level INFO are switched off (``--quiet``, or a process of ``torchrun`` other than the
    leader), and nothing is logged about work of less than half a minute.

    Call its ``set_postfix`` with ``refresh=False``; otherwise every call logs a line.

    Args:
        desc: what is being done.
        unit: what is counted, with a leading space.
        total: how many there are; None: unknown.
        initial: how many were done before.
        options: further options of tqdm.
    """
    settings: dict[str, Any] = {"desc": desc, "unit": unit, "total": total, "initial": initial, **options}
    if not logger.isEnabledFor(logging.INFO):
        return tqdm(**settings, disable=True)
    if sys.stderr.isatty():
        return _FittingBar(**settings)
    lines = {
        "file": _LogLines(),
        "delay": SECONDS_BETWEEN_LINES,
        "mininterval": SECONDS_BETWEEN_LINES,
        "maxinterval": SECONDS_BETWEEN_LINES,
        "bar_format": COUNT_FORMAT if total is None else LINE_FORMAT,
    }
    return tqdm(**settings | lines)


def count_slow_start(bar: tqdm[Any]) -> None:
    """Count the first of many equal pieces of work, which took longer than the others will; their speed is measured from now on.

    So the time that is left is not estimated from it.
    """
    if not bar.disable:
        bar.n += 1
        bar.last_print_n, bar.last_print_t = bar.n, bar._time()  # type: ignore[attr-defined]


@contextmanager
def stages(*names: str) -> Iterator[Callable[[], None]]:
    """Name in a terminal what is being done, one of several stages; what this yields begins the next one.

    Elsewhere nothing is shown of work of less than half a minute, as of every bar.
    """
    with progress_bar(names[0], " stages", total=len(names)) as bar:
        following = iter(names[1:])

        def begin_next() -> None:
            bar.set_description_str(next(following), refresh=False)  # without a colon, which the formats have
            bar.update()
            if sys.stderr.isatty():
                bar.refresh()

        yield begin_next
        bar.update()


def tokens_ran(num_tokens: int) -> None:
    """Tell that a model has run so many tokens more, to whoever asked for it with ``listening``."""
    if (listener := _on_tokens.get()) is not None:
        listener(num_tokens)


@contextmanager
def listening(on_tokens: Callable[[int], object]) -> Iterator[None]:
    """Have a function called with the number of tokens of every forward pass of a measurement."""
    token = _on_tokens.set(on_tokens)
    try:
        yield
    finally:
        _on_tokens.reset(token)
