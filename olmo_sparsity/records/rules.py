"""Selectors that ask no model: how far does a rule go?

Shape letters: W windows, T tokens of a window, M long-range positions, I groups of the window with the most, N terms in the
window's groups, Q distinct terms of a query.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import TYPE_CHECKING

from olmo_sparsity.records.selector import Look, ScoredWindows, Selector, of_window
from olmo_sparsity.records.window_input import WindowInput

if TYPE_CHECKING:
    import numpy as np

BM25_K1, BM25_B = 1.2, 0.75  # as in Lucene
WORD = re.compile(r"\w+")


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


def _tokens_of(window: WindowInput, groups_M: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return token IDs as terms: those of the long-range tokens, their groups, and the local ones, the query; int64."""
    import numpy as np

    far_M, local_L = np.split(window.token_ids, [window.num_long_range])
    return far_M, groups_M, local_L


def _words_of(window: WindowInput, groups_M: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the same of words, in small letters; a word of several tokens is a term of each group that holds one of them."""
    import numpy as np

    texts = [text.casefold() for text in window.texts]
    far, local = texts[: window.num_long_range], texts[window.num_long_range :]
    ends_M = np.cumsum([len(text) for text in far])
    words = list(WORD.finditer("".join(far)))
    first_N = np.searchsorted(ends_M, [word.start() for word in words], side="right")
    last_N = np.searchsorted(ends_M, [word.end() for word in words], side="left")
    terms = [
        (word.group(), group)
        for word, first, last in zip(words, first_N, last_N, strict=True)
        for group in np.unique(groups_M[first : last + 1]).tolist()
    ]
    query = WORD.findall("".join(local))
    numbers = {term: number for number, term in enumerate(dict.fromkeys([*query, *(term for term, _ in terms)]))}
    in_numbers = np.array([(numbers[term], group) for term, group in terms], dtype=np.int64).reshape(-1, 2)
    return in_numbers[:, 0], in_numbers[:, 1], np.array([numbers[term] for term in query], dtype=np.int64)


def _by_bm25(
    name: str,
    need: str,
    terms_of: Callable[[WindowInput, np.ndarray], tuple[np.ndarray, np.ndarray, np.ndarray]],
    *,
    meaning: str,
    definition: str,
    look: Look,
) -> Selector:
    """Return a selector whose score is the BM25 of each group.

    Args:
        name: of the selector.
        need: what it reads of a window.
        terms_of: returns the terms of a window, their groups, and the query.
        meaning: as of ``Selector``, like the rest.
        definition: of the score.
        look: how it is drawn.
    """

    def score(cache: ScoredWindows) -> np.ndarray:
        import numpy as np

        groups_WM = cache.groups.groups_WM
        scores_WI = np.full((len(groups_WM), cache.groups.num_groups), np.nan)
        for w, window in enumerate(cache.inputs((need,))):
            num_groups = int(groups_WM[w, -1]) + 1
            terms_N, groups_N, query_L = terms_of(window, groups_WM[w])
            scores_WI[w, :num_groups] = bm25(terms_N, groups_N, num_groups=num_groups, query_L=query_L)
        return scores_WI

    return Selector(
        name=name,
        score=score,
        sees_target=False,
        meaning=meaning,
        definition=definition,
        look=look,
        num_evaluations=lambda size: 0,
        cost="0",
        needs=frozenset({need}),
        by_name_only=True,
    )


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
    _by_bm25(
        "bm25",
        "token_ids",
        _tokens_of,
        meaning="BM25 of the {unit} against the local tokens",
        definition="BM25 of j, or of its group, against the local tokens; the documents are the groups of the window",
        look=Look("#CC6677", "8", on_light="#b04a5c", on_dark="#ee9aa8"),
    ),
    _by_bm25(
        "bm25-word",
        "texts",
        _words_of,
        meaning="BM25 of the {unit} against the local text, by words",
        definition="as `bm25`; the terms are words in small letters, and j has the words that it is part of",
        look=Look("#AA5566", "$w$", on_light="#8f3d50", on_dark="#f5b8c4"),
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
