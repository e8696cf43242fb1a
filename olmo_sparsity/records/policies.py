"""Policies of key-value caches as selectors: which entries would they keep?

The papers choose by head and layer. Here a policy chooses one set for all of them: a score is the mean over layers and heads. All
scores come from one pass over the window under full context, in which no entry has been evicted yet.

Shape letters: W windows, T tokens of a window, M long-range positions, I groups, E width of a head, P pages.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from olmo_sparsity.records.selector import Look, ScoredWindows, Selector, of_window
from olmo_sparsity.records.window_input import WindowInput

if TYPE_CHECKING:
    import numpy as np

NUM_SINKS = 4  # of StreamingLLM
POOLED = 5  # neighbours that SnapKV averages over, as its code does
PAGE = 16  # tokens of a page of Quest

ScoreOfHeads = Callable[[WindowInput], "np.ndarray"]  # -> float [layers, heads of queries or of keys, M]


def for_queries(of_keys: np.ndarray, of_queries: np.ndarray) -> np.ndarray:
    """Return what each head of keys has for each head of queries that shares it, [layers, heads of queries, ...]."""
    return of_keys.repeat(of_queries.shape[1] // of_keys.shape[1], axis=1)


def _h2o(window: WindowInput) -> np.ndarray:
    """Return the accumulated attention: the sum over all queries of the window.

    Source: H2O (Zhang et al. 2023, arXiv 2306.14048), Section 3 and Algorithm 1, at the end of the prompt.
    """
    return window.accumulated_attention


def _snapkv(window: WindowInput) -> np.ndarray:
    """Return the attention of the last 32 local queries, averaged over 5 neighbours among the long-range tokens.

    Source: SnapKV (Li et al. 2024, arXiv 2404.14469), Section 4, with the window, the kernel and the average pooling of its code.
    Beyond the first and the last long-range token the pooling sees zeros.
    """
    import numpy as np

    padded = np.pad(window.observed_attention.astype(np.float64), [(0, 0), (0, 0), (POOLED // 2, POOLED // 2)])
    return np.lib.stride_tricks.sliding_window_view(padded, POOLED, axis=-1).mean(axis=-1)


def _streaming_llm(cache: ScoredWindows) -> np.ndarray:
    """Return the order of sinks and recent: the groups of the first 4 tokens, the anchor included, then the nearest.

    Source: StreamingLLM (Xiao et al. 2023, arXiv 2309.17453), Section 3.2.
    """
    import numpy as np

    groups = cache.groups
    order_I = np.arange(groups.num_groups, dtype=np.float64)
    positions_WT = np.stack([window.positions for window in cache.inputs(("positions",))])
    is_sink_WI = np.take_along_axis(positions_WT, groups.first_WI, axis=1) < NUM_SINKS
    of_sinks_WI = 2 * groups.num_groups_W[:, None] - order_I
    scores_WI: np.ndarray = groups.with_missing(np.where(is_sink_WI, of_sinks_WI, order_I))
    return scores_WI


def _key_norm(window: WindowInput) -> np.ndarray:
    """Return minus the L2 norm of the keys: low norms go with high attention.

    Source: Devoto et al. 2024 (arXiv 2406.11430), Section 3.
    """
    import numpy as np

    return -np.linalg.norm(window.keys, axis=-1)


def _quest(window: WindowInput) -> np.ndarray:
    """Return the query-aware bound of the page of 16 tokens that each token is in.

    The bound of a page is the sum over e of max(q_e max_e, q_e min_e), with the largest and smallest entries of its keys and the
    query of the last token: no score of the page is larger. Pages begin at the first long-range token.

    Source: Quest (Tang et al. 2024, arXiv 2406.10774), Section 3.3 and Algorithm 1.
    """
    import numpy as np

    begins_P = np.arange(0, window.num_long_range, PAGE)
    largest = np.maximum.reduceat(window.keys, begins_P, axis=2)
    smallest = np.minimum.reduceat(window.keys, begins_P, axis=2)
    largest, smallest = (for_queries(bound, window.queries) for bound in (largest, smallest))
    queries = window.queries[:, :, None]
    bounds = np.maximum(queries * largest, queries * smallest).sum(axis=-1)
    return bounds.repeat(PAGE, axis=-1)[..., : window.num_long_range]


def _policy(
    name: str,
    function: ScoreOfHeads,
    needs: tuple[str, ...],
    *,
    meaning: str,
    definition: str,
    source: str,
    look: Look,
) -> Selector:
    """Return a policy that chooses one set for all heads, by the mean of their scores.

    Args:
        name: of the selector.
        function: returns the scores of each layer and head.
        needs: what it reads of a window.
        meaning: of the score, as of ``Selector``.
        definition: of the score of position j.
        source: the paper.
        look: how it is drawn.
    """
    return of_window(
        name,
        lambda window: function(window).mean(axis=(0, 1)),
        needs,
        meaning=f"{meaning}, mean over heads and layers",
        definition=f"{definition} ({source})",
        look=look,
        num_passes=1,
        needs_entries=True,
    )


POLICIES: tuple[Selector, ...] = (
    _policy(
        "h2o",
        _h2o,
        ("accumulated_attention",),
        meaning="attention that all tokens pay to this {unit}, summed",
        definition="H2O: attention of all tokens of the window to j, summed",
        source="Zhang et al. 2023, arXiv 2306.14048",
        look=Look("#661100", "X", on_light="#661100", on_dark="#e08a75"),
    ),
    _policy(
        "snapkv",
        _snapkv,
        ("observed_attention",),
        meaning="attention of the last local tokens to this {unit} and its neighbours",
        definition="SnapKV: attention of the last 32 local tokens to j, averaged over 5 neighbours",
        source="Li et al. 2024, arXiv 2404.14469",
        look=Look("#4477AA", "d", on_light="#3a6898", on_dark="#8db6e0"),
    ),
    Selector(
        name="streaming-llm",
        score=_streaming_llm,
        sees_target=False,
        meaning="sinks and recent: the first tokens, then the nearest {units}",
        definition="StreamingLLM: the first 4 tokens, the anchor included, then the nearest (Xiao et al. 2023, arXiv 2309.17453)",
        look=Look("#228833", "1", on_light="#1f7a2e", on_dark="#6fd183"),
        num_evaluations=lambda size: 0,  # positions are known without the model
        cost="0",
        needs=frozenset({"positions"}),
        needs_entries=True,
        by_name_only=True,
    ),
    _policy(
        "key-norm",
        _key_norm,
        ("keys",),
        meaning="minus the norm of the keys of this {unit}",
        definition="minus the L2 norm of the keys of j",
        source="Devoto et al. 2024, arXiv 2406.11430",
        look=Look("#BB5500", "3", on_light="#a34a00", on_dark="#f0a060"),
    ),
    _policy(
        "quest",
        _quest,
        ("queries", "keys"),
        meaning="upper bound of the scores that the last token gives to the page of this {unit}",
        definition="Quest: upper bound of the scores that the last token gives to the keys of the page of 16 tokens that j is in",
        source="Tang et al. 2024, arXiv 2406.10774",
        look=Look("#6644BB", "4", on_light="#5c3dab", on_dark="#b6a0f0"),
    ),
)
