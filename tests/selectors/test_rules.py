"""Rules without a model, by their definitions."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from scored import by_hand

from olmo_sparsity.selectors import SELECTORS, rank

M = 6
FAR, LOCAL = [5, 7, 9, 7, 3, 5], [7, 3, 7]
SPANS = [(j, j + 1) for j in range(M)]


def scored(name: str, *, spans: Any = SPANS, **answers: Any) -> list[float]:
    s = by_hand(
        spans=spans,
        token_ids=np.array([[*FAR, *LOCAL]]),
        num_long_range=M,
        num_candidates=len(spans),
        num_windows=1,
        **answers,
    )
    found: list[float] = SELECTORS[name].score(s)[0].tolist()
    return found


def test_same_token_keeps_what_comes_back_among_the_local_tokens() -> None:
    assert scored("same-token") == [0, 1, 0, 1, 1, 0]
    assert rank(np.array([scored("same-token")]))[0].tolist() == [4, 3, 1, 5, 2, 0]  # then the nearest
    assert scored("same-token", spans=[(0, 2), (2, 3), (3, 6)]) == [1, 0, 2]


def test_rarest_keeps_what_the_text_holds_seldom() -> None:
    counts = np.array([[9, 2, 4, 2, 0, 9, 1, 1, 1]])
    assert scored("rarest", frequencies=counts) == [-9, -2, -4, -2, 0, -9]
    assert scored("rarest", frequencies=counts, spans=[(0, 1), (1, 6)]) == [-9, -17]


@pytest.mark.parametrize("spans", [SPANS, [(0, 1), (1, 4), (4, 6)]], ids=["tokens", "groups"])
def test_bm25_weighs_matches_by_rarity_and_length(spans: Any) -> None:
    documents = [FAR[first:end] for first, end in spans]
    mean = M / len(documents)
    expected = []
    for document in documents:
        score = 0.0
        for term in LOCAL:
            holding = sum(term in other for other in documents)
            rarity = math.log(1 + (len(documents) - holding + 0.5) / (holding + 0.5))
            count = document.count(term)
            score += rarity * count * 2.2 / (count + 1.2 * (0.25 + 0.75 * len(document) / mean))
        expected.append(score)
    assert scored("bm25", spans=spans) == pytest.approx(expected)
    assert max(expected) > 0 and min(expected) == 0


def test_sentence_start_keeps_what_begins_a_sentence() -> None:
    starts = np.array([[False, True, False, False, True, False, True, False, False]])
    assert scored("sentence-start", sentence_starts=starts) == [0, 1, 0, 0, 1, 0]
    assert scored("sentence-start", sentence_starts=starts, spans=[(0, 3), (3, 5), (5, 6)]) == [1, 1, 0]


@pytest.mark.parametrize("name", ["same-token", "rarest", "bm25", "sentence-start"])
def test_rules_see_no_target_and_cost_nothing(name: str) -> None:
    one = SELECTORS[name]
    assert (one.sees_target, one.num_evaluations, one.needs, one.is_extra) == (False, 0, frozenset(), True)
