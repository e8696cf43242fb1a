"""Figure of the hypothesis: the gain from beyond the training row against how sparse the reaction is.

``python -m analysis hypothesis --run runs/hypothesis/demo-seed101 --run ...`` draws the runs that ``olmo-sparsity hypothesis``
prints, and writes the numbers into ``hypothesis.json``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Optional

import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.hypothesis import THIRDS, Hypothesis, SparsityAndGain, read_hypothesis
from olmo_sparsity.storage.files import to_json
from olmo_sparsity.view.as_json import record_json
from olmo_sparsity.wording.hypothesis import hypothesis_sentences, matched_words, measured_words, null_name
from olmo_sparsity.wording.setup import null_label

from .drawing import FigureOfRuns
from .output import Drawn, caption_text
from .style import RUN_LOOKS, error_bars, looks_of_runs

FOREIGN_LOOK: dict[str, Any] = {"color": "#7F7F7F", "marker": "v", "linestyle": ":"}
CEILING_LOOK: dict[str, Any] = {"color": "#000000", "marker": "x", "linestyle": "--"}


def _draw_line(axis: Axes, values: Sequence[Optional[Estimate]], *, label: str, look: dict[str, Any]) -> None:
    """Draw one number of the thirds, where every third has it."""
    known = [value for value in values if value is not None]
    if len(known) == len(THIRDS):
        places = range(len(THIRDS))
        axis.errorbar(
            places, [value.mean for value in known], yerr=error_bars(known), label=label, markersize=5, capsize=2.5,
            linewidth=1.4, elinewidth=1, **look,
        )  # fmt: skip


def _draw_gain(axis: Axes, entry: SparsityAndGain, *, null: str, look: dict[str, Any]) -> None:
    thirds = entry.thirds
    _draw_line(axis, [third.gain_nats for third in thirds], label=entry.gain_of, look=look)
    _draw_line(axis, [third.null_gain_nats for third in thirds], label=null_label(null), look=FOREIGN_LOOK)
    _draw_line(axis, [third.ceiling_gain_nats for third in thirds], label="ceiling", look=CEILING_LOOK)
    axis.set_ylabel("gain from beyond the training row, nats")
    axis.set_title(f"gain, by the reactions of {entry.sparsity_from}")
    axis.legend(frameon=False, fontsize=8)


def _draw_shares(axis: Axes, entries: Sequence[SparsityAndGain]) -> None:
    for entry, look in zip(entries, looks_of_runs(len(entries)), strict=True):
        _draw_line(axis, [third.share_of_ceiling for third in entry.thirds], label=entry.gain_of, look=look)
    axis.set_ylabel("share of the ceiling's gain")
    axis.set_title(f"share, by the reactions of {entries[0].sparsity_from}")
    if len(entries) > 1:
        axis.legend(frameon=False, fontsize=8)


def draw_hypothesis(found: Hypothesis) -> Drawn:
    """Draw ``hypothesis`` of numbers that were read."""
    of_own = [entry for entry in found.main if entry.sparsity_from == entry.gain_of]
    of_ceiling = [entry for entry in found.main if entry.sparsity_from == found.ceiling]
    panels = 2 if of_ceiling else 1
    figure, axes = plt.subplots(1, panels, figsize=(4.6 * panels, 3.6), layout="constrained", squeeze=False)
    _draw_gain(axes[0, 0], of_own[0], null=null_name(found), look=RUN_LOOKS[0])
    if of_ceiling:
        _draw_shares(axes[0, 1], of_ceiling)
    for axis in axes[0]:
        axis.axhline(0, color="grey", linewidth=0.5)
        axis.set_xticks(range(len(THIRDS)), THIRDS)
        axis.set_xlim(-0.3, len(THIRDS) - 0.7)
        axis.set_xlabel("how sparse the reaction is")
    sentences = " ".join(hypothesis_sentences(found))
    words = f"{sentences} {matched_words(of_own[0]).capitalize()}. {measured_words(found)}"
    caption_text(figure, words)
    return Drawn(
        figure,
        "hypothesis",
        next(hypothesis_sentences(found)),
        numbers=(".json", to_json(record_json(found))),
    )


def draw(runs: list[Path]) -> Iterator[Drawn]:
    """Draw ``hypothesis`` of runs, seeds of a configuration together.

    Raises:
        UserError: a run lacks the measurement, or they cannot be compared.
    """
    yield draw_hypothesis(read_hypothesis(runs))


FIGURE = FigureOfRuns(draw)
