"""Rules without a model, against their definitions by loops."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from scored_windows import make_scores
from tiny_models import NORMED, build
from tiny_stores import tiny_store
from tiny_windows import FULL, M

from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.selection.window_inputs import token_counts
from olmo_sparsity.measure.visible.window_batch import TokenGroups
from olmo_sparsity.records.selectors import SELECTORS


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


def test_bm25_where_windows_have_unequal_numbers_of_groups(tokens: np.ndarray) -> None:
    groups_WM = np.zeros((len(tokens), M), dtype=np.int64)
    groups_WM[1, 3:] = 1
    scores = SELECTORS["bm25"].score(scores_with(tokens, groups=TokenGroups(groups_WM)))
    assert np.isnan(scores[[0, 2, 3], 1]).all() and not np.isnan(scores[1]).any()
