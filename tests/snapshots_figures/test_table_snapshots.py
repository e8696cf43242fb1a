"""Tables of several runs as a terminal shows them, wide and narrow, and the colours of pages."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from made_up_answers import made_up_answers
from made_up_runs import FULL, made_up_measurement, made_up_run
from rich.console import Console
from syrupy.assertion import SnapshotAssertion
from varied_tables import react_otherwise

from olmo_sparsity.statistics.inside_and_beyond import read_inside_and_beyond
from olmo_sparsity.statistics.length_generalization import TaskRun
from olmo_sparsity.statistics.several.hypothesis import read_hypothesis
from olmo_sparsity.statistics.synthetic import Setting
from olmo_sparsity.tables.reading import newest_finished
from olmo_sparsity.view import pages
from olmo_sparsity.view.hypothesis import thirds_table
from olmo_sparsity.view.inside_and_beyond import twin_items
from olmo_sparsity.view.result_table import Item
from olmo_sparsity.view.synth_summary import table_of_runs
from olmo_sparsity.view.table_printing import print_items


def printed(items: Sequence[Item], width: int) -> str:
    out = io.StringIO()
    print_items(items, Console(file=out, width=width))
    lines = [line for line in out.getvalue().splitlines() if line[:1] not in ("┏", "┡", "└")]
    return "\n".join(lines).replace("│", "|").replace("┃", "|") + "\n"


def test_tables_of_the_hypothesis(tmp_path: Path, text_snapshot: SnapshotAssertion) -> None:
    """Two seeds and a ceiling: thirds by the reactions of each."""
    runs = [made_up_run(tmp_path / f"pose-seed{seed}", seed=seed) for seed in range(2)]
    runs.append(made_up_run(tmp_path / "ceiling", row_len=FULL))
    for number, run in enumerate(runs):
        react_otherwise(made_up_measurement(run, 0.4 + 0.05 * number, num_documents=160), seed=number)
    found = read_hypothesis(runs)
    tables = [thirds_table(entry, "foreign text") for entry in found.main]
    assert printed(tables, 180) + printed(tables[:1], 60) + printed(tables[:1], 24) == text_snapshot


@pytest.mark.parametrize("has_ceiling", [True, False], ids=["ceiling", "alone"])
def test_tables_of_the_twin(tmp_path: Path, text_snapshot: SnapshotAssertion, has_ceiling: bool) -> None:
    runs = [
        made_up_answers(tmp_path / f"pose-seed{seed}", {1: (0.96, 0.94 - 0.02 * seed), 2: (0.91, 0.4), 3: (0.6, 0.3)}, seed=seed)
        for seed in (0, 1)
    ]  # fmt: skip
    if has_ceiling:
        runs += [
            made_up_answers(
                tmp_path / f"ceiling-seed{seed}", {1: (0.99, 0.98), 2: (0.97, 0.92), 3: (0.7, 0.66)}, seed=seed, num_chunks=1,
                longest=12,
            )
            for seed in (0, 1)
        ]  # fmt: skip
    twin = read_inside_and_beyond(newest_finished(run, "synthetic") for run in runs)
    assert printed(twin_items(twin), 150) == text_snapshot


def test_colours_of_pages(text_snapshot: SnapshotAssertion) -> None:
    """On light pages and on dark ones, of what is there and of the selectors; one that is measured by name only has its own."""
    assert pages._colours({"kl", "quest"}).replace("; ", ";\n") == text_snapshot


def test_table_of_synthetic_runs(text_snapshot: SnapshotAssertion) -> None:
    """One that has learned, one that has not, and one of which nothing but its steps is known."""
    steps = Setting("parity", True, "coupled", max_sparsity=3, train_lengths=(4, 8), max_position=32)
    runs = [
        TaskRun(steps, 4, "a", 12_345, 678, 9.25, 0.12345, "stop_loss", 0.975),
        TaskRun(replace(steps, task="variables", scratchpad=False), 5, "b", 12_345, 789, 8.0, 0.6543, "stop_loss", 0.5),
        TaskRun(replace(steps, positions="pose", num_chunks=1), 6, "c", 12_345, 890, None, None, None, None),
    ]
    assert printed([table_of_runs(runs)], 150) == text_snapshot
