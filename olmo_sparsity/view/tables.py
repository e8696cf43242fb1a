"""What commands print: the frame of estimates as one screen, or as JSON, CSV, Markdown or LaTeX.

A table is a DataFrame of texts. The header of its first column says what its numbers are.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Literal, Optional

import numpy as np
import pandas as pd
from rich.cells import cell_len
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from olmo_sparsity.errors import printable_lines
from olmo_sparsity.selectors import CONTROLS
from olmo_sparsity.statistics.compare import CHOSEN, ENDS, Comparison
from olmo_sparsity.statistics.enough import few, share_at
from olmo_sparsity.statistics.quantities import QUANTITIES, first_blind, gate, pick, selectors_of, shown_ks
from olmo_sparsity.view.console import SafeConsole
from olmo_sparsity.view.text import (
    Answer,
    answers,
    caution,
    first_token_line,
    measured_line,
    number,
    percent,
)

Form = Literal["text", "json", "csv", "md", "tex"]
KEYS = ["group", "selector", "context", "k", "x"]
SHOWN = ("kl", "attention", "unmask-one", "random", "nearest")  # where they were measured
MOST_COLUMNS = 3  # of k, on a screen of 80 columns
WIDEST_LABEL = 28  # longer ones are wrapped
STYLES = {"YES": "bold green", "NO": "bold red"}
PAIRED = {
    True: "Both measured the same windows: differences are paired, window by window.",
    False: "The windows differ: intervals of differences include the draw of the text.",
}
MORE = "Foreign text: tokens of another document. More: `summary --every`, `report`"


def shown_selectors(frame: pd.DataFrame) -> list[str]:
    """The selectors of a screen: the usual ones that were measured and those of the user's own files, else all."""
    measured, own = list(selectors_of(frame).index), frame.attrs["manifest"].get("own_selectors", {})
    return [name for name in (*SHOWN, *own) if name in measured] or measured


def columns_of_k(frame: pd.DataFrame) -> list[int]:
    """The shown k; where they do not fit, some from the first to the last."""
    ks = shown_ks(frame)
    return [ks[place] for place in np.linspace(0, len(ks) - 1, min(len(ks), MOST_COLUMNS)).round().astype(int)]


def recovered_table(frame: pd.DataFrame) -> pd.DataFrame:
    """R(k) by selector and k; empty where the gate did not pass."""
    sees = selectors_of(frame)["sees_target"]
    rows = {f"{name}, sees target" if sees[name] else name: (name, "real") for name in shown_selectors(frame)}
    return _shares(frame, "recovered_fraction", "Gain given back (R)", rows, columns_of_k(frame))


def spectrum_table(frame: pd.DataFrame) -> pd.DataFrame:
    """Shares of the predictions that need at most k tokens: of the first blind selector, real and null, and of the controls."""
    chosen = first_blind(frame)
    rows = {chosen: (chosen, "real"), f"{chosen}, foreign text": (chosen, "null")} if chosen else {}
    rows |= {name: (name, "real") for name in ("random", "nearest") if name in selectors_of(frame).index}
    return _shares(frame, "spectrum_share", "Predict as all do", rows, [0, *columns_of_k(frame)])


def _shares(
    frame: pd.DataFrame, quantity: str, title: str, rows: dict[str, tuple[str, str]], ks: list[int]
) -> pd.DataFrame:
    """A row for each selector and context; empty where the gate did not pass, or the quantity was not estimated."""
    if gate(frame) != "above" or quantity not in set(frame["quantity"]):
        return pd.DataFrame()
    cells = [[percent(share_at(frame, quantity, name, k, context)) for k in ks] for name, context in rows.values()]
    table = pd.DataFrame(cells, columns=[f"k = {k}" for k in ks])
    table.insert(0, title, list(rows))
    return table


def seeing_line(frame: pd.DataFrame, k: Optional[int]) -> str:
    """How much of the gain of a selector that sees the target is optimism at k; empty where none was measured."""
    sees = selectors_of(frame)["sees_target"]
    name = next((name for name in shown_selectors(frame) if sees[name]), None)
    names = ("gain_sparse_nats", "optimism_nats", "corrected_gain_nats")
    gain, optimism, left = (pick(frame, of, selector=name, context="real", k=k) for of in names)
    if k is None or name is None or gain is None or optimism is None:
        return ""
    return f"{name}, k = {k}: gain {gain['value']:.3f} - luck (optimism) {optimism['value']:.3f} = {number(left)}"


def every_table(frame: pd.DataFrame) -> list[pd.DataFrame]:
    """All numbers, in a table for each set of keys that rows have."""
    frame, tables = pd.DataFrame(frame, copy=False), []  # without its attributes, which pandas copies at every step
    for _, rows in frame.groupby([frame[key].notna() for key in KEYS], sort=False):
        kept = [key for key in KEYS if rows[key].notna().any()]
        texts = rows[kept].astype(object).map(lambda key: f"{key:g}" if isinstance(key, float) else str(key))
        texts.insert(0, "quantity", rows["quantity"])
        tables.append(texts.assign(value=[number(row) for _, row in rows.iterrows()]))
    return tables


def json_of(facts: dict[str, Any], frame: pd.DataFrame) -> str:
    """JSON of some facts and of the records of a frame; what is missing is null."""
    records = frame.astype(object).where(frame.notna(), None).to_dict("records")
    return json.dumps({**facts, "estimates": records}, indent=2)


def markdown_of(table: pd.DataFrame) -> str:
    """A table in Markdown; to_markdown of pandas needs another package."""
    rows = [list(table.columns), ["---"] * table.shape[1], *table.to_numpy().tolist()]
    return "".join(f"| {' | '.join(str(cell).replace('|', chr(92) + '|') for cell in row)} |\n" for row in rows)


def print_table(table: pd.DataFrame, console: SafeConsole) -> None:
    """Print a table as wide as its content; on a narrower screen intervals go below their values, and nothing is cut."""
    widths = [max(map(cell_len, cells), default=0) + 2 for cells in table.to_numpy().T.tolist()]
    if min(widths[0], WIDEST_LABEL) + sum(widths[1:]) - 2 > console.width:
        table = table.map(lambda cell: cell.replace(" [", "\n["))
    printed = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for column in table.columns:
        printed.add_column(Text(column), overflow="fold")
    for row in table.to_numpy().tolist():
        printed.add_row(*map(Text, row))
    console.print(printed)


def print_summary(frame: pd.DataFrame, *, every: bool = False, form: Form = "text") -> None:
    """Print what a measurement found: answers, two tables and a caution; with ``every`` all numbers in place of the tables."""
    if form == "csv":
        print(printable_lines(frame.to_csv(index=False)), end="")
        return
    manifest, found, (k, _) = frame.attrs["manifest"], answers(frame), few(frame)
    warning = caution(frame, k)
    if form == "json":
        facts = {"manifest": manifest, "answers": [asdict(answer) for answer in found], "caution": warning}
        print(json_of(facts, frame))
        return
    title = measured_line(manifest, frame)
    tables = every_table(frame) if every else [recovered_table(frame), spectrum_table(frame)]
    tables = [table for table in tables if len(table)]
    notes = [line for line in (seeing_line(frame, k), warning, first_token_line(manifest)) if line]
    if form == "text":
        _print_screen(title, found, tables, [*notes, MORE])
        return
    lines = [f"{of.question} {' '.join(filter(None, (of.verdict, of.number)))}. {of.sentence}" for of in found]
    start = "%" if form == "tex" else "-"
    texts = [table.to_latex(index=False, escape=True) if form == "tex" else markdown_of(table) for table in tables]
    text = "".join(f"{start} {line}\n" for line in [title, *lines, *notes]) + "".join(f"\n{of}" for of in texts)
    print(printable_lines(text), end="")


def _print_screen(title: str, found: list[Answer], tables: list[pd.DataFrame], notes: list[str]) -> None:
    console = SafeConsole()
    console.print(Text(title))
    for answer in found:
        verdict = Text(f"{answer.verdict:3} ", STYLES.get(answer.verdict, "bold"))
        console.print(verdict.append(answer.question, "bold").append(f"  {answer.number}".rstrip(), "not bold"))
        console.print(Padding(Text(answer.sentence), (0, 0, 0, 4), expand=False))
    for table in tables:
        console.print()
        print_table(table, console)
    console.print(Text("\n".join(["", *notes])))


def comparison_table(comparison: Comparison, *, every: bool = False) -> pd.DataFrame:
    """One row a number: its value in each measurement, and the difference.

    Without ``every``, the main numbers of the usual selectors at the smallest k; of those that see the target the corrected gain.
    """
    frame = comparison.frame
    if not every:
        shown = ({*SHOWN, CHOSEN} - {*CONTROLS}) & set(frame["selector"]) or set(frame["selector"])
        is_main = frame["selector"].isin(shown) & (frame["k"] == frame["k"].min()) & (frame["context"] == "real")
        is_luck = frame["selector"].isin(comparison.seeing) & (frame["quantity"] != "corrected_gain_nats")
        compared = [name for name, of in QUANTITIES.items() if "compare" in of.show]
        frame = frame[frame["quantity"].isin(compared) & (frame["selector"].isna() | (is_main & ~is_luck))]
    first, second = comparison.labels
    rows = []
    for row in frame.to_dict("records"):
        quantity = QUANTITIES[row["quantity"]]
        selector = None if row["selector"] == CHOSEN else row["selector"]  # the headers name them
        keys = [selector, None if pd.isna(row["k"]) else f"k = {row['k']}", row["context"] if every else None]
        values = [[row[f"{end}_{of}"] for end in ENDS] for of in ("a", "b", "difference")]
        cells = ["" if np.isnan(value) else number(value, low, high, quantity.digits) for value, low, high in values]
        rows.append([", ".join(filter(None, [quantity.header, *keys])), *cells])
    return pd.DataFrame(rows, columns=["quantity", first, second, f"{second} minus {first}"])


def print_comparison(comparison: Comparison, *, every: bool = False, as_json: bool = False) -> None:
    """Print two measurements side by side."""
    if as_json:
        print(json_of({name: of for name, of in vars(comparison).items() if name != "frame"}, comparison.frame))
        return
    console = SafeConsole()
    print_table(comparison_table(comparison, every=every), console)
    console.print(Text(PAIRED[comparison.is_paired]))
    if not comparison.has_same_tokens:
        console.print(Text("The tokenizers differ: losses in nats are of different tokens and have no difference."))
