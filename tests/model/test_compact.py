"""The compact path against the definition, the plain path and the float64 reference; lower precision."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import reference
import torch
from scored_windows import make_scores
from tiny_models import KINDS, NORMED, VOCAB, build
from tiny_windows import FULL, LOCAL, M, windows

from olmo_sparsity.config import InfluenceConfig, ModelConfig
from olmo_sparsity.measure.selection.window_influence import measure_context
from olmo_sparsity.measure.visible.batch_size import largest_that_fits
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import (
    all_but_one_losses,
    gate_gradients,
    log_probs,
    single_losses,
    target_losses,
)
from olmo_sparsity.measure.visible.visibility import Visibility

SIZES = pytest.mark.parametrize("batch_tokens", [1, 5 * LOCAL, 10**6])  # one row, a few of one window, several windows


@KINDS
@pytest.mark.parametrize("n_layers", [1, 3])
@SIZES
def test_single_unmaskings_are_the_definition(kind: ModelConfig, n_layers: int, batch_tokens: int) -> None:
    model = build(dataclasses.replace(kind, n_layers=n_layers)).eval()
    tokens, targets = windows(4)
    rng = np.random.default_rng(0)
    candidates = torch.from_numpy(np.stack([rng.permutation(M)[:7] for _ in range(4)]))
    everything = torch.arange(M).expand(4, -1)
    log_p = log_probs(Evaluator(model, LOCAL, path="plain"), tokens, visible_WS=everything)
    found = single_losses(
        Evaluator(model, LOCAL, batch_tokens=batch_tokens),
        tokens,
        targets_W=targets,
        candidates_WJ=candidates,
        reference_WV=log_p,
    )
    expected = target_losses(
        Evaluator(model, LOCAL, path="masked"),
        tokens,
        targets_W=targets,
        visible_WNS=candidates[:, :, None],
        reference_WV=log_p,
    )
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() < 1e-5
    seen = {int(candidates[0, 0]), *range(M, FULL)}
    exact = reference.target_loss(model, tokens[0].tolist(), list(range(FULL)), seen, int(targets[0]))
    assert float(found[0][0, 0]) == pytest.approx(exact, abs=1e-5)


def test_other_candidates_do_not_touch_a_single_unmasking() -> None:
    model = build(NORMED).eval()
    tokens, targets = windows(4)
    evaluator, everything = Evaluator(model, LOCAL), torch.arange(M).expand(4, -1)
    before = single_losses(evaluator, tokens, targets_W=targets, candidates_WJ=everything)[0]
    tokens[:, 3] += 1
    after = single_losses(evaluator, tokens, targets_W=targets, candidates_WJ=everything)[0]
    assert ((before != after).any(dim=0) == (torch.arange(M) == 3)).all()


@KINDS
@pytest.mark.parametrize("n_layers", [1, 3])
def test_all_but_one_is_the_definition(kind: ModelConfig, n_layers: int) -> None:
    model = build(dataclasses.replace(kind, n_layers=n_layers)).eval()
    tokens, targets = windows(3)
    found, expected = (
        all_but_one_losses(
            Evaluator(model, LOCAL, path=path), tokens, labels_WA=torch.stack([targets, targets - 1], dim=1)
        )
        for path in ("compact", "masked")
    )
    assert found.shape == (3, M, 2)
    assert (found - expected).abs().max() < 1e-5


@KINDS
@pytest.mark.parametrize("n_layers", [1, 3])
def test_gate_gradients_are_those_of_the_gated_model(kind: ModelConfig, n_layers: int) -> None:
    model = build(dataclasses.replace(kind, n_layers=n_layers)).eval()
    tokens, targets = windows(5)
    soft = torch.randn(5, model.config.vocab_size, generator=torch.Generator().manual_seed(0)).softmax(dim=-1)
    for target in (targets, soft):

        def loss_of(at: slice, logits: torch.Tensor, target: torch.Tensor = target) -> torch.Tensor:
            return torch.nn.functional.cross_entropy(logits, target[at], reduction="sum")

        few = [Evaluator(model, LOCAL, path=path, batch_tokens=2 * FULL) for path in ("compact", "masked")]
        found, expected = (gate_gradients(evaluator, tokens, loss_function=loss_of) for evaluator in few)
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
        assert expected.abs().max() > 1e-3


@KINDS
@pytest.mark.parametrize("anchor_id", [None, 9])
@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
def test_so_are_those_under_every_definition_of_visible(
    kind: ModelConfig, visibility: Visibility, anchor_id: int | None
) -> None:
    model = build(kind).eval()
    generator = torch.Generator().manual_seed(8)
    tokens = torch.randint(1, VOCAB, (3, 11), generator=generator)
    targets = torch.randint(1, VOCAB, (3,), generator=generator)

    def loss_of(at: slice, logits: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(logits, targets[at], reduction="sum")

    found, expected = (
        gate_gradients(
            Evaluator(model, 4, path=path, visibility=visibility, anchor_id=anchor_id),
            tokens,
            loss_function=loss_of,
        )
        for path in ("compact", "masked")
    )
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
    assert expected.abs().max() > 1e-3


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


def test_sparse_losses_are_those_of_their_sets() -> None:
    """Sets that selectors share, and single positions, are not evaluated twice; the losses must not change."""
    model = build(NORMED).eval()
    settings = InfluenceConfig(k=[1, 2, 4], selectors=["unmask-one", "gradient", "nearest", "random"])
    one = make_scores(model, num=12)
    measured = measure_context(one, settings)
    plain = Evaluator(model, LOCAL, path="plain")
    for name in settings.selectors:
        for n, k in enumerate(settings.k):
            visible = torch.from_numpy(measured.outcomes[name].groups_WS[:, None, :k].copy())
            expected = target_losses(
                plain, one.windows.tokens_WT, targets_W=one.windows.targets_W, visible_WNS=visible
            )[0][:, 0].numpy()
            assert measured.outcomes[name].loss_sparse_WK[:, n] == pytest.approx(expected, abs=1e-5)
