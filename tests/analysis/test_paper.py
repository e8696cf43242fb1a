"""Figures for a paper: exactly as wide as its columns, fonts embedded, the caption beside them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import matplotlib.pyplot as plt
import pytest
from drawn_figures import read
from matplotlib.axes import Axes

from analysis import classes, compare, figure5, paper, recovered_fraction
from analysis.output import save
from analysis.paper import INCHES, Width


@pytest.fixture(params=[Width.one, Width.two])
def width(request: pytest.FixtureRequest) -> Iterator[Width]:
    with paper.drawn_for(request.param):
        yield request.param


def test_the_medium_and_the_settings_of_matplotlib_are_as_before_afterwards() -> None:
    before = dict(plt.rcParams)

    def draw_and_fail() -> None:
        with paper.drawn_for(Width.two):
            assert paper.width_in_force() is Width.two
            assert dict(plt.rcParams) != before
            raise ValueError("stop")

    with pytest.raises(ValueError, match="stop"):
        draw_and_fail()
    assert paper.width_in_force() is Width.screen
    assert dict(plt.rcParams) == before


@pytest.mark.parametrize(
    ("module", "gates"), [(recovered_fraction, "failed"), (classes, "failed"), (classes, "passed")]
)
def test_as_wide_as_the_column_with_its_fonts(
    folders: dict[str, Path], tmp_path: Path, width: Width, module: ModuleType, gates: str
) -> None:
    (drawn,) = module.draw(read(folders[gates]))
    png, pdf = save(drawn, tmp_path)
    content = pdf.read_bytes()
    (box,) = re.findall(rb"/MediaBox \[ 0 0 ([\d.]+) ([\d.]+) \]", content)
    assert float(box[0]) == pytest.approx(72 * INCHES[width], abs=0.01)
    assert float(box[1]) < 72 * 9  # of a page
    assert b"/FontFile2" in content
    assert b"/Type3" not in content
    words = png.with_suffix(".txt").read_text()
    assert "180 windows of 120 documents" in words
    assert ("GATE FAILED" in words) == (gates == "failed")
    drawn.figure.draw_without_rendering()  # that of the PDF has another resolution
    for axis in drawn.figure.axes:  # words inside a panel reach over nothing beside it
        panel = axis.get_window_extent()
        for inside in (text.get_window_extent() for text in axis.texts):
            assert panel.x0 <= inside.x0 and inside.x1 <= panel.x1


def test_what_cannot_be_read_is_left_out(
    tables: Path, tmp_path: Path, width: Width, capsys: pytest.CaptureFixture[str]
) -> None:
    (drawn,) = figure5.draw(read(tables, "kl", "random"))
    paths = save(drawn, tmp_path)
    if width is Width.one:
        said = "figure5: not legible in one column, so it is left out; use --width two\n"
        assert paths == [] and capsys.readouterr().err == said and not list(tmp_path.iterdir())
    else:
        assert len(paths) == 2


def test_a_comparison_is_drawn(folders: dict[str, Path], tmp_path: Path, width: Width) -> None:
    (drawn,) = compare.draw([folders["passed"], folders["failed"]])
    paths = save(drawn, tmp_path)
    assert [path.name for path in paths] == ["compare.png", "compare.pdf"]
    words = (tmp_path / "compare.txt").read_text()
    assert "failed: GATE FAILED: the windows show no clear gain" in words
    assert "passed: GATE FAILED" not in words
    assert "paired, window by window" in words


@pytest.mark.parametrize("number", [4, 5])
def test_panels_of_two_columns_are_labelled_at_the_left_and_where_none_is_below(number: int) -> None:
    """Four panels side by side become two rows of two; of five the last stands alone, and the fourth has none below."""
    figure, axes = plt.subplots(1, number, figsize=(10, 3), sharex=True, sharey=True, layout="constrained")
    axes[0].set_ylabel("nats")
    for axis in axes:
        axis.set_xlabel("k")
        axis.plot([1, 2], [1, 2])
    with paper.drawn_for(Width.one):
        paper.fit(figure, 2)
    places = [divmod(i, 2) for i in range(number)]
    assert [(cell.rowspan.start, cell.colspan.start) for cell in map(Axes.get_subplotspec, axes) if cell] == places
    has_one_below = [(row + 1, column) in places for row, column in places]
    assert [axis.get_xlabel() for axis in axes] == ["" if below else "k" for below in has_one_below]
    assert [axis.get_ylabel() for axis in axes] == ["nats" if column == 0 else "" for _, column in places]
    shown = [(axis.xaxis.get_tick_params(), axis.yaxis.get_tick_params()) for axis in axes]
    assert [x["labelbottom"] for x, _ in shown] == [not below for below in has_one_below]
    assert [y["labelleft"] for _, y in shown] == [column == 0 for _, column in places]
