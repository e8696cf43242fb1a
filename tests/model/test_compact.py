"""The compact path against the definition, the plain path and the float64 reference; lower precision."""

from __future__ import annotations

import torch
from tiny_models import NORMED, build
from tiny_windows import LOCAL, M, windows

from olmo_sparsity.measure.visible.batch_size import largest_that_fits
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import (
    single_losses,
)


def test_other_candidates_do_not_touch_a_single_unmasking() -> None:
    model = build(NORMED).eval()
    tokens, targets = windows(4)
    evaluator, everything = Evaluator(model, LOCAL), torch.arange(M).expand(4, -1)
    before = single_losses(evaluator, tokens, targets_W=targets, candidates_WJ=everything)[0]
    tokens[:, 3] += 1
    after = single_losses(evaluator, tokens, targets_W=targets, candidates_WJ=everything)[0]
    assert ((before != after).any(dim=0) == (torch.arange(M) == 3)).all()


def test_a_copy_in_bf16_is_near_and_leaves_the_model_alone() -> None:
    model = build(NORMED).eval()
    tokens, targets = windows(6)
    everything = torch.arange(M).expand(6, -1)
    before = single_losses(Evaluator(model, LOCAL), tokens, targets_W=targets, candidates_WJ=everything)[0]
    low = model.in_dtype(torch.bfloat16)
    assert low._sin.dtype == torch.float32
    assert low.transformer.wte.weight.dtype == torch.bfloat16
    for path in ("compact", "plain", "masked"):
        error = (
            single_losses(Evaluator(low, LOCAL, path=path), tokens, targets_W=targets, candidates_WJ=everything)[0]
            - before
        )
        assert 0 < error.abs().mean() < 0.1 * before.std(dim=1).mean()
    assert torch.equal(
        single_losses(Evaluator(model, LOCAL), tokens, targets_W=targets, candidates_WJ=everything)[0], before
    )
    assert model.in_dtype(torch.float32) is model


def test_what_fits_is_found_by_trying() -> None:
    def trial(size: int) -> None:
        tried.append(size)
        if size > 100:
            raise torch.OutOfMemoryError

    tried: list[int] = []
    assert largest_that_fits(trial, 1024) == 32  # half of 64, the largest that ran
    assert tried == [1024, 512, 256, 128, 64]
