"""Windows of consecutive tokens inside one document, and how their targets are drawn.

Targets are drawn one after another without repetition, each eligible one with the same chance, and a document keeps only so many
windows. A draw on a full document keeps none, but counts for its weight: draws on the document / windows kept of it. Drawing ends
where it would keep one window too many, whatever the order of the draws, so that sum(weight * x) / sum(weight) is an unbiased
estimate of the mean of x over all eligible targets.

No list of targets is made. Each has an exponential random key, and they are drawn in rising order. Only the first keys of each
document are made: the smallest of n is an exponential variable divided by n, and gaps between sorted keys the same for n - 1, ...

Shape letters: W windows, T tokens of a window, G documents of the store, V vocabulary entries; in lower case some of them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Optional

import numpy as np

from olmo_sparsity.config import MIN_DOCUMENTS, InfluenceConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.text.sources import hash64
from olmo_sparsity.text.store import READ_AT_ONCE, TokenStore

KEYS, EXTRA_DRAWS, TARGETS = 7, 8, 9  # purposes of random generators; a change would change the windows
END = 0  # closes a document in memory; it belongs to no window and is never a target


@dataclass(frozen=True)
class Windows:
    """Windows of one store: ``full_len`` tokens of one document, and the next token, which is the target."""

    store: TokenStore
    full_len: int
    min_preceding: int  # tokens that the document has before the target, at least full_len
    document_W: np.ndarray  # int64
    start_W: np.ndarray  # int64; index in store.tokens of each window's first token
    weight_W: np.ndarray  # float64; weight in every mean over windows
    eligible_g: np.ndarray  # int64, rising; documents that windows may be drawn from, which hold at least one

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
        places = np.stack([self.document_W, self.start_W])
        return hashlib.sha256(places.tobytes() + self.weight_W.tobytes()).hexdigest()

    def tokens(self, window_ids_w: np.ndarray) -> np.ndarray:
        """Return the tokens of these windows, int64 [w, full_len + 1]; the target is the last one."""
        index_wT = self.start_W[window_ids_w, None] + np.arange(self.full_len + 1)
        return self.store.tokens[index_wT].astype(np.int64)


def sample_windows(
    store: TokenStore, full_len: int, settings: InfluenceConfig, *,
    exclude_ids: Optional[np.ndarray] = None, target_table_V: Optional[np.ndarray] = None,
) -> Windows:  # fmt: skip
    """Draw windows of different targets, fewer if the store holds fewer; EOS is never a target.

    Window ``i`` does not depend on ``num_windows``; its weight may. Neither depends on ``full_len`` where ``min_preceding`` is
    larger: the number of tokens that a target must have before it in its document. ``exclude_ids`` are IDs of documents that the
    model was trained on (uint64), ``target_table_V`` is True for tokens that may be targets.
    """
    min_preceding, max_per_document = max(full_len, settings.min_preceding or 0), settings.max_windows_per_document
    eligible_g = _eligible_documents(store, min_preceding, exclude_ids)
    first_g, end_g = store.begins_G[eligible_g] + min_preceding, store.ends_G[eligible_g] - 1
    counts_g = end_g - first_g
    if target_table_V is not None:
        spans = zip(first_g.tolist(), end_g.tolist(), strict=True)
        counts_g = np.array([np.count_nonzero(target_table_V[store.tokens[first:end]]) for first, end in spans])
    if not counts_g.any():
        raise UserError("influence.targets = word-start: no token is white space and then a letter; choose any")
    which_W, weight_W = _draw(counts_g, settings.num_windows, max_per_document, settings.seed)
    target_W = np.empty(len(which_W), dtype=np.int64)
    order_W = np.argsort(which_W, kind="stable")  # the windows of a document side by side, in the order of the draws
    which_d, first_d = np.unique(which_W[order_W], return_index=True)
    for which, own_w in zip(which_d.tolist(), np.split(order_W, first_d)[1:], strict=True):
        document = int(eligible_g[which])
        rng = np.random.default_rng([settings.seed, TARGETS, document])
        rank = rng.choice(int(counts_g[which]), min(max_per_document, int(counts_g[which])), replace=False)
        targets = np.arange(first_g[which], end_g[which])
        if target_table_V is not None:
            targets = targets[target_table_V[store.tokens[first_g[which] : end_g[which]]]]
        target_W[own_w] = targets[rank[: len(own_w)]]
    return Windows(store, full_len, min_preceding, eligible_g[which_W], target_W - full_len, weight_W, eligible_g)


def _eligible_documents(store: TokenStore, min_preceding: int, exclude_ids: Optional[np.ndarray]) -> np.ndarray:
    """Return the numbers of the documents, int64 [g], that hold so many tokens and a target, and are not excluded."""
    is_eligible_G = store.lengths_G - 1 >= min_preceding + 1
    num_long_enough = int(is_eligible_G.sum())
    if exclude_ids is not None:
        for begin in range(0, len(exclude_ids), READ_AT_ONCE):  # memory-mapped, perhaps hundreds of millions
            is_eligible_G &= ~np.isin(store.doc_ids_G, exclude_ids[begin : begin + READ_AT_ONCE])
    if not is_eligible_G.any():
        longest = int(store.lengths_G.max() - 1) if store.num_documents else 0
        left_out = " (the model was trained on all)" if num_long_enough else ""
        raise UserError(
            f"the text: {num_long_enough:,} of its {store.num_documents:,} documents hold a window of {min_preceding} tokens"
            f"{left_out}, the longest has {longest}; use longer text, or shorter windows (--full-len, influence.min_preceding)"
        )
    return np.flatnonzero(is_eligible_G)


def _draw(counts_g: np.ndarray, num_windows: int, max_per_document: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw from documents with these numbers of eligible targets: the document of each window, int64 [W], and its weight."""
    order_g = np.argsort(-counts_g, kind="stable")
    left_g, last_key_g = counts_g[order_g].astype(np.float64), np.zeros(len(counts_g))
    which, keys = np.zeros(0, dtype=np.int64), np.zeros(0)
    stop_key = np.inf  # key of the draw that would keep one window more
    for num_before in range(max_per_document):
        drawn_g = np.random.default_rng([seed, KEYS, num_before]).standard_exponential(len(counts_g))
        last_key_g += np.divide(drawn_g, left_g, out=np.full_like(drawn_g, np.inf), where=left_g > 0)
        left_g -= 1
        if not (is_drawn_g := last_key_g < stop_key).any():
            break
        which, keys = np.append(which, np.flatnonzero(is_drawn_g)), np.append(keys, last_key_g[is_drawn_g])
        if len(keys) > num_windows:
            stop_key = float(np.partition(keys, num_windows)[num_windows])
            which, keys = which[keys <= stop_key], keys[keys <= stop_key]
    kept = np.argsort(keys, kind="stable")[:num_windows]
    which_W, key_W = order_g[which[kept]], keys[kept]
    which_d, document_W, kept_d = np.unique(which_W, return_inverse=True, return_counts=True)
    last_key_d = np.zeros(len(which_d))
    np.maximum.at(last_key_d, document_W, key_W)
    # The keys of a full document's other targets lie behind its last one, independent of one another.
    left_d = np.where(kept_d == max_per_document, counts_g[which_d] - kept_d, 0)
    extra_d = np.random.default_rng([seed, EXTRA_DRAWS]).binomial(left_d, -np.expm1(last_key_d - stop_key))
    return which_W, np.asarray(((kept_d + extra_d) / kept_d)[document_W])


def few_documents(
    doc_ids_g: np.ndarray, percent: Optional[float] = None, windows: Optional[Windows] = None
) -> Optional[str]:
    """Say that too few documents hold windows for intervals, and what would do; None: there are enough.

    ``doc_ids_g``: documents that hold a window; ``percent``: ``data.validation_percent`` where they are a run's held-out ones;
    ``windows``: drawn from them.
    """
    number, needed = len(np.unique(doc_ids_g)), f"{MIN_DOCUMENTS} needed for intervals"
    if number >= MIN_DOCUMENTS:
        if windows is None or (drawn := windows.num_documents) >= MIN_DOCUMENTS:
            return None
        return f"{len(windows)} windows of {drawn} documents, {needed}: draw more windows (influence.num_windows)"
    enough = math.ceil(percent * MIN_DOCUMENTS / number) if percent and number else 100
    remedy = f"data.validation_percent={enough}" if enough <= 50 else "use more or longer text, or shorter windows"
    return f"{number} {'' if percent is None else 'held-out '}documents, {needed}: {remedy}"


def id_of_text(text: str) -> int:
    """Return the ID that a text has in every corpus."""
    return hash64(text.encode(), b"doc_id")


def id_of_tokens(token_ids: np.ndarray, name: Optional[str] = None) -> int:
    """Return the ID that tokens have in token files, or that their name means: 16 hexadecimal digits are the ID itself."""
    if name is not None and re.fullmatch(r"[0-9a-f]{16}", name):
        return int(name, 16)
    return hash64(token_ids.astype("<u4").tobytes() if name is None else name.encode(), b"doc_id")


def store_of(documents: Sequence[np.ndarray], doc_ids: Sequence[int], *, source: str, split: str) -> TokenStore:
    """Return a store of the tokens of documents in memory, at least one, in the given order."""
    tokens = np.concatenate([np.append(document, END) for document in documents]).astype(np.uint32)
    ends_G = np.cumsum([len(document) + 1 for document in documents], dtype=np.int64)
    ids_G, source_ends = np.array(doc_ids, dtype=np.uint64), np.array([len(documents)])
    sha256 = hashlib.sha256(tokens.data).hexdigest()
    return TokenStore(tokens, np.append(0, ends_G[:-1]), ends_G, ids_G, [source], source_ends, split, sha256)


def windows_before(store: TokenStore, full_len: int, *, document_W: np.ndarray, target_W: np.ndarray) -> Windows:
    """Return the windows before chosen targets, the tokens ``target_W`` of documents ``document_W``, all with weight 1."""
    start_W = store.begins_G[document_W] + target_W - full_len
    eligible_g = np.flatnonzero(store.lengths_G - 1 > full_len)
    return Windows(store, full_len, full_len, document_W, start_W, np.ones(len(target_W)), eligible_g)
