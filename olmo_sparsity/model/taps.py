"""Reads what fused attention does not return: weights, keys and values of a pass, and first-order effects of unmasking.

transformers calls attention by a name. ``tapped`` adds one, under which a tap reads the ordinary attention.
Shape letters: B rows, Q queries, T or Y keys, H heads (of keys), G heads of queries that share one, E width of a head, M
long-range tokens.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
import transformers
from torch import Tensor
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from olmo_sparsity.errors import UserError
from olmo_sparsity.model.devices import attention_elements

KeysValues = list[tuple[Tensor, Tensor]]  # of each layer, [B, H, P, E] each; keys know their positions
Attribution = Literal["gradient", "patching"]
LossOfLogits = Callable[[Tensor], Tensor]  # logits [B, V], fp32 -> sums of the rows' losses, [] or [L]
TAPPED = "olmo-sparsity-tapped"
OBSERVED_QUERIES = 32  # the last local tokens whose attention ``observed_attention`` sums, as in SnapKV
UNKNOWN_OPTIONS = ("softcap", "position_bias", "s_aux")  # attention that is more than a softmax of scaled scores
_tap: ContextVar[Any] = ContextVar("reads the attention of a pass")


class UnreadableAttentionError(Exception):
    """A layer's attention is more than a softmax of scaled scores, or does not state its scale."""


@contextmanager
def tapped(model: Any, tap: Any) -> Iterator[None]:
    """Let a tap read the attention of a model of transformers: ``tap(q, k, v, mask, scaling)`` returns None, or the output."""
    transformers.AttentionInterface.register(TAPPED, _attend)
    transformers.AttentionMaskInterface.register(TAPPED, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    before, token = model.config._attn_implementation, _tap.set(tap)
    model.set_attn_implementation(TAPPED)
    try:
        yield
    finally:
        model.set_attn_implementation(before)
        _tap.reset(token)


def _attend(module: Any, q: Tensor, k: Tensor, v: Tensor, attention_mask: Any, **options: Any) -> Any:
    if any(options.get(name) is not None for name in UNKNOWN_OPTIONS) or options.get("scaling") is None:
        raise UnreadableAttentionError
    output = _tap.get()(q, k, v, attention_mask, options["scaling"])
    return ALL_ATTENTION_FUNCTIONS["sdpa"](module, q, k, v, attention_mask, **options) if output is None else output


@dataclass
class Observer:
    """What selectors may need of every layer and head of whole windows, fp32, on the CPU, an entry a layer."""

    needs: Collection[str]
    long_range: slice  # the long-range tokens, among the tokens of the pass
    local_len: int
    collected: dict[str, list[Tensor]] = field(default_factory=dict)
    num_layers: int = 0

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float) -> None:
        """Keep what is needed of a layer."""
        self.num_layers += 1
        far, num_observed = self.long_range, min(OBSERVED_QUERIES, self.local_len)
        parts = {"queries": q[:, :, -1], "keys": k[:, :, far], "values": v[:, :, far]}
        sizes = {"attention_of_heads": 1, "observed_attention": num_observed, "accumulated_attention": q.shape[2]}
        for name in self.needs:
            part = parts[name] if name in parts else attention_sums(q[:, :, -sizes[name] :], k, mask, scaling, far)
            self.collected.setdefault(name, []).append(part.detach().float().cpu())

    def result(self) -> dict[str, Tensor]:
        """Each need, fp32 [B, layers, ...]."""
        for name, layers in self.collected.items():
            if len({layer.shape for layer in layers}) > 1:
                remedy = f"leave out the selectors that need {name}"
                raise UserError(f"the layers of this model have {name} of different shapes; {remedy}")
        return {name: torch.stack(layers, dim=1) for name, layers in self.collected.items()}


def attention_sums(q_BHQE: Tensor, k_BHTE: Tensor, mask: Any, scaling: float, far: slice) -> Tensor:
    """Sum the attention that the last Q tokens pay to some tokens, a block of queries at a time; fp32 [B, heads, M]."""
    (num_rows, num_heads, num_queries, _), (_, num_shared, num_tokens, _) = q_BHQE.shape, k_BHTE.shape
    k_BHET, device = k_BHTE.float().transpose(2, 3), k_BHTE.device
    sums_BHM = torch.zeros(num_rows, num_heads, far.stop - far.start, device=device)
    per_block = max(1, attention_elements(device) // (num_rows * num_heads * num_tokens))
    for begin in range(0, num_queries, per_block):
        q_BHqE = q_BHQE[:, :, begin : begin + per_block].float() * scaling
        size = q_BHqE.shape[2]
        num_later = num_queries - begin - size
        num_seen = num_tokens - num_later  # no query of the block sees more
        # Queries of heads that share keys are rows of one product.
        scores = q_BHqE.unflatten(1, (num_shared, -1)).flatten(2, 3) @ k_BHET[..., :num_seen]
        scores = scores.unflatten(2, (-1, size)).flatten(1, 2)
        if mask is not None:
            last = mask.shape[2] - num_later
            of_block = mask[:, :, last - size : last, :num_seen]
            scores = scores.masked_fill(~of_block, -math.inf) if mask.dtype == torch.bool else scores + of_block
        later_qq = torch.ones(size, size, dtype=torch.bool, device=device).triu(1)
        scores[..., num_seen - size :].masked_fill_(later_qq, -math.inf)
        weights = scores.softmax(dim=-1)[..., far]
        sums_BHM[..., : weights.shape[-1]] += weights.sum(dim=2)
    return sums_BHM


@dataclass(frozen=True)
class AttentionState:
    """One layer's attention in a row, and how a loss depends on it. N: the queries of all heads that share keys."""

    q_BHNE: Tensor  # scaled
    out_BHNE: Tensor
    log_sum_BHN: Tensor  # of each softmax, fp32
    gradient_BHNE: Tensor  # of the loss by the outputs; [L, ...] of L losses


class Probes:
    """The attention of a differentiable pass over causal rows behind a prefix that all see."""

    def __init__(self) -> None:
        self.layers: list[tuple[Tensor, ...]] = []

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, mask: Any, scaling: float) -> Any:
        """Compute causal attention through which derivatives can be read; the mask is not used."""
        num_queries, num_keys = q.shape[2], k.shape[2]
        q_BHGQE = q.unflatten(1, (k.shape[1], -1)) * scaling
        later_QY = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q.device).triu(num_keys - num_queries + 1)
        scores = (q_BHGQE @ k[:, :, None].transpose(3, 4)).float().masked_fill(later_QY, -math.inf)
        log_sum = scores.logsumexp(dim=-1)
        out = (scores - log_sum[..., None]).exp().type_as(v) @ v[:, :, None]
        probe = torch.zeros_like(out, requires_grad=True)  # the derivative by it is that by the outputs
        self.layers.append((*(x.detach().flatten(2, 3) for x in (q_BHGQE, out, log_sum)), probe))
        return (out + probe).flatten(1, 2).transpose(1, 2).contiguous(), None

    def states(self, loss: Tensor) -> list[AttentionState]:
        """The state of each layer, with the derivatives of a loss of this pass, or of L losses, [L]."""
        *states, probes = zip(*self.layers, strict=True)
        gradients = [gradient.flatten(-3, -2) for gradient in derivatives(loss, probes)]
        return [AttentionState(*state) for state in zip(*states, gradients, strict=True)]


def derivatives(loss: Tensor, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The derivatives of a loss by tensors [...]; of L losses, [L], they are [L, ...]."""
    if loss.dim() == 0:
        return list(torch.autograd.grad(loss, inputs, materialize_grads=True))
    by_loss = [torch.autograd.grad(one, inputs, retain_graph=True, materialize_grads=True) for one in loss]
    return [torch.stack(of_input) for of_input in zip(*by_loss, strict=True)]


def first_order(states: list[AttentionState], far: KeysValues, *, attribution: Attribution) -> Tensor:
    """What each hidden token, with keys and values ``far``, would add to the loss, to first order; fp32 [B, M] or [L, B, M].

    With s the score of a query and a hidden token, v its value, o the query's output and G the derivative by o:

    - ``gradient``: the derivative by the token's gate, at gate 0, is the sum of exp(s - log_sum) G (v - o).
    - ``patching``: unmasking the token moves o by sigmoid(s - log_sum) (v - o) if nothing before moves; times G, that is
      attribution patching (Nanda 2023): exact in each softmax, first order in the rest of the model.
    """
    far_shape = (len(far[0][0]), far[0][0].shape[2])
    total = torch.zeros(*states[0].gradient_BHNE.shape[:-4], *far_shape, device=states[0].q_BHNE.device)
    for state, (k_BHME, v_BHME) in zip(states, far, strict=True):
        relative = (state.q_BHNE @ k_BHME.transpose(2, 3)).float() - state.log_sum_BHN[..., None]
        weight = relative.sigmoid() if attribution == "patching" else relative.exp()
        through = (state.gradient_BHNE @ v_BHME.transpose(2, 3)).float()
        lost = (state.gradient_BHNE.float() * state.out_BHNE.float()).sum(dim=-1)
        total += (weight * (through - lost[..., None])).sum(dim=(-3, -2)).to(total.device)
    return total
