"""Policies of key-value caches, on attention and keys that are made by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scored import GROUPS, TOKENS, W, by_hand, scores_of
from transformers_models import BOS

from olmo_sparsity.selectors import SELECTORS, rank

LAYERS, HEADS, M = 2, 2, 6
SPANS = [(j, j + 1) for j in range(M)]


def at(*positions: int, value: float = 1.0) -> np.ndarray:
    """[1, layers, heads, M], which is 0 but at some positions of the first head."""
    found = np.zeros((1, LAYERS, HEADS, M))
    found[0, 0, 0, list(positions)] = value
    return found


def test_h2o_sums_attention_over_the_window_and_heads() -> None:
    attention = at(2, value=4.0) + np.roll(at(5, value=2.0), 1, axis=2)
    s = by_hand(spans=SPANS, observed={"accumulated_attention": attention})
    assert SELECTORS["h2o"].score(s)[0].tolist() == [0, 0, 1, 0, 0, 0.5]
    s = by_hand(spans=[(0, 3), (3, 6)], observed={"accumulated_attention": attention})
    assert SELECTORS["h2o"].score(s)[0].tolist() == [1, 0.5]  # of groups the sums


def test_snapkv_averages_over_neighbours_with_zeros_beyond_the_ends() -> None:
    s = by_hand(spans=SPANS, observed={"observed_attention": at(0, value=20.0)})
    assert SELECTORS["snapkv"].score(s)[0] == pytest.approx([1, 1, 1, 0, 0, 0])


def test_key_norm_keeps_the_lowest_norms() -> None:
    keys = np.ones((1, LAYERS, HEADS, M, 4))
    keys[:, :, :, 3] = 0.1
    keys[:, :, :, 1] = 7
    order = rank(SELECTORS["key-norm"].score(by_hand(spans=SPANS, observed={"keys": keys})))[0]
    assert order.tolist() == [3, 5, 4, 2, 0, 1]


def test_quest_bounds_the_scores_of_a_page() -> None:
    """By the largest and the smallest of each coordinate; a page may hold no key that reaches its bound."""
    many = 40
    keys, queries = np.zeros((1, 1, 1, many, 2)), np.array([[[[3.0, -2.0]], [[1.0, 0.0]]]]).reshape(1, 1, 2, 2)
    keys[0, 0, 0, 17], keys[0, 0, 0, 20], keys[0, 0, 0, 39] = (2, 5), (0, -4), (-9, 0)
    s: Any = by_hand(
        spans=[(j, j + 1) for j in range(many)], observed={"queries": queries, "keys": keys}, num_long_range=many
    )
    second = ((3 * 2 + -2 * -4) + 1 * 2) / 2  # the mean of both heads of queries, which share one of keys
    assert SELECTORS["quest"].score(s)[0] == pytest.approx([0] * 16 + [second] * 16 + [0] * 8)


@pytest.mark.parametrize(("anchor_id", "sinks"), [(None, 4), (BOS, 3)])
def test_streaming_llm_keeps_the_first_4_and_then_the_nearest(anchor_id: Any, sinks: int) -> None:
    order = rank(SELECTORS["streaming-llm"].score(scores_of(spans=TOKENS, anchor_id=anchor_id)))
    assert order.tolist() == [[*range(sinks), *range(15, sinks - 1, -1)]] * W
    order = rank(SELECTORS["streaming-llm"].score(scores_of(spans=GROUPS, anchor_id=anchor_id)))
    assert order[0].tolist() == [0, 1, 4, 3, 2]  # the groups that begin among the first 4 tokens


@pytest.mark.parametrize("name", ["h2o", "snapkv", "key-norm", "quest"])
def test_policies_read_one_pass_of_a_model(name: str) -> None:
    """A real model gives what they need; a batch of one window gives the same as one of several."""
    scores = SELECTORS[name].score(scores_of(needs=SELECTORS[name].needs, anchor_id=BOS))
    alone = scores_of(
        tokens_WT=scores_of().batch.tokens_WT[1:2], labels_WA=scores_of().batch.labels_WA[1:2], anchor_id=BOS
    )
    assert scores.shape == (W, 16) and scores[1] == pytest.approx(SELECTORS[name].score(alone)[0], rel=1e-4, abs=1e-5)
    assert SELECTORS[name].needs_entries and not SELECTORS[name].sees_target
