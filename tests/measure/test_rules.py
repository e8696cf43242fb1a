"""Rules without a model, against their definitions by loops."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scored_windows import STORE, WORDS, make_scores
from tiny_models import NORMED, VOCAB, build
from tiny_stores import tiny_store
from tiny_windows import FULL, LOCAL, M

from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.selection.window_inputs import token_counts
from olmo_sparsity.measure.visible.window_batch import TokenGroups
from olmo_sparsity.records.selectors import SELECTORS, rank
from olmo_sparsity.records.window_input import needs_pass

ENDS = WORDS[" end."]
BM25_K1, BM25_B = 1.2, 0.75  # the defaults of Lucene


def scores_with(tokens: np.ndarray, *, groups: TokenGroups | None = None) -> WindowScores:
    """Return the scores of windows of these tokens."""
    of_model = make_scores(build(NORMED).eval(), num=len(tokens), groups=groups)
    object.__setattr__(of_model.windows, "tokens_WT", torch.from_numpy(tokens))
    return of_model


@pytest.fixture
def tokens() -> np.ndarray:
    """Windows of few distinct tokens, so that local ones come back among the long-range ones."""
    drawn = np.random.default_rng(0).integers(1, 12, (4, FULL))
    drawn[0] = np.arange(20, 20 + FULL)  # none comes back
    return drawn


def test_same_token(tokens: np.ndarray) -> None:
    ranked = rank(SELECTORS["same-token"].score(scores_with(tokens)))
    for w, row in enumerate(tokens.tolist()):
        local = row[M:]
        expected = [j for j in reversed(range(M)) if row[j] in local] + [
            j for j in reversed(range(M)) if row[j] not in local
        ]
        assert ranked[w].tolist() == expected
    assert ranked[0].tolist() == list(range(M))[::-1] != ranked[1].tolist()


def test_rarest_counts_the_measured_text(tokens: np.ndarray) -> None:
    text = [
        token
        for begin, end in zip(STORE.begins_G.tolist(), STORE.ends_G.tolist(), strict=True)
        for token in STORE.tokens[begin:end].tolist()
    ]
    tokens[3, :5] = [VOCAB - 1, VOCAB + 5, 1, 9, 8]  # the second is in no text
    scores = SELECTORS["rarest"].score(scores_with(tokens))
    for w, row in enumerate(tokens.tolist()):
        assert scores[w].tolist() == [-text.count(token) for token in row[:M]]
    assert scores[3, 1] == 0 and scores[3, 4] == -8


def test_each_split_of_a_text_has_counts_of_its_own() -> None:
    """Two splits of one text have the same tokens, and different documents."""
    text = tiny_store([[1, 1, 2], [2, 3]])
    text = dataclasses.replace(text, tokens_sha256="of two splits")
    for split, number in (("validation", 0), ("measured", 1)):
        one = slice(number, number + 1)
        documents = {"begins_G": text.begins_G[one], "ends_G": text.ends_G[one], "doc_ids_G": text.doc_ids_G[one]}
        counts = token_counts(dataclasses.replace(text, split=split, **documents))
        # The token that closes a document, 0, is none of its text.
        assert counts.tolist() == [[0, 2, 1], [0, 0, 1, 1]][number]


def test_sentence_starts(tokens: np.ndarray) -> None:
    tokens[tokens == ENDS] = 1
    tokens[2, 0] = 3  # the beginning of the window is no beginning of a sentence
    tokens[2, [4, 5, M - 1]] = ENDS
    scores = SELECTORS["sentence-start"].score(scores_with(tokens))
    assert np.flatnonzero(scores[2]).tolist() == [5, 6]  # the last ends in front of the local tokens
    assert not scores[1].any()


def bm25_by_loops(documents: Sequence[Sequence[int]], query: Sequence[int]) -> list[float]:
    """BM25 of each document, term by term, as the paper writes it."""
    mean_length = sum(len(document) for document in documents) / len(documents)
    scores = []
    for document in documents:
        score = 0.0
        for term in query:
            holding = sum(term in other for other in documents)
            idf = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
            frequency = document.count(term)
            length = 1 - BM25_B + BM25_B * len(document) / mean_length
            score += idf * frequency * (BM25_K1 + 1) / (frequency + BM25_K1 * length)
        scores.append(score)
    return scores


@pytest.mark.parametrize("sizes", [[1] * M, [5, 1, 4, 6], [2, 14]])
def test_bm25_of_tokens_and_of_groups(tokens: np.ndarray, sizes: list[int]) -> None:
    groups_M = np.repeat(np.arange(len(sizes)), sizes)
    groups = TokenGroups(np.broadcast_to(groups_M, (len(tokens), M)))
    scores = SELECTORS["bm25"].score(scores_with(tokens, groups=groups))
    for w, row in enumerate(tokens.tolist()):
        documents = [[row[j] for j in range(M) if groups_M[j] == i] for i in range(len(sizes))]
        assert scores[w] == pytest.approx(bm25_by_loops(documents, row[M:]), rel=1e-12)
    assert not scores[0].any() and scores[1].any()
    assert len(row[M:]) == LOCAL


def test_bm25_where_windows_have_unequal_numbers_of_groups(tokens: np.ndarray) -> None:
    groups_WM = np.zeros((len(tokens), M), dtype=np.int64)
    groups_WM[1, 3:] = 1
    scores = SELECTORS["bm25"].score(scores_with(tokens, groups=TokenGroups(groups_WM)))
    assert np.isnan(scores[[0, 2, 3], 1]).all() and not np.isnan(scores[1]).any()


def test_rules_run_no_model() -> None:
    for name in ("same-token", "rarest", "bm25", "sentence-start"):
        assert not needs_pass(SELECTORS[name].needs) and not SELECTORS[name].sees_target
