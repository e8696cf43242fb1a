"""Policies of key-value caches against the formulas of their papers, by loops in float64 on tiny random models."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Optional

import numpy as np
import pytest
import torch
from transformers_models import VOCAB, build

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.selection.window_influence import try_selectors
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import short_log_probs
from olmo_sparsity.measure.visible.window_batch import TokenGroups, WindowBatch
from olmo_sparsity.records import policies
from olmo_sparsity.records.selectors import SELECTORS, rank

W, FULL, LOCAL, M = 2, 60, 36, 24  # more local tokens than SnapKV observes; a page of Quest and a half
POLICIES = [policy.name for policy in policies.POLICIES]


def tokens_of_windows() -> torch.Tensor:
    return torch.randint(3, VOCAB, (W, FULL), generator=torch.Generator().manual_seed(5))


def scores_of(anchor_id: Optional[int], groups: Optional[TokenGroups] = None) -> WindowScores:
    tokens = tokens_of_windows()
    evaluator = Evaluator(build("llama"), LOCAL, visibility="contextual", anchor_id=anchor_id)
    batch = WindowBatch(tokens, tokens[:, 0], window_ids_W=np.arange(W), context="real", seed=0, groups=groups)
    predictions = Predictions(evaluator, batch, log_p_short_WV=short_log_probs(evaluator, tokens))
    return WindowScores(predictions, max_k=4)


@pytest.mark.parametrize(("anchor_id", "sinks"), [(None, [0, 1, 2, 3]), (1, [0, 1, 2])])
def test_streaming_llm_keeps_the_first_four_tokens_and_then_the_nearest(
    anchor_id: Optional[int], sinks: list[int]
) -> None:
    ranked = rank(SELECTORS["streaming-llm"].score(scores_of(anchor_id)))
    assert ranked[0].tolist() == [*sinks, *(j for j in reversed(range(M)) if j not in sinks)]


def test_streaming_llm_keeps_the_groups_of_the_first_tokens_and_then_the_nearest() -> None:
    """However long they are: the longest group lies in the middle. Scores of a window do not depend on the others."""
    of_window = [[3, 2, 12, 1, 4, 2], [1, 5, 9, 9]]
    groups = TokenGroups(np.stack([np.repeat(np.arange(len(sizes)), sizes) for sizes in of_window]))
    assert groups.groups_WM.shape == (W, M)
    ranked_of = {None: [[0, 1, 5, 4, 3, 2], [0, 1, 3, 2]], 1: [[0, 5, 4, 3, 2, 1], [0, 1, 3, 2]]}
    for anchor_id, expected in ranked_of.items():
        scores = SELECTORS["streaming-llm"].score(scores_of(anchor_id, groups))
        assert [rank(scores)[w, : len(row)].tolist() for w, row in enumerate(expected)] == expected
        assert np.isnan(scores[1, 4:]).all() and not np.isnan(scores[0]).any()
        alone = SELECTORS["streaming-llm"].score(
            scores_of(anchor_id, TokenGroups(groups.groups_WM[1:].repeat(W, axis=0)))
        )
        assert alone[1].tolist() == scores[1, :4].tolist()


def test_policies_are_refused_where_there_is_no_cache() -> None:
    assert len(POLICIES) == 5
    for name in POLICIES:
        with pytest.raises(UserError, match=f"influence.selectors: {name}: chooses entries"):
            InfluenceConfig(selectors=["kl", name])
        assert InfluenceConfig(selectors=["kl", name], visibility="contextual").selectors == ["kl", name]


def test_what_a_model_cannot_run_is_found_on_the_first_window() -> None:
    """Before anything long."""

    def tried(kind: str, *selectors: str, num: int = W) -> list[list[int]]:
        rows, asked = torch.cat([tokens_of_windows(), tokens_of_windows()[:, :1]], dim=1).numpy()[:num], []

        class Drawn:
            def __len__(self) -> int:
                return num

            def tokens(self, numbers: np.ndarray) -> np.ndarray:
                asked.append(numbers.tolist())
                return np.asarray(rows[numbers])

        windows: Any = Drawn()
        windows.store = None
        given: Any = SimpleNamespace(windows=windows, num_long_range=M, window_tokens=lambda ids: rows[ids])
        settings = InfluenceConfig(selectors=list(selectors), visibility="contextual", k=[3])
        evaluator = Evaluator(build(kind), LOCAL, visibility="contextual")
        try_selectors(evaluator, given, settings=settings, tokenizer=None)  # type: ignore[arg-type]
        return asked

    with pytest.raises(UserError, match="cannot be read of such a model"):
        tried("gemma-2", "h2o")
    assert tried("gemma-4", "h2o", "snapkv") == [[0]]
    assert tried("llama", "kl", "h2o") == [[0]]
    assert tried("gemma-2", "kl", "streaming-llm") == tried("gemma-2", "h2o", num=0) == []  # nothing that could fail
