"""How far back the influential tokens lie, against the uniform law."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.lines import Line2D

from analysis.style import CONTEXT_WORDS, LINE_LOOKS, LOOKS, band, caption, ordered, save, script
from olmo_sparsity.bootstrap import document_units, estimates
from olmo_sparsity.statistics import Measurement, window_rows
from olmo_sparsity.tables import list_rows, read_parts, rows_by_choice

MAX_BINS = 16
MAX_COLUMNS = 4
CONTROLS = ("random", "nearest")  # where these look is known beforehand


def _shares(total: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
    return {name: count / sum(total.values()) for name, count in total.items()}


def _counts(
    tables: Path, measurement: Measurement, selectors: list[str], k: int, edges: np.ndarray
) -> dict[tuple[str, str], np.ndarray]:
    """How many of the k most influential tokens of a unit's windows lie in each stretch: (selector, context) -> [bins, units].

    ``edges``: whole numbers of tokens, a stretch goes from above one up to the next. Distances are read part by part.
    """
    units, num_units = document_units(measurement.windows["doc_id"])
    counts = {(s, c): np.zeros((len(edges) - 1) * num_units) for s in selectors for c in LINE_LOOKS}
    for part in read_parts(tables, "selections", ["window_id", "selector", "context", "distance_tokens"]):
        rows, distances_RK = window_rows(measurement.windows, part["window_id"]), list_rows(part["distance_tokens"])
        for selector, context, of in rows_by_choice(part):
            if (selector, context) in counts:
                of = of[rows[of] >= 0]
                bins = np.digitize(distances_RK[of, :k], edges, right=True) - 1
                np.add.at(counts[selector, context], bins * num_units + units[rows[of], None], 1)
    return {choice: count.reshape(-1, num_units) for choice, count in counts.items()}


def draw(tables: Path, measurement: Measurement, summary: dict[str, Any], out: Path) -> list[Path]:
    """Writes ``distance``: the share of the k most influential tokens in each stretch of distances."""
    k = measurement.ks[-1]
    selectors = [name for name in ordered(measurement) if name not in CONTROLS] or ordered(measurement)
    num_bins = min(MAX_BINS, summary["num_long_range"])
    edges = np.linspace(summary["local_len"], summary["full_len"], num_bins + 1)
    centres = (edges[1:] + edges[:-1] + 1) / 2
    uniform = np.diff(np.floor(edges)) / summary["num_long_range"]
    counts = _counts(tables, measurement, selectors, k, np.floor(edges))
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
            sums = dict(enumerate(counts[selector, context]))
            looks = {"color": LOOKS[selector]["color"], "marker": LOOKS[selector]["marker"]}
            if context == "null":
                looks = {"color": "black"}
            band(axis, centres, list(estimates(sums, _shares).values()), **looks, **LINE_LOOKS[context])
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
