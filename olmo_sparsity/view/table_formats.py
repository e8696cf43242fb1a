"""Tables of results as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import re
import unicodedata
from collections.abc import Mapping, Sequence

from olmo_sparsity.view.result_table import Item, ResultTable, Sentence

TEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    '"': r"''",
}
LAST_OF_LATIN = "\u017f"  # LaTeX knows the letters up to here without further packages
NEGATIVE = re.compile(r"(?<![\w.])-(?=\d)")
OF_MARKDOWN = re.compile(r"([\\`*_{}\[\]<>#|~&!])")


def csv_of(items: Sequence[Item], about: Mapping[str, str]) -> str:
    """Return the tables as one CSV, a row a cell: in which table and row it stands, its name and unit, its numbers, its text.

    Numbers are not rounded. Missing ones are empty.

    Args:
        items: what a command prints; the sentences are left out.
        about: values that every row has, by column: those of the whole measurement.
    """
    tables = [item for item in items if isinstance(item, ResultTable)]
    names = list(dict.fromkeys(column.name for table in tables for column in table.keys))
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow([*about, "table", *names, "number", "unit", "value", "low", "high", "text"])
    for table in tables:
        for row in table.rows:
            key = {column.name: cell.text for column, cell in zip(table.columns, row, strict=True) if column.is_key}
            for column, cell in zip(table.columns, row, strict=True):
                if not column.is_key:
                    numbers = ["" if value is None else repr(value) for value in (cell.value, cell.low, cell.high)]
                    place = [*about.values(), table.name, *(key.get(name, "") for name in names)]
                    writer.writerow([*place, column.name, column.unit, *numbers, cell.text])
    return out.getvalue()


def markdown_of(items: Sequence[Item]) -> str:
    """Return sentences and tables as Markdown."""
    blocks = []
    for item in items:
        if isinstance(item, Sentence):
            text = _in_markdown(item.text)
            blocks.append(f"**{text}**" if item.is_bold else text)
            continue
        lines = [[_in_markdown(column.header) for column in item.columns]]
        lines.append(["---" if column.is_key else "---:" for column in item.columns])
        lines += [[_in_markdown(cell.text) if cell.value is None else cell.text for cell in row] for row in item.rows]
        blocks += [f"### {_in_markdown(item.title)}"] if item.title else []
        blocks.append("\n".join(f"| {' | '.join(line)} |" for line in lines))
        blocks += [_in_markdown(item.caption)] if item.caption else []
    return "\n\n".join(blocks) + "\n"


def tex_of(items: Sequence[Item], note: str) -> str:
    """Return tables for LaTeX with the package ``booktabs``; the sentences are comments.

    Args:
        items: what a command prints.
        note: what the caption of each table ends with.
    """
    lines = [r"% \usepackage{booktabs}"]
    for item in items:
        if isinstance(item, Sentence):
            lines.append(f"% {_one_line(item.text)}")
        else:
            lines += ["", *_tex_table(item, note)]
    return "\n".join(lines) + "\n"


def _tex_table(table: ResultTable, note: str) -> list[str]:
    title = f"{table.title[:1].upper()}{table.title[1:]}." if table.title else ""
    caption = " ".join(words for words in (title, table.caption, note) if words)
    columns = "".join("l" if column.is_key else "r" for column in table.columns)
    heads = [f"{column.name} ({column.unit})" if column.unit else column.name for column in table.columns]
    rows = [[cell.text for cell in row] for row in table.rows]
    return [
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{in_tex(caption)}}}",
        rf"  \begin{{tabular}}{{{columns}}}",
        r"    \toprule",
        f"    {_tex_row(heads)}",
        r"    \midrule",
        *(f"    {_tex_row(row)}" for row in rows),
        r"    \bottomrule",
        r"  \end{tabular}",
        r"\end{table}",
    ]


def _tex_row(texts: Sequence[str]) -> str:
    cells = [in_tex(text) for text in texts]
    if cells[0][:1] in ("[", "*"):  # after a line's end LaTeX takes these as options
        cells[0] = f"{{}}{cells[0]}"
    return " & ".join(cells) + r" \\"


def in_tex(text: str) -> str:
    """Return text as LaTeX prints it: special characters escaped, minus signs as such, characters without a glyph by number."""
    signed = NEGATIVE.split(_one_line(text))
    return "$-$".join("".join(_tex_character(character) for character in part) for part in signed)


def _tex_character(character: str) -> str:
    return TEX.get(character, character if character <= LAST_OF_LATIN else f"(U+{ord(character):04X})")


def _in_markdown(text: str) -> str:
    return OF_MARKDOWN.sub(r"\\\1", _one_line(text))


def _one_line(text: str) -> str:
    return "".join(" " if unicodedata.category(character)[0] == "C" else character for character in text)
