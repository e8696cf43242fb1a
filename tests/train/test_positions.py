"""Position IDs against their definitions: the probability of every outcome, by enumeration."""

from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pose_laws import assert_law, law_of_shifts, law_of_starts, rows_of

from olmo_sparsity.train.positions import chunk_shifts, chunk_starts, pose_positions, random_positions, shifted_range


@given(st.integers(1, 40), st.integers(0, 90), st.integers(1, 8), st.booleans(), st.integers(0, 2**31))
@settings(deadline=None, max_examples=200)
def test_positions_increase_strictly_from_0_and_jump_where_chunks_start(
    row_len: int, bound: int, num_chunks: int, vary_chunks: bool, seed: int
) -> None:
    num_chunks = min(num_chunks, row_len)
    rng = np.random.default_rng(seed)
    starts = chunk_starts(rng, 20, row_len=row_len, num_chunks=num_chunks, vary_chunks=vary_chunks)
    shifts = chunk_shifts(rng, starts, row_len=row_len, max_shift_B=np.full(20, bound))
    positions = shifted_range(starts, shifts, row_len=row_len)
    assert positions.shape == (20, row_len) and positions.dtype == np.int64
    assert (positions[:, 0] == 0).all() and (np.diff(positions, axis=1) >= 1).all()
    assert positions.max() < row_len + bound
    for row, start, shift in zip(positions.tolist(), starts.tolist(), shifts.tolist(), strict=True):
        cuts = [place for place in start if place < row_len]
        assert cuts[0] == 0 and cuts == sorted(set(cuts)) and (vary_chunks or len(cuts) == num_chunks)
        assert row == [t + shift[sum(cut <= t for cut in cuts) - 1] for t in range(row_len)]


@pytest.mark.parametrize(("row_len", "num_chunks"), [(6, 2), (7, 3), (6, 4)])
def test_cuts_follow_their_law(row_len: int, num_chunks: int) -> None:
    starts = chunk_starts(np.random.default_rng(1), 20_000, row_len=row_len, num_chunks=num_chunks)
    assert_law(rows_of(starts[:, 1:]), law_of_starts(row_len, num_chunks))


def test_varied_chunks_give_each_number_equally_often_and_each_its_own_law() -> None:
    starts = chunk_starts(np.random.default_rng(3), 40_000, row_len=6, num_chunks=4, vary_chunks=True)
    law = {
        (*places, *[6] * (4 - num_chunks)): p / 4
        for num_chunks in (1, 2, 3, 4)
        for places, p in law_of_starts(6, num_chunks).items()
    }
    assert_law(rows_of(starts[:, 1:]), law)


@pytest.mark.parametrize("chunks", [[0, 1], [0, 1, 2], [0, 2, 5, 8, 8]])  # in the last row three of five
def test_shifts_follow_their_law(chunks: list[int]) -> None:
    starts, num_shifts = np.tile(chunks, (40_000, 1)), sum(0 < start < 8 for start in chunks)
    shifts = chunk_shifts(np.random.default_rng(2), starts, row_len=8, max_shift_B=np.full(40_000, 3))
    assert not shifts[:, 0].any()
    assert_law(rows_of(shifts[:, 1 : num_shifts + 1]), law_of_shifts(3, num_shifts))


def test_each_row_has_its_own_bound() -> None:
    bound, rng = np.array([0, 1, 5, 20] * 100), np.random.default_rng(4)
    starts = chunk_starts(rng, 400, row_len=12, num_chunks=4)
    shifts = chunk_shifts(rng, starts, row_len=12, max_shift_B=bound)
    assert shifts.max(axis=1).reshape(100, 4).max(axis=0).tolist() == [0, 1, 5, 20]


def test_cuts_and_skips_of_two_chunks_are_independent() -> None:
    positions = pose_positions(np.random.default_rng(1), 24_000, row_len=4, max_position=7, num_chunks=2)
    law: Counter[tuple[int, ...]] = Counter()
    for cut in (1, 2, 3):
        for skip in range(4):
            law[tuple(t + (skip if t >= cut else 0) for t in range(4))] += 1 / 12  # type: ignore[assignment]
    assert_law(rows_of(positions), law)


@pytest.mark.parametrize(("row_len", "max_position"), [(1, 5), (3, 6), (5, 6)])
def test_random_positions_are_a_uniform_subset_in_order(row_len: int, max_position: int) -> None:
    positions = random_positions(np.random.default_rng(0), 20_000, row_len=row_len, max_position=max_position)
    subsets = list(combinations(range(max_position), row_len))
    assert_law(rows_of(positions), {subset: 1 / len(subsets) for subset in subsets})
