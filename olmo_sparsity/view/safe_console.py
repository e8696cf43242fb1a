"""The console through which everything goes to the terminal: what it prints has no control characters but rich's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from olmo_sparsity.errors import printable


class SafeConsole(Console):
    """A console that shows texts as they are: without markup, and with their control characters replaced.

    Names of runs, files, classes and selectors come from tables that others may have written.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: Optional[ConsoleOptions] = None) -> Iterable[Segment]:
        """Yield the segments of what is printed. Those that rich controls the terminal with are left alone."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(printable, segment.text.split("\n"))), segment.style)
