"""The report: its numbers are those of the tables, and it can be read in a real browser."""

from __future__ import annotations

import dataclasses
import html
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from browser_pages import chromium, in_browser, load_page
from drawn_figures import read
from made_up import CONTEXTUAL, PRETRAINED, M, made_up_tables
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
from olmo_sparsity.tables.parts import write_parquet
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.text.target_classes import CLASSES
from olmo_sparsity.view.excerpts import choose_windows, read_excerpts, shown_first
from olmo_sparsity.view.figure_scripts import figure_script
from olmo_sparsity.view.pages import minus
from olmo_sparsity.view.report import _facts, default_out, write_report
from olmo_sparsity.view.report_answer import answer
from olmo_sparsity.view.report_data import HEAT_STEPS, read_report
from olmo_sparsity.view.result_table import Cell, Column, ResultTable
from olmo_sparsity.view.summary_tables import (
    blind_table,
    class_table,
    distance_table,
    every_selection_table,
    figure4_table,
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
from olmo_sparsity.wording.tokens import token_words

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

    def figures(measured: Measured, selector: str) -> Any:
        gate = measured.summary.gate
        return (
            drawn[gate]
            if gate in drawn
            else drawn.setdefault(gate, figure_script("on_page").of_report(measured, selector))
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("olmo_sparsity.view.report.Measured", SimpleNamespace(read=read))
        patch.setattr("olmo_sparsity.view.report.figure_script", lambda name: SimpleNamespace(of_report=figures))
        return {
            name: write_report(tables[which], tables[which].parent / f"{name}.html", num_windows=number)
            for name, (which, number) in wanted.items()
        }


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


def test_the_charts_are_the_figures_of_analysis(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    """Panel by panel, with what they show for screen readers; a gate that failed stands above each."""
    for which, sentences, distances in (("all", 0, 8), ("failed", 2, 3)):
        page = pages[which].read_text()
        figure4, *charts = re.findall(r'<figure class="chart">.*?</figure>', page, re.DOTALL)
        for context in ("real context", "null context"):
            assert all(f"k = {k}, {context}" in figure4 and f"{context}</text>" in figure4 for k in (1, 8))
        drawings = [re.findall("<svg.*?</svg>", chart, re.DOTALL) for chart in charts]
        panels = [[re.findall("<text[^>]*>([^<]*)", drawing) for drawing in of] for of in drawings]
        assert [len(of) for of in panels] == [7, 4, 5, 5, distances + 1]  # the last of each is the legend
        assert "unmask-one" in panels[0][-1] and "R(8)" in panels[3][2] and "within 0.05 nats" in panels[2][1]
        assert sum("kl, k = 8" in panel for panel in panels[4]) == 1
        assert "attention" in panels[0][-1] and "induction" in panels[3][0]  # a class is named beside each panel
        assert all("induction" in panel for panel in panels[3][:4])
        for chart in (figure4, *charts):
            assert chart.count('class="gate failed"') == sentences
            (name,) = re.findall(r'role="img" aria-label="[^"]+" aria-describedby="([^"]+)"', chart)
            assert re.search(rf'id="{name}">[A-Z]', chart)
        ids = re.findall(r'\sid="([^"]+)"', page)
        assert len(ids) == len(set(ids))
        svgs = " ".join([figure4, *charts])
        assert "<image" not in svgs
        assert {*re.findall(r'(?:href="|url\()#([^")]+)', svgs)} <= set(ids)
        assert "style=" not in svgs and "<style" not in svgs and "<script" not in svgs


def test_the_windows_are_rows_of_the_tables(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    """Each with the choice of the shown selector at the largest shown k: shades and scores, ranks, losses and gains."""
    selector = shown_first(read(tables["signed"]).measurement)
    rows = {row["window_id"]: row for row in read_table(tables["signed"], "windows").to_pylist()}
    chosen = {
        row["window_id"]: row
        for row in read_table(tables["signed"], "selections").to_pylist()
        if (row["selector"], row["context"]) == (selector, "real")
    }
    cards = re.findall('<article class="card" id="w(\\d+)".*?>(.*?)</article>', pages["signed"].read_text(), re.DOTALL)
    assert [int(number) for number, _ in cards] == sorted(rows)
    for number, card in cards:
        row, of = rows[int(number)], chosen[int(number)]
        found = re.findall(r'<(span|mark) class="(token [^"]*)" title="([^"]*)">(.*?)</\1>', card)
        assert len(found) == M
        for position, (tag, classes, title, text) in enumerate(found):
            score, index = of["scores"][position], of["k"].index(8)
            assert title == f"{len(row['token_ids']) - position} tokens before the target, score {score:.3g}"
            assert ("against" in classes.split()) == (score < 0)
            assert f"heat-{round(abs(score) / np.abs(of['scores']).max() * HEAT_STEPS)}" in classes.split()
            rank = of["positions"].index(position) + 1 if position in of["positions"] else None
            assert (tag == "mark") == (rank is not None and rank <= 8)
            assert tag == "span" or text.endswith(f'<sup><span class="hidden"> chosen as J_</span>{rank}</sup>')
            shown = html.unescape(text.partition("<sup>")[0])
            assert shown == (token_words if tag == "mark" else printable)(row["token_texts"][position])
        numbers = [float(of) for of in re.findall(r"<dd>([^<]*) nats</dd>", card.replace("\u2212", "-"))]
        gain = of["gain_sparse_nats"][index]
        losses = [row["loss_short_nats"], of["loss_sparse_nats"][index], row["loss_long_nats"]]
        assert numbers == pytest.approx([*losses, gain, row["gain_long_nats"]], abs=6e-4)


@pytest.mark.usefixtures("no_charts")
def test_the_page_of_a_pretrained_model_names_it_and_speaks_of_no_training_row(tmp_path: Path) -> None:
    tables = made_up_tables(tmp_path / "tables", setup=CONTEXTUAL)
    summary = summarize(load(tables))
    path = write_report(tables, tmp_path / "page.html", num_windows=20)
    page = html.unescape(path.read_text())
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


@pytest.mark.usefixtures("no_charts")
def test_a_window_has_its_optimism_where_the_shown_selector_sees_the_target(
    tables: dict[str, Path], tmp_path: Path
) -> None:
    measured = read(tables["passed"])
    names = {"unmask-one": "unmask-one", "random": "random"}
    seeing = dataclasses.replace(measured, measurement=measured.measurement.restrict_selectors(names))
    found = read_report(seeing, num_windows=90)
    assert found.selector == "unmask-one"
    (excerpt,) = read_excerpts(tables["passed"], [11])
    optimism = excerpt.optimism_at("unmask-one", k=found.sample[0].k)
    assert optimism is not None and found.sample[11].excerpt.optimism_at("unmask-one", k=found.sample[0].k) == optimism


def test_a_sample_is_drawn_by_a_rule(tables: dict[str, Path], pages: dict[str, Path]) -> None:
    measurement = read(tables["passed"]).measurement
    sample, largest = choose_windows(measurement, 30, num_largest=10, seed=0)
    assert (sample, largest) == choose_windows(measurement, 30, num_largest=10, seed=0)
    assert sample != choose_windows(measurement, 30, num_largest=10, seed=1)[0]
    assert len(set(sample)) == 30
    others = measurement.windows[~measurement.windows["window_id"].isin(sample)]
    assert largest == others.nlargest(10, "gain_long_nats")["window_id"].tolist()
    said = re.sub(r"\s+", " ", pages["sample"].read_text())
    assert [int(number) for number in re.findall('<article class="card" id="w(\\d+)"', said)] == sample + largest
    assert said.count('<p class="tag">among the largest long gains</p>') == 10
    assert "30 of the 90 windows, drawn at random (seed 0)." in said
    assert "Behind them stand the 10 other windows with the largest long gains. They are not a fair sample." in said
    everything = re.sub(r"\s+", " ", pages["all"].read_text())
    assert "All 90 windows that were measured." in everything and "Behind them stand" not in everything
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
    found = read_report(measured, num_windows=85, seed=3)
    expected, largest = choose_windows(measured.measurement, 85, num_largest=10, seed=3)
    assert (found.seed, len(found.sample), len(found.largest), found.has_all_windows) == (3, 85, 5, False)
    assert [window.excerpt.window_id for window in found.sample + found.largest] == expected + largest
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
@pytest.mark.parametrize("kind", ["document", "shuffled"])
def test_the_content_is_spoken_of_where_the_null_context_is_foreign_text(tmp_path: Path, kind: str) -> None:
    of = dataclasses.replace(PLANTED["words"], influence={**PLANTED["words"].influence, "null_context": kind})
    said = words_of(write_report(write(tmp_path / "tables", of), tmp_path / "words.html", num_windows=3))
    assert f"The same window with this in place of its long-range tokens: {NULL_WORDS[kind]}. The selector" in said
    assert "other long-range tokens" not in said
    contents = ("the content of the long context does not matter", "It shows whether the content matters;")
    assert [words in said for words in contents] == [kind == "document"] * 2


def test_r_of_the_null_context_is_a_share_of_the_real_long_gain_as_its_term_says(
    tables: dict[str, Path], pages: dict[str, Path]
) -> None:
    summary = read(tables["passed"]).summary
    of_null = [of for of in summary.selections if of.context == "null"]
    for of in of_null:
        assert of.recovered_fraction is not None
        assert of.recovered_fraction.mean == pytest.approx(of.gain_sparse_nats.mean / summary.long_gain_nats.mean)
    assert len(of_null) > 10 and abs(summary.null_long_gain_nats.mean / summary.long_gain_nats.mean) < 0.5
    assert "divided by mean long gain; under the null context, too, by the long gain of the real one." in words_of(
        pages["all"]
    )


def test_hostile_text_stays_text(pages: dict[str, Path]) -> None:
    page = pages["all"].read_text()
    assert "onerror" in page
    for found in re.finditer("onerror", page):
        assert page[: found.start()].endswith("&lt;img src=x ")
    assert "<script" not in page and "\u2028" not in page and "script-src &#39;none&#39;" in page
    (first,) = re.findall('<article class="card" id="w0".*?</article>', page, re.DOTALL)
    assert f"target: </span>{html.escape(HOSTILE[0], quote=False)}</strong>" in first
    assert all(html.escape(text) in first for text in (" \u21b5line\u21b5", " \ufffdright"))


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
    page = re.sub("<article.*?</article>", "", pages["all"].read_text(), flags=re.DOTALL)  # hostile words
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
def test_on_a_phone_no_words_are_cut_and_no_number_is_broken(opened: Any) -> None:
    """Panels of charts are as wide as the screen at most, and legible; intervals stand on one line."""
    page = opened("all", viewport={"width": 390, "height": 844})
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
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
