"""The checks of a machine pass here, and fail where the thing they look at is broken."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks import gpu_check
from benchmarks.gpu_check import (
    Outcome,
    bf16_trains,
    compiled_is_the_same,
    paths_agree,
    resumes_exactly,
    run_checks,
    small,
)
from olmo_sparsity.config import Config
from olmo_sparsity.train import run
from olmo_sparsity.train import step as optimization


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    made = small(tmp_path_factory.mktemp("gpu-check"), on_gpu=False)
    settings = dataclasses.replace(
        made.training, steps=30, batch_rows=8, eval_rows=8, precision="fp32", compile="never", threads=1
    )
    model = dataclasses.replace(made.model, d_model=32, n_heads=2)
    return dataclasses.replace(made, model=model, training=settings)


def test_bf16(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert bf16_trains(config, tmp_path / "right").passed
    right = optimization.SummedLoss.logits

    def far_off(self: Any, *fields: torch.Tensor) -> torch.Tensor:
        logits = right(self, *fields)
        return logits * 0.5 if self._bf16 else logits

    monkeypatch.setattr(optimization.SummedLoss, "logits", far_off)
    assert bf16_trains(config, tmp_path / "wrong").passed is False


def test_compiled(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compilers that take no time: one that changes nothing, one that is wrong by one part in 500."""
    monkeypatch.setattr(gpu_check, "resolve_compile", lambda *_: True)

    def compiler(factor: float) -> Callable[..., Any]:
        return lambda loss, dynamic: lambda *fields: tuple(factor * nats for nats in loss(*fields))

    monkeypatch.setattr(torch, "compile", compiler(1.0))
    assert compiled_is_the_same(config, tmp_path / "right").passed
    monkeypatch.setattr(torch, "compile", compiler(1.002))
    assert compiled_is_the_same(config, tmp_path / "wrong").passed is False


def test_without_a_compiler_nothing_is_compared(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compiled_is_the_same(config, tmp_path).passed is None


def test_resume(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert resumes_exactly(config, tmp_path / "right").passed
    right = run.load_state

    def forgetful(model: Any, optimizer: Any, read: Any) -> None:
        right(model, optimizer, read)
        optimizer.state.clear()

    monkeypatch.setattr(run, "load_state", forgetful)
    assert resumes_exactly(config, tmp_path / "wrong").passed is False


def test_paths(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert paths_agree(config, tmp_path).passed
    # The compact path alone adds the unmasked token to the local tokens' attention in this way.
    monkeypatch.setattr(
        torch, "lerp", lambda among, value, share: among.expand(torch.broadcast_shapes(among.shape, share.shape))
    )
    assert paths_agree(config, tmp_path).passed is False


def test_one_failure_is_told_by_all(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def raises(_config: Config, _folder: Path) -> Outcome:
        raise RuntimeError("no kernel image")

    fine = {"a": lambda *_: Outcome(True, "well"), "b": lambda *_: Outcome(None, "12 ms")}
    assert run_checks(config, tmp_path, checks=fine)
    assert not run_checks(config, tmp_path, checks={**fine, "c": lambda *_: Outcome(False, "badly")})
    monkeypatch.setattr(gpu_check, "CHECKS", {"d": raises, **fine})
    assert gpu_check.main() == 1
    assert "FAILED  d: RuntimeError: no kernel image" in capsys.readouterr().out
    monkeypatch.setattr(gpu_check, "CHECKS", fine)
    assert gpu_check.main() == 0
