"""What ``summary`` prints of several seeds of one model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Optional

from rich.markup import escape
from rich.table import Table

from olmo_sparsity.statistics.as_json import seed_summary_json
from olmo_sparsity.statistics.estimate import Estimate
from olmo_sparsity.statistics.seed_summary import SeedRow, SeedSummary, read_seeds, seed_rows
from olmo_sparsity.statistics.summary import FRACTIONS, Summary
from olmo_sparsity.statistics.wording import (
    data_words,
    gates_words,
    interval,
    length_words,
    recovered_words,
)
from olmo_sparsity.statistics.wording_of_models import definition_words
from olmo_sparsity.statistics.wording_of_runs import seed_intervals_words
from olmo_sparsity.view.console import print_json, results_console


def print_seeds(runs: Sequence[Path], *, every: bool = False, as_json: bool = False) -> None:
    """Print the means over the seeds of one model, and each seed beside them.

    Args:
        runs: the runs of the model.
        every: print every k, and D(k).
        as_json: print all numbers as JSON instead.
    """
    numbers = read_seeds(runs)
    if as_json:
        print_json(seed_summary_json(numbers))
        return
    console = results_console()
    for seed, tables in zip(numbers.model.seeds, numbers.tables, strict=True):
        console.print(f"[bold]seed {seed}[/bold]: {escape(str(tables))}")
    console.print(f"{escape(data_words(numbers.mean))}; {seed_intervals_words(numbers.num_seeds)}")
    console.print(f"{escape(definition_words(numbers.mean.setup))}.")
    console.print(length_words(numbers.mean.lengths))
    console.print(escape(gates_words(numbers.mean)), style="bold")
    console.print(seed_table(numbers, every=every))


def seed_table(numbers: SeedSummary, *, every: bool) -> Table:
    """One row a number: the mean over the seeds with its interval, and the values of the seeds."""
    table = Table("quantity", "selector", "k", "mean over seeds", *(f"seed {seed}" for seed in numbers.model.seeds))
    for row in seed_rows(numbers, every=every):
        cells = [_cell(row.mean, row, summary=numbers.mean)]
        for value, summary in zip(row.of_seeds, numbers.of_seeds, strict=True):
            cells.append(_cell(value and value.without_interval(), row, summary=summary))
        table.add_row(row.words, row.selector or "", "" if row.k is None else str(row.k), *cells)
    return table


def _cell(value: Optional[Estimate], row: SeedRow, *, summary: Summary) -> str:
    """Return a value as text; a fragile R(k) is marked."""
    if row.quantity in FRACTIONS:
        return recovered_words(summary, value)
    return interval(value, 2 if row.quantity == "prediction_recovered" else 4)
