"""Training batches. A batch is a function of seed and step: neither the number of processes nor earlier batches matter.

A row lies inside one document. It is drawn uniformly, with replacement, from all places of the text where a row fits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any, Optional

import numpy as np
import torch

from olmo_sparsity.config import Config, PoseConfig, require
from olmo_sparsity.files import read_manifest_of
from olmo_sparsity.text.prepare import prepare
from olmo_sparsity.text.store import TokenStore, open_store, verify_prepared
from olmo_sparsity.text.windows import few_documents
from olmo_sparsity.train.positions import chunk_shifts, chunk_starts, random_positions, shifted_range

logger = logging.getLogger(__name__)

IGNORE_INDEX = -100  # marks a target that is not trained; torch's cross_entropy ignores it by default
VALIDATION_SEED = 1_000_003  # of held-out rows, so that their random numbers are not those of a training step


@dataclass(frozen=True)
class Batch:
    """Training rows, or one process's share of them. The tensors are int64 [B, T]."""

    tokens_BT: torch.Tensor
    positions_BT: torch.Tensor
    targets_BT: torch.Tensor  # the token to predict; IGNORE_INDEX where none is trained
    num_targets: int  # trained targets of the whole batch, not only of the share: the divisor of a summed loss
    target_positions_BT: Optional[torch.Tensor] = None  # where the model learns to predict position IDs, too

    @property
    def fields(self) -> tuple[torch.Tensor, ...]:
        """The tensors, in the order in which the loss takes them."""
        fields = (self.tokens_BT, self.positions_BT, self.targets_BT)
        return fields if self.target_positions_BT is None else (*fields, self.target_positions_BT)

    def pinned(self) -> Batch:
        """A copy in page-locked memory, from which a GPU copies while it computes."""
        pinned: list[Any] = [value.pin_memory() if torch.is_tensor(value) else value for value in vars(self).values()]
        return Batch(*pinned)


@dataclass(frozen=True)
class TrainingData:
    """What a run is trained on: made here from text, in ``synthetic`` from generators."""

    vocab_size: int
    eos_id: int
    tokenizer_text: str  # the run's tokenizer.json
    manifest_entries: dict[str, Any]  # what the run's manifest records; tokens_sha256 identifies the data
    row_len: int  # T, without a BOS in front
    num_bos: int  # tokens in front of every row, 1 or 0
    described: str  # the rows in words, for the log
    draw: Callable[[int, slice], Batch]  # a share of the rows of the batch of a step
    # The same of held-out rows: drawn as training rows, and full_len consecutive tokens (None: no document is so long).
    draw_held_out: Callable[[slice], tuple[Batch, Optional[Batch]]]
    few_targets: bool = False  # most tokens of a row are no targets: compute only the logits of those that are


@dataclass(frozen=True)
class RowSource:
    """The places of a store where a training row and its last target fit."""

    store: TokenStore
    row_len: int  # T, without the BOS
    max_position: int  # position IDs lie below it, without the BOS
    bos_id: Optional[int]  # the token in front of every row, at position 0; the IDs behind it are one higher
    documents_g: np.ndarray  # int64, the documents that hold at least one row
    place_ends_g: np.ndarray  # int64, the cumulative number of places in these documents


def row_source(store: TokenStore, *, row_len: int, max_position: int, bos_id: Optional[int] = None) -> RowSource:
    """Places where rows of ``row_len`` tokens fit. UserError: no document is long enough for one."""
    num_places_G = np.maximum(store.lengths_G - row_len, 0)
    documents_g = np.flatnonzero(num_places_G)
    require(
        len(documents_g) > 0,
        f"the {store.split} split is too small: none of its {store.num_documents:,} documents holds a row of {row_len} tokens "
        f"and its last target (the longest has {store.lengths_G.max(initial=0)}); use more or longer text, or a smaller "
        "context.train_len",
    )
    return RowSource(store, row_len, max_position, bos_id, documents_g, np.cumsum(num_places_G[documents_g]))


def batch_at(
    source: RowSource, pose: PoseConfig, *, num_rows: int, seed: int, step: int, rows: slice = slice(None)
) -> Batch:
    """The batch of one step, or a process's share (``rows``) of its ``num_rows``.

    The random numbers of the whole batch are drawn for every share, so that the shares together are the whole batch.

    With ``pose.contents = contiguous`` the text of a row is consecutive, while its positions jump. With ``matched`` token t
    of a row is token ``start + position_t`` of the document: a skip is then limited by the length of the document, and
    ``start`` is drawn again among the places that leave room. The target is always the next token of the document, also
    where text or position IDs jump behind it. A BOS comes in front of the finished row, and has no target.
    """
    rng, row_len, store = np.random.default_rng([seed, step]), source.row_len, source.store
    place_B = rng.integers(source.place_ends_g[-1], size=num_rows)
    index_B = np.searchsorted(source.place_ends_g, place_B, side="right")
    start_B = place_B - np.where(index_B > 0, source.place_ends_g[index_B - 1], 0)
    document_B = source.documents_g[index_B]
    begin_B = store.begins_G[document_B]
    offsets_BT = np.broadcast_to(np.arange(row_len), (num_rows, row_len))
    if pose.method == "randpos":
        positions_BT = random_positions(rng, num_rows, row_len=row_len, max_position=source.max_position)
    else:
        starts_BC = chunk_starts(
            rng, num_rows, row_len=row_len, num_chunks=pose.num_chunks, vary_chunks=pose.vary_chunks
        )
        max_skip_B = np.full(num_rows, source.max_position - row_len)
        spare_B = store.ends_G[document_B] - begin_B - (row_len + 1)  # beyond one row and its last target
        if pose.contents == "matched":
            max_skip_B = np.minimum(spare_B, max_skip_B)
        skips_BC = chunk_shifts(rng, starts_BC, row_len=row_len, max_shift_B=max_skip_B)
        positions_BT = shifted_range(starts_BC, skips_BC, row_len=row_len)
        if pose.contents == "matched":
            num_starts_B = spare_B - (positions_BT[:, -1] - (row_len - 1)) + 1
            start_B = (rng.random(num_rows) * num_starts_B).astype(np.int64)
            offsets_BT = positions_BT
    index_bT = (begin_B + start_B)[rows, None] + offsets_BT[rows]
    tokens_bT, targets_bT = (store.tokens[at].astype(np.int64) for at in (index_bT, index_bT + 1))
    positions_bT = positions_BT[rows]
    if source.bos_id is not None:
        bos = ((0, 0), (1, 0))
        tokens_bT = np.pad(tokens_bT, bos, constant_values=source.bos_id)
        positions_bT = np.pad(positions_bT + 1, bos)
        targets_bT = np.pad(targets_bT, bos, constant_values=IGNORE_INDEX)
    tokens, positions, targets = map(torch.from_numpy, (tokens_bT, positions_bT, targets_bT))
    return Batch(tokens, positions, targets, num_targets=num_rows * row_len)


def open_training_text(config: Config) -> TrainingData:
    """Prepare the text if it is not prepared yet, and open it. UserError: it is not usable, or too short."""
    row_len, full_len, training, pose = config.context.row_len, config.context.full_len, config.training, config.pose
    require(
        pose.num_chunks <= row_len,
        f"pose.num_chunks = {pose.num_chunks}: must be at most {row_len}, the tokens of a training row",
    )
    folder = prepare(config.data)
    verify_prepared(folder)
    store, held_out = open_store(folder, "train"), open_store(folder, "validation")
    if few := few_documents(held_out.doc_ids_G[held_out.lengths_G - 1 > full_len], config.data.validation_percent):
        logger.warning(few)
    manifest = read_manifest_of(folder, "eos_id", "vocab_size")
    bos_id, max_position = manifest["eos_id"] if config.context.bos else None, config.max_position
    source = row_source(store, row_len=row_len, max_position=max_position, bos_id=bos_id)
    held_out_source = row_source(held_out, row_len=row_len, max_position=max_position, bos_id=bos_id)

    def draw(step: int, rows: slice) -> Batch:
        return batch_at(source, pose, num_rows=training.batch_rows, seed=training.seed, step=step, rows=rows)

    def draw_held_out(rows: slice) -> tuple[Batch, Optional[Batch]]:
        drawn = partial(batch_at, num_rows=training.eval_rows, seed=VALIDATION_SEED, rows=rows)
        like_training = drawn(held_out_source, pose, step=0)
        if int(held_out.lengths_G.max()) <= full_len:
            return like_training, None
        windows = row_source(held_out, row_len=full_len, max_position=full_len, bos_id=bos_id)
        return like_training, drawn(windows, PoseConfig(num_chunks=1), step=1)

    counts = f"{len(source.documents_g):,} of {store.num_documents:,} documents"
    return TrainingData(
        vocab_size=manifest["vocab_size"],
        eos_id=manifest["eos_id"],
        tokenizer_text=(folder / "tokenizer.json").read_text(encoding="utf-8"),
        manifest_entries={
            "token_store": str(folder.resolve()),
            "tokens_sha256": store.tokens_sha256,
            "tokenizer_sha256": manifest["tokenizer_sha256"],
        },
        row_len=row_len,
        num_bos=int(config.context.bos),
        described=f"rows of {row_len} tokens (from {counts}; the others are shorter){', a BOS in front' * config.context.bos}",
        draw=draw,
        draw_held_out=draw_held_out,
    )


def drawn_ahead(draw: Callable[[int], Batch], steps: range, *, pin: bool) -> Iterator[Batch]:
    """Yield the batch of each step, pinned for a GPU. A thread draws the next one while the current one is used."""

    def drawn(step: int) -> Batch:
        return draw(step).pinned() if pin else draw(step)

    with ThreadPoolExecutor(1, "batches") as thread:
        upcoming = [thread.submit(drawn, step) for step in steps[:1]]
        for step in steps:
            batch = upcoming.pop().result()
            upcoming += [thread.submit(drawn, next_step) for next_step in (step + 1,) if next_step in steps]
            yield batch
