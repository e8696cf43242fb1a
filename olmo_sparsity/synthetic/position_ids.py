"""Position IDs of the sequences of synthetic tasks."""

from __future__ import annotations

import numpy as np

from olmo_sparsity.training.positions import pose_positions


def consecutive_ids(num_rows: int, row_len: int) -> np.ndarray:
    """Return 0, 1, 2, ... for each row; int64 [B, T]."""
    return np.broadcast_to(np.arange(row_len), (num_rows, row_len))


def shifted_ids(rng: np.random.Generator, ids_BT: np.ndarray, *, length_B: np.ndarray, max_position: int) -> np.ndarray:
    """Add to the position IDs of each row one random shift, uniform among those that keep them below ``max_position``.

    Args:
        rng: the random generator.
        ids_BT: int64, IDs from 0.
        length_B: int64, tokens of each row that are not filling; only their IDs must stay below ``max_position``.
        max_position: the bound.

    Returns:
        int64 [B, T]; 0 in the filling.

    Raises:
        ValueError: the IDs of a row do not fit.
    """
    is_used_BT = np.arange(ids_BT.shape[1]) < length_B[:, None]
    room_B = max_position - np.where(is_used_BT, ids_BT, 0).max(axis=1)
    if (room_B < 1).any():
        raise ValueError(f"position IDs up to {max_position - int(room_B.min())} do not lie below {max_position}")
    shift_B = (rng.random(len(ids_BT)) * room_B).astype(np.int64)
    return np.where(is_used_BT, ids_BT + shift_B[:, None], 0)


def pose_ids(
    rng: np.random.Generator, *, length_B: np.ndarray, row_len: int, max_position: int, num_chunks: int
) -> np.ndarray:
    """Draw PoSE position IDs for rows of several lengths.

    Args:
        rng: the random generator.
        length_B: int64, tokens of each row that are not filling.
        row_len: T.
        max_position: the IDs lie below this.
        num_chunks: chunks of a row, each with its own skip.

    Returns:
        int64 [B, T]; 0 in the filling.

    Raises:
        ValueError: a row is longer than ``max_position``, or has fewer tokens than chunks.
    """
    ids_BT = np.zeros((len(length_B), row_len), dtype=np.int64)
    for length in np.unique(length_B).tolist():
        rows = np.flatnonzero(length_B == length)
        ids_BT[rows, :length] = pose_positions(
            rng, len(rows), row_len=length, max_position=max_position, num_chunks=num_chunks
        )
    return ids_BT
