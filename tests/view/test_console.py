"""What ``summary`` prints: both gates, blind and seeing selectors apart, and no R(k) where the gate failed."""

from __future__ import annotations

import csv
import dataclasses
import io
import json
import re
from pathlib import Path
from typing import Any, Optional

import pandas as pd
import pytest
from made_up import CONTEXTUAL, KS, PRETRAINED, SEES_TARGET, made_up_tables
from made_up_runs import pretrained_curve

from olmo_sparsity.records.selectors import MAIN_SELECTORS
from olmo_sparsity.statistics.curves import context_curve
from olmo_sparsity.statistics.single import measured
from olmo_sparsity.statistics.single.breakdowns import by_class
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.statistics.single.summary import Summary, summarize
from olmo_sparsity.view.console import Form, print_curve, print_summary
from olmo_sparsity.view.table_formats import in_tex
from olmo_sparsity.wording.gates import SELECTION_ONLY, beyond_gate_words, gate_words
from olmo_sparsity.wording.numbers import interval
from olmo_sparsity.wording.setup import UNKNOWN_TRAINING_TEXT, anchor_warning, data_words, measured_words

SHOWN = tuple(KS)  # the ends, and the largest k up to a quarter
TABLES = ("selectors that do not see the target", "what selection does", "every k", "Figure 4",
          "kinds of dependency")  # fmt: skip


@pytest.fixture(autouse=True)
def wide_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """So wide that every table is printed in one piece."""
    monkeypatch.setenv("COLUMNS", "400")


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("console")
    return {
        "passed": made_up_tables(folder / "passed", num_documents=240, gain_beyond=0.2),
        "beyond failed": made_up_tables(folder / "beyond", num_documents=60, gain_beyond=-0.1),
        "failed": made_up_tables(folder / "failed", num_documents=90, long_gain=-0.5),
    }


@pytest.fixture(scope="module")
def summaries(folders: dict[str, Path]) -> dict[str, Summary]:
    return {name: summarize(load(folder)) for name, folder in folders.items()}


def test_a_pretrained_model_is_printed_without_a_training_row(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = made_up_tables(tmp_path / "tables", setup=CONTEXTUAL, selectors=MAIN_SELECTORS)
    summary = summarize(load(tables))
    shown = printed(tables, capsys, every=True)
    for words in (
        f"{measured_words(summary)}.", beyond_gate_words(summary), UNKNOWN_TRAINING_TEXT, anchor_warning(summary.setup),
    ):  # fmt: skip
        assert words and words in shown
    assert "gain beyond" not in shown and "as many as a training row has" not in shown and "FAILED" not in shown
    assert "someone/Made-Up-2M" in shown and "someone--made-up-2m" not in shown
    print_summary(tables, form=Form.json)
    values = json.loads(capsys.readouterr().out)
    assert (values["train_len"], values["gain_beyond_nats"], values["beyond_gate"]) == (None, None, "not-applicable")
    assert (values["visibility"], values["model"]["name"]) == ("contextual", "someone/Made-Up-2M")
    assert values["anchor_warning"] == anchor_warning(summary.setup)
    assert {entry["beyond_gate"] for entry in values["classes"]} == {"not-applicable"}


def test_a_context_curve_is_printed_with_the_warning_about_the_first_token(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    warning = anchor_warning(ModelSetup.from_manifest(CONTEXTUAL))
    for name, of_model in (("warned", CONTEXTUAL), ("plain", PRETRAINED)):
        print_curve(pretrained_curve(tmp_path / name, gain=0.2, of_model=of_model) / "context-curve" / "made-up")
        shown = capsys.readouterr().out
        assert ("WARNING" in shown) == (warning in shown) == (name == "warned")
        said = " ".join(shown.split())
        curve = context_curve(tmp_path / name / "context-curve" / "made-up")
        for sentence in (measured_words(curve), data_words(curve)):
            assert sentence in said and f"{curve.num_windows:,} windows" in said


def in_form(form: Form, tables: Path, capsys: pytest.CaptureFixture[str]) -> str:
    print_summary(tables, form=form)
    return capsys.readouterr().out


def test_csv_tells_what_was_measured_and_how_in_every_row(
    folders: dict[str, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """So measurements under both definitions can stand in one table."""
    names = ["run", "model", "revision", "local_len", "full_len", "k_unit", "visibility", "anchor", "anchor_warning"]
    pretrained = made_up_tables(tmp_path / "tables", setup=CONTEXTUAL, selectors=MAIN_SELECTORS)
    warning = anchor_warning(summarize(load(pretrained)).setup)
    of_model = [
        "someone--made-up-2m",
        "someone/Made-Up-2M",
        "main-commit",
        "8",
        "20",
        "token",
        "contextual",
        "<bos>",
        warning,
    ]
    of_run = ["made-up", "", "", "8", "20", "token", "hidden", "", ""]
    for tables, expected in ((pretrained, of_model), (folders["beyond failed"], of_run)):
        rows = list(csv.DictReader(io.StringIO(in_form(Form.csv, tables, capsys))))
        assert [list(values) for values in {tuple(row[name] for name in names) for row in rows}] == [expected]


@pytest.mark.parametrize(
    ("setup", "words"),
    [
        (CONTEXTUAL, ["2M: visibility contextual, anchor; k counts entries; local 8 +",
                      "WARNING: not of the better first token. Gate "]),
        (PRETRAINED, ["2M: visibility hidden, no anchor; local 8 + long-range 12 = full 20 tokens. Gate passed:"]),
        (None, ["made-up: visibility hidden, no anchor; local 8 + long-range 12 = full 20 tokens. Gate passed:"]),
    ],
)  # fmt: skip
def test_a_table_of_a_paper_names_the_definition(
    setup: Optional[dict[str, Any]], words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tables = made_up_tables(tmp_path / "tables", setup=setup, selectors=MAIN_SELECTORS)
    tex = in_form(Form.tex, tables, capsys)
    captions = [line for line in tex.splitlines() if line.startswith(r"  \caption{")]
    assert len(captions) >= 3
    for part in words:
        assert [line for line in captions if in_tex(part) not in line] == []
    markdown = in_form(Form.md, tables, capsys)
    summary = summarize(load(tables))
    for sentence in (measured_words(summary), anchor_warning(summary.setup)):
        assert re.sub(r"\W", "", sentence) in re.sub(r"\W", "", markdown)


def printed(folder: Path, capsys: pytest.CaptureFixture[str], every: bool = False) -> str:
    print_summary(folder, every=every)
    return capsys.readouterr().out


def rows_of(shown: str, title: str) -> list[list[str]]:
    """Return the cells of a printed table, row by row."""
    body = shown[shown.index(f"\n{title}") :]
    lines = body[: body.index("└")].splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if line.startswith("│")]


def header_of(shown: str, title: str) -> list[str]:
    """Return the headers of a printed table, each on one line."""
    body = shown[shown.index(f"\n{title}") :]
    lines = [line.strip("┃").split("┃") for line in body[: body.index("┡")].splitlines() if line.startswith("┃")]
    return [" ".join(" ".join(parts).split()) for parts in zip(*lines, strict=True)]


def test_the_gates_are_printed_first(
    folders: dict[str, Path], summaries: dict[str, Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    assert [(s.gate, s.beyond_gate) for s in summaries.values()] == [
        ("passed", "passed"), ("passed", "failed"), ("failed", "failed"),
    ]  # fmt: skip
    for name, folder in folders.items():
        shown, summary = printed(folder, capsys), summaries[name]
        assert gate_words(summary) in shown and beyond_gate_words(summary) in shown
        assert (SELECTION_ONLY in shown) == (name != "passed")
        assert shown.index("mean over eligible targets") < shown.index(
            "ate passed" if summary.gate_passed else "GATE FAILED"
        )
        assert shown.index(beyond_gate_words(summary)) < shown.index(TABLES[0])
        for quantity in ("gain_beyond_nats", "loss_train_len_nats", "null_long_gain_nats"):
            assert interval(summary.of_windows(quantity), 4) in shown


def test_selectors_that_do_not_see_the_target_are_shown_alike_at_both_ends(
    folders: dict[str, Path], summaries: dict[str, Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    summary = summaries["passed"]
    rows = rows_of(printed(folders["passed"], capsys), TABLES[0])
    names = [name for name in SEES_TARGET if not SEES_TARGET[name] and name != "random"]
    assert {(row[0], int(row[1])) for row in rows} == {(name, k) for name in names for k in SHOWN}
    for row in rows:
        name, k = row[0], int(row[1])
        entry, prediction = summary.at(name, "real", k), summary.prediction_recovered(name, k)
        assert row[3:8] == [
            interval(entry.gain_over_random_nats, 3),
            interval(entry.recovered_fraction),
            interval(prediction.real),
            interval(summary.at("random", "real", k).prediction_recovered),
            interval(summary.at(name, "null", k).prediction_recovered),
        ]


def test_optimism_is_taken_off_selectors_that_see_the_target(
    folders: dict[str, Path], summaries: dict[str, Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    summary = summaries["passed"]
    shown = printed(folders["passed"], capsys)
    *rows, of_all = rows_of(shown, TABLES[1])
    names = [*(name for name, sees in SEES_TARGET.items() if sees), "random"]
    assert {(row[0], int(row[1])) for row in rows} == {(name, k) for name in names for k in SHOWN}
    for row in rows:
        entry, null = (summary.at(row[0], context, int(row[1])) for context in ("real", "null"))
        assert row[3:7] == [
            interval(entry.gain_sparse_nats, 3),
            interval(entry.optimism_nats, 3),
            interval(entry.corrected_gain_nats, 3),
            interval(null.corrected_gain_nats, 3),
        ]
    assert of_all[:2] == ["all tokens", "all"]
    assert of_all[3:7] == [
        interval(summary.long_gain_nats, 3),
        interval(summary.optimism_all_nats, 3),
        interval(summary.corrected_gain_all_nats, 3),
        interval(summary.null_long_gain_nats, 3),
    ]
    said = " ".join(shown.split())
    assert "Random and all tokens select nothing, and the intervals of their optimism hold 0, as they must." in said
    assert f"its entropy minus its loss is {interval(summary.calibration_nats, 3)} nats" in said


def test_where_the_gate_failed_there_is_no_recovered_fraction_anywhere(
    folders: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not even of the class `repeat`, which alone gains, so that its own gate passes."""
    measurement = load(folders["passed"])
    windows = measurement.windows.copy()
    windows.loc[windows["target_class"] != "repeat", "gain_long_nats"] -= 2.0
    monkeypatch.setattr(measured, "load", lambda folder: dataclasses.replace(measurement, windows=windows))
    shown = printed(folders["passed"], capsys, every=True)
    assert "GATE FAILED" in shown
    for title, column in ((TABLES[0], 4), (TABLES[2], 4)):
        rows = rows_of(shown, title)
        assert rows and {row[column] for row in rows} == {"-"}
    names = header_of(shown, TABLES[4])
    columns = [i for i, name in enumerate(names) if re.fullmatch(r"kl R\(\d\)", name)]
    rows = rows_of(shown, TABLES[4])
    assert [row[names.index("gate")] for row in rows if row[0] == "repeat"] == ["passed"]
    assert len(columns) == 2 and {row[i] for row in rows for i in columns} == {"-"}
    print_summary(folders["passed"], form=Form.json)
    values = json.loads(capsys.readouterr().out)
    for part in (values, *values["classes"]):
        assert {e["recovered_fraction"] for e in part["selections"]} == {None}


def test_every_prints_all_tables_and_the_contrast_of_classes(
    folders: dict[str, Path], summaries: dict[str, Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    shown = printed(folders["passed"], capsys, every=True)
    assert [title for title in TABLES if title not in shown] == []
    classes = by_class(load(folders["passed"]), summaries["passed"])
    said = "of 4 classes with enough documents and without long gain, at least one passes in 10%"
    assert said in re.sub(r"\s+", " ", shown)
    rows = {row[0]: row for row in rows_of(shown, TABLES[4])}
    assert set(rows) == {entry.target_class for entry in classes}
    for entry in classes:
        contrast = entry.contrast
        assert (contrast is not None) == (entry.target_class in ("induction", "repeat"))
        expected = (contrast.null_gain_nats, contrast.null_others_gain_nats) if contrast else (None, None)
        assert rows[entry.target_class][4:6] == [interval(gain, 3) for gain in expected]
    every = rows_of(shown, TABLES[2])
    assert len(every) == len(summaries["passed"].selections)


def test_csv_holds_every_number_of_every_table_unrounded(
    folders: dict[str, Path], summaries: dict[str, Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    """With the gates of the measurement in every row."""
    summary = summaries["beyond failed"]
    print_summary(folders["beyond failed"], form=Form.csv)
    rows = pd.read_csv(io.StringIO(capsys.readouterr().out), keep_default_na=False)
    assert set(zip(rows["gate"], rows["beyond_gate"], strict=True)) == {("passed", "failed")}
    assert list(dict.fromkeys(rows["table"])) == [
        "losses", "blind", "selection", "spectrum", "every k", "figure 4", "classes", "every spectrum",
        "spectrum by class",
    ]  # fmt: skip
    shown = rows[rows["table"] == "every k"]
    expected = {
        "sparse gain": ("gain_sparse_nats", "nats"), "R(k)": ("recovered_fraction", ""),
        "gain over random": ("gain_over_random_nats", "nats"), "excess gain": ("excess_gain_nats", "nats"),
        "optimism": ("optimism_nats", "nats"), "corrected gain": ("corrected_gain_nats", "nats"),
        "D(k)": ("prediction_recovered", ""),
        "share of targets that need at most k (0.05 nats)": ("sufficient_share", ""),
    }  # fmt: skip
    assert len(shown) == len(expected) * len(summary.selections)
    for row in shown.itertuples():
        name, unit = expected[row.number]
        estimate = summary.at(row.selector, row.context, int(row.k)).estimate(name)
        wanted = (None,) * 3 if estimate is None else (estimate.mean, estimate.low, estimate.high)
        assert tuple(None if value == "" else float(value) for value in (row.value, row.low, row.high)) == wanted
        assert row.unit == unit
    slopes = {(r.selector, r.context, r.k, r.number): r.value for r in rows[rows["table"] == "figure 4"].itertuples()}
    fit = summary.at("kl", "null", KS[-1]).figure4
    assert fit.ols_slope is not None and fit.tls_slope is not None and fit.correlation is not None
    for name, estimate in (
        ("OLS slope", fit.ols_slope),
        ("TLS slope", fit.tls_slope),
        ("correlation", fit.correlation),
    ):
        assert float(slopes["kl", "null", str(KS[-1]), name]) == estimate.mean


def test_markdown_and_latex_hold_the_numbers_of_the_terminal(
    folders: dict[str, Path], summaries: dict[str, Summary], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, summary = folders["beyond failed"], summaries["beyond failed"]
    rows = rows_of(printed(folder, capsys), TABLES[0])
    print_summary(folder, form=Form.md)
    markdown = capsys.readouterr().out
    print_summary(folder, form=Form.tex)
    tex = capsys.readouterr().out
    for row in rows:
        assert f"| {' | '.join(row)} |" in markdown
        # In LaTeX a wide table is several, each of which begins with the selector and k.
        key = f"    {row[0]} & {row[1]} & "
        parts = [line.removeprefix(key).removesuffix(r" \\") for line in tex.splitlines() if line.startswith(key)]
        cells = " & ".join(parts).split(" & ")
        assert cells[: len(row) - 2] == [in_tex(cell) for cell in row[2:]]
    assert "| gain over random, nats |" in markdown and "& gain over random (nats) &" in tex
    assert markdown.count("every k") == tex.count("every k") == 0
    # A table of a paper never stands without the gates.
    assert tex.count(in_tex(beyond_gate_words(summary))) == tex.count(r"\begin{table}") >= 3
