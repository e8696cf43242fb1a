"""A trained run -> its model, and text that it was not trained on: what every measurement begins with."""

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
from olmo_sparsity.model import checkpoint as checkpoints
from olmo_sparsity.model.devices import pick_device, take_own_gpu
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.text.preparation import prepare
from olmo_sparsity.text.store import TokenStore, is_prepared, open_store
from olmo_sparsity.text.vocabulary import read_tokenizer, word_start_table
from olmo_sparsity.text.windows import Windows, sample_windows

logger = logging.getLogger(__name__)

C4_DOCUMENTS_A_WINDOW = 20  # enough that most windows come from documents of their own, however long they must be


@dataclass(frozen=True)
class OpenedRun:
    """A run's model in evaluation mode, and the text to measure it on.

    ``facts`` are the checkpoint's (``step``, ``sha256``), ``manifest`` the run's, ``excluded`` [documents] (uint64) the
    documents that may not be measured, None where the store holds none of them.
    """

    model: OLMoWithPositions
    device: torch.device
    tokenizer: Tokenizer
    store: TokenStore
    excluded: Optional[np.ndarray]
    source: str
    split: str
    facts: dict[str, Any]
    manifest: dict[str, Any]

    def windows(self, config: Config, full_len: int) -> Windows:
        """Windows of ``full_len`` tokens, as many and of such targets as ``config.influence`` says.

        Raises:
            UserError: the text holds none.
        """
        settings = config.influence
        return sample_windows(
            self.store,
            full_len,
            num_windows=settings.num_windows,
            max_per_document=settings.max_windows_per_document,
            seed=settings.seed,
            exclude_ids=self.excluded,
            target_table_V=word_start_table(self.tokenizer) if settings.targets == "word-start" else None,
        )


def open_run(config: Config, run: Path, max_position: Optional[int] = None) -> OpenedRun:
    """Loads a run's newest checkpoint, and opens its validation documents or the text ``influence.data`` names.

    Args:
        config: which text, on which device.
        run: folder of the trained run.
        max_position: position IDs lie below this; None: those of training.

    Raises:
        UserError: the run or the text is not usable.
    """
    settings = config.influence
    latest = checkpoints.latest_checkpoint(run / "checkpoints")
    if latest is None:
        raise UserError(
            f"{run}: there is no checkpoint in this run; train it first with `olmo-sparsity train --run {run}`"
        )
    take_own_gpu(config.training.device)
    device = pick_device(config.training.device)
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    model = checkpoints.load_model(latest, device, max_position)
    manifest = read_json(run / "manifest.json")

    trained_on = Path(manifest["token_store"])
    if not is_prepared(trained_on):
        logger.info(f"{trained_on}: the run's token files are gone, so the text is prepared again")
        trained_on = prepare(DataConfig(**{**manifest["config"]["data"], "cache_dir": config.data.cache_dir}))
    training_store = open_store(trained_on, "train")
    if training_store.tokens_sha256 != manifest["tokens_sha256"]:
        raise UserError(
            f"{run}: data.source = {config.data.source} is not the text any more that this run was trained on, so what "
            "is held out cannot be told; restore it, or train again"
        )
    if settings.data is None:
        source, split = config.data.source, "validation"
        store, excluded = open_store(trained_on, split), None
    else:
        source, split = settings.data, "held-out"
        limit = settings.max_documents
        if limit is None and source == "c4":
            limit = C4_DOCUMENTS_A_WINDOW * settings.num_windows
        text = dataclasses.replace(config.data, source=source, max_documents=limit, max_tokens=None)
        measured = prepare(text, tokenizer_file=run / "tokenizer.json")
        store, excluded = open_store(measured, "measured"), training_store.doc_ids_G
        if len({read_json(folder / "manifest.json")["made_from"] for folder in (trained_on, measured)}) > 1:
            logger.info(
                f"{source}: documents of text are known by their characters, those of token files by their tokens, so what "
                "the model was trained on cannot be left out here"
            )
    return OpenedRun(
        model=model,
        device=device,
        tokenizer=read_tokenizer(run / "tokenizer.json"),
        store=store,
        excluded=excluded,
        source=source,
        split=split,
        facts=read_json(latest / "train.json"),  # which load_model has verified
        manifest=manifest,
    )


def lengths_record(config: Config) -> dict[str, Any]:
    """The lengths of an experiment, as manifests and summaries give them."""
    context = config.context
    return {
        "local_len": context.local_len,
        "full_len": context.full_len,
        "train_len": context.row_len,
        "max_position": config.max_position,
        "pose_method": config.pose.method,
        "num_chunks": config.pose.num_chunks,
        "pose_contents": config.pose.contents,
        "num_long_range": context.num_long_range,
    }
