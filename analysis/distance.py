"""How far back the influential tokens lie, against the uniform law."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
from matplotlib.lines import Line2D

from olmo_sparsity.statistics.breakdowns import by_distance
from olmo_sparsity.statistics.measurement import Measurement

from .style import CONTEXT_WORDS, LINE_LOOKS, LOOKS, band, caption, ordered, save, script

MAX_COLUMNS = 4
CONTROLS = ("random", "nearest")  # where these look is known beforehand


def draw(tables: Path, measurement: Measurement, summary: dict[str, Any], out: Path) -> list[Path]:
    """Writes ``distance``: the share of the k most influential tokens in each stretch of distances."""
    k = measurement.ks[-1]
    selectors = [name for name in ordered(measurement) if name not in CONTROLS] or ordered(measurement)
    found = {(e["selector"], e["context"]): e["bins"] for e in by_distance(tables, measurement) if e["k"] == k}
    bins = found[selectors[0], "real"]
    centres = [(one["from_tokens"] + one["to_tokens"]) / 2 for one in bins]
    uniform = [one["uniform"] for one in bins]
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
        for context in ("real", "null"):
            looks = {"color": LOOKS[selector]["color"], "marker": LOOKS[selector]["marker"]}
            if context == "null":
                looks = {"color": "black"}
            band(axis, centres, found[selector, context], **looks, **LINE_LOOKS[context])
        axis.plot(centres, uniform, color="grey", linestyle="--", linewidth=1)
        axis.set_title(f"{selector}, k = {k}")
        axis.set_xlabel("distance to the target, tokens")
    axes[0, 0].set_ylim(bottom=0)
    for axis in axes[:, 0]:
        axis.set_ylabel("share of the influential tokens")
    handles = [Line2D([], [], color="black", label=CONTEXT_WORDS[c], **LINE_LOOKS[c]) for c in LINE_LOOKS]
    handles.append(Line2D([], [], color="grey", linestyle="--", label="uniform"))
    caption(
        figure,
        summary,
        f"Where the {k} most influential long-range tokens of a window lie; bands: 95% intervals over documents.",
        handles,
    )
    return save(figure, out, "distance")


if __name__ == "__main__":
    script(draw)
