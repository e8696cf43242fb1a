"""Figure of what k tokens are worth, for every selector, with 95% intervals.

Of selectors that do not see the target: R(k), the gain over random, and the excess over the null context. Of selectors that
see it: sparse gain and optimism, corrected gain, and the excess over the null context.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Optional

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.wording.findings import gains_finding
from olmo_sparsity.wording.numbers import FRAGILE
from olmo_sparsity.wording.setup import null_sentence
from olmo_sparsity.wording.units import k_words

from .drawing import FigureOfMeasurement
from .output import Drawn, caption
from .style import (
    LINE_LOOKS,
    LOOKS,
    blind,
    context_entry,
    dodges,
    error_bars,
    legend_entry,
    ordered,
    seeing,
    signed_log,
    ticks_of_k,
    write_gate_not_passed,
    write_nothing_measured,
)

BLIND_WORDS = (
    "Target unseen: selectors that do not see the target, and the controls nearest and random; R(k) is mean sparse gain over "
    "mean long gain (null context: over the long gain of the real one); the gain over random, sparse gain minus that of random "
    "window by window, holds no optimism."
)
SEEING_WORDS = (
    "Target seen: part of what these selectors gain is optimism, how much more a choice gains on the label that it was made for "
    "than on another one, of labels drawn from the short-context prediction; corrected gain is sparse gain minus optimism, and "
    "dotted, under the null context, the placebo, which must not be above 0."
)
WORDS = (
    "Means over windows with 95% intervals by bootstrap over documents. {groups} Real minus null: sparse gain minus that under "
    "the null context, window by window, no estimate of the corrected gain, since the null context misleads blind choices as "
    "well. {null} Black dashed lines: 1, or the mean long gain. Fractions: linear up to 1, logarithmic beyond."
)


@dataclass(frozen=True)
class Line:
    """One line of a panel.

    Attributes:
        quantity: name of the quantity, one of ``SELECTION_QUANTITIES``.
        context: context of the entry of the summary that holds it.
        look: how the line is drawn, a key of ``LINE_LOOKS``.
    """

    quantity: str
    context: str = "real"
    look: str = "real"


@dataclass(frozen=True)
class Panel:
    """What one panel shows.

    Attributes:
        title: title of the panel.
        label: label of its vertical axis.
        lines: the lines of each selector.
        beside_long_gain: True if the mean long gain is drawn for comparison.
    """

    title: str
    label: str
    lines: tuple[Line, ...]
    beside_long_gain: bool = False

    @property
    def is_fraction(self) -> bool:
        """True if the panel shows R(k), which a failed gate hides."""
        return self.lines[0].quantity == "recovered_fraction"


NULL_PANEL = Panel("real minus null", "mean, nats", (Line("excess_gain_nats"),))
BLIND_PANELS = (
    Panel(
        "R(k)",
        "recovered fraction",
        (Line("recovered_fraction"), Line("recovered_fraction", "null", "null")),
    ),
    Panel(
        "gain over random",
        "mean, nats",
        (Line("gain_over_random_nats"), Line("gain_over_random_nats", "null", "null")),
        beside_long_gain=True,
    ),
    NULL_PANEL,
)
SEEING_PANELS = (
    Panel(
        "sparse gain, optimism",
        "mean, nats",
        (Line("gain_sparse_nats"), Line("optimism_nats", "real", "resampled")),
        beside_long_gain=True,
    ),
    Panel(
        "corrected gain",
        "mean, nats",
        (Line("corrected_gain_nats"), Line("corrected_gain_nats", "null", "null")),
        beside_long_gain=True,
    ),
    NULL_PANEL,
)


def draw_line(
    axis: Axes, selector: str, *, line: Line, summary: Summary, spread: float, alpha: Optional[float] = None
) -> None:
    """Draw one quantity of a selector.

    Args:
        axis: the panel.
        selector: its name.
        line: the quantity.
        summary: what was measured.
        spread: factor that separates the selectors on the logarithmic axis.
        alpha: opacity; None: 1 for a line of the real context, less for its controls.
    """
    estimates = {k: summary.at(selector, line.context, k).estimate(line.quantity) for k in summary.ks}
    drawn = {k: estimate for k, estimate in estimates.items() if estimate is not None}
    if not drawn:
        return
    is_real = line.look == "real"
    axis.errorbar(
        [k * spread for k in drawn], [estimate.mean for estimate in drawn.values()], yerr=error_bars(list(drawn.values())),
        **LINE_LOOKS[line.look], markersize=4, linewidth=1.1 if is_real else 0.8, elinewidth=0.8,
        alpha=(1.0 if is_real else 0.6) if alpha is None else alpha, markerfacecolor=None if is_real else "white",
        **LOOKS[selector],
    )  # fmt: skip


def spreads(selectors: list[str], ks: list[int]) -> dict[str, float]:
    """Return the factors that separate the selectors on the axis of k."""
    return dict(zip(selectors, dodges(len(selectors), ks), strict=True))


def set_axis_of_k(axis: Axes, summary: Summary) -> None:
    """Make the horizontal axis that of k."""
    axis.set_xscale("log", base=2)
    shown = ticks_of_k(summary.ks)
    axis.set_xticks(shown, [str(k) for k in shown])
    axis.minorticks_off()
    axis.set_xlabel(k_words(summary.unit, summary.setup.visibility))
    axis.axhline(0, color="grey", linewidth=0.5)


def title_of_fraction(title: str, summary: Summary) -> str:
    """Return the title of a panel of R(k), which says where R(k) is fragile."""
    return f"{title}, {FRAGILE}" if summary.is_fragile else title


def _draw_panel(axis: Axes, panel: Panel, *, summary: Summary, selectors: list[str], group: str) -> None:
    title = title_of_fraction(panel.title, summary) if panel.is_fraction else panel.title
    axis.set_title(f"{title}\n{group}")
    axis.set_ylabel(panel.label)
    if not summary.gate_passed and panel.is_fraction:
        write_gate_not_passed(axis, summary)
        return
    for selector, spread in spreads(selectors, summary.ks).items():
        for line in panel.lines:
            draw_line(axis, selector, line=line, summary=summary, spread=spread)
    if not axis.lines:
        write_nothing_measured(axis)
        return
    set_axis_of_k(axis, summary)
    if panel.is_fraction:
        axis.axhline(1, color="black", linestyle="--", linewidth=1)
        signed_log(axis, "y")
    if panel.beside_long_gain:
        axis.axhline(summary.long_gain_nats.mean, color="black", linestyle="--", linewidth=1)
        if summary.long_gain_nats.bounds is not None:
            axis.axhspan(*summary.long_gain_nats.bounds, color="grey", alpha=0.25, linewidth=0)


def draw(measured: Measured) -> Iterator[Drawn]:
    """Draw ``recovered-fraction``: a row of panels for selectors that do not see the target, and one for those that do."""
    summary, selectors = measured.summary, ordered(measured.measurement)
    unseen, seen = blind(measured.measurement, selectors), seeing(measured.measurement, selectors)
    rows = [("target unseen", BLIND_PANELS, unseen, BLIND_WORDS), ("target seen", SEEING_PANELS, seen, SEEING_WORDS)]
    rows = [row for row in rows if row[2]]
    figure, axes = plt.subplots(len(rows), 3, figsize=(10.8, 3.5 * len(rows)), squeeze=False, layout="constrained")
    for axes_of_row, (group, panels, names, _) in zip(axes, rows, strict=True):
        for axis, panel in zip(axes_of_row, panels, strict=True):
            _draw_panel(axis, panel, summary=summary, selectors=names, group=group)
    handles = [legend_entry(name) for name in selectors]
    handles += [context_entry(context) for context in ("real", "null", *(["resampled"] if seen else []))]
    handles.append(Line2D([], [], color="black", linestyle="--", linewidth=1, label="1, or long gain"))
    groups = " ".join(words for *_, words in rows)
    caption(figure, summary, words=WORDS.format(groups=groups, null=null_sentence(summary)), handles=handles)
    yield Drawn(figure, "recovered-fraction", gains_finding(summary))


FIGURE = FigureOfMeasurement(draw)
