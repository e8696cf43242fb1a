"""Selectors that ask no model: how far does a rule go?

Shape letters: W windows, T tokens of a window, M long-range positions, I groups of the window with the most, N terms in the
window's groups, Q distinct terms of a query.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from olmo_sparsity.records.selector import Look, ScoredWindows, Selector, of_window
from olmo_sparsity.records.window_input import WindowInput

if TYPE_CHECKING:
    import numpy as np

BM25_K1, BM25_B = 1.2, 0.75  # as in Lucene


def _same_token(window: WindowInput) -> np.ndarray:
    """Return 1 for tokens that are among the local tokens, too, otherwise 0, float64 [M]."""
    import numpy as np

    far_M, local_L = np.split(window.token_ids, [window.num_long_range])
    return np.isin(far_M, local_L).astype(np.float64)


def _rarest(window: WindowInput) -> np.ndarray:
    """Return minus the number of times that each token occurs in the measured text, float64 [M]."""
    return -window.frequencies[: window.num_long_range].astype(float)


def _sentence_start(window: WindowInput) -> np.ndarray:
    """Return 1 for tokens that begin a sentence, otherwise 0, float64 [M]."""
    return window.sentence_starts[: window.num_long_range].astype(float)


def bm25(terms_N: np.ndarray, groups_N: np.ndarray, *, num_groups: int, query_L: np.ndarray) -> np.ndarray:
    """Return the BM25 of groups of terms, the documents, against a query, float64 [I].

    Each occurrence in the query counts. The documents are those of one window.

    Source: Robertson and Zaragoza, The Probabilistic Relevance Framework: BM25 and Beyond (2009), with the inverse document
    frequency ln(1 + (N - n + 0.5) / (n + 0.5)), which is not negative.

    Args:
        terms_N: int64, the terms, such as token IDs.
        groups_N: int64, the number of each one's group.
        num_groups: I.
        query_L: int64, the terms of the query.
    """
    import numpy as np

    terms_Q, repeats_Q = np.unique(query_L, return_counts=True)
    counts_IQ = np.zeros((num_groups, len(terms_Q)))
    is_term_N = np.isin(terms_N, terms_Q)
    np.add.at(counts_IQ, (groups_N[is_term_N], np.searchsorted(terms_Q, terms_N[is_term_N])), 1)
    holding_Q = (counts_IQ > 0).sum(axis=0)
    rarity_Q = np.log1p((num_groups - holding_Q + 0.5) / (holding_Q + 0.5))
    lengths_I = np.bincount(groups_N, minlength=num_groups)
    mean_length = lengths_I.mean() or 1.0  # without terms all lengths are 0, and so are all scores
    norm_I1 = BM25_K1 * (1 - BM25_B + BM25_B * lengths_I / mean_length)[:, None]
    saturated_IQ = counts_IQ * (BM25_K1 + 1) / (counts_IQ + norm_I1)
    scores_I: np.ndarray = saturated_IQ @ (repeats_Q * rarity_Q)
    return scores_I


def _bm25(cache: ScoredWindows) -> np.ndarray:
    """Return the BM25 of each group of long-range tokens against the local ones, float64 [W, I]."""
    import numpy as np

    groups_WM = cache.groups.groups_WM
    scores_WI = np.full((len(groups_WM), cache.groups.num_groups), np.nan)
    for w, window in enumerate(cache.inputs(("token_ids",))):
        num_groups = int(groups_WM[w, -1]) + 1
        far_M, local_L = np.split(window.token_ids, [window.num_long_range])
        scores_WI[w, :num_groups] = bm25(far_M, groups_WM[w], num_groups=num_groups, query_L=local_L)
    return scores_WI


RULES: tuple[Selector, ...] = (
    of_window(
        "same-token",
        _same_token,
        ("token_ids",),
        meaning="1 for tokens that are among the local tokens, too",
        definition="1 if the token is among the local tokens, too, else 0: the nearest such tokens, then the nearest others",
        look=Look("#44AA99", "<", on_light="#2b7f71", on_dark="#6fd0be"),
    ),
    of_window(
        "rarest",
        _rarest,
        ("frequencies",),
        meaning="minus the number of times that the token occurs in the measured text",
        definition="minus the number of times that the token occurs in the measured text, all its documents",
        look=Look("#117733", ">", on_light="#117733", on_dark="#58c47c"),
    ),
    Selector(
        name="bm25",
        score=_bm25,
        sees_target=False,
        meaning="BM25 of the {unit} against the local tokens",
        definition="BM25 of j, or of its group, against the local tokens; the documents are the groups of the window",
        look=Look("#CC6677", "8", on_light="#b04a5c", on_dark="#ee9aa8"),
        num_evaluations=lambda size: 0,
        cost="0",
        needs=frozenset({"token_ids"}),
        by_name_only=True,
    ),
    of_window(
        "sentence-start",
        _sentence_start,
        ("sentence_starts",),
        meaning="1 for tokens that begin a sentence",
        definition="1 if the token begins a sentence, else 0: the nearest such tokens, then the nearest others",
        look=Look("#AA4499", "H", on_light="#93347f", on_dark="#e08dd0"),
    ),
)
