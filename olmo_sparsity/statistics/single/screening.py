"""What screening lost: the exact choice against the screened one, in a sample of the windows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Optional

import numpy as np

from olmo_sparsity.statistics.intervals.bootstrap import document_units, estimates
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.ratios import Value
from olmo_sparsity.statistics.intervals.shares import Share
from olmo_sparsity.statistics.single.measurement import Measurement, window_rows
from olmo_sparsity.tables.reading import list_rows, read_table

COLUMNS = ("recall", "gain_lost_nats")


@dataclass(frozen=True)
class ScreeningLoss:
    """What screening lost for one selector, context and k.

    Attributes:
        selector: name of the screened selector.
        context: ``real`` or ``null``.
        k: number of chosen tokens.
        num_windows: windows of the sample, in which the exact choice was measured as well.
        recall: mean share of the exact J_k among the k chosen tokens.
        blind_recall: what it would be if as many candidates were drawn at random: their mean share of a window's candidates.
        gain_lost_nats: mean sparse gain of the exact J_k minus that of the chosen tokens.
    """

    selector: str
    context: str
    k: int
    num_windows: int
    recall: Optional[Estimate]
    blind_recall: float
    gain_lost_nats: Optional[Estimate]


def screening(folder: Path, measurement: Measurement) -> list[ScreeningLoss]:
    """Return what screening lost, for each screened selector, context and k.

    It is nothing if the run did not screen, or if no window was drawn into its sample.

    Args:
        folder: the tables that the measurement was loaded from.
        measurement: has all windows; it names the k.
    """
    if not measurement.is_screened:
        return []
    table = read_table(folder, "screening")
    if table.num_rows == 0:
        return []
    units = document_units(table["doc_id"].to_pandas())
    selector_R, context_R = (table[name].to_numpy() for name in ("selector", "context"))
    rows_R = window_rows(measurement.windows, table["window_id"])
    weights_R, num_screened = measurement.weights_W[rows_R], measurement.manifest["influence"]["screen"]
    columns = {name: list_rows(table[name]) for name in COLUMNS}

    losses = []
    for selector, context in dict.fromkeys(zip(selector_R, context_R, strict=True)):
        is_choice_R = (selector_R == selector) & (context_R == context)
        sums: dict[Any, np.ndarray] = {"weight": units.sums(weights_R * is_choice_R)}
        for i, k in enumerate(measurement.ks):
            for name, values_RK in columns.items():
                values_R = np.where(is_choice_R, weights_R * values_RK[:, i], 0.0)
                sums[name, k] = units.sums(values_R)
        blind_R = np.minimum(1, num_screened / measurement.num_groups_W(context)[rows_R])
        blind_recall = float(np.average(blind_R, weights=weights_R * is_choice_R))
        means = partial(_means, ks=measurement.ks, is_all=blind_recall >= 1)
        estimate_of, num_windows = estimates(sums, means), int(is_choice_R.sum())
        losses += [
            ScreeningLoss(
                selector,
                context,
                k,
                num_windows,
                recall=estimate_of["recall", k],
                blind_recall=blind_recall,
                gain_lost_nats=estimate_of["gain_lost_nats", k],
            )
            for k in measurement.ks
        ]
    return losses


def _means(totals: Mapping[Any, np.ndarray], *, ks: Sequence[int], is_all: bool) -> dict[Any, Value]:
    """Return recall and lost gain at each k; ``is_all``: every token was a candidate."""
    values: dict[Any, Value] = {}
    for k in ks:
        values["recall", k] = Share(totals["recall", k], totals["weight"], is_all)
        values["gain_lost_nats", k] = totals["gain_lost_nats", k] / totals["weight"]
    return values
