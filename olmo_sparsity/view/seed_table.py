"""What ``summary`` prints of several seeds of one model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Optional

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.seed_summary import SeedRow, SeedSummary, read_seeds, seed_rows
from olmo_sparsity.statistics.single.summary import FRACTIONS, Summary
from olmo_sparsity.storage.folders import folder_name
from olmo_sparsity.view.as_json import seed_summary_json
from olmo_sparsity.view.console import Form, print_in, print_json
from olmo_sparsity.view.result_table import Cell, Item, ResultTable, Sentence, estimated, keys, plain, recovered, words
from olmo_sparsity.view.summary_tables import blind_table, every_selection_table, figure4_table, selection_table
from olmo_sparsity.wording.curves import seed_intervals_words
from olmo_sparsity.wording.gates import gates_words
from olmo_sparsity.wording.selection import selection_words
from olmo_sparsity.wording.setup import anchor_warning, data_words, definition_words, length_words, overlap_words
from olmo_sparsity.wording.units import units_words


def print_seeds(runs: Sequence[Path], *, every: bool = False, form: Form = Form.text) -> None:
    """Print the means over the seeds of one model, with each seed beside them and the controls of one measurement below.

    Args:
        runs: the runs of the model.
        every: print every k and context, and D(k) of each seed; JSON and CSV always hold them.
        form: what to print it as.
    """
    numbers = read_seeds(runs)
    if form is Form.json:
        print_json(seed_summary_json(numbers))
        return
    seeds = numbers.model.seeds
    warned = [
        (seed, summary.setup)
        for seed, summary in zip(seeds, numbers.of_seeds, strict=True)
        if anchor_warning(summary.setup)
    ]
    says_units = bool(numbers.mean.blind_selectors)  # the caption of their table does
    items: list[Item] = [
        *(Sentence(f"seed {seed}: {tables}") for seed, tables in zip(seeds, numbers.tables, strict=True)),
        Sentence(f"{data_words(numbers.mean)}; {seed_intervals_words(numbers.num_seeds)}"),
        Sentence(f"{definition_words(numbers.mean.setup)}."),
        Sentence(length_words(numbers.mean.lengths)),
        *(Sentence(words) for words in (units_words(numbers.mean),) if words and not says_units),
        *(Sentence(words) for words in (overlap_words(numbers.mean),) if words),
        *(Sentence(f"seed {seed}: {anchor_warning(setup)}", is_bold=True) for seed, setup in warned),
        Sentence(gates_words(numbers.mean), is_bold=True),
        seed_table(numbers, every=every or form is Form.csv),
    ]
    if numbers.mean.blind_selectors:
        items.append(blind_table(numbers.mean))
    if numbers.mean.seeing_selectors:
        items += [Sentence(selection_words(numbers.mean)), selection_table(numbers.mean)]
    if every or form is Form.csv:
        items += [every_selection_table(numbers.mean), figure4_table(numbers.mean)]
    runs_of_mean = ", ".join(folder_name(run) for run in numbers.model.runs)
    # Every caption in LaTeX and every row of CSV has a warning, where it is that of some seed.
    setup = next((setup for _, setup in warned), numbers.mean.setup)
    print_in(form, items, summary=replace(numbers.mean, run=runs_of_mean, setup=setup))


def seed_table(numbers: SeedSummary, *, every: bool) -> ResultTable:
    """Return one row a number: the mean over the seeds with its interval, and the values of the seeds."""
    of_seeds = plain("mean over seeds", *(f"seed {seed}" for seed in numbers.model.seeds))
    rows = []
    for row in seed_rows(numbers, every=every):
        cells = [_cell(row.mean, row, summary=numbers.mean)]
        for value, summary in zip(row.of_seeds, numbers.of_seeds, strict=True):
            cells.append(_cell(value and value.without_interval(), row, summary=summary))
        rows.append((*words(row.words, row.selector or "", "" if row.k is None else str(row.k)), *cells))
    return ResultTable("seeds", (*keys("quantity", "selector", "k"), *of_seeds), tuple(rows))


def _cell(value: Optional[Estimate], row: SeedRow, *, summary: Summary) -> Cell:
    """Return a value as text; a fragile R(k) is marked."""
    if row.quantity in FRACTIONS:
        return recovered(summary, value)
    return estimated(value, 2 if row.quantity == "prediction_recovered" else 4)
