"""What hidden tokens would add to the attention of a row: to first order, from the row itself and their keys and values.

A row sees some tokens, and the far tokens are hidden from it by gates at 0. The derivative with respect to the gates needs
nothing of the far tokens but their keys and values: they come in blocks, so that the memory does not grow with their number.

Let s be the score that a query would give far token j, log_sum the log of the sum of its softmax, v the value of j, o the
query's attention output, and G the derivative of the loss with respect to o.

- ``gradient``: the derivative of the loss with respect to the gate of j at gate 0 is the sum of exp(s - log_sum) G (v - o).
- ``patching``: unmasking j alone moves o by sigmoid(s - log_sum) (v - o), if nothing before moves. The sum of G times that is
  the estimate of attribution patching (Nanda 2023): exact in each softmax, first order in the rest of the model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, Optional

import torch

Attribution = Literal["gradient", "patching"]


@dataclass(frozen=True)
class AttentionState:
    """What one layer's attention computed in a row, and how the loss depends on it.

    Queries are grouped by the head whose keys they read: N are the Q tokens times the heads that share keys.

    Attributes:
        q_BHNE: queries, scaled.
        out_BHNE: attention outputs.
        log_sum_BHN: the log of each softmax's sum, fp32.
        gradient_BHNE: the derivative of the loss with respect to the outputs; [L, B, H, N, E] of L losses.
    """

    q_BHNE: torch.Tensor
    out_BHNE: torch.Tensor
    log_sum_BHN: torch.Tensor
    gradient_BHNE: torch.Tensor


class AttentionProbes:
    """Records the attention of a differentiable forward pass, layer by layer, and its derivatives afterwards."""

    def __init__(self) -> None:
        self._layers: list[tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]] = []

    def __len__(self) -> int:
        return len(self._layers)

    def attend(
        self,
        q_BHQE: torch.Tensor,
        k_BHYE: torch.Tensor,
        v_BHYE: torch.Tensor,
        *,
        scaling: float,
    ) -> torch.Tensor:
        """Return causal attention of the last Q of Y tokens, [B, H, Q, E], through which derivatives can be read.

        Several heads of queries may share a head of keys. The Y - Q first tokens are seen by all.
        """
        num_queries, num_keys = q_BHQE.shape[2], k_BHYE.shape[2]
        q_BHGQE = q_BHQE.unflatten(1, (k_BHYE.shape[1], -1)) * scaling
        later_QY = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q_BHQE.device)
        later_QY = later_QY.triu(num_keys - num_queries + 1)
        scores_BHGQY = (q_BHGQE @ k_BHYE[:, :, None].transpose(3, 4)).float().masked_fill(later_QY, -math.inf)
        log_sum_BHGQ = scores_BHGQY.logsumexp(dim=-1)
        weights_BHGQY = (scores_BHGQY - log_sum_BHGQ[..., None]).exp().type_as(v_BHYE)
        out_BHGQE = weights_BHGQY @ v_BHYE[:, :, None]
        probe_BHGQE = torch.zeros_like(out_BHGQE, requires_grad=True)  # the derivative with respect to it is G
        recorded = (x.detach().flatten(2, 3) for x in (q_BHGQE, out_BHGQE, log_sum_BHGQ))
        self._layers.append((*recorded, probe_BHGQE))
        return (out_BHGQE + probe_BHGQE).flatten(1, 2)

    def states(self, loss: torch.Tensor) -> list[AttentionState]:
        """Return the state of each layer, with the derivatives of a loss of this forward pass, or of L losses, [L]."""
        gradients = derivatives(loss, [probe for *_, probe in self._layers])
        return [
            AttentionState(q_BHNE, out_BHNE, log_sum_BHN, gradient.flatten(-3, -2))
            for (q_BHNE, out_BHNE, log_sum_BHN, _), gradient in zip(self._layers, gradients, strict=True)
        ]


def requiring_grad(embedding: torch.nn.Module, bias: Optional[torch.Tensor]) -> AbstractContextManager[object]:
    """Let what an embedding returns require a gradient for the length of a ``with``, if a bias of attention does.

    CUDA's memory-efficient attention keeps what its backward pass needs only where queries, keys or values require a gradient.
    In the first layer the bias alone would, and the backward pass would fail.
    """
    if bias is None or not bias.requires_grad:
        return nullcontext()
    return embedding.register_forward_hook(lambda module, inputs, x_BTD: x_BTD.requires_grad_())


def derivatives(loss: torch.Tensor, inputs: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """Return the derivatives of a loss with respect to tensors [...]; of L losses, [L], they are [L, ...]."""
    if loss.dim() == 0:
        return list(torch.autograd.grad(loss, inputs))
    by_loss = [torch.autograd.grad(one, inputs, retain_graph=True) for one in loss]
    return [torch.stack(of_input) for of_input in zip(*by_loss, strict=True)]


def first_order(
    states: list[AttentionState], far: list[tuple[torch.Tensor, torch.Tensor]], *, attribution: Attribution
) -> torch.Tensor:
    """Return what each far token would add to the loss, to first order; fp32 [B, M], of L losses [L, B, M].

    Args:
        states: of each layer of the row.
        far: keys and values of the far tokens in each layer, [B, H, M, E] each.
        attribution: ``gradient`` or ``patching``; see the module.
    """
    far_shape = (len(far[0][0]), far[0][0].shape[2])
    total_BM = torch.zeros(*states[0].gradient_BHNE.shape[:-4], *far_shape, device=states[0].q_BHNE.device)
    for state, (k_BHME, v_BHME) in zip(states, far, strict=True):
        relative_BHNM = (state.q_BHNE @ k_BHME.transpose(2, 3)).float() - state.log_sum_BHN[..., None]
        weight_BHNM = relative_BHNM.sigmoid() if attribution == "patching" else relative_BHNM.exp()
        through_BHNM = (state.gradient_BHNE @ v_BHME.transpose(2, 3)).float()
        lost_BHN = (state.gradient_BHNE.float() * state.out_BHNE.float()).sum(dim=-1)
        total_BM += (weight_BHNM * (through_BHNM - lost_BHN[..., None])).sum(dim=(-3, -2)).to(total_BM.device)
    return total_BM


LossOfLogits = Callable[[torch.Tensor], torch.Tensor]  # logits [B, V], fp32 -> the sum of the rows' losses, [] or [L]
