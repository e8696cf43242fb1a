"""The folder of a pretrained model: what is measured of it goes there, as for a run."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

from tokenizers import Tokenizer

from olmo_sparsity.config import Config, ContextCurveConfig, InfluenceConfig, ValidationConfig
from olmo_sparsity.config.files import to_yaml
from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import write_json_once, write_text
from olmo_sparsity.storage.folders import folder_name, make_folder
from olmo_sparsity.storage.manifests import read_manifest_of

if TYPE_CHECKING:
    from olmo_sparsity.model.pretrained import ModelRecord


def check_same_model(run: Path, record: ModelRecord) -> None:
    """Check that the folder of results, where it exists, is that of this model.

    Raises:
        UserError: it holds the results of another model.
    """
    stored = read_manifest_of(run, "model")["model"]
    if (stored["weights_sha256"], stored["tokenizer_sha256"]) != (record.weights_sha256, record.tokenizer_sha256):
        raise UserError(
            f"{run}: this folder holds the results of {stored['name']} with other weights or another tokenizer; choose another "
            "folder with --run DIR"
        )


def begin_folder(config: Config, run: Path, *, record: ModelRecord, tokenizer: Tokenizer) -> None:
    """Create the folder with its manifest, configuration and tokenizer, unless it exists.

    The configuration tells the model, the text and the lengths; each measurement in the folder records its own settings.

    Raises:
        UserError: another process has begun it with another model.
    """
    make_folder(run)
    manifest = {"kind": "pretrained", "status": "complete", "model": dataclasses.asdict(record)}
    write_json_once(run / "manifest.json", manifest)  # first, because it marks the folder as ours
    check_same_model(run, record)
    kept = dataclasses.replace(
        config,
        name=folder_name(run),
        influence=InfluenceConfig(),
        context_curve=ContextCurveConfig(),
        validation=ValidationConfig(),
    )
    for name, content in (("config.yaml", to_yaml(kept)), ("tokenizer.json", tokenizer.to_str())):
        if not (run / name).is_file():
            write_text(run / name, content)
