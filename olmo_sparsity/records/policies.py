"""Policies of key-value caches as selectors: which entries would they keep?

The papers choose by head and layer. Here one set serves all of them: a score is the mean over layers and heads. All scores come
from one pass over the window under full context, in which no entry has been evicted yet.

Shape letters: M long-range positions, E width of a head, P pages.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

from olmo_sparsity.records.selector import Look, Selector, of_window
from olmo_sparsity.records.window_input import WindowInput

if TYPE_CHECKING:
    import numpy as np

NUM_SINKS = 4  # of StreamingLLM
POOLED = 5  # neighbours that SnapKV averages over, as its code does
PAGE = 16  # tokens of a page of Quest
SUMMED_OVER_HEADS = (0, 1)  # axes: layers, heads


def _h2o(window: WindowInput) -> np.ndarray:
    """Return the accumulated attention: the sum over all queries of the window, float [M].

    Source: H2O (Zhang et al. 2023, arXiv 2306.14048), Section 3 and Algorithm 1, at the end of the prompt.
    """
    return window.accumulated_attention.mean(axis=SUMMED_OVER_HEADS)


def _snapkv(window: WindowInput) -> np.ndarray:
    """Return the attention of the last 32 local queries, averaged over 5 neighbours among the long-range tokens, float [M].

    Source: SnapKV (Li et al. 2024, arXiv 2404.14469), Section 4, with the window, the kernel and the average pooling of its code.
    Beyond the first and the last long-range token the pooling sees zeros.
    """
    import numpy as np

    votes_M = window.observed_attention.mean(axis=SUMMED_OVER_HEADS)
    return np.convolve(np.pad(votes_M, POOLED // 2), np.full(POOLED, 1 / POOLED), mode="valid")


def _streaming_llm(window: WindowInput) -> np.ndarray:
    """Return the order of sinks and recent: the first 4 tokens, the anchor included, then the nearest; float64 [M].

    Source: StreamingLLM (Xiao et al. 2023, arXiv 2309.17453), Section 3.2.
    """
    import numpy as np

    order_M = np.arange(window.num_long_range, dtype=np.float64)
    is_sink_M = window.positions[: window.num_long_range] < NUM_SINKS
    return np.where(is_sink_M, 2 * window.num_long_range - order_M, order_M)


def _vatp(window: WindowInput) -> np.ndarray:
    """Return the accumulated attention times the L1 norm of the values, head by head, float [M].

    Source: VATP (Guo et al. 2024, arXiv 2406.12335), on the scores of H2O. The paper keeps the first tokens besides; here only
    the anchor is always kept.
    """
    import numpy as np

    norms = np.abs(window.values).sum(axis=-1)
    sharing = window.accumulated_attention.shape[1] // norms.shape[1]  # heads that share the values of one
    return (window.accumulated_attention * norms.repeat(sharing, axis=1)).mean(axis=SUMMED_OVER_HEADS)


def _key_norm(window: WindowInput) -> np.ndarray:
    """Return minus the L2 norm of the keys, float [M]: low norms go with high attention.

    Source: Devoto et al. 2024 (arXiv 2406.11430), Section 3.
    """
    import numpy as np

    return -np.linalg.norm(window.keys, axis=-1).mean(axis=SUMMED_OVER_HEADS)


def _quest(window: WindowInput) -> np.ndarray:
    """Return the query-aware bound of the page of 16 tokens that each token is in, float [M].

    The bound of a page is the sum over e of max(q_e max_e, q_e min_e), with the largest and smallest entries of its keys and the
    query of the last token: no score of the page is larger. Pages begin at the first long-range token.

    Source: Quest (Tang et al. 2024, arXiv 2406.10774), Section 3.3 and Algorithm 1.
    """
    import numpy as np

    begins_P = np.arange(0, window.num_long_range, PAGE)
    largest = np.maximum.reduceat(window.keys, begins_P, axis=2)
    smallest = np.minimum.reduceat(window.keys, begins_P, axis=2)
    sharing = window.queries.shape[1] // window.keys.shape[1]  # heads that share the keys of one
    largest, smallest = (bound.repeat(sharing, axis=1) for bound in (largest, smallest))
    queries = window.queries[:, :, None]
    bounds = np.maximum(queries * largest, queries * smallest).sum(axis=-1)
    return bounds.mean(axis=SUMMED_OVER_HEADS).repeat(PAGE)[: window.num_long_range]


_policy = functools.partial(of_window, is_policy=True, num_passes=1)


POLICIES: tuple[Selector, ...] = (
    _policy(
        "h2o",
        _h2o,
        ("accumulated_attention",),
        meaning="attention that all tokens pay to this {unit}, summed, mean over heads and layers",
        definition="H2O: attention of all tokens of the window to j, summed (Zhang et al. 2023, arXiv 2306.14048)",
        look=Look("#661100", "X", on_light="#661100", on_dark="#e08a75"),
    ),
    _policy(
        "snapkv",
        _snapkv,
        ("observed_attention",),
        meaning="attention of the last local tokens to this {unit} and its neighbours, mean over heads and layers",
        definition="SnapKV: attention of the last 32 local tokens to j, averaged over 5 neighbours (Li et al. 2024, arXiv "
        "2404.14469)",
        look=Look("#4477AA", "d", on_light="#3a6898", on_dark="#8db6e0"),
    ),
    _policy(
        "streaming-llm",
        _streaming_llm,
        ("positions",),
        meaning="sinks and recent: the first tokens, then the nearest {units}",
        definition="StreamingLLM: the first 4 tokens, the anchor included, then the nearest (Xiao et al. 2023, arXiv 2309.17453)",
        look=Look("#228833", "1", on_light="#1f7a2e", on_dark="#6fd183"),
        num_passes=0,  # positions are known without the model
    ),
    _policy(
        "vatp",
        _vatp,
        ("accumulated_attention", "values"),
        meaning="attention that all tokens pay to this {unit}, times the norm of its values, mean over heads and layers",
        definition="VATP: that of H2O times the L1 norm of the values of j (Guo et al. 2024, arXiv 2406.12335)",
        look=Look("#AA3377", "2", on_light="#aa3378", on_dark="#e58fc0"),
    ),
    _policy(
        "key-norm",
        _key_norm,
        ("keys",),
        meaning="minus the norm of the keys of this {unit}, mean over heads and layers",
        definition="minus the L2 norm of the keys of j (Devoto et al. 2024, arXiv 2406.11430)",
        look=Look("#BB5500", "3", on_light="#a34a00", on_dark="#f0a060"),
    ),
    _policy(
        "quest",
        _quest,
        ("queries", "keys"),
        meaning="upper bound of the scores that the last token gives to the page of this {unit}, mean over heads and layers",
        definition="Quest: upper bound of the scores that the last token gives to the keys of the page of 16 tokens that j is in "
        "(Tang et al. 2024, arXiv 2406.10774)",
        look=Look("#6644BB", "4", on_light="#5c3dab", on_dark="#b6a0f0"),
    ),
)
