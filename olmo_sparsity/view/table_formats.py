"""Tables of results as CSV, Markdown and LaTeX."""

from __future__ import annotations

import csv
import io
import re
import textwrap
import unicodedata
from collections.abc import Mapping, Sequence

from olmo_sparsity.errors import JOINERS
from olmo_sparsity.view.result_table import Item, ResultTable, Sentence
from olmo_sparsity.view.table_printing import least_width, parts_of

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
    "`": r"\textasciigrave{}",
}
LAST_OF_LATIN = "\u017f"  # LaTeX knows the letters up to here without further packages,
# but for these: guillemets, letters with an ogonek, and others that its default encoding lacks.
NOT_IN_LATEX = frozenset(
    "\u00ab\u00bb\u00d0\u00de\u00f0\u00fe\u0104\u0105\u0110\u0111\u0118\u0119\u0126\u0127\u012e\u012f"
)
NOT_IN_LATEX |= frozenset("\u0138\u013f\u0140\u0149\u014a\u014b\u0166\u0167\u0172\u0173\u017f")
TEX_LINE = 84  # characters of the size \\small on a line of the class article
TEX_ROWS = 30  # and as many fit on a page, with a caption
MINUS = re.compile(r"(?<![\w.-])-(?=\d)|(?<= )-(?= )")
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

    A table that is too wide or too long for a page is divided into several, each with the columns that tell rows apart.

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
    parts = parts_of(table, room=TEX_LINE) or [list(range(len(table.columns)))]
    lines: list[str] = []
    starts = range(0, max(1, len(table.rows)), TEX_ROWS)
    for start, part in ((start, part) for part in parts for start in starts):
        words = "Continued." if lines else table.caption
        caption = " ".join(sentence for sentence in (title, words, note) if sentence)
        lines += [
            r"\begin{table}",
            r"  \centering\small",
            rf"  \caption{{{in_tex(caption)}}}",
            rf"  \begin{{tabular}}{{{''.join(_tex_column(table, index) for index in part)}}}",
            r"    \toprule",
            f"    {_tex_row([_tex_head(table, index) for index in part])}",
            r"    \midrule",
            *(
                f"    {_tex_row([in_tex(row[index].text) for index in part])}"
                for row in table.rows[start : start + TEX_ROWS]
            ),
            r"    \bottomrule",
            r"  \end{tabular}",
            r"\end{table}",
        ]
    return lines


def _tex_column(table: ResultTable, index: int) -> str:
    if not table.columns[index].is_key:
        return "r"
    width, longest = least_width(table, index), max((len(row[index].text) for row in table.rows), default=0)
    return "l" if longest <= width else f"p{{{width / 2:g}em}}"  # wrapped


def _tex_head(table: ResultTable, index: int) -> str:
    column = table.columns[index]
    header = f"{column.name} ({column.unit})" if column.unit else column.name
    lines = [in_tex(line) for line in textwrap.wrap(header, least_width(table, index), break_on_hyphens=False)]
    if len(lines) == 1:
        return lines[0]
    return rf"\shortstack[{'l' if column.is_key else 'r'}]{{" + r"\\ ".join(lines) + "}"


def _tex_row(cells: list[str]) -> str:
    if cells[0][:1] in ("[", "*"):  # after a line's end LaTeX takes these as options
        cells = [f"{{}}{cells[0]}", *cells[1:]]
    return " & ".join(cells) + r" \\"


def in_tex(text: str) -> str:
    """Return text as LaTeX prints it: special characters escaped, minus signs as such, characters without a glyph by number."""
    signed = MINUS.split(_one_line(text))
    escaped = ("".join(_tex_character(character) for character in part) for part in signed)
    return "$-$".join(escaped).replace("--", "-{}-").replace("--", "-{}-")  # no dashes of two and three


def _tex_character(character: str) -> str:
    is_known = character <= LAST_OF_LATIN and character not in NOT_IN_LATEX
    return TEX.get(character, character if is_known else f"(U+{ord(character):04X})")


def _in_markdown(text: str) -> str:
    return OF_MARKDOWN.sub(r"\\\1", _one_line(text))


def _one_line(text: str) -> str:
    return "".join(c if c in JOINERS or unicodedata.category(c)[0] != "C" else " " for c in text)
