"""Null contexts: the tokens that take the place of a window's long-range tokens.

Shape letters: W windows, M long-range positions; g, w: some documents, some windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from olmo_sparsity.config import NullContext
from olmo_sparsity.text.windows import Windows

STRETCHES, SHUFFLES = 2, 22  # purposes of random generators; a change would change the null contexts


@dataclass(frozen=True)
class NullContexts:
    """The null context of every window."""

    windows: Windows
    num_long_range: int  # M
    seed: int
    start_W: np.ndarray  # int64; index in the store's tokens of the first token of each, before it is shuffled
    kind: NullContext

    def tokens(self, window_ids_w: np.ndarray) -> np.ndarray:
        """Return the long-range tokens of the null context of these windows, int64 [w, M]."""
        index_wM = self.start_W[window_ids_w, None] + np.arange(self.num_long_range)
        tokens_wM = self.windows.store.tokens[index_wM].astype(np.int64)
        if self.kind == "shuffled":
            for row, window in enumerate(window_ids_w.tolist()):
                tokens_wM[row] = np.random.default_rng([self.seed, SHUFFLES, window]).permutation(tokens_wM[row])
        return tokens_wM

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

    ``document``: a place in another document, of the same source if it has one; both are drawn uniformly. The place is that of a
    window of ``min_preceding`` tokens, so that null contexts of the same targets at several lengths are ends of one text.
    ``shuffled``: the window's own long-range tokens in random order, also wherever all text is one document.
    """
    store, eligible_g = windows.store, windows.eligible_g
    if kind == "shuffled" or len(np.unique(store.doc_ids_G[eligible_g])) == 1:
        return NullContexts(windows, num_long_range, seed, windows.start_W.astype(np.int64), "shuffled")
    source_g = store.source_numbers(eligible_g)
    numbers, first = np.unique(np.sort(source_g), return_index=True)
    of_sources = np.split(eligible_g[np.argsort(source_g, kind="stable")], first[1:])
    # A source whose documents are all one text lends from all of them.
    lenders = {
        number: own_g if len(np.unique(store.doc_ids_G[own_g])) > 1 else eligible_g
        for number, own_g in zip(numbers.tolist(), of_sources, strict=True)
    }
    start_W = np.empty(len(windows), dtype=np.int64)
    for window, (document, source) in enumerate(
        zip(windows.document_W.tolist(), store.source_numbers(windows.document_W).tolist(), strict=True)
    ):
        rng, from_g = np.random.default_rng([seed, STRETCHES, window]), lenders[source]
        lender = document
        while store.doc_ids_G[lender] == store.doc_ids_G[document]:
            lender = int(from_g[rng.integers(len(from_g))])
        num_places = store.ends_G[lender] - store.begins_G[lender] - 1 - windows.min_preceding
        start_W[window] = store.begins_G[lender] + rng.integers(num_places) + windows.min_preceding - windows.full_len
    return NullContexts(windows, num_long_range, seed, start_W, "document")
