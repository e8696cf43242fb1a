"""(seed, step) -> Batch: the same step always gives the same batch, whatever the world size and whatever came before.

Rows lie inside one document and are drawn uniformly, with replacement, from all places where one fits.
Legend: B rows, T tokens of a row, C chunks.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from olmo_sparsity.config import PoseConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.text.store import TokenStore
from olmo_sparsity.training.positions import chunk_shifts, chunk_starts, random_positions, shifted

IGNORE_INDEX = -100  # a target that is not trained: what torch's cross_entropy leaves out


@dataclass(frozen=True)
class Batch:
    """Training rows, each tensor int64 [B, T]; a target that is not trained is ``IGNORE_INDEX``.

    ``num_targets``: how many targets of the whole batch are trained, also where this is one process's share of its rows:
    what a summed loss is to be divided by.
    """

    tokens_BT: torch.Tensor
    positions_BT: torch.Tensor
    targets_BT: torch.Tensor
    num_targets: int

    def pinned(self) -> Batch:
        """The same in page-locked memory, from which a GPU copies while it computes."""
        tokens_BT, positions_BT, targets_BT = (
            tensor.pin_memory() for tensor in (self.tokens_BT, self.positions_BT, self.targets_BT)
        )
        return Batch(tokens_BT, positions_BT, targets_BT, self.num_targets)


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
    places = np.maximum(store.lengths_G - row_len, 0)
    documents = np.flatnonzero(places)
    if len(documents) == 0:
        longest = int(store.lengths_G.max()) if store.num_documents else 0
        raise UserError(
            f"the {store.split} split is too small: none of its {store.num_documents} documents holds a row of "
            f"{row_len} tokens and its last target (the longest has {longest}); take more or longer text, "
            "or a smaller context.train_len"
        )
    return RowSource(store, row_len, max_position, documents, np.cumsum(places[documents]))


def batch_at(
    source: RowSource, pose: PoseConfig, num_rows: int, seed: int, step: int, rows: slice = slice(None)
) -> Batch:
    """The batch of one step, or the share of it that ``rows`` names: a pure function of its arguments.

    The randomness of the whole batch is drawn whatever the share, so that shares put together are the whole batch; only
    the text of the share is read.

    **Contents.** ``contiguous``: consecutive text under jumping positions (PoSE's v_i = 0). ``matched``: token t of a row
    is the document's token ``start + position_t`` (v_i = u_i); a skip is then bounded by what the document holds, and the
    start is drawn anew among those that leave room. ``uniform``: PoSE's own law, v_i drawn as the skips are but
    independently of them, here from all that the document holds behind the row's place (its code looks at the first
    tokens of a document only, five rows of them).

    **Targets.** ``document``: the token that follows in the document, everywhere. ``row``: the token that follows in the
    row, as in PoSE's code, so that at a seam the model learns to predict a token from further on; the last token of a row,
    which has no target there, has the document's here. ``none``: as ``document``, but ``IGNORE_INDEX`` at a seam. A seam is
    where the next token of the row is not the next of the document or does not have the next position: read off the
    row, whatever was drawn, so a chunk with the same skip and text as the one before begins no seam.
    """
    rng = np.random.default_rng([seed, step])
    row_len, max_position = source.row_len, source.max_position
    place = rng.integers(source.ends[-1], size=num_rows)
    which = np.searchsorted(source.ends, place, side="right")
    document = source.documents[which]
    offset = place - np.where(which > 0, source.ends[which - 1], 0)
    begin = source.store.begins_G[document]
    spare = source.store.ends_G[document] - begin - (row_len + 1)  # tokens beyond one row and its target
    within = np.broadcast_to(np.arange(row_len), (num_rows, row_len))
    if pose.method == "randpos":
        positions = random_positions(rng, num_rows, row_len, max_position)
    else:
        starts = chunk_starts(rng, num_rows, row_len, pose.num_chunks, pose.vary_chunks, pose.cuts)
        max_skip = np.full(num_rows, max_position - row_len)
        if pose.contents == "matched":
            max_skip = np.minimum(spare, max_skip)
        positions = shifted(starts, chunk_shifts(rng, starts, row_len, max_skip, pose.skips), row_len)
        if pose.contents == "matched":
            room = spare - (positions[:, -1] - (row_len - 1)) + 1
            offset = (rng.random(num_rows) * room).astype(np.int64)
            within = positions
        elif pose.contents == "uniform":
            within = shifted(starts, chunk_shifts(rng, starts, row_len, spare - offset, pose.skips), row_len)

    num_targets = num_rows * row_len
    if pose.seam_targets == "none":
        seam_BT = (np.diff(within, axis=1) != 1) | (np.diff(positions, axis=1) != 1)
        num_targets -= int(seam_BT.sum())
    index = (begin + offset)[rows, None] + within[rows]
    row = source.store.tokens.take(index).astype(np.int64)
    targets = source.store.tokens.take(index + 1).astype(np.int64)
    if pose.seam_targets == "row":
        targets[:, :-1] = row[:, 1:]
    elif pose.seam_targets == "none":
        targets[:, :-1][seam_BT[rows]] = IGNORE_INDEX
    return Batch(torch.from_numpy(row), torch.from_numpy(positions[rows]), torch.from_numpy(targets), num_targets)
