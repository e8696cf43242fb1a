"""The checks of a machine pass here, and one that fails or breaks is told."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

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


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Config:
    made = small(tmp_path_factory.mktemp("gpu-check"), on_gpu=False)
    settings = dataclasses.replace(
        made.training, steps=30, batch_rows=8, eval_rows=8, precision="fp32", compile="never", threads=1
    )
    model = dataclasses.replace(made.model, d_model=32, n_heads=2)
    return dataclasses.replace(made, model=model, training=settings)


@pytest.mark.parametrize("check", [bf16_trains, resumes_exactly, paths_agree])
def test_they_pass_here(check: Any, config: Config, tmp_path: Path) -> None:
    assert check(config, tmp_path).passed


def test_paths_that_differ_are_noticed(config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The compact path alone adds the unmasked token to the local tokens' attention in this way."""
    monkeypatch.setattr(
        torch, "lerp", lambda among, value, share: among.expand(torch.broadcast_shapes(among.shape, share.shape))
    )
    assert paths_agree(config, tmp_path).passed is False


def test_without_a_compiler_nothing_is_compared(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert compiled_is_the_same(config, tmp_path).passed is None


def test_one_failure_is_told_by_all(config: Config, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def raises(_config: Config, _folder: Path) -> Outcome:
        raise RuntimeError("no kernel image")

    fine = {"a": lambda *_: Outcome(True, "well"), "b": lambda *_: Outcome(None, "12 ms")}
    assert run_checks(config, tmp_path, checks=fine)
    assert not run_checks(config, tmp_path, checks={**fine, "c": lambda *_: Outcome(False, "badly")})
    assert not run_checks(config, tmp_path, checks={"d": raises, **fine})
    assert "FAILED  d: RuntimeError: no kernel image" in capsys.readouterr().out
