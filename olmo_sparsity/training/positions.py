"""Position IDs for training rows: PoSE (Zhu et al. 2023, arXiv 2309.10400) and RandPos (Ruoss et al. 2023, 2305.16843).

PoSE cuts a row into chunks and shifts the position IDs of chunk i by a skip u_i, 0 = u_0 <= u_1 <= ... (its Eq. 4). The
text of the chunks may be shifted likewise, by v_i (its Eq. 5). So both are made here from the same parts: where chunks
start, by how much each is shifted, and the numbers that follow.

Legend: B rows, T tokens of a row (``row_len``), C chunks. Numbers in, numbers out; randomness is passed in.
"""

from __future__ import annotations

from typing import Literal

import numpy as np


def chunk_starts(
    rng: np.random.Generator,
    num_rows: int,
    row_len: int,
    num_chunks: int,
    vary_chunks: bool = False,
    cuts: Literal["uniform", "capped"] = "uniform",
) -> np.ndarray:
    """Where the chunks of each row start; every chunk holds a token at least.

    ``uniform``: the C - 1 cuts are uniform among the sets of distinct places 1 .. T-1. ``capped``: the first cut is
    uniform in 1 .. ceil(T / 2), as PoSE's code has it for two chunks; of more chunks, which its code does not know, the
    first cut leaves a token for each of the others, and their cuts are uniform among the distinct places behind it.

    Args:
        rng: all randomness.
        num_rows: B.
        row_len: T.
        num_chunks: C, between 1 and T.
        vary_chunks: draw each row's own number of chunks uniformly from 1 to ``num_chunks``.
        cuts: the law of the cuts.

    Returns:
        int64 [B, C], strictly rising from 0; T stands for every chunk that a row does not have.

    Raises:
        ValueError: a length is out of range.
    """
    if not 1 <= num_chunks <= row_len:
        raise ValueError(f"num_chunks = {num_chunks}: must lie between 1 and row_len = {row_len}")
    chunks_B = rng.integers(1, num_chunks + 1, size=num_rows) if vary_chunks else np.full(num_rows, num_chunks)
    # A row's cuts are the first of a random order of the places 1 .. T-1: distinct and uniform.
    order = rng.random((num_rows, row_len - 1))
    if cuts == "capped" and num_chunks > 1:
        largest = np.minimum((row_len + 1) // 2, row_len - np.maximum(chunks_B, 2) + 1)
        first = 1 + (rng.random(num_rows) * largest).astype(np.int64)[:, None]
        place = np.arange(1, row_len)
        order = np.where(place < first, 2.0, np.where(place == first, -1.0, order))  # never, and before all others
    starts = np.zeros((num_rows, num_chunks), dtype=np.int64)
    if num_chunks == 2:
        starts[:, 1] = order.argmin(axis=1) + 1
    elif num_chunks > 2:
        starts[:, 1:] = order.argsort(axis=1)[:, : num_chunks - 1] + 1
    starts[np.arange(num_chunks) >= chunks_B[:, None]] = row_len
    starts.sort(axis=1)
    return starts


def chunk_shifts(
    rng: np.random.Generator,
    starts_BC: np.ndarray,
    row_len: int,
    max_shift_B: np.ndarray,
    skips: Literal["sorted", "successive"] = "sorted",
) -> np.ndarray:
    """By how much each chunk is shifted: 0 for the first, then never less than the one before.

    ``sorted``: independent uniform draws from 0 .. max_shift, sorted. ``successive``: each uniform between the one before
    and max_shift, as PoSE's paper has it (Eq. 4 and 5), so that later chunks of many crowd at the end. Of two chunks both
    are the same law, and the same numbers.

    Args:
        rng: all randomness.
        starts_BC: int64 [B, C], as from ``chunk_starts``.
        row_len: T.
        max_shift_B: int [B], not negative.
        skips: the law of the shifts.

    Returns:
        int64 [B, C]; what stands for a chunk that a row does not have means nothing.

    Raises:
        ValueError: a bound is negative.
    """
    bound = np.asarray(max_shift_B)[:, None]
    if (bound < 0).any():
        raise ValueError(f"max_shift = {bound.min()}: must not be negative")
    draws = rng.random((len(starts_BC), starts_BC.shape[1] - 1))
    shifts = np.zeros(starts_BC.shape, dtype=np.int64)
    if skips == "successive":
        for i in range(draws.shape[1]):
            before = shifts[:, i : i + 1]
            shifts[:, i + 1 : i + 2] = before + (draws[:, i : i + 1] * (bound - before + 1)).astype(np.int64)
    else:
        # Draws that a row with fewer chunks has no use for must not move the others when sorted: put them last.
        uniform = (draws * (bound + 1)).astype(np.int64)
        shifts[:, 1:] = np.sort(np.where(starts_BC[:, 1:] == row_len, bound, uniform), axis=1)
    return shifts


def shifted(starts_BC: np.ndarray, shifts_BC: np.ndarray, row_len: int) -> np.ndarray:
    """0, 1, 2, ... with the shift of its chunk added to each; int64 [B, T], strictly rising from 0."""
    # The column behind the last token takes the chunks that are not there.
    steps = np.ones((len(starts_BC), row_len + 1), dtype=np.int64)
    steps[:, 0] = 0
    steps[np.arange(len(steps))[:, None], starts_BC[:, 1:]] += np.diff(shifts_BC, axis=1)
    return steps[:, :row_len].cumsum(axis=1)


def pose_positions(
    rng: np.random.Generator, num_rows: int, row_len: int, max_position: int, num_chunks: int, vary_chunks: bool = False
) -> np.ndarray:
    """PoSE's position IDs below ``max_position`` by the default laws, cuts uniform and skips sorted; int64 [B, T].

    Raises:
        ValueError: a length is out of range.
    """
    starts = chunk_starts(rng, num_rows, row_len, num_chunks, vary_chunks)
    return shifted(starts, chunk_shifts(rng, starts, row_len, np.full(num_rows, max_position - row_len)), row_len)


def random_positions(rng: np.random.Generator, num_rows: int, row_len: int, max_position: int) -> np.ndarray:
    """RandPos: a uniform sample, without replacement, of 0 .. max_position - 1, sorted; int64 [B, T].

    It need not hold 0: so in the paper (which counts from 1), and where PoSE's code draws this baseline.

    Raises:
        ValueError: there are fewer positions than tokens.
    """
    if not 1 <= row_len <= max_position:
        raise ValueError(f"row_len = {row_len}: must lie between 1 and max_position = {max_position}")
    order = rng.random((num_rows, max_position)).argpartition(row_len - 1, axis=1)
    return np.sort(order[:, :row_len], axis=1)
