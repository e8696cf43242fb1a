"""How far two selectors agree on the same windows: overlap of their choices, correlation of their rankings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa
from scipy.stats import rankdata

from olmo_sparsity.statistics.bootstrap import document_units, estimates
from olmo_sparsity.statistics.estimate import Estimate
from olmo_sparsity.statistics.measurement import Measurement, window_rows
from olmo_sparsity.tables.reading import list_rows, read_parts, rows_by_choice


@dataclass(frozen=True)
class Overlap:
    """How many of the k chosen positions two selectors share.

    Attributes:
        k: number of chosen positions.
        chance: k / M, the mean share of two random choices.
        share: mean share of common positions.
    """

    k: int
    chance: float
    share: Optional[Estimate]


@dataclass(frozen=True)
class Agreement:
    """Agreement of two selectors in one context.

    Attributes:
        selectors: their names.
        context: ``real`` or ``null``.
        overlap: one entry for each k.
        rank_correlation: mean over windows of Spearman's correlation of the M scores; None where no window has one.
        num_windows_left_out: windows without a rank correlation, since one of the two scores all positions equally.
    """

    selectors: tuple[str, str]
    context: str
    overlap: tuple[Overlap, ...]
    rank_correlation: Optional[Estimate]
    num_windows_left_out: int


@dataclass(frozen=True)
class _PairKey:
    """Key of a number of two selectors."""

    a: str
    b: str


@dataclass(frozen=True)
class _Common(_PairKey):
    """Share of common positions among the k chosen."""

    k: int


@dataclass(frozen=True)
class _Ranked(_PairKey):
    """Windows that have a rank correlation."""


@dataclass(frozen=True)
class _Correlation(_PairKey):
    """Rank correlation."""


def _standard_ranks(scores_WM: np.ndarray) -> np.ndarray:
    """Return the ranks of each window's scores (ties get their mean), shifted to mean 0 and scaled to length 1.

    The product of two windows' ranks is then Spearman's correlation. Float [W, M]; NaN where all scores of a window are equal.
    """
    ranks_WM = rankdata(scores_WM, axis=1)
    ranks_WM -= ranks_WM.mean(axis=1, keepdims=True)
    with np.errstate(invalid="ignore"):
        return np.asarray(ranks_WM / np.linalg.norm(ranks_WM, axis=1, keepdims=True))


def _agreement_of_part(
    part: pa.Table, measurement: Measurement, *, context: str
) -> tuple[np.ndarray, dict[_PairKey, np.ndarray]]:
    """Compute the terms that ``agreement`` sums, for the windows of one part of ``selections``.

    Returns:
        The windows' rows in the measurement, int [w], and for each pair of selectors the share of common positions, whether
        there is a rank correlation, and the rank correlation (0 where there is none); each [w].
    """
    windows_R, positions_RK = window_rows(measurement.windows, part["window_id"]), list_rows(part["positions"])
    scores_RM = list_rows(part["scores"])
    windows_w = np.unique(windows_R[windows_R >= 0])
    chosen_of: dict[tuple[str, int], np.ndarray] = {}
    ranks_of: dict[str, np.ndarray] = {}
    for selector, context_of_rows, rows_r in rows_by_choice(part):
        rows_r = rows_r[windows_R[rows_r] >= 0]
        if context_of_rows != context or selector not in measurement.selectors:
            continue
        rows_r = rows_r[np.argsort(windows_R[rows_r])]
        ranks_of[selector] = _standard_ranks(scores_RM[rows_r])
        for k in measurement.ks:
            chosen_wM = np.zeros((len(windows_w), scores_RM.shape[1]), dtype=bool)
            np.put_along_axis(chosen_wM, positions_RK[rows_r, :k], True, axis=1)
            chosen_of[selector, k] = chosen_wM
    terms: dict[_PairKey, np.ndarray] = {}
    for a, b in combinations(measurement.selectors, 2):
        for k in measurement.ks:
            terms[_Common(a, b, k)] = (chosen_of[a, k] & chosen_of[b, k]).sum(axis=1) / k
        correlation_w = (ranks_of[a] * ranks_of[b]).sum(axis=1)
        terms[_Ranked(a, b)] = np.isfinite(correlation_w)
        terms[_Correlation(a, b)] = np.nan_to_num(correlation_w)
    return windows_w, terms


def agreement(folder: Path, measurement: Measurement, *, context: str = "real") -> list[Agreement]:
    """Return how far each two selectors agree on the same windows, under the same context.

    Positions and scores are read part by part, and only sums are kept.

    Args:
        folder: the tables that the measurement was loaded from.
        measurement: names the windows, selectors and k.
        context: ``real`` or ``null``.
    """
    pairs, ks = list(combinations(measurement.selectors, 2)), measurement.ks
    if not pairs:
        return []
    num_windows = len(measurement.windows)
    units = document_units(measurement.windows["doc_id"])
    weights_W = measurement.weights_W
    sums: dict[Any, np.ndarray] = {"weight": units.sums(weights_W)}
    num_ranked = dict.fromkeys((_Ranked(a, b) for a, b in pairs), 0)
    for a, b in pairs:
        for key in (*(_Common(a, b, k) for k in ks), _Ranked(a, b), _Correlation(a, b)):
            sums[key] = units.zeros()
    for part in read_parts(folder, "selections", columns=["window_id", "selector", "context", "positions", "scores"]):
        windows_w, terms = _agreement_of_part(part, measurement, context=context)
        for key, values_w in terms.items():
            # A part has few windows, and the units are many.
            np.add.at(sums[key], units.unit_W[windows_w], weights_W[windows_w] * values_w)
            if isinstance(key, _Ranked):
                num_ranked[key] += int(values_w.sum())

    def means(totals: Mapping[Any, np.ndarray]) -> dict[_PairKey, np.ndarray]:
        values: dict[_PairKey, np.ndarray] = {}
        for a, b in pairs:
            values |= {_Common(a, b, k): totals[_Common(a, b, k)] / totals["weight"] for k in ks}
            values[_Correlation(a, b)] = totals[_Correlation(a, b)] / totals[_Ranked(a, b)]
        return values

    estimate_of, num_long_range = estimates(sums, means), measurement.lengths.num_long_range
    return [
        Agreement(
            (a, b),
            context,
            tuple(Overlap(k, k / num_long_range, estimate_of[_Common(a, b, k)]) for k in ks),
            estimate_of[_Correlation(a, b)],
            num_windows - num_ranked[_Ranked(a, b)],
        )
        for a, b in pairs
    ]
