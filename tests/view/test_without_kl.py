"""A measurement of which `kl` was no selector: whatever leads with a blind choice leads with another one, and names it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from drawn_figures import FIGURES, figures_of, words_on
from made_up import made_up_tables

from olmo_sparsity import api
from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.several.comparison import compare, main_rows
from olmo_sparsity.statistics.several.hypothesis import hypothesis_of
from olmo_sparsity.statistics.several.subjects import read_subjects
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.view.console import print_summary
from olmo_sparsity.view.one_window import show_window, terminal
from olmo_sparsity.view.report_answer import answer
from olmo_sparsity.view.report_data import read_report
from olmo_sparsity.wording.evidence import evidence_sentences, verdict_words
from olmo_sparsity.wording.numbers import interval
from olmo_sparsity.wording.spectrum import spectrum_sentences

SELECTORS = ["unmask-one", "nearest", "attention", "random"]
KL = re.compile(r"(?<![\w-])kl(?![\w-])")  # the selector; KL is a divergence


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_tables(tmp_path_factory.mktemp("without") / "tables", num_documents=120, selectors=SELECTORS)


@pytest.fixture(scope="module")
def measured(tables: Path) -> Measured:
    return Measured.read(tables)


def test_the_headline_is_of_attention(measured: Measured) -> None:
    summary = measured.summary
    assert not KL.search(verdict_words(summary, "attention"))
    sentences = evidence_sentences(summary, "attention")
    assert sentences[1].startswith("Chosen by attention, which does not see the target, one token gains ")
    at = summary.prediction_recovered("attention", 8)
    beside = f"D(8) = {interval(at.real)} (random {interval(at.random)}, null context {interval(at.null)})"
    assert beside in sentences[3] and sentences[3].startswith(
        "Of the model's reaction to the long context, useful or not, attention"
    )
    (_, needed, reaction) = spectrum_sentences(measured.spectra, summary)
    assert "chosen by attention, " in needed and "chosen by attention, " in reaction
    assert not KL.search(" ".join([*sentences, needed, reaction]))


def test_what_is_printed_names_the_measured_selectors_alone(
    tables: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    print_summary(tables, every=True)
    show_window(tables, 3, console=terminal())
    printed = capsys.readouterr().out
    assert not KL.search(printed)
    assert "Selector attention, real context, k = 8. It does not see the target." in printed
    blind = printed[printed.index("\nselectors that do not see the target") :]
    assert re.findall(r"│ ([\w-]+) +│ 8 +│", blind)[:2] == ["attention", "nearest"]
    rows = main_rows(compare(read_subjects([str(tables), str(tables)])))
    assert {row.selector for row in rows} == {None, "attention", "random", "unmask-one"}


def test_the_report_begins_with_attention(measured: Measured) -> None:
    found = read_report(measured, num_windows=3)
    assert (found.selector, found.sample[0].k) == ("attention", 8)
    said = answer(measured.summary, found.selector)
    assert said.sentences[1].startswith("Chosen by attention, which does not see the target, ")
    assert not KL.search(" ".join([said.verdict, *said.sentences, *said.notes]))
    assert hypothesis_of(measured.tables) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("figure5", "(attention, numbered by rank)"),
        ("spectrum", "chosen by attention (how many)"),
        ("classes", "attention"),
    ],
)
def test_figures_name_what_they_show(measured: Measured, name: str, words: str) -> None:
    (figure,) = figures_of(FIGURES[name](measured))
    said = words_on(figure)
    assert words in said
    labels = [text.get_text() for axis in figure.axes for text in (*axis.texts, axis.title)]
    labels += [text.get_text() for legend in figure.legends for text in legend.get_texts()]
    assert not KL.search(" ".join(labels))


def test_figure_4_of_a_selector_that_was_not_measured_is_one_line(tables: Path) -> None:
    with pytest.raises(
        UserError, match=r"selector = 'kl': not measured; the measured selectors are .*attention"
    ) as refused:
        api.figure4(str(tables))
    assert "\n" not in str(refused.value)
