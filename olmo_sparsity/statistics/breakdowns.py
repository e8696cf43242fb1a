"""A measurement by target class, by sample size and by distance. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from olmo_sparsity.statistics.bootstrap import document_sums, document_units, estimates
from olmo_sparsity.statistics.measurement import Measurement, window_rows
from olmo_sparsity.statistics.summary import summarize
from olmo_sparsity.tables.reading import list_rows, read_parts, rows_by_choice

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
    for part in read_parts(folder, "selections", columns=["window_id", "selector", "context", "distance_tokens"]):
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
