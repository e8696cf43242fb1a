"""Windows inside one document, and the foreign text of their null context."""

from __future__ import annotations

import hashlib
from array import array
from dataclasses import dataclass
from typing import Optional

import numpy as np

from olmo_sparsity.errors import UserError
from olmo_sparsity.text.store import TokenStore


@dataclass(frozen=True)
class Windows:
    """Windows of one store: ``full_len`` tokens of one document, and the next token, the target.

    ``document`` [N] and ``start`` [N] (int64; index of the first token in ``store.tokens``); ``null_start`` [N] the
    same for the window of another document that lends its long-range tokens to the null context.
    """

    store: TokenStore
    full_len: int
    document: np.ndarray
    start: np.ndarray
    null_start: np.ndarray

    def __len__(self) -> int:
        return len(self.start)

    @property
    def num_documents(self) -> int:
        """Documents that the windows come from, equal texts counted once."""
        return len(np.unique(self.store.doc_ids[self.document]))

    def doc_ids(self, chosen: np.ndarray) -> list[str]:
        """The document of each chosen window, as tables name it."""
        return [f"{int(i):016x}" for i in self.store.doc_ids[self.document[chosen]]]

    @property
    def sha256(self) -> str:
        """Says which windows of the store these are."""
        return hashlib.sha256(np.stack([self.document, self.start]).tobytes()).hexdigest()

    def tokens(self, chosen: np.ndarray) -> np.ndarray:
        """int64 [chosen, full_len + 1]: the windows' tokens, the target last."""
        return self.store.tokens[self.start[chosen, None] + np.arange(self.full_len + 1)].astype(np.int64)

    def null_tokens(self, chosen: np.ndarray, num_long_range: int) -> np.ndarray:
        """int64 [chosen, M]: the long-range tokens of the null context."""
        return self.store.tokens[self.null_start[chosen, None] + np.arange(num_long_range)].astype(np.int64)


def _are_among(ids: np.ndarray, others: np.ndarray) -> np.ndarray:
    """bool [ids]: does ``others`` (memory-mapped, hundreds of millions) hold them; a block of it at a time."""
    known, which = np.unique(ids, return_inverse=True)
    found = np.zeros(len(known), dtype=bool)
    for begin in range(0, len(others) if len(known) else 0, 1 << 20):
        block = others[begin : begin + (1 << 20)]
        place = np.minimum(np.searchsorted(known, block), len(known) - 1)
        found[place[known[place] == block]] = True
    return found[which]


def sample_windows(
    store: TokenStore,
    full_len: int,
    num_windows: int,
    max_per_document: int,
    seed: int,
    exclude_ids: Optional[np.ndarray] = None,
    target_table: Optional[np.ndarray] = None,
) -> Windows:
    """Draws windows: every eligible document once, in random order, then every one a second time, and so on.

    Window i of the same text does not depend on ``num_windows``. A document's windows start at different tokens. EOS is no
    target.

    Args:
        store: where from.
        full_len: tokens of a window.
        num_windows: how many; fewer come back where the store holds fewer.
        max_per_document: windows of one document at most.
        seed: of the choice.
        exclude_ids: uint64; documents that may not be measured (those that the model was trained on).
        target_table: bool [vocab]; only these tokens are targets.

    Raises:
        UserError: no document holds a window, or only one does (the null context needs another).
    """
    usable = store.lengths - 1 >= full_len + 1
    long_enough = int(usable.sum())
    if exclude_ids is not None:
        usable &= ~_are_among(store.doc_ids, exclude_ids)
    eligible = np.flatnonzero(usable)
    ids = np.asarray(store.doc_ids)[eligible]
    if len(np.unique(ids)) < 2:
        longest = int(store.lengths.max() - 1) if store.num_documents else 0
        seen = (
            ""
            if exclude_ids is None
            else f", {long_enough - len(eligible)} of them left out: the model was trained on them"
        )
        raise UserError(
            f"the text to measure is too small: {long_enough} of its {store.num_documents} documents hold a window of "
            f"{full_len} tokens and its target{seen}, and 2 are needed (the longest document has {longest} tokens); "
            "take more or longer text, or shorter windows (context.full_len; of a context curve, --max-visible)"
        )
    rng = np.random.default_rng([seed, 0])
    order = eligible[rng.permutation(len(eligible))]
    # Documents and starts of each pass; arrays, for a million windows are a million entries.
    per_pass = [(array("q"), array("q")) for _ in range(max_per_document)]
    for document in order.tolist():
        # Targets: first <= t < last.
        first, last = int(store.begins[document]) + full_len, int(store.ends[document]) - 1
        targets = np.arange(first, last)
        if target_table is not None:
            targets = targets[target_table[store.tokens[first:last]]]
        count = min(max_per_document, len(targets))
        if count == 0:
            continue
        if len(per_pass[0][0]) == num_windows:
            break  # one window of each of so many documents: no second pass is needed
        draw = np.random.default_rng([seed, 1, document])
        low = np.arange(count) * len(targets) // count  # one target from each of `count` stretches of equal length
        high = (np.arange(count) + 1) * len(targets) // count
        picks = targets[low + (draw.random(count) * (high - low)).astype(np.int64)]
        for number, target in enumerate(draw.permutation(picks).tolist()):
            per_pass[number][0].append(document)
            per_pass[number][1].append(target - full_len)
    document, start = (
        np.concatenate([np.array(one_pass[which], dtype=np.int64) for one_pass in per_pass])[:num_windows]
        for which in (0, 1)
    )
    if not len(document):
        raise UserError("influence.targets = word-start: no token of the measured text begins a word")

    null_start = np.empty_like(start)
    for i, own in enumerate(np.asarray(store.doc_ids)[document].tolist()):
        draw = np.random.default_rng([seed, 2, i])
        while ids[pick := int(draw.integers(len(ids)))] == own:
            pass
        begin, end = int(store.begins[eligible[pick]]), int(store.ends[eligible[pick]])
        null_start[i] = begin + draw.integers(end - begin - 1 - full_len)
    return Windows(store, full_len, document, start, null_start)
