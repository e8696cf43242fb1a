"""Null contexts: the tokens that take the place of a window's long-range tokens.

Shape letters: G documents of the store, W windows, M long-range positions; g and w: some of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from olmo_sparsity.config import NullContext
from olmo_sparsity.text.windows import Windows

STRETCHES, SHUFFLES = 2, 22  # purposes of random generators; a change would change the null contexts


@dataclass(frozen=True)
class NullContexts:
    """The null context of every window.

    Attributes:
        windows: the windows.
        num_long_range: M, the number of long-range tokens of a window.
        seed: of the draw.
        start_W: int64; index in the store's tokens of the first token of each null context, before it is shuffled.
        kind: what they are.
    """

    windows: Windows
    num_long_range: int
    seed: int
    start_W: np.ndarray
    kind: NullContext

    def places(self, window_ids_w: np.ndarray) -> np.ndarray:
        """Return where the long-range tokens of the null context of these windows stand in the store, int64 [w, M]."""
        index_wM = self.start_W[window_ids_w, None] + np.arange(self.num_long_range)
        if self.kind == "shuffled":
            for row, window in enumerate(window_ids_w.tolist()):
                index_wM[row] = np.random.default_rng([self.seed, SHUFFLES, window]).permutation(index_wM[row])
        return index_wM

    def tokens(self, window_ids_w: np.ndarray) -> np.ndarray:
        """Return the long-range tokens of the null context of these windows, int64 [w, M]."""
        return self.windows.store.tokens[self.places(window_ids_w)].astype(np.int64)

    def window_tokens(self, window_ids_w: np.ndarray) -> np.ndarray:
        """Return the tokens of these windows under their null context, int64 [w, full_len + 1]; the target is the last one."""
        tokens_wT = self.windows.tokens(window_ids_w)
        tokens_wT[:, : self.num_long_range] = self.tokens(window_ids_w)
        return tokens_wT

    def doc_ids(self, window_ids_w: np.ndarray) -> list[str]:
        """Return the ID of the document that each null context is taken from, in hexadecimal."""
        store = self.windows.store
        return [f"{int(i):016x}" for i in store.doc_ids_G[store.document_of(self.start_W[window_ids_w])]]


def draw_null_contexts(windows: Windows, num_long_range: int, *, kind: NullContext, seed: int) -> NullContexts:
    """Draw the null context of every window; each is a function of the seed, the window's number and the window.

    It is drawn as for a window of ``min_preceding`` tokens, and its last M tokens are taken. So the null contexts of the same
    targets at several lengths are ends of one text, as their long-range tokens are; ``shuffled`` has another order at each.

    Args:
        windows: the windows.
        num_long_range: M, the number of long-range tokens of a window.
        kind: ``document``: from a window of another document, of the same source where that has one, drawn uniformly, then the
            place; ``shuffled``: the window's own long-range tokens in random order. Where all text is one document, or copies
            of it, every window is shuffled.
        seed: seed of the draw.
    """
    doc_id_g = windows.store.doc_ids_G[windows.eligible_g]
    if kind == "shuffled" or not (doc_id_g != doc_id_g[0]).any():
        return NullContexts(windows, num_long_range, seed, windows.start_W.astype(np.int64), "shuffled")
    of_source, of_any = _Lenders(windows, by_source=True), None
    start_W = np.empty(len(windows), dtype=np.int64)
    for window in range(len(windows)):
        rng = np.random.default_rng([seed, STRETCHES, window])
        start = of_source.draw(window, rng)
        if start is None:  # no document of another text in this source
            of_any = of_any or _Lenders(windows, by_source=False)
            start = of_any.draw(window, rng)
        assert start is not None, "there is a document of another text"
        start_W[window] = start + windows.min_preceding - windows.full_len
    return NullContexts(windows, num_long_range, seed, start_W, "document")


class _Lenders:
    """The documents that null contexts are taken from, grouped by source or all in one group."""

    def __init__(self, windows: Windows, *, by_source: bool) -> None:
        store, eligible_g = windows.store, windows.eligible_g
        source_g = store.source_numbers(eligible_g) if by_source else np.zeros(len(eligible_g), dtype=np.int64)
        order_g = np.argsort(source_g, kind="stable")
        self._windows = windows
        self._document_g = eligible_g[order_g]
        self._doc_id_g = store.doc_ids_G[self._document_g]
        # Group of each window: documents begin .. end - 1 of those in order.
        source_W = store.source_numbers(windows.document_W) if by_source else np.zeros(len(windows), dtype=np.int64)
        self._begin_W = np.searchsorted(source_g[order_g], source_W)
        self._end_W = np.searchsorted(source_g[order_g], source_W, side="right")
        # Rises at each document whose text is not that of the one before.
        is_new_g = np.r_[True, self._doc_id_g[1:] != self._doc_id_g[:-1]]
        self._changes_g = np.cumsum(is_new_g)

    def draw(self, window: int, rng: np.random.Generator) -> Optional[int]:
        """Draw where the tokens that precede a target of another document begin. None: the group holds no other text."""
        begin, end = int(self._begin_W[window]), int(self._end_W[window])
        if self._changes_g[begin] == self._changes_g[end - 1]:  # all texts of the group are equal
            return None
        store = self._windows.store
        doc_id = store.doc_ids_G[self._windows.document_W[window]]
        while self._doc_id_g[drawn := begin + int(rng.integers(end - begin))] == doc_id:
            pass
        first, last = int(store.begins_G[self._document_g[drawn]]), int(store.ends_G[self._document_g[drawn]])
        return first + int(rng.integers(last - first - 1 - self._windows.min_preceding))
