"""k-sparse planted correlations (Golowich et al., arXiv 2502.16792, Definition 3.2): where the target's tokens lie.

A sequence is background, drawn independently from one distribution, except at k planted positions. The planted positions are
drawn from a distribution over sets, the planted tokens from a distribution over k values, and the target is a function of the
planted tokens alone. The functions here draw the sets; tasks say what is planted, and what the target is.

Two parameters shape the distribution of the sets. Their exact form is a choice made here:

- **locality**: all planted positions lie within an interval of so many tokens, whose place is uniform.
- **spread**: two planted positions are at least so many tokens apart; 1: they are distinct, nothing more.

Given the place of the interval, all sets that satisfy both are equally likely.
"""

from __future__ import annotations

from typing import Optional

import numpy as np

# Part of every fingerprint: increase it when a generator draws other sequences.
GENERATOR_VERSION = 1
# A key above every random number, for places that must not be drawn.
LAST = 2.0


def planted_positions(
    rng: np.random.Generator,
    length_B: np.ndarray,
    num_planted_B: np.ndarray,
    *,
    locality: Optional[int] = None,
    spread: int = 1,
) -> np.ndarray:
    """Draw the planted positions of each sequence.

    Args:
        rng: the random generator.
        length_B: int64, tokens of each sequence in which positions are planted.
        num_planted_B: int64, k of each sequence, at least 1.
        locality: tokens of the interval that holds all planted positions of a sequence; None: the whole sequence.
        spread: least distance between two planted positions.

    Returns:
        int64 [B, largest k], rising in each row; -1 behind the last planted position of a row.

    Raises:
        ValueError: the planted positions of a sequence do not fit.
    """
    length_B, num_planted_B = np.asarray(length_B), np.asarray(num_planted_B)
    interval_B = length_B if locality is None else np.minimum(length_B, locality)
    # Uniform among all sets with the least distance: choose among the places that remain when each gap shrinks to 1.
    shrunk_B = interval_B - (num_planted_B - 1) * (spread - 1)
    if (num_planted_B < 1).any() or (shrunk_B < num_planted_B).any():
        raise ValueError(f"num_planted and spread = {spread} do not fit into {int(interval_B.min())} tokens")
    max_planted = int(num_planted_B.max())
    keys_BT = rng.random((len(length_B), int(shrunk_B.max())))
    keys_BT[np.arange(keys_BT.shape[1]) >= shrunk_B[:, None]] = LAST
    first_BK = keys_BT.argsort(axis=1)[:, :max_planted]
    begin_B = (rng.random(len(length_B)) * (length_B - interval_B + 1)).astype(np.int64)
    unused_BK = np.arange(max_planted) >= num_planted_B[:, None]
    first_BK[unused_BK] = np.iinfo(np.int64).max
    first_BK.sort(axis=1)
    first_BK[unused_BK] = 0
    positions_BK = first_BK + np.arange(max_planted) * (spread - 1) + begin_B[:, None]
    positions_BK[unused_BK] = -1
    return positions_BK
