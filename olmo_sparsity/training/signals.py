"""Signals that stop training: they are collected, so that the run is saved before it ends."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def collect_stop_signals(*, ignore_repeats: bool) -> Iterator[list[int]]:
    """Collect SIGINT and SIGTERM in the returned list, instead of ending the process.

    Args:
        ignore_repeats: False: a second signal of the same kind ends the process at once. True: it is collected, too. This
            is for torchrun, which may pass a signal on several times, and itself kills processes that take too long.
    """
    caught: list[int] = []

    def handle(number: int, _frame: Any) -> None:
        caught.append(number)
        if not ignore_repeats:
            signal.signal(number, signal.SIG_DFL)

    handlers_before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield caught
    finally:
        for number, handler in handlers_before.items():
            signal.signal(number, handler)
