"""A tiny Llama as a GGUF file, as llama.cpp's converter writes one, and the model that it holds."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from transformers import LlamaConfig, LlamaForCausalLM
from transformers_models import build_raw

from olmo_sparsity.text.tokenizer import train_bpe

VOCAB, MAX_POSITION = 320, 64
EOS, BOS = "<|im_end|>", "<|im_start|>"
Kind = gguf.GGMLQuantizationType
# Name of transformers without "model.layers.N." -> (name of GGUF, how it is stored). Of SmolLM2's file, and one in Q4_0 and F16.
OF_LAYER = {
    "input_layernorm": ("attn_norm", Kind.F32),
    "self_attn.q_proj": ("attn_q", Kind.Q4_1),
    "self_attn.k_proj": ("attn_k", Kind.Q4_1),
    "self_attn.v_proj": ("attn_v", Kind.Q8_0),
    "self_attn.o_proj": ("attn_output", Kind.Q4_0),
    "post_attention_layernorm": ("ffn_norm", Kind.F32),
    "mlp.gate_proj": ("ffn_gate", Kind.Q4_1),
    "mlp.up_proj": ("ffn_up", Kind.F16),
    "mlp.down_proj": ("ffn_down", Kind.Q4_1),
}


def save_gguf(
    path: Path,
    texts: list[str],
    *,
    adds_bos: bool = False,
    max_position: int = MAX_POSITION,
    block_count: int | None = None,
    added: dict[str, np.ndarray] | None = None,
) -> LlamaForCausalLM:
    """Write the model, and a byte-level BPE that is trained on ``texts``; return the model with the weights that were stored.

    Args:
        path: the file.
        texts: of the tokenizer.
        adds_bos: the file says that a BOS stands in front of every text.
        max_position: number of position IDs.
        block_count: number of layers that the file names; None: those that it has.
        added: further tensors.
    """
    model = build_raw("llama", vocab_size=VOCAB, max_position_embeddings=max_position, tie_word_embeddings=True).eval()
    writer = gguf.GGUFWriter(path, "llama")
    _write_lengths(writer, model.config, block_count=block_count or model.config.num_hidden_layers)
    _write_tokenizer(writer, texts, adds_bos=adds_bos)
    weights = model.state_dict()
    del weights["lm_head.weight"]  # tied
    for name, weight in weights.items():
        stored_name, kind = _stored_as(name)
        # llama.cpp turns pairs of neighbours within a head, transformers a half against the other half.
        heads = {"attn_q": model.config.num_attention_heads, "attn_k": model.config.num_key_value_heads}
        turned = next((number for part, number in heads.items() if part in stored_name), None)
        rows = weight.numpy() if turned is None else _in_neighbours(weight.numpy(), turned)
        stored = quantize(rows, kind)
        writer.add_tensor(stored_name, stored, raw_dtype=kind)
        read = dequantize(stored, kind).reshape(rows.shape)
        weight.copy_(torch.from_numpy(read if turned is None else _in_halves(read, turned)))
    for name, values in (added or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _stored_as(name: str) -> tuple[str, gguf.GGMLQuantizationType]:
    parts = name.removeprefix("model.").removesuffix(".weight").split(".", 2)
    if parts[0] == "layers":
        stored_name, kind = OF_LAYER[parts[2]]
        return f"blk.{parts[1]}.{stored_name}.weight", kind
    return {"embed_tokens": ("token_embd.weight", Kind.Q8_0), "norm": ("output_norm.weight", Kind.F32)}[parts[0]]


def _in_neighbours(rows: np.ndarray, heads: int) -> np.ndarray:
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _in_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    return rows.reshape(heads, -1, 2, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def _write_lengths(writer: gguf.GGUFWriter, config: LlamaConfig, *, block_count: int) -> None:
    writer.add_block_count(block_count)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.hidden_size // config.num_attention_heads)
    writer.add_vocab_size(config.vocab_size)


def _write_tokenizer(writer: gguf.GGUFWriter, texts: list[str], *, adds_bos: bool) -> None:
    tokenizer = train_bpe(texts, VOCAB - 1, eos_token=EOS)
    tokenizer.add_special_tokens([BOS])
    merges = json.loads(tokenizer.to_str())["model"]["merges"]
    special = [tokenizer.token_to_id(text) for text in (BOS, EOS)]
    ordinary, control = int(gguf.TokenType.NORMAL), int(gguf.TokenType.CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([tokenizer.id_to_token(number) for number in range(VOCAB)])
    writer.add_token_types([control if number in special else ordinary for number in range(VOCAB)])
    writer.add_token_merges([" ".join(merge) for merge in merges])
    writer.add_bos_token_id(special[0])
    writer.add_eos_token_id(special[1])
    writer.add_add_bos_token(adds_bos)
