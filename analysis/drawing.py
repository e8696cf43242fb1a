"""What all figures share: style, lines with bands, labels at the ends of lines, files, and the list of figures.

A figure is a file in this folder with ``NEEDS`` and ``figure(source, ...)``. ``NEEDS`` says what the source is: ``"frame"``
(``read_estimates``), ``"tables"`` (the folder of a measurement), ``"run"`` (folders of runs, of which one suffices) or ``"runs"``
(folders of several runs). ``figure`` returns one figure, or several by their names; it raises ``NothingToDraw`` if the source
lacks what it shows.
"""

from __future__ import annotations

import importlib
import io
import os
import pkgutil
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Optional, Union
from xml.etree import ElementTree

import matplotlib
import numpy as np
import pandas as pd

if "MPLBACKEND" not in os.environ:  # notebooks name the one that shows figures
    matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.text import Annotation, Text

from olmo_sparsity.errors import UserError, printable_lines
from olmo_sparsity.files import check_replaceable, check_writable, make_folder, remove_leftovers, written_whole
from olmo_sparsity.statistics.quantities import first_blind, read_estimates, selectors_of
from olmo_sparsity.tables import run_of_tables

DEFAULT = ("first_picture", "figure4", "figure5")
WIDTH = 6.75  # inches: the text of a paper of two columns
# Names -> light, dark: distinct for the colour-blind, and readable as text on white and on black (4.5:1 and more).
PALETTE = {
    "ink": ("#222222", "#e6e6e6"),
    "blue": ("#0072b2", "#6fb8ec"),
    "orange": ("#b84b00", "#f59a55"),
    "green": ("#00785a", "#4fc3a1"),
    "purple": ("#8e3c8a", "#d79ad3"),
    "brown": ("#7a5c00", "#d9b84a"),
    "grey": ("#6b6b6b", "#a9a9a9"),
    "shade": ("#ececec", "#3a3a3a"),
}
INK, BLUE, ORANGE, GREEN, PURPLE, BROWN, GREY, SHADE = (light for light, _ in PALETTE.values())
SERIES = (BLUE, ORANGE, GREEN, PURPLE, BROWN, INK)
CSS = " ".join(f"--figure-{name}: light-dark({light}, {dark});" for name, (light, dark) in PALETTE.items())
STYLE: Any = {  # settings of matplotlib
    "figure.dpi": 110,
    "savefig.dpi": 200,
    "font.size": 8,
    "text.parse_math": False,  # texts may hold dollar signs
    "text.hinting": "none",  # it rounds the widths of letters, and monospaced tokens would drift apart
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "figure.titlesize": 9.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "lines.linewidth": 1.5,
    "lines.markersize": 3.5,
}
LABEL_SIZE = 8
ROOM_OF_TICK = 0.12  # of the width of a panel, at least, between the labels of its ticks
LABEL_GAP = 5.0  # points between the end of a line and its label
# What an earlier picture holds in its metadata.
DRAWN = {
    ".png": re.compile(rb"tEXtSoftware\0Matplotlib .*?Description\0", re.DOTALL),
    ".pdf": re.compile(rb"/Producer \(Matplotlib [^)]*\)\s/Subject "),
}
styled = matplotlib.rc_context(STYLE)  # a decorator of ``figure``

Drawn = Union[Figure, dict[str, Figure]]


class NothingToDraw(UserError):
    """The source of a figure lacks what it shows."""


def new_figure(
    rows: int = 1,
    columns: int = 1,
    *,
    height: float,
    width: float = WIDTH,
    title: str,
    caption: str = "",
    has_heading: bool = True,
    layout: str = "constrained",
    **options: Any,
) -> tuple[Figure, np.ndarray]:
    """A figure and its axes [rows, columns]. The title says in one line what is seen; the caption is one line below.

    Without a heading the title is in the metadata alone.
    """
    figure, axes = plt.subplots(rows, columns, figsize=(width, height), squeeze=False, layout=layout, **options)
    plt.close(figure)  # pyplot keeps no figure that others show
    figure.set_label(title)
    if has_heading:
        figure.suptitle(title, x=0.01, ha="left", fontweight="bold")
    if caption:
        figure.supxlabel(caption, x=0.01, ha="left", fontsize=7.5, color=GREY)
    return figure, axes


def draw_line(
    axis: Axes,
    rows: pd.DataFrame,
    *,
    x: str,
    color: str,
    label: str = "",
    scale: float = 1.0,
    is_dashed: bool = False,
    marker: str = "o",
    label_x: Optional[float] = None,
) -> None:
    """Draw rows of the frame against their column ``x``: values as a line, intervals as a band, the label at the right end.

    ``label_x``: where the label is instead, such as at the edge of the panel where lines end close to one another.
    """
    rows = rows.dropna(subset=[x, "value"]).sort_values(x)
    if rows.empty:
        return
    places = rows[x].to_numpy(float)
    values, lows, highs = (scale * rows[name].to_numpy(float) for name in ("value", "low", "high"))
    style = "--" if is_dashed else "-"
    axis.plot(places, values, color=color, linestyle=style, marker=marker, label=label or None, clip_on=False)
    if len(rows) == 1:  # where a band has no width
        axis.vlines(places, lows, highs, color=color)
    else:
        axis.fill_between(places, lows, highs, color=color, alpha=0.18, linewidth=0)
    if label:
        label_end(axis, label, (places[-1] if label_x is None else label_x, values[-1]), color=color)


def label_end(axis: Axes, label: str, end: tuple[float, float], *, color: str) -> None:
    """Write a label to the right of a point, in data coordinates. ``lay_out`` moves labels that would overlap."""
    axis.annotate(
        printable_lines(label), end, (LABEL_GAP, 0), textcoords="offset points", va="center", ha="left", color=color,
        fontsize=LABEL_SIZE, linespacing=1.0, annotation_clip=False, gid="label",
    )  # fmt: skip


def count_axis(axis: Axes, counts: Sequence[int], marked: Optional[int] = None) -> None:
    """Make the horizontal axis one of numbers of tokens: 0, if it is there, then logarithmic; from the first to the last.

    The last count, ``marked`` and as many of the others have a label as there is room for.
    """
    places = {int(count): count if count < 1 else 1 + np.log2(count) for count in sorted(counts)}
    apart = ROOM_OF_TICK * (max(places.values()) - min(places.values()))
    labelled = [max(places), *([marked] if marked in places else [])]
    for count in sorted(places):
        if all(abs(places[count] - places[other]) >= apart for other in labelled):
            labelled.append(count)
    axis.set_xscale("symlog", base=2, linthresh=1, linscale=0.5)  # from 0 to 1 as far as from 1 to 2
    axis.set_xticks(sorted(labelled), [f"{count}" for count in sorted(labelled)])
    axis.minorticks_off()
    if len(places) > 1:
        axis.set_xlim(min(places), max(places))


def main_selectors(frame: pd.DataFrame, *others: str) -> list[str]:
    """The first measured selector that does not see the target, else the first of all; and the measured ones of ``others``."""
    measured = selectors_of(frame).index
    first = first_blind(frame) or measured[0]
    return list(dict.fromkeys(name for name in (first, *others) if name in measured))


def named_selector(frame: pd.DataFrame, selector: Optional[str]) -> str:
    """The selector of a figure of one: the named one, which must be measured, or the first of ``main_selectors``."""
    measured = selectors_of(frame).index
    if selector is not None and selector not in measured:
        raise UserError(f"selector {selector} was not measured; choose one of {', '.join(measured)}")
    return selector or main_selectors(frame)[0]


def colors_of(frame: pd.DataFrame) -> dict[str, str]:
    """A colour for each measured selector: blue for the first that does not see the target, grey for the controls."""
    first = first_blind(frame)
    names = sorted(selectors_of(frame).index, key=lambda name: (name != first, name != "attention"))
    controls = [name for name in names if name in ("random", "nearest")]
    others = [name for name in names if name not in controls]
    colors = {name: SERIES[number % len(SERIES)] for number, name in enumerate(others)}
    return colors | {name: GREY if name == "random" else INK for name in controls}


def picked_by(selector: str, frame: pd.DataFrame) -> str:
    """Who picked the tokens: of a selector that sees the target, this as well, since part of its gain is optimism."""
    sees = ", which sees the target" if selectors_of(frame).loc[selector, "sees_target"] else ""
    return f"picked {'at random' if selector == 'random' else f'by {selector}'}{sees}"


def selections(frame: pd.DataFrame, quantity: str, selector: str, context: str = "real") -> pd.DataFrame:
    """The rows of one quantity of a selector over all targets, by k."""
    rows = frame[(frame["quantity"] == quantity) & (frame["selector"] == selector) & (frame["context"] == context)]
    return rows[rows["group"].isna()]


def sample_of(frame: pd.DataFrame) -> str:
    """How many windows and documents the numbers are from."""
    windows, documents = frame["n_windows"].max(), frame["n_documents"].max()
    return f"{windows:,} windows of {documents:,} documents"


def lay_out(figure: Figure, dpi: float) -> None:
    """Compute the layout of a figure once for all its files, and move labels apart."""
    figure.set_dpi(dpi)
    engine = figure.get_layout_engine()
    if engine is not None:
        engine.execute(figure)
        figure.set_layout_engine(None)
    for axis in figure.axes:
        labels = [text for text in axis.texts if isinstance(text, Annotation) and text.get_gid() == "label"]
        if labels:
            _move_apart(labels, axis.bbox.y0, axis.bbox.y1, points=72 / dpi)


def _move_apart(labels: list[Annotation], bottom: float, top: float, *, points: float) -> None:
    """Shift labels up and down, as little as possible, until none overlaps and all are beside their panel.

    ``bottom`` and ``top`` of the panel are in pixels; ``points``: of a pixel.
    """
    boxes = {label: label.get_window_extent() for label in labels}
    labels = sorted(labels, key=lambda label: boxes[label].y0 + boxes[label].y1)
    heights = np.array([boxes[label].height for label in labels]) * 1.15
    wanted = np.array([boxes[label].y0 for label in labels])
    below = np.cumsum(heights) - heights  # of the labels stacked on one another
    blocks: list[list[float]] = []  # labels that touch: the mean of their shifts, and their number
    for shift in wanted - below:
        blocks.append([shift, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            shift, number = blocks.pop()
            mean, others = blocks[-1]
            blocks[-1] = [(mean * others + shift * number) / (others + number), others + number]
    shifts = np.repeat([shift for shift, _ in blocks], [int(number) for _, number in blocks])
    half = heights[0] / 2  # may stand out
    shifts = shifts.clip(bottom - half, max(bottom - half, top + half - heights.sum()))
    for label, move in zip(labels, shifts + below - wanted, strict=True):
        label.xyann = (LABEL_GAP, move * points)


@styled
def save(figure: Figure, name: str, folder: Path) -> list[Path]:
    """Write ``NAME.png`` and ``NAME.pdf`` with title and caption in their metadata; returns their paths.

    Raises:
        UserError: a file that this tool did not write has one of the names.
    """
    title, caption = printable_lines(str(figure.get_label())), printable_lines(figure.get_supxlabel())
    metadata: dict[str, dict[str, Any]] = {
        ".png": {"Title": title, "Description": caption or title},
        ".pdf": {"Subject": caption or title, "Title": title, "CreationDate": None},
    }
    paths = [folder / f"{name}{ending}" for ending in metadata]
    for path in paths:
        check_replaceable(path, DRAWN[path.suffix].search, what="figure")
    make_folder(folder)
    remove_leftovers(folder)
    _make_printable(figure)
    lay_out(figure, STYLE["savefig.dpi"])
    for path in paths:
        picture = io.BytesIO()  # on a full disk matplotlib would leave an empty file
        figure.savefig(picture, format=path.suffix[1:], dpi=figure.dpi, metadata=metadata[path.suffix])
        with written_whole(path) as partial:
            partial.write_bytes(picture.getvalue())
    return paths


def _make_printable(figure: Figure) -> None:
    """Replace control characters in texts: names may hold anything."""
    for text in figure.findobj(Text):
        assert isinstance(text, Text)
        if text.get_text() != (safe := printable_lines(text.get_text())):
            text.set_text(safe)


def svg(figure: Figure) -> str:
    """The figure as an ``<svg>`` for a page: no style sheet, no style attributes, no pixels; colours are variables of ``CSS``."""
    _make_printable(figure)
    lay_out(figure, 72)
    written = io.BytesIO()
    title = printable_lines(str(figure.get_label()))
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": title}):
        figure.savefig(written, format="svg", dpi=72, transparent=True, metadata={"Date": None})
    root = ElementTree.fromstring(written.getvalue())
    for node in root.iter():
        node.tag = node.tag.rpartition("}")[2]
        node.tail = None
        attributes = {key.rpartition("}")[2]: value for key, value in node.attrib.items()}
        attributes |= _attributes_of(attributes.pop("style", ""))
        if node.tag == "g":  # nothing refers to a group
            attributes.pop("id", None)
        if node.tag != "text":
            node.text = None
        node.attrib.clear()
        node.attrib.update({key: _in_variables(" ".join(value.split())) for key, value in attributes.items()})
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in ("metadata", "style"):
                parent.remove(child)
    box = root.attrib["viewBox"]
    looks = {"stroke-linejoin": "round", "stroke-linecap": "butt"}  # of the style sheet
    root.attrib = {"class": "figure", "role": "img", "aria-label": title, "viewBox": box, **looks}
    return ElementTree.tostring(root, encoding="unicode")


def _attributes_of(style: str) -> dict[str, str]:
    """The attributes that say what a style says, but for the family of the font."""
    attributes = dict(entry.strip().split(": ", 1) for entry in style.split(";") if entry.strip())
    attributes.pop("font-family", None)
    if font := re.match(r"(?P<weight>bold )?.*?(?P<size>[\d.]+px)", attributes.pop("font", "")):
        attributes["font-size"] = font["size"]
        attributes |= {"font-weight": "bold"} if font["weight"] else {}
    return attributes


def _in_variables(value: str) -> str:
    for name, (light, _) in PALETTE.items():
        if value.lower() == light:
            return f"var(--figure-{name}, {light})"
    return value


def figure_names() -> list[str]:
    """Names of the files here that draw a figure."""
    names = [found.name for found in pkgutil.iter_modules([str(Path(__file__).parent)])]
    return [name for name in names if name not in ("__main__", "drawing")]


def figure_module(name: str) -> ModuleType:
    """The file that draws a figure.

    Raises:
        UserError: there is none of this name.
    """
    if name not in figure_names():
        raise UserError(f"{name}: no such figure; choose one of {', '.join(figure_names())}")
    return importlib.import_module(f".{name}", __package__)


def by_name(drawn: Drawn, name: str) -> dict[str, Figure]:
    """What ``figure`` of a file returned, as figures by their names."""
    return drawn if isinstance(drawn, dict) else {name: drawn}


def draw_run(tables: Path, folder: Path, every: bool) -> Iterator[Path]:
    """Draw the figures of a measurement into a folder, the default ones or all, and yield the path of each file.

    Raises:
        UserError: the tables are damaged, or a file that this tool did not write has the name of a figure.
    """
    check_writable(folder)
    run = run_of_tables(tables)
    sources: dict[str, Any] = {"frame": read_estimates(tables), "tables": tables, "run": run and [run]}
    for name in (*DEFAULT, *(name for name in figure_names() if name not in DEFAULT)) if every else DEFAULT:
        module = figure_module(name)
        source: Optional[Any] = sources.get(module.NEEDS)
        if source is None:
            continue
        try:
            drawn = by_name(module.figure(source), name)
        except NothingToDraw:
            continue
        for own_name, figure in drawn.items():
            yield from save(figure, own_name, folder)
