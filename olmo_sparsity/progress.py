"""Progress of long work: a bar in a terminal; elsewhere, for example in a log file, one line every half minute."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, Optional

from tqdm import tqdm

logger = logging.getLogger(__name__)
SECONDS_BETWEEN_LINES = 30
LINE = "{desc}: {percentage:3.0f}%, {n_fmt} of {total_fmt}{unit}, {elapsed} elapsed, {remaining} left, {rate_noinv_fmt}{postfix}"
COUNT_LINE = "{desc}: {n_fmt}{unit}, {elapsed} elapsed, {rate_noinv_fmt}{postfix}"  # where the total is unknown
_on_tokens: ContextVar[Callable[[int], object]] = ContextVar("called with tokens", default=lambda num_tokens: None)


class _LogLines(io.TextIOBase):
    """A file whose lines become log records; tqdm writes its last state twice, which is logged once."""

    _line = ""

    def write(self, text: str) -> int:
        line = " ".join(text.split())
        if line and line != self._line:
            logger.info(line)
            self._line = line
        return len(text)


def progress_bar(desc: str, unit: str, *, total: Optional[int] = None, **options: Any) -> tqdm[Any]:
    """Return a tqdm bar, which is shown where messages of level INFO are; ``unit`` begins with a space.

    Call ``set_postfix`` with ``refresh=False``; otherwise every call logs a line.
    """
    if logger.isEnabledFor(logging.INFO) and not sys.stderr.isatty():
        options |= dict.fromkeys(("delay", "mininterval", "maxinterval"), SECONDS_BETWEEN_LINES)
        options |= {"file": _LogLines(), "bar_format": COUNT_LINE if total is None else LINE}
    return tqdm(desc=desc, unit=unit, total=total, disable=not logger.isEnabledFor(logging.INFO), **options)


def tokens_ran(num_tokens: int) -> None:
    """Tell whoever is ``listening`` that a model has run so many tokens."""
    _on_tokens.get()(num_tokens)


@contextmanager
def listening(on_tokens: Callable[[int], object]) -> Iterator[None]:
    """Have a function called with the number of tokens of every forward pass of a measurement."""
    token = _on_tokens.set(on_tokens)
    try:
        yield
    finally:
        _on_tokens.reset(token)
