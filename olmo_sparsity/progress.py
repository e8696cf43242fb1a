"""Progress of long work: a bar in a terminal, elsewhere a line of the log every half minute."""

from __future__ import annotations

import io
import logging
import sys
from typing import Any

from tqdm import tqdm

logger = logging.getLogger(__name__)

SECONDS_BETWEEN_LINES = 30
LINE_FORMAT = (
    "{desc}: {percentage:3.0f}%, {n_fmt} of {total_fmt}{unit}, {elapsed} elapsed, {remaining} left, {rate_fmt}{postfix}"
)
COUNT_FORMAT = "{desc}: {n_fmt}{unit}, {elapsed} elapsed, {rate_fmt}{postfix}"


class _LogLines(io.TextIOBase):
    """A file whose lines become records of the log; tqdm writes each state of its bar as one line."""

    def write(self, text: str) -> int:
        if line := text.strip():
            logger.info(line)
        return len(text)


def progress_bar(desc: str, unit: str, *, total: int | None = None, initial: int = 0, **options: Any) -> tqdm[Any]:
    """Return a tqdm bar; where standard error is no terminal it writes a line to the log every half minute.

    Nothing is shown where messages of level INFO are switched off (``--quiet``, or a process of torchrun that is not
    the first).

    Args:
        desc: what is being done.
        unit: what is counted, with a leading space.
        total: how many there are; None: unknown.
        initial: how many were done before.
        options: further options of tqdm.
    """
    shown: dict[str, Any] = {"desc": desc, "unit": unit, "total": total, "initial": initial, **options}
    if not logger.isEnabledFor(logging.INFO):
        return tqdm(**shown, disable=True)
    if sys.stderr.isatty():
        return tqdm(**shown)
    return tqdm(
        **shown,
        file=_LogLines(),
        delay=SECONDS_BETWEEN_LINES,
        mininterval=SECONDS_BETWEEN_LINES,
        maxinterval=SECONDS_BETWEEN_LINES,
        bar_format=COUNT_FORMAT if total is None else LINE_FORMAT,
    )
