"""How far back the influential tokens lie, against the uniform law."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd

from analysis.style import CONTEXT_WORDS, LINE_LOOKS, LOOKS, caption, save, script
from olmo_sparsity.statistics import Measurement, document_sums, ratio_estimates
from olmo_sparsity.tables import read_table

MAX_BINS = 16
CONTROLS = ("random", "nearest")  # where these look is known beforehand


def draw(tables: Path, measurement: Measurement, summary: dict[str, Any], out: Path) -> list[Path]:
    """Writes ``distance``: the share of the k most influential tokens in each stretch of distances."""
    columns = ["window_id", "doc_id", "selector", "context", "distance_tokens", "k"]
    frame = read_table(tables, "selections", columns).to_pandas()
    k = int(max(frame["k"].iloc[0]))
    selectors = [name for name in frame["selector"].unique() if name not in CONTROLS]
    num_bins = min(MAX_BINS, summary["num_long_range"])
    edges = np.linspace(summary["local_len"], summary["full_len"], num_bins + 1)
    centres = (edges[1:] + edges[:-1] + 1) / 2
    uniform = np.diff(np.floor(edges)) / summary["num_long_range"]
    figure, axes = plt.subplots(
        1,
        max(len(selectors), 1),
        figsize=(4.6 * max(len(selectors), 1), 3.3),
        sharey=True,
        squeeze=False,
        layout="constrained",
    )
    for axis, selector in zip(axes[0], selectors, strict=False):
        for context in ("real", "null"):
            rows = frame[(frame["selector"] == selector) & (frame["context"] == context)]
            codes, documents = pd.factorize(rows["doc_id"])
            distances = np.stack(rows["distance_tokens"].to_numpy())[:, :k]
            bins = np.digitize(distances, np.floor(edges), right=True) - 1
            counts = np.stack([document_sums((bins == b).sum(axis=1), codes, len(documents)) for b in range(num_bins)])
            totals = np.tile(counts.sum(axis=0), (num_bins, 1))
            shares = ratio_estimates(counts, totals)
            color = LOOKS[selector]["color"] if context == "real" else "black"
            axis.plot(
                centres, [s["mean"] for s in shares], color=color, **LINE_LOOKS[context], linewidth=1.4,
                marker=LOOKS[selector]["marker"] if context == "real" else None, markersize=3.5, label=CONTEXT_WORDS[context],
            )  # fmt: skip
            if shares[0]["low"] is not None:
                axis.fill_between(
                    centres,
                    [s["low"] for s in shares],
                    [s["high"] for s in shares],
                    color=color,
                    alpha=0.18,
                    linewidth=0,
                )
        axis.plot(centres, uniform, color="grey", linestyle="--", linewidth=1, label="uniform")
        axis.set_title(f"{selector}, k = {k}")
        axis.set_xlabel("distance to the target, tokens")
        axis.legend()
    axes[0, 0].set_ylim(bottom=0)
    axes[0, 0].set_ylabel("share of the influential tokens")
    caption(
        figure,
        summary,
        f"Where the {k} most influential long-range tokens of a window lie; bands: 95% intervals over documents.",
    )
    return save(figure, out, "distance")


if __name__ == "__main__":
    script(draw)
