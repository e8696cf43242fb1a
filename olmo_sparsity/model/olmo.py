"""``olmo.model.OLMo`` with position IDs; runs are trained with it.

Letters of shapes are listed in the docstring of ``olmo_sparsity``.
"""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path
from typing import Optional

import torch
import torch.nn.functional as F
from olmo import config as olmo_config
from olmo.model import BufferCache, OLMo, RotaryEmbedding
from torch import Tensor, nn

from olmo_sparsity.config import Config
from olmo_sparsity.model.checkpoint import read_model


class EmbeddingAtPositions(nn.Embedding):
    """OLMo's learned embedding of absolute positions, at given position IDs instead of 0 .. T-1."""

    positions_BT: Tensor  # of the current forward pass

    def forward(self, input: Tensor) -> Tensor:
        """Embeddings [B, T, D] at the given position IDs; ``input`` counts from 0."""
        return super().forward(self.positions_BT)


class RotaryAtPositions(RotaryEmbedding):
    """OLMo's rotary embedding, at given position IDs instead of 0 .. T-1."""

    tables: dict[str, Tensor]  # sines and cosines of the current forward pass, fp32 [B, 1, T, E]; all layers share them

    def forward(self, q_BHTE: Tensor, k_BHTE: Tensor) -> tuple[Tensor, Tensor]:
        """Rotated queries and keys, computed in fp32, as in OLMo (``rope_full_precision``)."""
        sin, cos = self.tables["sin"], self.tables["cos"]
        with torch.autocast(q_BHTE.device.type, enabled=False):
            q, k = (self.apply_rotary_pos_emb(sin, cos, x.float()).type_as(x) for x in (q_BHTE, k_BHTE))
            return q, k


class OLMoWithPositions(OLMo):
    """An OLMo model that takes position IDs, with the parameters of ``olmo.model.OLMo`` under the same names.

    Positions are rotary (``config.rope``), or a learned embedding of absolute positions that is added to that of the tokens. To
    OLMo a model without positions (NoPE) is one with biases of slope 0: ``config.alibi``, and an infinite ``alibi_bias_max``.
    With positions 0 .. T-1 its logits and gradients equal OLMo's, bit for bit. Position IDs must lie below
    ``config.max_sequence_length``. Tokens and positions are int64 [B, T]; the V of logits includes the padding of the embedding.
    """

    def __init__(self, config: olmo_config.ModelConfig, init_params: bool = True):
        assert config.rope_full_precision and config.block_group_size == 1
        # With ``alibi`` OLMo would keep biases of all pairs of positions. They add no weights, and neither do rotary positions.
        super().__init__(dataclasses.replace(config, alibi=False, rope=True) if config.alibi else config, init_params)
        self.config, self._has_embedding = config, not (config.rope or config.alibi)
        self.vocab_size = config.vocab_size  # without the padding of the embedding
        self._tables, cache = dict[str, Tensor](), BufferCache()
        for block in self.transformer.blocks:
            block.config = config
            if config.rope:
                block.rotary_emb = RotaryAtPositions(config, cache)
                block.rotary_emb.tables = self._tables
        if self._has_embedding:
            self.transformer.wpe = EmbeddingAtPositions.from_pretrained(self.transformer.wpe.weight, freeze=False)
        sin, cos = RotaryEmbedding(config, cache).get_rotary_embedding(config.max_sequence_length, torch.device("cpu"))
        # Buffers move to a device with the model. They are not persistent: the state dict stays OLMo's.
        self.register_buffer("_sin", sin[0, 0], persistent=False)
        self.register_buffer("_cos", cos[0, 0], persistent=False)

    @property
    def output_weight(self) -> Tensor:
        """The output matrix, [V, D]."""
        weight: Tensor = (self.transformer.wte if self.config.weight_tying else self.transformer.ff_out).weight
        return weight

    def forward(self, tokens_BT: Tensor, positions_BT: Tensor, *, last_logits_only: bool = False) -> Tensor:
        """Logits [B, T, V] of the next token, or [B, 1, V] behind the last; causal attention."""
        bias = self._set_positions(positions_BT)
        return super().forward(tokens_BT, attention_bias=bias, last_logits_only=last_logits_only).logits

    def logits_and_position_logits(
        self, tokens_BT: Tensor, positions_BT: Tensor, *, last_only: bool = False
    ) -> tuple[Tensor, Tensor]:
        """Logits of the next token, [B, T, V], and, by the learned embedding, of its position ID; with ``last_only`` T is 1."""
        self._set_positions(positions_BT)
        output = super().forward(tokens_BT, last_logits_only=last_only, output_hidden_states=True)
        return output.logits, F.linear(output.hidden_states[-1], self.transformer.wpe.weight)

    def logits_at(self, tokens_BT: Tensor, positions_BT: Tensor, is_chosen_BT: Tensor) -> Tensor:
        """Logits of the next token behind chosen tokens only, in the order of the rows, [chosen tokens, V]."""
        bias, x_BTD = self._set_positions(positions_BT), self.transformer.wte(tokens_BT)
        if self._has_embedding:
            x_BTD = x_BTD + self.transformer.wpe(tokens_BT)
        for block in self.transformer.blocks:
            x_BTD, _ = block(x_BTD, attention_bias=bias)
        return F.linear(self.transformer.ln_f(x_BTD[is_chosen_BT]), self.output_weight)

    def _set_positions(self, positions_BT: Tensor) -> Optional[Tensor]:
        """Set the position IDs of a forward pass. Return a causal bias for attention where OLMo would add those of ALiBi."""
        if self._has_embedding:
            self.transformer.wpe.positions_BT = positions_BT
        elif self.config.rope:
            self._tables["sin"] = self._sin[positions_BT].unsqueeze(1)
            self._tables["cos"] = self._cos[positions_BT].unsqueeze(1)
        else:
            num_tokens, device = positions_BT.shape[1], positions_BT.device
            later_TT = torch.ones(num_tokens, num_tokens, dtype=torch.bool, device=device).triu(1)
            bias_TT = torch.zeros(later_TT.shape, device=device).masked_fill(later_TT, torch.finfo(torch.float).min)
            return bias_TT[None, None]
        return None


def olmo_model_config(config: Config, *, vocab_size: int, eos_id: int) -> olmo_config.ModelConfig:
    """OLMo's configuration of the model that ``config`` describes; the rest are OLMo's defaults: SwiGLU, full precision."""
    model = config.model
    same = "d_model n_heads n_layers mlp_ratio attention_layer_norm weight_tying init_std"
    has_none, is_rms = model.position_embedding == "none", model.layer_norm_type == "rms"
    return olmo_config.ModelConfig(
        **{name: getattr(model, name) for name in same.split()},
        layer_norm_type=olmo_config.LayerNormType(model.layer_norm_type),
        layer_norm_with_affine=is_rms, attention_layer_norm_with_affine=is_rms,
        vocab_size=vocab_size, embedding_size=math.ceil(vocab_size / 128) * 128, eos_token_id=eos_id, pad_token_id=eos_id,
        max_sequence_length=config.num_positions,
        rope=model.position_embedding == "rope",
        alibi=has_none,
        alibi_bias_max=math.inf if has_none else 8.0,
        include_bias=False, bias_for_layer_norm=False,
        attention_dropout=0.0, residual_dropout=0.0, embedding_dropout=0.0, init_device="cpu",
    )  # fmt: skip


def build_model(config: olmo_config.ModelConfig, seed: int) -> OLMoWithPositions:
    """A newly initialized model on the CPU. Its weights depend on ``seed`` alone; the global generator is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return OLMoWithPositions(config)


def load_model(checkpoint: Path, device: torch.device) -> OLMoWithPositions:
    """The model of a checkpoint, which is verified, in evaluation mode, without gradients."""
    config, weights = read_model(checkpoint)
    model = OLMoWithPositions(olmo_config.ModelConfig.new(**config), init_params=False)
    model.load_state_dict(weights)
    return model.to(device).eval().requires_grad_(False)
