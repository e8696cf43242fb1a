"""The smallest k that recovers a share of the long gain."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from olmo_sparsity.statistics.bootstrap import (
    attained_estimates,
    document_sums,
    document_units,
    estimates,
)
from olmo_sparsity.statistics.measurement import Measurement

RECOVERED = (0.5, 0.8, 0.9)  # how much of the long gain the smallest k is to give back


def _effective_sparsity(measurement: Measurement, sums: Mapping[Any, np.ndarray], gate: str) -> list[dict[str, Any]]:
    """The smallest measured k that gives back 50, 80 and 90% of the long gain, real context; an entry a selector and
    ``fraction``.

    - ``smallest_k``: with R(k) >= fraction. Of a selector that sees the target this is mostly luck.
    - ``smallest_k_excess``: with excess recovered fraction >= fraction.
    - ``smallest_k_median_window``: with which half of the windows whose long gain is above 0 have reached fraction times
      their long gain, at it or at a smaller k. ``window_shares``: the share of them, ``{k, mean, low, high}`` for each k.

    A smallest k is ``{value, low, high}``, numbers among the measured k; None in it: more than ``max_k``, the largest of
    them. (A resample whose long gain is not above 0 counts as that, too.) Where the gate failed, all are None.
    """
    ks, selectors = measurement.ks, list(measurement.selectors)
    asked = [(selector, fraction) for selector in selectors for fraction in RECOVERED]
    entries: list[dict[str, Any]] = [
        {
            "selector": selector,
            "context": "real",
            "fraction": fraction,
            "max_k": ks[-1],
            "smallest_k": None,
            "smallest_k_excess": None,
            "smallest_k_median_window": None,
            "window_shares": None,
        }
        for selector, fraction in asked
    ]
    if gate == "failed":
        return entries

    units, num_units = document_units(measurement.windows["doc_id"])
    long_gain = measurement.windows["gain_long_nats"].to_numpy(np.float64)
    positive = long_gain > 0
    shares: dict[Any, np.ndarray] = {"positive": document_sums(positive, units, num_units)}
    for selector in selectors:
        best = np.full(len(long_gain), -np.inf)
        for k in ks:
            best = np.maximum(best, measurement.gains[selector, "real", k].to_numpy())
            for fraction in RECOVERED:
                reached = positive & (best >= fraction * long_gain)
                shares[selector, fraction, k] = document_sums(reached, units, num_units)

    def first(reached: list[np.ndarray]) -> np.ndarray:
        """Index of the first k that is reached, the number of ks where none is."""
        never = np.ones_like(reached[0])
        return np.argmax([*reached, never], axis=0)

    def smallest(total: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        values = {}
        for selector, fraction in asked:
            wanted = fraction * total["gain_long_nats"]
            gains = [total[selector, "real", k] for k in ks]
            excess = [gain - total[selector, "null", k] for gain, k in zip(gains, ks, strict=True)]
            for name, of in (("smallest_k", gains), ("smallest_k_excess", excess)):
                values[selector, fraction, name] = first([(wanted > 0) & (one >= wanted) for one in of])
            values[selector, fraction, "smallest_k_median_window"] = first(
                [total[selector, fraction, k] >= 0.5 * total["positive"] for k in ks]
            )
        return values

    def share(total: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        return {name: value / total["positive"] for name, value in total.items() if name != "positive"}

    needed = {key: sums[key] for key in ["gain_long_nats", *measurement.keys]}
    found, found_shares = attained_estimates({**needed, **shares}, smallest), estimates(shares, share)
    for entry, (selector, fraction) in zip(entries, asked, strict=True):
        for name in ("smallest_k", "smallest_k_excess", "smallest_k_median_window"):
            numbers = (None if i is None or i == len(ks) else ks[i] for i in found[selector, fraction, name])
            entry[name] = dict(zip(("value", "low", "high"), numbers, strict=True))
        entry["window_shares"] = [{"k": k, **(found_shares[selector, fraction, k] or {})} for k in ks]
    return entries
