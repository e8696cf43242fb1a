"""What a run is trained on: batches, each a function of its step alone, drawn ahead of time, and held-out rows.

``TrainingData`` is what the loop asks for. Here it is made from text; synthetic tasks make it from generators.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Optional

import torch

from olmo_sparsity.config import Config, PoseConfig, require
from olmo_sparsity.files import read_manifest_of
from olmo_sparsity.text.preparation import prepare
from olmo_sparsity.text.store import TokenStore, open_store
from olmo_sparsity.text.verification import verify_prepared
from olmo_sparsity.torchrun import ProcessInfo
from olmo_sparsity.train.batches import Batch, batch_at, row_source
from olmo_sparsity.train.evaluation import EvaluationRows
from olmo_sparsity.train.processes import share_of_rows

logger = logging.getLogger(__name__)

LEAST_VOCABULARY = 257  # of a byte-level tokenizer, with the token that ends documents
VALIDATION_SEED = 1_000_003  # of held-out rows, so that their random numbers are not those of a training step


@dataclass(frozen=True)
class TrainingData:
    """What a run is trained on.

    Attributes:
        vocab_size: entries of the tokenizer.
        eos_id: the token that ends every document.
        tokenizer_text: the run's ``tokenizer.json``.
        manifest_entries: what the manifest of the run records of the data; ``tokens_sha256`` identifies it.
        row_len: T, the tokens of a row, without a BOS in front.
        num_bos: the number of tokens in front of every row, 1 or 0.
        described: the rows, in words, for the log.
        draw: returns this process's share of the batch of a step; a pure function.
        evaluation_rows: this process's share of the held-out rows.
        few_targets: most tokens of a row are no targets, so that only the logits of those that are should be computed.
    """

    vocab_size: int
    eos_id: int
    tokenizer_text: str
    manifest_entries: dict[str, Any]
    row_len: int
    num_bos: int
    described: str
    draw: Callable[[int], Batch]
    evaluation_rows: EvaluationRows
    few_targets: bool = False

    def share_with_logits(self, config: Config) -> float:
        """Return the fraction of tokens behind which logits are computed, of held-out rows, which are drawn as training rows."""
        num_tokens = config.training.eval_rows * self.row_len
        return self.evaluation_rows.like_training.num_targets / num_tokens if self.few_targets else 1.0


@dataclass(frozen=True)
class DataSource:
    """Where a run's training data comes from: text, or a synthetic task.

    Attributes:
        open: opens the data of an experiment for one process. Raises UserError where it is not usable.
        row_len: returns T, the tokens of a row, without a BOS in front.
        least_vocab_size: returns a number of entries that the tokenizer has at least.
        least_logits: returns for how many tokens of a row logits are computed at least.
        is_synthetic: a synthetic task.
    """

    open: Callable[[Config, ProcessInfo], TrainingData]
    row_len: Callable[[Config], int]
    least_vocab_size: Callable[[Config], int]
    least_logits: Callable[[Config], int]
    is_synthetic: bool


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


def open_training_text(config: Config, process: ProcessInfo) -> TrainingData:
    """Prepare the text if it is not prepared yet, and open it.

    Raises:
        UserError: the text is not usable, or too short for the configuration, or a row has fewer tokens than chunks.
    """
    num_chunks, row_len = config.pose.num_chunks, config.context.row_len
    require(
        num_chunks <= row_len,
        f"pose.num_chunks = {num_chunks}: must be at most {row_len}, the tokens of a training row",
    )
    folder = prepare(config.data)
    verify_prepared(folder)
    store, held_out = open_store(folder, "train"), open_store(folder, "validation")
    manifest = read_manifest_of(folder, "eos_id", "vocab_size")
    bos_id = manifest["eos_id"] if config.context.bos else None
    rows = row_source(store, row_len=config.context.row_len, max_position=config.max_position, bos_id=bos_id)
    num_rows = config.training.batch_rows
    share = share_of_rows(num_rows, process, key="training.batch_rows")
    eval_share = share_of_rows(config.training.eval_rows, process, key="training.eval_rows")

    def draw(step: int) -> Batch:
        return batch_at(rows, config.pose, num_rows=num_rows, seed=config.training.seed, step=step, rows=share)

    return TrainingData(
        vocab_size=manifest["vocab_size"],
        eos_id=manifest["eos_id"],
        tokenizer_text=(folder / "tokenizer.json").read_text(encoding="utf-8"),
        manifest_entries={
            "token_store": str(folder.resolve()),
            "tokens_sha256": store.tokens_sha256,
            "tokenizer_sha256": manifest["tokenizer_sha256"],
        },
        row_len=config.context.row_len,
        num_bos=int(config.context.bos),
        described=f"rows of {config.context.row_len} tokens (from {len(rows.documents_g):,} of {store.num_documents:,} "
        f"documents; the others are shorter){', a BOS in front' * config.context.bos}",
        draw=draw,
        evaluation_rows=_evaluation_rows(held_out, config, share=eval_share, bos_id=bos_id),
    )


def _least_vocab_size(config: Config) -> int:
    match = re.fullmatch("bpe:([0-9]{1,6})", config.data.tokenizer)
    return int(match[1]) if match else LEAST_VOCABULARY


TEXT = DataSource(
    open_training_text,
    row_len=lambda config: config.context.row_len,
    least_vocab_size=_least_vocab_size,
    least_logits=lambda config: config.context.row_len,
    is_synthetic=False,
)


def training_batches(data: TrainingData, *, steps: range, device: torch.device) -> Iterator[Batch]:
    """Yield this process's share of the batch of each step. A thread draws the next batch while the current one is used."""

    def draw(step: int) -> Batch:
        batch = data.draw(step)
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
