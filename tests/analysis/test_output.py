"""Figures replace earlier figures, and no other files."""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import pytest
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from analysis import output
from olmo_sparsity.errors import UserError

CAPTION = "Gains \u2212 losses in nats: 0.5 [0.4, 0.6]."  # the minus sign is in no Latin-1


def figure_of(words: str) -> Figure:
    figure, axis = plt.subplots(figsize=(2, 1))
    axis.plot([0, 1])
    figure.set_label(words)
    return figure


def save(folder: Path, words: str = CAPTION, table: str = "k,gain\n1,0.5\n", ending: str = ".csv") -> None:
    output.save(output.Drawn(figure_of(words), "gains", "A gain.", numbers=(ending, table)), folder)


def test_an_earlier_figure_is_replaced(tmp_path: Path) -> None:
    for words, table in ((CAPTION, "k,gain\n1,0.5\n"), ("Plain words (é).", "k,gain\n2,0.7\n"), (CAPTION, "k,gain\n")):
        save(tmp_path, words, table)
        assert (tmp_path / "gains.txt").read_text() == f"{words}\n"
        assert (tmp_path / "gains.csv").read_text() == table
    assert {path.name for path in tmp_path.iterdir()} == {"gains.png", "gains.pdf", "gains.txt", "gains.csv"}


def test_numbers_as_json_are_known_by_their_first_key(tmp_path: Path) -> None:
    save(tmp_path, table='{\n  "row_len": 8\n}\n', ending=".json")
    save(tmp_path, table='{\n  "row_len": 9\n}\n', ending=".json")
    (tmp_path / "gains.json").write_text('{\n  "mine": 1\n}\n')
    with pytest.raises(UserError, match=r"gains\.json: this is no table of this figure"):
        save(tmp_path, table='{\n  "row_len": 9\n}\n', ending=".json")


@pytest.mark.usefixtures("quick_pictures")
@pytest.mark.parametrize(
    ("ending", "content"),
    [
        (".txt", "my notes\n"),
        (".txt", "Gains\n"),  # what a caption begins with
        (".png", "my drawing"),
        (".pdf", "my paper"),
        (".csv", "mine\n1\n"),
    ],
)
@pytest.mark.parametrize("is_drawn", [False, True])
def test_another_file_of_the_name_is_kept(tmp_path: Path, ending: str, content: str, is_drawn: bool) -> None:
    if is_drawn:
        save(tmp_path)
    (tmp_path / f"gains{ending}").write_text(content)
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    kind = {".txt": "caption of this figure", ".csv": "table of this figure"}.get(ending, "figure")
    with pytest.raises(
        UserError, match=rf"gains\{ending}: this is no {kind} that olmo-sparsity wrote, so it is not replaced"
    ):
        save(tmp_path, "other words")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_a_picture_of_matplotlib_without_a_caption_is_somebody_elses(tmp_path: Path) -> None:
    for ending in (".png", ".pdf"):
        figure_of("").savefig(tmp_path / f"gains{ending}")
        with pytest.raises(UserError, match=rf"gains\{ending}: this is no figure"):
            save(tmp_path)
        (tmp_path / f"gains{ending}").unlink()


@pytest.mark.usefixtures("quick_pictures")
@pytest.mark.parametrize("num_written", range(4))
def test_a_drawing_that_was_killed_is_drawn_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, num_written: int
) -> None:
    """After each of the files that it writes, in place of a figure with other words."""
    save(tmp_path, "old words")
    write_bytes, left = output.write_bytes, iter(range(num_written))

    def or_killed(path: Path, content: bytes | str) -> None:
        if next(left, None) is None:
            raise KeyboardInterrupt
        write_bytes(path, content.encode() if isinstance(content, str) else content)

    with monkeypatch.context() as killed:
        killed.setattr(output, "write_bytes", or_killed)
        killed.setattr(output, "write_text", or_killed)
        with pytest.raises(KeyboardInterrupt):
            save(tmp_path, "new words")
    save(tmp_path, "newer words")
    assert (tmp_path / "gains.txt").read_text() == "newer words\n"


@pytest.mark.usefixtures("quick_pictures")
def test_what_a_drawing_that_was_killed_left_half_written_is_gone_after_the_next(tmp_path: Path) -> None:
    left = tmp_path / ".gains.pdf.elsewhere.7.01234567.partial"
    left.write_text("half")
    os.utime(left, (time.time() - 4000,) * 2)
    save(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"gains.png", "gains.pdf", "gains.txt", "gains.csv"}


@pytest.mark.parametrize(("backend", "chosen"), [(None, ["Agg"]), ("svg", [])])
def test_figures_need_no_screen_but_a_notebook_may_show_them(
    backend: str | None, chosen: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A notebook names what shows figures before anything is imported."""
    used: list[str] = []
    monkeypatch.setattr(matplotlib, "use", used.append)
    monkeypatch.delenv("MPLBACKEND", raising=False)
    if backend:
        monkeypatch.setenv("MPLBACKEND", backend)
    spec = importlib.util.spec_from_file_location("analysis.imported_once_more", output.__file__)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, spec.name, module)  # where dataclasses look for it
    spec.loader.exec_module(module)
    assert used == chosen


@pytest.mark.usefixtures("quick_pictures")
def test_a_caption_whose_picture_was_removed_is_written_again(tmp_path: Path) -> None:
    save(tmp_path)
    (tmp_path / "gains.png").unlink()
    save(tmp_path)
    assert (tmp_path / "gains.png").is_file()


@pytest.mark.filterwarnings("error")
def test_names_are_drawn_without_control_characters(tmp_path: Path) -> None:
    """In titles, labels and captions; matplotlib would warn, with the characters in its warning."""
    hostile = "a \x1b[31mrun\x9b \u202e"
    figure = figure_of(f"{hostile}\nsecond line")
    figure.axes[0].set_title(hostile)
    figure.suptitle(f"{hostile}\nbelow")
    figure.axes[0].plot([0, 1], label=hostile)
    figure.legend()
    output.save(output.Drawn(figure, "named", "A name."), tmp_path)
    shown = "a \ufffd[31mrun\ufffd \ufffd"
    assert (tmp_path / "named.txt").read_text() == f"{shown}\nsecond line\n"
    assert figure.axes[0].get_title() == figure.legends[0].get_texts()[0].get_text() == shown
    assert figure.get_suptitle() == f"{shown}\nbelow"


def test_failed_gates_stand_in_lines_no_wider_than_the_figure() -> None:
    figure, _ = plt.subplots(figsize=(5.2, 2))
    sentences = [
        "GATE FAILED: the long gain may be the cost of the gap in the position IDs",
        "a: " + "x y z " * 20 + "end",
    ]
    output.write_above(figure, sentences)
    suptitle = figure._suptitle  # type: ignore[attr-defined]
    assert " ".join(suptitle.get_text().split("\n")) == " ".join(sentences)
    assert suptitle.get_window_extent(figure.canvas.get_renderer()).width < figure.bbox.width  # type: ignore[attr-defined]
    plt.close(figure)


@pytest.mark.parametrize("num_entries", [0, 1, 3, 4, 7])
def test_the_caption_begins_right_below_the_legend(num_entries: int) -> None:
    """However many rows the legend has, the caption neither covers the last one nor leaves room for another."""
    figure = figure_of("")
    handles = [Line2D([], [], label=f"entry {number}") for number in range(num_entries)]
    output.caption_text(figure, "What it shows.", handles=handles, columns=3)
    figure.draw_without_rendering()
    rows = [text.get_window_extent() for legend in figure.legends for text in legend.get_texts()]
    (caption,) = (text.get_window_extent() for text in figure.texts)
    assert len({round(row.y0) for row in rows}) == -(-num_entries // 3)
    below = min((row.y0 for row in rows), default=0.0) - caption.y1
    plt.close(figure)
    assert 0 < below < 1.5 * caption.height  # of one line, as a row is, with the space between two


@pytest.mark.parametrize(
    ("text", "last", "expected"),
    [
        ("One is here. Two as well.", "", ["One is here.", "Two as well."]),
        ("One is here. Two as well. Three is too long.", "", ["One is here.", "Two as well."]),
        ("One is here. Two as well. Three is too long.", "The end.", ["One is here.", "The end."]),
        ("One sentence that is longer than both of the lines.", "The end.", ["The end."]),
        ("One sentence that is longer than two lines.", "", ["One sentence", "that is ..."]),
        ("", "An end that is longer than two lines.", ["An end that", "is ..."]),
    ],
)
def test_below_a_figure_stand_whole_sentences_in_two_lines(text: str, last: str, expected: list[str]) -> None:
    assert output._first_lines(text, 12, last=last) == expected
