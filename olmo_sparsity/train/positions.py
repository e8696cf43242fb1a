"""Position IDs of training rows: PoSE (Zhu et al. 2023, arXiv 2309.10400) and RandPos (Ruoss et al. 2023, 2305.16843).

PoSE cuts a row of T tokens into C chunks and shifts the position IDs of chunk i by a skip u_i, 0 = u_0 <= u_1 <= ...
(its Eq. 4). Three steps: draw where the chunks start, draw the shift of each chunk, and add the shifts to 0, 1, 2, ...
"""

from __future__ import annotations

import numpy as np


def chunk_starts(
    rng: np.random.Generator, num_rows: int, *, row_len: int, num_chunks: int, vary_chunks: bool = False
) -> np.ndarray:
    """Where the chunks of each row start, int64 [B, C]: 0, and a uniform sample of distinct places in 1 .. T-1, in order.

    With ``vary_chunks`` the number of chunks of each row is uniform from 1 to ``num_chunks``; the start of a chunk that a row
    does not have is T.
    """
    num_chunks_B = rng.integers(1, num_chunks + 1, size=num_rows) if vary_chunks else np.full(num_rows, num_chunks)
    # The first places of a random order of 1 .. T-1 are a uniform sample of distinct places. [B, T-1]
    order_Bt = rng.random((num_rows, row_len - 1))
    starts_BC = np.zeros((num_rows, num_chunks), dtype=np.int64)
    if num_chunks == 2:
        starts_BC[:, 1] = order_Bt.argmin(axis=1) + 1
    elif num_chunks > 2:
        starts_BC[:, 1:] = order_Bt.argsort(axis=1)[:, : num_chunks - 1] + 1
    starts_BC[np.arange(num_chunks) >= num_chunks_B[:, None]] = row_len
    starts_BC.sort(axis=1)
    return starts_BC


def chunk_shifts(
    rng: np.random.Generator, starts_BC: np.ndarray, *, row_len: int, max_shift_B: np.ndarray
) -> np.ndarray:
    """Shift of each chunk, int64 [B, C]: 0, then uniform draws from 0 .. max_shift, in order; any where there is no chunk."""
    max_shift_B1 = max_shift_B[:, None]
    draws_Bc = rng.random((len(starts_BC), starts_BC.shape[1] - 1))  # one for each chunk but the first
    uniform_Bc = (draws_Bc * (max_shift_B1 + 1)).astype(np.int64)
    # In a row with fewer chunks, the draws that are not used are sorted last, so they do not change the others.
    used_Bc = np.where(starts_BC[:, 1:] == row_len, max_shift_B1, uniform_Bc)
    return np.pad(np.sort(used_Bc, axis=1), ((0, 0), (1, 0)))


def shifted_range(starts_BC: np.ndarray, shifts_BC: np.ndarray, *, row_len: int) -> np.ndarray:
    """0, 1, 2, ... plus the shift of the chunk of each token; int64 [B, T], strictly increasing from 0."""
    # One column more than tokens: the chunks that a row does not have start there.
    increments = np.ones((len(starts_BC), row_len + 1), dtype=np.int64)
    increments[:, 0] = 0
    increments[np.arange(len(increments))[:, None], starts_BC[:, 1:]] += np.diff(shifts_BC, axis=1)
    return increments[:, :row_len].cumsum(axis=1)


def pose_positions(
    rng: np.random.Generator, num_rows: int, *, row_len: int, max_position: int, num_chunks: int
) -> np.ndarray:
    """PoSE position IDs below ``max_position``, int64 [B, T]."""
    starts_BC = chunk_starts(rng, num_rows, row_len=row_len, num_chunks=num_chunks)
    shifts_BC = chunk_shifts(rng, starts_BC, row_len=row_len, max_shift_B=np.full(num_rows, max_position - row_len))
    return shifted_range(starts_BC, shifts_BC, row_len=row_len)


def random_positions(rng: np.random.Generator, num_rows: int, *, row_len: int, max_position: int) -> np.ndarray:
    """RandPos position IDs, int64 [B, T]: a uniform sample of 0 .. max_position - 1 without replacement, in order.

    The sample need not contain 0, as in the paper (which counts from 1) and in PoSE's code for this baseline.
    """
    order = rng.random((num_rows, max_position)).argpartition(row_len - 1, axis=1)
    return np.sort(order[:, :row_len], axis=1)
