"""Sentences about several models: each number stands where the sentence says it does; no two of the numbers are alike."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator
from typing import Any, Optional

import pytest
from numbered import numbered

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.hypothesis import (
    THIRDS,
    Analysis,
    Contrasts,
    SparsityAndGain,
    ThirdOfTargets,
)
from olmo_sparsity.wording.hypothesis import gain_sentence, share_sentence


@pytest.fixture
def values() -> Iterator[int]:
    return itertools.count(11)


def entry(values: Iterator[int], **changes: Any) -> SparsityAndGain:
    thirds = tuple(ThirdOfTargets(third, *(numbered(values) for _ in range(6))) for third in THIRDS)
    contrasts = Contrasts(*(numbered(values) for _ in range(5)))
    found = SparsityAndGain(Analysis("as planned"), "pose", "pose", False, 1234, thirds, contrasts)
    return dataclasses.replace(found, **changes)


def written(estimate: Optional[Estimate], digits: int) -> str:
    assert estimate is not None
    return f"{estimate.mean:.{digits}f} [{estimate.mean - 0.25:.{digits}f}, {estimate.mean + 0.25:.{digits}f}]"


def test_the_gain_of_sparse_reactions_is_that_of_each_context(values: Iterator[int]) -> None:
    of = entry(values)
    real, null, difference = (
        written(estimate, 4)
        for estimate in (of.contrasts.gain_nats, of.contrasts.null_gain_nats, of.contrasts.real_minus_null_nats)
    )
    assert gain_sentence(of, "foreign text") == (
        "pose: targets whose reaction is sparse gain more from beyond the training row than targets whose reaction is as large "
        f"and dense. Sparse minus dense: {difference} nats more than under foreign text (real {real}, foreign {null})."
    )


def test_shares_of_the_ceiling_are_of_dense_middle_and_sparse_targets(values: Iterator[int]) -> None:
    of = entry(values, sparsity_from="ceiling")
    dense, middle, sparse = (written(third.share_of_ceiling, 2) for third in of.thirds)
    assert [third.third for third in of.thirds] == ["dense", "middle", "sparse"]
    assert share_sentence(of) == (
        "pose: it reaches a larger share of the ceiling's gain where the reaction is sparse. Its share of the ceiling's gain is "
        f"{dense}, {middle}, {sparse} (dense, middle, sparse); sparse minus dense {written(of.contrasts.share_of_ceiling, 2)}."
    )
    without = dataclasses.replace(of, contrasts=dataclasses.replace(of.contrasts, share_of_ceiling=None))
    assert share_sentence(without) == (
        "pose: the ceiling does not gain from all of these targets, so there is no share of its gain."
    )


UNCLEAR, BELOW, ABOVE, NONE = (-0.1, 0.3), (-0.3, -0.1), (0.1, 0.3), (None, None)


HIGHER, UNCLEAR, FEW = Estimate(0.2, 0.1, 0.3, 0.1), Estimate(0.04, -0.02, 0.11, 0.1), Estimate(0.25, None, None, None)
