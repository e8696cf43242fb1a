"""Figure of the agreement between selectors: overlap of their choices and correlation of their rankings, for each pair."""

from __future__ import annotations

from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from olmo_sparsity.records.selectors import SELECTORS, in_legend_order
from olmo_sparsity.statistics.single.agreement import Agreement, agreement
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.wording.findings import agreement_finding
from olmo_sparsity.wording.numbers import fixed
from olmo_sparsity.wording.units import unit_words

from .drawing import FigureOfMeasurement
from .output import Drawn, caption


def _heatmap(figure: Figure, axis: Axes, *, names: list[str], values: np.ndarray, low: float, cmap: str) -> None:
    """Draw numbers in the cells below the diagonal; ``values`` is [names, names], NaN where there is none."""
    image = axis.imshow(values, vmin=low, vmax=1, cmap=cmap)
    for row, column in zip(*np.nonzero(np.isfinite(values)), strict=True):
        value = values[row, column]
        red, green, blue, _ = image.cmap(image.norm(value))
        is_dark = 0.3 * red + 0.59 * green + 0.11 * blue < 0.5
        axis.text(
            column,
            row,
            fixed(value, 2),
            ha="center",
            va="center",
            fontsize=7.5,
            color="white" if is_dark else "black",
        )
    axis.set_xticks(range(len(names) - 1), names[:-1], rotation=45, ha="right", rotation_mode="anchor")
    axis.set_yticks(range(1, len(names)), names[1:])
    axis.set_xlim(-0.5, len(names) - 1.5)
    axis.set_ylim(len(names) - 0.5, 0.5)
    axis.spines[:].set_visible(False)
    axis.tick_params(length=0)
    figure.colorbar(image, ax=axis, shrink=0.8)


def _matrices(pairs: list[Agreement], names: list[str], *, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return overlap and rank correlation, [names, names] each; NaN on and above the diagonal, and where undefined."""
    overlap, correlation = np.full((2, len(names), len(names)), np.nan)
    for pair in pairs:
        column, row = sorted(names.index(name) for name in pair.selectors)
        share = pair.overlap_at(k).share
        if share is not None:
            overlap[row, column] = share.mean
        if pair.rank_correlation is not None:
            correlation[row, column] = pair.rank_correlation.mean
    return overlap, correlation


def _words(pairs: list[Agreement], names: list[str], *, k: int, screened: bool) -> str:
    words = "Each pair of selectors on the same windows, real context; means over windows."
    estimates = [e for pair in pairs for e in (pair.overlap_at(k).share, pair.rank_correlation) if e is not None]
    bounds = [(estimate.mean, estimate.bounds) for estimate in estimates]
    widths = [max(b[1] - mean, mean - b[0]) for mean, b in bounds if b is not None]
    if len(widths) == len(estimates):
        words += f" 95% intervals over documents extend at most {max(widths):.2f} to either side."
    if "greedy" in names:
        words += (
            " The rank correlation with greedy cannot reach 1: greedy ranks only the positions that it chooses, and the others "
            "tie. The same holds for lasso where coefficients are 0; its ties choose the nearer positions."
        )
    left_out = max(pair.num_windows_left_out for pair in pairs)
    if left_out:
        is_own = any(name in SELECTORS and SELECTORS[name].own is not None for name in names)
        others = ", or some not at all" * is_own + ", or screening leaves positions out" * screened
        words += (
            f" A window in which a selector scores all positions equally{others}{',' if others else ''} has no rank correlation: "
            f"up to {left_out:,} window{' is' if left_out == 1 else 's are'} left out of a cell."
        )
    return words


def draw(measured: Measured) -> Iterator[Drawn]:
    """Draw ``agreement``; nothing if only one selector was measured."""
    measurement = measured.measurement
    names, k = in_legend_order(measurement.of_one_set), measured.summary.end_ks[-1]
    pairs = agreement(measured.tables, measurement)
    if not pairs:
        return
    overlap, correlation = _matrices(pairs, names, k=k)
    size = max(2.6, 0.5 * len(names))
    figure, axes = plt.subplots(1, 2, figsize=(2 * size + 2.4, size + 0.6), layout="constrained")
    chance = pairs[0].overlap_at(k).chance
    _heatmap(figure, axes[0], names=names, values=overlap, low=0.0, cmap="viridis")
    what = "positions" if measurement.unit == "token" else unit_words(measurement.unit, measurement.setup.visibility)
    axes[0].set_title(f"common {what} among the {k} chosen\n(share; two random choices: {chance:.2f})")
    _heatmap(figure, axes[1], names=names, values=correlation, low=-1.0, cmap="RdBu_r")
    axes[1].set_title("rank correlation of the scores\n(Spearman; two random rankings: 0)")
    caption(figure, measured.summary, words=_words(pairs, names, k=k, screened=measurement.setup.screening is not None))
    yield Drawn(figure, "agreement", agreement_finding(pairs, k=k, what=what), one_column=1)


FIGURE = FigureOfMeasurement(draw)

if __name__ == "__main__":
    FIGURE.command()
