"""A quantity is declared at its field: the tables, the JSON and the comparison show it from there."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up import made_up_tables

from olmo_sparsity.statistics.several.comparison import compare
from olmo_sparsity.statistics.several.subjects import read_subjects
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.summary import SELECTION_QUANTITIES, WINDOW_QUANTITIES, summarize
from olmo_sparsity.view.as_json import summary_json
from olmo_sparsity.view.summary_tables import every_selection_table, loss_table


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_tables(tmp_path_factory.mktemp("quantities") / "tables", selectors=["unmask-one", "kl", "random"])


def test_every_quantity_of_a_selection_has_its_own_numbers_in_table_and_json(folder: Path) -> None:
    summary = summarize(load(folder))
    table, written = every_selection_table(summary), summary_json(summary)["selections"]
    titles = [column.name for column in table.columns]
    assert len(set(titles)) == len(titles)
    for row, selection, in_json in zip(table.rows, summary.selections, written, strict=True):
        cells = dict(zip(titles, row, strict=True))
        for name, quantity in SELECTION_QUANTITIES.items():
            estimate = getattr(selection, name)
            assert (in_json[name] is None) == (estimate is None)
            if estimate is not None:
                assert in_json[name]["mean"] == estimate.mean == cells[quantity.title].value


def test_every_loss_is_in_the_first_table(folder: Path) -> None:
    summary = summarize(load(folder))
    shown = [cells[1].value for cells in loss_table(summary).rows]
    expected = [getattr(summary, name) for name, quantity in WINDOW_QUANTITIES.items() if quantity.is_loss]
    assert shown == [estimate.mean for estimate in expected if estimate is not None] and len(shown) >= 5


def test_a_comparison_has_the_quantities_that_are_declared_as_compared(folder: Path) -> None:
    rows = compare(read_subjects([str(folder), str(folder)])).rows
    for quantities, of_selection in ((WINDOW_QUANTITIES, False), (SELECTION_QUANTITIES, True)):
        shown = {row.quantity for row in rows if (row.selector is not None) == of_selection}
        assert shown == {name for name, quantity in quantities.items() if quantity.is_compared}
