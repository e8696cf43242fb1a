"""Conversion of models and tokenizers to ``transformers``.

Every model with rotary positions has an equivalent among the architectures that ship with
transformers:

    norms                          queries, keys     architecture
    default, low_precision         not normalized    OlmoForCausalLM; with learned scales StableLmForCausalLM
    rms                            not normalized    LlamaForCausalLM
    rms                            normalized        OlmoeForCausalLM with a single expert
    default, low_precision         normalized        OlmoeForCausalLM, after the mean is removed from some weights

transformers has no dense architecture with norms before attention and MLP that normalizes queries and keys over all heads
together. OLMoE does, and with a single expert its MLP is dense: the routing weight is the softmax of one number, 1.
"""

from __future__ import annotations

import json
from typing import Any, Optional

import torch
import transformers
from olmo.config import LayerNormType
from tokenizers import Tokenizer

from olmo_sparsity.errors import UserError
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.model.pretrained import ROWS_HAVE_BOS


def _without_mean(weight: torch.Tensor, dim: int) -> torch.Tensor:
    """Return a weight matrix whose output has mean 0; then a layer norm of the output equals an RMS norm of it."""
    weight_fp64 = weight.double()
    return (weight_fp64 - weight_fp64.mean(dim=dim, keepdim=True)).to(weight.dtype)


def _scale(norm: Any) -> torch.Tensor:
    return torch.ones(norm.normalized_shape) if norm.weight is None else norm.weight


def _named_weights(model: OLMoWithPositions, *, for_rms_norms: bool) -> dict[str, torch.Tensor]:
    """Return OLMo's weights under the names that Llama and related architectures use.

    A norm without a learned scale gets a scale of ones.

    Args:
        model: the model.
        for_rms_norms: RMS norms will replace layer norms, which subtract the mean. So the mean over the width is removed
            from all that is added to the residual stream, and from queries and keys. The output matrix does not change.
    """
    vocab_size, transformer = model.config.vocab_size, model.transformer

    def centered(weight: torch.Tensor, dim: int = 0) -> torch.Tensor:
        return _without_mean(weight, dim) if for_rms_norms else weight

    embedding_VD = transformer.wte.weight[:vocab_size]
    output_VD = embedding_VD if model.config.weight_tying else transformer.ff_out.weight[:vocab_size]
    weights = {
        "model.embed_tokens.weight": centered(embedding_VD, dim=1),
        "lm_head.weight": output_VD,
        "model.norm.weight": _scale(transformer.ln_f),
    }
    for layer, block in enumerate(transformer.blocks):
        q_DD, k_DD, v_DD = block.att_proj.weight.chunk(3)
        up, gate = block.ff_proj.weight.chunk(2)
        layer_weights = {
            "input_layernorm": _scale(block.attn_norm),
            "self_attn.q_proj": centered(q_DD),
            "self_attn.k_proj": centered(k_DD),
            "self_attn.v_proj": v_DD,
            "self_attn.o_proj": centered(block.attn_out.weight),
            "post_attention_layernorm": _scale(block.ff_norm),
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": centered(block.ff_out.weight),
        }
        if model.config.attention_layer_norm:
            layer_weights |= {"self_attn.q_norm": _scale(block.q_norm), "self_attn.k_norm": _scale(block.k_norm)}
        weights |= {f"model.layers.{layer}.{name}.weight": weight for name, weight in layer_weights.items()}
    return weights


def _as_single_expert(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights with each MLP stored as OLMoE stores a single expert, and a router of zeros."""
    result = {}
    for name, weight in weights.items():
        prefix, is_mlp, part = name.partition("mlp.")
        if not is_mlp:
            result[name] = weight
        elif part == "down_proj.weight":
            result[f"{prefix}mlp.experts.down_proj"] = weight[None]
        elif part == "gate_proj.weight":
            fused = torch.cat([weight, weights[f"{prefix}mlp.up_proj.weight"]])
            result[f"{prefix}mlp.experts.gate_up_proj"] = fused[None]
            result[f"{prefix}mlp.gate.weight"] = torch.zeros(1, weight.shape[1])
    return result


def _settings(model: OLMoWithPositions, *, mlp_width: int, tied: bool, rows_have_bos: Optional[bool]) -> dict[str, Any]:
    """Return what the configuration classes of all architectures share."""
    config = model.config
    return {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": mlp_width,
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_heads,
        "max_position_embeddings": config.max_sequence_length,
        "rope_parameters": {"rope_type": "default", "rope_theta": float(config.rope_theta)},
        "tie_word_embeddings": tied,
        # A BOS of this package is the token that ends documents.
        "bos_token_id": config.eos_token_id if rows_have_bos else None,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
        "dtype": "float32",
        ROWS_HAVE_BOS: rows_have_bos,
    }


def to_transformers(model: OLMoWithPositions, *, rows_have_bos: Optional[bool] = None) -> Any:
    """Return an equivalent ``transformers`` model: fp32, in evaluation mode, with a copy of the weights.

    Its configuration says whether rows of training began with a BOS, in a key of its own (``ROWS_HAVE_BOS``): a configuration
    without ``bos_token_id`` is also what a model has of which this is not known.

    Its vocabulary is that of the tokenizer, without the padding of the embedding. At the same position IDs both models
    compute the same logits up to rounding. Beyond ``config.max_sequence_length``, where ours raises an error, the returned
    model extrapolates.

    Args:
        model: the model.
        rows_have_bos: whether EOS stood before every row of training, as a BOS; None: not known.

    Raises:
        UserError: no architecture of ``transformers`` computes such attention.
    """
    config = model.config
    if not config.rope:
        raise UserError(
            "model.position_embedding: transformers has no model with OLMo's layers whose positions are not rotary; export a run "
            "with model.position_embedding = rope"
        )
    rms, affine = config.layer_norm_type == LayerNormType.rms, bool(config.layer_norm_with_affine)
    for_rms_norms = config.attention_layer_norm and not rms
    # The mean may be removed from a tied embedding only if the input of the output matrix has mean 0, as the output of a
    # norm without a learned scale has.
    tied = config.weight_tying and not (for_rms_norms and affine)
    weights = _named_weights(model, for_rms_norms=for_rms_norms)
    if tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    mlp_width = weights["model.layers.0.mlp.down_proj.weight"].shape[1]
    settings = _settings(model, mlp_width=mlp_width, tied=tied, rows_have_bos=rows_have_bos)
    converted: Any
    if config.attention_layer_norm:
        weights = _as_single_expert(weights)
        settings |= {"rms_norm_eps": config.layer_norm_eps, "num_experts": 1, "num_experts_per_tok": 1}
        converted = transformers.OlmoeForCausalLM(transformers.OlmoeConfig(**settings))
    elif rms:
        settings |= {"rms_norm_eps": config.layer_norm_eps}
        converted = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    elif affine:
        biases = {name[: -len("weight")] + "bias": w for name, w in weights.items() if name.endswith("norm.weight")}
        weights |= {name: torch.zeros_like(weight) for name, weight in biases.items()}
        settings["rope_parameters"] |= {"partial_rotary_factor": 1.0}
        settings |= {"layer_norm_eps": config.layer_norm_eps}
        converted = transformers.StableLmForCausalLM(transformers.StableLmConfig(**settings))
    else:
        weights = {name: weight for name, weight in weights.items() if not name.endswith("norm.weight")}
        converted = transformers.OlmoForCausalLM(transformers.OlmoConfig(**settings))
    converted.load_state_dict(weights)
    converted.generation_config = transformers.GenerationConfig(
        **{key: settings[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    )
    return converted.eval()


def _bos_in_front(token: str, token_id: int) -> dict[str, Any]:
    """Return the post-processor, as JSON of a tokenizer, that puts a token in front of a text.

    ``processors.TemplateProcessing`` parses its templates, so that some tokens, such as ``a b``, cannot be named there.
    """
    first = [{"SpecialToken": {"id": token, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]
    return {
        "type": "TemplateProcessing",
        "single": first,
        "pair": [*first, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {token: {"id": token, "ids": [token_id], "tokens": [token]}},
    }


def to_transformers_tokenizer(tokenizer: Tokenizer, *, eos_id: int, rows_have_bos: bool, max_position: int) -> Any:
    """Return a ``transformers`` tokenizer that gives a text the IDs that it had in training.

    It adds no special token, but where ``rows_have_bos`` EOS as a BOS in front, and reads a special token that is written out in
    a text as ordinary text (``split_special_tokens``). EOS is also the padding token; padding is on the left.
    """
    eos_token = str(tokenizer.id_to_token(eos_id))
    content = json.loads(tokenizer.to_str())
    if rows_have_bos:
        content["post_processor"] = _bos_in_front(eos_token, eos_id)
    elif tokenizer.num_special_tokens_to_add(False) > 0:
        content["post_processor"] = None
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(json.dumps(content)),
        bos_token=eos_token if rows_have_bos else None,
        eos_token=eos_token,
        pad_token=eos_token,
        padding_side="left",
        model_max_length=max_position,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )
