"""Figure of planted tokens: the precision of every selector, by suite and by distance."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.detection import Detection, SelectorDetection, Suite, detection
from olmo_sparsity.statistics.intervals.bootstrap import MIN_DOCUMENTS
from olmo_sparsity.tables.reading import list_finished, newest_finished
from olmo_sparsity.wording.detection import detection_finding, suite_gate_words, suite_words
from olmo_sparsity.wording.setup import anchor_warning, setup_words, short_anchor_warning

from .drawing import FigureOfRuns
from .output import Drawn, caption_text
from .style import LOOKS

THIRDS = ((0.2, "<"), (0.0, "o"), (-0.2, ">"))  # offset and marker of near, middle and far planted tokens


def _title(suite: Suite) -> str:
    """Return the suite, its losses, and why its gate failed."""
    gate = suite_gate_words(suite)
    below = f"\n{gate}" if gate else ""
    return (
        f"{suite_words(suite)}\nL short {suite.loss_short_nats.mean:.2f}, long {suite.loss_long_nats.mean:.2f}, "
        f"planted {suite.loss_planted_nats.mean:.2f}{below}"
    )


def _draw_bar(axis: Axes, row: int, *, entry: SelectorDetection) -> None:
    """Draw the precision of one selector, its interval, and the precision in each third of the distances."""
    precision = entry.precision_at_truth
    if precision is None:
        return
    axis.barh(row, precision.mean, color=LOOKS[entry.selector]["color"], height=0.62, alpha=0.85)
    if precision.bounds is not None:
        axis.plot(precision.bounds, [row, row], color="black", linewidth=1.2)
    for (offset, marker), third in zip(THIRDS, entry.by_distance, strict=True):
        if third.precision_at_truth is not None and third.num_windows >= MIN_DOCUMENTS:
            axis.plot(
                third.precision_at_truth.mean, row + offset, marker, color="white", markeredgecolor="black",
                markersize=3.6, markeredgewidth=0.7,
            )  # fmt: skip


def _panel(axis: Axes, suite: Suite) -> None:
    entries = sorted(suite.selectors, key=lambda entry: list(LOOKS).index(entry.selector))
    rows = np.arange(len(entries))[::-1]
    for row, entry in zip(rows, entries, strict=True):
        _draw_bar(axis, row, entry=entry)
    axis.axvline(suite.chance, color="black", linestyle=":", linewidth=1)
    axis.set_yticks(rows, [entry.selector for entry in entries])
    axis.set_xlim(0, 1.02)
    axis.set_title(_title(suite), fontsize=8)


def _words(numbers: Detection) -> str:
    reader = "the run's own model" if numbers.setup.model is None else "the model"
    return (
        "Of as many best-ranked positions as were planted, the share that was planted, mean over windows; black lines: 95% "
        "intervals over documents; dotted: a random ranking; white marks: mean distance of the planted tokens near "
        f"(<), in the middle (o), far (>), where {MIN_DOCUMENTS} windows or more lie there. Needles: {reader} completes a "
        f"made-up name or number that was planted in natural text. Losses in nats: local tokens only, all tokens, local "
        "and planted tokens. "
        f"{numbers.suites[0].num_windows:,} windows in each panel (needles: {numbers.source}, {numbers.split}). "
        f"{setup_words(numbers.run, numbers.setup)}. {anchor_warning(numbers.setup)}"
    ).strip()


def draw(runs: list[Path]) -> Iterator[Drawn]:
    """Draw ``planted``, of the newest validation of a run.

    Raises:
        UserError: the run has none, or several are named.
    """
    if len(runs) > 1:
        raise UserError(f"{runs[1]}: this figure is of one run; draw each with its own --run and --out")
    numbers = detection(newest_finished(runs[0], "validation"))
    columns = -(-len(numbers.suites) // 2)
    figure, axes = plt.subplots(
        2, columns, figsize=(2.7 * columns + 1.0, 6.4), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for axis, suite in zip(axes.flat, numbers.suites, strict=False):
        _panel(axis, suite)
    for axis in list(axes.flat)[len(numbers.suites) :]:
        axis.axis("off")
    for axis in axes[-1]:
        axis.set_xlabel("precision at truth")
    caption_text(figure, _words(numbers), last=short_anchor_warning(numbers.setup))
    yield Drawn(figure, "planted", detection_finding(numbers))


FIGURE = FigureOfRuns(draw, is_of=lambda run: bool(list_finished(run, "validation")))

if __name__ == "__main__":
    FIGURE.command()
