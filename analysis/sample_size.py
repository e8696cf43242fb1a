"""Figure of sample size: gains, R(k) and the smallest k as a measurement of fewer windows gives them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from olmo_sparsity.statistics.single.breakdowns import by_sample_size
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.wording.findings import sizes_finding
from olmo_sparsity.wording.gates import no_fraction_words
from olmo_sparsity.wording.numbers import FRAGILE
from olmo_sparsity.wording.units import unit_words

from .drawing import FigureOfMeasurement
from .output import FAILED_COLOUR, Drawn, caption
from .recovered_fraction import title_of_fraction
from .style import (
    LOOKS,
    bars_side_by_side,
    blind,
    dodges,
    legend_entry,
    main_selectors,
    offsets_in_row,
    seeing,
    signed_log,
    write_nothing_measured,
)

FRACTION = 0.8
MAX_STEPS = 14  # with a label, of the axis of the smallest k
GATE_LOOKS: dict[str, dict[str, Any]] = {
    "gate_gain_nats": {"color": "black", "marker": "o", "label": "long gain"},
    "gain_beyond_nats": {
        "color": FAILED_COLOUR,
        "marker": "v",
        "linestyle": "--",
        "label": "gain beyond the training row",
    },
}
WORDS = (
    "The numbers of the first n windows, side by side; bars: 95% intervals over documents. On the same text, window i does not "
    "depend on how many windows are measured. Its weight may; here it is that of the whole measurement, so that the numbers of "
    "few windows are only nearly those of a measurement of so many. Enough windows were measured if the numbers no longer change "
    "and the intervals are as narrow as the question requires. R(k), smallest k and gain over random are of selectors that do "
    "not see the target, corrected gain of those that do. R(k): linear up to 1, logarithmic beyond. Long gain and gain beyond "
    "the row are what the gates judge, without the cost of the gap in the position IDs."
)


def _draw_smallest(axis: Axes, summaries: Sequence[Summary], *, selectors: list[str]) -> None:
    """Draw the smallest k as steps of equal height, the last for more than the largest measured k; intervals as bars."""
    ks = summaries[-1].ks
    height = {k: i for i, k in enumerate(ks)} | {None: len(ks)}
    shifts = dodges(len(selectors), [summary.num_windows for summary in summaries])
    for selector, shift, offset in zip(selectors, shifts, offsets_in_row(len(selectors), apart=0.09), strict=True):
        sizes, values, below, above = [], [], [], []
        for summary in summaries:
            smallest = summary.sparsity_at(selector, FRACTION).smallest_k
            if smallest is not None:
                sizes.append(summary.num_windows * shift)
                value, low, high = height[smallest.value], height[smallest.low], height[smallest.high]
                values.append(value + offset)
                below.append(value - low)
                above.append(high - value)
        axis.errorbar(
            sizes, values, yerr=[below, above], linestyle="-", linewidth=0.6, markersize=3, elinewidth=0.9,
            **LOOKS[selector],
        )  # fmt: skip
    labels = [*(str(k) for k in ks), f">{ks[-1]}"]
    every = -(-len(labels) // MAX_STEPS)
    shown = range(len(ks) % every, len(labels), every)  # to the last, which is more than every k
    axis.set_yticks(shown, [labels[step] for step in shown])
    axis.set_ylim(-0.5, len(ks) + 0.5)
    axis.set_title(f"smallest k with R(k) at least {FRACTION}")
    axis.set_ylabel(f"k, long-range {unit_words(summaries[-1].unit, summaries[-1].setup.visibility)}")


def _draw_gates(axis: Axes, summaries: Sequence[Summary]) -> None:
    """Draw the means that the gates test: the long gain, without what the gap costs, and the gain beyond the training row where
    that is another."""
    sizes, looks = [summary.num_windows for summary in summaries], _gate_looks(summaries[-1])
    bars_side_by_side(
        axis, sizes, [(look, [summary.of_windows(name) for summary in summaries]) for name, look in looks.items()]
    )
    axis.axhline(0, color="grey", linewidth=0.8)
    where = "\nall and beyond the row" if len(looks) == 2 else "\nall beyond the row"
    axis.set_title("long gain" if summaries[-1].gain_beyond_nats is None else f"long gain{where}")
    axis.set_ylabel("nats")


def _gate_looks(summary: Summary) -> dict[str, dict[str, Any]]:
    """Return the gains that the gates test, with their looks; one, where there is no other or a row has only the local tokens."""
    has_other = summary.gain_beyond_nats is not None and summary.lengths.train_len != summary.lengths.local_len
    return {name: look for name, look in GATE_LOOKS.items() if has_other or name == "gate_gain_nats"}


def _draw_gains(
    axis: Axes, summaries: Sequence[Summary], *, quantity: str, k: int, selectors: list[str], title: str
) -> None:
    gains = {name: [summary.at(name, "real", k).estimate(quantity) for summary in summaries] for name in selectors}
    lines = [(LOOKS[name], of_name) for name, of_name in gains.items() if any(gain is not None for gain in of_name)]
    bars_side_by_side(axis, [summary.num_windows for summary in summaries], lines)
    axis.set_title(title)
    if not axis.lines:
        write_nothing_measured(axis)
        return
    axis.axhline(0, color="grey", linewidth=0.8)
    axis.set_ylabel("nats")


def _draw_recovered_fraction(axis: Axes, summaries: Sequence[Summary], *, selectors: list[str]) -> None:
    sizes, k = [summary.num_windows for summary in summaries], summaries[-1].end_ks[-1]
    fractions = [
        (LOOKS[name], [summary.at(name, "real", k).recovered_fraction for summary in summaries]) for name in selectors
    ]
    bars_side_by_side(axis, sizes, fractions)
    axis.axhline(1, color="black", linestyle="--", linewidth=0.9)
    signed_log(axis, "y")
    axis.set_title(title_of_fraction(f"R({k})", summaries[-1]))
    axis.set_ylabel("recovered fraction")


def _mark_sizes(axis: Axes, summaries: Sequence[Summary]) -> None:
    """Write at each number of windows whether there is no R(k), or a fragile one."""
    for summary in summaries:
        if not (summary.gate_passed and summaries[-1].gate_passed):
            words = "gate of all failed" if summary.gate_passed else no_fraction_words(summary.gate)
        elif summary.is_fragile:
            words = FRAGILE
        else:
            continue
        axis.text(
            summary.num_windows, 0.02, words, transform=axis.get_xaxis_transform(), rotation=90, ha="center", va="bottom",
            fontsize=6.5, color="#505050", bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5, "alpha": 0.8},
        )  # fmt: skip


def draw(measured: Measured) -> Iterator[Drawn]:
    """Draw ``sample-size``."""
    measurement, selectors = measured.measurement, main_selectors(measured.measurement)
    summaries = by_sample_size(measurement)
    unseen, seen = blind(measurement, selectors), seeing(measurement, selectors)
    sizes, ks = [summary.num_windows for summary in summaries], summaries[-1].end_ks
    figure, axes = plt.subplots(2, 3, figsize=(10.8, 6.2), sharex=True, layout="constrained")
    (gates, fraction, smallest), (first, last, corrected) = axes
    _draw_gates(gates, summaries)
    _draw_recovered_fraction(fraction, summaries, selectors=unseen)
    _draw_smallest(smallest, summaries, selectors=unseen)
    for axis, quantity, k, names, words in (
        (first, "gain_over_random_nats", ks[0], unseen, "gain over random"),
        (last, "gain_over_random_nats", ks[-1], unseen, "gain over random"),
        (corrected, "corrected_gain_nats", ks[-1], seen, "corrected gain"),
    ):
        _draw_gains(axis, summaries, quantity=quantity, k=k, selectors=names, title=f"{words}\nk = {k}")
    for axis in axes.flat:
        axis.set_xscale("log")
        axis.set_xticks(sizes, [str(size) for size in sizes], rotation=45)
        axis.set_xticks([], minor=True)
    for axis in axes[1]:
        axis.set_xlabel("windows")
    for axis in (fraction, smallest):
        _mark_sizes(axis, summaries)
    handles = [legend_entry(name) for name in selectors]
    handles += [Line2D([], [], markersize=4, **look) for look in _gate_looks(summaries[-1]).values()]
    caption(figure, measured.summary, words=WORDS, handles=handles)
    yield Drawn(figure, "sample-size", sizes_finding(summaries), one_column=2)


FIGURE = FigureOfMeasurement(draw)

if __name__ == "__main__":
    FIGURE.command()
