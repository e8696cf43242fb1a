"""Figure of the classes of targets: which profit from the long context, and how much of it few tokens give back."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from olmo_sparsity.errors import printable_lines
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.breakdowns import ClassSummary
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.summary import SelectionSummary, Summary
from olmo_sparsity.wording.captions import class_gates_words
from olmo_sparsity.wording.findings import classes_finding
from olmo_sparsity.wording.gates import gate_in_words, no_fraction_words
from olmo_sparsity.wording.numbers import FRAGILE

from .drawing import FigureOfMeasurement
from .output import Drawn, caption
from .style import LOOKS, blind, error_bars, legend_entry, main_selectors, offsets_in_row, seeing, signed_log

PANELS = ("share of windows\nweighted", "long gain\nnats", "R({k})\ntarget unseen", "gain minus control\nk = {k}, nats")
FAILED = "#EFEFEF"
APART = 0.17  # of the height of a row, between the marks of two selectors
SAME_RULE_LOOK: dict[str, Any] = {"color": "#B00020", "marker": "s", "markerfacecolor": "white"}
OTHERS_LOOK: dict[str, Any] = {"color": "#B00020", "marker": "x"}
WORDS = (
    "Targets by class, the highest mean long gain on top; means with 95% intervals (BCa) over the documents that hold such "
    "targets. Grey: the interval of the class's own gain at the gate, the long gain without the cost of the gap, reaches 0, or "
    "the class has too few documents, and no R(k) is shown. {gates} R(k): of selectors that do not see the target; linear up to "
    "1, logarithmic beyond. Gain minus control: sparse gain minus that of random, of a selector that sees the target minus its "
    "optimism."
)
CONTRAST_WORDS = (
    "Red: the contrast of the classes that ask for the target in the long-range text. The same rule is applied to the null "
    "context: long gain under it of the targets that the rule puts into the class, and of the other targets. Such a rule selects "
    "windows by their outcome, so that even the null context can gain there."
)


def _point(axis: Axes, height: float, *, estimate: Estimate, **looks: Any) -> None:
    axis.errorbar(
        [estimate.mean], [height], xerr=error_bars([estimate]), linestyle="", markersize=4.5, elinewidth=1, capsize=2, **looks
    )  # fmt: skip


def _mark_gates_not_passed(axes: np.ndarray, classes: list[ClassSummary], *, whole: Summary) -> None:
    """Shade the rows of classes whose gate did not pass, and say so in the panel of R(k)."""
    for row, entry in enumerate(classes):
        if entry.summary.gate_passed and whole.gate_passed:
            continue
        if not entry.summary.gate_passed:
            for axis in axes:
                axis.axhspan(row - 0.5, row + 0.5, color=FAILED, linewidth=0, zorder=0)
        words = no_fraction_words(entry.summary.gate)
        if not whole.gate_passed:
            words = f"gate of all windows\n{gate_in_words(whole.gate)}"
        words += ": no R(k)"
        axes[2].text(
            0.5, row, words, ha="center", va="center", fontsize=7.5, transform=axes[2].get_yaxis_transform(),
            bbox={"facecolor": FAILED, "edgecolor": "none", "pad": 1},
        )  # fmt: skip


def _mark_fragile(axis: Axes, classes: list[ClassSummary]) -> None:
    """Say in the panel of R(k) in which rows it is fragile."""
    for row, entry in enumerate(classes):
        has_fraction = any(selection.recovered_fraction is not None for selection in entry.summary.selections)
        if entry.summary.is_fragile and has_fraction:
            axis.text(
                0.98, row + 0.45, FRAGILE, ha="right", va="bottom", fontsize=6.5, transform=axis.get_yaxis_transform()
            )


def minus_control(selection: SelectionSummary) -> Optional[Estimate]:
    """Return the sparse gain minus that of the selection's control: its optimism where it sees the target, else `random`."""
    return selection.corrected_gain_nats if selection.info.sees_target else selection.gain_over_random_nats


def _draw_points(axes: np.ndarray, classes: list[ClassSummary], *, selectors: list[str], k: int) -> None:
    for row, entry in enumerate(classes):
        _point(axes[0], row, estimate=entry.window_share, color="black", marker="o")
        _point(axes[1], row, estimate=entry.summary.long_gain_nats, color="black", marker="o")
        if entry.contrast is not None:
            for offset, estimate, look in (
                (0.2, entry.contrast.null_gain_nats, SAME_RULE_LOOK),
                (0.4, entry.contrast.null_others_gain_nats, OTHERS_LOOK),
            ):
                if estimate is not None:
                    _point(axes[1], row + offset, estimate=estimate, **look)
    for selector, offset in zip(selectors, offsets_in_row(len(selectors), apart=APART), strict=True):
        for row, entry in enumerate(classes):
            selection = entry.summary.at(selector, "real", k)
            fraction = None if selection.info.sees_target else selection.recovered_fraction
            for axis, value in ((axes[2], fraction), (axes[3], minus_control(selection))):
                if value is not None:
                    _point(axis, row + offset, estimate=value, **LOOKS[selector])


def _label_axes(axes: np.ndarray, classes: list[ClassSummary], *, k: int) -> None:
    labels = [
        f"{entry.target_class}\n{entry.summary.num_windows:,} windows, {entry.summary.num_documents:,} documents"
        for entry in classes
    ]
    axes[0].set_yticks(range(len(classes)), map(printable_lines, labels))
    axes[0].set_ylim(len(classes) - 0.5, -0.5)  # the highest long gain on top
    axes[0].set_xlim(left=0)
    for axis, title in zip(axes, PANELS, strict=True):
        axis.set_title(title.format(k=k))
        axis.tick_params(axis="y", labelsize=7.5)
        axis.grid(axis="x", color="#DDDDDD", linewidth=0.5)
        axis.set_axisbelow(True)
    for axis in (axes[1], axes[3]):
        axis.axvline(0, color="grey", linewidth=0.8)
    if not axes[3].containers:  # the panels share the ticks of the classes, which stay
        axes[3].text(0.5, 0.5, "not measured", ha="center", va="center", transform=axes[3].transAxes)
    if axes[2].lines:
        axes[2].axvline(1, color="black", linestyle="--", linewidth=0.9)
        signed_log(axes[2], "x")
    else:
        axes[2].set_xticks([])


def _handles(measured: Measured, classes: list[ClassSummary], *, selectors: list[str]) -> list[Line2D]:
    handles = [legend_entry(name) for name in blind(measured.measurement, selectors)]
    handles += [
        legend_entry(name, label=f"{name} (sees the target)") for name in seeing(measured.measurement, selectors)
    ]
    if any(entry.contrast is not None for entry in classes):
        for label, look in (("same rule, null context", SAME_RULE_LOOK), ("other targets, null context", OTHERS_LOOK)):
            handles.append(Line2D([], [], linestyle="", markersize=4.5, label=label, **look))
    return handles


def draw(measured: Measured) -> Iterator[Drawn]:
    """Draw ``classes``."""
    measurement = measured.measurement
    classes = measured.classes
    k, selectors = measured.summary.end_ks[-1], main_selectors(measurement)
    figure, axes = plt.subplots(
        1,
        4,
        figsize=(10.8, 0.6 * len(classes) + 1.7),
        sharey=True,
        width_ratios=[0.7, 1.1, 1.1, 1.2],
        layout="constrained",
    )
    _mark_gates_not_passed(axes, classes, whole=measured.summary)
    _draw_points(axes, classes, selectors=selectors, k=k)
    _mark_fragile(axes[2], classes)
    _label_axes(axes, classes, k=k)
    words = WORDS.format(gates=class_gates_words(classes))
    if any(entry.contrast is not None for entry in classes):
        words += f" {CONTRAST_WORDS}"
    caption(figure, measured.summary, words=words, handles=_handles(measured, classes, selectors=selectors))
    yield Drawn(figure, "classes", classes_finding(classes, measured.summary), page_inches=1.6)


FIGURE = FigureOfMeasurement(draw)
