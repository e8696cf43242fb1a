"""How everything is printed: numbers with their intervals, tables, and a console that shows no control characters but rich's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, Optional

import pandas as pd
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from olmo_sparsity.errors import printable_lines
from olmo_sparsity.statistics.quantities import QUANTITIES

WIDEST_LABEL = 28  # longer ones are wrapped
NULL = {"document": "another document's text", "shuffled": "the same tokens, shuffled"}


class SafeConsole(Console):
    """Shows texts as they are, without markup: names of runs, files and selectors may come from others."""

    def __init__(self, **options: Any) -> None:
        super().__init__(markup=False, emoji=False, highlight=False, **options)

    def render(self, renderable: RenderableType, options: Optional[ConsoleOptions] = None) -> Iterable[Segment]:
        """Yield the segments that are printed; those by which rich controls the terminal are left alone."""
        for segment in super().render(renderable, options):
            is_safe = segment.control or segment.text.isprintable()
            yield segment if is_safe else segment._replace(text=printable_lines(segment.text))


def number(row: Any, digits: Optional[int] = None, *, end: str = "", unit: str = "") -> str:
    """A value and its interval, such as ``0.071 [0.063, 0.080]``, by default with the digits of the quantity.

    ``end`` is what the names of the three keys end with. ``unit="%"`` writes a share in percent.
    """
    if digits is None:
        digits = QUANTITIES[row["quantity"]].digits if row.get("quantity") in QUANTITIES else 2
    scale = 100 if unit == "%" else 1
    value, low, high = (round(scale * float(row[name + end]), digits) + 0.0 for name in ("value", "low", "high"))
    interval = "" if pd.isna(low) else f" [{low:.{digits}f}, {high:.{digits}f}]"
    return f"{value:.{digits}f}{unit}{interval}"


def percent(row: Any) -> str:
    """A share and its interval, such as ``91% [85, 98]``; ``-`` where there is none."""
    return "-" if row is None else number(row, 0, unit="%")


def null_context(manifest: Mapping[str, Any]) -> str:
    """What is in place of the earlier tokens in the null context of a measurement."""
    return NULL[manifest["influence"].get("null_context", "document")]


def json_of(facts: Mapping[str, Any], frame: pd.DataFrame) -> str:
    """JSON of some facts and of the records of a frame; what is missing is null."""
    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return json.dumps({**facts, "estimates": records}, indent=2)


def markdown_of(table: pd.DataFrame) -> str:
    """A table in Markdown; to_markdown of pandas needs another package."""
    rows = [list(table.columns), ["---"] * table.shape[1], *table.to_numpy().tolist()]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


def print_table(table: pd.DataFrame, console: Console) -> None:
    """Print a table of texts as wide as its content; on a narrower screen intervals go below their values, and nothing is cut."""
    widths = [max(map(cell_len, cells), default=0) + 2 for cells in table.to_numpy().T.tolist()]
    if min(widths[0], WIDEST_LABEL) + sum(widths[1:]) - 2 > console.width:
        table = table.map(lambda cell: cell.replace(" [", "\n["))
    printed = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in table.columns:
        printed.add_column(Text(column), overflow="fold")
    for row in table.to_numpy().tolist():
        printed.add_row(*map(Text, row))
    console.print(printed)
