"""Null contexts: the tokens that take the place of a window's long-range tokens.

Where a document is too short, or has no companion of its source, the window gets the next kind of ``FALLBACKS``; where the text
has a single document, that of ``ALONE``.

Shape letters: G documents of the store, W windows, M long-range positions; g and w: some of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from olmo_sparsity.text.windows import Windows

# Kinds of null contexts, and what a window gets that cannot have its kind, where there are two documents of different text.
FALLBACKS: dict[str, Optional[str]] = {
    "same-source": "any-source",
    "any-source": None,
    "same-document": "same-source",
    "shuffled": None,
}
# The same where all text is one document, or copies of it.
ALONE: dict[str, Optional[str]] = {
    "same-source": "same-document",
    "any-source": "same-document",
    "same-document": "shuffled",
    "shuffled": None,
}
STRETCHES, SHUFFLES = 2, 22  # purposes of random generators; a change would change the null contexts


@dataclass(frozen=True)
class NullContexts:
    """The null context of every window.

    Attributes:
        windows: the windows.
        num_long_range: M, the number of long-range tokens of a window.
        seed: of the draw.
        start_W: int64; index in the store's tokens of the first token of each null context, before it is shuffled.
        kinds: kind of each window's null context, of ``FALLBACKS``.
    """

    windows: Windows
    num_long_range: int
    seed: int
    start_W: np.ndarray
    kinds: list[str]

    def places(self, window_ids_w: np.ndarray) -> np.ndarray:
        """Return where the long-range tokens of the null context of these windows stand in the store, int64 [w, M]."""
        index_wM = self.start_W[window_ids_w, None] + np.arange(self.num_long_range)
        for row, window in enumerate(window_ids_w.tolist()):
            if self.kinds[window] == "shuffled":
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

    def counts(self) -> dict[str, int]:
        """Return the number of windows with each kind of null context, for the kinds that occur."""
        return {kind: self.kinds.count(kind) for kind in FALLBACKS if kind in self.kinds}


def draw_null_contexts(windows: Windows, num_long_range: int, *, kind: str, seed: int) -> NullContexts:
    """Draw the null context of every window; each is a function of the seed, the window's number and the window.

    It is drawn as for a window of ``min_preceding`` tokens, and its last M tokens are taken. So the null contexts of the same
    targets at several lengths are ends of one text, as their long-range tokens are; ``shuffled`` has another order at each.

    Args:
        windows: the windows.
        num_long_range: M, the number of long-range tokens of a window.
        kind: ``same-source``: from a window of another document of the same source; ``any-source``: of any other document;
            ``same-document``: from elsewhere in the same document, without overlap with the window and its target;
            ``shuffled``: the window's own long-range tokens in random order. The document is drawn uniformly, then the place.
        seed: seed of the draw.
    """
    start_W = np.empty(len(windows), dtype=np.int64)
    kinds = []
    num_left_out = windows.min_preceding - windows.full_len
    doc_id_g = windows.store.doc_ids_G[windows.eligible_g]
    fallbacks = FALLBACKS if (doc_id_g != doc_id_g[0]).any() else ALONE
    lenders: dict[str, _Lenders] = {}  # made when the first window needs them: they order all eligible documents
    for window in range(len(windows)):
        rng = np.random.default_rng([seed, STRETCHES, window])
        tried: Optional[str] = kind
        start = None
        while start is None:
            assert tried is not None, "there is a document of another text, or the window can be shuffled"
            kind_of_window = tried
            if tried == "shuffled":
                start = int(windows.start_W[window])
            elif tried == "same-document":
                start = _draw_elsewhere(windows, window, num_tokens=num_long_range + num_left_out, rng=rng)
            else:
                if tried not in lenders:
                    lenders[tried] = _Lenders(windows, by_source=tried == "same-source")
                start = lenders[tried].draw(window, rng)
            tried = fallbacks[tried]
        start_W[window] = start if kind_of_window == "shuffled" else start + num_left_out
        kinds.append(kind_of_window)
    return NullContexts(windows, num_long_range, seed, start_W, kinds)


def _draw_elsewhere(windows: Windows, window: int, *, num_tokens: int, rng: np.random.Generator) -> Optional[int]:
    """Draw a stretch of the document that overlaps neither the tokens that precede the target nor the target. None: no room."""
    store, document = windows.store, windows.document_W[window]
    begin, end = int(store.begins_G[document]), int(store.ends_G[document]) - 1  # without EOS
    target = int(windows.start_W[window]) + windows.full_len
    behind = target + 1
    num_before = max(0, target - windows.min_preceding - num_tokens - begin + 1)
    num_behind = max(0, end - num_tokens - behind + 1)
    if num_before + num_behind == 0:
        return None
    drawn = int(rng.integers(num_before + num_behind))
    return begin + drawn if drawn < num_before else behind + drawn - num_before


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
