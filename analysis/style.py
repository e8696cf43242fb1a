"""What the figures share: the looks of selectors and contexts, and marks for estimates."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any, Optional

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.selectors import SELECTORS, in_legend_order, main_among
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.measurement import Measurement
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.wording.gates import gate_in_words, gate_reason


class _Looks(Mapping[str, dict[str, Any]]):
    """How every known selector is drawn; selectors of one's own are known once their tables are read."""

    def __getitem__(self, name: str) -> dict[str, Any]:
        look = SELECTORS[name].look
        return {"color": look.color, "marker": look.marker}

    def __iter__(self) -> Iterator[str]:
        return iter(in_legend_order(SELECTORS))

    def __len__(self) -> int:
        return len(SELECTORS)


LOOKS = _Looks()
LINE_LOOKS: dict[str, dict[str, Any]] = {
    "real": {"linestyle": "-"},
    "null": {"linestyle": ":"},
    "resampled": {"linestyle": "-."},
}
CONTEXT_WORDS = {
    "real": "real context",
    "null": "null context",
    "resampled": "resampled target (optimism)",
}
RUN_LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    {"color": "#009E73", "marker": "^", "linestyle": "-."},
    {"color": "#CC79A7", "marker": "D", "linestyle": ":"},
    {"color": "#E69F00", "marker": "v", "linestyle": "-"},
    {"color": "#56B4E9", "marker": "P", "linestyle": "--"},
    {"color": "#332288", "marker": "X", "linestyle": "-."},
    {"color": "#000000", "marker": "*", "linestyle": ":"},
)
DODGE = 0.2  # share of the distance between neighbours on a logarithmic axis that lines side by side take, all together
ROW_SHARE = 0.8  # of the height of a row that its marks take at most
TICKS_OF_K = 7  # of an axis of many k, at most, but for the last k
DIGIT = 0.04  # of the axis of k, which a digit of a label takes
SIGNED_LOG_TICKS = (-100, -30, -10, -3, -1, -0.5, 0, 0.5, 1, 3, 10, 30, 100)


def looks_of_runs(number: int) -> tuple[dict[str, Any], ...]:
    """Return the looks of so many runs or models in one figure.

    Raises:
        UserError: they cannot be told apart.
    """
    if number > len(RUN_LOOKS):
        raise UserError(f"{number} runs or models in one figure: at most {len(RUN_LOOKS)} can be told apart")
    return RUN_LOOKS[:number]


def ordered(measurement: Measurement) -> list[str]:
    """Return the measured selectors, in the order of legends."""
    return in_legend_order(measurement.selectors)


def main_selectors(measurement: Measurement) -> list[str]:
    """Return the few selectors to draw where there is no room for nine; all of them, if none of the few was measured."""
    names = ordered(measurement)
    return main_among(names) or names


def seeing(measurement: Measurement, selectors: Sequence[str]) -> list[str]:
    """Return the selectors among these that see the target: part of their gain is optimism."""
    return [name for name in selectors if measurement.selectors[name].sees_target]


def blind(measurement: Measurement, selectors: Sequence[str]) -> list[str]:
    """Return the selectors among these that do not see the target, controls included."""
    return [name for name in selectors if not measurement.selectors[name].sees_target]


def filled(selector: str) -> dict[str, Any]:
    """Return the looks of a selector, with a marker that can be filled."""
    return {**LOOKS[selector], "marker": "X"} if selector == "random" else LOOKS[selector]


def legend_entry(selector: str, *, label: Optional[str] = None) -> Line2D:
    """Return the legend entry of a selector, with its name or another label."""
    return Line2D([], [], linestyle="-", markersize=4.5, label=label or selector, **LOOKS[selector])


def context_entry(context: str) -> Line2D:
    """Return the legend entry of a kind of line."""
    return Line2D([], [], color="grey", label=CONTEXT_WORDS[context], **LINE_LOOKS[context])


def dodges(number: int, positions: Sequence[float]) -> list[float]:
    """Return factors around 1 that set lines side by side on a logarithmic axis, none over the bars of another.

    Args:
        number: number of lines.
        positions: where each line has points, rising; the nearest two, at most one doubling apart, determine how far apart
            the lines are.
    """
    spacing = min([*np.diff(np.log(positions)), np.log(2)])  # far neighbours leave no room for a wrong reading
    offsets = np.linspace(-0.5, 0.5, number) if number > 1 else np.zeros(number)
    return [float(factor) for factor in np.exp(DODGE * spacing * offsets)]


def offsets_in_row(number: int, *, apart: float) -> list[float]:
    """Return how far from the middle of a row of height 1 its marks stand, ``apart`` or less, so that none is in another row."""
    step = min(apart, ROW_SHARE / max(1, number))
    return [step * (i - (number - 1) / 2) for i in range(number)]


def few_ticks_of_k(ks: Sequence[int]) -> list[int]:
    """Return which of many k, rising, have a label on a logarithmic axis: powers of two, 0 if it is there, the last k."""
    powers = [k for k in ks if k & (k - 1) == 0]
    shown = powers[:: -(-len(powers) // TICKS_OF_K)]
    if ks[-1] in shown:
        return shown
    room = _room_of_label(ks)
    return [k for k in shown if k == 0 or np.log2(ks[-1] / k) >= room] + [ks[-1]]


def ticks_of_k(ks: Sequence[int]) -> list[int]:
    """Return which k, rising from 1 or more, have a label on a logarithmic axis: all, where no label is over another."""
    has_room = bool((np.diff(np.log2(ks)) >= _room_of_label(ks)).all())
    return list(ks) if has_room else few_ticks_of_k(ks)


def _room_of_label(ks: Sequence[int]) -> float:
    """Return the room that the label of the last k takes, in powers of two; below 1 the axis is linear."""
    octaves = np.log2(ks[-1]) + 1 if ks[0] == 0 else np.log2(ks[-1] / ks[0])
    return float(DIGIT * len(str(ks[-1])) * octaves)


def error_bars(estimates: Sequence[Estimate]) -> Optional[np.ndarray]:
    """Return how far each interval extends below and above its mean, [2, estimates]; None if one has no interval."""
    if not all(estimate.has_interval for estimate in estimates):
        return None
    bounds = np.array([[estimate.low, estimate.mean, estimate.high] for estimate in estimates], dtype=float)
    return np.abs(np.diff(bounds, axis=1)).T


def _with_gaps(estimates: Sequence[Optional[Estimate]]) -> np.ndarray:
    """Return means and lower and upper ends of the intervals, fp64 [3, estimates]; NaN where there are none."""
    numbers = [(None, None, None) if e is None else (e.mean, e.low, e.high) for e in estimates]
    return np.array(numbers, dtype=float).reshape(-1, 3).T  # None becomes NaN


def band(axis: Axes, x: Any, *, estimates: Sequence[Optional[Estimate]], color: str, **looks: Any) -> None:
    """Draw estimates as a line and their intervals as a band, of one place as a bar, with gaps where there are none."""
    means, lows, highs = _with_gaps(estimates)
    axis.plot(x, means, color=color, linewidth=1.3, markersize=3.5, **looks)
    if len(x) == 1:  # a band has no width there
        axis.vlines(x, lows, highs, color=color, linewidth=1.1)
    else:
        axis.fill_between(x, lows, highs, color=color, alpha=0.16, linewidth=0)


def mark_of_one(x: Sized, marker: str = "_") -> str:
    """Return the marker of a line that has none: of one place alone, where a line has no length."""
    return marker if len(x) == 1 else ""


def signed_log(axis: Axes, which: str) -> None:
    """Make the axis ``x`` or ``y`` linear from -1 to 1 and logarithmic beyond.

    It is for R(k), where optimism may be worth ten times the long gain.
    """
    if which == "x":
        axis.set_xscale("symlog", linthresh=1)
    else:
        axis.set_yscale("symlog", linthresh=1)
    scaled = axis.xaxis if which == "x" else axis.yaxis
    low, high = scaled.get_view_interval()
    ticks = [tick for tick in SIGNED_LOG_TICKS if low <= tick <= high]
    if len(ticks) < 3:  # a short piece of the linear part
        ticks = [
            tick for tick in sorted({1, *np.asarray(MaxNLocator(4).tick_values(low, high))}) if low <= tick <= high
        ]
    scaled.set_ticks(ticks, [f"{tick:g}" for tick in ticks])
    scaled.set_ticks([], minor=True)


def write_gate_not_passed(axis: Axes, summary: Summary) -> None:
    """Write why the gate failed, or is not assessed, into a panel that has nothing to show for that reason."""
    write_nothing_measured(
        axis, f"gate {gate_in_words(summary.gate)}:\n" + "\n".join(textwrap.wrap(gate_reason(summary), 22))
    )


def write_nothing_measured(axis: Axes, words: str = "not measured") -> None:
    """Say in a panel that nothing which it could show was measured."""
    axis.text(0.5, 0.5, words, ha="center", va="center", transform=axis.transAxes)
    axis.set_xticks([])
    axis.set_yticks([])
