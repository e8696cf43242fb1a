"""Finds the files of a Hugging Face model, in a folder or on the hub, and refuses those that could run code."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import huggingface_hub
from huggingface_hub import errors

from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.files import read_json, read_manifest_of, sha256_file

DESCRIPTIONS = ["config.json", "generation_config.json", "tokenizer*", "special_tokens_map.json", "added_tokens.json"]
DESCRIPTIONS += ["vocab.json", "vocab.txt", "merges.txt", "spiece.model", "tekken.json"]
SAFE = ["model.safetensors", "model-*.safetensors", "model.safetensors.index.json"]
FREE_TO_EDIT = ("README.md", "generation_config.json")  # files of an export that no loss depends on


@dataclass(frozen=True)
class ModelFiles:
    """A folder that holds a model in the format of Hugging Face.

    Attributes:
        folder: the folder.
        weights: the files with the weights, sorted by name.
        revision: commit on the hub, or None for a folder of the user's.
    """

    folder: Path
    weights: list[Path]
    revision: Optional[str]

    @property
    def weights_sha256(self) -> str:
        """SHA-256 of the weights: of the file, or of all files one after another (``cat model-*.safetensors | sha256sum``)."""
        return sha256_file(*self.weights)


def find_files(folder: Path, *, revision: Optional[str] = None) -> ModelFiles:
    """Find the weights of a model in a folder.

    Raises:
        UserError: there are none, or some are missing.
    """
    weights = _weights(folder)
    if not weights:
        raise UserError(
            f"{folder}: no weights here, neither model.safetensors nor model.safetensors.index.json; pickles (.bin) can run code "
            "and are not loaded, so give a model with safetensors"
        )
    missing = [path.name for path in weights if not path.is_file()]
    if missing:
        raise UserError(f"{folder}: incomplete, {missing[0]} is missing ({len(missing)} of {len(weights)} files)")
    return ModelFiles(folder, weights, revision=revision)


def check_exported(folder: Path) -> None:
    """Compare a folder with the manifest that ``export hf`` wrote there, where there is one.

    Raises:
        UserError: a file that a loss depends on is missing, or has other contents.
    """
    path = folder / "manifest.json"
    try:
        if not path.is_file() or read_json(path).get("kind") != "hf":
            return
    except UserError:  # of another program
        return
    for name, expected in read_manifest_of(folder).get("files", {}).items():
        file = folder / name
        if name not in FREE_TO_EDIT and not (file.is_file() and sha256_file(file) == expected):
            raise UserError(
                f"{file}: missing, or other contents than `olmo-sparsity export hf` wrote; export the run again, or, if the "
                f"change is meant, delete {path}"
            )


def local_weights_sha256(path: Path) -> Optional[str]:
    """Return the hash of the weights of a model of any kind, as its record has it once it is opened; None: there is none."""
    if path.suffix == ".gguf" and path.is_file():
        return sha256_file(path)
    try:
        return find_files(path).weights_sha256 if (path / "config.json").is_file() else None
    except UserError:  # incomplete
        return None


def _weights(folder: Path) -> list[Path]:
    """Return the file, or the files of its index, or nothing."""
    name = "model.safetensors"
    if (folder / name).is_file():
        return [folder / name]
    index = folder / f"{name}.index.json"
    if not index.is_file():
        return []
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
    """Download a model from the hub, or find it in the cache of ``huggingface_hub``.

    Without a connection the cache alone is used. Pickles are not even downloaded.

    Raises:
        UserError: the hub does not have it, or cannot be reached and the cache does not have it.
    """
    folder = _snapshot(name, revision)
    if not _weights(folder):
        raise UserError(
            f"{name}: no safetensors on the hub at this revision ({folder.name[:12]}); its weights are in another format, and "
            "pickles can run code; choose another revision"
        )
    return find_files(folder, revision=folder.name)


def _snapshot(name: str, revision: Optional[str]) -> Path:
    """Return the folder in the cache whose name is the commit."""
    at = f" at revision {revision}" if revision else ""
    options: dict[str, Any] = {"revision": revision, "allow_patterns": DESCRIPTIONS + SAFE}
    try:
        return Path(huggingface_hub.snapshot_download(name, **options))
    except errors.GatedRepoError:
        raise UserError(f"{name}: the hub gives this model only to accounts that accepted its terms") from None
    except errors.RevisionNotFoundError:
        raise UserError(f"pretrained.revision = {revision}: {name} has no such revision on the hub") from None
    except errors.RepositoryNotFoundError:
        raise UserError(f"pretrained.model = {name}: no such folder or file, and no such model on the hub") from None
    except (errors.LocalEntryNotFoundError, errors.OfflineModeIsEnabled):
        raise UserError(
            f"pretrained.model = {name}: no such folder or file; the hub cannot be reached, and its model{at} is not in the "
            "cache of huggingface_hub; give a folder, or a .gguf file"
        ) from None
    except errors.HFValidationError:
        raise UserError(f"pretrained.model = {name}: no such folder or file, and not a name on the hub") from None
    except Exception as error:  # of httpx, handed on by huggingface_hub
        first_line = (str(error).strip().splitlines() or [type(error).__name__])[0]
        raise UserError(f"{name}: it cannot be downloaded from the hub ({first_line[:160]})") from None
