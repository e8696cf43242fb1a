"""Policies of key-value caches: which entries would they keep?

The papers choose by head and layer. Here a policy chooses one set for all, by the mean of the scores over layers and heads,
from one pass over the window in which no entry has been evicted.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np

from olmo_sparsity.selectors.registry import Selector, selector

if TYPE_CHECKING:
    from olmo_sparsity.measure.scores import Scores

NUM_SINKS = 4  # of StreamingLLM
POOLED = 5  # neighbours that SnapKV averages over, as its code does
PAGE = 16  # tokens of a page of Quest


def policy(name: str, *needs: str) -> Callable[[Callable[[Scores], Any]], Selector]:
    """Make a function that scores long-range tokens by layer and head, [W, layers, heads, M], a selector."""

    def of_heads(function: Callable[[Scores], Any]) -> Selector:
        def score(s: Scores) -> np.ndarray:
            return s.per_candidate(np.asarray(function(s), dtype=np.float64).mean(axis=(1, 2)))

        score.__doc__ = function.__doc__
        return selector(name, needs=needs, cost="1", num_evaluations=1, needs_entries=True, is_extra=True)(score)

    return of_heads


@policy("h2o", "accumulated_attention")
def h2o(s: Scores) -> np.ndarray:
    """Attention of all tokens of the window, summed (H2O, Zhang et al. 2023, arXiv 2306.14048, Algorithm 1)."""
    return s.observed("accumulated_attention")


@policy("snapkv", "observed_attention")
def snapkv(s: Scores) -> np.ndarray:
    """Attention of the last 32 local tokens, averaged over 5 neighbours (SnapKV, Li et al. 2024, arXiv 2404.14469, Section 4).

    Window, kernel and average pooling are those of its code: beyond the first and the last long-range token it sees zeros.
    """
    attention = s.observed("observed_attention").astype(np.float64)
    padded = np.pad(attention, [*[(0, 0)] * 3, (POOLED // 2, POOLED // 2)])
    return np.lib.stride_tricks.sliding_window_view(padded, POOLED, axis=-1).mean(axis=-1)


@selector("streaming-llm", needs_entries=True, is_extra=True)
def streaming_llm(s: Scores) -> np.ndarray:
    """The first 4 tokens, the anchor included, then the nearest (StreamingLLM, Xiao et al. 2023, arXiv 2309.17453)."""
    order = np.arange(s.num_candidates, dtype=np.float64)
    return np.tile(np.where(s.first_positions < NUM_SINKS, 2 * s.num_candidates - order, order), (s.num_windows, 1))


@policy("key-norm", "keys")
def key_norm(s: Scores) -> np.ndarray:
    """Minus the L2 norm of the keys: low norms go with high attention (Devoto et al. 2024, arXiv 2406.11430, Section 3)."""
    return -np.linalg.norm(s.observed("keys"), axis=-1)


@policy("quest", "queries", "keys")
def quest(s: Scores) -> np.ndarray:
    """Upper bound of the last token's scores for the keys of the page of 16 tokens (Quest, Tang et al. 2024, arXiv 2406.10774).

    The bound of a page is the sum over e of max(q_e max_e, q_e min_e). Pages begin at the first long-range token (Algorithm 1).
    """
    queries, keys = s.observed("queries")[:, :, :, None], s.observed("keys")
    begins = np.arange(0, s.num_long_range, PAGE)
    sharing = queries.shape[2] // keys.shape[2]
    largest, smallest = (of.reduceat(keys, begins, axis=3).repeat(sharing, axis=2) for of in (np.maximum, np.minimum))
    bounds = np.maximum(queries * largest, queries * smallest).sum(axis=-1)
    return bounds.repeat(PAGE, axis=-1)[..., : s.num_long_range]
