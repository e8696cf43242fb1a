"""Rows of Llama-shaped models without computing anything twice. Three exact savings:

- In the last layer only the last token's query, output and MLP are computed.
- A candidate that sees only the anchor and itself has keys and values that depend on its ID and position alone. So the rows
  {j} + local tokens of a window differ in one entry, and j is never run among the local tokens.
- In the first layer queries, keys and values depend on ID and position alone. So these rows share the local tokens' attention
  among themselves and to the anchor; j adds one term to each softmax.
"""

from __future__ import annotations

import math
from typing import Any, Optional, cast

import torch
import torch.nn.functional as F
from torch import Tensor

from olmo_sparsity.model.causal_lm import CausalLM, repeated
from olmo_sparsity.model.taps import KeysValues

FAMILIES = ("Llama", "Olmo", "Olmo2", "Qwen2", "Qwen3", "Mistral")


class Compact:
    """The layers of a Llama-shaped model, run piece by piece."""

    def __init__(self, model: CausalLM):
        self.body, self.head = model.raw.model, model.raw.get_output_embeddings()
        self.layers = list(self.body.layers)

    @staticmethod
    def supports(model: CausalLM) -> bool:
        """Whether the layers are of a known family, and none sees a window only."""
        known = model.architecture in [f"{family}ForCausalLM" for family in FAMILIES]
        return known and not model.window and len(getattr(model.raw, "hf_device_map", {})) <= 1

    def logits(self, tokens_BY: Tensor, positions_BY: Tensor, prefix: Optional[KeysValues] = None) -> Tensor:
        """Logits [B, V] of causal rows behind a prefix that all see."""
        return self._last_logits(*self._embedded(tokens_BY, positions_BY), prefix)

    def singles(
        self, tokens_WT: Tensor, windows_R: Tensor, places_R: Tensor, local_len: int, num_anchors: int
    ) -> Tensor:
        """Logits [R, V] of rows of a window's anchor, the one candidate at a place of that window, and the local tokens."""
        length, first = tokens_WT.shape[1], self.layers[0]
        shared = torch.tensor([*range(num_anchors), *range(length - local_len, length)], device=tokens_WT.device)
        x_WYD, tables = self._embedded(tokens_WT[:, shared], shared[None])
        q, k, v = self._projected(first, x_WYD, tables, local_len)
        among_WLHE, log_sum = _attend_with_sums(q, k, v, first.self_attn.scaling)
        places_RP = torch.cat([shared[:num_anchors].expand(len(places_R), -1), places_R[:, None]], dim=1)
        entries = self._entries(tokens_WT[windows_R[:, None], places_RP], places_RP)
        k, v = (_per_query_head(of[:, :, -1:], q) for of in entries[0])
        # The candidate's share of each softmax: exp(s) / (exp(s) + exp(log_sum)).
        scores_RHL = _scores(q[windows_R], k, first.self_attn.scaling)[..., 0]
        share_RHL = torch.sigmoid(scores_RHL - log_sum[windows_R]).type_as(v)
        out_RLHE = torch.lerp(among_WLHE[windows_R], v.transpose(1, 2), share_RHL.transpose(1, 2)[..., None])
        x_RLD = self._after_attention(first, x_WYD[windows_R, num_anchors:], out_RLHE)
        return self._last_logits(x_RLD, tuple(of[:, num_anchors:] for of in tables), entries, from_layer=1)

    def _entries(self, tokens_RP: Tensor, positions_RP: Tensor) -> KeysValues:
        """Keys and values of causal rows in each layer, [R, H, P, E]."""
        (x_RPD, tables), found = self._embedded(tokens_RP, positions_RP), []
        for layer in self.layers:
            q, k, v = self._projected(layer, x_RPD, tables, x_RPD.shape[1])
            found.append((k, v))
            if layer is not self.layers[-1]:
                x_RPD = self._after_attention(layer, x_RPD, _attend(q, k, v, layer.self_attn.scaling))
        return found

    def _last_logits(self, x_RYD: Tensor, tables: Any, prefix: Optional[KeysValues], *, from_layer: int = 0) -> Tensor:
        for number, layer in list(enumerate(self.layers))[from_layer:]:
            num_queries = 1 if layer is self.layers[-1] else x_RYD.shape[1]
            q, k, v = self._projected(layer, x_RYD, tables, num_queries)
            if prefix is not None:
                k, v = (torch.cat(both, dim=2) for both in zip(prefix[number], (k, v), strict=True))
            x_RYD = self._after_attention(layer, x_RYD[:, -num_queries:], _attend(q, k, v, layer.self_attn.scaling))
        return cast(Tensor, self.head(self.body.norm(x_RYD[:, -1])))

    def _embedded(self, tokens_RY: Tensor, positions_RY: Tensor) -> tuple[Tensor, Any]:
        """The states before the first layer, and cosines and sines [R, Y, E]."""
        x_RYD = self.body.embed_tokens(tokens_RY)
        return x_RYD, self.body.rotary_emb(x_RYD, position_ids=positions_RY)

    def _projected(self, layer: Any, x_RYD: Tensor, tables: Any, num_queries: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries of the last tokens, keys and values of all, [R, heads, ..., E] each."""
        normed, (cos, sin) = layer.input_layernorm(x_RYD) if hasattr(layer, "input_layernorm") else x_RYD, tables
        inputs = {"q": normed[:, -num_queries:], "k": normed, "v": normed}
        q, k, v = (_heads(layer.self_attn, states, name) for name, states in inputs.items())
        return _rotated(q, cos[:, -num_queries:], sin[:, -num_queries:]), _rotated(k, cos, sin), v

    def _after_attention(self, layer: Any, x_RYD: Tensor, out_RYHE: Tensor) -> Tensor:
        """The states behind a layer, from those before it and the outputs of its attention."""
        out_RYD = layer.self_attn.o_proj(out_RYHE.flatten(-2))
        if hasattr(layer, "post_feedforward_layernorm"):  # norms behind, as in OLMo 2
            x_RYD = x_RYD + layer.post_attention_layernorm(out_RYD)
            return x_RYD + layer.post_feedforward_layernorm(layer.mlp(x_RYD))
        x_RYD = x_RYD + out_RYD
        return x_RYD + layer.mlp(layer.post_attention_layernorm(x_RYD))


def _heads(attention: Any, x_RYD: Tensor, name: str) -> Tensor:
    """Queries, keys or values before their rotation, [R, heads, Y, E]."""
    x_RYD = getattr(attention, f"{name}_proj")(x_RYD)
    clip, norm = getattr(attention.config, "clip_qkv", None), getattr(attention, f"{name}_norm", None)
    x_RYD = x_RYD if clip is None else x_RYD.clamp(-clip, clip)
    if norm is not None and norm.weight.shape[0] == x_RYD.shape[-1]:  # over all heads together, as in OLMo 2
        x_RYD, norm = norm(x_RYD), None
    x_RYHE = x_RYD.unflatten(-1, (-1, attention.head_dim))
    return (x_RYHE if norm is None else norm(x_RYHE)).transpose(1, 2)


def _rotated(x_RHYE: Tensor, cos_RYE: Tensor, sin_RYE: Tensor) -> Tensor:
    first, second = x_RHYE.chunk(2, dim=-1)
    return (x_RHYE * cos_RYE[:, None] + torch.cat([-second, first], dim=-1) * sin_RYE[:, None]).type_as(x_RHYE)


def _per_query_head(x_RHYE: Tensor, q: Tensor) -> Tensor:
    return repeated(x_RHYE, q.shape[1] // x_RHYE.shape[1])


def _scores(q: Tensor, k: Tensor, scaling: float) -> Tensor:
    return (q @ _per_query_head(k, q).transpose(2, 3)).float() * scaling


def _attend(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> Tensor:
    """Causal attention of the last Q of Y tokens, [R, Q, heads, E]."""
    k, v = _per_query_head(k, q), _per_query_head(v, q)
    num_queries, num_keys, mask = q.shape[2], k.shape[2], None
    if num_queries == 1 and q.device.type == "cpu":  # too little work for the fused kernel
        weights = ((k @ q.transpose(2, 3))[..., 0].float() * scaling).softmax(dim=-1).type_as(v)
        return (weights[:, :, None] @ v).transpose(1, 2)
    if num_queries not in (1, num_keys):
        mask = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q.device).tril(num_keys - num_queries)
    causal = num_queries == num_keys
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal, scale=scaling).transpose(1, 2)


def _attend_with_sums(q: Tensor, k: Tensor, v: Tensor, scaling: float) -> tuple[Tensor, Tensor]:
    """Causal attention of the last Q of Y tokens, [R, Q, heads, E]; the log of each softmax's sum, fp32 [R, heads, Q]."""
    num_queries, num_keys = q.shape[2], k.shape[2]
    later = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q.device).triu(num_keys - num_queries + 1)
    scores = _scores(q, k, scaling).masked_fill(later, -math.inf)
    log_sum = scores.logsumexp(dim=-1)
    weights = (scores - log_sum[..., None]).exp().type_as(v)
    return (weights @ _per_query_head(v, q)).transpose(1, 2), log_sum
