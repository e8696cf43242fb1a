"""One step: loss, gradients, AdamW, learning rates and the operations that are counted, each against its definition."""

from __future__ import annotations

import math
import os
import sys
from dataclasses import replace
from typing import get_args

import pytest
import torch

from olmo_sparsity.config import Config, Scheduler, TrainingConfig
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, olmo_model_config
from olmo_sparsity.train.batches import IGNORE_INDEX, Batch
from olmo_sparsity.train.step import (
    SummedLoss,
    TrainState,
    build_schedule,
    build_train_state,
    resolve_compile,
    train_step,
)

CPU = torch.device("cpu")


def model_of(config: Config, **keys: object) -> OLMoWithPositions:
    changed = replace(config, model=replace(config.model, **keys))  # type: ignore[arg-type]
    return build_model(olmo_model_config(changed, vocab_size=320, eos_id=0), 0)


def made_batch(*, with_positions: bool = False) -> Batch:
    """Six rows of eight tokens with different numbers of targets."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(0, 320, (6, 9), generator=generator)
    ignored = torch.rand((6, 8), generator=generator) < 0.4
    assert 0 < int(ignored.sum(dim=1).min()) < int(ignored.sum(dim=1).max())
    targets = tokens[:, 1:].masked_fill(ignored, IGNORE_INDEX)
    ids = ((tokens[:, 1:] * 7) % 20).masked_fill(ignored, IGNORE_INDEX) if with_positions else None
    return Batch(tokens[:, :-1], torch.arange(8).repeat(6, 1), targets, int((~ignored).sum()), ids)


def by_hand(model: OLMoWithPositions, batch: Batch, z_loss: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (objective, cross-entropy), summed target by target."""
    logits, ids = model(batch.tokens_BT, batch.positions_BT), batch.target_positions_BT
    objective, nats = torch.zeros(()), torch.zeros(())
    for row, t in (batch.targets_BT != -100).nonzero().tolist():
        log_z = logits[row, t].exp().sum().log()
        nats = nats + log_z - logits[row, t, batch.targets_BT[row, t]]
        objective = objective + log_z - logits[row, t, batch.targets_BT[row, t]] + z_loss * log_z**2
        if ids is not None:
            id_logits = model.logits_and_position_logits(batch.tokens_BT, batch.positions_BT)[1][row, t]
            objective = objective - id_logits.log_softmax(-1)[ids[row, t]]
    return objective, nats


@pytest.mark.parametrize("z_loss", [0.0, 0.3])
@pytest.mark.parametrize(("few_targets", "with_positions"), [(False, False), (True, False), (False, True)])
def test_the_loss_is_summed_over_trained_targets_only(
    tiny_config: Config, few_targets: bool, with_positions: bool, z_loss: float
) -> None:
    """With its gradients, whichever logits are computed."""
    model = model_of(tiny_config, position_embedding="absolute" if with_positions else "rope")
    batch, parameters = made_batch(with_positions=with_positions), list(model.parameters())
    expected = by_hand(model, batch, z_loss)
    found = SummedLoss(model, "fp32", z_loss=z_loss, few_targets=few_targets)(*batch.fields)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    gradients = [torch.autograd.grad(loss[0], parameters, allow_unused=True) for loss in (found, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-3, atol=1e-4)
    assert (float(found[0].detach()) > float(found[1].detach()) + 1) == (z_loss > 0 or with_positions)


def state_of(config: Config, model: OLMoWithPositions, **keys: object) -> TrainState:
    training = replace(config.training, batch_rows=6, **keys)  # type: ignore[arg-type]
    return build_train_state(model, training, CPU)


@pytest.mark.parametrize("micro_batch_rows", [None, 3, 2])
def test_a_step_follows_the_gradient_of_the_mean_over_trained_targets(
    tiny_config: Config, micro_batch_rows: int | None
) -> None:
    """Passes hold different numbers of trained targets: a mean of their means would differ. The norm is clipped to 1."""
    model, batch = model_of(tiny_config), made_batch()
    state, norms = state_of(tiny_config, model, micro_batch_rows=micro_batch_rows, z_loss=0.01), []
    objective, nats = by_hand(model, batch, 0.01)
    gradients = torch.autograd.grad(objective / batch.num_targets, list(model.parameters()))
    expected = float(torch.stack([gradient.square().sum() for gradient in gradients]).sum().sqrt())

    def note_norm(*_: object) -> None:
        norms.append(float(torch.stack([one.grad.square().sum() for one in model.parameters()]).sum().sqrt()))  # type: ignore[union-attr]

    state.optimizer.register_step_pre_hook(note_norm)
    summed_nats, grad_norm = train_step(state, batch, learning_rate=1e-3)
    assert float(summed_nats) == pytest.approx(float(nats.detach()), rel=1e-5)
    assert expected > 1 and float(grad_norm) == pytest.approx(expected, rel=1e-4)
    assert norms == [pytest.approx(1, rel=1e-4)]
    assert {group["lr"] for group in state.optimizer.param_groups} == {1e-3}
    assert all(parameter.grad is None for parameter in model.parameters())


def test_auto_compiles_where_there_is_a_compiler(tiny_config: Config, monkeypatch: pytest.MonkeyPatch) -> None:
    assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"  # without it a GPU refuses deterministic products
    settings = {choice: TrainingConfig(compile=choice) for choice in ("auto", "always", "never")}  # type: ignore[arg-type]
    for compiler, is_there in ((sys.executable, True), ("no-such-compiler", False)):
        monkeypatch.setenv("CXX", compiler)
        found = {choice: resolve_compile(training, CPU) for choice, training in settings.items()}
        assert found == {"auto": is_there, "always": True, "never": False}
    assert resolve_compile(settings["auto"], torch.device("cuda"))  # which has a compiler of its own
    state = state_of(tiny_config, model_of(tiny_config), compile="never")
    assert state.step_loss is state.replicated


@pytest.mark.parametrize("scheduler", get_args(Scheduler))
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
        "cosine_linear_envelope": 0.1 + 0.9 * (1 + math.cos(math.pi / 2)) / 2 / 2,
    }
    assert rates[60] == pytest.approx(at_60[scheduler])
    assert max(rates) <= 1.0 and (rates[100] < rates[30]) == (scheduler != "constant_with_warmup")
