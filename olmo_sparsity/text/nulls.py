"""Null contexts: the tokens that take the place of a window's long-range tokens.

Shape letters: W windows, M long-range positions; g, w: some documents, some windows.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Optional

import numpy as np

from olmo_sparsity.config import NullContext
from olmo_sparsity.text.windows import Windows

STRETCHES, SHUFFLES = 2, 22  # purposes of random generators; a change would change the null contexts
Draw = Callable[[int, np.random.Generator], Optional[int]]


@dataclass(frozen=True)
class NullContexts:
    """The null context of every window."""

    windows: Windows
    num_long_range: int  # M
    seed: int
    start_W: np.ndarray  # int64; index in the store's tokens of the first token of each, before it is shuffled
    kind: NullContext

    def places(self, window_ids_w: np.ndarray) -> np.ndarray:
        """Return the index in the store of each long-range token under the null context, int64 [w, M]."""
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

    ``document``: a place in another document, of the same source where that has one, drawn uniformly, then the place.
    ``shuffled``: the window's own long-range tokens in random order; every window is, where all text is one document.

    It is drawn as for a window of ``min_preceding`` tokens, and its last M tokens are taken. So the null contexts of the same
    targets at several lengths are ends of one text, as their long-range tokens are; ``shuffled`` has another order at each.
    """
    doc_id_g = windows.store.doc_ids_G[windows.eligible_g]
    if kind == "shuffled" or not (doc_id_g != doc_id_g[0]).any():
        return NullContexts(windows, num_long_range, seed, windows.start_W.astype(np.int64), "shuffled")
    of_source, of_any = _drawer(windows, by_source=True), _drawer(windows, by_source=False)
    start_W = np.empty(len(windows), dtype=np.int64)
    for window in range(len(windows)):
        rng = np.random.default_rng([seed, STRETCHES, window])
        start = of_source(window, rng)
        if start is None:  # no document of another text in this source
            start = of_any(window, rng)
        assert start is not None, "there is a document of another text"
        start_W[window] = start + windows.min_preceding - windows.full_len
    return NullContexts(windows, num_long_range, seed, start_W, "document")


def _drawer(windows: Windows, *, by_source: bool) -> Draw:
    """Return what draws the first of the tokens that precede a target of another document; None: the source has no other text."""
    store, eligible_g = windows.store, windows.eligible_g
    source_g = store.source_numbers(eligible_g) if by_source else np.zeros(len(eligible_g), dtype=np.int64)
    source_W = store.source_numbers(windows.document_W) if by_source else np.zeros(len(windows), dtype=np.int64)
    order_g = np.argsort(source_g, kind="stable")
    document_g, source_g = eligible_g[order_g], source_g[order_g]
    doc_id_g = store.doc_ids_G[document_g]
    begin_W, end_W = (np.searchsorted(source_g, source_W, side=side) for side in ("left", "right"))
    changes_g = np.cumsum(np.append(True, doc_id_g[1:] != doc_id_g[:-1]))  # rises where a text is not the one before

    def draw(window: int, rng: np.random.Generator) -> Optional[int]:
        begin, end = int(begin_W[window]), int(end_W[window])
        if changes_g[begin] == changes_g[end - 1]:
            return None
        own = store.doc_ids_G[windows.document_W[window]]
        while doc_id_g[drawn := begin + int(rng.integers(end - begin))] == own:
            pass
        first, last = int(store.begins_G[document_g[drawn]]), int(store.ends_G[document_g[drawn]])
        return first + int(rng.integers(last - first - 1 - windows.min_preceding))

    return draw
