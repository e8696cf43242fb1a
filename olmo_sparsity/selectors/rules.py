"""Rules that need no model: how far do they go?"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from olmo_sparsity.selectors.registry import selector

if TYPE_CHECKING:
    from olmo_sparsity.measure.scores import Scores

BM25_K1, BM25_B = 1.2, 0.75  # as in Lucene


@selector("same-token", is_extra=True)
def same_token(s: Scores) -> np.ndarray:
    """1 if the token is among the local tokens, too, else 0: the nearest such tokens, then the nearest others."""
    far, local = np.split(s.token_ids, [s.num_long_range], axis=1)
    return s.per_candidate((far[:, :, None] == local[:, None]).any(axis=2).astype(np.float64))


@selector("rarest", is_extra=True)
def rarest(s: Scores) -> np.ndarray:
    """Minus the number of times that the token occurs in the measured text, all its documents."""
    return s.per_candidate(-s.frequencies[:, : s.num_long_range].astype(np.float64))


@selector("bm25", is_extra=True)
def bm25(s: Scores) -> np.ndarray:
    """BM25 against the local tokens; the documents are the candidates of the window.

    Robertson and Zaragoza 2009, https://doi.org/10.1561/1500000019, with the inverse document frequency
    ln(1 + (N - n + 0.5) / (n + 0.5)), which is not negative.
    """
    far, local = np.split(s.token_ids, [s.num_long_range], axis=1)
    return np.stack([_bm25(s, far_M, query_L) for far_M, query_L in zip(far, local, strict=True)])


def _bm25(s: Scores, far_M: np.ndarray, query_L: np.ndarray) -> np.ndarray:
    terms_Q, repeats_Q = np.unique(query_L, return_counts=True)  # each occurrence in the query counts
    counts_MQ = (far_M[:, None] == terms_Q).astype(np.float64)
    counts_IQ = np.add.reduceat(counts_MQ, [first for first, _ in s.spans], axis=0)
    holding_Q = (counts_IQ > 0).sum(axis=0)
    rarity_Q = np.log1p((s.num_candidates - holding_Q + 0.5) / (holding_Q + 0.5))
    lengths_I = np.array([end - first for first, end in s.spans])
    norm_I1 = BM25_K1 * (1 - BM25_B + BM25_B * lengths_I / lengths_I.mean())[:, None]
    return (counts_IQ * (BM25_K1 + 1) / (counts_IQ + norm_I1)) @ (repeats_Q * rarity_Q)


@selector("sentence-start", is_extra=True)
def sentence_start(s: Scores) -> np.ndarray:
    """1 if the token begins a sentence, else 0: the nearest such tokens, then the nearest others."""
    return s.per_candidate(s.sentence_starts[:, : s.num_long_range].astype(np.float64))
