"""What stands in each section of a page is of its own record: figures, captions, labels, and the tables behind the figures."""

from __future__ import annotations

import html
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from made_up import made_up_tables

from olmo_sparsity.records.selectors import MAIN_SELECTORS
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.view import pages, report
from olmo_sparsity.view.report_data import read_report
from olmo_sparsity.view.result_table import ResultTable, keys, words

# The figures and the table of each section of a report, in their order.
OF_SECTIONS = {
    "answer": (),
    "figure4": ("figure figure4", "table figure4"),
    "curves": ("figure recovered-fraction", "table every"),
    "reaction": ("figure prediction-recovered",),
    "spectrum": ("said of the spectrum", "figure spectrum", "table spectrum"),
    "hypothesis": ("said of the hypothesis", "figure hypothesis", "table hypothesis of the sparse"),
    "classes": ("figure classes", "contrast of repeat", "contrast of induction", "table classes"),
    "distances": ("figure distance", "table distances"),
    "windows": (),
    "about": (),
}
# A word of the name that screen readers give the figure, and one of the title of the table behind it.
NAMED = {
    "figure4": [["Sparse gain against"], ["Correlation"]],
    "curves": [["give back"], ["Every selector"]],
    "reaction": [["D(k)"]],
    "spectrum": [["are enough"], ["shares of the targets need"]],
    "hypothesis": [["beyond the training row"], ["Targets whose reaction"]],
    "classes": [["by class"], ["Classes"]],
    "distances": [["Distances", "selector"], ["Distances of the chosen"]],
}
FIGURES = ("figure4", "recovered-fraction", "prediction-recovered", "spectrum", "classes", "distance", "hypothesis")
TABLES = ("every", "figure4", "spectrum", "classes", "distances")
MARKED = re.compile(r"(?:figure|table|said of|contrast of) [\w -]+")


def figure_named(name: str) -> SimpleNamespace:
    return SimpleNamespace(
        name=name, finding=f"finding {name}", panels=[f"<svg>figure {name}</svg>"], words=f"caption {name}", above=[]
    )


def table_named(name: str) -> ResultTable:
    return ResultTable(name, keys(f"head {name}"), (words(f"table {name}"),), "", f"below {name}")


def text_of(markup: str) -> str:
    return " ".join(html.unescape(re.sub("<[^>]*>", " ", markup)).split())


@pytest.fixture(scope="module")
def tables(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("sections")
    return {
        name: made_up_tables(
            folder / name, seed=seed, long_gain=long_gain, gain_beyond=gain_beyond, selectors=MAIN_SELECTORS
        )
        for seed, (name, long_gain, gain_beyond) in enumerate(
            (("one", 0.3, 0.4), ("two", 0.4, 0.0), ("three", -0.2, 0.5))
        )
    }


def test_a_report_has_in_each_section_its_own_figure_and_table(
    tables: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    script = SimpleNamespace(
        of_report=lambda measured, selector: {name: figure_named(name) for name in FIGURES[:-1]},
        of_hypothesis=lambda found: {"hypothesis": figure_named("hypothesis")},
    )
    found = SimpleNamespace(main=["the sparse", "the dense"], null_context="document")
    replaced: dict[str, Any] = {
        "figure_script": lambda of_script: script,
        "shown_tables": lambda measured: {name: table_named(name) for name in TABLES},
        "hypothesis_of": lambda folder: found,
        "hypothesis_sentences": lambda found: ["said of the hypothesis"],
        "thirds_table": lambda entry, null: table_named(f"hypothesis of {entry}"),
        "spectrum_sentences": lambda spectra, summary: ["said of the spectrum"],
        "contrast_words": lambda of: f"contrast of {of.target_class}" if of.contrast else "",
    }
    for name, value in replaced.items():
        monkeypatch.setattr(report, name, value)
    page = report.render(read_report(Measured.read(tables["one"]), num_windows=3, seed=0))
    sections = re.findall(r'<section[^>]* aria-labelledby="(\w+)-title"[^>]*>(.*?)</section>', page, re.DOTALL)
    assert [name for name, _ in sections] == list(OF_SECTIONS)
    for name, markup in sections:
        assert f'<h2 id="{name}-title">' in markup
        shown = re.findall(r"<(?:svg|p|p class=\"note\"|th scope=\"row\")>([^<]*)<", markup)
        assert tuple(text for text in shown if MARKED.fullmatch(text)) == OF_SECTIONS[name]
        figures = [mark.removeprefix("figure ") for mark in OF_SECTIONS[name] if mark.startswith("figure ")]
        described = re.findall(r'aria-label="finding ([\w-]+)" aria-describedby="([\w-]+)-words"', markup)
        assert described == [(figure, figure) for figure in figures]
        assert re.findall(r'id="([\w-]+)-words">caption ([\w-]+)</p>', markup) == described
        behind = [mark.removeprefix("table ") for mark in OF_SECTIONS[name] if mark.startswith("table ")]
        assert re.findall(r'<th scope="col">head ([^<]*)<', markup) == behind
        assert re.findall(r'<p class="note">below ([^<]*)</p>', markup) == behind
        titles = re.findall(r"<(?:figcaption class=\"hidden\"|summary)>([^<]*)<", markup)
        for title, parts in zip(titles, NAMED.get(name, []), strict=False):
            assert all(part in title for part in parts), title
        assert len(titles) >= len(NAMED.get(name, []))
        for title, region in re.findall(
            r'<summary>([^<]*)</summary>\s*<div [^>]*role="region" aria-label="([^"]*)"', markup
        ):
            assert title == region


@pytest.mark.parametrize(
    "page", sorted((Path(pages.__file__).parent / "templates").glob("*.html")), ids=lambda page: page.name
)
def test_what_has_a_label_for_screen_readers_has_a_role(page: Path) -> None:
    """Of elements that have none of their own, a label is not announced without one; of a picture it is ``img``."""
    markup = page.read_text(encoding="utf-8")
    labelled = re.findall(r"<(div|span|p|canvas|svg|table)\b([^>]*\baria-label(?:ledby)?=[^>]*)>", markup)
    for element, attributes in labelled:
        (role,) = re.findall(r'\brole="([^"]+)"', attributes) or ["none"]
        assert role == "img" if element in ("canvas", "svg") else role in ("img", "region", "group", "listbox")
    assert page.name not in ("explore.html", "parts.html") or labelled
