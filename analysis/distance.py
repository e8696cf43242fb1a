"""Figure of distances: how far back the influential tokens lie, compared with a random choice."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from olmo_sparsity.records.selectors import CONTROLS, in_legend_order
from olmo_sparsity.statistics.single.breakdowns import DistanceBin, has_log_distances
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.measurement import CONTEXTS
from olmo_sparsity.wording.findings import distance_finding
from olmo_sparsity.wording.setup import null_sentence
from olmo_sparsity.wording.units import unit_words

from .drawing import FigureOfMeasurement
from .output import Drawn, caption
from .style import LINE_LOOKS, LOOKS, band, blind, context_entry, seeing

MAX_COLUMNS = 4
MAX_TICKS = 6  # of a panel's logarithmic axis


def _panel(axis: Axes, selector: str, *, bins_of_context: dict[str, tuple[DistanceBin, ...]], relative: bool) -> None:
    """Draw the shares of one selector in each context; ``relative`` to those of a random choice, where bins differ in width."""
    for context, bins in bins_of_context.items():
        looks = LOOKS[selector] if context == "real" else {"color": "black"}
        shares = [b.relative_share if relative else b.share for b in bins]
        band(axis, [b.center_tokens for b in bins], estimates=shares, **looks, **LINE_LOOKS[context])
    uniform = bins_of_context["real"]
    levels = [1.0 if relative else b.uniform for b in uniform]
    axis.plot([b.center_tokens for b in uniform], levels, color="grey", linestyle="--", linewidth=1)
    axis.set_xlabel("distance to the target, tokens")


def _make_logarithmic(axis: Axes, bins: tuple[DistanceBin, ...]) -> None:
    """Make the axis of distances logarithmic, with ticks at powers of two where there are some, else at a few distances."""
    first, last = bins[0].from_tokens, bins[-1].to_tokens
    powers = [2**i for i in range(last.bit_length()) if first <= 2**i <= last]
    every = -(-len(powers) // MAX_TICKS)
    few = [round(first * (last / first) ** (i / 3)) for i in range(4)]
    ticks = powers[::-1][::every] if len(powers) > 2 else few
    axis.set_xscale("log")
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.minorticks_off()


def draw(measured: Measured) -> Iterator[Drawn]:
    """Draw ``distance``: the share of the k most influential tokens in each bin of distances."""
    measurement = measured.measurement
    k, is_log = measured.summary.end_ks[-1], has_log_distances(measurement.lengths)
    # The distances of controls are known without a measurement.
    names = in_legend_order(measurement.selectors)
    selectors = [name for name in names if name not in CONTROLS] or names
    bins_of = {(e.selector, e.context): e.bins for e in measured.distances if e.k == k}
    widths = {of.to_tokens - of.from_tokens for of in bins_of[selectors[0], "real"]}
    is_relative = is_log or len(widths) > 1  # else the widths of bins would look like shares that rise and fall
    num_columns = min(MAX_COLUMNS, len(selectors))
    num_rows = -(-len(selectors) // num_columns)
    figure, axes = plt.subplots(
        num_rows,
        num_columns,
        figsize=(max(5.2, 2.9 * num_columns), 2.5 * num_rows + 0.7),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis in axes.flat[len(selectors) :]:
        axis.axis("off")
    for axis, selector in zip(axes.flat, selectors, strict=False):
        bins_of_context = {context: bins_of[selector, context] for context in CONTEXTS}
        _panel(axis, selector, bins_of_context=bins_of_context, relative=is_relative)
        if is_log:
            _make_logarithmic(axis, bins_of[selector, "real"])
        axis.set_title(f"{selector}, k = {k}")
    axes[0, 0].set_ylim(bottom=0)
    units = unit_words(measurement.unit, measurement.setup.visibility)
    of_units = "" if measurement.unit == "token" else "the tokens of "
    share_words = f"share of {of_units or 'the '}" + (f"\n{units}" if of_units else f"influential {units}")
    for axis in axes[:, 0]:
        axis.set_ylabel(share_words + ("\nover that of a random choice" if is_relative else ""))
    handles = [context_entry(context) for context in CONTEXTS]
    handles.append(Line2D([], [], color="grey", linestyle="--", label="uniform"))
    words = (
        f"Where {of_units}the {k} most influential long-range {units} of a window lie: means over windows; bands: 95% intervals "
        f"over documents. {null_sentence(measured.summary)}"
    )
    if is_relative:
        bins_words = "have about the same width on the logarithmic axis" if is_log else "differ in width by a token"
        words += f" Bins {bins_words}; their shares are divided by those of a random choice."
    if seeing(measurement, selectors):
        words += (
            " Of what a selector that sees the target chooses, part is chosen for this target alone, and lies anywhere."
        )
    told = next(iter(blind(measurement, selectors)), selectors[0])
    finding = distance_finding(measured.distances, measured.summary, selector=told, k=k)
    caption(figure, measured.summary, words=words, handles=handles)
    yield Drawn(figure, "distance", finding)


FIGURE = FigureOfMeasurement(draw)
