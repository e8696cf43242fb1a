"""Differences between two measurements, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Optional

import numpy as np
import pandas as pd

from olmo_sparsity.statistics.intervals.bootstrap import MIN_DOCUMENTS, Units, document_units, estimates
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.ratios import Value
from olmo_sparsity.statistics.single.measurement import Measurement, SelectionKey
from olmo_sparsity.statistics.single.sums import (
    NONE_NEEDED,
    Key,
    SelectionNumber,
    quantities_minus,
    quantities_of,
    sums_by_unit,
)


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


def difference(first: Measurement, second: Measurement) -> Differences:
    """Return the second measurement's numbers minus the first's.

    The documents of both are drawn together: a document of only one measurement counts in that one alone, and a document
    of both is drawn in both at once, so that dependent windows are not treated as independent. On the same windows the
    difference is therefore paired. There are no intervals where either measurement has fewer than ``MIN_DOCUMENTS`` units, of
    D(k) fewer than ``MIN_RATIO_DOCUMENTS``.
    """
    doc_ids = pd.concat([first.windows["doc_id"], second.windows["doc_id"]], ignore_index=True)
    pooled = document_units(doc_ids)
    units = [Units(unit_W, pooled.num_units) for unit_W in np.split(pooled.unit_W, [len(first.windows)])]
    measurements = (first, second)
    sums: dict[tuple[int, Key], np.ndarray] = {}
    for i, (measurement, units_of) in enumerate(zip(measurements, units, strict=True)):
        sums |= {(i, key): sum_U for key, sum_U in sums_by_unit(measurement, units_of).items()}

    def of_totals(totals: Mapping[tuple[int, Key], np.ndarray]) -> dict[Key, Value]:
        of_first, of_second = ({key: total for (of, key), total in totals.items() if of == i} for i in (0, 1))
        return quantities_minus(quantities_of(of_second, second.keys), quantities_of(of_first, first.keys))

    numbers = estimates(sums, of_totals)
    if second.windows.equals(first.windows):  # two selectors of one measurement: no estimates
        numbers |= dict.fromkeys(NONE_NEEDED.values(), Estimate(0.0, 0.0, 0.0, 0.0))
    if min(len(np.unique(units_of.unit_W)) for units_of in units) >= MIN_DOCUMENTS:
        return Differences(numbers)
    return Differences({key: value and value.without_interval() for key, value in numbers.items()})
