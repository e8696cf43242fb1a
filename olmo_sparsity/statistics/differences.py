"""Differences between two measurements, with intervals."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import numpy as np
import pandas as pd

from olmo_sparsity.statistics.bootstrap import (
    MIN_DOCUMENTS,
    Estimate,
    document_units,
    estimates,
)
from olmo_sparsity.statistics.measurement import Measurement
from olmo_sparsity.statistics.sums import _quantities, _sums


def paired_difference(first: Measurement, second: Measurement) -> dict[Any, Optional[Estimate]]:
    """The second measurement's numbers minus the first's, on the same windows of the same documents.

    Returns:
        ``long_gain_nats`` and the other losses by name, and those of a selection by ((selector, context, k), quantity), as
        far as both hold them: ``{mean, low, high}``, the documents of both drawn together.

    Raises:
        ValueError: they are not of the same windows.
    """
    columns = ["window_id", "doc_id"]
    if not first.windows[columns].equals(second.windows[columns]):
        raise ValueError("the two measurements are of different windows")
    return unpaired_difference(first, second)


def unpaired_difference(first: Measurement, second: Measurement) -> dict[Any, Optional[Estimate]]:
    """As ``paired_difference``, of any two measurements, on whatever windows.

    The documents of both are drawn together: one that only one of them holds counts in that one alone, and one that both
    hold is drawn in both at once, so that nothing is taken for independent that is not. Without ``MIN_DOCUMENTS`` in either
    there are no intervals.
    """
    doc_ids = pd.concat([first.windows["doc_id"], second.windows["doc_id"]], ignore_index=True)
    units, num_units = document_units(doc_ids)
    units_of = (units[: len(first.windows)], units[len(first.windows) :])
    both: dict[Any, np.ndarray] = {}
    for i, (one, of) in enumerate(zip((first, second), units_of, strict=True)):
        both |= {(i, name): values for name, values in _sums(one, (of, num_units)).items()}

    def differences(total: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        a, b = (_quantities({name: value for (i, name), value in total.items() if i == which}) for which in (0, 1))
        return {name: b[name] - a[name] for name in a if name in b}

    found = estimates(both, differences)
    if min(len(np.unique(of)) for of in units_of) >= MIN_DOCUMENTS:
        return found
    return {name: value and {"mean": value["mean"], "low": None, "high": None} for name, value in found.items()}
