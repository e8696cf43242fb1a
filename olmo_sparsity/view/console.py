"""The console on which everything is printed: it shows no control characters but rich's own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Optional

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from olmo_sparsity.errors import printable


class SafeConsole(Console):
    """Shows texts as they are, without markup: names of runs, files and selectors may come from others."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: Optional[ConsoleOptions] = None) -> Iterable[Segment]:
        """Yield the segments that are printed; those by which rich controls the terminal are left alone."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment("\n".join(map(printable, segment.text.split("\n"))), segment.style)
