"""Sums over documents, and the quantities that follow from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import numpy as np

from olmo_sparsity.statistics.bootstrap import (
    document_sums,
    document_units,
    line_of_sums,
)
from olmo_sparsity.statistics.measurement import LONG_GAIN, NUMBERS, Measurement


def _sums(measurement: Measurement, drawn: Optional[tuple[np.ndarray, int]] = None) -> dict[Any, np.ndarray]:
    """What the numbers are functions of, summed over each document (or group of documents), float64 [units].

    ``drawn``: the unit of each window and how many there are, as ``document_units`` has them; None: of this measurement alone.

    ``windows`` (their number); a loss column or the long gain of a context, by its name, and the latter squared
    (name, "squared"); the sparse gain x of each (selector, context, k), with (key, "xx") and (key, "xy"), y being the long gain
    of the same context.
    """
    windows = measurement.windows
    units, num_units = document_units(windows["doc_id"]) if drawn is None else drawn

    def add(values: Any) -> np.ndarray:
        return document_sums(values, units, num_units)

    sums: dict[Any, np.ndarray] = {"windows": add(np.ones(len(windows)))}
    for name in NUMBERS:
        sums[name] = add(windows[name])
    long = {context: windows[name].to_numpy(np.float64) for context, name in LONG_GAIN.items()}
    for context, y in long.items():
        sums[LONG_GAIN[context], "squared"] = add(y**2)
    for key in measurement.keys:
        x = measurement.gains[key].to_numpy(np.float64)
        sums[key] = add(x)
        sums[key, "xx"] = add(x**2)
        sums[key, "xy"] = add(x * long[key[1]])
    return sums


def _quantities(total: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
    """The numbers of ``summarize`` from the totals of ``_sums``: by name, those of a selection by (key, name)."""
    n, long_gain = total["windows"], total["gain_long_nats"]
    values: dict[Any, np.ndarray] = {
        "loss_short_nats": total["loss_short_nats"] / n,
        "loss_long_nats": total["loss_long_nats"] / n,
        "long_gain_nats": long_gain / n,
        "null_long_gain_nats": total["null_gain_long_nats"] / n,
        "content_gain_nats": (long_gain - total["null_gain_long_nats"]) / n,
    }
    for key in [name for name in total if isinstance(name, tuple) and len(name) == 3]:
        selector, context, k = key
        gain, random = total[key], total.get(("random", context, k))
        values[key, "gain_sparse_nats"] = gain / n
        values[key, "recovered_fraction"] = gain / long_gain
        name = LONG_GAIN[context]
        line = line_of_sums(n, gain, total[name], total[key, "xx"], total[name, "squared"], total[key, "xy"])
        for which, value in line.items():
            values[key, which] = value
        over_random = random is not None and selector != "random"
        if over_random:
            values[key, "gain_over_random_nats"] = (gain - random) / n
        if context == "real":
            excess = gain - total[selector, "null", k]
            values[key, "excess_gain_nats"] = excess / n
            values[key, "excess_recovered_fraction"] = excess / long_gain
            if over_random:
                of_random = random - total["random", "null", k]
                values[key, "excess_over_random_nats"] = (excess - of_random) / n
    return values
