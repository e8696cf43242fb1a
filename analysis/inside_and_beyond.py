"""Figure of the causal twin: accuracy with the deciding tokens inside the training row and beyond it, against their number.

``python -m analysis inside_and_beyond --run runs/twin/sum-pose-seed101 --run ...`` draws the runs that
``olmo-sparsity synth summary`` prints, a panel for each way they were trained, and writes the numbers into
``inside-and-beyond.json``.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from olmo_sparsity.statistics.inside_and_beyond import Twin, read_inside_and_beyond
from olmo_sparsity.statistics.synthetic import Setting
from olmo_sparsity.storage.files import to_json
from olmo_sparsity.tables.reading import newest_finished
from olmo_sparsity.view.as_json import record_json
from olmo_sparsity.wording.inside_and_beyond import arm_words, evaluated_words, twin_sentences

from .drawing import FigureOfRuns
from .output import Drawn, caption_text
from .style import error_bars

LOOKS: dict[str, dict[str, Any]] = {
    "inside": {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    "beyond": {"color": "#D55E00", "marker": "s", "linestyle": "--"},
}
ASIDE = {"inside": -0.08, "beyond": 0.08}  # where both are alike, one would hide the other


def _draw_panel(axis: Axes, twin: Twin, setting: Setting, *, length: int) -> None:
    """Draw the accuracies of one setting; the numbers k stand side by side, so that each has as much room."""
    cells = [cell for cell in twin.cells if (cell.setting, cell.length) == (setting, length)]
    for place, look in LOOKS.items():
        estimates = [getattr(cell, place) for cell in cells]
        x = [number + ASIDE[place] for number in range(len(cells))]
        axis.errorbar(
            x, [one.mean for one in estimates], yerr=error_bars(estimates), markersize=5, capsize=2.5, linewidth=1.4,
            elinewidth=1, **look,
        )  # fmt: skip
        for at, cell in zip(x, cells, strict=True):
            shares = getattr(cell, f"{place}_of_seeds")
            axis.scatter([at] * len(shares), shares, s=8, color=look["color"], alpha=0.45, linewidths=0, zorder=3)
    num_trained = sum(cell.is_trained for cell in cells)
    axis.axvspan(-0.5, num_trained - 0.5, color="grey", alpha=0.12, linewidth=0)
    axis.axhline(1 / setting.modulus, color="grey", linestyle=":", linewidth=1)
    axis.set_xticks(range(len(cells)), [str(cell.k) for cell in cells])
    axis.set_xlim(-0.5, len(cells) - 0.5)
    axis.set_ylim(-0.03, 1.05)
    axis.set_xlabel("planted values that decide the answer, k")
    title = arm_words(setting, twin)
    axis.set_title(title if len({cell.length for cell in twin.cells}) == 1 else f"{title}, {length} tokens")


def draw_inside_and_beyond(twin: Twin) -> Drawn:
    """Draw ``inside-and-beyond`` of numbers that were read."""
    panels = list(dict.fromkeys((cell.setting, cell.length) for cell in twin.cells))
    figure, axes = plt.subplots(
        1, len(panels), figsize=(3.2 * len(panels) + 0.6, 3.4), sharey=True, squeeze=False, layout="constrained"
    )
    for axis, (setting, length) in zip(axes[0], panels, strict=True):
        _draw_panel(axis, twin, setting, length=length)
    axes[0][0].set_ylabel("accuracy")
    handles = [Line2D([], [], label=f"values {place} the row", **look) for place, look in LOOKS.items()]
    handles.append(Line2D([], [], color="grey", linestyle=":", label="chance"))
    words = f"Grey: numbers of values that training had. Small dots: seeds. {evaluated_words(twin)}"
    words = f"{words} {' '.join(twin_sentences(twin))}"
    caption_text(figure, words, handles=handles)
    return Drawn(figure, "inside-and-beyond", next(twin_sentences(twin)), numbers=(".json", to_json(record_json(twin))))


def draw(runs: list[Path]) -> Iterator[Drawn]:
    """Draw ``inside-and-beyond`` of runs, seeds of a configuration together.

    Raises:
        UserError: a run lacks the evaluation, or they cannot be compared.
    """
    yield draw_inside_and_beyond(read_inside_and_beyond(newest_finished(run, "synthetic") for run in runs))


FIGURE = FigureOfRuns(draw)
