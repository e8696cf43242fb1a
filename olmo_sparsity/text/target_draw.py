"""Draws targets: each eligible target of a text has the same chance, and a document keeps only so many windows.

Targets are drawn one after another, without repetition. A draw that falls on a document that is full keeps no window, but
counts for the weight of the document's windows:

    weight = draws that fell on the document / windows kept of it

The draw stops where it would keep one window more than is asked for, and this last draw does not count. Therefore
sum(weight * x) / sum(weight) is an unbiased estimate of the mean of x over all eligible targets: whether the draw stops after
some draws depends on how many of them fell on each document, not on their order, so each of them is a uniform draw.

The text may have hundreds of millions of targets, so that no list of them is made. Each target has a random key, exponentially
distributed, and targets are drawn in rising order of their keys. Only the first keys of each document are made: the smallest
of n keys is an exponential variable divided by n, and the gaps between sorted keys are the same for n - 1, n - 2, ... keys.

Shape letters: G documents of the store, V vocabulary entries, W windows; g and w: some of them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional

import numpy as np

from olmo_sparsity.text.store import TokenStore

KEYS, EXTRA_DRAWS, TARGETS = 7, 8, 9  # purposes of random generators; a change would change the windows
COUNTED_TOKENS = 1 << 20  # tokens that are looked up at a time


@dataclass(frozen=True)
class DrawnTargets:
    """Targets in the order in which they were drawn.

    Attributes:
        document_W: int64; number of each target's document in the store.
        target_W: int64; index in ``store.tokens``.
        weight_W: float64; draws that fell on the document for each window kept of it.
    """

    document_W: np.ndarray
    target_W: np.ndarray
    weight_W: np.ndarray


@dataclass(frozen=True)
class _KeptDraws:
    """The draws that keep a window, as many as are asked for, in order.

    Attributes:
        which_W: int64; index of each draw's document among the eligible ones.
        key_W: float64, rising.
        stop_key: key of the draw that would keep one window more; infinite if there is none.
    """

    which_W: np.ndarray
    key_W: np.ndarray
    stop_key: float


def draw_targets(
    store: TokenStore,
    min_preceding: int,
    *,
    documents_g: np.ndarray,
    num_windows: int,
    max_per_document: int,
    seed: int,
    target_table_V: Optional[np.ndarray] = None,
) -> DrawnTargets:
    """Draw targets uniformly among all eligible targets of some documents, with weights.

    Target ``i`` does not depend on ``num_windows``; its weight does.

    Args:
        store: the text.
        min_preceding: tokens that a document must have before a target.
        documents_g: int64; numbers of the documents, rising.
        num_windows: number of targets; fewer are returned if all documents are full.
        max_per_document: largest number of targets of one document.
        seed: seed of the draw.
        target_table_V: bool; True for tokens that may be targets. None: all tokens may. EOS never is a target.
    """
    counts_g = count_targets(store, min_preceding, documents_g=documents_g, target_table_V=target_table_V)
    draws = _kept_draws(counts_g, num_windows=num_windows, max_per_document=max_per_document, seed=seed)
    target_W = np.empty(len(draws.which_W), dtype=np.int64)
    # The windows of a document side by side, in the order of the draws.
    order_W = np.argsort(draws.which_W, kind="stable")
    which_d, first_d = np.unique(draws.which_W[order_W], return_index=True)
    for which, own_w in zip(which_d.tolist(), np.split(order_W, first_d)[1:], strict=True):
        document = int(documents_g[which])
        rng = np.random.default_rng([seed, TARGETS, document])
        rank = rng.choice(int(counts_g[which]), min(max_per_document, int(counts_g[which])), replace=False)
        targets = possible_targets(store, min_preceding, document=document, target_table_V=target_table_V)
        target_W[own_w] = targets[rank[: len(own_w)]]
    weight_W = _weights(draws, counts_g, max_per_document=max_per_document, seed=seed)
    return DrawnTargets(documents_g[draws.which_W], target_W, weight_W)


def possible_targets(
    store: TokenStore, min_preceding: int, *, document: int, target_table_V: Optional[np.ndarray]
) -> np.ndarray:
    """Return the indices in ``store.tokens`` of a document's tokens that may be targets, rising."""
    begin, end = int(store.begins_G[document]) + min_preceding, int(store.ends_G[document]) - 1
    targets = np.arange(begin, end)
    return targets if target_table_V is None else targets[target_table_V[store.tokens[begin:end]]]


def count_targets(
    store: TokenStore, min_preceding: int, *, documents_g: np.ndarray, target_table_V: Optional[np.ndarray]
) -> np.ndarray:
    """Return the number of eligible targets of each of these documents (int64 [g]), as ``possible_targets`` has them.

    Tokens are read block by block, so that memory does not grow with the text.
    """
    first_g, end_g = store.begins_G[documents_g] + min_preceding, store.ends_G[documents_g] - 1
    if target_table_V is None:
        return np.asarray(end_g - first_g)
    counts_g = np.zeros(len(documents_g), dtype=np.int64)
    for begin in range(0, len(store.tokens), COUNTED_TOKENS):
        block = store.tokens[begin : begin + COUNTED_TOKENS]
        before = np.concatenate([[0], np.cumsum(target_table_V[block])])  # targets before each token of the block
        # Documents rise, so those that have eligible tokens in this block stand side by side.
        own = slice(np.searchsorted(end_g, begin, side="right"), np.searchsorted(first_g, begin + len(block)))
        in_block = [np.clip(index_g[own] - begin, 0, len(block)) for index_g in (first_g, end_g)]
        counts_g[own] += before[in_block[1]] - before[in_block[0]]
    return counts_g


def _kept_draws(counts_g: np.ndarray, *, num_windows: int, max_per_document: int, seed: int) -> _KeptDraws:
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
        drawn = rng.standard_exponential(active[-1] + 1 if len(active) else 0)[active]
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
    return _KeptDraws(order_g[which[order]], keys[order], stop_key)


def _weights(draws: _KeptDraws, counts_g: np.ndarray, *, max_per_document: int, seed: int) -> np.ndarray:
    """Return the weight of each window, float64 [W]."""
    which_d, document_W, kept_d = np.unique(draws.which_W, return_inverse=True, return_counts=True)
    last_key_d = np.zeros(len(which_d))
    np.maximum.at(last_key_d, document_W, draws.key_W)
    # The keys of a full document's other targets lie behind its last one, independent of one another.
    left_d = np.where(kept_d == max_per_document, counts_g[which_d] - kept_d, 0)
    share_d = -np.expm1(last_key_d - draws.stop_key)
    extra_d = np.random.default_rng([seed, EXTRA_DRAWS]).binomial(left_d, share_d)
    return np.asarray(((kept_d + extra_d) / kept_d)[document_W])
