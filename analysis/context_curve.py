"""Context curve: the loss of the target against the number of visible recent tokens, of one run or of several.

``python -m analysis.context_curve --run runs/demo --run runs/demo-no-pose`` draws a model and its twin.
"""

from __future__ import annotations

from itertools import cycle
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.curves import context_curve
from olmo_sparsity.tables.reading import newest_finished

from .runs import RUN_LOOKS, script_of_runs
from .style import caption_text, save


def positions_of(facts: dict[str, Any]) -> str:
    """Which position IDs a run was trained with, in a word; of the facts of its curve."""
    if facts.get("pose_method") == "randpos":  # measurements older than this and than contents do not say
        return "RandPos"
    if facts["num_chunks"] == 1:
        return "no PoSE"
    contents = facts.get("pose_contents", "contiguous")
    return f"PoSE, {facts['num_chunks']} chunks" + (f", {contents}" if contents != "contiguous" else "")


def draw(runs: list[Path], out: Path) -> list[Path]:
    """Writes ``context-curve``, of the newest curve of each run.

    Raises:
        UserError: a run has none, or the runs were measured on different windows.
    """
    curves = [context_curve(newest_finished(run, "context-curve")) for run in runs]
    alike = ("windows_sha256", "tokens_sha256", "local_len", "train_len", "full_len")
    if len({tuple(one[key] for key in alike) for one in curves}) > 1:
        raise UserError(
            "these runs' context curves are of different windows, so that they cannot be compared; measure them on the "
            "same text, with the same lengths, windows and seed"
        )
    first = curves[0]
    figure, (left, right) = plt.subplots(1, 2, figsize=(9.2, 3.6), layout="constrained")
    for look, run, one in zip(cycle(RUN_LOOKS), runs, curves, strict=False):
        lengths = [point["num_visible_tokens"] for point in one["points"]]
        for axis, quantity in ((left, "loss_nats"), (right, "change_nats")):
            values = [point[quantity] for point in one["points"]]
            means = [value["mean"] for value in values]
            axis.plot(lengths, means, **look, linewidth=1.4, markersize=4, label=f"{run.name} ({positions_of(one)})")
            if values[0]["low"] is not None:
                low, high = ([value[bound] for value in values] for bound in ("low", "high"))
                axis.fill_between(lengths, low, high, color=look["color"], alpha=0.2, linewidth=0)
    any_pose = any(one["num_chunks"] > 1 for one in curves)
    ends = {"local": first["local_len"], "training row": first["train_len"], "full": first["full_len"]}
    if ends["local"] == ends["training row"]:
        del ends["local"]
    trained = max(one["max_position"] for one in curves if one["num_chunks"] > 1) if any_pose else 0
    if first["full_len"] < trained < lengths[-1]:
        ends["positions"] = trained
    for axis in (left, right):
        axis.set_xscale("log", base=2)
        axis.set_xticks(ticks := [2**i for i in range(int(np.log2(lengths[-1])) + 1)], [str(t) for t in ticks])
        axis.set_xlim(right=lengths[-1] * 1.1)
        axis.minorticks_off()
        axis.set_xlabel("visible recent tokens")
        for word, length in ends.items():
            axis.axvline(length, color="grey", linestyle=":", linewidth=1)
            axis.annotate(
                f"{word} {length}", (length, 0.99), xycoords=("data", "axes fraction"), rotation=90, ha="right", va="top",
                fontsize=7, color="#505050", bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.8},
            )  # fmt: skip
    left.set_ylabel("mean loss of the target, nats")
    left.set_title("context curve")
    left.legend(loc="lower left")
    # The right panel shows what matters: the end of the curve, where the left one is flat against its height.
    right.set_title(f"change from {first['train_len']} visible tokens (paired)")
    right.set_ylabel("nats")
    right.axhline(0, color="grey", linewidth=0.5)
    right.set_xlim(left=first["local_len"] / 1.2)
    shown = [
        point["change_nats"]["mean"]
        for one in curves
        for point in one["points"]
        if point["num_visible_tokens"] >= first["local_len"]
    ]
    margin = 0.15 * (max(shown) - min(shown)) + 0.01
    right.set_ylim(min(shown) - margin, max(shown) + margin)
    right.set_xticks(ticks := [n for n in lengths if n >= first["local_len"]], [str(t) for t in ticks])
    caption_text(
        figure,
        "Mean loss of the same targets, given only the most recent tokens; bands: 95% intervals by bootstrap over documents. "
        "A model that generalizes in length keeps falling, or stays flat, to the right of the training row, as far as the "
        "positions of training went. "
        f"{first['num_windows']} windows of {first['num_documents']} documents ({first['source']}, {first['split']}).",
    )
    return save(figure, out, "context-curve", one_column=1)


if __name__ == "__main__":
    script_of_runs(draw)
