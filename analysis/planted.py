"""Precision of every selector against planted truth: suites side by side, and by distance."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from olmo_sparsity.statistics.detection import detection
from olmo_sparsity.tables.reading import newest_finished

from .runs import script_of_runs
from .style import LOOKS, caption_text, save

SUITES = {
    "needle-name": "needle: name",
    "needle-number": "needle: number",
    "planted-sum": "planted sum",
    "planted-parity": "planted parity",
}


def title(suite: dict[str, Any]) -> str:
    """Suite, number of planted tokens, and whether the model uses them."""
    copies = suite["suite"].startswith("needle")
    number = f"{suite['num_planted']} {'cop' + ('y' if suite['num_planted'] == 1 else 'ies') if copies else 'tokens'}"
    return f"{SUITES[suite['suite']]}, {number if copies or suite['num_planted'] > 1 else '1 token'}"


def draw(runs: list[Path], out: Path) -> list[Path]:
    """Writes ``planted``, of the newest validation of a run (of the first, where several are named).

    Raises:
        UserError: the run has none.
    """
    numbers = detection(newest_finished(runs[0], "validation"))
    suites = numbers["suites"]
    columns = -(-len(suites) // 2)
    figure, axes = plt.subplots(
        2, columns, figsize=(2.7 * columns + 1.0, 6.4), sharex=True, sharey=True, squeeze=False, layout="constrained"
    )
    for axis, suite in zip(axes.flat, suites, strict=False):
        selectors = sorted(suite["selectors"], key=lambda one: list(LOOKS).index(one["selector"]))
        names = [one["selector"] for one in selectors]
        rows = np.arange(len(names))[::-1]
        for row, one in zip(rows, selectors, strict=True):
            value, color = one["precision_at_truth"], LOOKS[one["selector"]]["color"]
            axis.barh(row, value["mean"], color=color, height=0.62, alpha=0.85)
            if value["low"] is not None:
                axis.plot([value["low"], value["high"]], [row, row], color="black", linewidth=1.2)
            for offset, third, marker in zip((0.2, 0.0, -0.2), one["by_distance"], ("<", "o", ">"), strict=True):
                if third["precision_at_truth"] is not None and third["num_windows"] >= 20:
                    axis.plot(
                        third["precision_at_truth"]["mean"], row + offset, marker, color="white", markeredgecolor="black",
                        markersize=3.6, markeredgewidth=0.7,
                    )  # fmt: skip
        axis.axvline(suite["chance"], color="black", linestyle=":", linewidth=1)
        axis.set_yticks(rows, names)
        axis.set_xlim(0, 1.02)
        reason = "too few windows" if suite["long_gain_nats"]["low"] is None else "the model does not use it"
        used = "" if suite["gate"] == "passed" else f"\ngate failed: {reason}"
        axis.set_title(
            f"{title(suite)}\nL short {suite['loss_short_nats']['mean']:.2f}, long {suite['loss_long_nats']['mean']:.2f}, "
            f"planted {suite['loss_planted_nats']['mean']:.2f}{used}",
            fontsize=8,
        )
    for axis in list(axes.flat)[len(suites) :]:
        axis.axis("off")
    for axis in axes[-1]:
        axis.set_xlabel("precision at truth")
    caption_text(
        figure,
        "Share of the planted positions among as many best-ranked ones, mean over windows; black lines: 95% intervals by "
        "bootstrap over documents; dotted: a blind guess; white marks: mean distance of the planted tokens near (<), in the "
        "middle (o), far (>), where 20 windows or more lie there. Needles: the run's own model completes a made-up name or "
        "number that was planted in natural text. Sum and parity: the solver, a small model trained on such sequences. Losses "
        "in nats: local tokens only, all tokens, local and planted tokens. "
        f"{suites[0]['num_windows']} windows a panel (needles: {numbers['source']}, {numbers['split']}).",
    )
    return save(figure, out, "planted")


if __name__ == "__main__":
    script_of_runs(draw)
