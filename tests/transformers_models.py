"""Tiny models of transformers with random weights, and tokenizers, built in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from olmo_sparsity.model.causal_lm import CausalLM
from olmo_sparsity.text.tokenizer import train_bpe

VOCAB, BOS, EOS = 300, 1, 2  # of the byte tokenizer, whose vocabulary is smaller
BPE_VOCAB, BOS_TEXT, EOS_TEXT = 320, "<s>", "</s>"
SHARED: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64,
    "max_position_embeddings": 64, "pad_token_id": 0, "bos_token_id": BOS, "eos_token_id": EOS,
}  # fmt: skip
GPT: dict[str, Any] = {
    "vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "bos_token_id": BOS, "eos_token_id": EOS,
}  # fmt: skip
GROUPED = SHARED | {"num_key_value_heads": 2}
NARROW = GROUPED | {"head_dim": 8, "sliding_window": 64}
TWO_KINDS = {"layer_types": ["sliding_attention", "full_attention"]}
EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}

# Name -> (its type in transformers, keys of its configuration).
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt-neox": ("gpt_neox", SHARED),
    "gpt-2": ("gpt2", GPT),
    "llama": ("llama", GROUPED),
    "olmo": ("olmo", SHARED | {"clip_qkv": 1.0, "num_hidden_layers": 3}),
    "olmo-2": ("olmo2", SHARED),
    "qwen-3": ("qwen3", GROUPED | {"head_dim": 8}),
    "gemma-3": ("gemma3_text", NARROW | TWO_KINDS),
    "qwen-2": ("qwen2", GROUPED),
    "phi-3": ("phi3", GROUPED | {"sliding_window": None}),
    "falcon": ("falcon", SHARED | {"alibi": False}),
    # Attention that fused kernels do not compute: capped scores, and a sink beside the tokens.
    "gemma-2": ("gemma2", NARROW | {"attn_logit_softcapping": 2.0}),
    "gpt-oss": ("gpt_oss", NARROW | EXPERTS),
    # Layers that see a window of the latest positions, shorter than the windows of the tests.
    "mistral, window of 10": ("mistral", GROUPED | {"sliding_window": 10}),
    "gemma-3, window of 7": ("gemma3_text", NARROW | TWO_KINDS | {"sliding_window": 7}),
    "olmo-3, window of 9": ("olmo3", SHARED | TWO_KINDS | {"sliding_window": 9}),
    "gpt-oss, window of 10": ("gpt_oss", NARROW | EXPERTS | {"sliding_window": 10}),
    # Layers of either kind have heads of keys of another width and number.
    "gemma-4": ("gemma4_text", NARROW | TWO_KINDS | {
        "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True, "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCAB,
    }),
    "ctrl": ("ctrl", GPT | {"dff": 64}),  # scales embeddings in place
    # Learns which keys to attend to.
    "deepseek 3.2": ("deepseek_v32", SHARED | {
        "num_key_value_heads": 4, "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8,
        "v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1,
        "topk_group": 1, "first_k_dense_replace": 1, "index_head_dim": 8, "index_n_heads": 2, "index_topk": 64,
    }),
    "falcon with ALiBi": ("falcon", SHARED | {"alibi": True}),
    "mamba": ("mamba", {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    "qwen 3 next": ("qwen3_next", GROUPED | {
        "head_dim": 8, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2,
        "linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 2,
        "num_experts_per_tok": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16,
    }),
}  # fmt: skip


def build_raw(kind: str, **changes: Any) -> Any:
    """Return a model of transformers whose weights are large enough for every part to matter."""
    model_type, keys = KINDS[kind]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = transformers.AutoConfig.for_model(model_type, **(keys | changes))
        model = transformers.AutoModelForCausalLM.from_config(config)
        for name, parameter in model.named_parameters():
            if parameter.ndim > 1 or name.endswith("sinks"):
                torch.nn.init.normal_(parameter, std=0.3)
            elif "norm" in name and name.endswith("weight"):
                torch.nn.init.uniform_(parameter, 0.5, 1.5)  # with ones, a missing norm would not be noticed
    return model


def build(kind: str, **changes: Any) -> CausalLM:
    return CausalLM(build_raw(kind, **changes))


def byte_tokenizer(*, adds_bos: bool = False, has_bos: bool = True) -> Any:
    """Return a fast tokenizer of transformers whose entries are special tokens and bytes."""
    specials = ["<pad>", BOS_TEXT, EOS_TEXT] if has_bos else ["<pad>", "<unused>", EOS_TEXT]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({text: number for number, text in enumerate(specials + alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return _fast(tokenizer, adds_bos=adds_bos, pad_token="<pad>", **({"bos_token": BOS_TEXT} if has_bos else {}))


def bpe_tokenizer(texts: list[str], *, adds_bos: bool = True) -> Any:
    """Return one that is trained on texts."""
    tokenizer = train_bpe(texts, BPE_VOCAB - 1, eos_token=EOS_TEXT)
    tokenizer.add_special_tokens([BOS_TEXT])
    return _fast(tokenizer, adds_bos=adds_bos, bos_token=BOS_TEXT)


def _fast(tokenizer: Tokenizer, *, adds_bos: bool, **options: Any) -> Any:
    if adds_bos:
        special = [(BOS_TEXT, tokenizer.token_to_id(BOS_TEXT))]
        tokenizer.post_processor = processors.TemplateProcessing(single=f"{BOS_TEXT} $A", special_tokens=special)
    return transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=EOS_TEXT, **options)


def save(folder: Path, kind: str = "llama", *, tokenizer: Any = None, **changes: Any) -> Any:
    """Write a model and a tokenizer as a Hugging Face folder. Return the model."""
    model = build_raw(kind, **changes)
    model.save_pretrained(folder)
    (byte_tokenizer() if tokenizer is None else tokenizer).save_pretrained(folder)
    return model


def save_with_words(folder: Path, texts: list[str], **changes: Any) -> Path:
    """Write a Llama whose tokenizer is trained on texts and puts a BOS in front; return the folder."""
    save(folder, tokenizer=bpe_tokenizer(texts), vocab_size=BPE_VOCAB, **changes)
    return folder
