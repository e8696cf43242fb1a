"""Compact and masked paths, against each other and against the definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tiny_models import NORMED, VOCAB, build
from tiny_windows import FULL, LOCAL, PATHS, M, windows

from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import log_probs, target_losses
from olmo_sparsity.measure.visible.visibility import visible_mask


def sets(num: int, size: int) -> torch.Tensor:
    rng = np.random.default_rng(4)
    return torch.from_numpy(
        np.stack([rng.permutation(M)[:size] for _ in range(num)]).astype(np.int64).reshape(num, size)
    )


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("size", [0, 1, 8])
def test_hidden_tokens_change_the_loss_by_exactly_0(path: str, size: int) -> None:
    model = build(NORMED).eval()
    tokens, targets = windows(10)
    visible = sets(10, size)
    other = torch.where(visible_mask(visible, FULL, local_len=LOCAL), tokens, (tokens * 7 + 3) % VOCAB)
    assert not torch.equal(other, tokens)
    evaluator = Evaluator(model, LOCAL, path=path)
    before, after = (
        target_losses(evaluator, t, targets_W=targets, visible_WNS=visible[:, None, :])[0] for t in (tokens, other)
    )
    assert torch.equal(before, after)


def test_visible_tokens_and_their_positions_do_change_it() -> None:
    model = build(NORMED).eval()
    tokens, targets = windows(10)
    evaluator = Evaluator(model, LOCAL)

    def losses(tokens: torch.Tensor, j: int) -> torch.Tensor:
        only_j = torch.full((10, 1, 1), j, dtype=torch.int64)
        return target_losses(evaluator, tokens, targets_W=targets, visible_WNS=only_j)[0]

    one, another = losses(tokens, 2), losses(tokens, 3)
    swapped = tokens.clone()
    swapped[:, 3] = tokens[:, 2]  # the same token, one position nearer
    moved = losses(swapped, 3)
    assert (one - another).abs().min() > 1e-6
    assert (one - moved).abs().max() > 1e-6


def test_divergences_and_batching() -> None:
    model = build(NORMED).eval()
    tokens, targets = windows(5)
    singles = torch.arange(M).view(1, M, 1).expand(5, -1, -1)
    everything = torch.arange(M).expand(5, -1)
    log_p = log_probs(Evaluator(model, LOCAL), tokens, visible_WS=everything)
    big, small = (
        target_losses(
            Evaluator(model, LOCAL, batch_tokens=batch_tokens),
            tokens,
            targets_W=targets,
            visible_WNS=singles,
            reference_WV=log_p,
        )
        for batch_tokens in (10**6, 1)
    )
    for a, b in zip(big, small, strict=True):
        assert torch.allclose(a, b, atol=1e-5)
    p = log_p.double().exp()
    for j in (0, 9):
        log_q = log_probs(Evaluator(model, LOCAL), tokens, visible_WS=singles[:, j]).double()
        expected = (p * (p.log() - log_q)).sum(-1)
        assert torch.allclose(big[1][:, j].double(), expected, atol=1e-5)
        assert torch.allclose(big[0][:, j].double(), -log_q[torch.arange(5), targets], atol=1e-5)
