"""What CUDA's attention kernels take for granted about their inputs, checked on any device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from defined import LOCAL, windows
from torch.nn import functional
from transformers_models import build

from olmo_sparsity.measure.engine import Engine
from olmo_sparsity.measure.visible import gate_bias

Tensors = tuple[torch.Tensor, ...]


@pytest.fixture
def attended(monkeypatch: pytest.MonkeyPatch) -> list[Tensors]:
    """Queries, keys and values of each call of the fused kernel from now on."""
    calls: list[Tensors] = []
    kernel = functional.scaled_dot_product_attention

    def recorded(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        calls.append((q, k, v))
        return kernel(q, k, v, *rest, **options)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", recorded)
    return calls


@pytest.mark.parametrize("kind", ["llama", "gpt-2", "gemma-3"])
def test_what_a_gate_is_differentiated_through_requires_a_gradient(kind: str, attended: list[Tensors]) -> None:
    """The memory-efficient kernel keeps what its backward pass needs if queries, keys or values require a gradient.

    If only its mask does, the backward pass ends in "LSE is not correctly aligned".
    """
    model, (tokens, _) = build(kind), windows(2)
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    log_gate = torch.zeros(tokens.shape, requires_grad=True)
    bias = gate_bias(log_gate, local_len=LOCAL, visibility="hidden")
    logits = model.logits(tokens, positions, bias)
    (gradient,) = torch.autograd.grad(logits.logsumexp(dim=-1).sum(), log_gate)
    assert gradient.abs().max() > 0
    assert len(attended) > 0 and all(any(x.requires_grad for x in call) for call in attended)
    attended.clear()
    torch.testing.assert_close(logits.detach(), model.logits(tokens, positions, bias.detach()), atol=1e-5, rtol=1e-5)
    assert not any(x.requires_grad for call in attended for x in call)


@pytest.mark.parametrize("kind", ["llama", "gemma-3", "gemma-4"])
def test_heads_that_share_one_head_of_keys_get_copies_of_it(kind: str, attended: list[Tensors]) -> None:
    """Of keys that a stride of 0 repeats, the kernel computed wrong outputs where there are 33, 65, 97, ... of them."""
    model, (tokens, _) = build(kind, **({} if kind == "gemma-4" else {"num_key_value_heads": 1})), windows(2)
    for visibility in ("hidden", "contextual"):
        for path in ("plain", "masked"):
            engine = Engine(model, LOCAL, visibility, path=path)
            engine.predictions(tokens, torch.zeros(2, tokens.shape[1] - LOCAL, dtype=torch.bool))
            engine.long_and_attention(tokens)
    assert len(attended) >= 2 * 8
    for _, k, v in attended:
        assert all(min(x.stride()) > 0 for x in (k, v))
