"""Planted truth: the target is a function of k planted long-range tokens; the selectors must find exactly those."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from olmo_sparsity.config import Config, ContextConfig, InfluenceConfig, ModelConfig
from olmo_sparsity.influence import measure_context
from olmo_sparsity.losses import Evaluator, log_probs
from olmo_sparsity.model import OLMoWithPositions, build_model, olmo_model_config
from olmo_sparsity.visibility import compact_rows

LOCAL, FULL, M = 2, 14, 12
# Vocabulary: 0 the query, 1..8 noise, 9..12 values of the first planted token, 13..16 of the second, 17..32 the target.
FIRST, SECOND, ANSWER, VOCAB = 9, 13, 17, 40


def planted(rng: np.random.Generator, num: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """(tokens [num, FULL], targets [num], planted positions [num, 2]); the target tells both planted values."""
    tokens = rng.integers(1, 9, (num, FULL))
    places = np.stack([rng.permutation(M)[:2] for _ in range(num)])
    values = rng.integers(0, 4, (num, 2))
    rows = np.arange(num)
    tokens[rows, places[:, 0]] = FIRST + values[:, 0]
    tokens[rows, places[:, 1]] = SECOND + values[:, 1]
    tokens[:, -1] = 0
    return torch.from_numpy(tokens), torch.from_numpy(ANSWER + 4 * values[:, 0] + values[:, 1]), places


@pytest.fixture(scope="module")
def solver() -> OLMoWithPositions:
    """A model trained on such sequences, some of their long-range tokens hidden at random."""
    config = Config(
        model=ModelConfig(d_model=64, n_heads=4, n_layers=2, mlp_ratio=4, layer_norm_with_affine=True),
        context=ContextConfig(local_len=LOCAL, full_len=FULL),
        influence=InfluenceConfig(k=[1, 2]),
    )
    model = build_model(olmo_model_config(config, VOCAB, 0), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    rng = np.random.default_rng(0)
    for step in range(400):
        tokens, targets, _ = planted(rng, 256)
        size = int(rng.integers(0, M + 1))
        visible = torch.from_numpy(rng.random((256, M)).argsort(axis=1)[:, :size])
        logits = model(*compact_rows(tokens, visible, LOCAL), last_logits_only=True)[:, 0]
        loss = F.cross_entropy(logits, targets)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 50, (400 - step) / 100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def test_unmask_one_finds_exactly_the_planted_tokens_and_they_recover_everything(solver: OLMoWithPositions) -> None:
    tokens, targets, places = planted(np.random.default_rng(1), 200)
    evaluator = Evaluator(solver, LOCAL)
    log_p_short = log_probs(evaluator, tokens, torch.zeros(200, 0, dtype=torch.int64))
    loss_short = -log_p_short.gather(1, targets[:, None])[:, 0]
    settings = InfluenceConfig(k=[1, 2], selectors=["unmask-one", "kl", "random"])
    measured = measure_context(evaluator, tokens, targets, loss_short, log_p_short, settings, np.arange(200), "real")
    assert loss_short.mean() > 2.5  # nearly log 16: the local tokens tell nothing
    assert measured.loss_long.mean() < 0.05
    for selector in ("unmask-one", "kl"):
        found = np.sort(measured.positions[selector], axis=1)
        assert (found == np.sort(places, axis=1)).all(), selector
        one, two = measured.loss_sparse[selector].mean(axis=0)
        assert two < 0.05
        assert one == pytest.approx(np.log(4), abs=0.15)  # one of two planted values known
    assert measured.loss_sparse["random"].mean() > 2.0
