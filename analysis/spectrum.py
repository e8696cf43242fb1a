"""Figure of the dependency spectrum: the share of the targets for which k tokens are enough, chosen, nearest and at random."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Optional

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter

from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.measurement import CONTEXTS
from olmo_sparsity.statistics.single.model_setup import Visibility
from olmo_sparsity.statistics.single.spectrum import NEAREST, RANDOM, TOLERANCES, Spectra, Spectrum
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.wording.spectrum import rounding_words, spectrum_finding, spectrum_sentences
from olmo_sparsity.wording.units import k_words, units_of

from .drawing import FigureOfMeasurement
from .output import Drawn, caption
from .style import LINE_LOOKS, LOOKS, context_entry, few_ticks_of_k, write_nothing_measured

WORDS = (
    "Share of the targets that need at most k long-range {units}: the smallest measured k of which KL(p_all, p_{{J_k}}) is at "
    "most the tolerance; at k = 0 the local tokens suffice. Bands: simultaneous 95% bands by bootstrap over documents. "
    "{sentences} A line ends just behind the largest measured k; what is missing to 100% needs more."
)
ROW_LOOK: dict[str, Any] = {"color": "grey", "linewidth": 1}
END = 1.25  # of the largest measured k: where lines end, so that what it shows has a width


def family_label(family: str, visibility: Visibility) -> str:
    """Return what a family is called in the legend, and what its k says of a target."""
    if family == RANDOM:
        return family
    if family == NEAREST:  # what is far may reach a target by way of near entries
        return f"{family} (how far{' attention goes' if visibility == 'contextual' else ''})"
    return f"chosen by {family} (how many)"


def families_drawn(spectra: Spectra, summary: Summary) -> list[str]:
    """Return the families of the figure, as far as they were measured: a choice, the nearest, and random ones."""
    chosen = spectra.chosen(summary.blind_selectors)
    return [name for name in (chosen, NEAREST, RANDOM) if name is not None and spectra.of(name) is not None]


def _draw(axis: Axes, spectrum: Optional[Spectrum]) -> None:
    """Draw a distribution as steps; of the real context with its band."""
    if spectrum is None:
        return
    family, context, *_ = spectrum.curve
    color = LOOKS[family]["color"]
    shares = [*spectrum.shares, spectrum.shares[-1]]
    numbers = np.array([(of.mean, of.low, of.high) for of in shares], dtype=float).T  # None becomes NaN
    places = [*spectrum.ks, END * spectrum.ks[-1]]
    axis.step(
        places,
        numbers[0],
        where="post",
        color=color,
        linewidth=1.6 if context == "real" else 1.1,
        **LINE_LOOKS[context],
    )
    if context == "real":
        axis.fill_between(places, numbers[1], numbers[2], step="post", color=color, alpha=0.16, linewidth=0)


def _set_axes(axis: Axes, spectra: Spectra, *, label: str) -> None:
    ks = sorted(set(next(iter(spectra.by_curve.values())).ks))
    axis.set_xscale("symlog", base=2, linthresh=1)
    shown = few_ticks_of_k(ks)
    axis.set_xticks(shown, [str(k) for k in shown])
    axis.minorticks_off()
    axis.set_xlim(0, END * ks[-1])
    axis.set_ylim(0, 1.01)
    axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    axis.grid(color="#DDDDDD", linewidth=0.5)
    axis.set_axisbelow(True)
    axis.set_xlabel(label)
    if spectra.row_k:
        axis.axvline(spectra.row_k, **ROW_LOOK)


def draw(measured: Measured) -> Iterator[Drawn]:
    """Draw ``spectrum``: a panel a tolerance."""
    summary, spectra = measured.summary, measured.spectra
    families = families_drawn(spectra, summary)
    figure, axes = plt.subplots(1, len(TOLERANCES), figsize=(10.8, 3.3), sharey=True, layout="constrained")
    for axis, tolerance in zip(axes.flat, TOLERANCES, strict=True):
        axis.set_title(f"within {tolerance:g} nats")
        for family in reversed(families):
            for context in CONTEXTS:
                _draw(axis, spectra.of(family, context, tolerance=tolerance))
        if not axis.lines:
            write_nothing_measured(axis)
            continue
        _set_axes(axis, spectra, label=k_words(summary.unit, summary.setup.visibility))
    visibility = summary.setup.visibility
    handles = [Line2D([], [], color=LOOKS[name]["color"], label=family_label(name, visibility)) for name in families]
    handles += [context_entry(context) for context in CONTEXTS]
    if spectra.row_k:
        handles.append(Line2D([], [], label="the nearest up to here are a training row", **ROW_LOOK))
    axes[0].set_ylabel("targets that need at most k")
    sentences = " ".join(spectrum_sentences(spectra, summary)) + rounding_words(spectra)
    caption(figure, summary, words=WORDS.format(units=units_of(summary), sentences=sentences), handles=handles)
    yield Drawn(figure, "spectrum", spectrum_finding(spectra, summary))


FIGURE = FigureOfMeasurement(draw)
