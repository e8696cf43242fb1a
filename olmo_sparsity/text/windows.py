"""Windows of consecutive tokens inside one document.

Shape letters: W windows, T tokens of a window, G documents of the store, V vocabulary entries; in lower case some of them.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from typing import Optional

import numpy as np

from olmo_sparsity.errors import UserError
from olmo_sparsity.text.store import TokenStore
from olmo_sparsity.text.target_draw import draw_targets


@dataclass(frozen=True)
class Windows:
    """Windows of one store: ``full_len`` tokens of one document, and the next token, which is the target.

    Attributes:
        store: the text that the windows are taken from.
        full_len: tokens of a window, without the target.
        min_preceding: tokens that the document of a window has before the target, at least ``full_len``.
        document_W: int64; number of each window's document in the store.
        start_W: int64; index in ``store.tokens`` of each window's first token.
        weight_W: float64; weight of each window in every mean over windows.
        eligible_g: int64, rising; numbers of the documents that windows may be drawn from, which hold at least one.
    """

    store: TokenStore
    full_len: int
    min_preceding: int
    document_W: np.ndarray
    start_W: np.ndarray
    weight_W: np.ndarray
    eligible_g: np.ndarray

    def __len__(self) -> int:
        return len(self.start_W)

    @property
    def num_documents(self) -> int:
        """Number of documents that the windows come from. Equal texts count once."""
        return len(np.unique(self.store.doc_ids_G[self.document_W]))

    def doc_ids(self, window_ids_w: np.ndarray) -> list[str]:
        """Return the document ID of each of these windows in hexadecimal, as the tables name it."""
        return [f"{int(i):016x}" for i in self.store.doc_ids_G[self.document_W[window_ids_w]]]

    @property
    def sha256(self) -> str:
        """Hash that identifies which windows of the store these are, and their weights."""
        digest = hashlib.sha256(np.stack([self.document_W, self.start_W]).tobytes())
        digest.update(self.weight_W.tobytes())
        return digest.hexdigest()

    def tokens(self, window_ids_w: np.ndarray) -> np.ndarray:
        """Return the tokens of these windows, int64 [w, full_len + 1]; the target is the last one."""
        index_wT = self.start_W[window_ids_w, None] + np.arange(self.full_len + 1)
        return self.store.tokens[index_wT].astype(np.int64)


def sample_windows(
    store: TokenStore,
    full_len: int,
    *,
    num_windows: int,
    max_per_document: int,
    seed: int,
    min_preceding: Optional[int] = None,
    exclude_ids: Optional[np.ndarray] = None,
    target_table_V: Optional[np.ndarray] = None,
) -> Windows:
    """Draw windows: every eligible target has the same chance, and weights make up for documents that are full.

    Window ``i`` does not depend on ``num_windows``; its weight may. The windows of a document have different targets; EOS is
    never a target. Neither the targets nor their weights depend on ``full_len`` where ``min_preceding`` is given.

    Args:
        store: the text to draw from.
        full_len: tokens of a window.
        num_windows: number of windows; fewer are returned if the store holds fewer.
        max_per_document: largest number of windows of one document.
        seed: seed of the draw.
        min_preceding: tokens that a target must have before it in its document, at least ``full_len``. None: ``full_len``.
        exclude_ids: uint64 [any]; IDs of documents that must not be used, those that the model was trained on.
        target_table_V: bool; True for tokens that may be targets. None: all tokens may.

    Raises:
        UserError: no document holds a window.
    """
    min_preceding = full_len if min_preceding is None else min_preceding
    eligible_g = _eligible_documents(store, min_preceding, exclude_ids=exclude_ids)
    drawn = draw_targets(
        store,
        min_preceding,
        documents_g=eligible_g,
        num_windows=num_windows,
        max_per_document=max_per_document,
        seed=seed,
        target_table_V=target_table_V,
    )
    if len(drawn.document_W) == 0:
        raise UserError("influence.targets = word-start: no token of the measured text begins a word")
    return Windows(
        store=store,
        full_len=full_len,
        min_preceding=min_preceding,
        document_W=drawn.document_W,
        start_W=drawn.target_W - full_len,
        weight_W=drawn.weight_W,
        eligible_g=eligible_g,
    )


def _eligible_documents(store: TokenStore, min_preceding: int, *, exclude_ids: Optional[np.ndarray]) -> np.ndarray:
    """Return the numbers of the documents, int64 [g], that hold so many tokens and a target, and are not excluded."""
    is_eligible_G = store.lengths_G - 1 >= min_preceding + 1
    num_long_enough = int(is_eligible_G.sum())
    if exclude_ids is not None:
        is_eligible_G &= ~_is_among(store.doc_ids_G, exclude_ids)
    eligible_g = np.flatnonzero(is_eligible_G)
    if len(eligible_g) == 0:
        longest = int(store.lengths_G.max() - 1) if store.num_documents else 0
        left_out = ""
        if num_long_enough:
            left_out = f", {num_long_enough} of them left out: the model was trained on them"
        raise UserError(
            f"the text to measure is too small: {num_long_enough:,} of its {store.num_documents:,} documents hold a window of "
            f"{min_preceding} tokens and its target{left_out} (the longest document has {longest} tokens); use longer text, or "
            "shorter windows (--full-len; influence.min_preceding, if it is set)"
        )
    return eligible_g


def _is_among(ids: np.ndarray, others: np.ndarray) -> np.ndarray:
    """Return bool [ids]: True for IDs that ``others`` holds.

    ``others`` is memory-mapped and may have hundreds of millions of entries, so it is read in blocks.
    """
    distinct, which = np.unique(ids, return_inverse=True)
    is_among = np.zeros(len(distinct), dtype=bool)
    for begin in range(0, len(others) if len(distinct) else 0, 1 << 20):
        block = others[begin : begin + (1 << 20)]
        place = np.minimum(np.searchsorted(distinct, block), len(distinct) - 1)
        is_among[place[distinct[place] == block]] = True
    return is_among[which]
