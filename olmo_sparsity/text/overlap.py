"""Overlap with the training text: sequences of 13 consecutive tokens, the length that others use to find test text in it.

Sequences are compared by 64-bit hashes: of a million, none is expected to match one of 10^10 others by chance (5e-4 pairs). Only
the sequences that are looked for are kept; the training text is hashed block by block, in one pass.

Shape letters: W windows, N sequences, S distinct sequences; G documents of a store.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from olmo_sparsity.progress import progress_bar
from olmo_sparsity.text.store import TokenStore
from olmo_sparsity.text.windows import Windows

NGRAM = 13
SCANNED_TOKENS = 1 << 16  # hashed at a time; the arrays of a block stay in the processor's cache
TABLE_BITS = 22  # of the table that rules most sequences out, indexed by the first bits of their hash
MULTIPLIER = np.uint64(0xD1342543DE82EF95)
MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def ngram_hashes(tokens: np.ndarray) -> np.ndarray:
    """Return the hash of every sequence of ``NGRAM`` tokens along the last axis, uint64 [..., tokens - NGRAM + 1]."""
    num = max(tokens.shape[-1] - NGRAM + 1, 0)
    # The finalizer of splitmix64 turns token IDs into numbers that look random; then a polynomial in MULTIPLIER modulo 2**64.
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * MIX[1]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * MIX[2]
    mixed ^= mixed >> np.uint64(31)
    hashes = np.zeros((*tokens.shape[:-1], num), dtype=np.uint64)
    for place in range(NGRAM):
        hashes *= MULTIPLIER
        hashes += mixed[..., place : place + num]
    return hashes


def windows_in_training(windows: Windows, training: TokenStore) -> np.ndarray:
    """Return True for windows that hold, with their target, a sequence that training text contains; bool [W]."""
    blocks = np.array_split(np.arange(len(windows)), 1 + len(windows) * windows.full_len // SCANNED_TOKENS)
    hashes = [ngram_hashes(windows.tokens(window_ids_w)) for window_ids_w in blocks]
    found_S = _hashes_in(training, hashes)
    return np.concatenate([np.isin(hashes_wN, found_S).any(axis=1) for hashes_wN in hashes])


def documents_in_training(store: TokenStore, training: TokenStore) -> np.ndarray:
    """Return True for documents of a store that hold a sequence that training text contains; bool [G]."""
    found_S = _hashes_in(training, [hashes_N for _, hashes_N in _blocks(store)])
    is_in_training_G = np.zeros(store.num_documents, dtype=bool)
    for begin, hashes_N in _blocks(store):
        index_n = np.flatnonzero(np.isin(hashes_N, found_S)) + begin
        is_in_training_G[store.document_of(index_n[store.holds(index_n, NGRAM)])] = True
    return is_in_training_G


def _blocks(store: TokenStore) -> Iterator[tuple[int, np.ndarray]]:
    """Yield the hashes of all sequences of a store block by block, with the index of the first."""
    for begin in range(0, len(store.tokens), SCANNED_TOKENS):
        yield begin, ngram_hashes(store.tokens[begin : begin + SCANNED_TOKENS + NGRAM - 1])


def _hashes_in(training: TokenStore, hashes: list[np.ndarray]) -> np.ndarray:
    """Return those of some hashes that a document of the training text has, uint64, rising."""
    hashes_S = np.unique(np.concatenate([block.ravel() for block in hashes]))
    is_found_S = np.zeros(len(hashes_S), dtype=bool)
    shift = np.uint64(64 - TABLE_BITS)
    is_possible = np.zeros(1 << TABLE_BITS, dtype=bool)
    is_possible[hashes_S >> shift] = True
    with progress_bar("training overlap", " tokens", total=len(training.tokens), unit_scale=True, leave=False) as bar:
        for begin, hashes_N in _blocks(training):
            possible_n = np.flatnonzero(is_possible[hashes_N >> shift])
            place_n = np.searchsorted(hashes_S, hashes_N[possible_n])
            is_equal_n = hashes_S[np.minimum(place_n, len(hashes_S) - 1)] == hashes_N[possible_n]
            is_own_n = training.holds(possible_n[is_equal_n] + begin, NGRAM)
            is_found_S[place_n[is_equal_n][is_own_n]] = True
            bar.update(min(SCANNED_TOKENS, len(training.tokens) - begin))
    return hashes_S[is_found_S]
