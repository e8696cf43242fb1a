"""Checks that results that are shown are those of the model that ``--model`` names: folders of two models may have one name."""

from __future__ import annotations

import logging
import os
from pathlib import Path, PurePath
from typing import Any, Optional

from olmo_sparsity.config import PretrainedConfig, load_config
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import need, read_manifest_of

LEAST_DIGITS = 7  # of an abbreviated commit

logger = logging.getLogger(__name__)


def check_shown_model(folder: Path, asked: PretrainedConfig, *, show: str = "show it with --run DIR") -> None:
    """Check that a folder of results, where it exists, holds those of the model that is asked for.

    A path may be another one than when the model was measured: given from elsewhere, or moved with its folder. Where the paths
    differ the weights decide, and where they are not on this machine the parts of the paths that were given.

    Args:
        folder: of the results.
        asked: the model; where it is none, nothing is checked.
        show: how the command is given another folder, for the error.

    Raises:
        UserError: the folder holds the results of another model, or is a run.
    """
    if asked.model is None or not (folder / "manifest.json").is_file():
        return
    manifest = read_manifest_of(folder)
    stored = None
    if manifest.get("kind") == "pretrained":
        need(manifest, "model", where=folder / "manifest.json")
        stored = manifest["model"]
    if stored is not None and _is_same_model(folder, stored, asked):
        return
    if stored is not None:
        held = _words(stored["name"], stored.get("revision"))
    else:
        held = "a run" if manifest.get("kind") == "run" else f"no model (kind {manifest.get('kind')!r})"
    raise UserError(
        f"{folder}: these are the results of {held}, not of {_words(asked.model, asked.revision)}; measure that one into "
        f"another folder with --run DIR, and {show}"
    )


def _words(name: str, revision: Optional[str]) -> str:
    return name if revision is None else f"{name} at revision {revision[:12]}"


def _is_same_model(folder: Path, stored: dict[str, Any], asked: PretrainedConfig) -> bool:
    name, commit = stored["name"], stored.get("revision")
    if asked.model == name:
        return not (folder / "config.yaml").is_file() or _is_revision(folder, asked.revision, commit=commit)
    if asked.revision is not None:
        return False
    path, measured = Path(os.path.expanduser(str(asked.model))), Path(os.path.expanduser(name))
    if commit is None and path.resolve() == measured.resolve():
        return True
    from olmo_sparsity.model.model_files import local_weights_sha256

    if path.exists():
        logger.info(f"{path}: comparing its weights with those of {name}, whose results are in {folder}")
        if (weights := local_weights_sha256(path)) is not None:
            return weights == stored["weights_sha256"]
    return commit is None and _ends_alike(path, measured)


def _is_revision(folder: Path, asked: Optional[str], *, commit: Optional[str]) -> bool:
    """Return True if a revision is the one that was measured: as it was named then, or its commit, whole or abbreviated."""
    if asked == load_config(folder / "config.yaml").pretrained.revision:
        return True
    return asked is not None and commit is not None and len(asked) >= LEAST_DIGITS and commit.startswith(asked)


def _ends_alike(first: PurePath, second: PurePath) -> bool:
    """Return True if the shorter of two paths is the end of the other, and is more than the name of a folder."""
    length = min(len(first.parts), len(second.parts))
    tells = length > 1 or first.suffix == ".gguf"
    return tells and first.parts[-length:] == second.parts[-length:]
