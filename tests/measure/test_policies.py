"""Policies of key-value caches against the formulas of their papers, by loops in float64 on tiny random models."""

from __future__ import annotations

import math
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
LAYERS, HEADS, KEY_HEADS, WIDTH = 2, 4, 2, 8  # heads share keys
POLICIES = [policy.name for policy in policies.POLICIES]


def tokens_of_windows() -> torch.Tensor:
    return torch.randint(3, VOCAB, (W, FULL), generator=torch.Generator().manual_seed(5))


def scores_of(anchor_id: Optional[int], groups: Optional[TokenGroups] = None) -> WindowScores:
    tokens = tokens_of_windows()
    evaluator = Evaluator(build("llama"), LOCAL, visibility="contextual", anchor_id=anchor_id)
    batch = WindowBatch(tokens, tokens[:, 0], window_ids_W=np.arange(W), context="real", seed=0, groups=groups)
    predictions = Predictions(evaluator, batch, log_p_short_WV=short_log_probs(evaluator, tokens))
    return WindowScores(predictions, max_k=4)


class Definition:
    """One window: attention, keys and values of every layer and head, from transformers' plain implementation.

    The weights are float64, and so is what is computed from them here; norms and softmaxes inside transformers are fp32.
    """

    def __init__(self, w: int, anchor_id: Optional[int]):
        self.first = 0 if anchor_id is None else 1
        row = tokens_of_windows()[w].tolist()
        row = row if anchor_id is None else [anchor_id, *row]
        self.raw = build("llama").raw.double()
        self.raw.set_attn_implementation("eager")
        with torch.no_grad():
            output = self.raw(torch.tensor([row]), output_attentions=True, output_hidden_states=True, use_cache=True)
        self.num_tokens = len(row)
        self.attention = [layer[0].tolist() for layer in output.attentions]  # layer, head, query, key
        self.keys = [layer.keys[0].tolist() for layer in output.past_key_values.layers]  # layer, head of keys, token, e
        self.queries = [self._last_query(layer, output.hidden_states[layer]) for layer in range(LAYERS)]

    def _last_query(self, layer: int, states: torch.Tensor) -> Any:
        """The queries of the last token, rotated: those whose softmax over the keys is the attention of the last token."""
        block = self.raw.model.layers[layer]
        with torch.no_grad():
            query = block.self_attn.q_proj(block.input_layernorm(states))[0, -1].view(HEADS, WIDTH)
            angles = (self.num_tokens - 1) * self.raw.model.rotary_emb.inv_freq.double().repeat(2)
            turned = torch.cat([-query[:, WIDTH // 2 :], query[:, : WIDTH // 2]], dim=1)
            return (query * angles.cos() + turned * angles.sin()).tolist()

    def mean_over_heads(self, of_head: Any) -> list[float]:
        """Return the mean over layers and heads of a function of (layer, head, the head of its keys, token)."""
        sharing = HEADS // KEY_HEADS
        return [
            sum(
                of_head(layer, head, head // sharing, self.first + j)
                for layer in range(LAYERS)
                for head in range(HEADS)
            )
            / (LAYERS * HEADS)
            for j in range(M)
        ]

    def h2o(self) -> list[float]:
        return self.mean_over_heads(
            lambda layer, head, _, j: sum(self.attention[layer][head][i][j] for i in range(j, self.num_tokens))
        )

    def snapkv(self) -> list[float]:
        votes = self.mean_over_heads(
            lambda layer, head, _, j: sum(
                self.attention[layer][head][i][j] for i in range(self.num_tokens - 32, self.num_tokens)
            )
        )
        return [sum(votes[i] for i in range(j - 2, j + 3) if 0 <= i < M) / 5 for j in range(M)]

    def key_norm(self) -> list[float]:
        return self.mean_over_heads(
            lambda layer, _, key_head, j: -math.sqrt(sum(entry**2 for entry in self.keys[layer][key_head][j]))
        )

    def quest(self) -> list[float]:
        def of_head(layer: int, head: int, key_head: int, j: int) -> float:
            begin = self.first + (j - self.first) // 16 * 16
            page = [self.keys[layer][key_head][i] for i in range(begin, min(begin + 16, self.first + M))]
            query = self.queries[layer][head]
            return sum(
                max(query[e] * max(key[e] for key in page), query[e] * min(key[e] for key in page))
                for e in range(WIDTH)
            )

        return self.mean_over_heads(of_head)


@pytest.mark.parametrize("anchor_id", [None, 1])
@pytest.mark.parametrize("name", ["h2o", "snapkv", "key-norm", "quest"])
def test_a_policy_is_the_formula_of_its_paper(name: str, anchor_id: Optional[int]) -> None:
    found = SELECTORS[name].score(scores_of(anchor_id))
    for w in range(W):
        expected = getattr(Definition(w, anchor_id), name.replace("-", "_"))()
        assert found[w] == pytest.approx(expected, rel=1e-4, abs=1e-5)
    assert np.ptp(found[0]) > 1e-3


@pytest.mark.parametrize("anchor_id", [None, 1])
def test_the_queries_of_the_definition_give_its_attention_and_no_score_exceeds_the_bound(
    anchor_id: Optional[int],
) -> None:
    """What the formulas above are computed from, checked against the attention of the plain implementation."""
    truth = Definition(0, anchor_id)
    bounds = truth.quest()
    for layer in range(LAYERS):
        for head in range(HEADS):
            keys = np.array(truth.keys[layer][head // 2])
            scores = keys @ np.array(truth.queries[layer][head])
            weights = np.exp(scores / math.sqrt(WIDTH))
            assert weights / weights.sum() == pytest.approx(np.array(truth.attention[layer][head][-1]), abs=1e-6)
    means = truth.mean_over_heads(
        lambda layer, head, key_head, j: float(np.dot(truth.keys[layer][key_head][j], truth.queries[layer][head]))
    )
    assert all(bound >= score for bound, score in zip(bounds, means, strict=True))


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
