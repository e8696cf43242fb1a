"""Policies of key-value caches: which entries would they keep?

The papers choose by head and layer, while they evict. Here a policy chooses one set for all heads and layers, by its mean score,
from one pass over the window in which no entry has been evicted.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import numpy as np

from olmo_sparsity.selectors.registry import selector

if TYPE_CHECKING:
    from olmo_sparsity.measure.scores import Scores

NUM_SINKS = 4  # of StreamingLLM
POOLED = 5  # neighbours that SnapKV averages over, as its code does
PAGE = 16  # tokens of a page of Quest

policy = functools.partial(selector, cost=1, needs_entries=True, is_extra=True)


def _mean(s: Scores, scores: np.ndarray) -> np.ndarray:
    """Mean over layers and heads, summed over the tokens of each candidate: [W, layers, heads, M] -> [W, I]."""
    return s.per_candidate(scores.astype(np.float64).mean(axis=(1, 2)))


@policy("h2o", needs=["accumulated_attention"])
def h2o(s: Scores) -> np.ndarray:
    """Attention of all tokens of the window, summed (H2O, Algorithm 1).

    Zhang et al. 2023, https://arxiv.org/abs/2306.14048.
    """
    return _mean(s, s.observed("accumulated_attention"))


@policy("snapkv", needs=["observed_attention"])
def snapkv(s: Scores) -> np.ndarray:
    """Attention of the last 32 local tokens, averaged over 5 neighbours (SnapKV, Section 4).

    Li et al. 2024, https://arxiv.org/abs/2404.14469. Window, kernel and average pooling are those of its code: beyond the first
    and the last long-range token it sees zeros.
    """
    attention = s.observed("observed_attention").astype(np.float64)
    padded = np.pad(attention, [*[(0, 0)] * 3, (POOLED // 2, POOLED // 2)])
    return _mean(s, np.lib.stride_tricks.sliding_window_view(padded, POOLED, axis=-1).mean(axis=-1))


@policy("streaming-llm", cost=0)
def streaming_llm(s: Scores) -> np.ndarray:
    """The first 4 tokens, the anchor included, then the nearest (StreamingLLM).

    Xiao et al. 2023, https://arxiv.org/abs/2309.17453.
    """
    order = np.arange(s.num_candidates, dtype=np.float64)
    return np.tile(np.where(s.first_positions < NUM_SINKS, 2 * s.num_candidates - order, order), (s.num_windows, 1))


@policy("key-norm", needs=["keys"])
def key_norm(s: Scores) -> np.ndarray:
    """Minus the L2 norm of the keys: low norms go with high attention.

    Devoto et al. 2024, https://arxiv.org/abs/2406.11430, Section 3.
    """
    return _mean(s, -np.linalg.norm(s.observed("keys"), axis=-1))


@policy("quest", needs=["queries", "keys"])
def quest(s: Scores) -> np.ndarray:
    """Upper bound of the last token's scores for the keys of the page of 16 tokens (Quest, Algorithm 1).

    Tang et al. 2024, https://arxiv.org/abs/2406.10774. The bound of a page is the sum over e of max(q_e max_e, q_e min_e). Pages
    begin at the first long-range token.
    """
    queries, keys = s.observed("queries")[:, :, :, None], s.observed("keys")
    begins = np.arange(0, s.num_long_range, PAGE)
    sharing = queries.shape[2] // keys.shape[2]  # heads of queries for each head of keys
    largest, smallest = (of.reduceat(keys, begins, axis=3).repeat(sharing, axis=2) for of in (np.maximum, np.minimum))
    bounds = np.maximum(queries * largest, queries * smallest).sum(axis=-1)
    return _mean(s, bounds.repeat(PAGE, axis=-1)[..., : s.num_long_range])
