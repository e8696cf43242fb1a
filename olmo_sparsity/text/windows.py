"""Windows of consecutive tokens inside one document, and how their targets are drawn.

Each eligible target of a text has the same chance, and a document keeps only so many windows. Targets are drawn one after
another, without repetition. A draw that falls on a document that is full keeps no window, but counts for its weight:

    weight = draws that fell on the document / windows kept of it

The draw stops where it would keep one window more than wanted; this last draw does not count. Whether it stops depends on how
many draws fell on each document, not on their order, so sum(weight * x) / sum(weight) is an unbiased estimate of the mean of x
over all eligible targets.

The text may have hundreds of millions of targets, so no list of them is made. Each target has a random key, exponentially
distributed, and targets are drawn in rising order of their keys. Only the first keys of each document are made: the smallest of n
keys is an exponential variable divided by n, and the gaps between sorted keys are the same for n - 1, n - 2, ... keys.

Shape letters: W windows, T tokens of a window, G documents of the store, V vocabulary entries; in lower case some of them.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

import numpy as np

from olmo_sparsity.errors import UserError
from olmo_sparsity.text.sources import hash64, make_document
from olmo_sparsity.text.store import TokenStore

KEYS, EXTRA_DRAWS, TARGETS = 7, 8, 9  # purposes of random generators; a change would change the windows
READ_AT_ONCE = 1 << 20  # tokens or IDs of a memory-mapped file
MIN_DOCUMENTS = 50  # fewer have no interval (statistics)
LARGEST_DRAW = 1 << 20  # windows
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
    """Draw windows of different targets, fewer if the store holds fewer; EOS is never a target.

    Window ``i`` does not depend on ``num_windows``; its weight may. Neither depends on ``full_len`` where ``min_preceding`` is
    given: the number of tokens that a target must have before it in its document. ``exclude_ids`` are IDs of documents that the
    model was trained on (uint64), ``target_table_V`` is True for tokens that may be targets.
    """
    min_preceding = full_len if min_preceding is None else min_preceding
    eligible_g = _eligible_documents(store, min_preceding, exclude_ids)
    counts_g = _count_targets(store, min_preceding, eligible_g, target_table_V)
    if not counts_g.any():
        raise UserError(
            "influence.targets = word-start: no token of the text begins a word (white space and then a letter); choose all"
        )
    draws = _kept_draws(counts_g, num_windows, max_per_document, seed)
    target_W = np.empty(len(draws.which_W), dtype=np.int64)
    order_W = np.argsort(
        draws.which_W, kind="stable"
    )  # the windows of a document side by side, in the order of the draws
    which_d, first_d = np.unique(draws.which_W[order_W], return_index=True)
    for which, own_w in zip(which_d.tolist(), np.split(order_W, first_d)[1:], strict=True):
        document = int(eligible_g[which])
        rng = np.random.default_rng([seed, TARGETS, document])
        rank = rng.choice(int(counts_g[which]), min(max_per_document, int(counts_g[which])), replace=False)
        targets = np.arange(store.begins_G[document] + min_preceding, store.ends_G[document] - 1)
        if target_table_V is not None:
            targets = targets[target_table_V[store.tokens[targets[0] : targets[-1] + 1]]]
        target_W[own_w] = targets[rank[: len(own_w)]]
    return Windows(
        store=store,
        full_len=full_len,
        min_preceding=min_preceding,
        document_W=eligible_g[draws.which_W],
        start_W=target_W - full_len,
        weight_W=_weights(draws, counts_g, max_per_document, seed),
        eligible_g=eligible_g,
    )


def _eligible_documents(store: TokenStore, min_preceding: int, exclude_ids: Optional[np.ndarray]) -> np.ndarray:
    """Return the numbers of the documents, int64 [g], that hold so many tokens and a target, and are not excluded."""
    is_eligible_G = store.lengths_G - 1 >= min_preceding + 1
    num_long_enough = int(is_eligible_G.sum())
    if exclude_ids is not None:
        for begin in range(0, len(exclude_ids), READ_AT_ONCE):  # memory-mapped, perhaps hundreds of millions
            is_eligible_G &= ~np.isin(store.doc_ids_G, exclude_ids[begin : begin + READ_AT_ONCE])
    if not is_eligible_G.any():
        longest = int(store.lengths_G.max() - 1) if store.num_documents else 0
        left_out = f", {num_long_enough} of them left out: the model was trained on them" if num_long_enough else ""
        raise UserError(
            f"the text to measure is too small: {num_long_enough:,} of its {store.num_documents:,} documents hold a window of "
            f"{min_preceding} tokens and its target{left_out} (the longest document has {longest} tokens); use longer text, or "
            "shorter windows (--full-len; influence.min_preceding, if it is set)"
        )
    return np.flatnonzero(is_eligible_G)


def _count_targets(
    store: TokenStore, min_preceding: int, documents_g: np.ndarray, target_table_V: Optional[np.ndarray]
) -> np.ndarray:
    """Return the number of eligible targets of each of these documents, int64 [g]; tokens are read block by block."""
    first_g, end_g = store.begins_G[documents_g] + min_preceding, store.ends_G[documents_g] - 1
    if target_table_V is None:
        return np.asarray(end_g - first_g)
    counts_g = np.zeros(len(documents_g), dtype=np.int64)
    for begin in range(0, len(store.tokens), READ_AT_ONCE):
        block = store.tokens[begin : begin + READ_AT_ONCE]
        before = np.concatenate([[0], np.cumsum(target_table_V[block])])  # targets before each token of the block
        # Documents rise, so those that have eligible tokens in this block are neighbours.
        own = slice(np.searchsorted(end_g, begin, side="right"), np.searchsorted(first_g, begin + len(block)))
        first, end = (np.clip(index_g[own] - begin, 0, len(block)) for index_g in (first_g, end_g))
        counts_g[own] += before[end] - before[first]
    return counts_g


class _Draws(NamedTuple):
    """The draws that keep a window, as many as are wanted, in order."""

    which_W: np.ndarray  # int64; index of each draw's document among the eligible ones
    key_W: np.ndarray  # float64, rising
    stop_key: float  # key of the draw that would keep one window more; infinite if there is none


def _kept_draws(counts_g: np.ndarray, num_windows: int, max_per_document: int, seed: int) -> _Draws:
    """Return the draws that keep a window, for documents with these numbers of eligible targets."""
    order_g = np.argsort(-counts_g, kind="stable")  # then documents that take part in late rounds come first
    ordered_g = counts_g[order_g]
    active = np.flatnonzero(ordered_g)
    last_key = np.zeros(len(active))
    which, keys = np.zeros(0, dtype=np.int64), np.zeros(0)
    stop_key = np.inf
    for num_before in range(max_per_document):
        # Every document up to the last active one draws, so that the keys do not depend on which ones are active.
        rng = np.random.default_rng([seed, KEYS, num_before])
        drawn = rng.standard_exponential(active[-1] + 1)[active]
        last_key = last_key + drawn / (ordered_g[active] - num_before)
        which, keys = np.concatenate([which, active]), np.concatenate([keys, last_key])
        if len(keys) > num_windows:
            stop_key = float(np.partition(keys, num_windows)[num_windows])
            which, keys = which[keys <= stop_key], keys[keys <= stop_key]
        goes_on = (last_key < stop_key) & (ordered_g[active] > num_before + 1)
        active, last_key = active[goes_on], last_key[goes_on]
        if len(active) == 0:
            break
    order = np.argsort(keys, kind="stable")[:num_windows]
    return _Draws(order_g[which[order]], keys[order], stop_key)


def _weights(draws: _Draws, counts_g: np.ndarray, max_per_document: int, seed: int) -> np.ndarray:
    """Return the weight of each window, float64 [W]."""
    which_d, document_W, kept_d = np.unique(draws.which_W, return_inverse=True, return_counts=True)
    last_key_d = np.zeros(len(which_d))
    np.maximum.at(last_key_d, document_W, draws.key_W)
    # The keys of a full document's other targets lie behind its last one, independent of one another.
    left_d = np.where(kept_d == max_per_document, counts_g[which_d] - kept_d, 0)
    share_d = -np.expm1(last_key_d - draws.stop_key)
    extra_d = np.random.default_rng([seed, EXTRA_DRAWS]).binomial(left_d, share_d)
    return np.asarray(((kept_d + extra_d) / kept_d)[document_W])


def few_documents(
    doc_ids_g: np.ndarray,
    percent: Optional[float] = None,
    draw: Optional[Callable[[int], Windows]] = None,
    num_windows: int = 0,
) -> Optional[str]:
    """Say that too few documents hold windows for intervals, and what would do; None: there are enough.

    ``doc_ids_g`` are the documents that hold a window, ``percent`` is ``data.validation_percent`` where they are a run's held-out
    ones, and ``draw`` draws so many windows of them.
    """
    number = len(np.unique(doc_ids_g))
    if number < MIN_DOCUMENTS:
        wanted = 100 if percent is None or number == 0 else math.ceil(percent * MIN_DOCUMENTS / number)
        remedy = f"data.validation_percent={wanted}" if wanted <= 50 else "use more or longer text, or shorter windows"
        return f"{number} {'' if percent is None else 'held-out '}documents, {MIN_DOCUMENTS} needed for intervals: {remedy}"
    if draw is None or (found := draw(num_windows).num_documents) >= MIN_DOCUMENTS:
        return None
    wanted, drawn = num_windows, 0
    while drawn < MIN_DOCUMENTS and wanted < LARGEST_DRAW:
        wanted *= 2
        drawn = draw(wanted).num_documents
    return f"{num_windows} windows of {found} documents, {MIN_DOCUMENTS} needed for intervals: influence.num_windows={wanted}"


class TokenDocument(NamedTuple):
    """One document in memory."""

    token_ids: np.ndarray  # without the token that ends a document
    doc_id: int  # 64-bit hash of its content
    source: str


def document_of_text(text: str, token_ids: np.ndarray, *, source: str) -> TokenDocument:
    """Return a document with the ID that its text has in every corpus."""
    return TokenDocument(token_ids, make_document(text, source).doc_id, source)


def document_of_tokens(token_ids: np.ndarray, *, source: str, name: Optional[str] = None) -> TokenDocument:
    """Return a document with the ID that its tokens have in token files, or that its name means.

    A name of 16 hexadecimal digits is the ID itself, as tables write it; other names are hashed.
    """
    if name is not None and re.fullmatch(r"[0-9a-f]{16}", name):
        return TokenDocument(token_ids, int(name, 16), source)
    content = token_ids.astype("<u4").tobytes() if name is None else name.encode()
    return TokenDocument(token_ids, hash64(content, b"doc_id"), source)


def store_of(documents: Sequence[TokenDocument], *, split: str) -> TokenStore:
    """Return a store of documents in memory, at least one, in the given order; ``split`` is its name in tables."""
    pieces = [np.append(document.token_ids, END).astype(np.uint32) for document in documents]
    ends_G = np.cumsum([len(piece) for piece in pieces], dtype=np.int64)
    tokens = np.concatenate(pieces)
    return TokenStore(
        tokens=tokens,
        begins_G=np.append(0, ends_G[:-1]).astype(np.int64),
        ends_G=ends_G,
        doc_ids_G=np.array([document.doc_id for document in documents], dtype=np.uint64),
        sources=[document.source for document in documents],
        source_ends=np.arange(1, len(documents) + 1),
        split=split,
        tokens_sha256=hashlib.sha256(tokens.data).hexdigest(),
    )


def windows_before(store: TokenStore, full_len: int, *, document_W: np.ndarray, target_W: np.ndarray) -> Windows:
    """Return the windows before chosen targets, the tokens ``target_W`` of documents ``document_W``, all with weight 1."""
    return Windows(
        store=store,
        full_len=full_len,
        min_preceding=full_len,
        document_W=document_W,
        start_W=store.begins_G[document_W] + target_W - full_len,
        weight_W=np.ones(len(target_W)),
        eligible_g=np.flatnonzero(store.lengths_G - 1 > full_len),
    )
