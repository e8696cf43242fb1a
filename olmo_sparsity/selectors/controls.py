"""Controls, which look at nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from olmo_sparsity.selectors.registry import selector

if TYPE_CHECKING:
    from olmo_sparsity.measure.scores import Scores

RANDOM_SCORES = 3  # purpose of a random generator; a change would change the tables


@selector("random", is_control=True)
def random(s: Scores) -> np.ndarray:
    """A random number, a function of seed, window and context alone."""
    return np.stack([generator.random(s.num_candidates) for generator in s.generators(RANDOM_SCORES)])


@selector("nearest", is_control=True)
def nearest(s: Scores) -> np.ndarray:
    """The position: the k candidates next to the local tokens."""
    return np.tile(np.arange(s.num_candidates, dtype=np.float64), (s.num_windows, 1))
