"""``olmo.model.OLMo`` with position IDs.

The suffix of a tensor's name is its shape; the letters are listed in the docstring of ``olmo_sparsity``.
"""

from __future__ import annotations

import copy
import dataclasses
import math
from typing import Optional

import torch
import torch.nn.functional as F
from olmo import config as olmo_config
from olmo.model import BufferCache, OLMo, RotaryEmbedding
from torch import nn

from olmo_sparsity.config import Config
from olmo_sparsity.model.attribution import AttentionProbes, AttentionState, LossOfLogits, requiring_grad
from olmo_sparsity.model.causal_model import KeysValues
from olmo_sparsity.model.observation import Observer
from olmo_sparsity.model.olmo_layers import (
    LayerKeysValues,
    PositionTables,
    attend,
    attention_of_last,
    mlp,
    queries_keys_values,
)


class _Rotation:
    """Sines and cosines at the positions of the current forward pass, fp32 [B, 1, T, E]; all layers share one object."""

    sin_B1TE: Optional[torch.Tensor] = None
    cos_B1TE: Optional[torch.Tensor] = None


class EmbeddingAtPositions(nn.Embedding):
    """OLMo's learned embedding of absolute positions, at given position IDs instead of 0 .. T-1."""

    positions_BT: Optional[torch.Tensor] = None  # of the current forward pass

    def forward(self, input: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [B, T, D] at the given position IDs; ``input``, which counts from 0, is not used."""
        assert self.positions_BT is not None, "OLMoWithPositions.forward sets the positions"
        return super().forward(self.positions_BT)


class RotaryAtPositions(RotaryEmbedding):
    """OLMo's rotary embedding, at given position IDs instead of 0 .. T-1."""

    def __init__(self, config: olmo_config.ModelConfig, cache: BufferCache, *, rotation: _Rotation):
        super().__init__(config, cache)
        self._rotation = rotation

    def forward(self, q_BHTE: torch.Tensor, k_BHTE: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return rotated queries and keys, computed in fp32, as in OLMo (``rope_full_precision``)."""
        sin_B1TE, cos_B1TE = self._rotation.sin_B1TE, self._rotation.cos_B1TE
        assert sin_B1TE is not None and cos_B1TE is not None, "OLMoWithPositions.forward sets the positions"
        with torch.autocast(q_BHTE.device.type, enabled=False):
            return (
                self.apply_rotary_pos_emb(sin_B1TE, cos_B1TE, q_BHTE.float()).type_as(q_BHTE),
                self.apply_rotary_pos_emb(sin_B1TE, cos_B1TE, k_BHTE.float()).type_as(k_BHTE),
            )


class OLMoWithPositions(OLMo):
    """An OLMo model that takes position IDs. It has the parameters of ``olmo.model.OLMo``, under the same names.

    Positions are rotary (``config.rope``), or a learned embedding of absolute positions that is added to that of the tokens. To
    OLMo a model without positions (NoPE) is one with biases of slope 0: ``config.alibi``, and an infinite ``alibi_bias_max``.
    With positions 0 .. T-1 its logits and gradients equal OLMo's, bit for bit. Position IDs must lie below
    ``config.max_sequence_length``. Tokens and positions are int64 [B, T].
    """

    def __init__(self, config: olmo_config.ModelConfig, init_params: bool = True):
        assert config.rope_full_precision and config.block_group_size == 1
        # With ``alibi`` OLMo would keep biases of all pairs of positions. They add no weights, and neither do rotary positions.
        super().__init__(dataclasses.replace(config, alibi=False, rope=True) if config.alibi else config, init_params)
        self.config = config
        self._rotation = _Rotation()
        cache = BufferCache()
        for block in self.transformer.blocks:
            block.config = config
            if config.rope:
                block.rotary_emb = RotaryAtPositions(config, cache, rotation=self._rotation)
        if self._has_embedding:
            self.transformer.wpe = EmbeddingAtPositions.from_pretrained(self.transformer.wpe.weight, freeze=False)
        table = RotaryEmbedding(config, cache)
        sin, cos = table.get_rotary_embedding(config.max_sequence_length, torch.device("cpu"))
        if not config.rope:  # nothing is rotated
            sin, cos = torch.zeros_like(sin), torch.ones_like(cos)
        # Buffers move to a device with the model. They are not persistent: the state dict stays OLMo's.
        self.register_buffer("_sin", sin[0, 0], persistent=False)
        self.register_buffer("_cos", cos[0, 0], persistent=False)

    @property
    def _has_embedding(self) -> bool:
        """Whether positions are a learned embedding."""
        return not (self.config.rope or self.config.alibi)

    def forward(
        self,
        tokens_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        attention_bias: Optional[torch.Tensor] = None,
        last_logits_only: bool = False,
    ) -> torch.Tensor:
        """Return logits [B, T, V], or [B, 1, V] with ``last_logits_only``; here V includes the padding of the embedding.

        Args:
            tokens_BT: token IDs.
            positions_BT: their position IDs.
            attention_bias: bool (True: may attend) or float (added to the scores), [B, 1, T, T]; None: causal attention.
            last_logits_only: skip the output projection of all tokens but the last.
        """
        self._set_positions(positions_BT)
        if attention_bias is None:
            attention_bias = self._causal_bias(positions_BT)
        output = super().forward(tokens_BT, attention_bias=attention_bias, last_logits_only=last_logits_only)
        return output.logits

    def logits_and_position_logits(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, *, last_only: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits of the next token, [B, T, V], and of its position ID, [B, T, number of IDs]; causal attention.

        The output matrix of position IDs is the embedding of the positions, so the model needs a learned one.

        Args:
            tokens_BT: token IDs.
            positions_BT: their position IDs.
            last_only: of the last token only; then T is 1.
        """
        self._set_positions(positions_BT)
        output = super().forward(tokens_BT, last_logits_only=last_only, output_hidden_states=True)
        return output.logits, F.linear(output.hidden_states[-1], self.transformer.wpe.weight)

    def logits_at(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, is_chosen_BT: torch.Tensor
    ) -> torch.Tensor:
        """Return the logits of the next token behind chosen tokens only, [chosen tokens, V]; V with padding; causal attention.

        Args:
            tokens_BT: token IDs.
            positions_BT: their position IDs.
            is_chosen_BT: bool, the tokens; their logits have the order of the rows.
        """
        self._set_positions(positions_BT)
        x_BTD, bias = self.embed(tokens_BT, positions_BT), self._causal_bias(positions_BT)
        for block in self.transformer.blocks:
            x_BTD, _ = block(x_BTD, attention_bias=bias)
        return F.linear(self.transformer.ln_f(x_BTD[is_chosen_BT]), self.output_weight)

    @property
    def output_weight(self) -> torch.Tensor:
        """The output matrix, [V, D], with the padding of the embedding."""
        weight: torch.Tensor = (
            self.transformer.wte.weight if self.config.weight_tying else self.transformer.ff_out.weight
        )
        return weight

    def embed(self, tokens: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return what the first layer reads, [..., D], of tokens at position IDs of a shape that broadcasts to theirs."""
        embedded = self.transformer.wte(tokens)
        return embedded + self.transformer.wpe.weight[positions] if self._has_embedding else embedded

    def _set_positions(self, positions_BT: torch.Tensor) -> None:
        """Set the position IDs of a forward pass."""
        if self._has_embedding:
            self.transformer.wpe.positions_BT = positions_BT
        if not self.config.rope:
            return
        self._rotation.sin_B1TE = self._sin[positions_BT].unsqueeze(1)
        self._rotation.cos_B1TE = self._cos[positions_BT].unsqueeze(1)

    def _causal_bias(self, positions_BT: torch.Tensor) -> Optional[torch.Tensor]:
        """Return what is added to attention scores so that attention is causal; None: nothing, it is.

        Without positions OLMo would add, and keep, the biases of ALiBi.
        """
        if not self.config.alibi:
            return None
        num_tokens, device = positions_BT.shape[1], positions_BT.device
        allowed_11TT = torch.ones(1, 1, num_tokens, num_tokens, dtype=torch.bool, device=device).tril()
        never = torch.finfo(torch.float).min
        return torch.zeros(allowed_11TT.shape, device=device).masked_fill(~allowed_11TT, never)

    @property
    def vocab_size(self) -> int:
        """V, the width of the logits, without the padding of the embedding."""
        return self.config.vocab_size

    @property
    def max_position(self) -> int:
        """The number of position IDs."""
        return self.config.max_sequence_length

    def last_logits(
        self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, *, bias_BTT: Optional[torch.Tensor] = None
    ) -> torch.Tensor:
        """Return the logits [B, V] of the last token, under causal attention or a bias; see ``CausalModel``.

        With a bias, every token must be allowed to attend to itself: torch lets a token that may attend to nothing attend to
        everything.
        """
        bias_B1TT = None if bias_BTT is None else bias_BTT[:, None]
        with requiring_grad(self.transformer.wte, bias_BTT):
            logits_B1V = self(tokens_BT, positions_BT, attention_bias=bias_B1TT, last_logits_only=True)
        return logits_B1V[:, 0, : self.vocab_size]

    def keys_values(
        self, tokens_BP: torch.Tensor, positions_BP: torch.Tensor, *, allowed_BPP: Optional[torch.Tensor] = None
    ) -> KeysValues:
        """Return the keys and values of all tokens; of each layer, [B, H, P, E]; see ``CausalModel``."""
        layers = self.all_keys_values(tokens_BP, positions_RP=positions_BP, allowed_RPP=allowed_BPP)
        return [(k_BPHE.transpose(1, 2), v_BPHE.transpose(1, 2)) for k_BPHE, v_BPHE in layers]

    def own_last_logits(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
        """Return the logits [B, V] of the last token of whole texts; no layer has a window."""
        return self.last_logits(tokens_BT, positions_BT)

    def last_logits_after(
        self,
        tokens_BY: torch.Tensor,
        positions_BY: torch.Tensor,
        *,
        prefix: KeysValues,
        prefix_positions_BP: Optional[torch.Tensor] = None,
    ) -> torch.Tensor:
        """Return the logits [B, V] of the last token, fp32; every token sees all of the prefix and those before it."""
        return self._last_logits(tokens_BY, positions_BY, prefix=prefix)

    def attention_states(
        self,
        tokens_BY: torch.Tensor,
        positions_BY: torch.Tensor,
        *,
        prefix: Optional[KeysValues],
        loss: LossOfLogits,
    ) -> list[AttentionState]:
        """Return the attention of every layer of rows, and its derivatives; see ``CausalModel``."""
        blocks, tables = self.transformer.blocks, self.position_tables(positions_BY)
        x_BYD, probes = self.embed(tokens_BY, positions_BY), AttentionProbes()
        with torch.enable_grad():
            for layer, block in enumerate(blocks):
                num_queries = 1 if block is blocks[-1] else x_BYD.shape[1]
                q_BQHE, k_BYHE, v_BYHE = queries_keys_values(block, x_BYD, tables=tables, num_queries=num_queries)
                q_BHQE, k_BHYE, v_BHYE = (x.transpose(1, 2) for x in (q_BQHE, k_BYHE, v_BYHE))
                if prefix is not None:
                    k_BHYE, v_BHYE = torch.cat([prefix[layer][0], k_BHYE], 2), torch.cat([prefix[layer][1], v_BHYE], 2)
                out_BHQE = probes.attend(q_BHQE, k_BHYE, v_BHYE, scaling=q_BHQE.shape[-1] ** -0.5)
                x_BYD = x_BYD[:, -num_queries:] + block.attn_out(out_BHQE.transpose(1, 2).flatten(2))
                x_BYD = x_BYD + mlp(block, x_BYD)
            return probes.states(loss(self.logits_of(self.transformer.ln_f(x_BYD[:, -1]))))

    @torch.no_grad()
    def observe(self, tokens_BT: torch.Tensor, positions_BT: torch.Tensor, *, observer: Observer) -> None:
        """Run whole windows under causal attention, and let the observer read every layer; see ``CausalModel``."""
        x_BTD, tables = self.embed(tokens_BT, positions_BT), self.position_tables(positions_BT)
        for block in self.transformer.blocks:
            observer.states(x_BTD)
            q_BTHE, k_BTHE, v_BTHE = queries_keys_values(block, x_BTD, tables=tables, num_queries=x_BTD.shape[1])
            q_BHTE, k_BHTE, v_BHTE = (x.transpose(1, 2) for x in (q_BTHE, k_BTHE, v_BTHE))
            observer.layer(q_BHTE, k_BHTE, v_BHTE, scaling=q_BHTE.shape[-1] ** -0.5)
            x_BTD = x_BTD + block.attn_out(attend(q_BTHE, k_BTHE, v_RYHE=v_BTHE))
            x_BTD = x_BTD + mlp(block, x_BTD)
        observer.states(self.transformer.ln_f(x_BTD))

    def in_dtype(self, dtype: torch.dtype) -> OLMoWithPositions:
        """Return a copy with weights of another dtype; the model itself if it has it. Rotary tables stay in fp32."""
        if self.transformer.wte.weight.dtype == dtype:
            return self
        copied = copy.deepcopy(self).to(dtype)
        copied._sin, copied._cos = self._sin, self._cos
        return copied

    def last_logits_and_attention(
        self,
        tokens_BT: torch.Tensor,
        positions_BT: torch.Tensor,
        *,
        prefix: Optional[KeysValues] = None,
        prefix_positions_BP: Optional[torch.Tensor] = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the logits [B, V] and the attention [B, T] of the last token, fp32, in one pass; see ``CausalModel``.

        Fused attention kernels return no weights: those of the last token are computed from its queries and the keys. They
        sum to 1.
        """
        layers_BT: list[torch.Tensor] = []
        logits_BV = self._last_logits(tokens_BT, positions_BT, prefix=prefix, attention=layers_BT)
        return logits_BV, torch.stack(layers_BT).mean(dim=0)

    def _last_logits(
        self,
        tokens_BY: torch.Tensor,
        positions_BY: torch.Tensor,
        *,
        prefix: Optional[KeysValues],
        attention: Optional[list[torch.Tensor]] = None,
    ) -> torch.Tensor:
        """Return the logits [B, V] of the last token, fp32, and append its attention in each layer, if asked for."""
        layers = None
        if prefix is not None:
            layers = [(k_BHPE.transpose(1, 2), v_BHPE.transpose(1, 2)) for k_BHPE, v_BHPE in prefix]
        x_BYD, tables = self.embed(tokens_BY, positions_BY), self.position_tables(positions_BY)
        return self.logits_of(self.last_hidden(x_BYD, tables=tables, prefix=layers, attention=attention))

    def position_tables(self, positions_RY: torch.Tensor) -> PositionTables:
        """Return the tables at position IDs (int64), of half a head: both halves turn by the same angles."""
        half = self._sin.shape[-1] // 2
        return PositionTables(self._sin[positions_RY, None, :half], self._cos[positions_RY, None, :half])

    def last_hidden(
        self,
        x_RYD: torch.Tensor,
        *,
        tables: PositionTables,
        prefix: Optional[list[LayerKeysValues]] = None,
        from_layer: int = 0,
        attention: Optional[list[torch.Tensor]] = None,
    ) -> torch.Tensor:
        """Return the last token's state after the last layer and its norm, [R, D].

        Args:
            x_RYD: states of the computed tokens before ``from_layer``.
            tables: of the computed tokens.
            prefix: keys and values in every layer of the P tokens before them.
            from_layer: the first layer to run.
            attention: of each layer that runs, the attention of the last token is appended, the mean of heads, fp32 [R, P + Y].
        """
        blocks = self.transformer.blocks
        for layer in range(from_layer, len(blocks)):
            block = blocks[layer]
            num_queries = 1 if layer == len(blocks) - 1 else x_RYD.shape[1]
            q_RQHE, k_RYHE, v_RYHE = queries_keys_values(block, x_RYD, tables=tables, num_queries=num_queries)
            if prefix is not None:
                k_RPHE, v_RPHE = prefix[layer]
                k_RYHE, v_RYHE = torch.cat([k_RPHE, k_RYHE], dim=1), torch.cat([v_RPHE, v_RYHE], dim=1)
            if attention is not None:
                attention.append(attention_of_last(q_RQHE.transpose(1, 2), k_RYHE.transpose(1, 2)))
            x_RYD = x_RYD[:, -num_queries:] + block.attn_out(attend(q_RQHE, k_RYHE, v_RYHE=v_RYHE))
            x_RYD = x_RYD + mlp(block, x_RYD)
        return self.transformer.ln_f(x_RYD[:, -1])

    def logits_of(self, x_RD: torch.Tensor) -> torch.Tensor:
        """Return logits fp32 [..., V] of the states [..., D], without the embedding's padding entries."""
        return F.linear(x_RD, self.output_weight)[..., : self.config.vocab_size].float()

    def all_keys_values(
        self,
        tokens_RP: torch.Tensor,
        *,
        positions_RP: torch.Tensor,
        allowed_RPP: Optional[torch.Tensor] = None,
    ) -> list[LayerKeysValues]:
        """Return keys and values of tokens in every layer, [R, P, H, E] each, under causal attention or to what is allowed."""
        x_RPD, tables = self.embed(tokens_RP, positions_RP), self.position_tables(positions_RP)
        blocks = self.transformer.blocks
        keys_values = []
        for block in blocks:
            q_RPHE, k_RPHE, v_RPHE = queries_keys_values(block, x_RPD, tables=tables, num_queries=tokens_RP.shape[1])
            keys_values.append((k_RPHE, v_RPHE))
            if block is not blocks[-1]:
                x_RPD = x_RPD + block.attn_out(attend(q_RPHE, k_RPHE, v_RYHE=v_RPHE, allowed_RQY=allowed_RPP))
                x_RPD = x_RPD + mlp(block, x_RPD)
        return keys_values


def olmo_model_config(config: Config, *, vocab_size: int, eos_id: int) -> olmo_config.ModelConfig:
    """Return OLMo's configuration of the model that ``config`` describes."""
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
        max_sequence_length=config.num_positions,
        rope=model.position_embedding == "rope",
        alibi=model.position_embedding == "none",
        alibi_bias_max=math.inf if model.position_embedding == "none" else 8.0,
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
    """Return a newly initialized model on the CPU. Its weights depend on ``seed`` alone; the global generator is restored."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return OLMoWithPositions(config)
