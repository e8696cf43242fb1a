"""Whether selectors find planted tokens in a model that was trained to use them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from olmo_sparsity.config import Config, ContextConfig, InfluenceConfig, ModelConfig
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.selection.window_influence import measure_context
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import short_log_probs
from olmo_sparsity.measure.visible.visibility import compact_rows
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, olmo_model_config

LOCAL, FULL, M = 2, 14, 12
# Vocabulary: 0 the query, 1..8 noise, 9..12 values of the first planted token, 13..16 of the second, 17..32 the target.
FIRST, SECOND, ANSWER, VOCAB = 9, 13, 17, 40


def planted(rng: np.random.Generator, num: int) -> tuple[torch.Tensor, torch.Tensor, np.ndarray]:
    """Return (tokens [num, FULL], targets [num], planted positions [num, 2]); the target encodes both planted values."""
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
    """A model trained on such sequences, with some of their long-range tokens hidden at random."""
    config = Config(
        model=ModelConfig(d_model=64, n_heads=4, n_layers=2, mlp_ratio=4, layer_norm_with_affine=True),
        context=ContextConfig(local_len=LOCAL, full_len=FULL),
        influence=InfluenceConfig(k=[1, 2]),
    )
    model = build_model(olmo_model_config(config, vocab_size=VOCAB, eos_id=0), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.0)
    rng = np.random.default_rng(0)
    for step in range(300):
        tokens, targets, _ = planted(rng, 128)
        size = int(rng.integers(0, M + 1))
        visible = torch.from_numpy(rng.random((128, M)).argsort(axis=1)[:, :size])
        logits = model(*compact_rows(tokens, visible, local_len=LOCAL), last_logits_only=True)[:, 0]
        loss = F.cross_entropy(logits, targets)
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * min(1.0, (step + 1) / 50, (300 - step) / 100)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return model.eval()


def test_unmask_one_finds_exactly_the_planted_tokens_and_they_recover_everything(solver: OLMoWithPositions) -> None:
    tokens, targets, places = planted(np.random.default_rng(1), 200)
    evaluator = Evaluator(solver, LOCAL)
    log_p_short = short_log_probs(evaluator, tokens)
    loss_short = -log_p_short.gather(1, targets[:, None])[:, 0]
    settings = InfluenceConfig(k=[1, 2], selectors=["unmask-one", "kl", "random"])
    batch = WindowBatch(tokens, targets, window_ids_W=np.arange(200), context="real", seed=0)
    predictions = Predictions(evaluator, batch, log_p_short_WV=log_p_short, with_kl=True)
    scores = WindowScores(predictions, max_k=2)
    measured = measure_context(scores, settings)
    assert loss_short.mean() > 2.5  # nearly log 16: the local tokens carry no information
    assert measured.loss_long_W.mean() < 0.05
    for selector in ("unmask-one", "kl"):
        found = np.sort(measured.outcomes[selector].groups_WS, axis=1)
        assert (found == np.sort(places, axis=1)).all(), selector
        one, two = measured.outcomes[selector].loss_sparse_WK.mean(axis=0)
        assert two < 0.05
        assert one == pytest.approx(np.log(4), abs=0.15)  # one of two planted values is known
    assert measured.outcomes["random"].loss_sparse_WK.mean() > 2.0
