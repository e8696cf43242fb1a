"""The drawing module: lines equal their rows, labels do not overlap, files of others are kept, SVGs are safe on a page."""

from __future__ import annotations

import os
from itertools import combinations, pairwise
from pathlib import Path
from typing import Optional
from xml.etree import ElementTree

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox
from PIL import Image

from analysis.drawing import CSS, PALETTE, count_axis, draw_line, label_end, lay_out, new_figure, save, svg
from olmo_sparsity.errors import UserError

ROWS = pd.DataFrame({
    "k": [4, 1, 2, 8], "value": [0.4, 0.1, 0.2, np.nan], "low": [0.3, 0.05, 0.1, np.nan], "high": [0.6, 0.2, 0.3, np.nan],
})  # fmt: skip


def one_axis(title: str = "A title", caption: str = "A caption.") -> tuple[Figure, Axes]:
    figure, axes = new_figure(height=2, width=3, title=title, caption=caption)
    return figure, axes[0, 0]


def test_line_and_band_are_the_rows_by_rising_x() -> None:
    _, axis = one_axis()
    draw_line(axis, ROWS, x="k", color="#0072b2", label="kl", scale=100)
    (line,) = axis.lines
    np.testing.assert_allclose(line.get_xydata(), [[1, 10], [2, 20], [4, 40]])
    (band,) = axis.collections
    corners = {(x, round(y, 6)) for x, y in band.get_paths()[0].vertices.tolist()}
    assert corners == {(1, 5), (1, 20), (2, 10), (2, 30), (4, 30), (4, 60)}
    (label,) = axis.texts
    assert label.get_text() == "kl" and label.xy == (4, 40)  # type: ignore[attr-defined]

    _, axis = one_axis()
    draw_line(axis, ROWS[ROWS["k"] == 8], x="k", color="#0072b2", label="kl")  # has no value
    draw_line(axis, ROWS[ROWS["k"] == 1], x="k", color="#0072b2")
    (bar,) = axis.collections  # a band has no width
    assert len(axis.lines) == 1 and not axis.texts and not isinstance(bar, PolyCollection)
    np.testing.assert_allclose(bar.get_paths()[0].vertices, [[1, 0.05], [1, 0.2]])


def boxes(axis: Axes) -> list[Bbox]:
    return [text.get_window_extent() for text in axis.texts]


@pytest.mark.parametrize(
    "ends", [[0.5] * 5, [0, 0.01, 0.02, 1.0], [1, 1, 0.99], [0.2, 0.21, 0.5, 0.51, 0.9], [0, 0, 0]]
)
def test_labels_do_not_overlap_and_stay_beside_their_panel(ends: list[float]) -> None:
    figure, axis = one_axis()
    for number, end in enumerate(ends):
        label_end(axis, f"line {number}" + "\nin two lines" * (number % 2), (1, end), color="black")
    axis.set(xlim=(0, 1), ylim=(0, 1))
    lay_out(figure, 150)
    for one, other in combinations(boxes(axis), 2):
        assert not Bbox.intersection(one, other)
    order = np.argsort([box.y0 for box in boxes(axis)])
    assert (np.diff(np.array(ends)[order]) >= 0).all()
    if min(np.diff(sorted(ends))) > 0.2:  # there is room for each at the end of its line
        middles = [axis.transData.inverted().transform((0, (box.y0 + box.y1) / 2))[1] for box in boxes(axis)]
        np.testing.assert_allclose(middles, ends, atol=0.02)
    height = max(box.height for box in boxes(axis))
    assert all(axis.bbox.y0 - height < box.y0 and box.y1 < axis.bbox.y1 + height for box in boxes(axis))


@pytest.mark.parametrize(
    ("counts", "marked"), [([0, 1, 2, 4, 8, 16, 32, 64, 112], None), ([32, 48, 64, 96, 128, 192, 256, 384, 512], 64)]
)
def test_counts_that_have_a_label_do_not_overlap(counts: list[int], marked: Optional[int]) -> None:
    figure, axis = one_axis()
    count_axis(axis, counts, marked)
    figure.draw_without_rendering()
    labels = axis.get_xticklabels()
    assert {label.get_text() for label in labels} >= {str(counts[0]), str(counts[-1]), str(marked or counts[1])}
    for one, other in pairwise(labels):
        assert one.get_window_extent().x1 < other.get_window_extent().x0


def test_an_earlier_figure_is_replaced_and_its_words_are_in_the_metadata(tmp_path: Path) -> None:
    before = plt.get_fignums()
    (tmp_path / "new").mkdir()
    (leftover := tmp_path / "new" / ".gains.png.0a1b2c3d.partial").touch()
    os.utime(leftover, (0, 0))
    for title in ("First", "Gains \u2212 losses\x07"):
        figure, _ = one_axis(title)
        paths = save(figure, "gains", tmp_path / "new")
    assert figure.get_suptitle() == "Gains \u2212 losses\ufffd" and plt.get_fignums() == before
    assert [path.name for path in paths] == ["gains.png", "gains.pdf"]
    assert sorted((tmp_path / "new").iterdir()) == sorted(paths)
    with Image.open(paths[0]) as picture:
        assert picture.text["Title"] == "Gains \u2212 losses\ufffd"  # type: ignore[attr-defined]
        assert picture.text["Description"] == "A caption."  # type: ignore[attr-defined]
        assert picture.size == (600, 400)
    assert paths[1].read_bytes().startswith(b"%PDF") and b"/Subject (A caption.)" in paths[1].read_bytes()


@pytest.mark.parametrize("ending", ["png", "pdf"])
@pytest.mark.parametrize("is_picture", [True, False])
def test_a_file_of_another_is_kept(tmp_path: Path, ending: str, is_picture: bool) -> None:
    path = tmp_path / f"gains.{ending}"
    if is_picture:
        other, _ = plt.subplots()
        plt.close(other)
        other.savefig(path)
    else:
        path.write_text("mine")
    before = path.read_bytes()
    with pytest.raises(UserError, match=rf"gains\.{ending}: no figure that olmo-sparsity wrote"):
        save(one_axis()[0], "gains", tmp_path)
    assert path.read_bytes() == before and list(tmp_path.iterdir()) == [path]


def test_svg_has_no_styles_and_its_colours_are_variables() -> None:
    figure, axis = one_axis()
    draw_line(axis, ROWS, x="k", color=PALETTE["blue"][0], label="<script>alert(1)</script> & \x07")
    label_end(axis, "beside it", (4, 0.4), color="black")
    text = svg(figure)
    assert "#ffffff" not in text and not Bbox.intersection(*boxes(axis))
    root = ElementTree.fromstring(text)
    nodes = list(root.iter())
    assert not {node.tag for node in nodes} & {"script", "style", "image", "foreignObject", "metadata"}
    assert not any(key == "style" or key.startswith("on") for node in nodes for key in node.attrib)
    ids = [node.attrib["id"] for node in nodes if "id" in node.attrib]
    references = {value for node in nodes for key, value in node.attrib.items() if key in ("href", "clip-path")}
    assert len(ids) == len(set(ids)) and references <= {f"#{one}" for one in ids} | {f"url(#{one})" for one in ids}
    blue = f"var(--figure-blue, {PALETTE['blue'][0]})"
    label = next(node for node in nodes if node.tag == "text" and "script" in (node.text or ""))
    assert label.text == "<script>alert(1)</script> & \ufffd" and label.attrib["fill"] == blue
    assert any(node.attrib.get("stroke") == blue for node in nodes)
    assert root.attrib["role"] == "img" and root.attrib["aria-label"] == "A title" and "--figure-blue" in CSS


def luminance(color: str) -> float:
    channels = np.array([int(color[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    linear = np.where(channels <= 0.04045, channels / 12.92, ((channels + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


@pytest.mark.parametrize("at", [0, 1])
def test_text_in_every_colour_is_readable_in_light_and_dark(at: int) -> None:
    pairs = [(of[at], ("#ffffff", "#1c1c1f")[at]) for name, of in PALETTE.items() if name != "shade"]
    for color, page in [*pairs, (PALETTE["grey"][at], PALETTE["shade"][at])]:
        dark, light = sorted((luminance(color), luminance(page)))
        assert (light + 0.05) / (dark + 0.05) >= 4.5, (color, page)
