"""A measurement by target class and by distance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd

from olmo_sparsity.statistics.intervals.bootstrap import defined_estimates, document_units, estimates
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.shares import Share
from olmo_sparsity.statistics.single.measurement import (
    LONG_GAIN,
    Lengths,
    Measurement,
    SelectionKey,
    window_rows,
)
from olmo_sparsity.statistics.single.summary import Summary, summarize
from olmo_sparsity.tables.reading import list_rows, padded_rows, read_parts, rows_by_choice

MAX_BINS = 16
LOG_DISTANCES = 64  # from so many long-range tokens on, bins of distance have about equal widths on a logarithmic axis
# Classes whose rule looks for the target among the long-range tokens, so that being in the class is part of the outcome.
CONDITIONED_CLASSES = ("induction", "repeat")


@dataclass(frozen=True)
class ClassContrast:
    """What the long gain of a class is compared with whose rule looks for the target among the long-range tokens.

    A long context that holds the target makes a model predict it more often, and one that does not hold it less often, whether
    or not the context is the target's own. Each number is None where there is no such window, or all of them weigh 0.

    Attributes:
        others_gain_nats: mean long gain of the targets of all other classes.
        null_num_windows: windows that the same rule puts into the class by the tokens of the null context.
        null_gain_nats: their mean long gain under the null context.
        null_others_gain_nats: mean long gain under the null context of all other windows.
    """

    others_gain_nats: Optional[Estimate]
    null_num_windows: int
    null_gain_nats: Optional[Estimate]
    null_others_gain_nats: Optional[Estimate]


@dataclass(frozen=True)
class ClassSummary:
    """The windows whose target belongs to one class.

    Attributes:
        target_class: name of the class.
        window_share: share of all windows that belong to the class.
        summary: their numbers, with a gate of their own; BCa intervals over the documents that hold such windows, but of
            shares exact ones. There is no R(k) where the gate of all windows failed.
        contrast: of the classes ``CONDITIONED_CLASSES``; None for others.
    """

    target_class: str
    window_share: Estimate
    summary: Summary
    contrast: Optional[ClassContrast]


@dataclass(frozen=True)
class DistanceBin:
    """Part of the distances to the target.

    Attributes:
        from_tokens: smallest distance of the bin, in tokens.
        to_tokens: largest distance of the bin, in tokens.
        uniform: share of a random choice that lies in the bin.
        share: share of the chosen tokens of all windows (of groups: of all their tokens) that lies in the bin.
    """

    from_tokens: int
    to_tokens: int
    uniform: float
    share: Optional[Estimate]

    @property
    def center_tokens(self) -> float:
        """The middle of the bin."""
        return (self.from_tokens + self.to_tokens) / 2

    @property
    def relative_share(self) -> Optional[Estimate]:
        """The share over that of a random choice: 1 where distance does not matter, whatever the width of the bin."""
        return None if self.share is None else self.share.times(1 / self.uniform)


@dataclass(frozen=True)
class DistanceShares:
    """Where the k chosen tokens of one selector and context lie; the nearest bin first."""

    selector: str
    context: str
    k: int
    bins: tuple[DistanceBin, ...]


def has_log_distances(lengths: Lengths) -> bool:
    """Return True if there are so many long-range tokens that distances are shown on a logarithmic axis."""
    return lengths.num_long_range >= LOG_DISTANCES


def by_class(measurement: Measurement, whole: Summary) -> list[ClassSummary]:
    """Return the summary of the windows of each target class whose windows do not all weigh 0, the highest mean long gain first.

    Each class has a gate of its own, so that no R(k) is shown of a class that does not gain from the long context. A gate has
    a 2.5% chance to pass without any long gain: of eight such classes, one passes in about one measurement of six. So there is
    no R(k) of any class where the gate of all windows failed.

    Args:
        measurement: the windows and their numbers.
        whole: the summary of the same measurement.
    """
    units = document_units(measurement.windows["doc_id"])
    class_W, class_names = pd.factorize(measurement.windows["target_class"])
    inside = {str(name): class_W == i for i, name in enumerate(class_names)}
    names = sorted(name for name, inside_W in inside.items() if measurement.weights_W[inside_W].any())
    sums = {name: units.sums(measurement.weights_W * inside[name]) for name in names}

    def shares(totals: Mapping[str, np.ndarray]) -> dict[str, Share]:
        return {name: Share(totals[name], np.sum([*totals.values()], axis=0)) for name in names}

    share_of = defined_estimates(sums, shares)
    classes = []
    for name in names:
        summary = summarize(measurement.restrict(inside[name]), method="bca")
        if not whole.gate_passed:
            summary = summary.without_recovered_fractions()
        contrast = _contrast(measurement, name) if name in CONDITIONED_CLASSES else None
        classes.append(ClassSummary(name, share_of[name], summary, contrast))
    return sorted(classes, key=lambda entry: -entry.summary.long_gain_nats.mean)


def _contrast(measurement: Measurement, name: str) -> ClassContrast:
    windows = measurement.windows
    is_inside_W, is_null_W = ((windows[column] == name).to_numpy() for column in ("target_class", "null_target_class"))
    return ClassContrast(
        others_gain_nats=_mean_of_some(measurement, LONG_GAIN["real"], keep_W=~is_inside_W),
        null_num_windows=int(is_null_W.sum()),
        null_gain_nats=_mean_of_some(measurement, LONG_GAIN["null"], keep_W=is_null_W),
        null_others_gain_nats=_mean_of_some(measurement, LONG_GAIN["null"], keep_W=~is_null_W),
    )


def _mean_of_some(measurement: Measurement, column: str, *, keep_W: np.ndarray) -> Optional[Estimate]:
    """Return the weighted mean of a column over some windows, with a BCa interval over their documents."""
    if not measurement.weights_W[keep_W].any():
        return None
    windows, weights_w = measurement.windows[keep_W], measurement.weights_W[keep_W]
    units = document_units(windows["doc_id"])
    sums = {"weight": units.sums(weights_w), "value": units.sums(weights_w * windows[column].to_numpy(np.float64))}

    def mean(totals: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {"mean": totals["value"] / totals["weight"]}

    return estimates(sums, mean, method="bca")["mean"]


def by_distance(folder: Path, measurement: Measurement) -> list[DistanceShares]:
    """Return how far from the target the chosen tokens lie, for every selector and k, in the real and the null context.

    Args:
        folder: the tables that the measurement was loaded from.
        measurement: names the windows, selectors and k.
    """
    lengths, keys = measurement.lengths, measurement.keys
    edges = _edges_of_distances(lengths)
    bounds = list(pairwise(edges.tolist()))

    def shares(totals: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        return {(key, b): totals[key, b] / totals[key] for key in keys for b in range(len(bounds))}

    share_of = estimates(_counts_by_distance(folder, measurement, edges=edges), shares)
    return [
        DistanceShares(
            key.selector,
            key.context,
            key.k,
            tuple(
                DistanceBin(low + 1, high, (high - low) / lengths.num_long_range, share_of[key, b])
                for b, (low, high) in enumerate(bounds)
            ),
        )
        for key in keys
    ]


def _edges_of_distances(lengths: Lengths) -> np.ndarray:
    """Return the edges of the bins of distances, whole numbers, rising; a bin holds what lies above its edge, up to the next."""
    num_bins = min(MAX_BINS, lengths.num_long_range)
    if not has_log_distances(lengths):
        return np.floor(np.linspace(lengths.local_len, lengths.full_len, num_bins + 1)).astype(int)
    return np.unique(np.geomspace(lengths.local_len, lengths.full_len, num_bins + 1).round().astype(int))


def _counts_by_distance(folder: Path, measurement: Measurement, *, edges: np.ndarray) -> dict[Any, np.ndarray]:
    """Sum the weights of the chosen tokens of each selection, and in each bin of distance, in every unit; float64 [U]."""
    num_bins = len(edges) - 1
    units, weights_W = document_units(measurement.windows["doc_id"]), measurement.weights_W
    counts: dict[Any, np.ndarray] = {key: units.zeros() for key in measurement.keys}
    counts |= {(key, b): units.zeros() for key in measurement.keys for b in range(num_bins)}
    has_groups = measurement.unit != "token"
    columns = ["window_id", "selector", "context", "distance_tokens", *(["num_tokens"] if has_groups else [])]
    for part in read_parts(folder, "selections", columns=columns):
        windows_R = window_rows(measurement.windows, part["window_id"])
        bins_RS = np.digitize(padded_rows(part["distance_tokens"]), edges, right=True) - 1
        place_S = np.arange(bins_RS.shape[1])
        num_tokens_RK = list_rows(part["num_tokens"]) if has_groups else np.tile(measurement.ks, (len(part), 1))
        for selector, context, rows_r in rows_by_choice(part):
            rows_r = rows_r[windows_R[rows_r] >= 0]
            if SelectionKey(selector, context, measurement.ks[0]) not in counts:
                continue
            units_r, weights_r = units.unit_W[windows_R[rows_r]], weights_W[windows_R[rows_r]]
            for i, k in enumerate(measurement.ks):
                selection, num_tokens_r = SelectionKey(selector, context, k), num_tokens_RK[rows_r, i]
                np.add.at(counts[selection], units_r, weights_r * num_tokens_r)
                is_chosen_rS = place_S < num_tokens_r[:, None]
                for b in range(num_bins):
                    in_bin_r = ((bins_RS[rows_r] == b) & is_chosen_rS).sum(axis=1)
                    np.add.at(counts[selection, b], units_r, weights_r * in_bin_r)
    return counts
