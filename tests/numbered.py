"""Records no two of whose numbers are alike, so that a number under a wrong name is seen."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.summary import SELECTION_QUANTITIES, WINDOW_QUANTITIES, Summary


def numbered(values: Iterator[int]) -> Estimate:
    """Return an estimate none of whose numbers another one has."""
    mean = float(next(values))
    return Estimate(mean, mean - 0.25, mean + 0.25, mean / 1000)


def numbered_summary(summary: Summary, values: Iterator[int], **changes: Any) -> Summary:
    """Return a summary whose every number is another one.

    Args:
        summary: says which selectors, contexts and k there are.
        values: the numbers.
        changes: other fields.
    """
    selections = tuple(
        dataclasses.replace(
            selection,
            **{name: numbered(values) for name in SELECTION_QUANTITIES},
            figure4=type(selection.figure4)(*(numbered(values) for _ in dataclasses.fields(selection.figure4))),
            mean_tokens=next(values) + 0.5,
            all_visible_share=next(values) / 10**5,
        )
        for selection in summary.selections
    )
    numbers = {name: numbered(values) for name in WINDOW_QUANTITIES}
    counts = {"num_windows": next(values), "num_documents": next(values), "overlap_percent": next(values) / 7}
    return dataclasses.replace(summary, **{**numbers, **counts, "selections": selections, **changes})
