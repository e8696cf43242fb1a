"""No output leads with k = all long-range tokens, where every number is 1 by definition."""

from __future__ import annotations

import dataclasses
import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from benchmarks.generated_tables import PRETRAINED, write_tables
from olmo_sparsity.statistics.several.comparison import compare, main_rows
from olmo_sparsity.statistics.several.subjects import read_subjects
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.summary import Summary, summarize
from olmo_sparsity.view.console import print_summary
from olmo_sparsity.view.one_window import show_window
from olmo_sparsity.view.report_answer import answer
from olmo_sparsity.view.report_data import read_report, shown_tables
from olmo_sparsity.view.summary_tables import class_table
from olmo_sparsity.wording.captions import blind_caption
from olmo_sparsity.wording.units import all_tokens_words

MANY = [1, 2, 4, 8, 16, 32, 64]  # of 64


def tables_of(folder: Path, ks: list[int]) -> Path:
    write_tables(folder, 200, invented=dataclasses.replace(PRETRAINED, ks=ks))
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tables_of(tmp_path_factory.mktemp("many"), MANY)


@pytest.fixture(scope="module")
def summary(tables: Path) -> Summary:
    return summarize(load(tables))


def test_the_tables_show_a_few_k_up_to_a_quarter(
    tables: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    print_summary(tables)
    printed = capsys.readouterr().out
    for selector in ("kl", "attention", "unmask-one"):
        assert re.findall(rf"│ {selector} +│ (\d+) +│", printed) == ["1", "4", "16"]
    assert "Shown: k = 1, 4, 16 (of 7 measured)." in printed
    print_summary(tables, every=True)
    every = capsys.readouterr().out
    assert re.findall(r"│ kl +│ real +│ (\d+) +│", every)[: len(MANY)] == [str(k) for k in MANY]


def test_classes_of_targets_are_shown_at_few_tokens(summary: Summary) -> None:
    titles = " ".join(column.name for column in class_table([], summary).columns)
    assert set(re.findall(r"(?:k = |R\()(\d+)", titles)) == {"1", "16"}


def test_no_headline_is_of_all_tokens(tables: Path, summary: Summary) -> None:
    said = answer(summary, "kl")
    heads = " ".join(f"k = {cell.text}" for table in said.tables for row in table.rows for cell in row[1:2])
    assert set(re.findall(r"(?:k = |R\()(\d+)", heads)) == {"1", "4", "16"}
    sentences = " ".join(said.sentences)
    assert set(re.findall(r"(?:[RD]\(|; |, )(\d+)(?:\)| tokens gain| give back)", sentences)) == {"1", "16"}
    assert "Few entries (k = 16, at most a quarter of the long-range tokens) give back most" in said.sentences[-1]
    compared = compare(read_subjects([f"{tables}:kl", f"{tables}:attention"]))
    assert {row.k for row in main_rows(compared)} == {None, 1, 16}
    out = io.StringIO()
    show_window(tables, 0, console=Console(file=out, width=200))
    assert "k = 16. It does not see the target" in out.getvalue()


def test_the_page_shows_the_largest_k_up_to_a_quarter(tables: Path, summary: Summary) -> None:
    """Its windows and its table of distances are of the same k."""
    measured = Measured.read(tables)
    found = read_report(measured, num_windows=2)
    assert found.selector == "kl" and {window.k for window in found.sample + found.largest} == {16}
    distances = shown_tables(measured)["distances"]
    assert {row[2].text for row in distances.rows} == {"16"}
    assert {row[0].text for row in distances.rows} == set(summary.selectors)


def test_where_no_other_k_was_measured_it_is_said_that_it_is_all_tokens(tmp_path: Path, summary: Summary) -> None:
    alone = summarize(load(tables_of(tmp_path / "alone", [64])))
    words = all_tokens_words(alone)
    assert words.startswith("k = 64 is all of the long-range tokens, so by definition ")
    assert blind_caption(alone).endswith(words) and words not in answer(alone, "kl").notes  # which would say it twice
    assert all_tokens_words(summary) == ""
