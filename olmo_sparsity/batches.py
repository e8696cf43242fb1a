"""(seed, step) -> Batch: the same step always gives the same batch, whatever the world size and whatever came before.

Rows lie inside one document and are drawn uniformly, with replacement, from all places where one fits.
Legend: B rows, T tokens of a row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from olmo_sparsity.config import PoseConfig, UserError
from olmo_sparsity.positions import pose_positions
from olmo_sparsity.stores import TokenStore


@dataclass(frozen=True)
class Batch:
    """Training rows, each tensor int64 [B, T]; the target of a token is the one that follows it in the document."""

    tokens_BT: torch.Tensor
    positions_BT: torch.Tensor
    targets_BT: torch.Tensor


@dataclass(frozen=True)
class RowSource:
    """The places of a store where a training row and its last target fit.

    ``documents`` [D] (int64, those that hold one) and ``ends`` [D] (int64, cumulative number of places).
    """

    store: TokenStore
    row_len: int
    max_position: int
    documents: np.ndarray
    ends: np.ndarray


def row_source(store: TokenStore, row_len: int, max_position: int) -> RowSource:
    """Finds where training rows of ``row_len`` tokens fit; their position IDs are to lie below ``max_position``.

    Raises:
        UserError: no document is long enough for one row.
    """
    places = np.maximum(store.lengths - row_len, 0)
    documents = np.flatnonzero(places)
    if len(documents) == 0:
        longest = int(store.lengths.max()) if store.num_documents else 0
        raise UserError(
            f"the {store.split} split is too small: none of its {store.num_documents} documents holds a row of "
            f"{row_len} tokens and its last target (the longest has {longest}); take more or longer text, "
            "or a smaller context.train_len"
        )
    return RowSource(store, row_len, max_position, documents, np.cumsum(places[documents]))


def batch_at(source: RowSource, pose: PoseConfig, num_rows: int, seed: int, step: int) -> Batch:
    """The batch of one step: a pure function of its arguments.

    ``contents: contiguous``: consecutive text under PoSE's positions. ``contents: matched``: token t of a row is the
    document's token ``start + position_t``; a skip is then bounded by what the document holds, and the start is drawn
    anew among those that leave room.
    """
    rng = np.random.default_rng([seed, step])
    place = rng.integers(source.ends[-1], size=num_rows)
    which = np.searchsorted(source.ends, place, side="right")
    document = source.documents[which]
    offset = place - np.where(which > 0, source.ends[which - 1], 0)
    begin = source.store.begins[document]
    spare = source.store.ends[document] - begin - (source.row_len + 1)  # tokens beyond one row and its target
    matched = pose.contents == "matched"
    positions = pose_positions(
        rng,
        num_rows,
        source.row_len,
        source.max_position,
        pose.num_chunks,
        pose.vary_chunks,
        np.minimum(spare, source.max_position - source.row_len) if matched else None,
    )
    if matched:
        room = spare - (positions[:, -1] - (source.row_len - 1)) + 1
        offset = (rng.random(num_rows) * room).astype(np.int64)
        within = positions
    else:
        within = np.broadcast_to(np.arange(source.row_len), positions.shape)
    index = (begin + offset)[:, None] + within
    return Batch(
        torch.from_numpy(source.store.tokens[index].astype(np.int64)),
        torch.from_numpy(positions),
        torch.from_numpy(source.store.tokens[index + 1].astype(np.int64)),
    )
