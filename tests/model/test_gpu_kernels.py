"""What CUDA's attention kernels take for granted about their inputs, checked on any device."""

from __future__ import annotations

from typing import Any

import pytest
import tiny_models
import tiny_windows
import torch
import transformers
from torch.nn import functional
from transformers_models import GROUPED, SHARED, VOCAB, build

from olmo_sparsity.config import ModelConfig
from olmo_sparsity.measure.visible.visibility import gate_bias
from olmo_sparsity.model.causal_model import CausalModel
from olmo_sparsity.model.transformers_model import TransformersModel

LOCAL, T = 4, 12
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


def rows(num: int, length: int) -> Tensors:
    tokens = torch.randint(3, VOCAB, (num, length), generator=torch.Generator().manual_seed(0))
    return tokens, torch.arange(length).expand(num, -1)


# The memory-efficient kernel keeps what its backward pass needs if queries, keys or values require a gradient. If only its mask
# does, the backward pass ends in "LSE is not correctly aligned".


def check_first_layer(model: CausalModel, tokens: torch.Tensor, attended: list[Tensors]) -> None:
    positions = torch.arange(tokens.shape[1]).expand_as(tokens)
    log_gate = torch.zeros(tokens.shape, requires_grad=True)
    bias = gate_bias(log_gate, local_len=LOCAL, visibility="hidden")
    with torch.enable_grad():
        logits = model.last_logits(tokens, positions, bias_BTT=bias)
        (gradient,) = torch.autograd.grad(logits.logsumexp(dim=-1).sum(), log_gate)
    assert gradient.abs().max() > 0
    assert len(attended) > 0
    assert all(any(x.requires_grad for x in call) for call in attended)
    attended.clear()
    expected = model.last_logits(tokens, positions, bias_BTT=bias.detach())
    torch.testing.assert_close(logits.detach(), expected, atol=1e-5, rtol=1e-5)
    assert not any(x.requires_grad for call in attended for x in call)


@pytest.mark.parametrize("kind", ["llama", "gpt-2", "gemma-3"])
def test_what_a_gate_is_differentiated_through_requires_a_gradient(kind: str, attended: list[Tensors]) -> None:
    check_first_layer(build(kind), rows(2, T)[0], attended)


@tiny_models.KINDS
def test_so_it_does_in_models_of_olmo(kind: ModelConfig, attended: list[Tensors]) -> None:
    check_first_layer(tiny_models.build(kind).eval().requires_grad_(False), tiny_windows.windows(2)[0], attended)


# Of keys and values that a stride of 0 repeats, the kernel computed wrong outputs where there are 33, 65, 97, ... of them.


@pytest.mark.parametrize("kind", ["llama", "gemma-3"])
@torch.no_grad()
def test_heads_that_share_one_head_of_keys_get_copies_of_it(kind: str, attended: list[Tensors]) -> None:
    keys = (SHARED if kind == "llama" else GROUPED | {"head_dim": 8}) | {"num_key_value_heads": 1}
    kinds = {
        "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig),
        "gemma-3": (transformers.Gemma3ForCausalLM, transformers.Gemma3TextConfig),
    }
    architecture, config = kinds[kind]
    torch.manual_seed(0)
    model = TransformersModel(architecture(config(**keys)))
    tokens, positions = rows(2, T)
    allowed = torch.ones(2, T, T, dtype=torch.bool).tril()
    prefix = model.keys_values(tokens[:, :-LOCAL], positions[:, :-LOCAL])
    model.last_logits(tokens, positions, bias_BTT=allowed)
    model.last_logits_after(tokens[:, -LOCAL:], positions[:, -LOCAL:], prefix=prefix)
    model.last_logits_and_attention(tokens, positions)
    assert len(attended) == 2 * 4
    for _, k, v in attended:
        assert k.shape[1] in (1, 4)
        assert all(min(x.stride()) > 0 for x in (k, v))
