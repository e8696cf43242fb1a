"""How far two selectors agree on the same windows: overlap of their choices, correlation of their rankings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc

from olmo_sparsity.statistics.intervals.bootstrap import document_units, estimates, of_some
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.ratios import Value
from olmo_sparsity.statistics.intervals.shares import Share
from olmo_sparsity.statistics.single.measurement import Measurement, window_rows
from olmo_sparsity.tables.reading import padded_rows, read_parts, rows_by_choice

CONTEXT = "real"  # the choices that are compared


@dataclass(frozen=True)
class Overlap:
    """How many of the k chosen positions, or groups, two selectors share.

    Attributes:
        k: number of chosen positions or groups.
        chance: the mean share of two random choices: k / M; of groups the mean over windows of k over their number, at most 1.
        share: mean share of common positions or groups.
    """

    k: int
    chance: float
    share: Optional[Estimate]


@dataclass(frozen=True)
class Agreement:
    """Agreement of two selectors in one context.

    Attributes:
        selectors: their names.
        context: ``real``.
        overlap: one entry for each k.
        rank_correlation: mean over windows of Spearman's correlation of the scores; None where no window has one.
        num_windows_left_out: windows without a rank correlation, since one of the two scores all positions equally or some not
            at all.
    """

    selectors: tuple[str, str]
    context: str
    overlap: tuple[Overlap, ...]
    rank_correlation: Optional[Estimate]
    num_windows_left_out: int

    def overlap_at(self, k: int) -> Overlap:
        """Return the overlap at one of the measured k."""
        return next(overlap for overlap in self.overlap if overlap.k == k)


class _Key(NamedTuple):
    """Key of a number of two selectors.

    Attributes:
        name: ``common``: share of common positions or groups among the k chosen; ``ranked``: windows that have a rank
            correlation; ``correlation``: rank correlation.
        a: the first selector.
        b: the second one.
        k: of ``common``.
    """

    name: str
    a: str
    b: str
    k: int = 0


def _standard_ranks(scores_WI: np.ndarray, num_groups_W: np.ndarray) -> np.ndarray:
    """Return the ranks of each window's scores (ties get their mean), shifted to mean 0 and scaled to length 1.

    The product of two windows' ranks is then Spearman's correlation. Float [W, I], 0 where a window has no more groups; NaN
    where all scores of a window are equal, or one is missing.
    """
    ranks_WI = np.zeros(scores_WI.shape)
    for num_groups in np.unique(num_groups_W).tolist():
        rows_w = np.flatnonzero(num_groups_W == num_groups)
        ranks_wI = pd.DataFrame(scores_WI[rows_w, :num_groups]).rank(axis=1).to_numpy()
        ranks_wI -= ranks_wI.mean(axis=1, keepdims=True)
        with np.errstate(invalid="ignore"):
            ranks_WI[rows_w, :num_groups] = ranks_wI / np.linalg.norm(ranks_wI, axis=1, keepdims=True)
    return ranks_WI


def _agreement_of_part(part: pa.Table, measurement: Measurement) -> tuple[np.ndarray, dict[_Key, np.ndarray]]:
    """Compute the terms that ``agreement`` sums, for the windows of one part of ``selections``.

    Returns:
        The windows' rows in the measurement, int [w], and for each pair of selectors the share of common positions, whether
        there is a rank correlation, and the rank correlation (0 where there is none); each [w].
    """
    windows_R = window_rows(measurement.windows, part["window_id"])
    scores_RI, num_groups_R = padded_rows(part["scores"], np.nan), pc.list_value_length(part["scores"]).to_numpy()
    chosen_RS = padded_rows(part[_chosen_column(measurement)], -1)
    width, compared = measurement.lengths.num_long_range, measurement.of_one_set
    windows_w = np.unique(windows_R[windows_R >= 0])
    chosen_of: dict[tuple[str, int], np.ndarray] = {}
    ranks_of: dict[str, np.ndarray] = {}
    num_groups_w = np.empty(0, dtype=np.int64)  # the same for all selectors
    for selector, context, rows_r in rows_by_choice(part):
        rows_r = rows_r[windows_R[rows_r] >= 0]
        if context != CONTEXT or selector not in compared:
            continue
        rows_r = rows_r[np.argsort(windows_R[rows_r])]
        num_groups_w = num_groups_R[rows_r]
        ranks_of[selector] = _standard_ranks(scores_RI[rows_r], num_groups_w)
        for k in measurement.ks:
            chosen_wM = np.zeros((len(windows_w), width + 1), dtype=bool)  # the last place: no more groups
            np.put_along_axis(chosen_wM, chosen_RS[rows_r, :k] % (width + 1), True, axis=1)
            chosen_of[selector, k] = chosen_wM[:, :width]
    terms: dict[_Key, np.ndarray] = {}
    for a, b in combinations(measurement.of_one_set, 2):
        for k in measurement.ks:
            common_w = (chosen_of[a, k] & chosen_of[b, k]).sum(axis=1)
            terms[_Key("common", a, b, k)] = common_w / np.minimum(k, num_groups_w)
        correlation_w = (ranks_of[a] * ranks_of[b]).sum(axis=1)
        terms[_Key("ranked", a, b)] = np.isfinite(correlation_w)
        terms[_Key("correlation", a, b)] = np.nan_to_num(correlation_w)
    return windows_w, terms


def _chosen_column(measurement: Measurement) -> str:
    """Return the column of ``selections`` that tells the chosen ones apart: each group has one first position."""
    return "positions" if measurement.unit == "token" else "group_first"


def _chance(measurement: Measurement, k: int) -> float:
    """Return the mean share of k random groups that k other random groups hold."""
    if measurement.unit == "token":
        return k / measurement.lengths.num_long_range
    return float(np.average(np.minimum(k / measurement.num_groups_W(CONTEXT), 1.0), weights=measurement.weights_W))


def agreement(folder: Path, measurement: Measurement) -> list[Agreement]:
    """Return how far each two selectors agree on the same windows, under the real context; not of those that choose by head.

    Positions and scores are read part by part, and only sums are kept.

    Args:
        folder: the tables that the measurement was loaded from.
        measurement: names the windows, selectors and k.
    """
    pairs, ks = list(combinations(measurement.of_one_set, 2)), measurement.ks
    if not pairs:
        return []
    num_windows = len(measurement.windows)
    units = document_units(measurement.windows["doc_id"])
    weights_W = measurement.weights_W
    sums: dict[Any, np.ndarray] = {"weight": units.sums(weights_W)}
    num_ranked = dict.fromkeys(pairs, 0)
    for a, b in pairs:
        for key in (*(_Key("common", a, b, k) for k in ks), _Key("ranked", a, b), _Key("correlation", a, b)):
            sums[key] = units.zeros()
    columns = ["window_id", "selector", "context", _chosen_column(measurement), "scores"]
    for part in read_parts(folder, "selections", columns=columns):
        windows_w, terms = _agreement_of_part(part, measurement)
        for key, values_w in terms.items():
            # A part has few windows, and the units are many.
            np.add.at(sums[key], units.unit_W[windows_w], weights_W[windows_w] * values_w)
            if key.name == "ranked":
                num_ranked[key.a, key.b] += int(values_w.sum())

    chance_of = {k: _chance(measurement, k) for k in ks}

    def means(totals: Mapping[Any, np.ndarray]) -> dict[_Key, Value]:
        values: dict[_Key, Value] = {}
        for a, b in pairs:
            values |= {
                (key := _Key("common", a, b, k)): Share(totals[key], totals["weight"], chance_of[k] >= 1) for k in ks
            }
            correlation = _Key("correlation", a, b)
            values[correlation] = totals[correlation] / totals[_Key("ranked", a, b)]
        return values

    estimate_of = estimates(sums, means)
    return [
        Agreement(
            (a, b),
            CONTEXT,
            tuple(Overlap(k, chance_of[k], estimate_of[_Key("common", a, b, k)]) for k in ks),
            of_some(estimate_of[_Key("correlation", a, b)], sums[_Key("ranked", a, b)]),
            num_windows - num_ranked[a, b],
        )
        for a, b in pairs
    ]
