"""Sums over documents, and the quantities that are functions of these sums.

The sums of all windows have strings as keys: ``weight``, and the names of columns. Sums and quantities of one selection have a
``SelectionNumber`` as key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np

from olmo_sparsity.statistics.intervals.bootstrap import Units, document_units
from olmo_sparsity.statistics.intervals.lines import line_of_sums
from olmo_sparsity.statistics.intervals.ratios import Value, minus, share_without
from olmo_sparsity.statistics.intervals.shares import Share
from olmo_sparsity.statistics.single.measurement import (
    LONG_GAIN,
    NUMBERS,
    OF_ROW,
    SHORT_DIVERGENCE,
    Measurement,
    SelectionKey,
)
from olmo_sparsity.statistics.single.spectrum import TOLERANCE, sufficient_ks


@dataclass(frozen=True)
class SelectionNumber:
    """Key of a sum or of a quantity that belongs to one selection."""

    selection: SelectionKey
    name: str


Key = Union[str, SelectionNumber]
OF_WINDOWS = (*NUMBERS, "optimism_all_nats")  # columns of ``Measurement.windows`` that are summed


def _squared(name: str) -> str:
    return f"{name} squared"


NONE_NEEDED = {"real": "none_needed_share", "null": "null_none_needed_share"}  # quantity and its sum, by context
SUFFICIENT_ALL = "sufficient, of all"  # the sum of the targets that need at most k where no window has more than k
# The losses of which a gate takes the lower, by the gain that it judges.
BASELINES = {"gate_gain_nats": ("loss_short_nats", "loss_short_no_gap_nats"), "gain_beyond_nats": OF_ROW}


def sums_by_unit(measurement: Measurement, units: Optional[Units] = None) -> dict[Key, np.ndarray]:
    """Return everything that the quantities depend on, summed over each document (or group of documents).

    Every window counts with its weight.

    Args:
        measurement: the windows, their gains, divergences and optimisms.
        units: the units of the windows; None: those of this measurement alone.

    Returns:
        key -> float64 [U]. Of the windows: their ``weight``, each column of ``OF_WINDOWS`` that they have (those of ``OF_ROW``
        only where tokens lie beyond the row), and the long gain of each context squared; and by the names in ``NONE_NEEDED`` the
        targets that need no long-range token. Of each selection: its sparse gain (``gain``), its divergence, its ``optimism``
        where it was measured, and in the contexts of ``LONG_GAIN`` the gain squared and times the long gain of the same context,
        and the targets that need at most k (``sufficient``; ``SUFFICIENT_ALL`` where k is all in every window).
    """
    windows, weights_W = measurement.windows, measurement.weights_W
    units = document_units(windows["doc_id"]) if units is None else units

    def weighted(values: Any) -> np.ndarray:
        return units.sums(weights_W * np.asarray(values, dtype=np.float64))

    sums: dict[Key, np.ndarray] = {"weight": units.sums(weights_W)}
    for name in OF_WINDOWS:
        if name in windows and not (name in OF_ROW and measurement.lengths.is_ceiling):
            sums[name] = weighted(windows[name])
    long_gains = {context: windows[name].to_numpy(np.float64) for context, name in LONG_GAIN.items()}
    for context, long_gain_W in long_gains.items():
        sums[_squared(LONG_GAIN[context])] = weighted(long_gain_W**2)
        sums[NONE_NEEDED[context]] = weighted(windows[SHORT_DIVERGENCE[context]].to_numpy(np.float64) <= TOLERANCE)
    need_W = {curve[:2]: k_W for curve, k_W in sufficient_ks(measurement, tolerances=[TOLERANCE])}
    for key in measurement.keys:
        gain_W = measurement.gains[key].to_numpy(np.float64)
        sums[SelectionNumber(key, "gain")] = weighted(gain_W)
        sums[SelectionNumber(key, "divergence")] = weighted(measurement.divergences[key])
        sums[SelectionNumber(key, "gain squared")] = weighted(gain_W**2)
        sums[SelectionNumber(key, "gain times long gain")] = weighted(gain_W * long_gains[key.context])
        is_all = key.k >= measurement.num_groups_W(key.context).max()
        name = SUFFICIENT_ALL if is_all else "sufficient"
        sums[SelectionNumber(key, name)] = weighted(need_W[key.selector, key.context] <= key.k)
        if key in measurement.optimisms:
            sums[SelectionNumber(key, "optimism")] = weighted(measurement.optimisms[key])
    return sums


def window_quantities(totals: Mapping[Any, np.ndarray]) -> dict[Key, Value]:
    """Return the quantities of all windows that ``Summary`` holds, from the totals of ``sums_by_unit``.

    Those of the training row are missing where none is known or nothing lies beyond it, others where they were not measured.

    A model reads the same recent tokens better or worse in place, behind a gap of position IDs, than directly behind the anchor.
    Both gates take the arrangement with the lower mean loss, in each resample anew. That is conservative: in every resample
    the lower baseline leaves no more gain than either one, so the lower end of its percentile interval lies above 0 only where
    both baselines' lower ends do. A gate that must pass twice passes by chance no more often than once.
    """
    weight, long_gain = totals["weight"], totals["gain_long_nats"]
    gap_cost = totals["loss_short_nats"] - totals["loss_short_no_gap_nats"]
    values: dict[Key, Value] = {
        "loss_short_nats": totals["loss_short_nats"] / weight,
        "loss_short_no_gap_nats": totals["loss_short_no_gap_nats"] / weight,
        "loss_long_nats": totals["loss_long_nats"] / weight,
        "long_gain_nats": long_gain / weight,
        "null_long_gain_nats": totals["null_gain_long_nats"] / weight,
        "content_gain_nats": (long_gain - totals["null_gain_long_nats"]) / weight,
        "kl_short_nats": totals["kl_short_nats"] / weight,
        "null_kl_short_nats": totals["null_kl_short_nats"] / weight,
        "gap_cost_nats": gap_cost / weight,
        "gate_gain_nats": gate_gain(long_gain, gap_cost) / weight,
        "calibration_nats": (totals["entropy_short_nats"] - totals["loss_short_nats"]) / weight,
        **{name: totals[name] / weight for name in (*OF_ROW, "optimism_all_nats") if name in totals},
        **{name: Share(totals[name], weight) for name in NONE_NEEDED.values() if name in totals},
    }
    rows = [totals[name] for name in OF_ROW if name in totals]
    if rows:
        values["gain_beyond_nats"] = (np.min(rows, axis=0) - totals["loss_long_nats"]) / weight
    if "optimism_all_nats" in totals:
        values["corrected_gain_all_nats"] = (long_gain - totals["optimism_all_nats"]) / weight
    return values


def gate_gain(long_gain: np.ndarray, gap_cost: np.ndarray) -> np.ndarray:
    """Return the gain that the first gate judges: the long gain from the lower of the losses with and without the gap."""
    return long_gain - np.maximum(gap_cost, 0)


def gain_from(loss: str) -> str:
    """Return the key of the mean gain from one of ``BASELINES``."""
    return f"gain from {loss}"


def gains_from_baselines(totals: Mapping[Any, np.ndarray]) -> dict[Key, Value]:
    """Return the mean gain from each of ``BASELINES`` that was measured."""
    return {
        gain_from(loss): (totals[loss] - totals["loss_long_nats"]) / totals["weight"]
        for losses in BASELINES.values()
        for loss in losses
        if loss in totals
    }


def selection_quantities(totals: Mapping[Any, np.ndarray], key: SelectionKey) -> dict[str, Value]:
    """Return the quantities of one selection that ``SelectionSummary`` holds, as far as they were measured."""
    selector, context, k = key
    weight = totals["weight"]
    gain = totals[SelectionNumber(key, "gain")]
    divergence, from_short = totals[SelectionNumber(key, "divergence")], totals[SHORT_DIVERGENCE[context]]
    values: dict[str, Value] = {
        "gain_sparse_nats": gain / weight,
        "prediction_recovered": share_without(divergence, from_short),
        "recovered_fraction": gain / totals["gain_long_nats"],
    }
    name = LONG_GAIN[context]
    values |= line_of_sums(
        weight,
        x=gain,
        y=totals[name],
        xx=totals[SelectionNumber(key, "gain squared")],
        yy=totals[_squared(name)],
        xy=totals[SelectionNumber(key, "gain times long gain")],
    )
    for sum_name, is_all in (("sufficient", False), (SUFFICIENT_ALL, True)):
        sufficient = totals.get(SelectionNumber(key, sum_name))
        if sufficient is not None:
            values["sufficient_share"] = Share(sufficient, weight, is_all)
    random = totals.get(SelectionNumber(SelectionKey("random", context, k), "gain"))
    if random is not None and selector != "random":
        values["gain_over_random_nats"] = (gain - random) / weight
    if context == "real":
        null_gain = totals[SelectionNumber(SelectionKey(selector, "null", k), "gain")]
        values["excess_gain_nats"] = (gain - null_gain) / weight
    optimism = totals.get(SelectionNumber(key, "optimism"))
    if optimism is not None:
        values["optimism_nats"] = optimism / weight
        values["corrected_gain_nats"] = (gain - optimism) / weight
    return values


def quantities_of(totals: Mapping[Any, np.ndarray], keys: Iterable[SelectionKey]) -> dict[Key, Value]:
    """Return all quantities of a measurement with these selections, from the totals of ``sums_by_unit``."""
    values = window_quantities(totals)
    for key in keys:
        for name, value in selection_quantities(totals, key).items():
            values[SelectionNumber(key, name)] = value
    return values


def quantities_minus(second: Mapping[Key, Value], first: Mapping[Key, Value]) -> dict[Key, Value]:
    """Return the quantities of one measurement minus those of another; only what both have."""
    return {key: minus(second[key], first[key]) for key in first if key in second}
