from __future__ import annotations

from collections import Counter
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chisquare

from olmo_sparsity.positions import pose_positions


@st.composite
def geometries(draw: st.DrawFn) -> tuple[int, int, int, bool, int]:
    train_len = draw(st.integers(1, 40))
    full_len = draw(st.integers(train_len, 120))
    num_chunks = draw(st.integers(1, min(8, train_len)))
    return train_len, full_len, num_chunks, draw(st.booleans()), draw(st.integers(0, 2**31))


@given(geometries())
@settings(deadline=None, max_examples=300)
def test_positions_rise_strictly_from_0_below_full_len_in_at_most_num_chunks_chunks(
    geometry: tuple[int, int, int, bool, int],
) -> None:
    train_len, full_len, num_chunks, vary, seed = geometry
    positions = pose_positions(np.random.default_rng(seed), 20, train_len, full_len, num_chunks, vary)
    assert positions.shape == (20, train_len)
    assert positions.dtype == np.int64
    assert (positions[:, 0] == 0).all()
    assert (np.diff(positions, axis=1) >= 1).all()
    assert positions.max() < full_len
    jumps = (np.diff(positions, axis=1) > 1).sum(axis=1)
    assert (jumps <= num_chunks - 1).all()
    if num_chunks == 1:
        assert (positions == np.arange(train_len)).all()


@pytest.mark.parametrize("num_chunks", range(2, 9))
def test_every_relative_distance_below_full_len_occurs(num_chunks: int) -> None:
    positions = pose_positions(np.random.default_rng(0), 6000, 12, 32, num_chunks)
    distances = {int(row[j] - row[i]) for row in positions for i, j in combinations(range(12), 2)}
    assert distances == set(range(1, 32))


def test_two_chunks_follow_the_law_cut_and_skip_uniform() -> None:
    train_len, full_len = 4, 7  # cut after 1, 2 or 3 tokens, skip 0 .. 3
    positions = pose_positions(np.random.default_rng(1), 24_000, train_len, full_len, 2)
    seen = Counter(tuple(row) for row in positions.tolist())
    expected: Counter[tuple[int, ...]] = Counter()
    for cut in (1, 2, 3):
        for skip in range(4):
            expected[tuple(i + (skip if i >= cut else 0) for i in range(train_len))] += 24_000 // 12
    assert set(seen) == set(expected)
    assert chisquare([seen[key] for key in expected], list(expected.values())).pvalue > 1e-3


def test_three_chunks_have_sorted_independent_skips() -> None:
    positions = pose_positions(np.random.default_rng(2), 40_000, 3, 5, 3)  # every token a chunk; skips of 0 .. 2
    seen = Counter((int(b - 1), int(c - 2)) for _, b, c in positions)
    expected = {(u, v): 40_000 * (1 if u == v else 2) / 9 for u in range(3) for v in range(u, 3)}
    assert set(seen) == set(expected)
    assert chisquare([seen[key] for key in expected], list(expected.values())).pvalue > 1e-3


def test_varied_chunks_give_each_number_equally_often() -> None:
    # Skips so large that a jump of 0 is rare: the number of jumps tells the number of chunks.
    positions = pose_positions(np.random.default_rng(3), 9000, 12, 1_000_000, 3, vary_chunks=True)
    counts = Counter((np.diff(positions, axis=1) > 1).sum(axis=1).tolist())
    assert chisquare([counts[i] for i in range(3)]).pvalue > 1e-3


def test_max_skip_bounds_each_row() -> None:
    bound = np.array([0, 1, 5, 20])
    positions = pose_positions(np.random.default_rng(4), 4, 12, 32, 4, max_skip=bound)
    assert (positions[:, -1] <= 11 + bound).all()
    assert (positions[0] == np.arange(12)).all()


@pytest.mark.parametrize(("train_len", "full_len", "num_chunks"), [(0, 4, 1), (5, 4, 1), (4, 8, 0), (4, 8, 5)])
def test_impossible_lengths(train_len: int, full_len: int, num_chunks: int) -> None:
    with pytest.raises(ValueError, match="must lie between"):
        pose_positions(np.random.default_rng(0), 2, train_len, full_len, num_chunks)
