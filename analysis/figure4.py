"""Figure 4: sparse gain against long gain, window by window; a panel for each k up to a quarter, controls below the real one.

Below the real context of a selector that sees the target stands the resampled target, a label that no token informs: the picture
of selection, and of what showing a set costs. The null context stands below that.

Both axes of all panels have the same range and scale. With more than ``MAX_POINTS`` points, they would hide one another. Each
panel then shows how many windows lie in each hexagon. Above each panel stands the one number to read; the caption has the others.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import LinearSegmentedColormap, LogNorm
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke

from olmo_sparsity.statistics.intervals.lines import LineFit
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.measurement import CONTEXTS, LONG_GAIN, Measurement
from olmo_sparsity.statistics.single.shown_ks import few_ks, spread_ks
from olmo_sparsity.statistics.single.summary import SelectionSummary, Summary
from olmo_sparsity.wording.findings import cloud_finding
from olmo_sparsity.wording.gates import no_fraction_words
from olmo_sparsity.wording.numbers import interval, recovered_words
from olmo_sparsity.wording.setup import null_sentence

from .drawing import FigureOfMeasurement
from .drawn_targets import DrawnTargets, fit_of_draws, read_drawn_targets
from .medium import is_for_page
from .output import Drawn, caption
from .style import CONTEXT_WORDS, LOOKS, ordered

# The colours of a density, from one window to the most: the light end of viridis, which is lost on white, is left out.
DENSITY = LinearSegmentedColormap.from_list("density", plt.get_cmap("viridis_r")(np.linspace(0.42, 1, 64)))
FRAME_PERCENTILES = (0.2, 99.8)
MAX_POINTS = 500
MAX_PANELS = 5  # in a row
HEXAGONS, PAGE_HEXAGONS = 40, 24  # across a panel
POINT_AREA = 5.0  # of a window of weight 1, in square points
ROW_HEIGHT = 2.95  # inches: a square panel and its title
WORDS = (
    "Dashed: sparse gain equals long gain; cross: the means. {controls}{null} Further numbers, with 95% intervals over "
    "documents, are r: correlation; OLS and TLS: slope of long gain on sparse gain by ordinary and by total least "
    "squares. {numbers}"
)
SEEING_WORDS = (
    "This selector sees the target, so R(k) holds its optimism; above the panels stands the corrected gain, in nats, which under "
    "the null context is the placebo and must not be above 0. "
)
RESAMPLED_WORDS = (
    "In the row of the resampled target the label is drawn from the short-context prediction ({draws} draws of each window), so "
    "that no token informs about it: the cloud shows what selection gains on such a label, less what showing any set costs on "
    "it. Optimism, above it, is the mean of this gain plus that cost, KL(p_short, p_J). "
)
BLIND_WORDS = (
    "This selector does not see the target: its gain over random holds no optimism. Above the panels stands R(k), under the null "
    "context its sparse gain there over the long gain of the real one. "
)


@dataclass(frozen=True)
class Frame:
    """Limits of both axes of the panels of one figure, in nats."""

    low: float
    high: float

    def contains(self, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        """Return which points lie inside, bool [W]."""
        return (np.minimum(x, y) >= self.low) & (np.maximum(x, y) <= self.high)


@dataclass(frozen=True)
class Cloud:
    """The points of one panel: windows, or draws of windows.

    Attributes:
        x: sparse gains in nats, [N].
        y: long gains in nats, [N].
        weight: weight of each point in a mean, [N].
        where: what the panel shows: k and the context.
        number: the number to read, above the panel.
        others: the numbers of the caption.
    """

    x: np.ndarray
    y: np.ndarray
    weight: np.ndarray
    where: str
    number: str
    others: str

    @property
    def mean(self) -> tuple[float, float]:
        """The weighted means of both gains."""
        return float(np.average(self.x, weights=self.weight)), float(np.average(self.y, weights=self.weight))


def _lines_of(fit: LineFit) -> str:
    return f"r {interval(fit.correlation)}, OLS {interval(fit.ols_slope)}, TLS {interval(fit.tls_slope)}"


def _fraction_of(selection: SelectionSummary, summary: Summary) -> str:
    """Return R(k) in words, or why there is none."""
    if selection.recovered_fraction is None:
        return f"{no_fraction_words(summary.gate)}: no R(k)"
    return f"R({selection.k}) = {recovered_words(summary, selection.recovered_fraction)}"


def _cloud_of_context(measurement: Measurement, selection: SelectionSummary, *, summary: Summary) -> Cloud:
    """Return the windows of one selection under the real or the null context."""
    number, others = _fraction_of(selection, summary), [f"sparse gain {interval(selection.gain_sparse_nats)}"]
    if selection.info.sees_target:
        if selection.context == "real":
            others.append(number)
        number = f"corrected gain {interval(selection.corrected_gain_nats)}"
    elif selection.gain_over_random_nats is not None:
        others.append(f"over random {interval(selection.gain_over_random_nats)}")
    windows = measurement.windows
    return Cloud(
        measurement.gains[selection.key].to_numpy(np.float64),
        windows[LONG_GAIN[selection.context]].to_numpy(np.float64),
        measurement.weights_W,
        f"k = {selection.k}, {selection.context} context",
        number,
        ", ".join([*others, _lines_of(selection.figure4)]),
    )


def _cloud_of_draws(measurement: Measurement, selection: SelectionSummary, *, drawn: DrawnTargets) -> Cloud:
    """Return the draws of all windows: sparse gain and long gain on labels that no token informs."""
    x_WD = drawn.sparse_gain_KWD[selection.selector][measurement.ks.index(selection.k)]
    return Cloud(
        x_WD.ravel().astype(np.float64),
        drawn.long_gain_WD.ravel().astype(np.float64),
        np.repeat(measurement.weights_W, x_WD.shape[1]),
        f"k = {selection.k}, resampled target",
        f"optimism {interval(selection.optimism_nats)}",
        _lines_of(fit_of_draws(measurement, x_WD=x_WD, y_WD=drawn.long_gain_WD)),
    )


def _ks_of_panels(summary: Summary) -> list[int]:
    """Return ``few_ks``; of many a few, evenly spaced on a logarithmic scale."""
    few = few_ks(summary.ks, summary.num_units)
    return few if len(few) <= MAX_PANELS else spread_ks(few, MAX_PANELS)


def _rows_of(measured: Measured, selector: str, *, drawn: DrawnTargets) -> dict[str, list[Cloud]]:
    """Return the rows of panels by their context, a panel for each k (``_ks_of_panels``)."""
    measurement, summary = measured.measurement, measured.summary
    ks = _ks_of_panels(summary)
    rows: dict[str, list[Cloud]] = {}
    for context in ("real", "resampled", "null"):
        if context == "resampled":
            if selector not in drawn.sparse_gain_KWD:
                continue
            selections = [summary.at(selector, "real", k) for k in ks]
            rows[context] = [_cloud_of_draws(measurement, selection, drawn=drawn) for selection in selections]
        else:
            selections = [summary.at(selector, context, k) for k in ks]
            rows[context] = [_cloud_of_context(measurement, selection, summary=summary) for selection in selections]
    return rows


def _frame_of(rows: dict[str, list[Cloud]]) -> Frame:
    clouds = [cloud for row in rows.values() for cloud in row]
    of_each = [
        np.percentile(np.concatenate(gains), FRAME_PERCENTILES)
        for gains in ([cloud.x for cloud in clouds], [cloud.y for cloud in clouds])
    ]
    return Frame(float(np.min(of_each)), float(np.max(of_each)))


def _points(axis: Axes, cloud: Cloud, *, inside: np.ndarray, color: str) -> None:
    alpha = min(0.4, max(0.08, 600 / len(cloud.x)))
    sizes = POINT_AREA * cloud.weight[inside]
    axis.scatter(cloud.x[inside], cloud.y[inside], s=sizes, alpha=alpha, color=color, linewidths=0, rasterized=True)


def _density(axis: Axes, cloud: Cloud, *, inside: np.ndarray, frame: Frame) -> PolyCollection:
    """Draw hexagons whose array holds the weight of the points in each; empty ones are left out."""
    extent = (frame.low, frame.high, frame.low, frame.high)
    return axis.hexbin(
        cloud.x[inside], cloud.y[inside], C=cloud.weight[inside], reduce_C_function=np.sum,
        gridsize=PAGE_HEXAGONS if is_for_page() else HEXAGONS, extent=extent, linewidths=0.1, rasterized=True,
    )  # fmt: skip


def _colour_densities(figure: Figure, axes: np.ndarray, *, densities: list[PolyCollection]) -> None:
    """Give all panels the same logarithmic scale, and draw its colour bar."""
    most = max(np.asarray(density.get_array()).max() for density in densities)
    for density in densities:
        density.set(norm=LogNorm(1, max(2, most)), cmap=DENSITY)
    figure.colorbar(
        densities[0], ax=axes, location="bottom", label="weight in a hexagon", format="{x:.0f}", shrink=0.6, aspect=40
    )


def _panel(axis: Axes, cloud: Cloud, *, frame: Frame, color: str, is_dense: bool) -> Optional[PolyCollection]:
    """Draw the points of one panel, or return their density."""
    inside, density, halo = frame.contains(cloud.x, cloud.y), None, []
    if is_dense:
        density = _density(axis, cloud, inside=inside, frame=frame)
        halo = [withStroke(linewidth=2.2, foreground="white")]
    else:
        _points(axis, cloud, inside=inside, color=color)
    diagonal = [frame.low, frame.high]
    axis.plot(diagonal, diagonal, color="black", linewidth=0.9, linestyle="--", path_effects=halo)
    axis.axhline(0, color="grey", linewidth=0.5)
    axis.axvline(0, color="grey", linewidth=0.5)
    edge = [withStroke(linewidth=3.5, foreground="white")]
    axis.plot(*cloud.mean, marker="+", color="black", markersize=9, markeredgewidth=1.8, path_effects=edge)
    axis.set_title(f"{cloud.where}\n{cloud.number}", fontsize=8.5, linespacing=1.1)
    axis.set_aspect("equal")
    axis.set_anchor(
        "N"
    )  # so that the layout leaves room for the title: it measures from the top of what a panel might take
    return density


def _numbers_words(clouds: Sequence[Cloud], *, frame: Frame) -> str:
    """Return the numbers of each panel that do not stand above it, and how many points lie outside its frame."""
    panels = []
    for cloud in clouds:
        num_outside = int((~frame.contains(cloud.x, cloud.y)).sum())
        outside = f", {num_outside} outside the frame" if num_outside else ""
        panels.append(f"{cloud.where}: {cloud.others}{outside}")
    return f"{'; '.join(panels)}."


def _words(measured: Measured, selector: str, *, drawn: DrawnTargets, is_dense: bool, numbers: str) -> str:
    weighted = bool((measured.measurement.weights_W != 1).any())
    if is_dense:
        mark = "Colour: weight of the windows in a hexagon, on a logarithmic scale"
    else:
        mark = "Each point is a window" + (", its area the weight of the window" if weighted else "")
    controls = SEEING_WORDS if measured.measurement.selectors[selector].sees_target else BLIND_WORDS
    if selector in drawn.sparse_gain_KWD:
        controls += RESAMPLED_WORDS.format(draws=drawn.long_gain_WD.shape[1])
    words = WORDS.format(controls=controls, null=null_sentence(measured.summary), numbers=numbers)
    return f"Selector {selector}. {mark}. {words}"


def figure_of(tables: Path, selector: str) -> Figure:
    """Return the figure of one measured selector of a finished influence folder, for the caller to show or save."""
    measured = Measured.read(tables)
    figure = _draw_selector(measured, selector, drawn=read_drawn_targets(tables, measured.measurement))
    plt.close(figure)  # pyplot keeps no figure that others show
    return figure


def _draw_selector(measured: Measured, selector: str, *, drawn: DrawnTargets) -> Figure:
    rows = _rows_of(measured, selector, drawn=drawn)
    num_ks = len(rows["real"])
    frame = _frame_of(rows)
    figure, axes = plt.subplots(
        len(rows),
        num_ks,
        figsize=(2.6 * num_ks + 0.6, ROW_HEIGHT * len(rows) + 0.5),
        sharex=True,
        sharey=True,
        squeeze=False,
        layout="constrained" if is_for_page() else "compressed",
    )
    if is_for_page():  # the layout measures square panels before they have shrunk
        figure.get_layout_engine().set(h_pad=0.1)  # type: ignore[union-attr, call-arg]
    is_dense = max(len(cloud.x) for clouds in rows.values() for cloud in clouds) > MAX_POINTS
    densities = []
    for axes_of_row, (context, clouds) in zip(axes, rows.items(), strict=True):
        for axis, cloud in zip(axes_of_row, clouds, strict=True):
            density = _panel(axis, cloud, frame=frame, color=LOOKS[selector]["color"], is_dense=is_dense)
            if density is not None:
                densities.append(density)
        axes_of_row[0].set_ylabel(f"{CONTEXT_WORDS[context].split(' (')[0]}\nlong gain, nats")
    for axis in axes[-1]:
        axis.set_xlabel("sparse gain, nats")
    axes[0, 0].set(xlim=(frame.low, frame.high), ylim=(frame.low, frame.high))
    if densities:
        _colour_densities(figure, axes, densities=densities)
    numbers = _numbers_words([cloud for clouds in rows.values() for cloud in clouds], frame=frame)
    caption(figure, measured.summary, words=_words(measured, selector, drawn=drawn, is_dense=is_dense, numbers=numbers))
    return figure


def draw(measured: Measured) -> Iterator[Drawn]:
    """Draw ``figure4-SELECTOR`` for every selector."""
    drawn = read_drawn_targets(measured.tables, measured.measurement)
    selectors = ordered(measured.measurement)
    for name in selectors:
        yield _drawn(measured, name, drawn=drawn)


def draw_one(measured: Measured, selector: str) -> Drawn:
    """Draw ``figure4-SELECTOR`` for one selector."""
    return _drawn(measured, selector, drawn=read_drawn_targets(measured.tables, measured.measurement))


def _drawn(measured: Measured, selector: str, *, drawn: DrawnTargets) -> Drawn:
    k = measured.summary.end_ks[-1]
    of_contexts = {context: measured.summary.at(selector, context, k) for context in CONTEXTS}
    finding = cloud_finding(selector, of_contexts, measured.summary)
    return Drawn(_draw_selector(measured, selector, drawn=drawn), f"figure4-{selector}", finding)


FIGURE = FigureOfMeasurement(draw)
