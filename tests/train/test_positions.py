from __future__ import annotations

from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pose_laws import assert_law, law_of_shifts, law_of_starts, rows_of

from olmo_sparsity.train.positions import chunk_shifts, chunk_starts, pose_positions, random_positions, shifted_range


@st.composite
def geometries(draw: st.DrawFn) -> dict[str, Any]:
    row_len = draw(st.integers(1, 40))
    return {
        "row_len": row_len,
        "bound": draw(st.integers(0, 90)),
        "num_chunks": draw(st.integers(1, min(8, row_len))),
        "vary_chunks": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**31)),
    }


@given(geometries())
@settings(deadline=None, max_examples=300)
def test_positions_increase_strictly_from_0_and_jump_where_chunks_start(geometry: dict[str, Any]) -> None:
    row_len, bound, num_chunks = geometry["row_len"], geometry["bound"], geometry["num_chunks"]
    rng = np.random.default_rng(geometry["seed"])
    starts = chunk_starts(rng, 20, row_len=row_len, num_chunks=num_chunks, vary_chunks=geometry["vary_chunks"])
    shifts = chunk_shifts(rng, starts, row_len=row_len, max_shift_B=np.full(20, bound))
    positions = shifted_range(starts, shifts, row_len=row_len)
    assert starts.shape == shifts.shape == (20, num_chunks)
    assert positions.shape == (20, row_len)
    assert starts.dtype == shifts.dtype == positions.dtype == np.int64
    assert (positions[:, 0] == 0).all()
    assert (np.diff(positions, axis=1) >= 1).all()
    assert positions.max() < row_len + bound
    for row, start, shift in zip(positions.tolist(), starts.tolist(), shifts.tolist(), strict=True):
        cuts = [place for place in start if place < row_len]
        assert cuts[0] == 0 and cuts == sorted(set(cuts))
        assert geometry["vary_chunks"] or len(cuts) == num_chunks
        assert row == [t + shift[sum(cut <= t for cut in cuts) - 1] for t in range(row_len)]


@pytest.mark.parametrize("num_chunks", range(2, 9))
def test_every_relative_distance_occurs(num_chunks: int) -> None:
    rng = np.random.default_rng(0)
    starts = chunk_starts(rng, 6000, row_len=12, num_chunks=num_chunks)
    shifts = chunk_shifts(rng, starts, row_len=12, max_shift_B=np.full(6000, 20))
    positions = shifted_range(starts, shifts, row_len=12)
    distances = {int(row[j] - row[i]) for row in positions for i, j in combinations(range(12), 2)}
    assert distances == set(range(1, 32))


@pytest.mark.parametrize(("row_len", "num_chunks"), [(2, 2), (6, 2), (7, 2), (6, 3), (7, 3), (5, 4), (6, 4), (5, 5)])
def test_cuts_follow_their_law(row_len: int, num_chunks: int) -> None:
    starts = chunk_starts(np.random.default_rng(1), 20_000, row_len=row_len, num_chunks=num_chunks)
    law = law_of_starts(row_len, num_chunks)
    if len(law) == 1:
        assert set(rows_of(starts[:, 1:])) == set(law)
    else:
        assert_law(rows_of(starts[:, 1:]), law)


def test_varied_chunks_give_each_number_equally_often_and_each_its_own_law() -> None:
    starts = chunk_starts(np.random.default_rng(3), 40_000, row_len=6, num_chunks=4, vary_chunks=True)
    law = {
        (*places, *[6] * (4 - num_chunks)): p / 4
        for num_chunks in (1, 2, 3, 4)
        for places, p in law_of_starts(6, num_chunks).items()
    }
    assert_law(rows_of(starts[:, 1:]), law)


@pytest.mark.parametrize(("bound", "num_shifts"), [(3, 1), (3, 2), (2, 3)])
def test_shifts_follow_their_law(bound: int, num_shifts: int) -> None:
    starts = np.tile(np.arange(num_shifts + 1), (40_000, 1))
    shifts = chunk_shifts(np.random.default_rng(2), starts, row_len=8, max_shift_B=np.full(40_000, bound))
    assert not shifts[:, 0].any()
    assert_law(rows_of(shifts[:, 1:]), law_of_shifts(bound, num_shifts))


def test_shifts_of_a_row_with_fewer_chunks_follow_the_law_for_that_number() -> None:
    starts = np.tile([0, 2, 5, 8, 8], (40_000, 1))  # three of five
    shifts = chunk_shifts(np.random.default_rng(4), starts, row_len=8, max_shift_B=np.full(40_000, 3))
    assert_law(rows_of(shifts[:, 1:3]), law_of_shifts(3, 2))
    assert (np.diff(shifted_range(starts, shifts, row_len=8), axis=1) > 1).sum(axis=1).max() == 2


def test_cuts_and_skips_of_two_chunks_are_independent() -> None:
    positions = pose_positions(np.random.default_rng(1), 24_000, row_len=4, max_position=7, num_chunks=2)
    law: Counter[tuple[int, ...]] = Counter()
    for cut in (1, 2, 3):
        for skip in range(4):
            law[tuple(t + (skip if t >= cut else 0) for t in range(4))] += 1 / 12  # type: ignore[assignment]
    assert_law(rows_of(positions), law)


def test_each_row_has_its_own_bound() -> None:
    bound = np.array([0, 1, 5, 20] * 100)
    rng = np.random.default_rng(4)
    starts = chunk_starts(rng, 400, row_len=12, num_chunks=4)
    shifts = chunk_shifts(rng, starts, row_len=12, max_shift_B=bound)
    largest = shifts.max(axis=1).reshape(100, 4).max(axis=0)
    assert largest.tolist() == [0, 1, 5, 20]


@pytest.mark.parametrize(("row_len", "max_position"), [(1, 5), (3, 6), (5, 6), (4, 4)])
def test_random_positions_are_a_uniform_subset(row_len: int, max_position: int) -> None:
    positions = random_positions(np.random.default_rng(0), 20_000, row_len=row_len, max_position=max_position)
    assert positions.dtype == np.int64
    subsets = list(combinations(range(max_position), row_len))
    if len(subsets) == 1:
        assert set(rows_of(positions)) == set(subsets)
    else:
        assert_law(rows_of(positions), {subset: 1 / len(subsets) for subset in subsets})


@given(st.integers(1, 40), st.integers(0, 60), st.integers(0, 2**31))
@settings(deadline=None, max_examples=100)
def test_random_positions_increase_strictly_below_max_position(row_len: int, more: int, seed: int) -> None:
    positions = random_positions(np.random.default_rng(seed), 20, row_len=row_len, max_position=row_len + more)
    assert positions.shape == (20, row_len)
    assert (np.diff(positions, axis=1) >= 1).all()
    assert positions.min() >= 0 and positions.max() < row_len + more


@pytest.mark.parametrize(("row_len", "num_chunks"), [(0, 1), (4, 0), (4, 5)])
def test_impossible_lengths(row_len: int, num_chunks: int) -> None:
    with pytest.raises(ValueError, match="must lie between"):
        chunk_starts(np.random.default_rng(0), 2, row_len=row_len, num_chunks=num_chunks)


def test_impossible_bounds() -> None:
    with pytest.raises(ValueError, match="max_shift = -1: must not be negative"):
        chunk_shifts(
            np.random.default_rng(0), np.zeros((2, 1), dtype=np.int64), row_len=4, max_shift_B=np.array([0, -1])
        )
    for row_len in (0, 5):
        with pytest.raises(ValueError, match="must lie between 1 and max_position = 4"):
            random_positions(np.random.default_rng(0), 2, row_len=row_len, max_position=4)
