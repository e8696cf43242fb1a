"""A trained run -> a folder that ``transformers`` loads without any code of ours.

Every model that a configuration describes is written as a stock architecture of transformers that computes the same:

    norms                          queries, keys     architecture
    default, low_precision         not normalised    OlmoForCausalLM; with learned scales StableLmForCausalLM
    rms                            not normalised    LlamaForCausalLM
    rms                            normalised        OlmoeForCausalLM, of a single expert that every token passes
    default, low_precision         normalised        the same, once the weights before the norms have lost their mean

No dense architecture there normalises before attention and MLP, and queries and keys over all heads together. One expert
of one is a dense MLP: its routing weight is the softmax of one number, 1.

Legend: V vocabulary, E width, T tokens.
"""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import transformers
from olmo.config import LayerNormType
from tokenizers import Tokenizer
from transformers.utils import logging as transformers_logging

from olmo_sparsity.errors import UserError
from olmo_sparsity.export.model_card import Exported, model_card
from olmo_sparsity.model import checkpoint as checkpoints
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.storage.environment import environment
from olmo_sparsity.storage.files import read_json, sha256_file, write_json
from olmo_sparsity.storage.folders import exclusive_lock, is_folder_of_kind, make_folder
from olmo_sparsity.text.vocabulary import read_tokenizer

logger = logging.getLogger(__name__)

MAX_DIFFERENCE = 1e-4  # between logits in fp32: kernels that add in another order differ by less, another model by more
CHECKED_ROWS, CHECKED_TOKENS = 4, 128


def _without_mean(weight: torch.Tensor, dim: int) -> torch.Tensor:
    """The weight of a layer whose output has mean 0 along ``dim``: of such numbers a layer norm is an RMS norm."""
    exact = weight.double()
    return (exact - exact.mean(dim=dim, keepdim=True)).to(weight.dtype)


def _named_weights(model: OLMoWithPositions, centred: bool) -> dict[str, torch.Tensor]:
    """OLMo's weights under the names that Llama and its descendants share; norms without a scale have one of ones.

    ``centred``: for RMS norms in place of layer norms. What is added to the residual stream loses its mean over the
    width, and so do queries and keys; a layer norm would subtract it. The output matrix stays as it is.
    """
    vocab_size, transformer = model.config.vocab_size, model.transformer

    def scale(norm: Any) -> torch.Tensor:
        return torch.ones(norm.normalized_shape) if norm.weight is None else norm.weight

    def fit(weight: torch.Tensor, dim: int = 0) -> torch.Tensor:
        return _without_mean(weight, dim) if centred else weight

    embedding_VE = transformer.wte.weight[:vocab_size]
    output_VE = embedding_VE if model.config.weight_tying else transformer.ff_out.weight[:vocab_size]
    weights = {
        "model.embed_tokens.weight": fit(embedding_VE, dim=1),
        "lm_head.weight": output_VE,
        "model.norm.weight": scale(transformer.ln_f),
    }
    for number, block in enumerate(transformer.blocks):
        q, k, v = block.att_proj.weight.chunk(3)
        up, gate = block.ff_proj.weight.chunk(2)
        of_layer = {
            "input_layernorm": scale(block.attn_norm),
            "self_attn.q_proj": fit(q),
            "self_attn.k_proj": fit(k),
            "self_attn.v_proj": v,
            "self_attn.o_proj": fit(block.attn_out.weight),
            "post_attention_layernorm": scale(block.ff_norm),
            "mlp.gate_proj": gate,
            "mlp.up_proj": up,
            "mlp.down_proj": fit(block.ff_out.weight),
        }
        if model.config.attention_layer_norm:
            of_layer |= {"self_attn.q_norm": scale(block.q_norm), "self_attn.k_norm": scale(block.k_norm)}
        weights |= {f"model.layers.{number}.{name}.weight": weight for name, weight in of_layer.items()}
    return weights


def _as_single_expert(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The same weights, each MLP as OLMoE stores experts, and a router that has nothing to choose."""
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


def to_transformers(model: OLMoWithPositions) -> Any:
    """The same model as a stock ``transformers`` one with its own copy of the weights, fp32, in evaluation mode.

    Its vocabulary is the tokenizer's, without the embedding's padding entries. Position IDs 0 .. T-1 or any others give
    the same logits as ours, up to rounding; beyond ``config.max_sequence_length``, which ours refuses, it extrapolates.
    """
    config = model.config
    rms, affine = config.layer_norm_type == LayerNormType.rms, bool(config.layer_norm_with_affine)
    centred = config.attention_layer_norm and not rms
    # The output matrix must not lose its mean, unless what it is multiplied with has none: a final norm without scale.
    tied = config.weight_tying and not (centred and affine)
    weights = _named_weights(model, centred)
    if tied:
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"]
    settings: dict[str, Any] = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.d_model,
        "intermediate_size": weights["model.layers.0.mlp.down_proj.weight"].shape[1],
        "num_hidden_layers": config.n_layers,
        "num_attention_heads": config.n_heads,
        "num_key_value_heads": config.n_heads,
        "max_position_embeddings": config.max_sequence_length,
        "rope_parameters": {"rope_type": "default", "rope_theta": float(config.rope_theta)},
        "tie_word_embeddings": tied,
        "bos_token_id": None,
        "eos_token_id": config.eos_token_id,
        "pad_token_id": config.pad_token_id,
        "dtype": "float32",
    }
    theirs: Any
    if config.attention_layer_norm:
        weights = _as_single_expert(weights)
        settings |= {"rms_norm_eps": config.layer_norm_eps, "num_experts": 1, "num_experts_per_tok": 1}
        theirs = transformers.OlmoeForCausalLM(transformers.OlmoeConfig(**settings))
    elif rms:
        settings |= {"rms_norm_eps": config.layer_norm_eps}
        theirs = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    elif affine:
        biases = {name[: -len("weight")] + "bias": w for name, w in weights.items() if name.endswith("norm.weight")}
        weights |= {name: torch.zeros_like(weight) for name, weight in biases.items()}
        settings["rope_parameters"] |= {"partial_rotary_factor": 1.0}
        settings |= {"layer_norm_eps": config.layer_norm_eps}
        theirs = transformers.StableLmForCausalLM(transformers.StableLmConfig(**settings))
    else:
        weights = {name: weight for name, weight in weights.items() if not name.endswith("norm.weight")}
        theirs = transformers.OlmoForCausalLM(transformers.OlmoConfig(**settings))
    theirs.load_state_dict(weights)
    theirs.generation_config = transformers.GenerationConfig(
        eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
    )
    return theirs.eval()


def to_transformers_tokenizer(tokenizer: Tokenizer, eos_id: int, max_position: int) -> Any:
    """The same tokenizer as a ``transformers`` one: a text has the IDs that it had in training.

    So it adds no token of its own, and special tokens written out in a text are ordinary text (there:
    ``split_special_tokens``). EOS also pads, on the left.
    """
    copied = Tokenizer.from_str(tokenizer.to_str())
    if copied.num_special_tokens_to_add(False) > 0:
        copied.post_processor = None
    eos_token = copied.id_to_token(eos_id)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=copied,
        eos_token=eos_token,
        pad_token=eos_token,
        padding_side="left",
        model_max_length=max_position,
        split_special_tokens=True,
        clean_up_tokenization_spaces=False,
    )


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    shown = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            transformers_logging.enable_progress_bar()


def _differences(ours: OLMoWithPositions, theirs: Any) -> tuple[float, int]:
    """The largest difference of logits on rows of random tokens, at position IDs 0 .. T-1 and at IDs with gaps, and the
    number of logits compared."""
    last, vocab_size = ours.config.max_sequence_length, ours.config.vocab_size
    length = min(CHECKED_TOKENS, (last + 1) // 2)
    generator = torch.Generator().manual_seed(0)
    tokens_BT = torch.randint(vocab_size, (CHECKED_ROWS, length), generator=generator)
    in_order_BT = torch.arange(length).expand(CHECKED_ROWS, -1)
    gaps_BT = torch.rand(CHECKED_ROWS, last, generator=generator).argsort(dim=1)[:, :length].sort(dim=1).values
    with torch.no_grad():
        pairs = [
            (ours(tokens_BT, in_order_BT), theirs(input_ids=tokens_BT).logits),
            (ours(tokens_BT, gaps_BT), theirs(input_ids=tokens_BT, position_ids=gaps_BT).logits),
        ]
    differences = torch.stack([(a[..., :vocab_size] - b).abs().max() for a, b in pairs])
    return float(differences.max()), sum(b.numel() for _, b in pairs)  # torch's max, unlike Python's, keeps nan


def _check(folder: Path, model: OLMoWithPositions, tokenizer: Tokenizer) -> tuple[Any, float, int]:
    """Loads a written folder as its users will; returns the loaded model and how far its logits are from ours at most.

    Raises:
        UserError: the model or the tokenizer that transformers loads is another one.
    """
    theirs = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, dtype=torch.float32)
    difference, num_logits = _differences(model, theirs.eval())
    if not difference <= MAX_DIFFERENCE:
        raise UserError(
            f"transformers {transformers.__version__} computes another model from what was written (logits differ by "
            f"{difference:.3g}, where {MAX_DIFFERENCE} is allowed), so nothing was exported"
        )
    loaded = transformers.AutoTokenizer.from_pretrained(folder, local_files_only=True)
    sampled = torch.randint(model.config.vocab_size, (1000,), generator=torch.Generator().manual_seed(1)).tolist()
    eos_token = str(tokenizer.id_to_token(model.config.eos_token_id))
    text = f"{tokenizer.decode(sampled, skip_special_tokens=False)} It's  {eos_token} 12.5 naïve\n\n"
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    expected = (ids, tokenizer.decode(ids, skip_special_tokens=False), model.config.eos_token_id)
    if (loaded(text, verbose=False)["input_ids"], loaded.decode(ids), loaded.eos_token_id) != expected:
        raise UserError(
            f"transformers {transformers.__version__} makes another tokenizer of the run's tokenizer.json, so nothing "
            "was exported"
        )
    return theirs, difference, num_logits


def export_hf(run: Path, folder: Path, overwrite: bool = False) -> Exported:
    """Writes the model of a run's newest checkpoint, its tokenizer and a model card as a Hugging Face folder.

    ``AutoModelForCausalLM`` and ``AutoTokenizer`` load it, which is tried before the folder appears under its name, whole.

    Args:
        run: folder of the run.
        folder: where to write; new or empty.
        overwrite: also where an earlier export is, which is then deleted.

    Raises:
        UserError: there is no such run, something else is in the folder, or transformers does not compute what the run's
            model computes.
    """
    latest = checkpoints.latest_checkpoint(run / "checkpoints") if is_folder_of_kind(run, "run") else None
    if latest is None:
        raise UserError(f"{run}: there is no trained model here; train it first with `olmo-sparsity train --run {run}`")
    manifest = read_json(run / "manifest.json")
    folder = folder.resolve()
    _check_free(folder, overwrite)
    partial, replaced = (folder.with_name(f".{folder.name}.{state}") for state in ("partial", "replaced"))
    with exclusive_lock(folder.with_name(f".{folder.name}.lock")), _no_progress_bars():
        _remove(partial)
        try:
            exported = _write(run, latest, manifest, folder, partial)
            _check_free(folder, overwrite)  # another process may have been faster
            _put_in_place(partial, folder, replaced)
        finally:
            _remove(partial)
    if manifest["status"] != "complete":
        logger.info(f"{run}: its training is not finished; this is {latest.name}")
    return exported


def _check_free(folder: Path, overwrite: bool) -> None:
    if not is_folder_of_kind(folder, "hf"):
        return
    if not overwrite:
        raise UserError(
            f"{folder}: an exported model is here already; --overwrite replaces it, or choose another folder"
        )
    exported = {"manifest.json", *read_json(folder / "manifest.json").get("files", {})}
    others = sorted(path.name for path in folder.iterdir() if path.name not in exported)
    if others:
        raise UserError(
            f"{folder}: it also holds {', '.join(others[:3])}, which no export wrote, so --overwrite does not delete it; "
            "choose another folder"
        )


def _remove(folder: Path) -> None:
    if folder.is_dir():
        shutil.rmtree(folder)


def _put_in_place(partial: Path, folder: Path, replaced: Path) -> None:
    try:
        if (folder / "manifest.json").is_file():
            _remove(replaced)
            os.replace(folder, replaced)
        os.replace(partial, folder)
    except OSError as error:
        raise UserError(f"{folder}: cannot put the exported folder there ({error.strerror})") from None
    _remove(replaced)


def _write(run: Path, checkpoint: Path, manifest: dict[str, Any], folder: Path, partial: Path) -> Exported:
    model = checkpoints.load_model(checkpoint, torch.device("cpu"))
    facts = read_json(checkpoint / "train.json")  # which load_model has verified
    tokenizer = read_tokenizer(run / "tokenizer.json")
    if sha256_file(run / "tokenizer.json") != manifest["tokenizer_sha256"]:
        raise UserError(f"{run / 'tokenizer.json'}: not the tokenizer that this run was trained with; restore it")
    eos_id, max_position = model.config.eos_token_id, model.config.max_sequence_length
    make_folder(partial)
    to_transformers(model).save_pretrained(partial)
    to_transformers_tokenizer(tokenizer, eos_id, max_position).save_pretrained(partial)
    for weights in partial.glob("*.safetensors"):
        shutil.copymode(partial / "config.json", weights)  # safetensors lets nobody else read them
    loaded, difference, num_logits = _check(partial, model, tokenizer)
    exported = Exported(
        folder, type(loaded).__name__, sum(p.numel() for p in loaded.parameters()), difference, num_logits
    )
    card = model_card(exported, manifest, facts, str(tokenizer.id_to_token(eos_id)))
    (partial / "README.md").write_text(card, encoding="utf-8")
    write_json(
        partial / "manifest.json",
        {
            "kind": "hf",
            "status": "complete",
            "name": manifest["config"]["name"],
            "step": facts["step"],
            "checkpoint_sha256": facts["sha256"],
            "architecture": exported.architecture,
            "num_parameters": exported.num_parameters,
            "largest_logit_difference": difference,
            "files": {path.name: sha256_file(path) for path in sorted(partial.iterdir())},
            "transformers": transformers.__version__,
            "environment": environment(),
        },
    )
    return exported
