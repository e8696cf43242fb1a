"""Precision and recall of the selectors against what was planted. Reads tables; imports no torch.

A window's truth is a set of planted positions. *Precision at k*: the share of the k best that were planted; *recall at
k*: the share of the planted that are among the k best; where k is the number of planted positions the two are one,
``precision_at_truth`` (also called R-precision). All are means over windows, with 95% intervals by bootstrap over documents.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from olmo_sparsity.statistics.bootstrap import document_sums, document_units, estimates
from olmo_sparsity.statistics.summary import gate_of
from olmo_sparsity.tables.reading import read_manifest, read_table

NUM_DISTANCES = 3


def hits(ranked: np.ndarray, truth: list[np.ndarray]) -> np.ndarray:
    """How many of the first r ranked positions are planted, r = 1 .. M: int64 [N, M].

    Args:
        ranked: int [N, M], positions, most influential first.
        truth: for each window its planted positions.
    """
    planted = np.zeros(ranked.shape, dtype=bool)
    for row, where in zip(planted, truth, strict=True):
        row[where] = True
    return np.take_along_axis(planted, ranked, axis=1).cumsum(axis=1)


def detection(folder: Path) -> dict[str, Any]:
    """The numbers of one validation, suite by suite.

    Returns:
        ``suites``: for each suite and number of planted tokens its losses in nats (without, with all, and with the planted
        long-range tokens), its gate (does the model use the long context there at all), ``chance`` (precision of a blind
        guess), and for every selector ``precision_at_truth``, ``at_k`` and, in thirds of the distance, ``by_distance``.

    Raises:
        UserError: the tables are missing, unfinished or of another schema.
    """
    facts = read_manifest(folder, "validation")
    columns = ["window_id", "suite", "doc_id", "num_planted", "planted_positions", "planted_distance_tokens",
               "loss_short_nats", "loss_long_nats", "loss_planted_nats"]  # fmt: skip
    planted = read_table(folder, "planted", columns=columns).to_pandas()
    found = read_table(folder, "found").to_pandas()
    of_cell = {(one["suite"], one["num_planted"]): one for one in facts["suites"]}
    suites = []
    for (suite, num_planted), windows in planted.groupby(["suite", "num_planted"], sort=False):
        lengths = of_cell[suite, num_planted]
        suites.append(_suite(windows, found, lengths, facts["validation"]["k"]))
    return {
        "run": facts["run"],
        "run_id": facts["run_id"],
        "source": facts["source"],
        "split": facts["split"],
        "suites": suites,
    }


def _suite(windows: pd.DataFrame, found: pd.DataFrame, lengths: dict[str, Any], ks: list[int]) -> dict[str, Any]:
    local_len, full_len = lengths["local_len"], lengths["full_len"]
    units, num_units = document_units(windows["doc_id"])
    truth = [np.asarray(where) for where in windows["planted_positions"]]
    num_true = np.array([len(where) for where in truth])
    edges = np.linspace(local_len, full_len, NUM_DISTANCES + 1)
    distance = np.clip(np.digitize(windows["planted_distance_tokens"], edges, right=True) - 1, 0, NUM_DISTANCES - 1)

    def sums(values: Any) -> np.ndarray:
        return document_sums(values, units, num_units)

    everywhere: dict[Any, np.ndarray] = {"n": sums(np.ones(len(windows)))}
    for name in ("loss_short_nats", "loss_long_nats", "loss_planted_nats"):
        everywhere[name] = sums(windows[name])
    for third in range(NUM_DISTANCES):
        everywhere["n", third] = sums(distance == third)
    asked: dict[Any, tuple[Any, Any]] = {name: (name, "n") for name in list(everywhere) if isinstance(name, str)}
    selectors = list(dict.fromkeys(found.loc[found["window_id"].isin(windows["window_id"]), "selector"]))
    for selector in selectors:
        rows = found[found["selector"] == selector].set_index("window_id").loc[windows["window_id"]]
        right = hits(np.stack(rows["ranked_positions"].to_list()), truth)
        at_truth = right[np.arange(len(right)), num_true - 1] / num_true
        everywhere[selector, "at_truth"] = sums(at_truth)
        asked[selector, "at_truth"] = ((selector, "at_truth"), "n")
        for third in range(NUM_DISTANCES):
            everywhere[selector, "third", third] = sums(at_truth * (distance == third))
            asked[selector, "third", third] = ((selector, "third", third), ("n", third))
        for k in ks:
            everywhere[selector, "precision", k] = sums(right[:, k - 1] / k)
            everywhere[selector, "recall", k] = sums(right[:, k - 1] / num_true)
            for name in ("precision", "recall"):
                asked[selector, name, k] = ((selector, name, k), "n")

    def quantities(total: Any) -> dict[Any, np.ndarray]:
        values = {name: total[above] / total[below] for name, (above, below) in asked.items()}
        values["long_gain_nats"] = values["loss_short_nats"] - values["loss_long_nats"]
        values["planted_gain_nats"] = values["loss_short_nats"] - values["loss_planted_nats"]
        return values

    got = estimates(everywhere, quantities)
    long_gain = got["long_gain_nats"]
    assert long_gain is not None
    names = ("loss_short_nats", "loss_long_nats", "loss_planted_nats", "long_gain_nats", "planted_gain_nats")
    return {
        "suite": lengths["suite"],
        "num_planted": int(lengths["num_planted"]),
        "local_len": local_len,
        "full_len": full_len,
        "num_windows": len(windows),
        "num_documents": int(windows["doc_id"].nunique()),
        "chance": float((num_true / (full_len - local_len)).mean()),
        "mean_planted_tokens": float(num_true.mean()),
        **{name: got[name] for name in names},
        "gate": gate_of(long_gain),
        "selectors": [
            {
                "selector": selector,
                "precision_at_truth": got[selector, "at_truth"],
                "at_k": [
                    {"k": k, "precision": got[selector, "precision", k], "recall": got[selector, "recall", k]}
                    for k in ks
                ],
                "by_distance": [
                    {
                        "distance_above_tokens": float(edges[third]),
                        "distance_to_tokens": float(edges[third + 1]),
                        "num_windows": int((distance == third).sum()),
                        "precision_at_truth": got[selector, "third", third],
                    }
                    for third in range(NUM_DISTANCES)
                ],
            }
            for selector in selectors
        ],
    }
