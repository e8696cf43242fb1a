"""What is said and shown of selectors that choose by head, and what is not."""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from analysis import compare as compare_figure
from olmo_sparsity import api
from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.several.comparison import compare
from olmo_sparsity.statistics.several.subjects import read_subjects
from olmo_sparsity.statistics.single.breakdowns import by_distance
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.spectrum import chosen_family
from olmo_sparsity.statistics.single.summary import summarize
from olmo_sparsity.view.console import print_comparison
from olmo_sparsity.view.excerpts import read_excerpts, shown_first
from olmo_sparsity.view.one_window import show_window, terminal
from olmo_sparsity.view.report import write_report
from olmo_sparsity.view.summary_tables import blind_table
from olmo_sparsity.wording.evidence import evidence_sentences, first_blind
from olmo_sparsity.wording.units import ENTRY_WORDS, units_words

NAMES = ["h2o-heads", "random-heads", "h2o", "random"]
TEXT = "the river of the garden was quiet " * 30


@pytest.fixture(scope="module")
def tables(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model = api.open_model(tiny_run, visibility="contextual")
    windows = api.windows_from_texts(model, [TEXT, TEXT[5:], TEXT[11:]], num_windows=9)
    results = api.measure(model, windows, selectors=NAMES, k=[1, 3], resampled_draws=1)
    return results.save(tmp_path_factory.mktemp("by-head") / "measured")


def test_the_summary_says_how_many_entries_all_heads_see(tables: Path) -> None:
    summary = summarize(load(tables))
    columns = [column.name for column in blind_table(summary).columns]
    cells = {tuple(cell.text for cell in row[:3]) for row in blind_table(summary).rows}
    mean = summary.at("h2o-heads", "real", 3).mean_tokens
    assert columns[:3] == ["selector", "k", "entries in any head"]
    assert ("h2o-heads", "3", f"{mean:.1f}") in cells and ("h2o", "3", "3.0") in cells and mean > 3
    assert f"(k = 3: {mean:.1f} of h2o-heads, " in units_words(summary)
    assert (
        units_words(summarize(load(tables).restrict_selectors({"h2o": "h2o", "random": "random"}))).count("heads") == 0
    )


@pytest.mark.parametrize("names", [("h2o-heads", "h2o"), ("h2o", "random-heads")])
def test_a_comparison_by_selector_says_how_many_entries_all_heads_see(
    tables: Path, names: tuple[str, str], capsys: pytest.CaptureFixture[str]
) -> None:
    """On the terminal of the measurement that chooses by head, and once in the caption of the figure."""
    subjects = read_subjects([f"{tables}:{name}" for name in names])
    print_comparison(subjects)
    drawn = compare_figure.drawn_of(compare(subjects))
    (name,) = (name for name in names if name.endswith("-heads"))
    mean = summarize(load(tables)).at(name, "real", 3).mean_tokens
    said = (
        f"all heads together see more (k = 3: {mean:.1f} of {name}). The gain over random is that over one random set"
    )
    terminal = " ".join(capsys.readouterr().out.split())
    for shown in (terminal, drawn.figure.get_label()):
        assert shown.count(said) == 1
    assert drawn.figure.get_label().count(ENTRY_WORDS) == 1
    plt.close(drawn.figure)


def test_no_headline_family_or_distance_is_of_choices_by_head(tables: Path) -> None:
    measurement = load(tables)
    summary = summarize(measurement)
    assert summary.blind_selectors == ["h2o", "h2o-heads", "random-heads"]
    assert first_blind(summary, "h2o-heads") == "h2o"
    assert not any("chosen by h2o-heads" in sentence.lower() for sentence in evidence_sentences(summary, "h2o-heads"))
    assert chosen_family(NAMES) == "h2o"
    assert {of.selector for of in by_distance(tables, measurement)} == {"h2o", "random"}


def test_windows_show_choices_of_one_set_only(tables: Path, tmp_path: Path) -> None:
    measurement = load(tables)
    assert shown_first(measurement) == "h2o"
    (excerpt,) = read_excerpts(tables, [0])
    assert {selector for selector, _ in excerpt.selections} == {"h2o", "random"}
    with pytest.raises(UserError, match="show: h2o-heads chooses by head"):
        show_window(tables, 0, console=terminal(), selector="h2o-heads")
    page = write_report(tables, tmp_path / "page.html").read_text(encoding="utf-8")
    assert "h2o-heads" in page and "Shown is what h2o chose at k = " in page
