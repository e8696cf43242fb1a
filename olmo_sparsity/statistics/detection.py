"""Precision and recall of the selectors against planted tokens.

The truth of a window is a set of planted positions. *Precision at k* is the share of the k best-ranked positions that were
planted. *Recall at k* is the share of the planted positions that are among the k best-ranked. Where k is the number of planted
positions both are the same number, ``precision_at_truth`` (also called R-precision). All are means over windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd

from olmo_sparsity.statistics.intervals.bootstrap import MIN_DOCUMENTS, document_units, estimates
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.ratios import Value
from olmo_sparsity.statistics.intervals.shares import Share
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.statistics.single.summary import Gate, gate_of
from olmo_sparsity.statistics.single.sums import gate_gain
from olmo_sparsity.tables.reading import read_manifest, read_table

NUM_DISTANCES = 3
LOSSES = ("loss_short_nats", "loss_short_no_gap_nats", "loss_long_nats", "loss_planted_nats")


@dataclass(frozen=True)
class PrecisionAtK:
    """Precision and recall of one selector at one k."""

    k: int
    precision: Optional[Estimate]
    recall: Optional[Estimate]


@dataclass(frozen=True)
class PrecisionAtDistance:
    """Precision at truth in the windows whose planted tokens have a mean distance to the target within a range.

    Attributes:
        distance_above_tokens: the range begins above this distance.
        distance_to_tokens: the range ends at this distance.
        num_windows: number of windows in the range.
        precision_at_truth: None where there are no windows.
    """

    distance_above_tokens: float
    distance_to_tokens: float
    num_windows: int
    precision_at_truth: Optional[Estimate]


@dataclass(frozen=True)
class SelectorDetection:
    """What one selector found in one suite; ``by_distance`` has the nearest third of the distances first."""

    selector: str
    precision_at_truth: Optional[Estimate]
    at_k: tuple[PrecisionAtK, ...]
    by_distance: tuple[PrecisionAtDistance, ...]


@dataclass(frozen=True)
class Suite:
    """One suite with one number of planted tokens.

    Attributes:
        suite: name of the suite.
        num_planted: copies of the needle.
        local_len: local tokens of a window.
        full_len: tokens of a window.
        num_windows: number of windows.
        num_documents: number of documents that they come from.
        chance: precision of a random ranking.
        mean_planted_tokens: mean number of planted positions.
        loss_short_nats: mean loss with the local tokens visible.
        loss_short_no_gap_nats: mean loss with these directly behind the anchor, where a training row begins.
        loss_long_nats: mean loss with all tokens visible.
        loss_planted_nats: mean loss with the local and the planted tokens visible.
        long_gain_nats: loss_short_nats minus loss_long_nats.
        gate_gain_nats: the lower of the first two losses minus loss_long_nats, which the gate judges.
        planted_gain_nats: loss_short_nats minus loss_planted_nats.
        gate: ``passed`` if the model uses the long context in this suite.
        selectors: one entry for each selector.
    """

    suite: str
    num_planted: int
    local_len: int
    full_len: int
    num_windows: int
    num_documents: int
    chance: float
    mean_planted_tokens: float
    loss_short_nats: Estimate
    loss_short_no_gap_nats: Estimate
    loss_long_nats: Estimate
    loss_planted_nats: Estimate
    long_gain_nats: Estimate
    gate_gain_nats: Estimate
    planted_gain_nats: Estimate
    gate: Gate
    selectors: tuple[SelectorDetection, ...]


@dataclass(frozen=True)
class Detection:
    """The numbers of one validation."""

    run: str
    run_id: str
    source: str
    split: str
    setup: ModelSetup
    suites: tuple[Suite, ...]


@dataclass(frozen=True)
class _SelectorNumber:
    """Key of a sum or quantity of one selector: its name, and the k or the third of the distances that it belongs to."""

    selector: str
    name: str
    index: int = 0


@dataclass(frozen=True)
class _Windows:
    """The windows of one suite.

    Attributes:
        frame: their rows of the table ``planted``.
        truth: the planted positions of each window.
        num_true_W: how many these are, int [W].
        third_W: which third of the distances they lie in, int [W].
        edges: distances at which the thirds begin and end, in tokens.
    """

    frame: pd.DataFrame
    truth: list[np.ndarray]
    num_true_W: np.ndarray
    third_W: np.ndarray
    edges: np.ndarray


def hits(ranked_WM: np.ndarray, truth: list[np.ndarray]) -> np.ndarray:
    """Count how many of the first r ranked positions are planted, for r = 1 .. M.

    Args:
        ranked_WM: positions, the most influential first, int [W, M].
        truth: the planted positions of each window.

    Returns:
        int64 [W, M].
    """
    planted_WM = np.zeros(ranked_WM.shape, dtype=bool)
    for row, positions in zip(planted_WM, truth, strict=True):
        row[positions] = True
    return np.take_along_axis(planted_WM, ranked_WM, axis=1).cumsum(axis=1)


def detection(folder: Path) -> Detection:
    """Read a validation and estimate its losses, precision and recall, suite by suite.

    Raises:
        UserError: the tables are missing, unfinished or of another schema.
    """
    manifest = read_manifest(folder, "validation")
    columns = ["window_id", "suite", "doc_id", "num_planted", "planted_positions", "planted_distance_tokens", *LOSSES]
    planted = read_table(folder, "planted", columns=columns).to_pandas()
    rankings = read_table(folder, "found").to_pandas()
    record_of = {(record["suite"], record["num_planted"]): record for record in manifest["suites"]}
    return Detection(
        manifest["run"],
        manifest["run_id"],
        manifest["source"],
        manifest["split"],
        ModelSetup.from_manifest(manifest),
        tuple(
            _suite(rows, rankings, record=record_of[key], ks=manifest["validation"]["k"])
            for key, rows in planted.groupby(["suite", "num_planted"], sort=False)
        ),
    )


def _suite(rows: pd.DataFrame, rankings: pd.DataFrame, *, record: dict[str, Any], ks: list[int]) -> Suite:
    """Return the numbers of one suite.

    Args:
        rows: its rows of the table ``planted``.
        rankings: the table ``found``.
        record: its entry in the manifest.
        ks: the k at which precision and recall are taken.
    """
    local_len, full_len = record["local_len"], record["full_len"]
    windows = _windows_of(rows, local_len, full_len=full_len)
    selectors = list(dict.fromkeys(rankings.loc[rankings["window_id"].isin(rows["window_id"]), "selector"]))
    sums = _suite_sums(windows, rankings, selectors=selectors, ks=ks)
    quantities = partial(_suite_quantities, selectors=selectors, ks=ks, num_long_range=full_len - local_len)
    estimate_of = estimates(sums, quantities)
    for selector, name, k in product(selectors, ("precision", "recall"), ks):
        key = _SelectorNumber(selector, name, k)
        share = estimate_of[key]
        estimate_of[key] = share and share.times(float(sums["most", name, k].sum() / len(rows)))

    def mean(name: str) -> Estimate:
        estimate = estimate_of[name]
        assert estimate is not None, name  # a mean over one window or more
        return estimate

    return Suite(
        suite=record["suite"],
        num_planted=int(record["num_planted"]),
        local_len=local_len,
        full_len=full_len,
        num_windows=len(rows),
        num_documents=int(rows["doc_id"].nunique()),
        chance=float((windows.num_true_W / (full_len - local_len)).mean()),
        mean_planted_tokens=float(windows.num_true_W.mean()),
        **{name: mean(name) for name in (*LOSSES, "long_gain_nats", "gate_gain_nats", "planted_gain_nats")},
        gate=gate_of(mean("gate_gain_nats")),
        selectors=tuple(_selector_detection(name, estimate_of, windows=windows, ks=ks) for name in selectors),
    )


def _windows_of(rows: pd.DataFrame, local_len: int, *, full_len: int) -> _Windows:
    truth = [np.asarray(positions) for positions in rows["planted_positions"]]
    edges = np.linspace(local_len, full_len, NUM_DISTANCES + 1)
    third_W = np.clip(np.digitize(rows["planted_distance_tokens"], edges, right=True) - 1, 0, NUM_DISTANCES - 1)
    return _Windows(rows, truth, np.array([len(positions) for positions in truth]), third_W, edges)


def _suite_sums(
    windows: _Windows, rankings: pd.DataFrame, *, selectors: list[str], ks: list[int]
) -> dict[Any, np.ndarray]:
    """Return all that the quantities of a suite depend on, summed over each bootstrap unit, float64 [U]."""
    rows, third_W = windows.frame, windows.third_W
    units = document_units(rows["doc_id"])
    sums: dict[Any, np.ndarray] = {"windows": units.counts()}
    for name in LOSSES:
        sums[name] = units.sums(rows[name])
    for third in range(NUM_DISTANCES):
        sums["in third", third] = units.sums(third_W == third)
    for k in ks:
        for name, of in (("precision", k), ("recall", windows.num_true_W)):
            sums["most", name, k] = units.sums(np.minimum(k, windows.num_true_W) / of)
    for selector in selectors:
        ranked = rankings[rankings["selector"] == selector].set_index("window_id").loc[rows["window_id"]]
        hits_WM = hits(np.stack(ranked["ranked_positions"].to_list()), windows.truth)
        at_truth_W = hits_WM[np.arange(len(hits_WM)), windows.num_true_W - 1] / windows.num_true_W
        sums[_SelectorNumber(selector, "at truth")] = units.sums(at_truth_W)
        for third in range(NUM_DISTANCES):
            sums[_SelectorNumber(selector, "third", third)] = units.sums(at_truth_W * (third_W == third))
        for k in ks:
            for name, of in (("precision", k), ("recall", windows.num_true_W)):
                sums[_SelectorNumber(selector, name, k)] = units.sums(hits_WM[:, k - 1] / of)
    return sums


def _suite_quantities(
    totals: Mapping[Any, np.ndarray], *, selectors: list[str], ks: list[int], num_long_range: int
) -> dict[Any, Value]:
    """Return the quantities of a suite from the totals of ``_suite_sums``; precision and recall as shares of their maximum."""
    n = totals["windows"]
    values: dict[Any, Any] = {name: totals[name] / n for name in LOSSES}
    for selector in selectors:
        at_truth = _SelectorNumber(selector, "at truth")
        values[at_truth] = Share(totals[at_truth], n)
        for k, name in product(ks, ("precision", "recall")):
            key = _SelectorNumber(selector, name, k)
            values[key] = Share(totals[key], totals["most", name, k], is_all=k >= num_long_range)
        for third in range(NUM_DISTANCES):
            key = _SelectorNumber(selector, "third", third)
            values[key] = Share(totals[key], totals["in third", third])
    values["long_gain_nats"] = values["loss_short_nats"] - values["loss_long_nats"]
    gap_cost = values["loss_short_nats"] - values["loss_short_no_gap_nats"]
    values["gate_gain_nats"] = gate_gain(values["long_gain_nats"], gap_cost)
    values["planted_gain_nats"] = values["loss_short_nats"] - values["loss_planted_nats"]
    return values


def _selector_detection(
    selector: str, estimate_of: Mapping[Any, Optional[Estimate]], *, windows: _Windows, ks: list[int]
) -> SelectorDetection:
    def estimate(name: str, index: int = 0) -> Optional[Estimate]:
        return estimate_of[_SelectorNumber(selector, name, index)]

    def of_third(third: int) -> Optional[Estimate]:
        of, rows_r = estimate("third", third), windows.frame["doc_id"][windows.third_W == third]
        return of if of is None or rows_r.nunique() >= MIN_DOCUMENTS else of.without_interval()

    return SelectorDetection(
        selector,
        estimate("at truth"),
        tuple(PrecisionAtK(k, estimate("precision", k), estimate("recall", k)) for k in ks),
        tuple(
            PrecisionAtDistance(
                float(windows.edges[third]),
                float(windows.edges[third + 1]),
                int((windows.third_W == third).sum()),
                of_third(third),
            )
            for third in range(NUM_DISTANCES)
        ),
    )
