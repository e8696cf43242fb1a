"""Tiny models of transformers with random weights, and tokenizers, built in memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors

from olmo_sparsity.model.causal_lm import CausalLM

VOCAB, BOS, EOS = 300, 1, 2

SHARED: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": BOS,
    "eos_token_id": EOS,
}
GPT: dict[str, Any] = {"vocab_size": VOCAB, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64}
GPT |= {"bos_token_id": BOS, "eos_token_id": EOS}
GROUPED = SHARED | {"num_key_value_heads": 2}

# Name -> (class, configuration, its keys).
KINDS: dict[str, tuple[Any, Any, dict[str, Any]]] = {
    "gpt-neox": (transformers.GPTNeoXForCausalLM, transformers.GPTNeoXConfig, SHARED),
    "gpt-2": (transformers.GPT2LMHeadModel, transformers.GPT2Config, GPT),
    "llama": (transformers.LlamaForCausalLM, transformers.LlamaConfig, GROUPED),
    "olmo": (transformers.OlmoForCausalLM, transformers.OlmoConfig, SHARED),
    "olmo-2": (transformers.Olmo2ForCausalLM, transformers.Olmo2Config, SHARED),
    "qwen-3": (transformers.Qwen3ForCausalLM, transformers.Qwen3Config, GROUPED | {"head_dim": 8}),
    "gemma-3": (
        transformers.Gemma3ForCausalLM,
        transformers.Gemma3TextConfig,
        GROUPED | {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64},
    ),
    "mistral": (transformers.MistralForCausalLM, transformers.MistralConfig, GROUPED | {"sliding_window": None}),
    "qwen-2": (transformers.Qwen2ForCausalLM, transformers.Qwen2Config, GROUPED),
    "phi-3": (transformers.Phi3ForCausalLM, transformers.Phi3Config, GROUPED | {"sliding_window": None}),
    "falcon": (transformers.FalconForCausalLM, transformers.FalconConfig, SHARED | {"alibi": False}),
    # Attention that fused kernels do not compute: capped scores, and a sink beside the tokens.
    "gemma-2": (
        transformers.Gemma2ForCausalLM,
        transformers.Gemma2Config,
        GROUPED | {"head_dim": 8, "sliding_window": 64, "attn_logit_softcapping": 2.0},
    ),
    "gpt-oss": (
        transformers.GptOssForCausalLM,
        transformers.GptOssConfig,
        GROUPED | {"head_dim": 8, "sliding_window": 64, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    # Layers that see a window of the latest positions, shorter than the windows of the tests.
    "mistral, window of 10": (
        transformers.MistralForCausalLM,
        transformers.MistralConfig,
        GROUPED | {"sliding_window": 10},
    ),
    "gemma-2, window of 9": (
        transformers.Gemma2ForCausalLM,
        transformers.Gemma2Config,
        GROUPED | {"head_dim": 8, "sliding_window": 9, "attn_logit_softcapping": 2.0},
    ),
    "gemma-3, window of 7": (
        transformers.Gemma3ForCausalLM,
        transformers.Gemma3TextConfig,
        GROUPED | {"head_dim": 8, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 7},
    ),
    "olmo-3, window of 9": (
        transformers.Olmo3ForCausalLM,
        transformers.Olmo3Config,
        SHARED | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9},
    ),
    "gpt-oss, window of 10": (
        transformers.GptOssForCausalLM,
        transformers.GptOssConfig,
        GROUPED | {"head_dim": 8, "sliding_window": 10, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    # Layers of either kind have heads of keys of another width and number.
    "gemma-4": (
        transformers.Gemma4ForCausalLM,
        transformers.Gemma4TextConfig,
        GROUPED
        | {"head_dim": 8, "global_head_dim": 16, "num_global_key_value_heads": 1, "attention_k_eq_v": True}
        | {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 64, "num_kv_shared_layers": 0}
        | {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": VOCAB},
    ),
    "ctrl": (transformers.CTRLLMHeadModel, transformers.CTRLConfig, GPT | {"dff": 64}),  # scales embeddings in place
    # Learns which keys to attend to.
    "deepseek 3.2": (
        transformers.DeepseekV32ForCausalLM,
        transformers.DeepseekV32Config,
        SHARED
        | {
            "num_key_value_heads": 4,
            "q_lora_rank": 16,
            "kv_lora_rank": 16,
            "qk_rope_head_dim": 8,
            "qk_nope_head_dim": 8,
        }
        | {"v_head_dim": 8, "n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16, "n_group": 1}
        | {"topk_group": 1, "first_k_dense_replace": 1, "index_head_dim": 8, "index_n_heads": 2, "index_topk": 64},
    ),
    "falcon with ALiBi": (transformers.FalconForCausalLM, transformers.FalconConfig, SHARED | {"alibi": True}),
    "mamba": (
        transformers.MambaForCausalLM,
        transformers.MambaConfig,
        {"vocab_size": VOCAB, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4},
    ),
    "qwen 3 next": (
        transformers.Qwen3NextForCausalLM,
        transformers.Qwen3NextConfig,
        GROUPED
        | {"head_dim": 8, "layer_types": ["linear_attention", "full_attention"], "linear_num_key_heads": 2}
        | {"linear_num_value_heads": 2, "linear_key_head_dim": 8, "linear_value_head_dim": 8, "num_experts": 2}
        | {"num_experts_per_tok": 1, "moe_intermediate_size": 16, "shared_expert_intermediate_size": 16},
    ),
}


def build_raw(kind: str, **changes: Any) -> Any:
    """Return a model of transformers whose weights are large enough for every part to matter."""
    model_class, config_class, keys = KINDS[kind]
    config = config_class(**(keys | changes))
    config._attn_implementation = "sdpa" if model_class._supports_sdpa else "eager"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = model_class(config)
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
    specials = ["<pad>", "<s>", "</s>"] if has_bos else ["<pad>", "<unused>", "</s>"]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {text: number for number, text in enumerate(specials + alphabet)}
    tokenizer = Tokenizer(models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    if adds_bos:
        tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    options = {"bos_token": "<s>"} if has_bos else {}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="</s>", pad_token="<pad>", **options
    )


def save(folder: Path, kind: str = "llama", *, tokenizer: Any = None, **changes: Any) -> Any:
    """Write a model and a tokenizer as a Hugging Face folder. Return the model."""
    model = build_raw(kind, **changes)
    model.save_pretrained(folder)
    (byte_tokenizer() if tokenizer is None else tokenizer).save_pretrained(folder)
    return model
