"""Selectors: a score for each long-range position; the k highest are J_k, nested by construction.

Legend: W windows, M long-range positions. Every selector reads what was measured once for a batch of windows under one
context, and all of them share it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

import numpy as np

CONTEXTS = ("real", "null")


@dataclass(frozen=True)
class Scored:
    """What selectors read, of W windows under one context; losses and divergences in nats.

    ``kl_short`` is KL(p_all, p_{}) and ``kl_single`` KL(p_all, p_{j}), p_all the full-context prediction.
    """

    window_ids: np.ndarray  # int64 [W]
    num_long_range: int
    context: str
    seed: int
    loss_short: np.ndarray  # [W]
    loss_single: Optional[np.ndarray] = None  # [W, M]
    kl_short: Optional[np.ndarray] = None  # [W]
    kl_single: Optional[np.ndarray] = None  # [W, M]


@dataclass(frozen=True)
class Selector:
    """A scoring function, Scored -> [W, M], and what it asks for.

    ``sees_target``: does the score depend on the target's identity. ``needs_singles`` and ``needs_kl``: must every
    single-token unmasking be evaluated, and its divergence kept.
    """

    score: Callable[[Scored], np.ndarray]
    sees_target: bool
    needs_singles: bool = False
    needs_kl: bool = False

    def num_evaluations(self, num_long_range: int) -> int:
        """Evaluations of the model that one window's scores cost, L_short and L_long included where they enter."""
        if self.needs_kl:
            return num_long_range + 2
        return num_long_range + 1 if self.needs_singles else 0


def _unmask_one(scored: Scored) -> np.ndarray:
    """loss({}) - loss({j}): the gain of unmasking j alone (our reading of Eq. 20)."""
    assert scored.loss_single is not None
    return scored.loss_short[:, None] - scored.loss_single


def _kl(scored: Scored) -> np.ndarray:
    """KL(p_all, p_{}) - KL(p_all, p_{j}): how far unmasking j moves the prediction to the full-context one."""
    assert scored.kl_short is not None and scored.kl_single is not None
    return scored.kl_short[:, None] - scored.kl_single


def _random(scored: Scored) -> np.ndarray:
    """Uniform numbers, a function of seed, window and context alone."""
    context = CONTEXTS.index(scored.context)
    draws = [np.random.default_rng([scored.seed, 3, int(i), context]) for i in scored.window_ids]
    return np.stack([draw.random(scored.num_long_range) for draw in draws])


def _nearest(scored: Scored) -> np.ndarray:
    """The position itself: the nearer to the local context, the higher."""
    return np.broadcast_to(
        np.arange(scored.num_long_range, dtype=np.float64), (len(scored.window_ids), scored.num_long_range)
    )


SELECTORS: dict[str, Selector] = {
    "unmask-one": Selector(_unmask_one, sees_target=True, needs_singles=True),
    "kl": Selector(_kl, sees_target=False, needs_singles=True, needs_kl=True),
    "random": Selector(_random, sees_target=False),
    "nearest": Selector(_nearest, sees_target=False),
}


def rank(scores_WM: np.ndarray) -> np.ndarray:
    """int64 [W, M]: positions by falling score; of equal scores the nearer (the larger position) comes first."""
    num_long_range = scores_WM.shape[1]
    return num_long_range - 1 - np.argsort(-scores_WM[:, ::-1], axis=1, kind="stable")
