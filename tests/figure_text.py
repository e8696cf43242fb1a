"""What a reader sees of a figure, as text: one line an artist, so that a change of a label, number, colour or mark is a line of a
diff.

Numbers have four significant digits. Ticks are written where a script sets them; others are Matplotlib's.
"""

from __future__ import annotations

import re
from collections.abc import Collection as Words
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from matplotlib import colors
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.collections import Collection, LineCollection, PathCollection
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.legend import Legend
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from matplotlib.spines import Spine
from matplotlib.text import Annotation, Text
from matplotlib.ticker import FixedLocator

from analysis.output import Drawn

TICK_LOOKS = ("length", "labelsize", "labelrotation")  # where a script sets them
MOST_POINTS = 16  # of an artist that are all written; of more the number, the mean, the spread, the first and the last
SENTENCE_END = re.compile(r"(?<=[.;]) (?=\S)")


def number(value: Any) -> str:
    """Return a number with four significant digits; what is 0 but for rounding is 0."""
    value = float(value)
    return "0" if abs(value) < 1e-9 else f"{value:.4g}"


def numbers(values: Iterable[Any]) -> str:
    """Return numbers, separated by commas."""
    return ",".join(map(number, np.ravel(np.asarray(list(values), dtype=float))))


def points(of: Any) -> str:
    """Return points [N, 2] as ``x,y x,y``; many in short."""
    of = np.ma.filled(np.ma.asarray(of, dtype=float), np.nan).reshape(-1, 2)
    if len(of) <= MOST_POINTS:
        return " ".join(map(numbers, of))
    ends = " ".join(map(numbers, [of[0], of[1], of[-1]]))
    return f"{len(of)} points, mean {numbers(np.nanmean(of, 0))}, spread {numbers(np.nanstd(of, 0))}, {ends}"


def color(of: Any) -> str:
    """Return one colour, or the different ones of several."""
    if isinstance(of, str) and of == "none":
        return "none"
    found = dict.fromkeys(colors.to_hex(one, keep_alpha=bool(one[3] < 1)) for one in colors.to_rgba_array(of))
    return "/".join(found) or "none"


def place(artist: Artist) -> str:
    """Return in which coordinates an artist stands, where that is not the data."""
    axes, transform = artist.axes, artist.get_transform()
    if axes is None or transform == axes.transData:
        return ""
    known = {
        " of panel": axes.transAxes,
        " x data": axes.get_xaxis_transform(),
        " y data": axes.get_yaxis_transform(),
    }
    return next((words for words, one in known.items() if transform == one), "")


def looks(artist: Artist, usual_zorder: float) -> str:
    """Return opacity and order, where they are not the usual ones."""
    words = "" if artist.get_alpha() is None else f" alpha {number(artist.get_alpha())}"
    words += "" if artist.get_zorder() == usual_zorder else f" zorder {number(artist.get_zorder())}"
    words += f" effects {len(artist.get_path_effects())}" if artist.get_path_effects() else ""
    words += " rasterized" if artist.get_rasterized() else ""
    return words


def line_looks(line: Line2D) -> str:
    """Return colour, style, width and marker of a line."""
    style, marker = line.get_linestyle(), line.get_marker()
    words = f"{color(line.get_color())} {style if style != 'None' else 'no line'}"
    words += f" {number(line.get_linewidth())}" if style != "None" else ""
    if marker not in ("None", None, ""):
        face, edge = color(line.get_markerfacecolor()), color(line.get_markeredgecolor())
        words += f" marker {marker} {number(line.get_markersize())} {face}"
        words += "" if edge == face else f" edge {edge} {number(line.get_markeredgewidth())}"
        words += f" every {line.get_markevery()}" if line.get_markevery() not in (None, [1], 1) else ""
    return words + (f" {line.get_drawstyle()}" if line.get_drawstyle() != "default" else "")


def label_of(artist: Artist) -> str:
    """Return the label of an artist, if it has one of its own."""
    label = str(artist.get_label())
    return "" if not label or re.match(r"_|None$", label) else f" {label!r}"


def text_looks(text: Text) -> str:
    """Return how a text is written."""
    words = f"{number(text.get_fontsize())} {color(text.get_color())} {text.get_ha()} {text.get_va()}"
    words += f" {text.get_fontweight()}" if text.get_fontweight() not in ("normal", 400) else ""
    words += f" {text.get_fontfamily()[0]}" if text.get_fontfamily() != ["sans-serif"] else ""
    words += f" rotated {number(text.get_rotation())}" if text.get_rotation() else ""
    words += f" by its {text.get_rotation_mode()}" if text.get_rotation_mode() not in (None, "default") else ""
    words += f" spacing {text._linespacing}" if text._linespacing not in (1.2, "normal") else ""  # type: ignore[attr-defined]
    box = text.get_bbox_patch()
    return words + (
        "" if box is None else f" box {color(box.get_facecolor())} {color(box.get_edgecolor())}{looks(box, 1)}"
    )


def text_line(text: Text) -> str:
    """Return a text, where it stands, and how it is written."""
    at = f" at {numbers(text.get_position())}"
    if isinstance(text, Annotation):
        xy = numbers(text.xy)
        at = (
            f" at {xy} {text.xycoords}"
            if text.anncoords == text.xycoords and text.xy == text.xyann
            else (f" of {xy} {text.xycoords} at {numbers(text.xyann)} {text.anncoords}")
        )
        arrow = text.arrowprops
        at += f" arrow {arrow['arrowstyle']} {color(arrow['color'])}" if arrow else ""
    of = "" if isinstance(text, Annotation) else place(text)
    return f"text{of} {text_looks(text)}: {text.get_text()!r}{at}"


def _area(corners: np.ndarray) -> str:
    """Return the lower and the upper end of a band at each of its places; of another shape its corners."""
    places = [np.unique(corners[corners[:, 0] == x, 1]) for x in np.unique(corners[:, 0])]
    if all(len(of) <= 2 for of in places):
        return " ".join(f"{number(x)},{numbers(of)}" for x, of in zip(np.unique(corners[:, 0]), places, strict=True))
    return points(corners)


def _bar(first: np.ndarray, last: np.ndarray) -> str:
    """Return ``x,low:high`` of an upright bar, and ``low:high,y`` of one that lies."""
    (x, low), (end, high) = first, last
    if x == end:
        return f"{number(x)},{number(low)}:{number(high)}"
    return f"{number(x)}:{number(end)},{number(low)}"


def artist_line(artist: Artist) -> str:
    """Return what is drawn, how and where, in one line."""
    if isinstance(artist, Line2D) and artist.get_marker() in ("|", "_"):
        return f"caps {line_looks(artist)}{looks(artist, 2)}: "
    if isinstance(artist, Line2D):
        at = points(np.transpose([np.ravel(axis) for axis in artist.get_data(orig=False)]))
        return f"line{label_of(artist)} {line_looks(artist)}{looks(artist, 2)}{place(artist)}: {at}"
    if isinstance(artist, LineCollection):
        ends = [segment for segment in artist.get_segments() if len(segment) and not np.isnan(segment).any()]
        drawn = " ".join(_bar(*segment) for segment in ends)
        return f"bars {color(artist.get_colors())} {numbers(artist.get_linewidths())}{looks(artist, 2)}: {drawn}"
    if isinstance(artist, Collection):
        words = (
            f"{color(artist.get_facecolor())} edge {color(artist.get_edgecolor())} {numbers(artist.get_linewidths())}"
        )
        words += looks(artist, 1)
        if artist.get_array() is not None:
            values = np.ma.compressed(np.ma.asarray(artist.get_array()))
            norm = artist.norm
            words = f"{artist.get_cmap().name} {type(norm).__name__} {number(norm.vmin)}-{number(norm.vmax)}{looks(artist, 1)}"
            words += f" of {len(values)} values, sum {number(values.sum())}, most {number(values.max())}"
        if isinstance(artist, PathCollection) or len(artist.get_offsets()) > 1:
            sizes = np.unique(np.round(artist.get_sizes(), 6)) if isinstance(artist, PathCollection) else []
            return f"points{label_of(artist)} {words} sizes {numbers(sizes)}: {points(artist.get_offsets())}"
        corners = [_area(path.vertices) for path in artist.get_paths() if len(path.vertices)]
        return f"area{label_of(artist)} {words}: {'; '.join(corners)}"
    if isinstance(artist, Patch):
        words = f"{color(artist.get_facecolor())} edge {color(artist.get_edgecolor())} {number(artist.get_linewidth())}"
        words += looks(artist, 1)
        if isinstance(artist, Rectangle):
            corner, size = numbers(artist.get_xy()), numbers([artist.get_width(), artist.get_height()])
            return f"box {words}{place(artist)}: {corner} size {size}"
        return f"shape {words}{place(artist)}: {points(artist.get_path().vertices)}"
    if isinstance(artist, AxesImage):
        rows = "; ".join(numbers(row) for row in np.ma.filled(artist.get_array(), np.nan))
        return f"image {artist.get_cmap().name} {numbers(artist.get_clim())}: {rows}"
    if isinstance(artist, Text):
        return text_line(artist)
    raise TypeError(f"an artist that has no text: {artist}")


def axis_line(axis: Axis, name: str) -> str:
    """Return label, scale, limits and ticks of an axis."""
    words = f"{name} {axis.get_label_text()!r} {axis.get_scale()} {numbers(axis.get_view_interval())}"
    if isinstance(axis.get_major_locator(), FixedLocator):
        places = axis.get_ticklocs()
        labels = axis.get_major_formatter().format_ticks(places)
        drawn = axis.get_major_ticks(len(places))
        words += " ticks " + " ".join(f"{number(at)}={label!r}" for at, label in zip(places, labels, strict=True))
        if drawn:
            label = drawn[0].label1
            words += f" {number(label.get_fontsize())} rotated {number(label.get_rotation())}"
            words += (
                f" by its {label.get_rotation_mode()}" if label.get_rotation_mode() not in (None, "default") else ""
            )
            words += "" if label.get_visible() else " unlabelled"
    else:
        formatter = axis.get_major_formatter()
        words += f" ticks {type(axis.get_major_locator()).__name__} {type(formatter).__name__}"
        if type(formatter).__name__ not in ("ScalarFormatter", "LogFormatterSciNotation"):
            words += f" {' '.join(formatter.format_ticks([0.25, 1, 1500]))}"
        words += (
            ""
            if axis.get_tick_params().get("labelleft", axis.get_tick_params().get("labelbottom", True))
            else (" unlabelled")
        )
    minor = axis.get_minorticklocs()
    words += f" minor {type(axis.get_minor_locator()).__name__}" if len(minor) else ""
    params = axis.get_tick_params()
    words += "".join(f" {name} {params[name]}" for name in TICK_LOOKS if name in params)
    shared = getattr(axis.axes, f"get_shared_{name}_axes")().get_siblings(axis.axes)
    words += f" of {len(shared)} panels" if len(shared) > 1 else ""
    if not params.get("gridOn"):
        return words
    return f"{words} grid" + "".join(f" {params[name]}" for name in ("grid_color", "grid_linewidth") if name in params)


def legend_lines(legend: Legend) -> Iterator[str]:
    """Yield what a legend says, one entry a line."""
    columns, at = legend._ncols, legend._loc  # type: ignore[attr-defined]
    frame = " framed" if legend.get_frame_on() else ""
    place = f" at {at}" + ("" if legend.get_in_layout() else " beside the layout")
    yield f"legend {columns} columns, {number(legend.get_texts()[0].get_fontsize())}{place}{frame}"
    for handle, text in zip(legend.legend_handles, legend.get_texts(), strict=True):
        drawn = (
            line_looks(handle) + looks(handle, handle.get_zorder())
            if isinstance(handle, Line2D)
            else (type(handle).__name__ if handle else "")
        )
        yield f"  {text.get_text()!r} {drawn}"


def together(lines: Iterable[str]) -> Iterator[str]:
    """Yield lines, those of artists that look alike as one, at the place of the first."""
    of_looks: dict[str, list[str]] = {}
    for line in lines:
        words, _, at = line.partition(": ")
        of_looks.setdefault(words, []).append(at)
    for words, places in of_looks.items():
        is_counted = words.startswith("caps")
        yield f"{words}: {len(places) if is_counted else ' | '.join(place or 'nothing' for place in places)}"


def panel_lines(axes: Axes, before: dict[str, str]) -> Iterator[str]:
    """Yield what a panel shows, one artist a line; ``before`` are the axes of the panel before it."""
    cell = axes.get_subplotspec()
    at = "" if cell is None else f" row {cell.rowspan.start} column {cell.colspan.start}"
    titles = {where: axes.get_title(loc=where) for where in ("left", "center", "right")}
    looks_of_title = number(axes.title.get_fontsize())
    looks_of_title += (
        f" spacing {number(axes.title._linespacing)}" if axes.title._linespacing not in (1.2, "normal") else ""
    )  # type: ignore[attr-defined]
    shown = [f"{where} {title!r} {looks_of_title}" for where, title in titles.items() if title]
    if not axes.get_visible() or not (axes.axison or axes.get_children()):
        yield f"panel{at} not drawn"
        return
    yield f"panel{at}: {'; '.join(shown)}{'' if axes.axison else ' without axes'}" + (
        "" if axes.get_aspect() == "auto" else f" aspect {axes.get_aspect()} {axes.get_anchor()}"
    )
    if axes.axison:
        if axes.get_axisbelow() is True:
            yield "  grid and ticks below"
        for name, axis in (("x", axes.xaxis), ("y", axes.yaxis)):
            words = axis_line(axis, name)
            yield f"  {name} as before" if words == before.get(name) else f"  {words}"
            before[name] = words
        hidden = {name for name, spine in axes.spines.items() if not spine.get_visible()}
        if hidden != {"top", "right"}:
            yield f"  spines hidden: {' '.join(sorted(hidden))}"
    yield from (f"  {line}" for line in together(_artist_lines(axes)))
    for legend in filter(None, [axes.get_legend()]):
        yield from (f"  {line}" for line in legend_lines(legend))


def _artist_lines(axes: Axes) -> Iterator[str]:
    own = {axes.patch, axes.title, axes._left_title, axes._right_title}  # type: ignore[attr-defined]
    for artist in axes.get_children():
        is_frame = artist in own or isinstance(artist, (Spine, Axis, Legend))
        is_empty = isinstance(artist, Text) and not artist.get_text() and not isinstance(artist, Annotation)
        if not is_frame and not is_empty and artist.get_visible():
            yield artist_line(artist)


def layout(figure: Figure) -> str:
    """Return how panels are arranged, and the shares of columns and rows where they are not alike."""
    engine = figure.get_layout_engine()
    made = type(engine)(compress=True) if getattr(engine, "_compress", False) else type(engine)()
    pads = (
        [f"{key} {number(value)}" for key, value in engine.get().items() if value != made.get()[key]] if engine else []
    )
    words = "" if engine is None else " ".join(["", type(engine).__name__, *pads])
    words += " compressed" if getattr(engine, "_compress", False) else ""
    grids = dict.fromkeys(cell.get_gridspec() for axes in figure.axes if (cell := axes.get_subplotspec()) is not None)
    for grid in grids:
        for name, ratios in (("widths", grid.get_width_ratios()), ("heights", grid.get_height_ratios())):
            words += f" {name} {numbers(ratios)}" if len(set(ratios)) > 1 else ""
    return words


def figure_lines(figure: Figure) -> Iterator[str]:
    """Yield what a figure shows, one artist a line."""
    yield f"size {numbers(figure.get_size_inches())}{layout(figure)}"
    yield from (f"caption: {sentence}" for sentence in SENTENCE_END.split(str(figure.get_label())))
    yield from (text_line(text).replace("\\n", "\n    ") for text in figure.texts if text.get_text())
    for legend in figure.legends:
        yield from legend_lines(legend)
    before: dict[str, str] = {}
    for axes in figure.axes:
        if bar := getattr(axes, "_colorbar", None):
            scale = f"{bar.cmap.name} {type(bar.norm).__name__} {number(bar.norm.vmin)}-{number(bar.norm.vmax)}"
            words = bar.long_axis.get_label_text()
            made = axes._colorbar_info  # type: ignore[attr-defined]
            size = f"of {len(made['parents'])} panels, shrunk to {number(made['shrink'])}, {number(made['aspect'])} times as long"
            ticks = " ".join(bar.formatter.format_ticks([0.25, 1, 30]))
            yield f"colour bar {words!r} {bar.orientation} {scale} {ticks} {size}"
            continue
        yield from panel_lines(axes, before)


def figure_text(drawn: Drawn, *, known: Words[str] = ()) -> str:
    """Return what a drawn figure shows, and what goes with it; ``known``: lines that another snapshot has."""
    lines = [f"{drawn.name}; page {number(drawn.page_inches)} in"]
    lines += [f"finding: {sentence}" for sentence in SENTENCE_END.split(drawn.finding)]
    lines += [line for line in figure_lines(drawn.figure) if line not in known]
    return "\n".join(line.rstrip() for line in lines) + "\n"
