"""Differences between two measurements, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import pandas as pd

from olmo_sparsity.statistics.intervals.bootstrap import MIN_DOCUMENTS, Units, document_units, estimates
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.ratios import Value, minus
from olmo_sparsity.statistics.single.measurement import Measurement, SelectionKey
from olmo_sparsity.statistics.single.sums import Key, SelectionNumber, quantities_of, sums_by_unit

WINDOW_COLUMNS = ["window_id", "doc_id"]  # what tells windows apart


@dataclass(frozen=True)
class Differences:
    """The numbers of a second measurement minus those of a first.

    Attributes:
        numbers: the differences, by the keys of ``quantities_of``; only what both measurements have.
    """

    numbers: Mapping[Key, Optional[Estimate]]

    def of_windows(self, name: str) -> Optional[Estimate]:
        """Return the difference of a quantity of all windows, such as ``long_gain_nats``; None where either has none."""
        return self.numbers.get(name)

    def of_selection(self, key: SelectionKey, name: str) -> Optional[Estimate]:
        """Return the difference of a quantity of a selection, such as ``recovered_fraction``; None if it is undefined."""
        return self.numbers.get(SelectionNumber(key, name))


@dataclass(frozen=True)
class _OfMeasurement:
    """Key of a sum of the first (0) or the second (1) measurement."""

    index: int
    key: Key


def paired_difference(first: Measurement, second: Measurement) -> Differences:
    """Return the second measurement's numbers minus the first's, on the same windows of the same documents.

    Raises:
        ValueError: the windows are not the same.
    """
    if not first.windows[WINDOW_COLUMNS].equals(second.windows[WINDOW_COLUMNS]):
        raise ValueError("the two measurements are of different windows")
    return unpaired_difference(first, second)


def unpaired_difference(first: Measurement, second: Measurement) -> Differences:
    """As ``paired_difference``, for any two measurements.

    The documents of both are drawn together: a document of only one measurement counts in that one alone, and a document
    of both is drawn in both at once, so that dependent windows are not treated as independent. There are no intervals where
    either measurement has fewer than ``MIN_DOCUMENTS`` units, of D(k) fewer than ``MIN_RATIO_DOCUMENTS``.
    """
    doc_ids = pd.concat([first.windows["doc_id"], second.windows["doc_id"]], ignore_index=True)
    pooled = document_units(doc_ids)
    units = [Units(unit_W, pooled.num_units) for unit_W in np.split(pooled.unit_W, [len(first.windows)])]
    measurements = (first, second)
    sums: dict[_OfMeasurement, np.ndarray] = {}
    for i, (measurement, units_of) in enumerate(zip(measurements, units, strict=True)):
        sums |= {_OfMeasurement(i, key): sum_U for key, sum_U in sums_by_unit(measurement, units_of).items()}

    def differences(totals: Mapping[_OfMeasurement, np.ndarray]) -> dict[Key, Value]:
        of_first, of_second = (
            quantities_of(_totals_of(totals, i), measurement.keys) for i, measurement in enumerate(measurements)
        )
        return {key: minus(of_second[key], of_first[key]) for key in of_first if key in of_second}

    numbers = estimates(sums, differences)
    if min(len(np.unique(units_of.unit_W)) for units_of in units) >= MIN_DOCUMENTS:
        return Differences(numbers)
    return Differences({key: value and value.without_interval() for key, value in numbers.items()})


def _totals_of(totals: Mapping[_OfMeasurement, np.ndarray], index: int) -> dict[Any, np.ndarray]:
    """Return the totals of one of the two measurements."""
    return {key.key: value for key, value in totals.items() if key.index == index}
