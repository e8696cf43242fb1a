"""Finds the files of a pretrained model, on this machine or on the hub, and refuses what is not one whole model.

No code of a model is run. Weights are safetensors or GGUF; pickles are not even downloaded.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, NamedTuple, Optional

import gguf
import huggingface_hub
from huggingface_hub import errors
from safetensors import safe_open

from olmo_sparsity.config import PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_type, read_json

DOWNLOADED = """
    config.json generation_config.json adapter_config.json model.safetensors.index.json model-*.safetensors model.safetensors
    tokenizer* special_tokens_map.json added_tokens.json vocab.* merges.txt spiece.model tekken.json
"""
TOKENIZERS, OTHER_TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt"), ("tokenizer.model", "spiece.model")
LFS_POINTER, FIRST_BYTES = b"version https://git-lfs", {".safetensors": (8, b"{"), ".gguf": (0, b"GGUF")}
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
FREE_TO_IGNORE = re.compile(
    r"\.(attn|attention)\.(masked_)?bias$"
    r"|^(v_head)\.|(^|\.)(mtp|visual|vision_model|vision_tower|audio_tower|multi_modal_projector)\."
)
CLASSIFIER = re.compile(r"^(score|classifier)\.")


class Weights(NamedTuple):
    """The files with the weights of a model."""

    paths: list[Path]  # sorted by name, all in one folder
    revision: Optional[str]  # commit on the hub; None for files of this machine

    @property
    def gguf(self) -> Optional[Path]:
        return self.paths[0] if self.paths[0].suffix == ".gguf" else None


def find_weights(settings: PretrainedConfig) -> Weights:
    """The weights of the model that ``settings.model`` names, in a folder that can be loaded as one model."""
    name, path = str(settings.model), Path(os.path.expanduser(str(settings.model)))
    if not path.exists():
        settings.check_there()
        folder = _download(name, settings.revision)
        return Weights(_weights_of(folder), folder.name)
    if settings.revision is not None:
        raise UserError(f"pretrained.revision = {settings.revision}: {name} is on disk; only the hub has revisions")
    if path.suffix == ".gguf" and path.is_file():
        _check_first_bytes(path)
        return Weights([path], None)
    if (path / "config.json").is_file() or (path / "adapter_config.json").is_file():
        return Weights(_weights_of(path), None)
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
    if (folder / "adapter_config.json").is_file():
        reason = "an adapter of peft, which makes another model of its base; merge the two with peft, or move it away"
        raise UserError(f"{folder / 'adapter_config.json'}: {reason}")
    weights, index = [folder / "model.safetensors"], folder / "model.safetensors.index.json"
    if index.is_file() and not weights[0].is_file():
        names = set(check_type(read_json(index).get("weight_map"), dict[str, str], where=index).values())
        if not names or any(Path(name).name != name or not name.endswith(".safetensors") for name in names):
            raise UserError(f"{index}: it must name .safetensors files of its folder, and nothing else; restore it")
        weights = [folder / name for name in sorted(names)]
    if missing := [path.name for path in weights if not path.is_file()]:
        number = f"{len(missing)} of {len(weights)} files missing"
        raise UserError(f"{folder}: no {missing[0]} here ({number}); {NO_PICKLES}")
    tokenizers, others = ([folder / x for x in of if (folder / x).is_file()] for of in (TOKENIZERS, OTHER_TOKENIZERS))
    for path in (*weights, *tokenizers, folder / "config.json"):
        _check_first_bytes(path)
    if others and not tokenizers:
        reason = "write a tokenizer.json, as transformers does where sentencepiece is installed"
        raise UserError(f"{others[0]}: the library tokenizers does not read it; {reason}")
    return weights


def _check_first_bytes(path: Path) -> None:
    with open(path, "rb") as file:
        head = file.read(len(LFS_POINTER))
    begin, mark = FIRST_BYTES.get(path.suffix, (0, b""))
    if head == LFS_POINTER:
        raise UserError(f"{path}: a Git LFS pointer, not the file itself; fetch that with `git lfs pull`")
    if not head[begin:].startswith(mark):
        raise UserError(f"{path}: no {path.suffix[1:]} file (it begins with {head[:12]!r}); download it again")


def check_stored(paths: list[Path], *, is_quantized: bool) -> None:
    """Check that files of safetensors hold each weight once, in a type of which transformers makes the right numbers."""
    stored: dict[str, Path] = {}
    for path in paths:
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # it is no dictionary
                kind = file.get_slice(name).get_dtype()
                if name in stored:
                    raise UserError(
                        f"{path}: {stored[name].name} holds {name}, too; one of the two is of another model"
                    )
                if not is_quantized and name.endswith("weight") and not kind.startswith(("F", "BF")):
                    reason = (
                        f"{name} is stored as {kind}, and config.json has no quantization_config that tells its scale"
                    )
                    raise UserError(f"{path}: {reason}; download a version in bf16")
                stored[name] = path


def check_loaded(name: str, raw: Any, loaded: dict[str, Any]) -> None:
    """Check that the model has all of its weights, and the files no others, by what transformers tells of loading them."""
    shapes = loaded["mismatched_keys"]
    # Where the output matrix is the embedding, a classifier may have taken its place.
    has_head = raw.get_output_embeddings().weight is not raw.get_input_embeddings().weight
    wrong = {
        "are missing": loaded["missing_keys"],
        "have another shape": [f"{key}: {list(stored)} instead of {list(own)}" for key, stored, own in shapes],
        "have no place": [
            key
            for key in loaded["unexpected_keys"]
            if not (FREE_TO_IGNORE.search(key) or (has_head and CLASSIFIER.search(key)))
        ],
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
        values = f"{own:,} of its {stored:,} values"
        raise UserError(f"{path}: {type(raw).__name__} of transformers takes {values}; give its Hugging Face version")
