"""PoSE: position IDs for training rows (Zhu et al. 2023, arXiv 2309.10400; Golowich et al., Appendix B.3).

Legend: B rows, T tokens of a row (``train_len``), C chunks. Numbers in, numbers out; randomness is passed in.
"""

from __future__ import annotations

from typing import Optional

import numpy as np


def pose_positions(
    rng: np.random.Generator,
    num_rows: int,
    train_len: int,
    full_len: int,
    num_chunks: int,
    vary_chunks: bool = False,
    max_skip: Optional[np.ndarray] = None,
) -> np.ndarray:
    """Position IDs of training rows: consecutive within a chunk, shifted by a skip that rises from chunk to chunk.

    Every row is cut into ``num_chunks`` chunks at distinct places, uniformly (**choice**: the paper leaves the law of
    the cuts open); chunk i is shifted by the skip u_i, 0 = u_0 <= u_1 <= ... <= max_skip, where u_1, u_2, ... are
    independent uniform draws, sorted.

    Args:
        rng: all randomness.
        num_rows: B.
        train_len: T.
        full_len: IDs lie in [0, full_len).
        num_chunks: C, between 1 and T.
        vary_chunks: draw each row's own number of chunks uniformly from 1 to ``num_chunks``.
        max_skip: int [B], a tighter bound on each row's skips (default ``full_len - train_len`` everywhere).

    Returns:
        int64 [B, T], strictly rising along T, starting at 0, below ``full_len``.

    Raises:
        ValueError: a length is out of range.
    """
    if not 1 <= train_len <= full_len:
        raise ValueError(f"train_len = {train_len}: must lie between 1 and full_len = {full_len}")
    if not 1 <= num_chunks <= train_len:
        raise ValueError(f"num_chunks = {num_chunks}: must lie between 1 and train_len = {train_len}")
    bound = np.full(num_rows, full_len - train_len) if max_skip is None else np.asarray(max_skip)
    if bound.shape != (num_rows,) or (bound < 0).any() or (bound > full_len - train_len).any():
        raise ValueError(f"max_skip: one number a row, between 0 and full_len - train_len = {full_len - train_len}")

    chunks_B = rng.integers(1, num_chunks + 1, size=num_rows) if vary_chunks else np.full(num_rows, num_chunks)
    # A row's cuts are the first C - 1 of a random order of the places 1 .. T-1: distinct and uniform.
    order = rng.random((num_rows, train_len - 1)).argsort(axis=1).argsort(axis=1)
    starts_chunk = np.zeros((num_rows, train_len), dtype=bool)
    starts_chunk[:, 1:] = order < (chunks_B - 1)[:, None]
    chunk_BT = starts_chunk.cumsum(axis=1)

    draws = (rng.random((num_rows, num_chunks - 1)) * (bound[:, None] + 1)).astype(np.int64)
    # Draws that a row with fewer chunks has no use for must not move the others when sorted: put them last.
    unused = np.arange(1, num_chunks)[None, :] >= chunks_B[:, None]
    draws = np.sort(np.where(unused, full_len, draws), axis=1)
    skip_BC = np.concatenate([np.zeros((num_rows, 1), dtype=np.int64), draws], axis=1)
    return np.arange(train_len)[None, :] + np.take_along_axis(skip_BC, chunk_BT, axis=1)
