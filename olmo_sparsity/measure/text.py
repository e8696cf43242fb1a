"""The text that a model is measured on: documents that a run was not trained on, or text for a pretrained model."""

from __future__ import annotations

import dataclasses
import logging
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
from tokenizers import Tokenizer

from olmo_sparsity.config import DataConfig, InfluenceConfig, read_config_of
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import need, read_manifest_of
from olmo_sparsity.text.prepare import prepare
from olmo_sparsity.text.store import TokenStore, is_prepared, open_store, verify_prepared

logger = logging.getLogger(__name__)

C4_DOCUMENTS_PER_WINDOW = 20  # enough for most windows to come from different documents, however long they must be


@dataclass(frozen=True)
class MeasuredText:
    """The text to measure a model on.

    Attributes:
        store: its documents.
        source: where it comes from, as the configuration names it.
        split: ``validation`` of a run's own text, ``held-out``: other text than that of the run, or ``measured``: any text, for
            a pretrained model, of which it is unknown what it was trained on.
        training_store: the documents that the model was trained on; None: they are unknown.
        excluded_ids_G: uint64, IDs of documents that must not be measured because the model was trained on them; None where
            ``store`` has none of them.
    """

    store: TokenStore
    source: str
    split: str
    training_store: Optional[TokenStore]
    excluded_ids_G: Optional[np.ndarray]


def text_of_run(data: DataConfig, settings: InfluenceConfig, *, run: Path, manifest: dict[str, Any]) -> MeasuredText:
    """Open the text to measure a trained run on.

    Args:
        data: the text that the run was trained on.
        settings: other text, if it names some.
        run: folder of the trained run.
        manifest: of that run.

    Raises:
        UserError: the text is not usable, or the training text has changed.
    """
    if "token_store" not in manifest:
        raise UserError(
            f"{run}: this run was trained on a synthetic task and has no text; measure it with `olmo-sparsity synth`"
        )
    need(manifest, "tokens_sha256", where=run / "manifest.json")
    trained_on = _training_tokens(run, manifest, cache_dir=data.cache_dir)
    verify_prepared(trained_on)
    training_store = open_store(trained_on, "train")
    if training_store.tokens_sha256 != manifest["tokens_sha256"]:
        raise UserError(
            f"{run}: data.source = {data.source} has changed since this run was trained on it, so it is unknown which "
            "documents the model has not seen; restore the text"
        )
    source = settings.data
    if source is None:
        return MeasuredText(
            open_store(trained_on, "validation"),
            source=data.source,
            split="validation",
            training_store=training_store,
            excluded_ids_G=None,
        )
    measured = prepare(_data_to_measure(data, settings), tokenizer_file=run / "tokenizer.json")
    verify_prepared(measured)
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


def text_of_pretrained(
    data: DataConfig, settings: InfluenceConfig, *, tokenizer: Tokenizer, eos_token: str
) -> MeasuredText:
    """Open the text to measure a pretrained model on, tokenized by the model's own tokenizer.

    Args:
        data: the text.
        settings: other text, if it names some.
        tokenizer: of the model.
        eos_token: the token that ends every document in the token files.

    Raises:
        UserError: the text is not usable.
    """
    data = dataclasses.replace(_data_to_measure(data, settings), eos_token=eos_token)
    with tempfile.TemporaryDirectory() as folder:
        tokenizer_file = Path(folder) / "tokenizer.json"
        tokenizer_file.write_text(tokenizer.to_str(), encoding="utf-8")
        prepared = prepare(data, tokenizer_file=tokenizer_file)
    verify_prepared(prepared)
    return MeasuredText(
        open_store(prepared, "measured"),
        source=data.source,
        split="measured",
        training_store=None,
        excluded_ids_G=None,
    )


def _data_to_measure(data: DataConfig, settings: InfluenceConfig) -> DataConfig:
    """Return how the text is read: ``influence.data`` as ``data``, with a limit of its own; or ``data`` itself."""
    if settings.data is not None:
        data = dataclasses.replace(data, source=settings.data, max_documents=None, max_tokens=None)
    max_documents = settings.max_documents or data.max_documents
    if max_documents is None and data.max_tokens is None and data.source == "c4":
        max_documents = C4_DOCUMENTS_PER_WINDOW * settings.num_windows
    return dataclasses.replace(data, max_documents=max_documents)


def _training_tokens(run: Path, manifest: dict[str, Any], *, cache_dir: str) -> Path:
    """Return the folder of the token files that a run was trained on; make them again if they are gone."""
    folder = Path(manifest["token_store"])
    if is_prepared(folder):
        return folder
    logger.info(f"{folder}: the token files of this run are gone; preparing the text again")
    return prepare(dataclasses.replace(read_config_of(run).data, cache_dir=cache_dir))


def _made_from(folder: Path) -> Any:
    """Return whether token files were made from text or from other token files."""
    return read_manifest_of(folder, "made_from")["made_from"]
