"""``olmo.model.OLMo`` with position IDs.

Legend: B rows, T tokens, V vocabulary, H heads, D width of a head.

To the rest of the package a model is two calls, and two more that the selectors ``gradient`` and ``attention`` need:

    last_logits(tokens_BT, positions_BT) -> logits_BV                      plain causal attention; the compact path
    last_logits_masked(tokens_BT, positions_BT, visible_BT) -> logits_BV   hidden keys; the reference path
    last_logits_gated(tokens_BT, positions_BT, log_gate_BT) -> logits_BV   keys weighted by a gate, differentiable
    last_attention(tokens_BT, positions_BT) -> attention_BT                of the last token, over heads and layers
"""

from __future__ import annotations

import copy
import math
from typing import Any, Optional, Protocol

import torch
from olmo import config as olmo_config
from olmo.model import BufferCache, OLMo, RotaryEmbedding

from olmo_sparsity.config import Config


class CausalModel(Protocol):
    """What the losses need of a model."""

    def last_logits(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor: ...

    def last_logits_masked(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, visible_BT: torch.Tensor
    ) -> torch.Tensor: ...

    def last_logits_gated(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, log_gate_BT: torch.Tensor
    ) -> torch.Tensor: ...

    def last_attention(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor: ...


class _Rotation:
    """Sines and cosines of the current forward's positions, fp32 [B, 1, T, D]; one object for all layers."""

    sin: Optional[torch.Tensor] = None
    cos: Optional[torch.Tensor] = None


class RotaryAtPositions(RotaryEmbedding):
    """OLMo's rotary embedding, at given position IDs instead of 0 .. T-1."""

    def __init__(self, config: olmo_config.ModelConfig, cache: BufferCache, rotation: _Rotation):
        super().__init__(config, cache)
        self._rotation = rotation

    def forward(self, q: torch.Tensor, k: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """q, k: [B, H, T, D] -> the same, rotated; computed in fp32, as OLMo does (``rope_full_precision``)."""
        sin, cos = self._rotation.sin, self._rotation.cos
        assert sin is not None and cos is not None, "positions are set by OLMoWithPositions.forward"
        with torch.autocast(q.device.type, enabled=False):
            return (
                self.apply_rotary_pos_emb(sin, cos, q.float()).type_as(q),
                self.apply_rotary_pos_emb(sin, cos, k.float()).type_as(k),
            )


class OLMoWithPositions(OLMo):
    """An OLMo whose tokens carry position IDs. Parameters and their names are those of ``olmo.model.OLMo``.

    With positions 0 .. T-1 it computes what OLMo computes, bit for bit. Position IDs must lie below
    ``config.max_sequence_length``.
    """

    def __init__(self, config: olmo_config.ModelConfig, init_params: bool = True):
        super().__init__(config, init_params)
        assert config.rope and config.rope_full_precision and config.block_group_size == 1
        self._rotation = _Rotation()
        cache = BufferCache()
        for block in self.transformer.blocks:
            block.rotary_emb = RotaryAtPositions(config, cache, self._rotation)
        table = RotaryEmbedding(config, cache)
        sin, cos = table.get_rotary_embedding(config.max_sequence_length, torch.device("cpu"))
        # Buffers move with the model; not persistent, so that the state dict stays OLMo's.
        self.register_buffer("_sin", sin[0, 0], persistent=False)
        self.register_buffer("_cos", cos[0, 0], persistent=False)

    def forward(
        self,
        tokens_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        attention_bias: Optional[torch.Tensor] = None,
        last_logits_only: bool = False,
    ) -> torch.Tensor:
        """Logits [B, T, V], or [B, 1, V] with ``last_logits_only``; V counts the embedding's padding entries too."""
        self._rotation.sin = self._sin[positions_BT].unsqueeze(1)
        self._rotation.cos = self._cos[positions_BT].unsqueeze(1)
        output = super().forward(tokens_BT, attention_bias=attention_bias, last_logits_only=last_logits_only)
        return output.logits

    def last_logits(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        """Logits [B, V] after the last token, every token attending to all before it."""
        return self(tokens_BT, positions_BT, last_logits_only=True)[:, 0, : self.config.vocab_size]

    def last_logits_masked(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, visible_BT: torch.Tensor
    ) -> torch.Tensor:
        """Logits [B, V] after the last token, no token attending to one that ``visible_BT`` (bool) hides.

        A token always attends to itself: a row with nothing to attend to would attend to everything. What a hidden
        token makes of itself reaches no visible one.
        """
        length = tokens_BT.shape[1]
        causal_TT = torch.ones(length, length, dtype=torch.bool, device=tokens_BT.device).tril()
        itself_TT = torch.eye(length, dtype=torch.bool, device=tokens_BT.device)
        allowed = (causal_TT & visible_BT[:, None, :]) | itself_TT
        logits = self(tokens_BT, positions_BT, attention_bias=allowed[:, None], last_logits_only=True)
        return logits[:, 0, : self.config.vocab_size]

    def last_logits_gated(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, log_gate_BT: torch.Tensor
    ) -> torch.Tensor:
        """Logits [B, V] after the last token, the weight with which others attend to token t being multiplied, before
        it is normalised, by exp(log_gate_BT[:, t]); of itself a token's weight is never changed. Differentiable with
        respect to the gate."""
        length = tokens_BT.shape[1]
        later_TT = torch.ones(length, length, dtype=torch.bool, device=tokens_BT.device).triu(1)
        itself_TT = torch.eye(length, dtype=torch.bool, device=tokens_BT.device)
        bias = log_gate_BT[:, None, :].masked_fill(itself_TT, 0.0).masked_fill(later_TT, torch.finfo(torch.float).min)
        logits = self(tokens_BT, positions_BT, attention_bias=bias[:, None], last_logits_only=True)
        return logits[:, 0, : self.config.vocab_size]

    def last_attention(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        """Attention that the last token pays to every token under plain causal attention, averaged over heads and
        layers; fp32 [B, T], each row sums to 1."""
        attended: list[torch.Tensor] = []

        def keep(_module: Any, _arguments: Any, rotated: tuple[torch.Tensor, torch.Tensor]) -> None:
            q_BHTD, k_BHTD = rotated
            scores_BHT = (k_BHTD.float() @ q_BHTD[:, :, -1, :, None].float())[..., 0] / math.sqrt(q_BHTD.shape[-1])
            attended.append(scores_BHT.softmax(dim=-1).mean(dim=1))

        # Fused attention gives no weights; they follow from the queries and keys that the rotary embedding hands on.
        hooks = [block.rotary_emb.register_forward_hook(keep) for block in self.transformer.blocks]
        try:
            self(tokens_BT, positions_BT, last_logits_only=True)
        finally:
            for hook in hooks:
                hook.remove()
        return torch.stack(attended).mean(dim=0)


def olmo_model_config(config: Config, vocab_size: int, eos_id: int) -> olmo_config.ModelConfig:
    """OLMo's own configuration of the model that ``config`` describes."""
    model = config.model
    return olmo_config.ModelConfig(
        d_model=model.d_model,
        n_heads=model.n_heads,
        n_layers=model.n_layers,
        mlp_ratio=model.mlp_ratio,
        attention_layer_norm=model.attention_layer_norm,
        attention_layer_norm_with_affine=model.layer_norm_with_affine,
        layer_norm_type=olmo_config.LayerNormType(model.layer_norm_type),
        layer_norm_with_affine=model.layer_norm_with_affine,
        rope_theta=model.rope_theta,
        weight_tying=model.weight_tying,
        init_std=model.init_std,
        vocab_size=vocab_size,
        embedding_size=math.ceil(vocab_size / 128) * 128,
        eos_token_id=eos_id,
        pad_token_id=eos_id,
        max_sequence_length=config.max_position,
        rope=True,
        rope_full_precision=True,
        activation_type=olmo_config.ActivationType.swiglu,
        block_type=olmo_config.BlockType.sequential,
        init_fn=olmo_config.InitFnType.normal,
        include_bias=False,
        bias_for_layer_norm=False,
        attention_dropout=0.0,
        residual_dropout=0.0,
        embedding_dropout=0.0,
        init_device="cpu",
    )


def build_model(config: olmo_config.ModelConfig, seed: int) -> OLMoWithPositions:
    """A fresh model on the CPU; its weights depend on ``seed`` alone (the global generator is left as it was)."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return OLMoWithPositions(config)


def with_weights_in(model: OLMoWithPositions, dtype: torch.dtype) -> OLMoWithPositions:
    """The model itself in fp32, else a copy whose weights have the dtype; rotary tables stay in fp32."""
    if dtype == torch.float32:
        return model
    copied = copy.deepcopy(model).to(dtype)
    copied._sin, copied._cos = model._sin, model._cos
    return copied
