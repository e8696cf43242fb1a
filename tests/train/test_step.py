from __future__ import annotations

import dataclasses
import math

import pytest
import torch

from olmo_sparsity.config import SCHEDULERS, Config, TrainingConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, olmo_model_config
from olmo_sparsity.torchrun import SINGLE_PROCESS, ProcessInfo
from olmo_sparsity.train import step as training_step
from olmo_sparsity.train.batches import IGNORE_INDEX, Batch
from olmo_sparsity.train.step import (
    SummedLoss,
    build_optimizer,
    build_schedule,
    build_train_state,
    deterministic,
    resolve_compile,
    train_step,
)

CPU = torch.device("cpu")


@pytest.fixture
def model(tiny_config: Config) -> OLMoWithPositions:
    return build_model(olmo_model_config(tiny_config, vocab_size=320, eos_id=0), 0)


@pytest.fixture
def batch() -> Batch:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 320, (6, 9), generator=generator)
    targets = tokens[:, 1:].clone()
    targets[torch.rand(targets.shape, generator=generator) < 0.4] = IGNORE_INDEX
    assert 0 < int((targets == IGNORE_INDEX).sum(dim=1).min()) < int((targets == IGNORE_INDEX).sum(dim=1).max())
    positions = torch.arange(8).expand(6, -1)
    return Batch(tokens[:, :-1], positions, targets, int((targets != IGNORE_INDEX).sum()))


def by_hand(model: OLMoWithPositions, batch: Batch, z_loss: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (objective, cross-entropy), summed target by target."""
    logits = model(batch.tokens_BT, batch.positions_BT)
    objective, nats = torch.zeros(()), torch.zeros(())
    for row in range(6):
        for t in range(8):
            target = int(batch.targets_BT[row, t])
            if target != -100:
                log_z = logits[row, t].exp().sum().log()
                nats = nats + log_z - logits[row, t, target]
                objective = objective + log_z - logits[row, t, target] + z_loss * log_z**2
    return objective, nats


@pytest.mark.parametrize("z_loss", [0.0, 0.3])
def test_the_loss_is_summed_over_trained_targets_only(model: OLMoWithPositions, batch: Batch, z_loss: float) -> None:
    fields = (batch.tokens_BT, batch.positions_BT, batch.targets_BT)
    with torch.no_grad():
        objective, nats = SummedLoss(model, "fp32", z_loss=z_loss)(*fields)
        expected = by_hand(model, batch, z_loss)
    assert float(objective) == pytest.approx(float(expected[0]), rel=1e-5)
    assert float(nats) == pytest.approx(float(expected[1]), rel=1e-5)
    assert (float(objective) > float(nats) + 1) == (z_loss > 0)


@pytest.mark.parametrize("micro_batch_rows", [None, 3, 2])
def test_a_step_follows_the_gradient_of_the_mean_over_trained_targets(
    tiny_config: Config, model: OLMoWithPositions, batch: Batch, micro_batch_rows: int | None
) -> None:
    """Micro-batches hold different numbers of trained targets: a mean of their means would differ."""
    training = dataclasses.replace(tiny_config.training, batch_rows=6, micro_batch_rows=micro_batch_rows, z_loss=0.01)
    train_state = build_train_state(
        model, training, precision="fp32", compiled=False, process=SINGLE_PROCESS, device=CPU
    )
    objective, nats = by_hand(model, batch, 0.01)
    gradients = torch.autograd.grad(objective / batch.num_targets, list(model.parameters()))
    expected = torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt()
    summed_nats, grad_norm = train_step(train_state, batch, learning_rate=1e-3, max_grad_norm=1e9)
    assert float(summed_nats) == pytest.approx(float(nats.detach()), rel=1e-5)
    assert float(grad_norm) == pytest.approx(float(expected), rel=1e-4)


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_schedules(scheduler: str) -> None:
    settings = TrainingConfig(scheduler=scheduler, warmup_steps=20, final_lr_fraction=0.1)
    rates = [build_schedule(settings).get_lr(1.0, step, 100) for step in range(101)]
    if scheduler == "constant":
        assert rates == [1.0] * 101
        return
    if scheduler != "cosine_linear_envelope":
        assert rates[:21] == pytest.approx([step / 20 for step in range(21)])
    at_60 = {
        "cosine_with_warmup": 0.1 + 0.9 * (1 + math.cos(math.pi / 2)) / 2,
        "linear_with_warmup": 1 - 0.9 / 2,
        "inverse_sqrt_with_warmup": math.sqrt(20 / 60),
        "max_scheduler": math.sqrt(20 / 60),
        "constant_with_warmup": 1.0,
        "cosine_linear_envelope": rates[60],
    }
    assert rates[60] == pytest.approx(at_60[scheduler])
    assert max(rates) <= 1.0
    assert (rates[100] < rates[30]) == (scheduler != "constant_with_warmup")


@pytest.mark.parametrize("scheduler", ["inverse_sqrt_with_warmup", "max_scheduler"])
def test_a_schedule_that_depends_on_its_warm_up_needs_one(scheduler: str) -> None:
    with pytest.raises(UserError, match=r"training\.warmup_steps = 0: must be positive"):
        TrainingConfig(scheduler=scheduler, warmup_steps=0)


def test_without_a_compiler_it_does_not_compile(tiny_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = dataclasses.replace(tiny_config.training, compile="auto")
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert not resolve_compile(settings, CPU)
    assert resolve_compile(dataclasses.replace(settings, compile="always"), CPU)
    assert not resolve_compile(dataclasses.replace(settings, compile="never"), torch.device("cuda"))


@pytest.mark.parametrize("warn_only", [False, True])
def test_deterministic_restores_the_settings(warn_only: bool) -> None:
    torch.use_deterministic_algorithms(True, warn_only=warn_only)
    try:
        with deterministic():
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.are_deterministic_algorithms_enabled()
        assert torch.is_deterministic_algorithms_warn_only_enabled() == warn_only
    finally:
        torch.use_deterministic_algorithms(False)


def test_three_steps_are_those_of_adamw_with_the_settings(tiny_config: Config, model: OLMoWithPositions) -> None:
    """Of Loshchilov and Hutter 2019 (arXiv 1711.05101), algorithm 2, in float64; one step would not depend on the betas."""
    beta1, beta2, decay, rates = 0.6, 0.8, 0.5, (0.03, 0.01, 0.02)
    settings = dataclasses.replace(
        tiny_config.training, beta1=beta1, beta2=beta2, weight_decay=decay, learning_rate=9.0, batch_rows=6
    )
    optimizer = build_optimizer(model, settings)
    assert optimizer.defaults["lr"] == 9.0
    generator = torch.Generator().manual_seed(3)
    expected = {name: parameter.detach().double() for name, parameter in model.named_parameters()}
    first, second = ({name: torch.zeros_like(value) for name, value in expected.items()} for _ in range(2))
    for number, rate in enumerate(rates, start=1):
        for group in optimizer.param_groups:
            group["lr"] = rate
        for name, parameter in model.named_parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
            gradient = parameter.grad.double()
            first[name] = beta1 * first[name] + (1 - beta1) * gradient
            second[name] = beta2 * second[name] + (1 - beta2) * gradient**2
            step = (first[name] / (1 - beta1**number)) / ((second[name] / (1 - beta2**number)).sqrt() + 1e-8)
            of_norm = parameter.dim() == 1
            expected[name] = expected[name] * (1 if of_norm else 1 - rate * decay) - rate * step
        optimizer.step()
    assert any(parameter.dim() == 1 for parameter in model.parameters())
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.detach().double(), expected[name], atol=2e-6, rtol=1e-5)


def test_a_step_clips_the_norm_and_has_the_rate_that_it_is_given(
    tiny_config: Config, model: OLMoWithPositions, batch: Batch
) -> None:
    """The next step begins without gradients."""
    training = dataclasses.replace(tiny_config.training, batch_rows=6, learning_rate=9.0)
    state = build_train_state(model, training, precision="fp32", compiled=False, process=SINGLE_PROCESS, device=CPU)
    norms: list[float] = []

    def gradients_of_step(*_: object) -> None:
        norms.append(float(torch.stack([one.grad.square().sum() for one in model.parameters()]).sum().sqrt()))  # type: ignore[union-attr]

    state.optimizer.register_step_pre_hook(gradients_of_step)
    _, whole = train_step(state, batch, learning_rate=1e-3, max_grad_norm=0.25)
    assert float(whole) > 0.25 and norms == [pytest.approx(0.25, rel=1e-4)]
    assert {group["lr"] for group in state.optimizer.param_groups} == {1e-3}
    assert all(parameter.grad is None for parameter in model.parameters())


def test_rows_of_a_pass_divide_those_of_a_process(tiny_config: Config) -> None:
    def rows(micro_batch_rows: int | None, processes: int) -> int:
        training = dataclasses.replace(tiny_config.training, batch_rows=12, micro_batch_rows=micro_batch_rows)
        return training_step.rows_per_pass_of(training, ProcessInfo(processes - 1, processes))

    assert [rows(None, 1), rows(4, 1), rows(12, 1), rows(None, 2), rows(3, 2), rows(12, 2)] == [12, 4, 12, 6, 3, 6]
    with pytest.raises(UserError, match=r"micro_batch_rows = 4: must divide the 6 rows of each of the 2 processes"):
        rows(4, 2)
    with pytest.raises(UserError, match=r"training\.batch_rows = 12: must be a multiple of the number of processes, 5"):
        rows(None, 5)
