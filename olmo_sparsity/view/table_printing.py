"""Tables in the terminal. A number is never cut or wrapped: a table too wide for the terminal is printed in parts."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table
from rich.text import Text

from olmo_sparsity.errors import printable
from olmo_sparsity.view.result_table import Column, Item, ResultTable
from olmo_sparsity.view.safe_console import SafeConsole

SENTENCE_END = re.compile(r"(?<=\.) +")
BORDER = 3  # columns of the terminal that a column of a table takes beside its text
HEADER_LINES = 3  # of a column's header, where its words allow it
WIDEST_KEY = 22  # columns of the terminal; a longer key is wrapped where there is no room


def results_console() -> Console:
    """Return where results are printed: as wide as the terminal; in a pipe or file as ``COLUMNS`` says, or 80 columns."""
    return SafeConsole()


def print_items(items: Sequence[Item], console: Console) -> None:
    """Print sentences and tables."""
    for item in items:
        if isinstance(item, ResultTable):
            print_table(item, console)
        else:
            print_sentences(item.text, console, style="bold" if item.is_bold else "")


def print_sentences(text: str, console: Console, *, style: str = "") -> None:
    """Print each sentence of a text from the beginning of a line on, indented as the text is."""
    indent = text[: len(text) - len(text.lstrip())]
    for number, sentence in enumerate(SENTENCE_END.split(text)):
        _print_words(f"{indent if number else ''}{sentence}", console, style=style)


def _print_words(text: str, console: Console, *, style: str) -> None:
    """Print a sentence: wrapped in a terminal, whole on one line in a pipe or file, where programs look for it."""
    console.print(Text(text, style=style), soft_wrap=not console.is_terminal)


def print_table(table: ResultTable, console: Console) -> None:
    """Print a table with all its numbers.

    Where it is wider than the terminal, its columns are divided into several tables, each with the columns that tell rows apart.
    Where not even one column fits beside those, each row becomes a list.
    """
    if table.title:
        console.print()  # or the title would read on from the sentence above it
        _print_words(table.title, console, style="bold italic")
    parts = parts_of(table, room=console.width)
    if parts is None:
        _print_as_lists(table, console)
    else:
        for part in parts:
            console.print(_part_of(table, part))
    if table.caption:
        print_sentences(table.caption, console, style="italic")


def _texts(table: ResultTable, index: int) -> list[str]:
    """Return the cells of a column as they are printed: what stands for a control character takes room, which itself does not."""
    return [printable(row[index].text) for row in table.rows]


def _header(table: ResultTable, index: int) -> str:
    return printable(table.columns[index].header)


def _longest_word(text: str) -> int:
    return max((cell_len(word) for word in text.split()), default=1)


def least_width(table: ResultTable, index: int) -> int:
    """Return the least width of a column: that of its widest number, or of a wrapped key, and of its header's words."""
    header, texts = _header(table, index), [*_texts(table, index), ""]
    if table.columns[index].is_key:
        return max(max(min(cell_len(text), WIDEST_KEY), _longest_word(text)) for text in [*texts, header])
    widest = max(max(cell_len(text) for text in texts), _longest_word(header))
    while len(textwrap.wrap(header, widest)) > HEADER_LINES:
        widest += 1
    return widest


def parts_of(table: ResultTable, *, room: int) -> list[list[int]] | None:
    """Return the columns of each part of a table, keys first; None where the keys leave no room for some column.

    Args:
        table: the table.
        room: characters that a line has.
    """
    widths = [least_width(table, index) for index in range(len(table.columns))]
    num_keys = len(table.keys)
    of_keys = list(range(num_keys))
    taken = 1 + sum(widths[index] + BORDER for index in of_keys)
    parts: list[list[int]] = []
    left = 0
    for index in range(num_keys, len(table.columns)):
        needed = widths[index] + BORDER
        if needed > left:
            parts.append(list(of_keys))
            left = room - taken
        if needed > left:
            return None
        parts[-1].append(index)
        left -= needed
    return parts


def _part_of(table: ResultTable, part: list[int]) -> Table:
    printed = Table()
    for index in part:
        header, width = _header(table, index), least_width(table, index)
        if table.columns[index].is_key:
            printed.add_column(Text(header), min_width=width, overflow="fold")
        else:
            header = textwrap.fill(header, width, break_on_hyphens=False)
            printed.add_column(Text(header), min_width=width, no_wrap=True)
    for texts in zip(*(_texts(table, index) for index in part), strict=True):
        printed.add_row(*map(Text, texts))
    return printed


def _print_as_lists(table: ResultTable, console: Console) -> None:
    num_keys = len(table.keys)
    for row in table.rows:
        named = [
            _named(column, cell.text) if cell.text else "" for column, cell in zip(table.columns, row, strict=True)
        ]
        console.print(Text(", ".join(filter(None, named[:num_keys])), style="bold"))
        for words in filter(None, named[num_keys:]):
            console.print(Text(f"  {words}"))


def _named(column: Column, text: str) -> str:
    return f"{column.header}: {text}"
