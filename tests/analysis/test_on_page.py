"""A figure for an HTML page: its panels are SVGs that run nothing, load nothing and meet no other ID."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pytest
from made_up import made_up_tables

from analysis import on_page
from analysis.medium import drawn_for_page
from analysis.output import Drawn, caption_text, write_above
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.view.report import write_report

HOSTILE = '</text></svg><script>alert("1")</script> & $x$'


def test_panels_are_self_contained_and_text_stays_text() -> None:
    with drawn_for_page():
        figure, axes = plt.subplots(1, 2, sharey=True, layout="constrained")
        for number, axis in enumerate(axes):
            (line,) = axis.plot([0, 1 + number], [2, 3], marker="o", label=HOSTILE)
            axis.set_title(HOSTILE)
        axes[0].set_ylabel("share of words")
        caption_text(figure, "What it shows. And more.", handles=[line])
        write_above(figure, ["GATE FAILED"])
        page = on_page.page_figure(Drawn(figure, "gains", "Two lines rise."))
    assert (page.name, page.finding, page.words, page.above) == (
        "gains",
        "Two lines rise.",
        "What it shows. And more.",
        ["GATE FAILED"],
    )
    left, right, legend = map(ElementTree.fromstring, page.panels)
    for panel in (left, right):
        texts = [text.text for text in panel.iter("text")]
        assert HOSTILE in texts and "share of words" in texts and "2.0" in texts  # labels that the panels share
    assert HOSTILE in [text.text for text in legend.iter("text")]
    for svg in (left, right, legend):
        for node in svg.iter():
            assert node.tag in ("svg", "g", "path", "text", "use", "defs", "clipPath", "rect"), node.tag
            assert "style" not in node.attrib and not any(name.startswith("on") for name in node.attrib)
            assert node.get("id", "gains-").startswith("gains-") and node.get("href", "#gains-").startswith("#gains-")
    for panel in (left, right):  # the frame of the axes, the first thing drawn, lies in what is shown
        x, y, width, height = map(float, panel.get("viewBox", "").split())
        points = re.findall(r"[ML] ([\d.]+) ([\d.]+)", next(panel.iter("path")).get("d", ""))
        frame = np.array(points, dtype=float)
        assert len(frame) == 4 and (frame >= (x, y)).all() and (frame <= (x + width, y + height)).all()
        assert (np.ptp(frame, axis=0) > (0.6 * width, 0.6 * height)).all()
    assert left.get("height") == right.get("height")  # titles of a row stand side by side
    assert not plt.get_fignums()


@pytest.mark.filterwarnings("error")
def test_a_run_whose_name_holds_control_characters_has_a_report(tmp_path: Path) -> None:
    """XML holds no control characters, and U+202E would turn the text that follows it."""
    tables = made_up_tables(tmp_path / "tables", num_documents=6)
    write_manifest(tables, {**read_json(tables / "manifest.json"), "run": "a \x1b[31mrun \u202e<b>"})
    report = write_report(tables, tmp_path / "report.html", num_windows=1)
    text, shown = report.read_text(encoding="utf-8"), "a \ufffd[31mrun \ufffd&lt;b&gt;"
    assert not {"\x1b", "\u202e"} & set(text) and not re.search(r"\\u(001b|202e)", text)
    assert len(re.findall(f"<h1>.*{re.escape(shown)}|<p .*{re.escape(shown)}", text)) >= 1


def test_panels_of_a_row_are_equally_high_and_those_of_a_column_equally_wide() -> None:
    """However long their titles and labels are: each row begins, and ends, at one height, and each column at one place."""
    with drawn_for_page():
        figure, axes = plt.subplots(2, 3, layout="constrained")
        for number, axis in enumerate(axes.flat):
            axis.set_title("\n".join(["title"] * (1 + number % 2)))
            axis.set_ylabel("label", fontsize=8 + 3 * number)
        page = on_page.page_figure(Drawn(figure, "six", "Nothing."))
    boxes = [list(map(float, ElementTree.fromstring(panel).get("viewBox", "").split())) for panel in page.panels[:6]]
    x, y, width, height = np.reshape(boxes, (2, 3, 4)).transpose(2, 0, 1)
    assert (y == y[:, :1]).all() and (height == height[:, :1]).all() and (y[0] + height[0] < y[1] + height[1]).all()
    assert (x == x[:1]).all() and (width == width[:1]).all() and (np.diff(x) > 0).all() and (y[0] < y[1]).all()
    assert height[0, 0] < 0.9 * (y[1, 0] + height[1, 0] - y[0, 0])  # a panel, not its column


@pytest.mark.parametrize(
    ("style", "expected"),
    [
        ("font: bold 9px Arial; text-anchor: end", {"font-weight": "bold", "font-size": "9px", "text-anchor": "end"}),
        ("font-size: 9px; font-family: 'DejaVu Sans'; fill: #ffffff", {"font-size": "9px", "fill": "#ffffff"}),
        ("font: italic 7.5px 'DejaVu Sans'", {"font-style": "italic", "font-size": "7.5px"}),
        ("", {}),
    ],
)  # fmt: skip
def test_styles_become_attributes(style: str, expected: dict[str, str]) -> None:
    assert on_page._attributes_of(style) == expected
