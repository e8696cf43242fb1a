"""The compact path against the definition, the plain path and the float64 reference; screening; lower precision."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import reference
import torch
from scored_windows import scored
from tiny_models import KINDS, NORMED, build
from tiny_windows import FULL, LOCAL, M, windows

from olmo_sparsity.config import InfluenceConfig, ModelConfig
from olmo_sparsity.measure import scores as selectors
from olmo_sparsity.measure.batch_size import largest_that_fits
from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.losses import (
    LossOf,
    all_but_one_losses,
    gate_gradients,
    log_probs,
    single_losses,
    target_losses,
)
from olmo_sparsity.measure.scores import rank
from olmo_sparsity.measure.window_influence import check_screening, measure_context
from olmo_sparsity.model.olmo import with_weights_in

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
    log_p = log_probs(Evaluator(model, LOCAL, "plain"), tokens, everything)
    found = single_losses(Evaluator(model, LOCAL, batch_tokens=batch_tokens), tokens, targets, candidates, log_p)
    expected = target_losses(Evaluator(model, LOCAL, "masked"), tokens, targets, candidates[:, :, None], log_p)
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() < 1e-5
    seen = {int(candidates[0, 0]), *range(M, FULL)}
    exact = reference.target_loss(model, tokens[0].tolist(), list(range(FULL)), seen, int(targets[0]))
    assert float(found[0][0, 0]) == pytest.approx(exact, abs=1e-5)


def test_other_candidates_do_not_touch_a_single_unmasking() -> None:
    model = build(NORMED).eval()
    tokens, targets = windows(4)
    evaluator, everything = Evaluator(model, LOCAL), torch.arange(M).expand(4, -1)
    before = single_losses(evaluator, tokens, targets, everything)[0]
    tokens[:, 3] += 1
    after = single_losses(evaluator, tokens, targets, everything)[0]
    assert ((before != after).any(dim=0) == (torch.arange(M) == 3)).all()


@KINDS
@pytest.mark.parametrize("n_layers", [1, 3])
def test_all_but_one_is_the_definition(kind: ModelConfig, n_layers: int) -> None:
    model = build(dataclasses.replace(kind, n_layers=n_layers)).eval()
    tokens, targets = windows(3)
    found, expected = (
        all_but_one_losses(Evaluator(model, LOCAL, path), tokens, targets) for path in ("compact", "masked")
    )
    assert found.shape == (3, M)
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

        few = [Evaluator(model, LOCAL, path, batch_tokens=2 * FULL) for path in ("compact", "masked")]
        found, expected = (gate_gradients(evaluator, tokens, loss_of) for evaluator in few)
        assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
        assert expected.abs().max() > 1e-3


def test_a_copy_in_bf16_is_near_and_leaves_the_model_alone() -> None:
    model = build(NORMED).eval()
    tokens, targets = windows(6)
    everything = torch.arange(M).expand(6, -1)
    before = single_losses(Evaluator(model, LOCAL), tokens, targets, everything)[0]
    low = with_weights_in(model, torch.bfloat16)
    assert low._sin.dtype == torch.float32
    assert low.transformer.wte.weight.dtype == torch.bfloat16
    for path in ("compact", "plain", "masked"):
        error = single_losses(Evaluator(low, LOCAL, path), tokens, targets, everything)[0] - before
        assert 0 < error.abs().mean() < 0.1 * before.std(dim=1).mean()
    assert torch.equal(single_losses(Evaluator(model, LOCAL), tokens, targets, everything)[0], before)
    assert with_weights_in(model, torch.float32) is model


def test_what_fits_is_found_by_trying() -> None:
    def trial(size: int) -> None:
        tried.append(size)
        if size > 100:
            raise torch.OutOfMemoryError

    tried: list[int] = []
    assert largest_that_fits(trial, 1024) == 32  # half of 64, the largest that ran
    assert tried == [1024, 512, 256, 128, 64]


@pytest.mark.parametrize("by", ["gradient", "unmask-one"])
def test_screening_evaluates_the_best_of_a_cheap_ranking(by: str) -> None:
    model = build(NORMED).eval()
    exact = scored(model, num=8)
    screened = scored(model, num=8, screen=5, screen_by=by)
    for values, whole in ((screened.loss_single, exact.loss_single), (screened.kl_single, exact.kl_single)):
        assert (np.isfinite(values).sum(axis=1) == 5).all()
        assert np.nanmax(np.abs(values - whole)) < 1e-5
    ranking = exact.gradient if by == "gradient" else -exact.loss_single
    assert (np.isfinite(screened.loss_single).nonzero()[1].reshape(8, 5) == np.sort(rank(ranking)[:, :5])).all()
    if by == "unmask-one":  # the ranking is the exact one: nothing may be lost
        assert (rank(-screened.kl_single)[:, :4] == rank(-exact.kl_single)[:, :4]).all()


def test_the_gradient_that_screens_for_kl_is_that_of_the_divergence() -> None:
    """It does not see the target."""
    model = build(NORMED).eval()
    screened = scored(model, num=8, screen=5)

    def divergence(at: slice, logits: torch.Tensor) -> torch.Tensor:
        log_p = screened.log_p_long[at].clone()
        return (log_p.exp() * (log_p - logits.log_softmax(dim=-1))).sum()

    ranked = rank(-gate_gradients(Evaluator(model, LOCAL, "masked"), screened.tokens_WT, divergence).numpy())
    assert (np.isfinite(screened.kl_single).nonzero()[1].reshape(8, 5) == np.sort(ranked[:, :5])).all()
    assert (np.isnan(screened.kl_single) != np.isnan(screened.loss_single)).any()
    other = scored(model, num=8, screen=5)
    object.__setattr__(other, "targets_W", (other.targets_W + 1) % model.config.vocab_size)
    assert (np.isnan(other.kl_single) == np.isnan(screened.kl_single)).all()


@pytest.mark.parametrize("by", ["gradient", "unmask-one"])
def test_another_model_may_rank(by: str) -> None:
    model, other = build(NORMED).eval(), build(NORMED, seed=1).eval()
    screened = scored(model, num=8, screen=5, screen_by=by, screener=Evaluator(other, LOCAL))
    of_other, exact = scored(other, num=8), scored(model, num=8)
    ranking = of_other.gradient if by == "gradient" else -of_other.loss_single
    own = exact.gradient if by == "gradient" else -exact.loss_single
    chosen = np.sort(rank(ranking)[:, :5])
    assert (chosen != np.sort(rank(own)[:, :5])).any()
    assert (np.isfinite(screened.loss_single).nonzero()[1].reshape(8, 5) == chosen).all()
    assert np.nanmax(np.abs(screened.loss_single - exact.loss_single)) < 1e-5


def test_a_gradient_that_a_selector_asks_for_screens_too(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Evaluator] = []

    def counted(evaluator: Evaluator, tokens: torch.Tensor, loss_of: LossOf) -> torch.Tensor:
        asked.append(evaluator)
        return gate_gradients(evaluator, tokens, loss_of)

    monkeypatch.setattr(selectors, "gate_gradients", counted)
    model = build(NORMED).eval()
    low = Evaluator(with_weights_in(model, torch.bfloat16), LOCAL)
    for screener, times in ((None, 1), (low, 2)):
        asked.clear()
        one = scored(model, num=8, screen=5, screener=screener)
        assert one.gradient.shape == one.loss_single.shape == (8, M)
        assert len(asked) == times
        assert (low in asked) == (screener is low)


def test_the_recall_of_screening_is_that_of_the_sample() -> None:
    model = build(NORMED).eval()
    settings = InfluenceConfig(k=[1, 4], selectors=["unmask-one", "kl", "random"], screen=5, screen_sample=0.4)
    one = scored(model, num=60, screen=5)
    measured = measure_context(one, settings)
    found = check_screening(one, measured, settings)
    exact = measure_context(scored(model, num=60), settings)
    assert 10 < len(found.windows) < 40
    assert set(found.recall) == {"unmask-one", "kl"}
    for name, recall in found.recall.items():
        for i, w in enumerate(found.windows):
            for n, k in enumerate(settings.k):
                common = set(measured.positions[name][w, :k]) & set(exact.positions[name][w, :k])
                assert recall[i, n] == len(common) / k
                lost = measured.loss_sparse[name][w, n] - exact.loss_sparse[name][w, n]
                assert found.gain_lost[name][i, n] == pytest.approx(lost, abs=2e-6)
        assert 0 < recall.mean() < 1  # or this would show nothing


def test_sparse_losses_are_those_of_their_sets() -> None:
    """Sets that selectors share, and single positions, are not evaluated twice; nobody may notice."""
    model = build(NORMED).eval()
    settings = InfluenceConfig(k=[1, 2, 4], selectors=["unmask-one", "gradient", "nearest", "random"])
    one = scored(model, num=12)
    measured = measure_context(one, settings)
    plain = Evaluator(model, LOCAL, "plain")
    for name in settings.selectors:
        for n, k in enumerate(settings.k):
            visible = torch.from_numpy(measured.positions[name][:, None, :k].copy())
            expected = target_losses(plain, one.tokens_WT, one.targets_W, visible)[0][:, 0].numpy()
            assert measured.loss_sparse[name][:, n] == pytest.approx(expected, abs=1e-5)
