"""Finds the files of a pretrained model, on this machine or on the hub, and refuses what is not one whole model.

No code of a model is run. Weights are safetensors or GGUF; pickles are not even downloaded.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Optional

import gguf
import huggingface_hub
from huggingface_hub import errors
from safetensors import safe_open

from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_type, read_json
from olmo_sparsity.text.sources import HEAD_BYTES, NO_TOKENS, check_kind

DOWNLOADED = """
    config.json generation_config.json adapter_config.json model.safetensors.index.json model-*.safetensors model.safetensors
    tokenizer* special_tokens_map.json added_tokens.json vocab.* merges.txt spiece.model tekken.json
"""
TOKENIZERS, OTHER_TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt"), ("tokenizer.model", "spiece.model")
FIRST_BYTES = {".safetensors": (8, b"{"), ".gguf": (0, b"GGUF")}
NO_FILE, NO_PICKLES = "no such folder or file", "pickles (.bin) can run code and are not loaded"
NOT_ON_HUB = {
    errors.GatedRepoError: "the hub gives this model only to accounts that accepted its terms",
    errors.RevisionNotFoundError: "the hub has no such revision of this model",
    errors.RepositoryNotFoundError: f"{NO_FILE}, and no such model on the hub",
    errors.HFValidationError: f"{NO_FILE}, and not a name on the hub",
    errors.LocalEntryNotFoundError: f"{NO_FILE}; the hub cannot be reached, and its cache does not have this model",
}
# Weights that no logits of the next token depend on: masks that old versions saved, layers that predict further tokens, what
# sees images and hears sound, and the heads of other tasks.
FREE_TO_IGNORE = r"\.(attn|attention)\.(masked_)?bias$|^v_head\."
FREE_TO_IGNORE += r"|(^|\.)(mtp|visual|vision_model|vision_tower|audio_tower|multi_modal_projector)\."
CLASSIFIER = r"^(score|classifier)\."


def find_weights(settings: PretrainedConfig) -> tuple[list[Path], Optional[str]]:
    """The files with the weights of the named model, by name, all in one folder; and its commit, if it is on the hub."""
    name, path = str(settings.model), Path(os.path.expanduser(str(settings.model)))
    if not path.exists():
        settings.check_there()
        folder = _download(name, settings.revision)
        return _weights_of(folder), folder.name
    if settings.revision is not None:
        raise UserError(f"pretrained.revision = {settings.revision}: {name} is on disk; only the hub has revisions")
    if path.suffix == ".gguf" and path.is_file():
        _check_first_bytes(path)
        return [path], None
    if (path / "config.json").is_file() or (path / "adapter_config.json").is_file():
        return _weights_of(path), None
    reason = "neither a Hugging Face folder (config.json) nor a .gguf file; a run of this package is given with --run"
    raise UserError(f"pretrained.model = {name}: {reason}")


def first_line(error: Exception) -> str:
    """The first line of what an error of a library says."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]


def _download(name: str, revision: Optional[str]) -> Path:
    """Download a model, or find it in the cache of ``huggingface_hub``, which alone is used without a connection."""
    said = f"pretrained.model = {name}" + (f" at revision {revision}" if revision else "")
    try:
        folder = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=DOWNLOADED.split()))
        if not (has_weights := any(folder.glob("model*.safetensors*"))):
            huggingface_hub.list_repo_files(name, revision=folder.name)  # fails where only the cache could be asked
    except Exception as error:  # also of httpx, handed on by huggingface_hub
        reasons = (reason for kind, reason in NOT_ON_HUB.items() if isinstance(error, kind))
        reason = next(reasons, f"its weights cannot be downloaded from the hub ({first_line(error)})")
        raise UserError(f"{said}: {reason}") from None
    if not has_weights:
        raise UserError(f"{said}: no safetensors on the hub; {NO_PICKLES}; choose another revision")
    return folder


def _weights_of(folder: Path) -> list[Path]:
    """The files with the weights, in a folder that holds nothing that makes another model of them."""
    if (adapter := folder / "adapter_config.json").is_file():
        raise UserError(f"{adapter}: an adapter of peft makes another model of its base; merge the two, or remove it")
    weights, index = [folder / "model.safetensors"], folder / "model.safetensors.index.json"
    if index.is_file() and not weights[0].is_file():
        names = set(check_type(read_json(index).get("weight_map"), dict[str, str], where=index).values())
        if not names or any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
            raise UserError(f"{index}: it must name .safetensors files of its folder, and nothing else; restore it")
        weights = [folder / name for name in sorted(names)]
    if missing := [path.name for path in weights if not path.is_file()]:
        of_all = f"{len(missing)} of {len(weights)} files missing"
        raise UserError(f"{folder}: no {missing[0]} here ({of_all}); {NO_PICKLES}")
    tokenizers, others = ([folder / x for x in of if (folder / x).is_file()] for of in (TOKENIZERS, OTHER_TOKENIZERS))
    for path in (*weights, *tokenizers, folder / "config.json"):
        _check_first_bytes(path)
    if others and not tokenizers:
        raise UserError(f"{others[0]}: the library tokenizers does not read it; write a tokenizer.json by transformers")
    return weights


def _check_first_bytes(path: Path) -> None:
    with open(path, "rb") as file:
        head = file.read(HEAD_BYTES)
    check_kind(path, head, NO_TOKENS)
    begin, mark = FIRST_BYTES.get(path.suffix, (0, b""))
    if not head[begin:].startswith(mark):
        raise UserError(f"{path}: no {path.suffix[1:]} file (it begins with {head[:12]!r}); download it again")


def check_stored(paths: list[Path], *, is_quantized: bool) -> None:
    """Check that files of safetensors hold each weight once, in a type of which transformers makes the right numbers."""
    holders: dict[str, Path] = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no dictionary
                kind, holder = file.get_slice(name).get_dtype(), holders.setdefault(name, path)
                if holder != path:
                    raise UserError(f"{path}: {holder.name} holds {name}, too; one of the two is of another model")
                if not is_quantized and name.endswith("weight") and not kind.startswith(("F", "BF")):
                    reason = "and config.json has no quantization_config that tells its scale"
                    raise UserError(f"{path}: {name} is stored as {kind}, {reason}; download a version in bf16")


def check_loaded(name: str, raw: Any, loaded: dict[str, Any]) -> None:
    """Check that the model has all of its weights, and the files no others, by what transformers tells of loading them."""
    # Where the output matrix is the embedding, a classifier may have taken its place.
    is_tied = raw.get_output_embeddings().weight is raw.get_input_embeddings().weight
    free, shapes = FREE_TO_IGNORE if is_tied else f"{FREE_TO_IGNORE}|{CLASSIFIER}", loaded["mismatched_keys"]
    wrong = {
        "are missing": loaded["missing_keys"],
        "have another shape": [f"{key}: {list(stored)} instead of {list(own)}" for key, stored, own in shapes],
        "have no place": [key for key in loaded["unexpected_keys"] if not re.search(free, key)],
    }
    for what, keys in wrong.items():
        if keys:
            model = f"{type(raw).__name__}, as its config.json describes it"
            raise UserError(f"{name}: {len(keys)} weights {what} in {model}, such as {min(keys)}; restore its files")


def check_nothing_left(path: Path, raw: Any) -> None:
    """Check that a GGUF file holds no more values than the model took from it. transformers does not tell what it leaves."""
    weights = {id(weight): weight for weight in raw.state_dict(keep_vars=True).values()}  # tied ones once
    own = sum(weight.numel() for weight in weights.values())
    copied = "output.weight" if raw.config.tie_word_embeddings else ""
    stored = sum(int(tensor.n_elements) for tensor in gguf.GGUFReader(path).tensors if tensor.name != copied)
    if stored > own:
        of_all = f"{own:,} of its {stored:,} values"
        raise UserError(f"{path}: {type(raw).__name__} of transformers takes {of_all}; give its Hugging Face version")
