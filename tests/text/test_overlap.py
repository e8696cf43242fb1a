"""Sequences that training text contains, against sets of tuples."""

from __future__ import annotations

import numpy as np
import pytest
from tiny_stores import tiny_store

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.text.overlap import NGRAM, documents_in_training, ngram_hashes, windows_in_training
from olmo_sparsity.text.store import TokenStore
from olmo_sparsity.text.windows import sample_windows


def random_texts(seed: int, num_documents: int) -> list[list[int]]:
    """Documents of two tokens, so that many sequences of 13 occur more than once."""
    rng = np.random.default_rng(seed)
    return [rng.integers(2, 4, int(rng.integers(1, 60))).tolist() for _ in range(num_documents)]


def sequences(tokens: list[int]) -> set[tuple[int, ...]]:
    return {tuple(tokens[i : i + 13]) for i in range(len(tokens) - 12)}


TRAINED = set().union(*map(sequences, random_texts(0, 60)))


@pytest.fixture
def training() -> TokenStore:
    """Training text of several blocks, whose gaps, of another split, hold 3,000 times token 1."""
    return tiny_store(random_texts(0, 60), gap=3000, split="train")


def test_equal_sequences_and_no_others_have_equal_hashes() -> None:
    rows = np.random.default_rng(0).integers(0, 2, (200, 40)).astype(np.uint16)
    hashes = ngram_hashes(rows)
    of_tuple: dict[tuple[int, ...], int] = {}
    for row, hashes_N in zip(rows.tolist(), hashes.tolist(), strict=True):
        for i, value in enumerate(hashes_N):
            assert of_tuple.setdefault(tuple(row[i : i + NGRAM]), value) == value
    assert hashes.shape == (200, 28) and len(set(of_tuple.values())) == len(of_tuple) > 2000
    assert ngram_hashes(rows[3]).tolist() == hashes[3].tolist() and ngram_hashes(rows[:, :12]).shape == (200, 0)
    assert ngram_hashes(np.array([70_000] * NGRAM, dtype=np.uint32)) != ngram_hashes(np.array([4464] * NGRAM))


def test_documents_that_share_a_sequence_with_training_text(training: TokenStore) -> None:
    held_out = [*random_texts(1, 80), [1] * 30, [2, 3], random_texts(0, 60)[-1]]
    expected = [bool(sequences(tokens) & TRAINED) for tokens in held_out]
    assert documents_in_training(tiny_store(held_out, gap=3000), training).tolist() == expected
    assert 10 < sum(expected) < len(expected) - 10 and not expected[-3]  # the gaps are not training text
    text = [*range(100, 112)]  # twelve tokens and the end of a document are no sequence
    trained = tiny_store([text, [*range(200, 213)]], gap=0, split="train")
    held_out = [text, [*text[1:], 7], [*range(200, 213)]]
    assert documents_in_training(tiny_store(held_out), trained).tolist() == [False, False, True]
    trained = tiny_store([[9] * 65_534, [*range(200, 213)]], gap=0, split="train")  # at the last place of a block
    assert documents_in_training(tiny_store(held_out), trained).tolist() == [False, False, True]


def test_windows_that_share_a_sequence_with_training_text(training: TokenStore) -> None:
    for full_len in (11, 12, 16):
        store = tiny_store([*random_texts(2, 500), [1] * 30])
        settings = InfluenceConfig(num_windows=4200, max_windows_per_document=20)  # of two blocks
        windows = sample_windows(store, full_len, settings)
        rows = windows.tokens(np.arange(len(windows))).tolist()  # with the target
        expected = [bool(sequences(row) & TRAINED) for row in rows]
        assert windows_in_training(windows, training).tolist() == expected
        assert windows_in_training(windows, store).all() == (full_len >= 12)  # all are their own text
        assert (0 < sum(expected) < len(expected)) == (full_len >= 12)
