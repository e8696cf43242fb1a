"""The report: its numbers are those of the tables, and its controls work in a real browser."""

from __future__ import annotations

import base64
import csv
import dataclasses
import functools
import gzip
import html
import io
import itertools
import json
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser_pages import chromium, in_browser, load_page
from drawn_figures import read
from made_up import CONTEXTUAL, KS, PRETRAINED, M, made_up_tables
from planted_measurements import PLANTED, write

from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.records.selectors import ALL_SELECTORS, MAIN_SELECTORS
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.statistics.single.summary import summarize
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.checksums import write_parquet
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.text.target_classes import CLASSES
from olmo_sparsity.view.as_json import (
    selection_json,
)
from olmo_sparsity.view.excerpts import choose_windows, read_excerpts, shown_first
from olmo_sparsity.view.figure_scripts import figure_script
from olmo_sparsity.view.pages import minus
from olmo_sparsity.view.report import SCRIPTS, _facts, default_out, write_report
from olmo_sparsity.view.report_answer import answer
from olmo_sparsity.view.report_data import OF_FIGURE4, SCORE_STEPS, page_json, read_report
from olmo_sparsity.view.result_table import Cell, Column, ResultTable
from olmo_sparsity.view.summary_tables import (
    blind_table,
    class_table,
    distance_table,
    every_selection_table,
    figure4_table,
    screening_item,
    selection_table,
    spectrum_table,
)
from olmo_sparsity.wording.captions import class_gates_words, contrast_words
from olmo_sparsity.wording.evidence import NO_HEADLINE, NO_SEEING, evidence_sentences
from olmo_sparsity.wording.gates import (
    SELECTION_ONLY,
    beyond_gate_words,
    fragile_words,
    gate_words,
    no_fraction_words,
)
from olmo_sparsity.wording.numbers import interval
from olmo_sparsity.wording.setup import (
    NULL_WORDS,
    UNKNOWN_TRAINING_TEXT,
    VISIBILITY_WORDS,
    anchor_warning,
    estimand_words,
    measured_words,
    overlap_words,
)

HOSTILE = [
    "</script><img src=x onerror=alert(1)>",
    " <b>bold</b>",
    "<!--<script>",
    " \"&amp;'",
    " {{ 7 * 7 }}",
    " \u2028line\u2029",
    " \u202eright",
    "\n",
    " $$ \\u003c",
]


def signed(folder: Path) -> Path:
    """Change tables so that nothing coincides: scores on both sides of 0, in the same order, and windows of weight 1, 2 and 3."""
    for path in folder.glob("*/*.parquet"):
        part = pq.read_table(path)
        rows = part.to_pylist()
        for row in rows:
            if path.parent.name == "windows":
                row["weight"] = 1.0 + row["window_id"] % 3
            else:
                row["scores"] = [score - 4 for score in row["scores"]]
        write_parquet(pa.Table.from_pylist(rows, schema=part.schema), path)
    return folder


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("a_name_that_is_wider_than_a_phone_and_cannot_be_broken")
    return {
        "passed": made_up_tables(folder / "passed", words=HOSTILE),
        "failed": made_up_tables(folder / "failed", long_gain=0.0, selectors=MAIN_SELECTORS),
        "selection": made_up_tables(folder / "selection", gain_beyond=0.0, selectors=MAIN_SELECTORS),
        "fragile": made_up_tables(folder / "fragile", long_gain=0.23, selectors=MAIN_SELECTORS),
        "signed": signed(made_up_tables(folder / "signed", seed=5, selectors=MAIN_SELECTORS)),
    }


@pytest.fixture(scope="module")
def pages(tables: dict[str, Path]) -> dict[str, Path]:
    """Pages of all windows, of a sample, of each failed gate, and of a fragile R(k)."""
    wanted = {"all": ("passed", 200), "sample": ("passed", 30), "signed": ("signed", 200)}
    wanted |= {name: (name, 3) for name in ("failed", "selection", "fragile")}
    drawn: dict[str, Any] = {}  # by the gate: drawing takes seconds, and no test looks at the charts of the others

    def figures(measured: Measured) -> Any:
        gate = measured.summary.gate
        return drawn[gate] if gate in drawn else drawn.setdefault(gate, figure_script("on_page").of_report(measured))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("olmo_sparsity.view.report.Measured", SimpleNamespace(read=read))
        patch.setattr("olmo_sparsity.view.report.figure_script", lambda name: SimpleNamespace(of_report=figures))
        return {
            name: write_report(tables[which], tables[which].parent / f"{name}.html", num_windows=number)
            for name, (which, number) in wanted.items()
        }


def data_of(page: Path) -> dict[str, Any]:
    (text,) = re.findall(r'<script id="data" type="application/json">(.*?)</script>', page.read_text(), re.DOTALL)
    found: dict[str, Any] = json.loads(text)
    return found


# --- without a browser


def tables_of(page: Path) -> dict[str, list[list[str]]]:
    """Return the rows of each table of a page, their heads first, by what screen readers call it."""
    found = re.findall(r'role="region" aria-label="([^"]*)">\s*<table>(.*?)</table>', page.read_text(), re.DOTALL)
    return {
        html.unescape(name): [
            [html.unescape(re.sub("<[^>]*>", "", cell)) for cell in re.findall(r"<t[hd].*?</t[hd]>", row, re.DOTALL)]
            for row in re.findall("<tr>.*?</tr>", table, re.DOTALL)
        ]
        for name, table in found
    }


def shown(table: ResultTable) -> list[list[str]]:
    """Return the rows of a table as a page shows them."""

    def text_of(column: Column, cell: Cell) -> str:
        return cell.text if column.is_key else minus(cell.text)

    rows = [[*map(text_of, table.columns, row)] for row in table.rows]
    return [[column.header for column in table.columns], *rows]


@pytest.mark.parametrize("which", ["all", "failed", "fragile"])
def test_the_tables_are_those_of_the_terminal(tables: dict[str, Path], pages: dict[str, Path], which: str) -> None:
    """Where the gate failed no table has an R(k), and where R(k) is fragile every one is marked."""
    measured = read(tables["passed" if which == "all" else which])
    summary, found = measured.summary, tables_of(pages[which])
    last = [of for of in measured.distances if of.k == 8]
    assert found == {
        "selectors that do not see the target": shown(blind_table(summary)),
        "what selection does": shown(selection_table(summary)),
        "Correlation and slopes of every selector, context and k": shown(figure4_table(summary)),
        "Every selector, context and k": shown(every_selection_table(summary)),
        "The k that shares of the targets need": shown(spectrum_table(measured.spectra, summary)),
        "Classes of targets": shown(class_table(measured.classes, summary)),
        "Distances of the chosen tokens": shown(distance_table(last)),
    }
    head, *rows = found["Every selector, context and k"]
    fractions = {row[head.index("R(k)")] for row in rows if row[1] in ("real", "null")}
    assert {"failed": fractions == {"-"}, "fragile": all(of.endswith("] fragile") for of in fractions)}.get(which, True)


def test_the_numbers_of_figure_4_are_those_of_the_statistics(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    summary, data = read(tables["passed"]).summary, data_of(pages["all"])["summary"]
    expected = [selection_json(of) for of in summary.selections if of.context in ("real", "null")]
    assert data["selections"] == [{name: of[name] for name in OF_FIGURE4} for of in expected]
    failed = data_of(pages["failed"])["summary"]
    assert {of["recovered_fraction"] for of in failed["selections"]} == {None}
    assert failed["no_fraction"] == no_fraction_words(read(tables["failed"]).summary.gate)


def test_the_charts_are_the_figures_of_analysis(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    """Panel by panel, with what they show for screen readers; a gate that failed stands above each."""
    for which, sentences, distances in (("all", 0, 8), ("failed", 2, 3)):
        page = pages[which].read_text()
        charts = re.findall(r'<figure class="chart">.*?</figure>', page, re.DOTALL)
        drawings = [re.findall("<svg.*?</svg>", chart, re.DOTALL) for chart in charts]
        panels = [[re.findall("<text[^>]*>([^<]*)", drawing) for drawing in of] for of in drawings]
        assert [len(of) for of in panels] == [7, 5, 5, 5, distances + 1]  # the last of each is the legend
        assert "unmask-one" in panels[0][-1] and "R(8)" in panels[3][2] and "within 0.05 nats" in panels[2][1]
        assert sum("kl, k = 8" in panel for panel in panels[4]) == 1
        assert "attention" in panels[0][-1] and "induction" in panels[3][0]  # a class is named beside each panel
        assert all("induction" in panel for panel in panels[3][:4])
        for chart in charts:
            assert chart.count('class="gate failed"') == sentences
            (name,) = re.findall(r'role="img" aria-label="[^"]+" aria-describedby="([^"]+)"', chart)
            assert re.search(rf'id="{name}">[A-Z]', chart)
        ids = re.findall(r'\sid="([^"]+)"', page)
        assert len(ids) == len(set(ids))
        svgs = " ".join(charts)
        assert {*re.findall(r'(?:href="|url\()#([^")]+)', svgs)} <= set(ids)
        assert "style=" not in svgs and "<style" not in svgs and "<script" not in svgs


def test_all_numbers_are_in_the_page(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    """As `summary --csv` prints them, and those of each class and distance."""
    measured = read(tables["passed"])
    text = gzip.decompress(base64.b64decode(data_of(pages["all"])["numbers"])).decode()
    rows = list(csv.DictReader(io.StringIO(text)))
    assert {tuple(row[name] for name in ("run", "visibility", "k_unit")) for row in rows} == {
        ("made-up", "hidden", "token")
    }
    of = {(row["table"], row["selector"], row["context"], row["k"], row["number"]): row for row in rows}
    summaries = {"every k": measured.summary, **{f"class {one.target_class}": one.summary for one in measured.classes}}
    for name, summary in summaries.items():
        for selection in summary.selections:
            row, gain = of[(name, *map(str, selection.key), "sparse gain")], selection.gain_sparse_nats
            numbers = [float(row[end]) if row[end] else None for end in ("value", "low", "high")]
            assert numbers == [gain.mean, gain.low, gain.high]
    shares = [row for row in rows if row["table"] == "distances" and row["number"] == "share"]
    assert [float(row["value"]) for row in shares] == [
        one.share.mean for d in measured.distances for one in d.bins if one.share
    ]


def test_the_windows_are_rows_of_the_tables(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    data = data_of(pages["all"])
    rows = {row["window_id"]: row for row in read_table(tables["passed"], "windows").to_pylist()}
    assert sorted(rows) == [window["id"] for window in data["windows"]]
    selections = read_table(tables["passed"], "selections").to_pylist()
    by_id = {window["id"]: window for window in data["windows"]}
    for row in selections:
        if row["context"] not in ("real", "null"):
            continue
        shown = by_id[row["window_id"]]["selections"][row["selector"]][row["context"]]
        assert shown["positions"] == row["positions"]
        assert shown["gain"] == pytest.approx(row["gain_sparse_nats"], abs=1e-4)
        scores = np.array(shown["scores"]) * shown["score_scale"] / SCORE_STEPS
        assert scores == pytest.approx(np.array(row["scores"]), abs=np.abs(row["scores"]).max() / SCORE_STEPS + 1e-3)
    for window in data["windows"]:
        row = rows[window["id"]]
        assert window["tokens"] == [printable(text) for text in row["token_texts"]]
        assert window["loss_short_nats"] == pytest.approx(row["loss_short_nats"], abs=1e-4)
        assert len(window["null_tokens"]) == M


@pytest.mark.usefixtures("no_charts")
def test_the_page_of_a_pretrained_model_names_it_and_speaks_of_no_training_row(tmp_path: Path) -> None:
    tables = made_up_tables(tmp_path / "tables", setup=CONTEXTUAL)
    summary = summarize(load(tables))
    path = write_report(tables, tmp_path / "page.html", num_windows=20)
    page = html.unescape(path.read_text())
    units = {name: list(data_of(path)[name].values()) for name in ("units", "group_units", "token_units")}
    assert units == {
        "units": ["entry", "entries"],
        "group_units": ["token", "tokens"],
        "token_units": ["entry", "entries"],
    }
    for words in (
        beyond_gate_words(summary, short=True), anchor_warning(summary.setup), UNKNOWN_TRAINING_TEXT, measured_words(summary),
        *(f"{name}: {definition}" for name, definition in VISIBILITY_WORDS.items()), "This measurement: contextual.",
    ):  # fmt: skip
        assert words in " ".join(page.split())
    assert page.count(measured_words(summary)) == 1
    assert '<p class="gate not-applicable">The gate beyond' in page
    assert f'<p class="gate failed">{anchor_warning(summary.setup)}</p>' in page
    notes = re.findall(r'<p class="note">(.*?)</p>', page.partition('<div class="aside">')[2].partition("<h3>")[0])
    assert len(notes) > 3 and all(note.endswith(".") and not note.endswith("..") for note in notes)
    assert "<title>someone/Made-Up-2M:" in page and "olmo-sparsity, model someone/Made-Up-2M" in page
    assert "<dt>gain beyond the training row</dt>" not in page and SELECTION_ONLY not in page
    assert answer(summary, "kl").gates[1] == ("not-applicable", beyond_gate_words(summary, short=True))


def printed(estimate: Estimate | None, digits: int = 3) -> str:
    """Return an estimate as a page prints it."""
    return minus(interval(estimate, digits))


def words_of(page: Path) -> str:
    """Return the words of a page without its scripts, styles and data."""
    text = re.sub(r"<(script|style).*?</\1>", "", page.read_text(), flags=re.DOTALL)
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]*>", "", text)))


def test_the_answer_treats_the_smallest_and_the_largest_k_alike(tables: dict[str, Path]) -> None:
    """Of a selector that does not see the target R(k) and gain over random, of one that does optimism and corrected gain."""
    summary = read(tables["passed"]).summary
    said = answer(summary, "kl").sentences
    assert said == evidence_sentences(summary, "kl")
    _, blind, seeing, *_ = said
    assert "does not see the target" in blind and "unmask-one, which sees the target" in seeing
    for k in (1, 8):
        kl, unmask = summary.at("kl", "real", k), summary.at("unmask-one", "real", k)
        assert f"R({k}) = {interval(kl.recovered_fraction)}" in blind
        assert interval(kl.gain_over_random_nats, 3) in blind
        assert interval(unmask.optimism_nats, 3) in seeing
        assert interval(unmask.corrected_gain_nats, 3) in seeing


def test_a_headline_needs_a_selector_that_does_not_see_the_target(tables: dict[str, Path]) -> None:
    measurement = read(tables["passed"]).measurement
    keep = {name: name for name in ("unmask-one", "random")}
    said = answer(summarize(measurement.restrict_selectors(keep)), "unmask-one")
    assert said.sentences[1] == NO_HEADLINE
    assert "unmask-one, which sees the target" in said.sentences[2]
    assert len(said.tables) == 1
    blind = answer(summarize(measurement.restrict_selectors({"kl": "kl", "random": "random"})), "kl")
    assert blind.sentences[2] == NO_SEEING and len(blind.tables) == 1


@pytest.mark.parametrize("which", ["all", "failed", "selection", "fragile"])
def test_both_gates_and_what_follows_from_them_are_said(
    tables: dict[str, Path], pages: dict[str, Path], which: str
) -> None:
    summary, said = read(tables["passed" if which == "all" else which]).summary, words_of(pages[which])
    assert (summary.gate, summary.beyond_gate, summary.is_fragile) == {
        "all": ("passed", "passed", False),
        "failed": ("failed", "failed", False),
        "selection": ("passed", "failed", False),
        "fragile": ("passed", "passed", True),
    }[which]
    assert gate_words(summary, short=True) in said and beyond_gate_words(summary, short=True) in said
    assert all(said.count(minus(sentence)) == 1 for sentence in evidence_sentences(summary, "kl"))
    assert (SELECTION_ONLY in said) == (which in ("failed", "selection"))
    assert (fragile_words(summary) != "" and fragile_words(summary) in said) == (which == "fragile")
    assert ("R(8) = " in said) == (which != "failed")
    assert estimand_words(summary.estimand, summary.lengths) in said
    assert printed(summary.null_long_gain_nats) in said


def test_the_gain_beyond_the_row_is_defined_by_the_lower_of_two_losses(pages: dict[str, Path]) -> None:
    said = "as many as a training row has, with or without the gap, whichever has the lower loss, minus L_long"
    assert said in words_of(pages["all"])


def test_overlap_with_training_is_said_where_it_is_known(tables: dict[str, Path]) -> None:
    summary = read(tables["passed"]).summary
    known = dataclasses.replace(summary, overlap_percent=12.3)
    assert overlap_words(known) in answer(known, "kl").notes
    unknown = dataclasses.replace(summary, overlap_percent=None)
    assert not any("training text" in note for note in answer(unknown, "kl").notes)


def test_the_class_whose_rule_looks_for_the_target_has_its_contrast(
    tables: dict[str, Path], pages: dict[str, Path]
) -> None:
    classes, said = read(tables["passed"]).classes, words_of(pages["all"])
    for entry in classes:
        words = contrast_words(entry)
        assert (words != "") == (entry.target_class in ("induction", "repeat"))
        assert minus(words) in said
    assert class_gates_words(classes) in said


def test_numbers_that_mean_nothing_are_gone(pages: dict[str, Path]) -> None:
    for name, page in pages.items():
        for gone in ("excess_recovered_fraction", "excess_over_random", "excess fraction", "median window"):
            assert gone not in page.read_text(), (name, gone)


def test_a_window_has_its_optimism(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    data = data_of(pages["all"])
    (excerpt,) = read_excerpts(tables["passed"], [11])
    selections = data["windows"][11]["selections"]
    for name, optimism in excerpt.optimism_nats.items():
        assert selections[name]["optimism"] == pytest.approx(optimism, abs=1e-4)
    assert "optimism" not in selections["kl"]


def test_a_sample_is_drawn_by_a_rule(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    measurement = read(tables["passed"]).measurement
    sample, largest = choose_windows(measurement, 30, num_largest=10, seed=0)
    assert (sample, largest) == choose_windows(measurement, 30, num_largest=10, seed=0)
    assert sample != choose_windows(measurement, 30, num_largest=10, seed=1)[0]
    assert len(set(sample)) == 30
    others = measurement.windows[~measurement.windows["window_id"].isin(sample)]
    assert largest == others.nlargest(10, "gain_long_nats")["window_id"].tolist()
    data = data_of(pages["sample"])
    assert [w["id"] for w in data["windows"] if w["group"] == "sample"] == sample
    assert [w["id"] for w in data["windows"] if w["group"] == "largest"] == largest
    said = re.sub(r"\s+", " ", pages["sample"].read_text())
    assert "30 of the 90 windows, drawn at random (seed 0); Figure 4 shows the same windows." in said
    assert (
        "A separate group holds the 10 other windows with the largest long gains. They are not a fair sample." in said
    )
    options = re.findall(r'<option value="(sample|largest)">(.*?)</option>', said)
    assert options == [("sample", "random sample (30)"), ("largest", "largest long gains (10)")]
    everything = re.sub(r"\s+", " ", pages["all"].read_text())
    assert "All 90 windows that were measured." in everything and "A separate group" not in everything
    assert choose_windows(measurement, 90, num_largest=10, seed=0) == (list(range(90)), [])


def test_each_class_of_the_page_is_defined(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    (defined,) = re.findall(
        r"<summary>What the classes are</summary>(.*?)</details>", pages["all"].read_text(), re.DOTALL
    )
    found = {
        html.unescape(name): html.unescape(words) for name, words in re.findall("<dt>(.*?)</dt><dd>(.*?)</dd>", defined)
    }
    assert list(found) == sorted(set(read(tables["passed"]).measurement.windows["target_class"]))
    assert found == {name: CLASSES[name] for name in found} and len(set(found.values())) == len(found) > 2


def test_the_samples_mean_is_no_better_than_that_of_all(tables: dict[str, Path]) -> None:
    """The sample is unbiased: over many seeds, its mean long gain is that of all windows."""
    measurement = read(tables["passed"]).measurement
    gains = measurement.windows.set_index("window_id")["gain_long_nats"]
    means = [gains[choose_windows(measurement, 30, num_largest=0, seed=seed)[0]].mean() for seed in range(300)]
    assert np.mean(means) == pytest.approx(gains.mean(), abs=4 * np.std(means) / 300**0.5)


def test_what_is_shown_first_does_not_see_the_target(tables: dict[str, Path]) -> None:
    measurement = read(tables["passed"]).measurement

    def first_of(*names: str) -> str:
        kept = {name: measurement.selectors[name] for name in names}
        return shown_first(dataclasses.replace(measurement, selectors=kept))

    assert first_of(*ALL_SELECTORS) == "kl"
    assert first_of("unmask-one", "random", "attention") == "attention"
    assert first_of("greedy-kl", "kl") == "kl"  # one of the main ones
    assert first_of("unmask-one", "random", "greedy-kl") == "greedy-kl"  # none of those, but it does not see the target
    assert first_of("unmask-one", "random") == "unmask-one"


def test_the_largest_long_gains_are_the_highest_not_the_farthest_from_0(tables: dict[str, Path]) -> None:
    measurement = read(tables["passed"]).measurement
    gains = -3.0 * measurement.windows["gain_long_nats"]
    turned = dataclasses.replace(measurement, windows=measurement.windows.assign(gain_long_nats=gains))
    sample, largest = choose_windows(turned, 30, num_largest=4, seed=2)
    others = turned.windows[~turned.windows["window_id"].isin(sample)]
    assert largest == others.nlargest(4, "gain_long_nats")["window_id"].tolist()
    assert -others["gain_long_nats"].min() > others["gain_long_nats"].max()


def test_seed_and_number_of_windows_reach_the_page(tables: dict[str, Path]) -> None:
    """Five windows are left beside a sample of 85, so the group of the largest gains has five."""
    measured = read(tables["passed"])
    found = page_json(read_report(measured, num_windows=85, seed=3))
    expected, largest = choose_windows(measured.measurement, 85, num_largest=10, seed=3)
    assert found["sample"] == {"seed": 3, "num_sample": 85, "num_largest": 5, "all": False}
    assert [window["id"] for window in found["windows"]] == expected + largest
    assert expected != choose_windows(measured.measurement, 85, num_largest=10, seed=0)[0]


def test_facts_are_those_of_the_manifest(tables: dict[str, Path]) -> None:
    measured = read(tables["passed"])
    entries = {
        "num_parameters": 1_234_567, "checkpoint": {"step": 4321}, "influence": {"seed": 11, "windows_seed": 12},
        "environment": {"commit": "abcdef" * 7, "olmo_sparsity": "9.8"},
    }  # fmt: skip

    def facts(**influence: Any) -> dict[str, str]:
        manifest = {**measured.measurement.manifest, **entries, **({"influence": influence} if influence else {})}
        return dict(
            _facts(
                dataclasses.replace(measured, measurement=dataclasses.replace(measured.measurement, manifest=manifest))
            )
        )

    found = facts()
    assert (found["run"], found["tables"], found["model"]) == ("made-up", "0", "1.23M parameters, 4,321 steps")
    assert found["seed of the windows"] == "12" and "seed of the null contexts" not in found
    assert found["measured by"] == "olmo-sparsity 9.8, commit abcdefabcdef"
    assert facts(seed=5, sampling="given")["seed of the null contexts"] == "5" and "overlap with training" not in found
    unknown = dataclasses.replace(measured, summary=dataclasses.replace(measured.summary, overlap_percent=None))
    assert dict(_facts(unknown))["overlap with training"] == "not known"
    # The notes of the answer say of a pretrained model what is said here of a run; it has no checkpoint.
    of_model = {**PRETRAINED, "num_parameters": 2_345_678, "influence": {"seed": 11}}
    pretrained = dataclasses.replace(
        measured,
        measurement=dataclasses.replace(measured.measurement, manifest=of_model),
        summary=dataclasses.replace(measured.summary, setup=ModelSetup.from_manifest(PRETRAINED)),
    )
    shown = dict(_facts(pretrained))
    assert "model" not in shown and shown["seed of the windows"] == "11" and "measured by" not in shown


def test_terms_name_the_lengths_of_the_measurement(pages: dict[str, Path]) -> None:
    """20 tokens, of which 8 are local and 12 long-range; rows of 8, and of 14 where they are longer."""
    for which, row in (("all", 8), ("selection", 14)):
        said = words_of(pages[which])
        assert "20 consecutive tokens of one document, and the token after them, the target." in said
        assert "The last 8 tokens are the local context, which the model always sees; the 12 before them" in said
        assert (
            f"The loss with the last {row} tokens visible, as many as a training row has, with or without the gap, "
            in said
        )


@pytest.mark.usefixtures("no_charts")
def test_what_k_counts_is_said_once(tmp_path: Path) -> None:
    tables = write(tmp_path / "tables", PLANTED["words"])
    said = words_of(write_report(tables, tmp_path / "words.html", num_windows=3))
    answer, _, _ = said.partition("Figure 4: sparse gain against long gain")
    assert answer.count("k counts words of entries;") == answer.count("bound no number of tokens.") == 1
    assert re.search(r"words of entries\s*A word is a run of characters without white space", answer)


@pytest.mark.usefixtures("no_charts")
@pytest.mark.parametrize("kind", ["any-source", "shuffled"])
def test_the_content_is_spoken_of_where_the_null_context_is_foreign_text(tmp_path: Path, kind: str) -> None:
    of = dataclasses.replace(PLANTED["words"], manifest={**PLANTED["words"].manifest, "null_contexts": {kind: 96}})
    said = words_of(write_report(write(tmp_path / "tables", of), tmp_path / "words.html", num_windows=3))
    assert f"The same window with this in place of its long-range tokens: {NULL_WORDS[kind]}. The selector" in said
    assert "other long-range tokens" not in said
    contents = ("the content of the long context does not matter", "It shows whether the content matters;")
    assert [words in said for words in contents] == [kind == "any-source"] * 2


@pytest.mark.usefixtures("no_charts")
@pytest.mark.parametrize("name", ["run", "gap", "failed"])
def test_the_page_says_what_screening_lost_and_calls_no_screened_optimism_exact(tmp_path: Path, name: str) -> None:
    page = write_report(write(tmp_path / "tables", PLANTED[name]), tmp_path / "page.html", num_windows=3)
    said, csv_text = words_of(page), gzip.decompress(base64.b64decode(data_of(page)["numbers"])).decode()
    assert ("At k = 1 of unmask-one it is exact, over all labels." in said) == (name == "run")
    assert ("What screening lost" in said) == (name != "run")
    assert ("what screening lost" in tables_of(page)) == (name == "gap") == (",screening," in csv_text)
    if name == "gap":
        item = screening_item(Measured.read(tmp_path / "tables"), every=False)
        assert isinstance(item, ResultTable) and tables_of(page)["what screening lost"] == shown(item)
    if name == "failed":
        assert "What that lost is not known: no window is in the random sample" in said


def test_r_of_the_null_context_is_a_share_of_the_real_long_gain_as_its_term_says(
    tables: dict[str, Path], pages: dict[str, Path]
) -> None:
    summary = read(tables["passed"]).summary
    of_null = [of for of in data_of(pages["all"])["summary"]["selections"] if of["context"] == "null"]
    for of in of_null:
        assert of["recovered_fraction"]["mean"] == pytest.approx(
            of["gain_sparse_nats"]["mean"] / summary.long_gain_nats.mean
        )
    assert len(of_null) > 10 and abs(summary.null_long_gain_nats.mean / summary.long_gain_nats.mean) < 0.5
    assert "divided by mean long gain; under the null context, too, by the long gain of the real one." in words_of(
        pages["all"]
    )


def test_hostile_text_stays_text(pages: dict[str, Path]) -> None:
    page = pages["all"].read_text()
    assert "onerror" in page
    for found in re.finditer("onerror", page):
        assert page[found.start() - 12 : found.start()].endswith("\\u003cimg src=x "[-12:])
    assert page.count("<script") == page.count("</script>") == 1 + len(SCRIPTS)  # and the data
    assert "\u2028" not in page
    first = data_of(pages["all"])["windows"][0]
    assert first["target"] == HOSTILE[0]
    assert first["tokens"][5:8] == [" ↵line↵", " \ufffdright", "↵"]


@pytest.mark.usefixtures("no_charts")
def test_names_of_runs_and_sources_stay_text(tables: dict[str, Path], tmp_path: Path) -> None:
    """What manifests say of themselves is text from strangers, wherever a page shows it."""
    hostile = {"source": "<x-source>", "split": "<x-split>"}
    folder = Path(shutil.copytree(tables["passed"], tmp_path / "one"))
    write_manifest(folder, {**read_json(folder / "manifest.json"), **hostile, "run": "<x-one>"})
    page = write_report(folder, tmp_path / "report.html", num_windows=3).read_text()
    assert "<x-" not in page
    assert all(f"&lt;x-{name}&gt;" in page for name in ("one", "source", "split"))


@pytest.mark.parametrize("address", ["http:", "https:", "src=", "@import", "url("])
def test_the_page_loads_nothing(pages: dict[str, Path], address: str) -> None:
    page = re.sub(r'<script id="data".*?</script>', "", pages["all"].read_text(), flags=re.DOTALL)
    assert address not in page.replace('"http://www.w3.org/2000/svg"', "").replace("url(#", "")
    assert "default-src &#39;none&#39;" in page


@pytest.mark.usefixtures("no_charts")
def test_nothing_is_overwritten_without_the_option(tables: dict[str, Path], tmp_path: Path) -> None:
    page = write_report(tables["passed"], tmp_path / "page.html", num_windows=1)
    before = page.read_bytes()
    with pytest.raises(UserError, match="the file exists; --overwrite"):
        write_report(tables["passed"], page, num_windows=2)
    assert page.read_bytes() == before
    write_report(tables["passed"], page, num_windows=2, overwrite=True)
    assert page.read_bytes() != before
    with pytest.raises(UserError, match="folder"):
        write_report(tables["passed"], tmp_path)
    with pytest.raises(UserError, match="--out"):
        default_out(tables["passed"])
    assert default_out(Path("runs/a/influence/b")) == Path("runs/a/figures/b/report.html")
    assert default_out(Path("runs/a/influence/b"), Path("c")) == Path("c/figures/b/report.html")


def test_long_windows_bring_the_scores_of_chosen_tokens_only(
    tables: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("olmo_sparsity.view.report_data.MAX_SCORES", 10)
    report = read_report(read(tables["passed"]), num_windows=5)
    data = page_json(report)
    one = data["windows"][0]["selections"]["kl"]["real"]
    assert {i for i, score in enumerate(one["scores"]) if score is not None} == set(one["positions"])
    number = (5 + 10) * 2 * len(report.measured.measurement.selectors) * M  # of scores: windows, contexts, selectors
    for most in (number - 1, number):
        monkeypatch.setattr("olmo_sparsity.view.report_data.MAX_SCORES", most)
        assert report.has_all_scores == (most == number)


# --- in a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with chromium() as started:
        yield started


@pytest.fixture
def opened(browser: Any, pages: dict[str, Path]) -> Iterator[Any]:
    """Open pages, each in its own browser context. At the end, no page may have logged an error or requested anything."""
    complaints: list[str] = []
    contexts = []

    def open_page(name: str, **settings: Any) -> Any:
        page = load_page(browser, pages[name], complaints, **settings)
        contexts.append(page.context)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture(scope="module")
def loaded(browser: Any, pages: dict[str, Path]) -> Callable[[str], tuple[Any, list[str]]]:
    """Return a page that is loaded once, and what it complains of."""

    @functools.cache
    def load_once(name: str) -> tuple[Any, list[str]]:
        complaints: list[str] = []
        return load_page(browser, pages[name], complaints), complaints

    return load_once


@pytest.fixture
def kept(loaded: Callable[[str], tuple[Any, list[str]]]) -> Iterator[Callable[[str, str], Any]]:
    """Show pages that are loaded once, at an address that names a view: it sets all that tests change."""
    complaints: list[list[str]] = []

    def show(name: str, address: str) -> Any:
        page, of_page = loaded(name)
        complaints.append(of_page)
        page.evaluate(
            """address => new Promise(done => {
              addEventListener("hashchange", done, { once: true });
              location.hash = `${address}&now=${performance.now()}`;
            })""",
            address,
        )
        return page

    yield show
    found = list(itertools.chain.from_iterable(complaints))
    for of_page in complaints:
        of_page.clear()
    assert found == []


@pytest.fixture
def page(kept: Callable[[str, str], Any]) -> Any:
    """The page of all windows as it begins."""
    return kept("all", "k=8")


def chosen(page: Any, window_id: int) -> list[str]:
    """Return the framed words of a card, by rank."""
    marks = page.locator(f"#w{window_id} .far mark").evaluate_all(
        "marks => marks.map(m => [Number(m.querySelector('sup').lastChild.textContent), m.firstChild.textContent])"
    )
    return [word for _, word in sorted(marks)]


def slide(page: Any, k: int) -> None:
    page.locator("#k").evaluate("(slider, k) => { slider.value = k; slider.dispatchEvent(new Event('input')); }", k)


@in_browser
def test_the_slider_fills_in_the_chosen_tokens_one_by_one(page: Any, pages: dict[str, Path]) -> None:
    data = data_of(pages["all"])
    window = data["windows"][3]
    ranking = window["selections"]["kl"]["real"]["positions"]
    words = [window["tokens"][position].strip() for position in ranking]
    for k in (0, 1, 2, 3, 8):
        slide(page, k)
        assert chosen(page, 3) == words[:k]
        said = page.locator("#w3 .losses").inner_text()
        assert f"{window['loss_short_nats']:.3f} nats" in said
        if k in KS:
            assert f"{window['selections']['kl']['real']['loss'][KS.index(k)]:.3f} nats" in said
        elif k:
            assert "measured at k = 1, 2, 8" in said
    page.locator("#k").focus()
    page.keyboard.press("ArrowLeft")
    assert chosen(page, 3) == words[:7]


@in_browser
def test_the_words_below_figure4_say_of_how_many_windows_the_numbers_are(opened: Any) -> None:
    page = opened("sample")
    page.evaluate("DATA.summary.num_windows = 12345; drawAll()")
    said = page.locator("#figure4-words").inner_text()
    assert "Drawn: the random sample of 30 windows; the numbers above are of all 12,345." in said


@in_browser
def test_a_chosen_token_of_which_nothing_can_be_seen_is_named(opened: Any) -> None:
    page = opened("all")
    slide(page, 2)
    page.evaluate(
        """() => {
          const window = DATA.windows[3];
          const [first, second] = window.selections.kl.real.positions;
          window.tokens[first] = "\u200d";
          window.tokens[second] = " \u0301";
          DATA.unseen = { "\u200d": "(U+200D)", "\u0301": "\u25cc\u0301" };
          drawAll();
        }"""
    )
    assert chosen(page, 3) == ["(U+200D)", "\u25cc\u0301"]


@in_browser
def test_a_link_to_a_view_is_followed_while_the_address_of_an_earlier_one_is_written(page: Any) -> None:
    slide(page, 2)
    shown = page.evaluate(
        """() => new Promise(done => {
          addEventListener("hashchange", () => done(document.getElementById("k").value), { once: true });
          location.hash = "k=4&selector=kl";
          history.replaceState(null, "", "#k=2"); // as the page does a moment after the slider was moved
        })"""
    )
    assert shown == "4"


@in_browser
def test_selector_and_null_context(page: Any, pages: dict[str, Path]) -> None:
    data = data_of(pages["all"])
    window = data["windows"][4]
    assert page.locator("#selector").input_value() == "kl"
    assert "Does not see the target" in page.locator("#selector-note").inner_text()
    page.locator("#selector").select_option("unmask-one")
    assert "Sees the target" in page.locator("#selector-note").inner_text()
    real = window["selections"]["unmask-one"]["real"]["positions"]
    assert chosen(page, 4) == [window["tokens"][position].strip() for position in real]
    page.get_by_label("null", exact=True).check()
    null = window["selections"]["unmask-one"]["null"]["positions"]
    assert chosen(page, 4) == [window["null_tokens"][position].strip() for position in null]
    assert f"{window['null_loss_long_nats']:.3f} nats" in page.locator("#w4 .losses").inner_text()


@in_browser
def test_figure4_shows_both_contexts_and_its_points_lead_to_their_windows(
    page: Any, pages: dict[str, Path], tables: dict[str, Path]
) -> None:
    data, summary = data_of(pages["all"]), read(tables["passed"]).summary
    titles = page.locator("#figure4 figcaption").all_inner_texts()
    for title, context in zip(titles, ("real", "null"), strict=True):
        r = printed(summary.at("kl", context, 8).recovered_fraction, 2)
        assert f"R(8) = {r}" in title
    assert page.locator("#figure4 circle").count() == 2 * len(data["windows"])
    point = page.locator('#figure4 figure:first-child circle[data-window="57"]')
    point.dispatch_event("mouseenter")
    assert "Window 57" in page.locator("#figure4 .tip:visible").inner_text()
    point.dispatch_event("click")
    card = page.locator("#w57")
    assert card.evaluate("card => card === document.activeElement && card.classList.contains('here')")
    first_words = data["windows"][57]["tokens"][0].strip()
    assert first_words in card.inner_text()
    view_is(page, "#page=3&window=57")
    top = card.evaluate("card => card.getBoundingClientRect().top")
    bar = page.locator(".bar").evaluate("bar => bar.getBoundingClientRect().bottom")
    assert bar < top < 450  # below the bar, in sight
    card.get_by_role("button", name="its point in Figure 4").click()
    assert page.evaluate("document.activeElement.dataset.window") == "57"
    assert page.locator("#figure4 circle.here").count() == 2
    # The same by keyboard: one stop for the whole cloud, arrows walk from the smallest sparse gain up, Enter opens.
    page.locator('#figure4 figure:first-child circle[tabindex="0"]').focus()
    page.keyboard.press("End")
    for key in ("Home", "ArrowRight", "ArrowDown", "ArrowLeft", "ArrowUp", "ArrowUp", "ArrowDown"):
        page.keyboard.press(key)
    gains = [window["selections"]["kl"]["real"]["gain"][-1] for window in data["windows"]]
    second = int(np.argsort(gains, kind="stable")[1])
    assert page.evaluate("document.activeElement.dataset.window") == str(second)
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.id") == f"w{second}"
    page.locator('#figure4 figure:first-child circle[tabindex="0"]').focus()
    page.keyboard.press("End")
    page.keyboard.press(" ")
    last = int(np.argsort(gains, kind="stable")[-1])
    assert page.evaluate("document.activeElement.id") == f"w{last}"


@in_browser
def test_filters(page: Any, tables: dict[str, Path]) -> None:
    windows = read(tables["passed"]).measurement.windows
    assert page.locator("#count").inner_text() == "90 of 90 windows, 1 to 20 shown"
    for name in ("induction", "other", "function-word"):
        page.get_by_label(name, exact=True).uncheck()
    repeat = windows[windows["target_class"] == "repeat"]
    assert page.locator("#count").inner_text() == f"{len(repeat)} of 90 windows" + (
        ", 1 to 20 shown" if len(repeat) > 20 else ""
    )
    middle = sorted(repeat["gain_long_nats"])[len(repeat) // 2]
    page.locator("#gain-from").fill(f"{middle - 0.001:.4f}")
    long = repeat[repeat["gain_long_nats"] >= middle]
    assert page.locator("#count").inner_text() == f"{len(long)} of 90 windows"
    assert page.locator(".card").count() == len(long)
    page.locator("#order").select_option("long")
    assert page.locator("#count").inner_text().endswith("not a fair sample.")
    shown = page.locator(".card").evaluate_all("cards => cards.map(card => Number(card.id.slice(1)))")
    assert shown == long.sort_values("gain_long_nats", ascending=False)["window_id"].tolist()
    page.locator("#search").fill("no such words anywhere")
    assert "No window passes" in page.locator("#cards").inner_text()
    page.get_by_text("Clear the filters").click()
    page.locator("#count", has_text="90 of 90").wait_for()
    page.locator("#search").fill("ONERROR")
    assert page.locator("#count").inner_text() == "1 of 90 windows"
    assert page.locator("#figure4 circle.faded").count() == 2 * 89
    # A point that the filters hide is still gone to.
    page.locator('#figure4 circle[data-window="30"]').first.dispatch_event("click")
    assert page.evaluate("document.activeElement.id") == "w30"
    assert page.locator("#figure4 circle.faded").count() == 0
    gains = read(tables["passed"]).measurement.gains
    excess = gains["kl", "real", 8] - gains["kl", "null", 8]
    gained = windows.set_index("window_id")["gain_long_nats"]
    middles = [
        float((values.sort_values().iloc[44] + values.sort_values().iloc[45]) / 2) for values in (excess, gained)
    ]
    for end, limit, passing in (
        ("excess-to", 0, excess <= 0),
        ("excess-from", middles[0], excess >= middles[0]),
        ("gain-to", middles[1], gained <= middles[1]),
        ("gain-from", middles[1], gained >= middles[1]),
    ):
        page.locator("#clear").click()
        page.locator(f"#{end}").fill(f"{limit:.5f}")
        assert page.locator("#count").inner_text().startswith(f"{int(passing.sum())} of 90 windows"), end
        view_is(page, f"#{end}={limit:.5f}")


@in_browser
def test_other_filters_begin_with_the_first_page_and_let_the_window_go(page: Any) -> None:
    page.locator('#figure4 circle[data-window="57"]').first.dispatch_event("click")
    assert page.locator("#count").inner_text() == "90 of 90 windows, 41 to 60 shown"
    view_is(page, "#page=3&window=57")
    page.locator("#gain-from").fill("-99")
    assert page.locator("#count").inner_text() == "90 of 90 windows, 1 to 20 shown"
    view_is(page, "#gain-from=-99")


@in_browser
def test_hostile_text_is_shown(page: Any) -> None:
    words = page.locator("#w0 .words").inner_text()
    for text in HOSTILE[:5]:
        assert text.strip() in words
    assert page.locator("#w0 img, #w0 b").count() == 0
    page.locator('#figure4 circle[data-window="0"]').first.dispatch_event("mouseenter")
    assert "</script><img src=x onerror=alert(1)>" in page.locator(".tip:visible").inner_text()


@in_browser
def test_a_failed_gate_shows_no_r(opened: Any) -> None:
    page = opened("failed")
    said = page.locator("body").inner_text()
    assert "show no clear gain of this model from the long context" in re.sub(r"\s+", " ", said)
    assert not re.search(r"R\(\d+\) = ", said)
    assert page.locator("#figure4 figcaption").first.inner_text().startswith("Real context: gate failed, no R(k)")
    assert "] fragile" in opened("fragile").locator("#figure4 figcaption").first.inner_text()


@in_browser
def test_a_window_shows_optimism_of_selectors_that_see_the_target(page: Any, pages: dict[str, Path]) -> None:
    data = data_of(pages["all"])
    gains = page.locator("#w2 .gains")
    assert "optimism" not in gains.inner_text()
    page.locator("#selector").select_option("greedy")
    optimism = data["windows"][2]["selections"]["greedy"]["optimism"]
    assert f"optimism, measured on resampled targets, {optimism[-1]:.3f} nats" in gains.inner_text()
    slide(page, 3)
    assert "optimism" not in gains.inner_text()
    slide(page, 8)
    page.get_by_label("null", exact=True).check()
    assert "optimism" not in gains.inner_text()


@in_browser
def test_the_largest_gains_are_a_group_of_their_own(opened: Any, pages: dict[str, Path]) -> None:
    page, data = opened("sample"), data_of(pages["sample"])
    assert page.locator("#figure4 circle").count() == 2 * 30
    assert page.locator("#count").inner_text() == "30 of 30 windows, 1 to 20 shown"
    page.get_by_role("button", name="Next windows").click()
    assert page.locator(".card").count() == 10
    drawn = "Drawn: the random sample of 30 windows; the numbers above are of all 90. Real context: "
    assert page.locator("#figure4-words").inner_text().startswith(drawn)
    page.locator("#group").select_option("largest")
    assert page.locator("#count").inner_text() == "10 of 10 windows"
    view_is(page, "#group=largest")
    assert opened("sample", address="#group=largest").locator("#count").inner_text() == "10 of 10 windows"
    largest = next(window for window in data["windows"] if window["group"] == "largest")
    assert "among the largest long gains" in page.locator(f"#w{largest['id']}").inner_text()


@in_browser
@pytest.mark.parametrize(
    ("scheme", "width", "which"),
    [("light", 1200, "fragile"), ("dark", 390, "selection"), ("dark", 1200, "failed"), ("light", 390, "all")],
)
def test_no_serious_fault_of_accessibility(opened: Any, scheme: str, width: int, which: str) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed")
    page = opened(which, color_scheme=scheme, viewport={"width": width, "height": 844}, bypass_csp=True)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    found = axe.Axe().run(page, options={"resultTypes": ["violations"]}).response
    serious = [v for v in found["violations"] if v["impact"] in ("serious", "critical")]
    assert not serious, "\n".join(
        f"{v['id']}: {v['nodes'][0]['html'][:300]} {v['nodes'][0]['failureSummary']}" for v in serious
    )
    assert len(found["passes"]) > 20


@in_browser
@pytest.mark.parametrize("which", ["all"])
def test_on_a_phone_no_words_are_cut_and_no_number_is_broken(opened: Any, which: str) -> None:
    """The bar leaves room. Panels of charts are as wide as the screen at most, and legible; intervals stand on one line."""
    page = opened(which, viewport={"width": 390, "height": 844})
    if which == "all":
        assert not page.locator("#search").is_visible()  # the filters are folded
        assert page.locator(".bar").evaluate("bar => bar.offsetHeight") < 0.1 * 844
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        for control in ("#selector", "#k", 'input[name="context"]'):
            box = page.locator(control).first.bounding_box()
            assert box is not None and box["x"] >= 0 and box["x"] + box["width"] <= 390
    page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    lines = page.locator("td.number", has_text="[").evaluate_all(
        """cells => cells.map(cell => {
          const range = document.createRange();
          range.selectNodeContents(cell);
          return new Set([...range.getClientRects()].map(line => Math.round(line.top))).size;
        })"""
    )
    assert len(lines) > 20 and set(lines) == {1}
    panels = page.locator(".chart svg.panel").evaluate_all(
        """all => all.map(one => {
          const box = one.getBoundingClientRect();
          return [box.right, box.width / one.viewBox.baseVal.width];
        })"""
    )
    assert len(panels) > 3 and all(right <= 390 and pixels_a_point > 0.9 for right, pixels_a_point in panels)
    if which == "all":  # in a wide window Figure 4 is drawn anew
        box = "document.querySelector('#figure4 svg').viewBox.baseVal.width"
        narrow = page.evaluate(box)
        page.set_viewport_size({"width": 1200, "height": 844})
        page.wait_for_function(f"() => {box} > {narrow}")


def view_is(page: Any, address: str) -> None:
    page.wait_for_function("wanted => location.hash === wanted", arg=address)


@in_browser
def test_a_view_can_be_sent(page: Any, opened: Any) -> None:
    """What the controls are set to is in the address; another browser that opens the address shows the same."""
    page.locator("#selector").select_option("unmask-one")
    view_is(page, "#selector=unmask-one")
    slide(page, 3)
    page.get_by_label("null", exact=True).check()
    view_is(page, "#selector=unmask-one&k=3&context=null")
    page.locator("#range").select_option("shared")
    view_is(page, "#selector=unmask-one&k=3&context=null&range=shared")
    page.get_by_label("other", exact=True).uncheck()
    page.locator("#gain-from").fill("-0.5")
    page.locator("#search").fill("w1 & <b>")
    page.locator("#search").fill("w1")
    page.locator("#order").select_option("long")
    wanted = (
        "#selector=unmask-one&k=3&context=null&range=shared&search=w1&gain-from=-0.5&order=long"
        "&classes=function-word%2Cinduction%2Crepeat"
    )
    view_is(page, wanted)
    shown = [page.locator(where).inner_html() for where in ("#cards", "#figure4")]
    counted = page.locator("#count").inner_text()
    other = opened("all", address=wanted)
    assert [other.locator(where).inner_html() for where in ("#cards", "#figure4")] == shown
    assert other.locator("#count").inner_text() == counted
    assert other.locator("#selector").input_value() == "unmask-one" and other.locator("#k").input_value() == "3"
    assert other.locator("#search").input_value() == "w1" and other.locator("#gain-from").input_value() == "-0.5"
    other.evaluate("location.hash = '#k=8&window=57'")  # an address that is pasted into the same page
    other.wait_for_function("document.activeElement.id === 'w57'")
    assert other.locator("#selector").input_value() == "kl" and other.locator("#search").input_value() == ""
    other.evaluate("location.hash = '#w31'")  # as the title of a card leads to it
    other.wait_for_function("() => document.activeElement.id === 'w31'")


@in_browser
def test_the_page_of_windows_that_is_shown_is_in_the_address(page: Any, opened: Any) -> None:
    page.get_by_role("button", name="Next windows").click()
    view_is(page, "#page=2")
    shown = page.locator("#pages").inner_text()
    assert "Page 2 of" in shown
    other = opened("all", address="#page=2")
    assert other.locator("#pages").inner_text() == shown
    buttons = [other.get_by_role("button", name=f"{name} windows") for name in ("Previous", "Next")]
    buttons[0].click()
    assert "Page 1 of 5" in other.locator("#pages").inner_text()
    assert [button.is_disabled() for button in buttons] == [True, False]
    for _ in range(4):
        buttons[1].click()
    assert other.locator("#count").inner_text() == "90 of 90 windows, 81 to 90 shown"
    assert [button.is_disabled() for button in buttons] == [False, True]


@in_browser
@pytest.mark.parametrize(
    "address",
    [
        "#selector=<img src=x>&k=99&context=x&range=y&order=z&classes=&page=-1&window=1e9",
        "#k=1.5&gain-from=abc&page=9999999999999999",
    ],
)
def test_an_address_of_a_stranger_changes_nothing_that_is_not_there(opened: Any, address: str) -> None:
    page = opened("fragile", address=address)
    assert page.locator("#selector").input_value() == "kl" and page.locator("#k").input_value() == "8"
    assert page.locator("#order").input_value() == "id" and page.locator("#range").input_value() == "shown"
    assert page.locator("body img").count() == 0


@in_browser
def test_many_windows_are_shown(page: Any) -> None:
    """A call of a function takes only so many arguments."""
    assert page.evaluate(
        """() => {
          const [window] = DATA.windows;
          const many = { ...DATA, windows: Array(20000).fill(window) };
          return longestOf(many.windows) === longestOf([window]) && longestOf(DATA.windows) >= longestOf([window]);
        }"""
    )


@in_browser
def test_parts_of_the_scripts_do_what_they_say(page: Any) -> None:
    """What the numbers of this measurement do not show: commas, borders of a frame, tokens without text, and round ticks."""
    cells = page.evaluate("csv([['a,b', 'say \"c\"', 'd\\ne', null, undefined, 1.5, '']])")
    assert next(csv.reader(io.StringIO(cells))) == ["a,b", 'say "c"', "d\ne", "", "", "1.5", ""]
    frame = page.evaluate(
        """() => {
          const of = (gain, null_gain) => ({ gain: [gain], null_gain });
          const windows = Array.from({ length: 101 }, (_, i) => ({
            group: "sample", gain_long_nats: 10 * i, null_gain_long_nats: 0,
            selections: { one: { real: { gain: [0, i - 200] }, null: { gain: [0, -150] } } },
          }));
          windows.push({ ...windows[0], group: "largest", gain_long_nats: 1e6 });
          return figure4Frame({ ks: [1, 2], windows }, ["one"], ["real", "null"], [2]);
        }"""
    )
    assert frame == {"x": pytest.approx([-199 - 0.06 * 199, 0.06 * 199]), "y": pytest.approx([-0.06 * 990, 1.06 * 990])}
    nodes = page.evaluate("tokenNodes([' a', 'b', ' ', '', '  c'], (text) => `<${text}>`)")
    assert nodes == [" ", "<a>", "", "<b>", " ", "<\u2423>", "", "<>", " ", "< c>"]
    for low, high in ((0.0, 1.0), (-0.31, 0.42), (3.0, 17.5), (0.0, 0.07), (-1e3, 2e3)):
        ticks = page.evaluate("([low, high]) => roundTicks(low, high, 6)", [low, high])
        steps = {round(after - before, 12) for before, after in itertools.pairwise(ticks)}
        assert len(steps) == 1 and 3 <= len(ticks) <= 8 and low <= ticks[0] and ticks[-1] <= high
        step = steps.pop()
        assert float(f"{step:.0e}"[0]) in (1, 2, 5) and step == float(f"{step:.0e}")
        assert ticks[0] - step < low and ticks[-1] + step > high and all(len(str(tick)) < 6 for tick in ticks)
    numbers = {"loss_short_nats": 1, "loss_long_nats": 2, "null_loss_long_nats": 3, "real": [4, 5], "null": [7, 6]}
    for largest in numbers:  # in each place the largest loss is found, of whichever window
        of = {name: 9 if name == largest else value for name, value in numbers.items() if not isinstance(value, list)}
        chosen = {name: {"loss": [numbers[name][0], 9 if name == largest else 5]} for name in ("real", "null")}
        windows = [{**of, "selections": {"one": chosen}}, {**of, "loss_short_nats": 1, "selections": {}}]
        assert page.evaluate("longestOf", windows) == 9 == page.evaluate("longestOf", windows[::-1]), largest
    assert page.evaluate("longestOf", []) == 0
    entry = {"sees_target": True, "recovered_fraction": None, "corrected_gain_nats": None, "k": 2}
    assert page.evaluate("entry => numberOf(DATA, entry)", entry) == "its corrected gain is not known"


@in_browser
def test_a_window_of_groups_counts_them_and_has_a_rank_behind_each(opened: Any) -> None:
    """And of screened candidates no score is said; the slider ends with the largest k, of which more are measured than shown."""
    page = opened("selection")
    page.evaluate(
        """() => {
          Object.assign(DATA.summary, { unit: "word" });
          const words = { one: "word", many: "words" };
          Object.assign(DATA, { units: words, group_units: words, first_k: 2 });
          const [window] = listed();
          Object.assign(window.selections.kl.real, {
            positions: [4, 5, 6, 9], ranks: [1, 1, 2, 3], scores: [null, ...window.selections.kl.real.scores.slice(1)],
          });
          fillControls();
          setView(DATA, state, viewOf("#k=2"));
          drawAll();
        }"""
    )
    card = page.locator(".card").first
    assert "12 long-range tokens, 2 words of 3 tokens visible" in card.inner_text()
    assert "8 local tokens, always visible, and the target" in card.inner_text()
    marked = card.locator("mark").evaluate_all(
        "all => all.map(m => m.querySelector('sup')?.lastChild.textContent ?? '')"
    )
    assert marked == ["", "1", "2"]
    first = card.locator(".far .token").first
    assert first.get_attribute("title") == "20 tokens before the target"
    assert first.evaluate("token => Number(token.style.getPropertyValue('--heat-share'))") == 0
    assert page.locator("#k-shown").inner_text() == "2" and page.locator("#k").get_attribute("max") == "8"
    page.evaluate("setView(DATA, state, viewOf('#k=8')); drawAll()")
    assert page.locator("#k").input_value() == "8" and "3 words of 4 tokens" in card.inner_text()
    slide(page, 1)
    assert "1 word of 2 tokens visible" in card.inner_text()
    assert "sparse gain with 1 word, nats" in page.locator("#figure4").inner_html()
    page.evaluate("listed()[0].selections.kl.real.ranks = [1, 2, 2, 3]; drawAll()")
    assert "1 word of 1 token visible" in card.inner_text()


@in_browser
def test_what_is_visible_of_a_cache_is_an_entry(opened: Any) -> None:
    """As `show` says: single entries, and groups of them."""
    page = opened("selection")
    page.evaluate(
        """() => {
          const entries = { one: "entry", many: "entries" };
          Object.assign(DATA, { units: entries, token_units: entries, group_units: { one: "word", many: "words" } });
          drawAll();
        }"""
    )
    card = page.locator(".card").first
    for k, words in ((8, "8 entries"), (1, "1 entry")):
        slide(page, k)
        assert f"12 long-range tokens, {words} visible" in card.inner_text()
    page.evaluate(
        """() => {
          DATA.summary.unit = "word";
          DATA.units = { one: "word of entries", many: "words of entries" };
          Object.assign(listed()[0].selections.kl.real, { positions: [4, 5, 6], ranks: [1, 1, 2] });
          drawAll();
        }"""
    )
    assert "12 long-range tokens, 1 word of 2 entries visible" in card.inner_text()


@in_browser
def test_figure4_says_which_k_it_shows(page: Any) -> None:
    note = page.locator(".unmeasured")
    assert not note.is_visible()
    slide(page, 5)
    assert note.inner_text() == "k = 5 was not measured: what follows is of k = 2."
    assert "k = 2" in page.locator("#figure4 svg").first.get_attribute("aria-label")
    assert page.locator("#k-shown").inner_text() == "5 of 12"
    slide(page, 2)
    assert not note.is_visible()
    slide(page, 0)
    assert note.inner_text() == "k = 0 was not measured: what follows is of k = 1."


@in_browser
def test_numbers_windows_and_citation_are_saved_without_a_network(
    page: Any, tables: dict[str, Path], pages: dict[str, Path]
) -> None:
    measurement = read(tables["passed"]).measurement

    def saved(button: Any) -> str:
        with page.expect_download() as download:
            button.click()
        return Path(download.value.path()).read_text()

    data = data_of(pages["all"])
    assert saved(page.locator("#save-numbers")) == gzip.decompress(base64.b64decode(data["numbers"])).decode()
    page.locator("#search").fill("ONERROR")
    (window,) = csv.DictReader(io.StringIO(saved(page.locator("#save-windows"))))
    assert window["window_id"] == "0"
    (index,) = np.flatnonzero(measurement.windows["window_id"] == 0)
    assert float(window["weight"]) == pytest.approx(measurement.weights_W[index], rel=1e-3)
    assert window["document"] == measurement.windows["doc_id"].iloc[index]
    assert float(window["gain_kl_null_k8_nats"]) == data["windows"][0]["selections"]["kl"]["null"]["gain"][-1]
    cited = page.locator("#citation").input_value()
    for allowed, said in ((False, "Selected: copy it with the keyboard."), (True, "Copied.")):
        page.evaluate(
            """allowed => Object.defineProperty(navigator, "clipboard", { configurable: true, value: {
              writeText: async (text) => { if (!allowed) throw new Error(); window.copied = text; } } })""",
            allowed,
        )
        page.evaluate("getSelection().removeAllRanges()")
        page.locator("#copy-citation").click()
        page.locator("#copied", has_text=said).wait_for()
        area = (
            "(({ selectionStart, selectionEnd, value }) => value.slice(selectionStart, selectionEnd))(byId('citation'))"
        )
        assert page.evaluate("window.copied" if allowed else area) == cited
    assert "Golowich" in cited and summarize(measurement).run_id in cited


@in_browser
@pytest.mark.parametrize(("which", "shown"), [("signed", 90), ("sample", 30)])
def test_saved_windows_have_each_number_in_its_column(
    opened: Any, tables: dict[str, Path], which: str, shown: int
) -> None:
    """Every column of every window that is listed, from the rows of the tables."""
    of = tables["passed" if which == "sample" else which]
    windows = {row["window_id"]: row for row in read_table(of, "windows").to_pylist()}
    gains = {
        (row["window_id"], f"gain_{row['selector']}_{row['context']}_k{k}_nats"): gain
        for row in read_table(of, "selections").to_pylist()
        if row["context"] in ("real", "null")
        for k, gain in zip(row["k"], row["gain_sparse_nats"], strict=True)
    }
    page = opened(which)
    with page.expect_download() as download:
        page.locator("#save-windows").click()
    rows = list(csv.DictReader(io.StringIO(Path(download.value.path()).read_text())))
    assert len(rows) == shown
    of_window = ["loss_short_nats", "loss_long_nats", "gain_long_nats", "null_gain_long_nats"]
    words = ["window_id", "document", "weight", "class", "group"]
    assert list(rows[0])[:9] == [*words, *of_window] and set(list(rows[0])[9:]) == {name for _, name in gains}
    for found in rows:
        window_id = int(found["window_id"])
        window = windows[window_id]
        assert [found[name] for name in ("document", "class", "group")] == [
            window["doc_id"], window["target_class"], "sample",
        ]  # fmt: skip
        assert float(found["weight"]) == pytest.approx(window["weight"], rel=1e-3)
        expected = [window[name] for name in of_window] + [gains[window_id, name] for name in list(found)[9:]]
        assert [float(found[name]) for name in list(found)[5:]] == pytest.approx(expected, abs=6e-5)


@in_browser
@pytest.mark.parametrize(("selector", "k"), [("unmask-one", 2), ("kl", 1), ("random", 8)])
def test_the_words_below_figure4_have_each_number_under_its_name(
    kept: Callable[[str, str], Any], tables: dict[str, Path], selector: str, k: int
) -> None:
    page = kept("signed", f"selector={selector}&k={k}")
    entry = read(tables["signed"]).summary.at(selector, "real", k)
    expected = {"excess gain": entry.excess_gain_nats}
    if entry.corrected_gain_nats is not None:
        expected["optimism, real context"] = entry.optimism_nats
    if selector == "kl":
        expected["gain over random, real context"] = entry.gain_over_random_nats
    said = page.locator("#figure4-words").inner_text()
    sides, minus_words, difference = said.partition("Real minus null context")
    fraction = f"; R({k}) with its optimism: {printed(entry.recovered_fraction, 2)}"
    assert (fraction in sides) == (" with its optimism" in sides) == (selector == "unmask-one")
    titles = page.locator("#figure4 figure:first-child svg > g text:not(.tick)").all_text_contents()
    assert titles == [f"sparse gain with {k} token{'s' * (k > 1)}, nats", "long gain, nats"]
    found = re.findall(r"(?:, the |; )([a-z][a-z ,]*): (\S+ \[\S+ \S+\]) nats", minus_words + difference)
    assert found == [(name, printed(value)) for name, value in expected.items()]
    assert sides.startswith("All 90 windows. Real context: mean sparse gain ")
    border = re.search(r"Open points at the border \((\d+)\) lie beyond the frame\.$", said)
    assert int(border[1] if border else 0) == page.locator("#figure4 circle.edge").count()
    assert page.locator("#k-shown").inner_text() == f"{k} of 12"


@in_browser
def test_both_sides_of_figure4_have_the_same_range_of_what_is_shown_or_of_everything(page: Any) -> None:

    def ticks() -> list[list[str]]:
        return [figure.locator(".tick").all_text_contents() for figure in page.locator("#figure4 figure").all()]

    page.locator("#selector").select_option("unmask-one")
    shown = ticks()
    page.locator("#range").select_option("shared")
    shared = ticks()
    assert shown[0] == shown[1] and shared[0] == shared[1] and shown != shared
    page.locator("#selector").select_option("kl")
    assert ticks() == shared


def number_in(text: str) -> float:
    """Return a number as the page writes it, with a typographic minus."""
    return float(text.replace("\u2212", "-"))


@in_browser
@pytest.mark.parametrize(
    ("window_id", "selector", "context", "k"),
    [(3, "kl", "real", 2), (4, "unmask-one", "null", 8), (5, "unmask-one", "real", 1), (6, "attention", "null", 1)],
)
def test_a_card_says_each_number_of_its_window_under_its_name(
    kept: Callable[[str, str], Any], tables: dict[str, Path], window_id: int, selector: str, context: str, k: int
) -> None:
    """From the rows of the tables: distances with the local tokens, scores, what speaks against, ranks, losses, gains."""
    page = kept("signed", f"selector={selector}&k={k}&context={context}")
    (window,) = (row for row in read_table(tables["signed"], "windows").to_pylist() if row["window_id"] == window_id)
    choices = read_table(tables["signed"], "selections").to_pylist()
    (row,) = (r for r in choices if (r["window_id"], r["selector"], r["context"]) == (window_id, selector, context))
    shown = page.locator(f"#w{window_id} .far .token").evaluate_all(
        """tokens => tokens.map(t => [t.title, t.classList.contains("against"), t.style.getPropertyValue("--heat-share"),
          t.querySelector("sup")?.lastChild.textContent ?? ""])"""
    )
    scores = row["scores"]
    assert min(scores) < 0 < max(scores)
    for position, (title, is_against, heat, rank) in enumerate(shown):
        back, score = re.fullmatch(r"(\d+) tokens before the target; score (.+)", title).groups()  # type: ignore[union-attr]
        assert int(back) == 20 - position
        assert float(score) == pytest.approx(scores[position], abs=0.051)
        assert is_against == (scores[position] < 0)
        assert float(heat) == pytest.approx(abs(scores[position]) / max(map(abs, scores)), abs=0.011)
        chosen = row["positions"][:k]
        assert rank == (str(chosen.index(position) + 1) if position in chosen else "")
    short, sparse = window["loss_short_nats"], row["loss_sparse_nats"][KS.index(k)]
    long = window["loss_long_nats" if context == "real" else "null_loss_long_nats"]
    named = {
        "L_short, local only": short,
        f"L_short,sparse({k})": sparse,
        "L_long, all tokens" if context == "real" else "L_long, null context": long,
    }
    bars = page.locator(f"#w{window_id} .loss").evaluate_all(
        """bars => bars.map(b => [...[...b.children].map(c => c.textContent),
          b.querySelector("svg").lastChild.getAttribute("width")])"""
    )
    assert [name for name, *_ in bars] == list(named)
    widths = [float(width) for *_, width in bars]
    longest = max(
        *(loss for choice in choices if choice["context"] in ("real", "null") for loss in choice["loss_sparse_nats"]),
        *(
            of[name]
            for of in read_table(tables["signed"], "windows").to_pylist()
            for name in ("loss_short_nats", "loss_long_nats", "null_loss_long_nats")
        ),
    )
    assert widths[0] == pytest.approx(100 * short / longest, rel=1e-3)
    for (_, loss, *_), width, expected in zip(bars, widths, named.values(), strict=True):
        assert number_in(loss.removesuffix(" nats")) == pytest.approx(expected, abs=6e-4)
        assert width / widths[0] == pytest.approx(expected / short, abs=1e-3)
    gains = page.locator(f"#w{window_id} .gains").inner_text()
    said = re.match(r"sparse gain (\S+), long gain (\S+) nats", gains)
    assert said is not None and [number_in(one) for one in said.groups()] == pytest.approx(
        [short - sparse, short - long], abs=6e-4
    )
    header = page.locator(f"#w{window_id} header").inner_text()
    assert f"document {window['doc_id'][:8]}, from token {window['start_token']}" in header
    assert window["target_class"] in header
    assert page.locator(f"#w{window_id} header .tag").get_attribute("title") == CLASSES[window["target_class"]]
    filters = page.locator("#class-filters label").evaluate_all("all => all.map(l => [l.textContent.trim(), l.title])")
    assert dict(filters) == {name: CLASSES[name] for name, _ in filters}
    heads = page.locator(f"#w{window_id} h4").all_inner_texts()
    assert heads[0].startswith("12 long-range tokens") and heads[0].endswith(f", {k} of them visible")
    assert heads[1] == "8 local tokens, always visible, and the target"
    assert (f"of document {window['null_doc_id'][:8]}" in page.locator(f"#w{window_id}").inner_text()) == (
        context == "null"
    )


@in_browser
def test_each_panel_of_figure4_has_the_gains_of_its_own_context(
    kept: Callable[[str, str], Any], tables: dict[str, Path]
) -> None:
    """Places of the points against the ticks of the axes, areas against the weights, and the numbers of title and caption."""
    page = kept("signed", "selector=unmask-one&k=2")
    drawn = read(tables["signed"])
    gains, windows = drawn.measurement.gains, drawn.measurement.windows.set_index("window_id", drop=False)
    weight = dict(zip(drawn.measurement.windows["window_id"], drawn.measurement.weights_W, strict=True))
    assert len(set(weight.values())) == 3
    panels = page.locator("#figure4 figure").evaluate_all(
        """panels => panels.map(p => ({
          said: p.querySelector("figcaption").textContent,
          inks: [...new Set([...p.querySelectorAll("circle")].flatMap(c => [c.getAttribute("fill"), c.getAttribute("stroke")]))],
          lines: ["zero", "same"].map(name => [...p.querySelectorAll(`line.${name}`)].map(l =>
            ["x1", "y1", "x2", "y2"].map(n => Number(l.getAttribute(n))))),
          ticks: [...p.querySelectorAll("text.tick")].map(t =>
            ["x", "y", "text-anchor"].map(n => t.getAttribute(n)).concat(t.textContent)),
          points: [...p.querySelectorAll("circle")].map(c => [c.dataset.window, c.getAttribute("cx"), c.getAttribute("cy"),
            c.getAttribute("r"), c.classList.contains("edge"), c.getAttribute("aria-label")]),
        }))"""
    )
    assert len(panels) == 2
    for panel, context in zip(panels, ("real", "null"), strict=True):
        row_of = {window_id: row for row, window_id in enumerate(drawn.measurement.windows["window_id"])}
        of_x = [(float(x), number_in(words)) for x, _, anchor, words in panel["ticks"] if anchor == "middle"]
        of_y = [(float(y) - 4, number_in(words)) for _, y, anchor, words in panel["ticks"] if anchor == "end"]
        to_x, to_y = (np.polyfit(*zip(*ticks, strict=True), 1) for ticks in (of_x, of_y))
        assert panel["inks"] == ["var(--of-unmask-one)"]
        (upright, level), ((x1, y1, x2, y2),) = panel["lines"]
        assert np.polyval(to_x, [upright[0], upright[2]]) == pytest.approx([0, 0], abs=0.01)
        assert np.polyval(to_y, [level[1], level[3]]) == pytest.approx([0, 0], abs=0.01)
        assert np.polyval(to_x, [x1, x2]) == pytest.approx(np.polyval(to_y, [y1, y2]), abs=0.01) and x1 < x2
        num_inside = 0
        for name, cx, cy, radius, is_edge, label in panel["points"]:
            window_id = int(name)
            sparse = gains["unmask-one", context, 2].to_numpy()[row_of[window_id]]
            long = windows["gain_long_nats" if context == "real" else "null_gain_long_nats"][window_id]
            assert float(radius) == pytest.approx(5 * np.sqrt(weight[window_id]), abs=0.051)
            told = re.search(r"sparse gain (\S+) nats, long gain (\S+) nats", label)
            assert told is not None and [number_in(one) for one in told.groups()] == pytest.approx(
                [sparse, long], abs=6e-4
            )
            if not is_edge:
                num_inside += 1
                place = (np.polyval(to_x, float(cx)), np.polyval(to_y, float(cy)))
                assert place == pytest.approx((sparse, long), abs=0.01)
        assert num_inside > 80
        selection = drawn.summary.at("unmask-one", context, 2)
        slopes = [
            interval(slope).replace("-", "\u2212")
            for slope in (selection.figure4.ols_slope, selection.figure4.tls_slope)
        ]
        corrected = f"{context.capitalize()} context: corrected gain {interval(selection.corrected_gain_nats, 3)} nats"
        assert panel["said"] == corrected.replace("-", "\u2212")
        caption = page.locator("#figure4-words").inner_text().partition(f"{context.capitalize()} context: ")[2]
        others = f"mean sparse gain {interval(selection.gain_sparse_nats, 3)} nats; "
        others += f"correlation {interval(selection.figure4.correlation)}; slope "
        assert caption.startswith(
            f"{others.replace('-', chr(0x2212))}{slopes[0]} (ordinary), {slopes[1]} (total least squares)"
        )


@in_browser
@pytest.mark.parametrize(
    ("selector", "group", "verdict_of", "score"),
    [
        (
            "attention",
            "Does not see the target",
            "Does not see the target: its gain over random has no optimism.",
            "attention that the last token pays",
        ),
        (
            "unmask-one",
            "Sees the target: part of its gain is optimism",
            "Sees the target: part of its gain is optimism; read the corrected gain.",
            "how far the loss of the",
        ),
        ("random", "Controls: select nothing", "Selects nothing: a control.", "control: a random number."),
    ],
)
def test_a_note_says_of_which_kind_a_selector_is(
    page: Any, selector: str, group: str, verdict_of: str, score: str
) -> None:
    page.locator("#selector").select_option(selector)
    assert page.locator("#selector-note").inner_text().startswith(f"{verdict_of} Score: {score}")
    groups = page.locator("#selector optgroup").evaluate_all(
        "all => Object.fromEntries(all.map(g => [g.label, [...g.children].map(o => o.value)]))"
    )
    assert [label for label, names in groups.items() if selector in names] == [group]


@in_browser
@pytest.mark.parametrize("context", ["real", "null"])
def test_a_point_that_is_hovered_says_its_gains_and_its_words(
    kept: Callable[[str, str], Any], tables: dict[str, Path], context: str
) -> None:
    page = kept("signed", "selector=unmask-one&k=2")
    (window,) = (row for row in read_table(tables["signed"], "windows").to_pylist() if row["window_id"] == 7)
    gain = read(tables["signed"]).measurement.gains["unmask-one", context, 2].loc[7]
    figure = page.locator("#figure4 figure").nth(["real", "null"].index(context))
    figure.locator('circle[data-window="7"]').dispatch_event("mouseenter")
    said = figure.locator(".tip").inner_text()
    assert said.startswith(f"Window 7, {window['target_class']}")
    long = window["gain_long_nats" if context == "real" else "null_gain_long_nats"]
    numbers = re.search(r"sparse (\S+), long (\S+) nats$", said)
    assert numbers is not None and [number_in(one) for one in numbers.groups()] == pytest.approx([gain, long], abs=6e-4)
    assert "".join(window["token_texts"][-6:]) + " \u25b8 end" in said.replace("\u25b8", "\u25b8 ").replace("  ", " ")
    for begins, ends in (("mouseenter", "mouseleave"), ("focus", "blur")):
        figure.locator('circle[data-window="7"]').dispatch_event(begins)
        assert figure.locator(".tip").is_visible()
        figure.locator('circle[data-window="7"]').dispatch_event(ends)
        assert not figure.locator(".tip").is_visible()


@in_browser
@pytest.mark.parametrize("order", ["id", "long", "sparse", "excess"])
def test_windows_are_listed_the_largest_first(
    kept: Callable[[str, str], Any], tables: dict[str, Path], order: str
) -> None:
    page = kept("signed", "selector=unmask-one&k=2")
    measurement = read(tables["signed"]).measurement
    real, null = (measurement.gains["unmask-one", context, 2] for context in ("real", "null"))
    ids = measurement.windows["window_id"].to_numpy()
    values = {"id": -ids, "long": measurement.windows["gain_long_nats"], "sparse": real, "excess": real - null}[order]
    page.locator("#order").select_option(order)
    shown = page.locator(".card").evaluate_all("cards => cards.map(card => Number(card.id.slice(1)))")
    assert shown == ids[np.argsort(-np.asarray(values), kind="stable")][:20].tolist()
