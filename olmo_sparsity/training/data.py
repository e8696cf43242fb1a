"""The text of a training run: where training rows are drawn from, held-out rows, and batches prepared ahead of time."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch

from olmo_sparsity.config import Config, PoseConfig
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.text.preparation import prepare
from olmo_sparsity.text.store import TokenStore, open_store
from olmo_sparsity.torchrun import ProcessInfo
from olmo_sparsity.training.batches import Batch, RowSource, batch_at, row_source
from olmo_sparsity.training.evaluation import EvaluationRows
from olmo_sparsity.training.processes import share_of_rows

logger = logging.getLogger(__name__)

VALIDATION_SEED = 1_000_003  # of held-out rows, so that their random numbers are not those of a training step


@dataclass(frozen=True)
class TrainingText:
    """The prepared text of a run.

    Attributes:
        folder: of the token files and the tokenizer.
        vocab_size: entries of the tokenizer.
        eos_id: the token that ends every document.
        tokenizer_sha256: hash of the tokenizer.
        tokens_sha256: hash of the training split.
        num_documents: of the training split.
        rows: where training rows are drawn from.
        evaluation_rows: this process's share of the held-out rows.
    """

    folder: Path
    vocab_size: int
    eos_id: int
    tokenizer_sha256: str
    tokens_sha256: str
    num_documents: int
    rows: RowSource
    evaluation_rows: EvaluationRows


def _evaluation_rows(held_out: TokenStore, config: Config, *, share: slice, bos_id: Optional[int]) -> EvaluationRows:
    full_len, eval_rows = config.context.full_len, config.training.eval_rows
    source = row_source(held_out, row_len=config.context.row_len, max_position=config.max_position, bos_id=bos_id)
    like_training = batch_at(source, config.pose, num_rows=eval_rows, seed=VALIDATION_SEED, step=0, rows=share)
    if int(held_out.lengths_G.max()) <= full_len:
        logger.debug(f"no held-out document has more than {full_len} tokens: losses by position are not measured")
        return EvaluationRows(like_training, consecutive=None, num_bos=config.context.bos)
    windows = row_source(held_out, row_len=full_len, max_position=full_len, bos_id=bos_id)
    no_skips = PoseConfig(num_chunks=1)
    consecutive = batch_at(windows, no_skips, num_rows=eval_rows, seed=VALIDATION_SEED, step=1, rows=share)
    return EvaluationRows(like_training, consecutive, num_bos=config.context.bos)


def open_training_text(config: Config, process: ProcessInfo) -> TrainingText:
    """Prepare the text if it is not prepared yet, and open it.

    Raises:
        UserError: the text is not usable, or too short for the configuration.
    """
    folder = prepare(config.data)
    store, held_out = open_store(folder, "train"), open_store(folder, "validation")
    manifest = read_json(folder / "manifest.json")
    share = share_of_rows(config.training.eval_rows, process, key="training.eval_rows")
    bos_id = manifest["eos_id"] if config.context.bos else None
    return TrainingText(
        folder=folder,
        vocab_size=manifest["vocab_size"],
        eos_id=manifest["eos_id"],
        tokenizer_sha256=manifest["tokenizer_sha256"],
        tokens_sha256=store.tokens_sha256,
        num_documents=store.num_documents,
        rows=row_source(store, row_len=config.context.row_len, max_position=config.max_position, bos_id=bos_id),
        evaluation_rows=_evaluation_rows(held_out, config, share=share, bos_id=bos_id),
    )


def training_batches(
    config: Config, text: TrainingText, *, steps: range, process: ProcessInfo, device: torch.device
) -> Iterator[Batch]:
    """Yield this process's share of the batch of each step. A thread draws the next batch while the current one is used."""
    num_rows = config.training.batch_rows
    share = share_of_rows(num_rows, process, key="training.batch_rows")

    def draw(step: int) -> Batch:
        batch = batch_at(text.rows, config.pose, num_rows=num_rows, seed=config.training.seed, step=step, rows=share)
        return batch.pinned() if device.type == "cuda" else batch

    if not steps:
        return
    with ThreadPoolExecutor(1, "batches") as thread:
        upcoming = thread.submit(draw, steps[0])
        for step in steps:
            batch = upcoming.result()
            if step + 1 < steps.stop:
                upcoming = thread.submit(draw, step + 1)
            yield batch
