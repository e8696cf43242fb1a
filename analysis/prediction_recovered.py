"""Figure of D(k), the share of the prediction that k tokens recover, always beside R(k), random and the null context."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.wording.findings import reaction_finding
from olmo_sparsity.wording.numbers import no_interval_words
from olmo_sparsity.wording.units import units_of

from .drawing import FigureOfMeasurement
from .output import Drawn, caption
from .recovered_fraction import Line, draw_line, set_axis_of_k, spreads, title_of_fraction
from .style import (
    blind,
    context_entry,
    legend_entry,
    ordered,
    signed_log,
    write_gate_not_passed,
)

WORDS = (
    "D(k): of the divergence KL(p_all, p_{{}}) between the prediction with all tokens and that with the local tokens alone, the "
    "share that k {units} take away. No label enters: D says how few {units} reproduce the model's reaction to the long context, "
    "useful or not, and is no evidence that the context helps. Compare it with random and with D under the null context. "
    "R(k) says what the {units} are worth; pale: selectors that see the "
    "target, whose R(k) holds their optimism. "
    "Means over windows with 95% intervals by bootstrap over documents; vertical axes linear up to 1, logarithmic beyond."
)
PALE = 0.3


PANELS = {
    "D(k), real context": Line("prediction_recovered"),
    "D(k), null context": Line("prediction_recovered", "null", "null"),
}


def _set_axes(axis: Axes, summary: Summary) -> None:
    set_axis_of_k(axis, summary)
    axis.axhline(1, color="black", linestyle="--", linewidth=1)
    signed_log(axis, "y")


def _draw_recovered_fraction(axis: Axes, summary: Summary, *, selectors: list[str], unseen: list[str]) -> None:
    axis.set_title(title_of_fraction("R(k), real context", summary))
    axis.set_ylabel("recovered fraction")
    if not summary.gate_passed:
        write_gate_not_passed(axis, summary)
        return
    for selector, spread in spreads(selectors, summary.ks).items():
        alpha = 1.0 if selector in unseen else PALE
        draw_line(axis, selector, line=Line("recovered_fraction"), summary=summary, spread=spread, alpha=alpha)
    _set_axes(axis, summary)


def draw(measured: Measured) -> Iterator[Drawn]:
    """Draw ``prediction-recovered``."""
    summary, selectors = measured.summary, ordered(measured.measurement)
    figure, axes = plt.subplots(1, 3, figsize=(13.5, 3.8), layout="constrained")
    *of_prediction, of_gain = axes.flat
    for axis, (title, line) in zip(of_prediction, PANELS.items(), strict=True):
        axis.set_title(title)
        axis.set_ylabel("prediction recovered")
        for selector, spread in spreads(selectors, summary.ks).items():
            draw_line(axis, selector, line=line, summary=summary, spread=spread, alpha=1.0)
        _set_axes(axis, summary)
    limits = [axis.get_ylim() for axis in of_prediction]
    for axis in of_prediction:  # the same for all, so that they can be compared by eye
        axis.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
        signed_log(axis, "y")
    _draw_recovered_fraction(of_gain, summary, selectors=selectors, unseen=blind(measured.measurement, selectors))
    handles = [legend_entry(name) for name in selectors]
    handles += [context_entry(context) for context in ("real", "null")]
    words = f"{WORDS.format(units=units_of(summary))} {no_interval_words('D(k)', summary.num_documents)}".rstrip()
    caption(figure, summary, words=words, handles=handles)
    yield Drawn(figure, "prediction-recovered", reaction_finding(summary))


FIGURE = FigureOfMeasurement(draw)
