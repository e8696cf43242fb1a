"""Agreement between selectors, and the loss that screening causes."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from scipy.stats import rankdata

from olmo_sparsity.statistics.bootstrap import document_sums, document_units, estimates
from olmo_sparsity.statistics.measurement import Measurement, window_rows
from olmo_sparsity.tables.reading import list_rows, read_parts, read_table, rows_by_choice


def _standard_ranks(scores_WM: np.ndarray) -> np.ndarray:
    """Ranks (of ties the mean) of each window's scores, to mean 0 and length 1, so that the product of two windows' is
    Spearman's correlation; float [W, M], NaN where all scores of the window are equal."""
    ranks_WM = rankdata(scores_WM, axis=1)
    ranks_WM -= ranks_WM.mean(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return np.asarray(ranks_WM / np.linalg.norm(ranks_WM, axis=1, keepdims=True))


def _agreement_of_part(
    part: pa.Table, measurement: Measurement, context: str
) -> tuple[np.ndarray, dict[Any, np.ndarray]]:
    """What ``agreement`` sums, of the windows of one part of ``selections``.

    Returns:
        (their rows of the measurement, [w]; of each pair (a, b): the share of common positions (a, b, k), and the rank
        correlation (a, b, "correlation"), 0 where (a, b, "ranked") is False; each [w]).
    """
    all_rows, positions_RK = window_rows(measurement.windows, part["window_id"]), list_rows(part["positions"])
    scores_RM = list_rows(part["scores"])
    rows = np.unique(all_rows[all_rows >= 0])
    chosen: dict[tuple[str, int], np.ndarray] = {}
    ranks: dict[str, np.ndarray] = {}
    for selector, of_context, of in rows_by_choice(part):
        of = of[all_rows[of] >= 0]
        if of_context != context or selector not in measurement.selectors:
            continue
        of = of[np.argsort(all_rows[of])]
        ranks[selector] = _standard_ranks(scores_RM[of])
        for k in measurement.ks:
            chosen[selector, k] = np.zeros((len(rows), scores_RM.shape[1]), dtype=bool)
            np.put_along_axis(chosen[selector, k], positions_RK[of, :k], True, axis=1)
    found: dict[Any, np.ndarray] = {}
    for a, b in combinations(measurement.selectors, 2):
        for k in measurement.ks:
            found[a, b, k] = (chosen[a, k] & chosen[b, k]).sum(axis=1) / k
        correlations = (ranks[a] * ranks[b]).sum(axis=1)
        found[a, b, "ranked"] = np.isfinite(correlations)
        found[a, b, "correlation"] = np.nan_to_num(correlations)
    return rows, found


def agreement(folder: Path, measurement: Measurement, context: str = "real") -> list[dict[str, Any]]:
    """How far each two selectors agree on the same windows, under the same context.

    Positions and scores are read part by part, and only sums are kept.

    Args:
        folder: of the tables that the measurement was loaded from.
        measurement: which windows, selectors and k.
        context: ``real`` or ``null``.

    Returns:
        For each pair ``selectors`` (two names), ``context``; ``overlap``: for each k the mean share of common positions
        among the k chosen, ``{k, chance, mean, low, high}``, where ``chance``, k / M, is the mean of two choices at random;
        ``rank_correlation``: mean of Spearman's correlation of the M scores, ``{mean, low, high}``, or None;
        ``num_windows_left_out``: those without it, since one of the two gives all positions the same score.
    """
    pairs, ks = list(combinations(measurement.selectors, 2)), measurement.ks
    if not pairs:
        return []
    num_windows, num_long_range = len(measurement.windows), int(measurement.facts["context"]["num_long_range"])
    units, num_units = document_units(measurement.windows["doc_id"])
    sums: dict[Any, np.ndarray] = {"windows": document_sums(np.ones(num_windows), units, num_units)}
    sums |= {(a, b, what): np.zeros(num_units) for a, b in pairs for what in (*ks, "ranked", "correlation")}
    for part in read_parts(folder, "selections", columns=["window_id", "selector", "context", "positions", "scores"]):
        rows, found = _agreement_of_part(part, measurement, context)
        for name, values in found.items():
            np.add.at(sums[name], units[rows], values)  # a part has few windows and the units are many

    def means(total: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        values = {(a, b, k): total[a, b, k] / total["windows"] for a, b in pairs for k in ks}
        return values | {(a, b): total[a, b, "correlation"] / total[a, b, "ranked"] for a, b in pairs}

    estimated = estimates(sums, means)
    return [
        {
            "selectors": [a, b],
            "context": context,
            "overlap": [{"k": k, "chance": k / num_long_range, **(estimated[a, b, k] or {})} for k in ks],
            "rank_correlation": estimated[a, b],
            "num_windows_left_out": num_windows - int(sums[a, b, "ranked"].sum()),
        }
        for a, b in pairs
    ]


def screening(folder: Path, measurement: Measurement) -> list[dict[str, Any]]:
    """What screening lost, in the windows in which nothing was screened as well; nothing where the run did not screen.

    Returns:
        For each screened selector, context and k: ``selector``, ``context``, ``k``, ``num_windows``; ``recall``: mean share
        of the exact J_k among the k chosen ones; ``gain_lost_nats``: mean sparse gain of the exact J_k minus that of the
        chosen ones. The last two are ``{mean, low, high}``.
    """
    if measurement.facts.get("influence", {}).get("screen") is None:
        return []
    table = read_table(folder, "screening")
    units, num_units = document_units(table["doc_id"].to_pandas())
    selectors, contexts = (table[name].to_numpy() for name in ("selector", "context"))
    columns = {name: list_rows(table[name]) for name in ("recall", "gain_lost_nats")}
    found = []
    for selector, context in dict.fromkeys(zip(selectors, contexts, strict=True)):
        of = (selectors == selector) & (contexts == context)
        sums: dict[Any, np.ndarray] = {"windows": document_sums(of, units, num_units)}
        for i, k in enumerate(measurement.ks):
            for name, values in columns.items():
                sums[name, k] = document_sums(np.where(of, values[:, i], 0.0), units, num_units)

        def means(total: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
            return {key: value / total["windows"] for key, value in total.items() if key != "windows"}

        means_of = estimates(sums, means)
        found += [
            {
                "selector": selector,
                "context": context,
                "k": k,
                "num_windows": int(of.sum()),
                **{name: means_of[name, k] for name in columns},
            }
            for k in measurement.ks
        ]
    return found
