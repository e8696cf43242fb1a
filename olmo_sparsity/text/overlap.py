"""Overlap with the training text: sequences of 13 consecutive tokens that training text contains, too.

Thirteen tokens are the length that is used elsewhere to find test text in training text. The sequences are compared by 64-bit
hashes: of a million sequences, none is expected to match one of 10^10 others by chance (5e-4 such pairs). Only the sequences
that are looked for are kept, sorted; the training text is hashed block by block, in one pass.

Shape letters: W windows, T tokens of a window, N sequences, S distinct sequences; G documents of a store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from olmo_sparsity.progress import progress_bar
from olmo_sparsity.text.store import TokenStore
from olmo_sparsity.text.windows import Windows

NGRAM = 13
SCANNED_TOKENS = 1 << 16  # tokens that are hashed at a time; the arrays of a block stay in the processor's cache
TABLE_BITS = 22  # of the table that rules most sequences out, indexed by the first bits of their hash
WINDOWS_AT_ONCE = 1 << 14
MULTIPLIER = np.uint64(0xD1342543DE82EF95)
MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def ngram_hashes(tokens: np.ndarray) -> np.ndarray:
    """Return the hash of every sequence of ``NGRAM`` tokens along the last axis, uint64 [..., tokens - NGRAM + 1]."""
    if tokens.shape[-1] < NGRAM:
        return np.zeros((*tokens.shape[:-1], 0), dtype=np.uint64)
    # The finalizer of splitmix64 turns token IDs into numbers that look random.
    mixed = (tokens.astype(np.uint64) + np.uint64(1)) * MIX[0]
    mixed = (mixed ^ (mixed >> np.uint64(30))) * MIX[1]
    mixed = (mixed ^ (mixed >> np.uint64(27))) * MIX[2]
    mixed ^= mixed >> np.uint64(31)
    # A polynomial in MULTIPLIER modulo 2**64, doubled in length three times: 1, 2, 4, 8, then 8 + 4 + 1 tokens.
    by_length, length, power = {1: mixed}, 1, MULTIPLIER
    powers = {1: power}
    while 2 * length <= NGRAM:
        half = by_length[length]
        by_length[2 * length] = half[..., :-length] * power + half[..., length:]
        with np.errstate(over="ignore"):
            power = power * power
        length *= 2
        powers[length] = power
    hashes, done = by_length[length], length
    for part in sorted(by_length, reverse=True):
        if done + part <= NGRAM:
            num = tokens.shape[-1] - done - part + 1
            hashes = hashes[..., :num] * powers[part] + by_length[part][..., done : done + num]
            done += part
    return hashes


def sequences_in_store(hashes_S: np.ndarray, store: TokenStore) -> np.ndarray:
    """Return for each of these hashes whether a document of the store holds such a sequence, bool [S].

    Args:
        hashes_S: uint64, rising, each once.
        store: the text to search, in one pass.
    """
    is_found_S = np.zeros(len(hashes_S), dtype=bool)
    shift = np.uint64(64 - TABLE_BITS)
    is_possible = np.zeros(1 << TABLE_BITS, dtype=bool)
    is_possible[hashes_S >> shift] = True
    num_tokens = len(store.tokens) if len(hashes_S) else 0
    with progress_bar("overlap with training text", " tokens", total=num_tokens, unit_scale=True, leave=False) as bar:
        for begin in range(0, num_tokens, SCANNED_TOKENS):
            hashes_N = ngram_hashes(store.tokens[begin : begin + SCANNED_TOKENS + NGRAM - 1])
            possible_n = np.flatnonzero(is_possible[hashes_N >> shift])
            place_n = np.minimum(np.searchsorted(hashes_S, hashes_N[possible_n]), len(hashes_S) - 1)
            is_equal_n = hashes_S[place_n] == hashes_N[possible_n]
            is_own_n = _are_in_documents(store, possible_n[is_equal_n] + begin)
            is_found_S[place_n[is_equal_n][is_own_n]] = True
            bar.update(min(SCANNED_TOKENS, num_tokens - begin))
    return is_found_S


def _are_in_documents(store: TokenStore, index_n: np.ndarray) -> np.ndarray:
    """Return whether the sequences that begin at these tokens lie within a document of the store, without its EOS.

    Others belong to another split, or to two documents.
    """
    document_n = store.document_of(index_n)
    return np.asarray((document_n >= 0) & (index_n + NGRAM < store.ends_G[document_n]))


def windows_in_training(windows: Windows, training: TokenStore) -> np.ndarray:
    """Return True for windows that hold, with their target, a sequence that training text contains; bool [W]."""
    blocks = [
        np.arange(begin, min(begin + WINDOWS_AT_ONCE, len(windows)))
        for begin in range(0, len(windows), WINDOWS_AT_ONCE)
    ]

    def hashed_blocks() -> Iterator[np.ndarray]:
        for window_ids_w in blocks:
            yield ngram_hashes(windows.tokens(window_ids_w))

    found_S = _found_hashes(hashed_blocks, training)
    return np.concatenate([np.isin(hashes_wN, found_S).any(axis=1) for hashes_wN in hashed_blocks()])


def documents_in_training(store: TokenStore, training: TokenStore) -> np.ndarray:
    """Return True for documents of a store that hold a sequence that training text contains; bool [G]."""

    def hashed_blocks() -> Iterator[np.ndarray]:
        for begin in range(0, len(store.tokens), SCANNED_TOKENS):
            yield ngram_hashes(store.tokens[begin : begin + SCANNED_TOKENS + NGRAM - 1])

    found_S = _found_hashes(hashed_blocks, training)
    is_in_training_G = np.zeros(store.num_documents, dtype=bool)
    for number, hashes_N in enumerate(hashed_blocks()):
        index_n = np.flatnonzero(np.isin(hashes_N, found_S)) + number * SCANNED_TOKENS
        is_in_training_G[store.document_of(index_n[_are_in_documents(store, index_n)])] = True
    return is_in_training_G


def _found_hashes(hashed: Callable[[], Iterator[np.ndarray]], training: TokenStore) -> np.ndarray:
    """Return those of some hashes that training text contains, uint64, rising."""
    hashes_S = np.unique(np.concatenate([np.zeros(0, dtype=np.uint64), *(block.ravel() for block in hashed())]))
    return hashes_S[sequences_in_store(hashes_S, training)]
