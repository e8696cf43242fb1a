"""How many tokens a forward pass has."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Optional

import pytest
import torch
from tiny_models import NORMED, build

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.measure.visible import batch_size
from olmo_sparsity.measure.visible.batch_size import largest_that_fits, make_evaluator
from olmo_sparsity.measure.visible.evaluator import Evaluator

LOCAL, FULL = 8, 20


@pytest.mark.parametrize(
    ("fits", "largest", "expected"),
    [(100, 1024, 32), (64, 1024, 32), (1024, 1024, 512), (2, 64, 1), (0, 64, 1), (5, 1, 1)],
)
def test_half_of_what_fits(fits: int, largest: int, expected: int) -> None:
    tried: list[int] = []

    def trial(size: int) -> None:
        tried.append(size)
        if size > fits:
            raise torch.OutOfMemoryError

    assert largest_that_fits(trial, largest) == expected
    assert tried == [largest // 2**i for i in range(len(tried))] and all(size > fits for size in tried[:-1])


@pytest.mark.parametrize(
    ("local_len", "num"),
    [(LOCAL, 43), (FULL - 1, 215)],  # of 12 rows each, for 4096 / 8 rows; of one, for 4096 / 19
)
def test_a_pass_on_a_gpu_holds_half_of_what_its_memory_does(
    local_len: int, num: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of single unmaskings are tried, as many windows as a pass of so many tokens has of them."""
    tried: list[tuple[Evaluator, Any]] = []

    def singles(evaluator: Evaluator, tokens_WT: torch.Tensor, **given: torch.Tensor) -> None:
        shapes = [tuple(given[name].shape) for name in ("targets_W", "candidates_WJ", "reference_WV")]
        tried.append((evaluator, (tuple(tokens_WT.shape), *shapes)))
        if evaluator.batch_tokens > 5000:
            raise torch.OutOfMemoryError

    monkeypatch.setattr(batch_size, "single_losses", singles)
    model = SimpleNamespace(device=torch.device("meta"), vocab_size=31)
    model.in_dtype = lambda dtype: model
    of_gpu: Any = model
    made = make_evaluator(of_gpu, InfluenceConfig(path="masked"), full_len=FULL, local_len=local_len)
    assert (made.batch_tokens, made.path, made.local_len) == (2048, "masked", local_len)
    assert [evaluator.batch_tokens for evaluator, _ in tried] == [2**power for power in range(20, 11, -1)]
    assert all(evaluator.path == "compact" for evaluator, _ in tried)
    assert tried[-1][0].local_len == local_len
    assert tried[-1][1] == ((num, FULL), (num,), (num, FULL - tried[-1][0].local_len), (num, 31))


@pytest.mark.parametrize(("given", "threads", "expected"), [(None, 1, 1024), (None, 3, 3072), (77, 3, 77)])
def test_a_pass_on_a_cpu(given: Optional[int], threads: int, expected: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads)
    settings = InfluenceConfig(batch_tokens=given, visibility="hidden", path="plain")
    made = make_evaluator(build(NORMED), settings, full_len=FULL, local_len=LOCAL, precision="bf16", anchor_id=4)
    assert (made.batch_tokens, made.local_len, made.anchor_id, made.path) == (expected, LOCAL, 4, "plain")
    assert made.visibility == "hidden"
    assert next(made.model.parameters()).dtype == torch.bfloat16  # type: ignore[attr-defined]
    plain = make_evaluator(build(NORMED), InfluenceConfig(visibility="contextual"), full_len=FULL, local_len=LOCAL)
    assert (plain.visibility, plain.anchor_id) == ("contextual", None)
    assert next(plain.model.parameters()).dtype == torch.float32  # type: ignore[attr-defined]
