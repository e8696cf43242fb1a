"""The distributions of PoSE's draws: the probability of every outcome, by enumeration."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable
from itertools import combinations, combinations_with_replacement
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare


def assert_law(seen: Iterable[Hashable], law: dict[Any, float]) -> None:
    """Check by a chi-square test that the outcomes follow the distribution, which lists all possible ones."""
    counts = Counter(seen)
    total = sum(counts.values())
    assert sum(law.values()) == pytest.approx(1)
    assert min(law.values()) * total > 5  # with fewer, the chi-square distribution is a bad approximation
    assert set(counts) <= set(law)
    assert chisquare([counts[key] for key in law], [p * total for p in law.values()]).pvalue > 1e-3


def rows_of(array: np.ndarray) -> list[tuple[int, ...]]:
    return [tuple(row) for row in array.tolist()]


def law_of_starts(row_len: int, num_chunks: int) -> dict[tuple[int, ...], float]:
    """Return the distribution of the starts of all chunks but the first."""
    sets = list(combinations(range(1, row_len), num_chunks - 1))
    return {starts: 1 / len(sets) for starts in sets}


def law_of_shifts(bound: int, num_shifts: int) -> dict[tuple[int, ...], float]:
    """Return the distribution of the shifts of all chunks but the first, whose shift is 0."""
    law: dict[tuple[int, ...], float] = {}
    for shifts in combinations_with_replacement(range(bound + 1), num_shifts):
        orders = math.factorial(num_shifts) // math.prod(map(math.factorial, Counter(shifts).values()))
        law[shifts] = orders / (bound + 1) ** num_shifts
    return law
