"""Finds the files of a Hugging Face model, in a folder or on the hub. Refuses what could run code or is something else."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import huggingface_hub
from huggingface_hub import errors

from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.files import sha256_file

DESCRIPTIONS = ["config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json"]
DESCRIPTIONS += ["vocab.json", "vocab.txt", "merges.txt", "spiece.model", "tekken.json", "adapter_config.json"]
SAFE = ["model.safetensors", "model-*.safetensors", "model.safetensors.index.json"]
TOKENIZERS, OTHER_TOKENIZERS = ("tokenizer.json", "vocab.json", "vocab.txt"), ("tokenizer.model", "spiece.model")
LFS_POINTER = b"version https://git-lfs"
# Error of huggingface_hub -> what it says of a name; each is a kind of those after it.
NOT_ON_HUB = (
    (errors.GatedRepoError, "the hub gives this model only to accounts that accepted its terms"),
    (errors.RevisionNotFoundError, "the hub has no such revision of this model"),
    (errors.RepositoryNotFoundError, "no such folder or file, and no such model on the hub"),
    (
        (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled),
        "no such folder or file; the hub cannot be reached, and the cache of huggingface_hub does not have this model; give a "
        "folder, or a .gguf file",
    ),
    (errors.HFValidationError, "no such folder or file, and not a name on the hub"),
)


@dataclass(frozen=True)
class ModelFiles:
    """A folder that holds a model in the format of Hugging Face."""

    folder: Path
    weights: list[Path]  # sorted by name
    revision: Optional[str] = None  # commit on the hub; None: a folder of the user's

    @property
    def weights_sha256(self) -> str:
        """SHA-256 of the weights: of the file, or of all files one after another (``cat model-*.safetensors | sha256sum``)."""
        return sha256_file(*self.weights)


def find_files(folder: Path, *, revision: Optional[str] = None) -> ModelFiles:
    """Find the weights of a model in a folder that holds nothing that makes another model of them."""
    if (folder / "adapter_config.json").is_file():
        raise UserError(
            f"{folder}: it holds an adapter of peft (adapter_config.json), which makes another model of its base; merge the two "
            "with peft and give the merged model, or, if the adapter is not meant, move it away"
        )
    weights = _weights(folder)
    if not weights:
        raise UserError(
            f"{folder}: no weights here, neither model.safetensors nor model.safetensors.index.json; pickles (.bin) can run code "
            "and are not loaded, so give a model with safetensors"
        )
    if missing := [path.name for path in weights if not path.is_file()]:
        raise UserError(f"{folder}: incomplete, {missing[0]} is missing ({len(missing)} of {len(weights)} files)")
    tokenizers = [folder / name for name in TOKENIZERS if (folder / name).is_file()]
    for path in (*weights, *tokenizers, folder / "config.json"):
        check_contents(path)
    others = [name for name in OTHER_TOKENIZERS if (folder / name).is_file()]
    if others and not tokenizers:
        raise UserError(
            f"{folder}: its tokenizer is in {others[0]} alone, which the library tokenizers does not read; write it as a "
            "tokenizer.json, which transformers does where sentencepiece is installed"
        )
    return ModelFiles(folder, weights, revision)


def check_contents(path: Path) -> None:
    """Check by its first bytes that a file is what its name says."""
    with open(path, "rb") as file:
        head = file.read(len(LFS_POINTER))
    if head == LFS_POINTER:
        raise UserError(f"{path}: a Git LFS pointer, not the file itself; fetch that with `git lfs pull`")
    if not {".safetensors": head[8:9] == b"{", ".gguf": head[:4] == b"GGUF"}.get(path.suffix, True):
        raise UserError(f"{path}: no {path.suffix[1:]} file (it begins with {head[:12]!r}); download it again")


def local_weights_sha256(path: Path) -> Optional[str]:
    """Return the hash of the weights of a model of any kind, as its record has it once it is opened; None: there is none."""
    if path.suffix == ".gguf" and path.is_file():
        return sha256_file(path)
    try:
        return find_files(path).weights_sha256 if (path / "config.json").is_file() else None
    except UserError:
        return None


def _weights(folder: Path) -> list[Path]:
    """Return the file, or the files of its index, or nothing."""
    name = "model.safetensors"
    index = folder / f"{name}.index.json"
    if (folder / name).is_file() or not index.is_file():
        return [folder / name] if (folder / name).is_file() else []
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
        raise UserError(f"{index}: not an index of weights, the file is damaged") from None
    if not names or not all(isinstance(name, str) and Path(name).name == name for name in names):
        raise UserError(f"{index}: it names files outside its folder, or none")
    if wrong := [other for other in names if Path(other).suffix != ".safetensors"]:  # transformers would unpickle it
        raise UserError(f"{index}: it names {printable(min(wrong))}, which is no .safetensors file")
    return [folder / name for name in sorted(names)]


def download(name: str, revision: Optional[str]) -> ModelFiles:
    """Download a model from the hub, or find it in the cache of ``huggingface_hub``, which alone is used without a connection."""
    asked = f"pretrained.model = {name}" + (f" at revision {revision}" if revision else "")
    try:
        folder = Path(huggingface_hub.snapshot_download(name, revision=revision, allow_patterns=[*DESCRIPTIONS, *SAFE]))
    except Exception as error:  # also of httpx, handed on by huggingface_hub
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        reasons = (reason for kinds, reason in NOT_ON_HUB if isinstance(error, kinds))
        reason = next(reasons, f"it cannot be downloaded from the hub ({first_line[:160]})")
        raise UserError(f"{asked}: {reason}") from None
    if _weights(folder):
        return find_files(folder, revision=folder.name)
    try:
        huggingface_hub.list_repo_files(name, revision=folder.name)
    except Exception:  # whatever kept it from being reached
        raise UserError(
            f"{asked}: the cache of huggingface_hub has it without weights, and the hub cannot be reached; download them first"
        ) from None
    raise UserError(
        f"{asked}: no safetensors on the hub; its weights are in another format, and pickles can run code; choose another "
        "revision"
    )
