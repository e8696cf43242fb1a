"""No output leads with k = all long-range tokens, where every number is 1 by definition."""

from __future__ import annotations

import dataclasses
import io
import itertools
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from benchmarks.generated_tables import PRETRAINED, write_tables
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.comparison import compare, main_rows
from olmo_sparsity.statistics.several.subjects import read_subjects
from olmo_sparsity.statistics.single import measured as measured_module
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.screening import ScreeningLoss
from olmo_sparsity.statistics.single.summary import Summary, summarize
from olmo_sparsity.view import console
from olmo_sparsity.view.console import print_summary
from olmo_sparsity.view.one_window import show_window
from olmo_sparsity.view.report_answer import answer
from olmo_sparsity.view.report_data import read_report, shown_tables
from olmo_sparsity.view.summary_tables import class_table, no_sample_words
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


def test_what_screening_lost_is_shown_at_the_largest_k_up_to_a_quarter(
    tables: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One row a screened selector, of the real context; no two losses have a number in common."""
    numbers = itertools.count(1)
    losses = [
        ScreeningLoss(
            name, context, k, 31, Estimate(next(numbers) / 1000), next(numbers) / 1000, Estimate(next(numbers) / 10000)
        )
        for name in ("unmask-one", "kl")
        for context in ("real", "null")
        for k in MANY
    ]
    settings = {"screen": 40, "screen_by": "attention", "screen_sample": 0.1}
    assert no_sample_words(settings).startswith(
        "Screened to 40 candidates by attention. What that lost is not known: no window is in the random sample "
        "(influence.screen_sample = 0.1)"
    )
    monkeypatch.setenv("COLUMNS", "400")
    monkeypatch.setattr(measured_module, "screening", lambda folder, measurement: losses)
    read = Measured.read(tables)
    measurement = dataclasses.replace(read.measurement, manifest={**read.measurement.manifest, "influence": settings})
    shown = dataclasses.replace(read, measurement=measurement)
    monkeypatch.setattr(console, "Measured", SimpleNamespace(read=lambda folder: shown))
    print_summary(tables)
    printed = capsys.readouterr().out
    wanted = [of for of in losses if of.k == 16 and of.context == "real"]
    rows = re.findall(r"│ ([\w-]+) +│ (\w+) +│ (\d+) +│ (\d\.\d{3}) +│ (\d\.\d{3}) +│ (\d\.\d{4}) +│", printed)
    assert rows == [
        (
            of.selector,
            "real",
            "16",
            f"{of.recall.mean:.3f}",
            f"{of.blind_recall:.3f}",
            f"{of.gain_lost_nats.mean:.4f}",
        )
        for of in wanted
        if of.recall is not None and of.gain_lost_nats is not None
    ]
    assert "Screened to 40 candidates by attention." in printed


def test_where_no_other_k_was_measured_it_is_said_that_it_is_all_tokens(tmp_path: Path, summary: Summary) -> None:
    alone = summarize(load(tables_of(tmp_path / "alone", [64])))
    words = all_tokens_words(alone)
    assert words.startswith("k = 64 is all of the long-range tokens, so by definition ")
    assert blind_caption(alone).endswith(words) and words not in answer(alone, "kl").notes  # which would say it twice
    assert all_tokens_words(summary) == ""
