"""The numbers taken apart: by class, by sample size, by distance, and how far selectors agree. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.compute as pc
from scipy.stats import rankdata

from olmo_sparsity.bootstrap import document_sums, estimates
from olmo_sparsity.statistics import Measurement, summarize
from olmo_sparsity.tables import read_table

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
    classes = measurement.windows["target_class"].to_numpy(str)
    codes, documents = pd.factorize(measurement.windows["doc_id"])
    names = np.unique(classes).tolist()
    sums = {name: document_sums(classes == name, codes, len(documents)) for name in names}

    def shares(total: Mapping[Any, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: total[name] / sum(total.values()) for name in names}

    found = estimates(sums, shares)
    entries = [
        {"target_class": name, "window_share": found[name], **summarize(measurement.restrict(classes == name))}
        for name in names
    ]
    return sorted(entries, key=lambda entry: -float(entry["long_gain_nats"]["mean"]))


def sample_sizes(num_windows: int) -> list[int]:
    """Up to ``NUM_SIZES`` numbers of windows, evenly spaced on a logarithmic scale, the last being all."""
    return np.unique(np.geomspace(min(SMALLEST_SIZE, num_windows), num_windows, NUM_SIZES).round().astype(int)).tolist()


def by_sample_size(measurement: Measurement) -> list[dict[str, Any]]:
    """The summary of the first so many windows, for each of ``sample_sizes``: what would have been reported had no more been
    measured, for window i of the same text does not depend on how many there are."""
    index = np.arange(len(measurement.windows))
    return [summarize(measurement.restrict(index < size)) for size in sample_sizes(len(index))]


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
    codes, documents = pd.factorize(measurement.windows["doc_id"])
    sums: dict[Any, np.ndarray] = {"windows": document_sums(np.ones(len(codes)), codes, len(documents))}
    table = read_table(folder, "selections", ["window_id", "selector", "context", "distance_tokens"])
    for selector in measurement.selectors:
        for which in ("real", "null"):
            of = table.filter((pc.field("selector") == selector) & (pc.field("context") == which))
            rows = pd.Index(measurement.windows["window_id"]).get_indexer(of["window_id"].to_numpy())
            distances_RK = pc.list_flatten(of["distance_tokens"]).to_numpy().reshape(len(of), -1)[rows >= 0]
            bins_RK = np.digitize(distances_RK, edges, right=True) - 1
            for k in measurement.ks:
                for b in range(num_bins):
                    counts = (bins_RK[:, :k] == b).sum(axis=1)
                    sums[selector, which, k, b] = document_sums(counts, codes[rows[rows >= 0]], len(documents))

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


def _choices(
    folder: Path, measurement: Measurement, context: str
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(positions int [W, max k], scores float32 [W, M]) of each selector, windows in the order of the measurement's."""
    table = read_table(folder, "selections", ["window_id", "selector", "context", "positions", "scores"])
    positions: dict[str, np.ndarray] = {}
    scores: dict[str, np.ndarray] = {}
    for selector in measurement.selectors:
        of = table.filter((pc.field("selector") == selector) & (pc.field("context") == context))
        order = pd.Index(of["window_id"].to_numpy()).get_indexer(measurement.windows["window_id"])
        for column, found in (("positions", positions), ("scores", scores)):
            flat = pc.list_flatten(of[column]).to_numpy()
            found[selector] = flat.reshape(len(of), -1)[order]
    return positions, scores


def _standard_ranks(scores_WM: np.ndarray) -> np.ndarray:
    """Ranks (of ties the mean) of each window's scores, to mean 0 and length 1, so that the product of two windows' is
    Spearman's correlation; float [W, M], NaN where all scores of the window are equal."""
    ranks_WM = rankdata(scores_WM, axis=1)
    ranks_WM -= ranks_WM.mean(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return np.asarray(ranks_WM / np.linalg.norm(ranks_WM, axis=1, keepdims=True))


def agreement(folder: Path, measurement: Measurement, context: str = "real") -> list[dict[str, Any]]:
    """How far each two selectors agree on the same windows, under the same context.

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
    positions, scores = _choices(folder, measurement, context)
    codes, documents = pd.factorize(measurement.windows["doc_id"])
    num_windows, num_long_range = len(codes), int(measurement.facts["context"]["num_long_range"])
    rows = np.arange(num_windows)[:, None]
    chosen: dict[tuple[str, int], np.ndarray] = {}
    for selector, positions_WK in positions.items():
        for k in measurement.ks:
            chosen[selector, k] = np.zeros((num_windows, num_long_range), dtype=bool)
            chosen[selector, k][rows, positions_WK[:, :k]] = True
    ranks = {selector: _standard_ranks(scores_WM) for selector, scores_WM in scores.items()}

    def add(values: np.ndarray) -> np.ndarray:
        return document_sums(values, codes, len(documents))

    pairs = list(combinations(measurement.selectors, 2))
    sums: dict[Any, np.ndarray] = {"windows": add(np.ones(num_windows))}
    for a, b in pairs:
        for k in measurement.ks:
            sums[a, b, k] = add((chosen[a, k] & chosen[b, k]).sum(axis=1) / k)
        correlations = (ranks[a] * ranks[b]).sum(axis=1)
        sums[a, b, "ranked"] = add(np.isfinite(correlations))
        sums[a, b, "correlation"] = add(np.nan_to_num(correlations))

    def means(total: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        values = {(a, b, k): total[a, b, k] / total["windows"] for a, b in pairs for k in measurement.ks}
        return values | {(a, b): total[a, b, "correlation"] / total[a, b, "ranked"] for a, b in pairs}

    found = estimates(sums, means) if pairs else {}
    return [
        {
            "selectors": [a, b],
            "context": context,
            "overlap": [{"k": k, "chance": k / num_long_range, **(found[a, b, k] or {})} for k in measurement.ks],
            "rank_correlation": found[a, b],
            "num_windows_left_out": num_windows - int(sums[a, b, "ranked"].sum()),
        }
        for a, b in pairs
    ]
