"""Effective sparsity: the smallest k that recovers a given fraction of the long gain."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Optional

import numpy as np

from olmo_sparsity.statistics.intervals.bootstrap import attained_estimates
from olmo_sparsity.statistics.intervals.estimate import SmallestK, WholeEstimate
from olmo_sparsity.statistics.single.measurement import Measurement, SelectionKey
from olmo_sparsity.statistics.single.sums import Key, SelectionNumber

RECOVERED = (0.5, 0.8, 0.9)  # the fractions of the long gain


@dataclass(frozen=True)
class EffectiveSparsity:
    """The smallest k of one selector that recovers a fraction of the long gain, in the real context.

    A resample whose mean long gain is not above 0 counts as one in which no k is enough.

    Attributes:
        selector: name of the selector.
        fraction: the fraction of the long gain to recover.
        max_k: the largest measured k.
        smallest_k: the smallest k with R(k) >= fraction. Of a selector that sees the target it is mostly optimism. None
            where the gate did not pass.
    """

    selector: str
    fraction: float
    max_k: int
    smallest_k: Optional[SmallestK] = None


def effective_sparsity(
    measurement: Measurement, sums: Mapping[Key, np.ndarray], *, gate_passed: bool
) -> tuple[EffectiveSparsity, ...]:
    """Return the smallest k that recovers each of the fractions ``RECOVERED``, for every selector.

    Args:
        measurement: the windows and their gains.
        sums: of ``sums_by_unit``, for the same measurement.
        gate_passed: True if the model uses the long context; else no smallest k is given.
    """
    ks = measurement.ks
    asked = list(product(measurement.selectors, RECOVERED))
    if not gate_passed:
        return tuple(EffectiveSparsity(selector, fraction, ks[-1]) for selector, fraction in asked)
    needed: dict[Any, np.ndarray] = {"gain_long_nats": sums["gain_long_nats"]}
    for key in measurement.keys:
        if key.context == "real":
            needed[SelectionNumber(key, "gain")] = sums[SelectionNumber(key, "gain")]

    def smallest(totals: Mapping[Any, np.ndarray]) -> dict[tuple[str, float], np.ndarray]:
        return {(name, fraction): _smallest_index(totals, name, fraction=fraction, ks=ks) for name, fraction in asked}

    indices = attained_estimates(needed, smallest)
    return tuple(
        EffectiveSparsity(selector, fraction, ks[-1], _k_of_index(indices[selector, fraction], ks))
        for selector, fraction in asked
    )


def _smallest_index(
    totals: Mapping[Any, np.ndarray], selector: str, *, fraction: float, ks: Sequence[int]
) -> np.ndarray:
    """Return the index of the smallest k that is enough, and the number of ks where none is; [...]."""
    wanted = fraction * totals["gain_long_nats"]
    gains = [totals[SelectionNumber(SelectionKey(selector, "real", k), "gain")] for k in ks]
    reached = [(wanted > 0) & (gain >= wanted) for gain in gains]
    return np.argmax([*reached, np.ones_like(reached[0])], axis=0)


def _k_of_index(index: WholeEstimate, ks: Sequence[int]) -> SmallestK:
    value, low, high = (None if i is None or i == len(ks) else ks[i] for i in (index.value, index.low, index.high))
    return SmallestK(value, low, high)
