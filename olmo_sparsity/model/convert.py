"""A run's model as one of transformers, from the weights of its checkpoint; OLMo is not imported.

    norms      queries, keys     architecture
    default    not normalized    OlmoForCausalLM
    rms        not normalized    LlamaForCausalLM
    rms        normalized        OlmoeForCausalLM with a single expert
    default    normalized        OlmoeForCausalLM, after the mean is removed from some weights

transformers has no dense architecture with norms before attention and MLP that normalizes queries and keys over all heads
together. OLMoE does, and with a single expert its MLP is dense: the routing weight is the softmax of one number, 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Optional

import torch
import transformers

from olmo_sparsity.errors import UserError

Weights = Mapping[str, torch.Tensor]
# Key of the configuration: whether a BOS stood before every row of training; without ``bos_token_id`` that would not be known.
ROWS_HAVE_BOS = "rows_have_bos"


def to_transformers(config: Mapping[str, Any], weights: Weights, *, rows_have_bos: Optional[bool] = None) -> Any:
    """An equivalent model of transformers, fp32, in evaluation mode, without the padding of the embedding.

    ``rows_have_bos``: whether EOS stood before every row of training, as a BOS; None: not known.
    """
    if not config["rope"]:
        reason = "transformers has no model with OLMo's layers whose positions are not rotary"
        raise UserError(f"model.position_embedding: {reason}; evaluate the run by `olmo-sparsity synth eval`")
    renamed, eos_id = _renamed(config, weights), config["eos_token_id"]
    special_ids = {"eos_token_id": eos_id, "pad_token_id": eos_id, "bos_token_id": eos_id if rows_have_bos else None}
    settings: dict[str, Any] = {
        "vocab_size": config["vocab_size"],
        "hidden_size": config["d_model"],
        "intermediate_size": weights["transformer.blocks.0.ff_out.weight"].shape[1],
        "num_hidden_layers": config["n_layers"],
        "num_attention_heads": config["n_heads"],
        "num_key_value_heads": config["n_heads"],
        "max_position_embeddings": config["max_sequence_length"],
        "rope_parameters": {"rope_type": "default", "rope_theta": float(config["rope_theta"])},
        "tie_word_embeddings": config["weight_tying"],
        "dtype": "float32",
        ROWS_HAVE_BOS: rows_have_bos,
        **special_ids,
    }
    of_rms = {"rms_norm_eps": config["layer_norm_eps"]}
    if config["attention_layer_norm"]:
        kind, settings = "Olmoe", settings | of_rms | {"num_experts": 1, "num_experts_per_tok": 1}
    elif config["layer_norm_type"] == "rms":
        kind, settings = "Llama", settings | of_rms
    else:
        kind, renamed = "Olmo", {name: weight for name, weight in renamed.items() if not name.endswith("norm.weight")}
    converted: Any = getattr(transformers, f"{kind}ForCausalLM")(getattr(transformers, f"{kind}Config")(**settings))
    converted.load_state_dict(renamed)
    converted.generation_config = transformers.GenerationConfig(**special_ids)
    return converted.eval()


def _renamed(config: Mapping[str, Any], weights: Weights) -> dict[str, torch.Tensor]:
    """OLMo's weights under the names of Llama; a norm without a learned scale gets a scale of ones."""
    # OLMoE has RMS norms, which do not subtract the mean. So the mean over the width is removed from all that is added to the
    # residual stream, and from queries and keys. Of a tied embedding it may be removed, too: the input of the output matrix has
    # mean 0, as the output of a layer norm without a learned scale.
    remove_means = config["attention_layer_norm"] and config["layer_norm_type"] != "rms"

    def scale(name: str) -> torch.Tensor:
        return weights.get(f"transformer.{name}.weight", torch.ones(config["d_model"]))

    def without_mean(weight: torch.Tensor, dim: int = 0) -> torch.Tensor:
        weight_fp64 = weight.double()
        return (weight_fp64 - weight_fp64.mean(dim, keepdim=True)).to(weight.dtype) if remove_means else weight

    embedding = without_mean(weights["transformer.wte.weight"][: config["vocab_size"]], dim=1)
    renamed = {
        "model.embed_tokens.weight": embedding,
        "lm_head.weight": weights.get("transformer.ff_out.weight", embedding)[: config["vocab_size"]],
        "model.norm.weight": scale("ln_f"),
    }
    for layer in range(config["n_layers"]):
        block, to = f"blocks.{layer}", f"model.layers.{layer}"
        names = ("att_proj", "attn_out", "ff_proj", "ff_out")
        attention_in, attention_out, mlp_in, mlp_out = (weights[f"transformer.{block}.{name}.weight"] for name in names)
        (q_DD, k_DD, v_DD), (up, gate) = attention_in.chunk(3), mlp_in.chunk(2)
        renamed |= {
            f"{to}.input_layernorm.weight": scale(f"{block}.attn_norm"),
            f"{to}.self_attn.q_proj.weight": without_mean(q_DD),
            f"{to}.self_attn.k_proj.weight": without_mean(k_DD),
            f"{to}.self_attn.v_proj.weight": v_DD,
            f"{to}.self_attn.o_proj.weight": without_mean(attention_out),
            f"{to}.post_attention_layernorm.weight": scale(f"{block}.ff_norm"),
        }
        mlp = {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": without_mean(mlp_out)}
        if config["attention_layer_norm"]:  # OLMoE stores all experts in one tensor; a router of zeros
            mlp = {"gate.weight": torch.zeros(1, config["d_model"]), "experts.down_proj": mlp["down_proj.weight"][None]}
            mlp["experts.gate_up_proj"] = torch.cat([gate, up])[None]
            renamed |= {f"{to}.self_attn.{name}.weight": scale(f"{block}.{name}") for name in ("q_norm", "k_norm")}
        renamed |= {f"{to}.mlp.{name}": weight for name, weight in mlp.items()}
    return renamed
