"""Every figure of a measurement as a reader sees it, of tables that differ in everything that a figure tells apart.

What the captions of all figures of some tables say is in ``test_company``, and what the caption of a figure always says in that
of the tables ``own``.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import pytest
from drawn_figures import FIGURES, read
from figure_text import figure_lines, figure_text
from syrupy.assertion import SnapshotAssertion

from analysis.medium import drawn_for_page
from analysis.output import Drawn, caption
from olmo_sparsity.statistics.single.measured import Measured

# The figures of some tables that are drawn otherwise than those of the others.
DRAWN_OF = {
    "own": tuple(sorted(FIGURES)),
    "failed": ("figure4", "recovered-fraction", "prediction-recovered", "classes", "spectrum"),
    "row": ("recovered-fraction", "prediction-recovered"),
    "stranger": ("classes", "figure4", "figure5", "prediction-recovered", "spectrum"),
    "words": ("distance", "figure5", "prediction-recovered", "spectrum"),
}
OF_FIGURE4 = {"own": ("unmask-one", "kl")}  # the figures of other selectors are drawn alike
BELOW = re.compile(r"text 8 #000000 left top: .*\n(    .*\n)*")  # the first sentences of the caption, in the picture
SELECTORS_OF_LONG = ("attention", "unmask-one", "random", "nearest")


@cache
def company(tables: Path) -> tuple[str, ...]:
    """Return what the caption of every figure of some tables says behind its own words, a sentence a line."""
    figure = plt.figure()
    caption(figure, read(tables).summary, words="")
    lines = tuple(figure_lines(figure))
    plt.close(figure)
    return lines


def drawn(name: str, which: str, measured: Measured) -> list[Drawn]:
    figures = list(FIGURES[name](measured))
    if name == "figure4":
        return [one for one in figures if one.name.removeprefix("figure4-") in OF_FIGURE4.get(which, ("unmask-one",))]
    return figures


@cache
def captions_of_own(name: str, own: Path) -> frozenset[str]:
    """Return the caption of a figure of the tables ``own``, a sentence a line."""
    lines = [line for one in drawn(name, "own", read(own)) for line in figure_lines(one.figure)]
    return frozenset(line for line in lines if line.startswith("caption: "))


def text_of(name: str, which: str, measured: Measured, *, varied: dict[str, Path]) -> str:
    known: Collection[str] = {line for line in company(measured.tables) if line.startswith("caption: ")}
    if which != "own":
        known |= captions_of_own(name, varied["own"])
    text = "\n".join(figure_text(one, known=known) for one in drawn(name, which, measured))
    return text if which == "own" else BELOW.sub("", text)  # which sentences fit is the same for all tables


@pytest.mark.parametrize("which", [*DRAWN_OF, "long"])
def test_company(varied: dict[str, Path], text_snapshot: SnapshotAssertion, which: str) -> None:
    assert "\n".join(company(varied[which])) == text_snapshot


@pytest.mark.parametrize(("which", "name"), [(which, name) for which, names in DRAWN_OF.items() for name in names])
def test_figure(varied: dict[str, Path], text_snapshot: SnapshotAssertion, name: str, which: str) -> None:
    assert text_of(name, which, read(varied[which]), varied=varied) == text_snapshot


@pytest.mark.parametrize("name", ["distance", "prediction-recovered", "spectrum"])
def test_figure_of_many_tokens(varied: dict[str, Path], text_snapshot: SnapshotAssertion, name: str) -> None:
    assert text_of(name, "long", read(varied["long"], *SELECTORS_OF_LONG), varied=varied) == text_snapshot


@pytest.mark.parametrize(
    ("name", "selectors"),
    [
        ("classes", ["nearest"]), ("distance", ["random", "lasso"]),
        ("distance", ["nearest", "random"]), ("figure5", ["unmask-one"]), ("prediction-recovered", ["nearest"]),
        ("recovered-fraction", ["random", "lasso"]), ("recovered-fraction", ["nearest"]),
        ("spectrum", ["unmask-one"]), ("spectrum", ["lasso", "nearest"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(value),
)  # fmt: skip
def test_figure_of_few_selectors(
    varied: dict[str, Path], text_snapshot: SnapshotAssertion, name: str, selectors: list[str]
) -> None:
    """What is not measured is said; the selector that a figure tells of is another one."""
    assert text_of(name, "few", read(varied["own"], *selectors), varied=varied) == text_snapshot


def test_classes_that_are_fragile_and_have_no_contrast(
    varied: dict[str, Path], text_snapshot: SnapshotAssertion
) -> None:
    own = read(varied["own"], "kl", "unmask-one")
    measured = Measured(own.tables, own.measurement, own.summary)
    measured.__dict__["classes"] = [
        replace(entry, contrast=None, summary=replace(entry.summary, is_fragile=row != 1))
        for row, entry in enumerate(own.classes)
    ]
    assert text_of("classes", "fragile", measured, varied=varied) == text_snapshot


def test_no_class_has_a_fraction_where_all_windows_failed(
    varied: dict[str, Path], text_snapshot: SnapshotAssertion
) -> None:
    own = read(varied["own"], "kl", "unmask-one")
    measured = Measured(own.tables, own.measurement, replace(own.summary, gate="failed"))
    measured.__dict__["classes"] = own.classes
    assert text_of("classes", "failed", measured, varied=varied) == text_snapshot


def test_charts_of_a_page(varied: dict[str, Path], text_snapshot: SnapshotAssertion) -> None:
    """A figure for a page has its legend and words apart, and says what failed."""
    with drawn_for_page():
        text = text_of("distance", "page", read(varied["failed"]), varied=varied)
    assert text == text_snapshot
