"""The numbers taken apart: by class, by sample size, by distance; how far selectors agree, and what screening lost. Imports no
torch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from scipy.stats import rankdata

from olmo_sparsity.bootstrap import document_sums, document_units, estimates
from olmo_sparsity.statistics import Measurement, summarize, window_rows
from olmo_sparsity.tables import list_rows, read_parts, read_table, rows_by_choice

NUM_SIZES = 8
SMALLEST_SIZE = 100
MAX_BINS = 16


def by_class(measurement: Measurement) -> list[dict[str, Any]]:
    """The summary of the windows of each target class, the highest mean long gain first.

    Each entry is what ``summarize`` says of the windows of one class, with its own gate, so that no R(k) is shown of a class
    that does not profit from the long context; ``target_class``; and ``window_share``, the share of all windows that are of
    this class. Its intervals are over the documents that hold such windows. Each gate is asked at 2.5%: of eight classes
    without any long gain, one passes by luck in about one measurement of six.
    """
    units, num_units = document_units(measurement.windows["doc_id"])
    of_class, found_names = pd.factorize(measurement.windows["target_class"])
    inside = {str(found_names[i]): of_class == i for i in range(len(found_names))}
    names = sorted(inside)
    sums = {name: document_sums(inside[name], units, num_units) for name in names}

    def shares(total: Mapping[Any, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: total[name] / sum(total.values()) for name in names}

    found = estimates(sums, shares)
    entries = [
        {"target_class": name, "window_share": found[name], **summarize(measurement.restrict(inside[name]))}
        for name in names
    ]
    return sorted(entries, key=lambda entry: -float(entry["long_gain_nats"]["mean"]))


def sample_sizes(num_windows: int) -> list[int]:
    """Up to ``NUM_SIZES`` numbers of windows, evenly spaced on a logarithmic scale, the last being all."""
    return np.unique(np.geomspace(min(SMALLEST_SIZE, num_windows), num_windows, NUM_SIZES).round().astype(int)).tolist()


def by_sample_size(measurement: Measurement) -> list[dict[str, Any]]:
    """The summary of the first so many windows, for each of ``sample_sizes``: what would have been reported had no more been
    measured, for window i of the same text does not depend on how many there are."""
    return [summarize(measurement.restrict(slice(size))) for size in sample_sizes(len(measurement.windows))]


def by_distance(folder: Path, measurement: Measurement) -> list[dict[str, Any]]:
    """How far back the influential tokens lie.

    Args:
        folder: of the tables that the measurement was loaded from.
        measurement: which windows, selectors and k.

    Returns:
        For each ``selector``, ``context`` and ``k`` the ``bins`` of distance to the target, the nearest first: ``from_tokens``
        and ``to_tokens`` (both within), ``uniform``, the share that a choice at random has there, and the share of the k
        chosen tokens of all windows, ``{mean, low, high}``.
    """
    context = measurement.facts["context"]
    local_len, full_len, num_long_range = (int(context[key]) for key in ("local_len", "full_len", "num_long_range"))
    num_bins = min(MAX_BINS, num_long_range)
    edges = np.floor(np.linspace(local_len, full_len, num_bins + 1)).astype(int)
    units, num_units = document_units(measurement.windows["doc_id"])
    sums: dict[Any, np.ndarray] = {"windows": document_sums(np.ones(len(units)), units, num_units)}
    sums |= {(*key, b): np.zeros(num_units) for key in measurement.keys for b in range(num_bins)}
    for part in read_parts(folder, "selections", ["window_id", "selector", "context", "distance_tokens"]):
        rows, distances_RK = window_rows(measurement.windows, part["window_id"]), list_rows(part["distance_tokens"])
        bins_RK = np.digitize(distances_RK, edges, right=True) - 1
        for selector, which, of in rows_by_choice(part):
            of = of[rows[of] >= 0]
            if selector not in measurement.selectors:
                continue
            for k in measurement.ks:
                for b in range(num_bins):
                    np.add.at(sums[selector, which, k, b], units[rows[of]], (bins_RK[of, :k] == b).sum(axis=1))

    def shares(total: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        return {key: total[key] / (key[2] * total["windows"]) for key in total if key != "windows"}

    found = estimates(sums, shares)
    bounds = list(pairwise(edges.tolist()))
    return [
        {
            "selector": selector,
            "context": which,
            "k": k,
            "bins": [
                {
                    "from_tokens": low + 1,
                    "to_tokens": high,
                    "uniform": (high - low) / num_long_range,
                    **(found[selector, which, k, b] or {}),
                }
                for b, (low, high) in enumerate(bounds)
            ],
        }
        for selector, which, k in measurement.keys
    ]


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
    for part in read_parts(folder, "selections", ["window_id", "selector", "context", "positions", "scores"]):
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
