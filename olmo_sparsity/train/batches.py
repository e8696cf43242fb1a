"""Training batches. A batch is a pure function of seed and step: it does not depend on the number of processes, nor on
what was drawn before.

A row lies inside one document. It is drawn uniformly, with replacement, from all places of the text where a row fits.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np
import torch

from olmo_sparsity.config import PoseConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.text.store import TokenStore
from olmo_sparsity.train.positions import chunk_shifts, chunk_starts, random_positions, shifted_range

IGNORE_INDEX = -100  # marks a target that is not trained; torch's cross_entropy ignores it by default


@dataclass(frozen=True)
class Batch:
    """Training rows, or one process's share of them.

    Attributes:
        tokens_BT: int64, token IDs.
        positions_BT: int64, position IDs.
        targets_BT: int64, the token to predict; ``IGNORE_INDEX`` where none is trained.
        num_targets: the number of trained targets of the whole batch, not only of the share: the divisor of a summed loss.
        target_positions_BT: int64, the position ID of each target, where the model learns to predict it, too; otherwise None.
    """

    tokens_BT: torch.Tensor
    positions_BT: torch.Tensor
    targets_BT: torch.Tensor
    num_targets: int
    target_positions_BT: Optional[torch.Tensor] = None

    @property
    def fields(self) -> tuple[torch.Tensor, ...]:
        """The tensors, in the order in which the loss takes them."""
        fields = (self.tokens_BT, self.positions_BT, self.targets_BT)
        return fields if self.target_positions_BT is None else (*fields, self.target_positions_BT)

    def pinned(self) -> Batch:
        """Return a copy in page-locked memory, from which a GPU copies while it computes."""
        tokens_BT, positions_BT, targets_BT, *others = (field.pin_memory() for field in self.fields)
        return Batch(tokens_BT, positions_BT, targets_BT, self.num_targets, *others)


@dataclass(frozen=True)
class RowSource:
    """The places of a store where a training row and its last target fit.

    Attributes:
        store: the text.
        row_len: T, the tokens of a row.
        max_position: position IDs lie below this, without the BOS in front.
        bos_id: token in front of every row, at position 0; the position IDs behind it are one higher. None: there is none.
        documents_g: int64, the documents that hold at least one row.
        place_ends_g: int64, the cumulative number of places in these documents.
    """

    store: TokenStore
    row_len: int
    max_position: int
    bos_id: Optional[int]
    documents_g: np.ndarray
    place_ends_g: np.ndarray


@dataclass(frozen=True)
class _DrawnRows:
    """Where the rows of a batch lie in the text, and their positions; int64.

    Attributes:
        begin_B: the token of the store where a row begins.
        offsets_BT: the distance of each token of the row from there, in tokens of the document.
        positions_BT: the position IDs.
    """

    begin_B: np.ndarray
    offsets_BT: np.ndarray
    positions_BT: np.ndarray


def row_source(store: TokenStore, *, row_len: int, max_position: int, bos_id: Optional[int] = None) -> RowSource:
    """Find the places where training rows of ``row_len`` tokens fit.

    Raises:
        UserError: no document is long enough for one row.
    """
    num_places_G = np.maximum(store.lengths_G - row_len, 0)
    documents_g = np.flatnonzero(num_places_G)
    if len(documents_g) == 0:
        longest = int(store.lengths_G.max()) if store.num_documents else 0
        raise UserError(
            f"the {store.split} split is too small: none of its {store.num_documents:,} documents holds a row of "
            f"{row_len} tokens and its last target (the longest has {longest}); use more or longer text, "
            "or a smaller context.train_len"
        )
    return RowSource(
        store=store,
        row_len=row_len,
        max_position=max_position,
        bos_id=bos_id,
        documents_g=documents_g,
        place_ends_g=np.cumsum(num_places_G[documents_g]),
    )


def _draw_rows(source: RowSource, pose: PoseConfig, *, rng: np.random.Generator, num_rows: int) -> _DrawnRows:
    row_len, max_position = source.row_len, source.max_position
    place_B = rng.integers(source.place_ends_g[-1], size=num_rows)
    index_B = np.searchsorted(source.place_ends_g, place_B, side="right")
    document_B = source.documents_g[index_B]
    start_B = place_B - np.where(index_B > 0, source.place_ends_g[index_B - 1], 0)
    document_begin_B = source.store.begins_G[document_B]
    # Tokens of the document beyond one row and its last target.
    spare_B = source.store.ends_G[document_B] - document_begin_B - (row_len + 1)
    offsets_BT = np.broadcast_to(np.arange(row_len), (num_rows, row_len))
    if pose.method == "randpos":
        positions_BT = random_positions(rng, num_rows, row_len=row_len, max_position=max_position)
        return _DrawnRows(document_begin_B + start_B, offsets_BT, positions_BT)
    starts_BC = chunk_starts(rng, num_rows, row_len=row_len, num_chunks=pose.num_chunks, vary_chunks=pose.vary_chunks)
    max_skip_B = np.full(num_rows, max_position - row_len)
    if pose.contents == "matched":
        max_skip_B = np.minimum(spare_B, max_skip_B)
    skips_BC = chunk_shifts(rng, starts_BC, row_len=row_len, max_shift_B=max_skip_B)
    positions_BT = shifted_range(starts_BC, skips_BC, row_len=row_len)
    if pose.contents == "matched":
        num_starts_B = spare_B - (positions_BT[:, -1] - (row_len - 1)) + 1
        start_B = (rng.random(num_rows) * num_starts_B).astype(np.int64)
        offsets_BT = positions_BT
    return _DrawnRows(document_begin_B + start_B, offsets_BT, positions_BT)


def batch_at(
    source: RowSource, pose: PoseConfig, *, num_rows: int, seed: int, step: int, rows: slice = slice(None)
) -> Batch:
    """Return the batch of one step, or a process's share of it. The result depends on the arguments alone.

    The random numbers of the whole batch are drawn for every share, so that the shares together are the whole batch. Only
    the text of the share is read.

    **Contents** (``pose.contents``). ``contiguous``: the text of a row is consecutive, while its positions jump. ``matched``:
    token t of a row is token ``start + position_t`` of the document. A skip is then
    limited by the length of the document, and ``start`` is drawn again among the places that leave room.

    **Targets.** The target is always the next token of the document, also where text or position IDs jump behind it.

    **BOS** (``context.bos``). It comes in front of the finished row, and has no target. Rows are those drawn without it.

    Args:
        source: the places to draw from.
        pose: how positions and contents are drawn.
        num_rows: B, the rows of the whole batch.
        seed: of training.
        step: the number of the batch.
        rows: the share of the rows that is returned.
    """
    drawn = _draw_rows(source, pose, rng=np.random.default_rng([seed, step]), num_rows=num_rows)
    index_bT = drawn.begin_B[rows, None] + drawn.offsets_BT[rows]
    tokens_bT = source.store.tokens.take(index_bT).astype(np.int64)
    targets_bT = source.store.tokens.take(index_bT + 1).astype(np.int64)
    positions_bT = drawn.positions_BT[rows]
    if source.bos_id is not None:
        tokens_bT = np.pad(tokens_bT, ((0, 0), (1, 0)), constant_values=source.bos_id)
        positions_bT = np.pad(positions_bT + 1, ((0, 0), (1, 0)), constant_values=0)
        targets_bT = np.pad(targets_bT, ((0, 0), (1, 0)), constant_values=IGNORE_INDEX)
    return Batch(
        tokens_BT=torch.from_numpy(tokens_bT),
        positions_BT=torch.from_numpy(positions_bT),
        targets_BT=torch.from_numpy(targets_bT),
        num_targets=num_rows * source.row_len,
    )
