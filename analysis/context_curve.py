"""Figure of context curves: the loss of the target against the number of visible recent tokens, of one run or several.

``python -m analysis.context_curve --run runs/demo --run runs/demo-no-pose`` draws a model and its twin without PoSE.
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.curves import ContextCurve, context_curve
from olmo_sparsity.statistics.estimate import Estimate
from olmo_sparsity.statistics.measurement import Lengths
from olmo_sparsity.statistics.wording import data_words
from olmo_sparsity.tables.reading import newest_finished

from .output import caption_text, save
from .runs import RUN_LOOKS, script_of_runs


def positions_of(lengths: Lengths) -> str:
    """Return in a few words which position IDs a run was trained with."""
    if lengths.pose_method == "randpos":
        return "RandPos"
    if lengths.num_chunks == 1:
        return "no PoSE"
    contents = lengths.pose_contents or "contiguous"
    return f"PoSE, {lengths.num_chunks} chunks" + (f", {contents}" if contents != "contiguous" else "")


def _check_same_windows(curves: list[ContextCurve]) -> None:
    def windows_of(curve: ContextCurve) -> tuple[object, ...]:
        lengths = curve.lengths
        return curve.windows_sha256, curve.tokens_sha256, lengths.local_len, lengths.train_len, lengths.full_len

    if len({windows_of(curve) for curve in curves}) > 1:
        raise UserError(
            "the context curves of these runs are of different windows and cannot be compared; measure them on the same "
            "text, with the same lengths, windows and seed"
        )


def _draw_line(axis: Axes, curve: ContextCurve, *, values: list[Estimate], look: dict[str, Any], label: str) -> None:
    visible = [point.num_visible_tokens for point in curve.points]
    axis.plot(visible, [value.mean for value in values], **look, linewidth=1.4, markersize=4, label=label)
    bounds = [value.bounds for value in values if value.bounds is not None]
    if len(bounds) == len(values):
        low, high = np.transpose(bounds)
        axis.fill_between(visible, low, high, color=look["color"], alpha=0.2, linewidth=0)


def _marked_lengths(curves: list[ContextCurve]) -> dict[str, int]:
    """Return the lengths that vertical lines mark, by their labels."""
    lengths, last = curves[0].lengths, curves[-1].points[-1].num_visible_tokens
    marked = {"local": lengths.local_len, "training row": lengths.train_len, "full": lengths.full_len}
    if lengths.local_len == lengths.train_len:
        del marked["local"]
    trained = max((c.lengths.max_position for c in curves if c.lengths.num_chunks > 1), default=0)
    if lengths.full_len < trained < last:
        marked["positions"] = trained
    return marked


def _set_axis(axis: Axes, curves: list[ContextCurve]) -> None:
    """Set the axis of visible tokens, which both panels share."""
    last = curves[-1].points[-1].num_visible_tokens
    ticks = [2**i for i in range(int(np.log2(last)) + 1)]
    axis.set_xscale("log", base=2)
    axis.set_xticks(ticks, [str(tick) for tick in ticks])
    axis.set_xlim(right=last * 1.1)
    axis.minorticks_off()
    axis.set_xlabel("visible recent tokens")
    for word, length in _marked_lengths(curves).items():
        axis.axvline(length, color="grey", linestyle=":", linewidth=1)
        axis.annotate(
            f"{word} {length}", (length, 0.99), xycoords=("data", "axes fraction"), rotation=90, ha="right", va="top",
            fontsize=7, color="#505050", bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
        )  # fmt: skip


def _zoom_on_changes(axis: Axes, curves: list[ContextCurve]) -> None:
    """Show the end of the curves, from the local context on, where the panel of losses looks flat."""
    local_len = curves[0].lengths.local_len
    axis.set_title(f"change from {curves[0].lengths.train_len} visible tokens (paired)")
    axis.set_ylabel("nats")
    axis.axhline(0, color="grey", linewidth=0.5)
    axis.set_xlim(left=local_len / 1.2)
    points = [point for curve in curves for point in curve.points if point.num_visible_tokens >= local_len]
    changes = [point.change_nats.mean for point in points]
    margin = 0.15 * (max(changes) - min(changes)) + 0.01
    axis.set_ylim(min(changes) - margin, max(changes) + margin)
    ticks = [p.num_visible_tokens for p in curves[-1].points if p.num_visible_tokens >= local_len]
    axis.set_xticks(ticks, [str(tick) for tick in ticks])


def draw(runs: list[Path], out: Path) -> list[Path]:
    """Draw ``context-curve``, of the newest curve of each run.

    Raises:
        UserError: a run has none, or the runs were measured on different windows.
    """
    curves = [context_curve(newest_finished(run, "context-curve")) for run in runs]
    _check_same_windows(curves)
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.6), layout="constrained")
    for look, run, curve in zip(cycle(RUN_LOOKS), runs, curves, strict=False):
        label = f"{run.name} ({positions_of(curve.lengths)})"
        losses, changes = [p.loss_nats for p in curve.points], [p.change_nats for p in curve.points]
        _draw_line(left, curve, values=losses, look=look, label=label)
        _draw_line(right, curve, values=changes, look=look, label=label)
    for axis in (left, right):
        _set_axis(axis, curves)
    left.set_ylabel("mean loss of the target, nats")
    left.set_title("context curve")
    left.legend(loc="lower left")
    _zoom_on_changes(right, curves)
    caption_text(
        figure,
        "Mean loss of the same targets, given only the most recent tokens; bands: 95% intervals by bootstrap over documents. "
        "For a model that generalizes in length, the curve keeps falling, or stays flat, to the right of the training row, up "
        f"to the largest trained position. {data_words(curves[0])}.",
    )
    return save(figure, out, name="context-curve", one_column=1)


if __name__ == "__main__":
    script_of_runs(draw)
