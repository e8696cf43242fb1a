"""Opens a trained run: its model, and text that the model was not trained on. Every measurement starts here."""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch
from tokenizers import Tokenizer

from olmo_sparsity.config import Config, DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.checkpoint import CheckpointInfo, latest_checkpoint, load_model, read_checkpoint_info
from olmo_sparsity.model.devices import pick_device, take_own_gpu
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.text.preparation import prepare
from olmo_sparsity.text.store import TokenStore, is_prepared, open_store
from olmo_sparsity.text.vocabulary import read_tokenizer, word_start_table
from olmo_sparsity.text.windows import Windows, sample_windows

logger = logging.getLogger(__name__)

C4_DOCUMENTS_PER_WINDOW = 20  # enough for most windows to come from different documents, however long they must be


@dataclass(frozen=True)
class MeasuredText:
    """The text to measure a run on.

    Attributes:
        store: its documents.
        source: where it comes from, as the configuration names it.
        split: ``validation`` of the run's own text, or ``held-out``.
        training_store: the documents that the model was trained on.
        excluded_ids_G: uint64, IDs of documents that must not be measured because the model was trained on them; None where
            ``store`` has none of them.
    """

    store: TokenStore
    source: str
    split: str
    training_store: TokenStore
    excluded_ids_G: Optional[np.ndarray]


@dataclass(frozen=True)
class OpenedRun:
    """A trained run that is ready to be measured.

    Attributes:
        name: name of the run.
        model: in evaluation mode, with fp32 weights.
        device: where the model is.
        checkpoint: which checkpoint the weights come from.
        num_parameters: of the model.
        tokenizer: of the run.
        text: the text to measure the model on.
    """

    name: str
    model: OLMoWithPositions
    device: torch.device
    checkpoint: CheckpointInfo
    num_parameters: int
    tokenizer: Tokenizer
    text: MeasuredText

    def windows(self, config: Config, full_len: int) -> Windows:
        """Return windows of ``full_len`` tokens; ``config.influence`` tells how many, and which targets.

        Raises:
            UserError: the text has no such window.
        """
        settings = config.influence
        return sample_windows(
            self.text.store,
            full_len,
            num_windows=settings.num_windows,
            max_per_document=settings.max_windows_per_document,
            seed=settings.seed,
            sampling=settings.sampling,
            exclude_ids=self.text.excluded_ids_G,
            target_table_V=word_start_table(self.tokenizer) if settings.targets == "word-start" else None,
        )


def open_run(config: Config, run: Path, *, max_position: Optional[int] = None) -> OpenedRun:
    """Load a run's newest checkpoint, and open its validation documents or the text that ``influence.data`` names.

    Args:
        config: which text, and on which device.
        run: folder of the trained run.
        max_position: position IDs are below this; None: the limit of training.

    Raises:
        UserError: the run or the text is not usable.
    """
    latest = latest_checkpoint(run / "checkpoints")
    if latest is None:
        raise UserError(f"{run}: this run has no checkpoint; train it first with `olmo-sparsity train --run {run}`")
    take_own_gpu(config.training.device)
    device = pick_device(config.training.device)
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    model = load_model(latest, device, max_position=max_position)
    manifest = read_json(run / "manifest.json")
    return OpenedRun(
        name=run.name,
        model=model,
        device=device,
        checkpoint=read_checkpoint_info(latest),
        num_parameters=manifest["num_parameters"],
        tokenizer=read_tokenizer(run / "tokenizer.json"),
        text=_open_text(config, run, manifest=manifest),
    )


def _open_text(config: Config, run: Path, *, manifest: dict[str, Any]) -> MeasuredText:
    """Open the text to measure.

    Args:
        config: ``data`` and ``influence.data``.
        run: folder of the trained run.
        manifest: of that run.
    """
    trained_on = _training_tokens(config, manifest)
    training_store = open_store(trained_on, "train")
    if training_store.tokens_sha256 != manifest["tokens_sha256"]:
        raise UserError(
            f"{run}: data.source = {config.data.source} has changed since this run was trained on it, so it is unknown which "
            "documents the model has not seen; restore the text, or train again"
        )
    source = config.influence.data
    if source is None:
        return MeasuredText(
            open_store(trained_on, "validation"),
            source=config.data.source,
            split="validation",
            training_store=training_store,
            excluded_ids_G=None,
        )
    max_documents = config.influence.max_documents
    if max_documents is None and source == "c4":
        max_documents = C4_DOCUMENTS_PER_WINDOW * config.influence.num_windows
    data = dataclasses.replace(config.data, source=source, max_documents=max_documents, max_tokens=None)
    measured = prepare(data, tokenizer_file=run / "tokenizer.json")
    if _made_from(trained_on) != _made_from(measured):
        logger.info(
            f"{source}: documents of text are recognised by their characters, documents of token files by their tokens, so "
            "documents that the model was trained on cannot be left out here"
        )
    return MeasuredText(
        open_store(measured, "measured"),
        source=source,
        split="held-out",
        training_store=training_store,
        excluded_ids_G=training_store.doc_ids_G,
    )


def _training_tokens(config: Config, manifest: dict[str, Any]) -> Path:
    """Return the folder of the token files that a run was trained on; make them again if they are gone."""
    folder = Path(manifest["token_store"])
    if is_prepared(folder):
        return folder
    logger.info(f"{folder}: the token files of this run are gone; preparing the text again")
    return prepare(DataConfig(**{**manifest["config"]["data"], "cache_dir": config.data.cache_dir}))


def _made_from(folder: Path) -> Any:
    """Return whether token files were made from text or from other token files."""
    return read_json(folder / "manifest.json")["made_from"]


def losses_precision(config: Config, device: torch.device) -> str:
    """Return the precision of all losses, ``fp32`` or ``bf16``: ``influence.precision`` with ``auto`` resolved."""
    if config.influence.precision != "auto":
        return config.influence.precision
    return "bf16" if config.pretrained.model is not None and device.type == "cuda" else "fp32"


def lengths_record(config: Config) -> dict[str, Any]:
    """Return the lengths of an experiment, as manifests and summaries give them."""
    lengths = config.context
    return {
        "local_len": lengths.local_len,
        "full_len": lengths.full_len,
        "train_len": lengths.row_len,
        "max_position": config.max_position,
        "pose_method": config.pose.method,
        "num_chunks": config.pose.num_chunks,
        "pose_contents": config.pose.contents,
        "num_long_range": lengths.num_long_range,
    }
