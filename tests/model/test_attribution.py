"""What a far token would add to first order, against its definition: each softmax computed anew, with explicit keys."""

from __future__ import annotations

import pytest
import torch

from olmo_sparsity.model.attribution import AttentionState, Attribution, first_order

B, H, N, Y, E, M = 2, 3, 4, 5, 6, 7  # windows, heads, queries, keys that are there, width of a head, far tokens


def random_layer(generator: torch.Generator) -> dict[str, torch.Tensor]:
    """Return queries, keys and values, those of the far tokens, and derivatives of a loss by the outputs of the attention."""
    shapes = {"q": (N, E), "k": (Y, E), "v": (Y, E), "far_k": (M, E), "far_v": (M, E), "gradient": (N, E)}
    return {name: torch.randn(B, H, *shape, generator=generator, dtype=torch.float64) for name, shape in shapes.items()}


def attended(layer: dict[str, torch.Tensor], j: int, gate: float) -> torch.Tensor:
    """Return the outputs where the weight of far token j, before normalisation, is multiplied by a gate; [B, H, N, E]."""
    keys = torch.cat([layer["k"], layer["far_k"][:, :, j : j + 1]], dim=2)
    values = torch.cat([layer["v"], layer["far_v"][:, :, j : j + 1]], dim=2)
    weights = (layer["q"] @ keys.transpose(2, 3)).exp()
    weights[..., -1] *= gate
    return weights / weights.sum(dim=-1, keepdim=True) @ values


def added(layer: dict[str, torch.Tensor], j: int, attribution: Attribution) -> torch.Tensor:
    """Return what far token j adds in one layer, by definition; [B]."""
    if attribution == "patching":  # the token is there: the whole change of the softmax
        change = attended(layer, j, 1.0) - attended(layer, j, 0.0)
    else:  # the derivative with respect to the gate, at gate 0
        step = 1e-6
        change = (attended(layer, j, step) - attended(layer, j, 0.0)) / step
    return (layer["gradient"] * change).sum(dim=(1, 2, 3))


@pytest.mark.parametrize("attribution", ["gradient", "patching"])
def test_what_a_far_token_adds_is_its_definition(attribution: Attribution) -> None:
    """Summed over two layers."""
    generator = torch.Generator().manual_seed(0)
    layers = [random_layer(generator) for _ in range(2)]
    states = [
        AttentionState(
            layer["q"].float(),
            attended(layer, 0, 0.0).float(),
            (layer["q"] @ layer["k"].transpose(2, 3)).logsumexp(dim=-1).float(),
            layer["gradient"].float(),
        )
        for layer in layers
    ]
    far = [(layer["far_k"].float(), layer["far_v"].float()) for layer in layers]
    found = first_order(states, far, attribution=attribution)
    expected = torch.stack([sum(added(layer, j, attribution) for layer in layers) for j in range(M)], dim=1)
    torch.testing.assert_close(found.double(), expected, rtol=2e-4, atol=2e-4)
