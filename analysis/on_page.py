"""Figures for an HTML page: each panel, and the legend, is an SVG of its own, so that the page arranges them to its width.

The SVGs have no style sheet and no ``style`` attributes, which the pages' Content-Security-Policy forbids: what Matplotlib writes
there becomes attributes. The page gives the font. Texts are escaped, nothing is loaded, and IDs begin with the figure's name.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Optional
from xml.etree import ElementTree

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

from olmo_sparsity.statistics.several.hypothesis import Hypothesis
from olmo_sparsity.statistics.single.measured import Measured

from . import classes, distance, figure4, hypothesis, prediction_recovered, recovered_fraction, spectrum
from .medium import drawn_for_page
from .output import Drawn, make_printable

OF_REPORT = (recovered_fraction, prediction_recovered, spectrum, classes, distance)
DPI = 72  # so that pixels of the layout are the points of Matplotlib's SVGs
PADDING = 3  # points around a panel
FRAME_SHARE = 0.65  # of the height of a figure for a screen
LONG_NUMBER = re.compile(r"-?\d+\.\d\d\d+")
REFERENCE = re.compile(r"#([\w-]+)")
FONT = re.compile(r"(?P<looks>.*?)(?P<size>[\d.]+px) .*")


@dataclass(frozen=True)
class PageFigure:
    """A figure of an HTML page.

    Attributes:
        name: its name, unique on the page.
        finding: what it shows, in a sentence with its main numbers.
        panels: its panels as SVG, and last the legend.
        words: its whole caption.
        above: what nobody may miss, such as gates that failed, a sentence each.
    """

    name: str
    finding: str
    panels: list[str]
    words: str
    above: list[str]


def of_report(measured: Measured, selector: str) -> dict[str, PageFigure]:
    """Return the figures of the report, by name; Figure 4 is that of one selector."""
    with drawn_for_page():
        figure = page_figure(replace(figure4.draw_one(measured, selector), name="figure4"))
        return {"figure4": figure} | _by_name(drawn for module in OF_REPORT for drawn in module.draw(measured))


def of_hypothesis(found: Hypothesis) -> dict[str, PageFigure]:
    """Return the figure of the test of sparsity, by name."""
    with drawn_for_page():
        return _by_name([hypothesis.draw_hypothesis(found)])


def _by_name(figures: Iterable[Drawn]) -> dict[str, PageFigure]:
    return {drawn.name: page_figure(drawn) for drawn in figures}


def page_figure(drawn: Drawn) -> PageFigure:
    """Return the parts of a figure that was drawn for a page, and close it."""
    figure = drawn.figure
    make_printable(figure)  # XML holds no control characters
    above = figure.get_suptitle().split("\n") if figure.get_suptitle() else []
    figure.suptitle("")  # the layout would leave room for it
    axes = [axis for axis in figure.axes if axis.axison]
    for artist in figure.findobj():
        artist.set_rasterized(False)  # a page shows no pixels: its policy loads no images
    for axis in axes:
        _label(axis)
    figure.set_layout_engine(None)  # what is cut into panels needs no room between them
    figure.set_dpi(DPI)
    columns = {cell.colspan.start for axis in axes if (cell := axis.get_subplotspec()) is not None}
    figure.set_size_inches(drawn.page_inches * len(columns), FRAME_SHARE * figure.get_figheight())
    figure.subplots_adjust(left=0, right=1, bottom=0, top=1, wspace=0, hspace=0)
    boxes = dict(zip((f"panel{number}" for number in range(len(axes))), _boxes(axes), strict=True))
    for part, axis in zip(boxes, axes, strict=True):
        axis.set_gid(part)
    for legend in figure.legends:
        legend.set_gid("legend")
        boxes["legend"] = legend.get_window_extent()
    root = _svg(figure, drawn.name)
    plt.close(figure)
    return PageFigure(drawn.name, drawn.finding, list(_parts(root, boxes)), str(figure.get_label()), above)


def _label(axis: Axes) -> None:
    """Give a panel the labels that it shares with the first of its row or the last of its column."""
    for which, shared, beside in (("y", axis.get_shared_y_axes(), "left"), ("x", axis.get_shared_x_axes(), "bottom")):
        siblings = shared.get_siblings(axis)
        if len(siblings) > 1:
            axis.tick_params(axis=which, **{f"label{beside}": True})  # type: ignore[arg-type]
            words = {other: getattr(other, f"get_{which}label")() for other in siblings}
            beside_it = [words[other] for other in siblings if _place(other, which) == _place(axis, which)]
            getattr(axis, f"set_{which}label")(max(beside_it, key=len) or max(words.values(), key=len))


def _place(axis: Axes, which: str) -> Optional[range]:
    """Return the row of a panel that shares its y axis, or the column of one that shares its x axis."""
    cell = axis.get_subplotspec()
    return None if cell is None else cell.rowspan if which == "y" else cell.colspan


def _boxes(axes: list[Axes]) -> Iterator[Bbox]:
    """Yield the place of each panel in points from the bottom left; in a row they are equally high, in a column equally wide."""
    tight = [axis.get_tightbbox() or axis.bbox for axis in axes]
    cells = [axis.get_subplotspec() for axis in axes]
    for box, own in zip(tight, cells, strict=True):
        if own is None:  # a scale of colours
            yield box
            continue
        placed = [(box, cell) for box, cell in zip(tight, cells, strict=True) if cell is not None]
        row = [box for box, cell in placed if cell.rowspan == own.rowspan]
        column = [box for box, cell in placed if cell.colspan == own.colspan]
        of_row, of_column = Bbox.union(row), Bbox.union(column)
        yield Bbox.from_extents(of_column.x0, of_row.y0, of_column.x1, of_row.y1)


def _svg(figure: Figure, name: str) -> ElementTree.Element:
    """Return a figure as SVG without name spaces, with attributes in place of styles, short numbers and IDs of its own."""
    written = io.BytesIO()
    with plt.rc_context({"svg.hashsalt": name, "svg.fonttype": "none"}):
        FigureCanvasSVG(figure).print_svg(
            written, metadata={"Date": None}
        )  # ``savefig`` would compute the layout again
    root = ElementTree.fromstring(written.getvalue())
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
        node.tail = None
        if node.tag != "text":
            node.text = None
        attributes = {key.rpartition("}")[2]: value for key, value in node.attrib.items()}
        attributes |= _attributes_of(attributes.pop("style", ""))
        node.attrib.clear()
        for key, value in attributes.items():
            short = LONG_NUMBER.sub(lambda number: f"{float(number[0]):.2f}", " ".join(value.split()))
            node.set(key, REFERENCE.sub(rf"#{name}-\1", short) if key in ("href", "clip-path") else short)
    referenced = {found for node in root.iter() for value in node.attrib.values() for found in REFERENCE.findall(value)}
    for node in root.iter():
        own = f"{name}-{node.get('id', '')}"
        if own in referenced:
            node.set("id", own)
    return root


def _attributes_of(style: str) -> dict[str, str]:
    """Return the attributes that say what a style says; without its fonts."""
    attributes = dict(entry.strip().split(": ", 1) for entry in style.split(";") if entry.strip())
    attributes.pop("font-family", None)
    font = FONT.fullmatch(attributes.pop("font", ""))
    if font is not None:  # as Matplotlib before 3.10 writes it
        attributes["font-size"] = font["size"]
        attributes |= {
            f"font-{'style' if look in ('italic', 'oblique') else 'weight'}": look for look in font["looks"].split()
        }
    return attributes


def _parts(root: ElementTree.Element, boxes: dict[str, Bbox]) -> Iterator[str]:
    """Yield each part of a figure as an SVG, text; the first has the clipping paths of all."""
    height = float(root.get("viewBox", "0 0 0 0").split()[3])
    by_id = {node.get("id"): node for node in root.iter("g")}
    definitions = root.findall("defs")[1:]  # the first is a style sheet
    for part, box in boxes.items():
        box = box.padded(PADDING)
        size = {"width": f"{box.width * 4 / 3:.0f}", "height": f"{box.height * 4 / 3:.0f}"}  # CSS pixels
        place = f"{box.x0:.1f} {height - box.y1:.1f} {box.width:.1f} {box.height:.1f}"
        looks = {"stroke-linejoin": "round", "stroke-linecap": "butt"}  # of the style sheet
        svg = ElementTree.Element("svg", {"class": part.rstrip("0123456789"), "viewBox": place, **size, **looks})
        svg.extend([*definitions, *([by_id[part]] if part in by_id else [])])
        definitions = []
        for node in svg.iter():
            if "id" in node.attrib and "-" not in node.attrib["id"]:
                del node.attrib["id"]  # nothing refers to it
        yield ElementTree.tostring(svg, encoding="unicode")
