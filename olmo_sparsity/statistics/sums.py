"""Sums over documents, and the quantities that are functions of these sums.

The sums of all windows have strings as keys: ``windows``, their number, and the names of loss and gain columns. Sums and
quantities of one selection have a ``SelectionNumber`` as key.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Optional, Union

import numpy as np

from olmo_sparsity.statistics.bootstrap import Units, document_units
from olmo_sparsity.statistics.lines import line_of_sums
from olmo_sparsity.statistics.measurement import LONG_GAIN, NUMBERS, Measurement, SelectionKey


@dataclass(frozen=True)
class SelectionNumber:
    """Key of a sum or of a quantity that belongs to one selection."""

    selection: SelectionKey
    name: str


Key = Union[str, SelectionNumber]


def _squared(name: str) -> str:
    return f"{name} squared"


def sums_by_unit(measurement: Measurement, units: Optional[Units] = None) -> dict[Key, np.ndarray]:
    """Return everything that the quantities depend on, summed over each document (or group of documents).

    Args:
        measurement: the windows and their gains.
        units: the units of the windows; None: those of this measurement alone.

    Returns:
        key -> float64 [U]. Of the windows: their number, each column of ``NUMBERS``, and the long gain of each context
        squared. Of each selection: its sparse gain (``gain``), that squared (``gain squared``), and times the long gain of
        the same context (``gain times long gain``).
    """
    windows = measurement.windows
    units = document_units(windows["doc_id"]) if units is None else units
    sums: dict[Key, np.ndarray] = {"windows": units.counts()}
    for name in NUMBERS:
        sums[name] = units.sums(windows[name])
    long_gains = {context: windows[name].to_numpy(np.float64) for context, name in LONG_GAIN.items()}
    for context, long_gain_W in long_gains.items():
        sums[_squared(LONG_GAIN[context])] = units.sums(long_gain_W**2)
    for key in measurement.keys:
        gain_W = measurement.gains[key].to_numpy(np.float64)
        sums[SelectionNumber(key, "gain")] = units.sums(gain_W)
        sums[SelectionNumber(key, "gain squared")] = units.sums(gain_W**2)
        sums[SelectionNumber(key, "gain times long gain")] = units.sums(gain_W * long_gains[key.context])
    return sums


def window_quantities(totals: Mapping[Any, np.ndarray]) -> dict[Key, np.ndarray]:
    """Return the quantities of all windows that ``Summary`` holds, from the totals of ``sums_by_unit``."""
    n, long_gain = totals["windows"], totals["gain_long_nats"]
    return {
        "loss_short_nats": totals["loss_short_nats"] / n,
        "loss_long_nats": totals["loss_long_nats"] / n,
        "long_gain_nats": long_gain / n,
        "null_long_gain_nats": totals["null_gain_long_nats"] / n,
        "content_gain_nats": (long_gain - totals["null_gain_long_nats"]) / n,
    }


def selection_quantities(totals: Mapping[Any, np.ndarray], key: SelectionKey) -> dict[str, np.ndarray]:
    """Return the quantities of one selection that ``SelectionSummary`` holds, as far as they are defined for it."""
    selector, context, k = key
    n, long_gain = totals["windows"], totals["gain_long_nats"]
    gain = totals[SelectionNumber(key, "gain")]
    random = totals.get(SelectionNumber(SelectionKey("random", context, k), "gain"))
    name = LONG_GAIN[context]
    values = {"gain_sparse_nats": gain / n, "recovered_fraction": gain / long_gain}
    values |= line_of_sums(
        n,
        x=gain,
        y=totals[name],
        xx=totals[SelectionNumber(key, "gain squared")],
        yy=totals[_squared(name)],
        xy=totals[SelectionNumber(key, "gain times long gain")],
    )
    is_over_random = random is not None and selector != "random"
    if is_over_random:
        values["gain_over_random_nats"] = (gain - random) / n
    if context == "real":
        excess = gain - totals[SelectionNumber(SelectionKey(selector, "null", k), "gain")]
        values["excess_gain_nats"] = excess / n
        values["excess_recovered_fraction"] = excess / long_gain
        if is_over_random:
            excess_of_random = random - totals[SelectionNumber(SelectionKey("random", "null", k), "gain")]
            values["excess_over_random_nats"] = (excess - excess_of_random) / n
    return values


def quantities_of(totals: Mapping[Any, np.ndarray], keys: Iterable[SelectionKey]) -> dict[Key, np.ndarray]:
    """Return all quantities of a measurement with these selections, from the totals of ``sums_by_unit``."""
    values = window_quantities(totals)
    for key in keys:
        for name, value in selection_quantities(totals, key).items():
            values[SelectionNumber(key, name)] = value
    return values
