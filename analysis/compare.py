"""Measurements side by side: values of each, and differences from the first, with 95% intervals.

``python -m analysis.compare --run runs/demo --run runs/demo-no-pose``; ``--run runs/demo:kl`` compares by that selector.
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any, Optional

import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from olmo_sparsity.statistics.comparison import compare, main_rows, read_subjects

from .runs import RUN_LOOKS, script_of_runs
from .style import caption_text, errors, save


def _panel(axis: Axes, rows: list[list[Optional[dict[str, Any]]]], first_look: int) -> None:
    """A row of estimates for each quantity, the highest on top."""
    looks = [look for _, look in zip(range(first_look + max(map(len, rows))), cycle(RUN_LOOKS), strict=False)]
    for row, values in enumerate(rows):
        for number, value in enumerate(values):
            if value is not None:
                look = looks[first_look + number]
                axis.errorbar(
                    [value["mean"]], [row + 0.2 * (number - (len(values) - 1) / 2)], xerr=errors([value]), linestyle="",
                    color=look["color"], marker=look["marker"], markersize=4, elinewidth=1.1, capsize=2,
                )  # fmt: skip
    axis.axvline(0, color="grey", linewidth=0.8)
    axis.grid(axis="x", color="#DDDDDD", linewidth=0.5)
    axis.set_axisbelow(True)
    axis.set_xlabel("nats")


def draw(runs: list[Path], out: Path) -> list[Path]:
    """Writes ``compare``.

    Raises:
        UserError: fewer than two runs, or they cannot be compared.
    """
    numbers = compare(read_subjects([str(run) for run in runs]))
    labels = [subject["label"] for subject in numbers["subjects"]]
    rows = [row for row in main_rows(numbers) if not row["quantity"].endswith("fraction")]  # nats on one axis
    rows = [
        row for row in rows if not row["quantity"].startswith("loss")
    ]  # ten times the gains: they would flatten them
    names = [
        (f"{row['selector']}, k = {row['k']}: " if row["selector"] else "") + row["words"].removesuffix(", nats")
        for row in rows
    ]
    figure, (left, right) = plt.subplots(
        1, 2, figsize=(9.2, 0.3 * len(rows) + 1.0), sharey=True, width_ratios=[1, 1], layout="constrained"
    )
    _panel(left, [row["values"] for row in rows], 0)
    _panel(right, [row["differences"] for row in rows], 1)
    left.set_yticks(range(len(rows)), names)
    left.set_ylim(len(rows) - 0.5, -0.5)
    left.set_title("value")
    right.set_title(f"minus {labels[0]}")
    pairings = "; ".join(
        f"{label} minus {labels[0]}: {pairing['words']}"
        for label, pairing in zip(labels[1:], numbers["pairings"], strict=True)
    )
    failed = [one["label"] for one in numbers["subjects"] if one["summary"]["gate"] == "failed"]
    gate = f"VALIDITY GATE FAILED for {', '.join(failed)}. " if failed else "The validity gates passed. "
    warnings = "".join(f"{one['warning']} " for one in numbers["subjects"] if one["warning"])
    handles = [
        Line2D([], [], markersize=4, label=label, **look) for label, look in zip(labels, cycle(RUN_LOOKS), strict=False)
    ]
    for handle in handles:
        handle.set_linestyle("")
    caption_text(
        figure,
        f"{gate}{warnings}Means with 95% intervals by bootstrap over documents. {pairings}. Gain over random at the smallest k, "
        "the others at the largest. Of a selector that sees the target the sparse gain is mostly luck.",
        handles,
    )
    return save(figure, out, "compare")


if __name__ == "__main__":
    script_of_runs(draw)
