"""A tiny Llama as a GGUF file, as llama.cpp's converter writes one, and the model that it holds."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Optional

import gguf
import numpy as np
import torch
from gguf.quants import dequantize, quantize
from transformers_models import BOS_TEXT, BPE_VOCAB, EOS_TEXT, bpe_tokenizer, build_raw

Kind = gguf.GGMLQuantizationType
# Name of transformers without "model.layers.N." -> (name of GGUF, how it is stored). Of SmolLM2's file, and one in Q4_0 and F16.
OF_LAYER = {
    "input_layernorm": ("attn_norm", Kind.F32), "self_attn.q_proj": ("attn_q", Kind.Q4_1),
    "self_attn.k_proj": ("attn_k", Kind.Q4_1), "self_attn.v_proj": ("attn_v", Kind.Q8_0),
    "self_attn.o_proj": ("attn_output", Kind.Q4_0), "post_attention_layernorm": ("ffn_norm", Kind.F32),
    "mlp.gate_proj": ("ffn_gate", Kind.Q4_1), "mlp.up_proj": ("ffn_up", Kind.F16), "mlp.down_proj": ("ffn_down", Kind.Q4_1),
}  # fmt: skip
OTHERS = {"embed_tokens": ("token_embd", Kind.Q8_0), "norm": ("output_norm", Kind.F32)}


def save_gguf(
    path: Path, texts: list[str], *, adds_bos: bool = False, max_position: int = 64, block_count: int = 2,
    added: Optional[dict[str, np.ndarray]] = None,
) -> Any:  # fmt: skip
    """Write the model, and a byte-level BPE that is trained on texts; return the model with the weights that were stored.

    ``adds_bos``: the file says that a BOS stands in front of every text. ``block_count``: the number of layers that it names; it
    has 2. ``added``: further tensors.
    """
    model = build_raw("llama", vocab_size=BPE_VOCAB, max_position_embeddings=max_position, tie_word_embeddings=True)
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_block_count(block_count)
    writer.add_context_length(max_position)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(BPE_VOCAB)
    _write_tokenizer(writer, texts, adds_bos=adds_bos)
    weights = model.state_dict()
    del weights["lm_head.weight"]  # tied
    for name, weight in weights.items():
        parts = name.removeprefix("model.").removesuffix(".weight").split(".", 2)
        stored_name, kind = OF_LAYER[parts[2]] if parts[0] == "layers" else OTHERS[parts[0]]
        # llama.cpp turns pairs of neighbours within a head, transformers a half against the other half.
        turned = stored_name in ("attn_q", "attn_k")
        rows = weight.reshape(-1, 2, config.head_dim // 2, weight.shape[1]).transpose(1, 2) if turned else weight
        stored = quantize(rows.reshape(weight.shape).numpy(), kind)
        block = f"blk.{parts[1]}." if parts[0] == "layers" else ""
        writer.add_tensor(f"{block}{stored_name}.weight", stored, raw_dtype=kind)
        read = torch.from_numpy(dequantize(stored, kind)).reshape(rows.shape)
        weight.copy_((read.transpose(1, 2) if turned else read).reshape(weight.shape))
    for name, values in (added or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return model


def _write_tokenizer(writer: gguf.GGUFWriter, texts: list[str], *, adds_bos: bool) -> None:
    tokenizer = bpe_tokenizer(texts).backend_tokenizer
    special = [tokenizer.token_to_id(text) for text in (BOS_TEXT, EOS_TEXT)]
    ordinary, control = int(gguf.TokenType.NORMAL), int(gguf.TokenType.CONTROL)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("smollm")
    writer.add_token_list([tokenizer.id_to_token(number) for number in range(BPE_VOCAB)])
    writer.add_token_types([control if number in special else ordinary for number in range(BPE_VOCAB)])
    writer.add_token_merges([" ".join(merge) for merge in json.loads(tokenizer.to_str())["model"]["merges"]])
    writer.add_bos_token_id(special[0])
    writer.add_eos_token_id(special[1])
    writer.add_add_bos_token(adds_bos)
