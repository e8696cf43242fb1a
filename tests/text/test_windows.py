"""Windows and their weights: against a draw one by one, on tiny stores; windows of documents in memory."""

from __future__ import annotations

import hashlib
from collections import Counter
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy.stats import chi2, chi2_contingency
from tiny_stores import EOS, tiny_store

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.text.sources import hash64
from olmo_sparsity.text.store import TokenStore
from olmo_sparsity.text.windows import (
    Windows,
    few_documents,
    id_of_text,
    id_of_tokens,
    sample_windows,
    store_of,
    windows_before,
)

FULL = 4
ELIGIBLE = [1, 2, 5, 12]  # eligible targets of each document
NUM_SEEDS = 1500
RARE = 1e-6  # chance that a test of a correct draw would fail for another choice of seeds
STORE = tiny_store([[2 + d] * (FULL + number) for d, number in enumerate(ELIGIBLE)])


def draw(
    store: TokenStore, num_windows: int, *, seed: int = 0, full_len: int = FULL, most: int = 2,
    min_preceding: int | None = None, **options: Any,
) -> Windows:  # fmt: skip
    settings = InfluenceConfig(
        num_windows=num_windows, max_windows_per_document=most, seed=seed, min_preceding=min_preceding
    )
    return sample_windows(store, full_len, settings, **options)


def targets_of(store: TokenStore, table_V: np.ndarray | None = None) -> list[int]:
    """Every eligible target, by the definition."""
    return [
        index
        for begin, end in zip(store.begins_G.tolist(), store.ends_G.tolist(), strict=True)
        for index in range(begin + FULL, end)
        if store.tokens[index] != EOS and (table_V is None or table_V[store.tokens[index]])
    ]


@cache
def many_draws() -> list[Windows]:
    """With 2 windows of each document at most, 4 of the 7 windows fill most documents."""
    return [draw(STORE, 4, seed=seed) for seed in range(NUM_SEEDS)]


def test_the_weighted_mean_is_unbiased_where_documents_are_full() -> None:
    """The weighted share of each target has the mean 1 / eligible targets; a plain mean fails."""
    targets = targets_of(STORE)
    shares = np.zeros((NUM_SEEDS, len(targets)))
    plain = np.zeros_like(shares)
    for row, drawn in enumerate(many_draws()):
        own = np.searchsorted(targets, drawn.start_W + FULL)
        shares[row, own] = drawn.weight_W / drawn.weight_W.sum()
        plain[row, own] = 1 / len(own)

    def largest_z(values: np.ndarray) -> float:
        errors = values.std(axis=0, ddof=1) / NUM_SEEDS**0.5
        return float(np.abs((values.mean(axis=0) - 1 / len(targets)) / errors).max())

    bound = chi2.isf(RARE / len(targets), 1) ** 0.5
    assert largest_z(shares) < bound < largest_z(plain)


def test_windows_and_weights_have_the_law_of_a_draw_one_by_one() -> None:
    rng = np.random.default_rng(1)
    ours: Counter[object] = Counter()
    theirs: Counter[object] = Counter()
    for drawn in many_draws():
        fallen_d = np.bincount(drawn.document_W, drawn.weight_W, minlength=len(ELIGIBLE))
        ours[(*drawn.document_W.tolist(), *fallen_d.round(9).tolist())] += 1
    for _ in range(NUM_SEEDS):
        documents: list[int] = []
        fallen: Counter[int] = Counter()
        for document in rng.permutation([d for d, number in enumerate(ELIGIBLE) for _ in range(number)]).tolist():
            if fallen[document] < 2:
                if len(documents) == 4:
                    break
                documents.append(document)
            fallen[document] += 1
        theirs[(*documents, *(float(fallen[d]) for d in range(len(ELIGIBLE))))] += 1
    common = [key for key, number in (ours + theirs).items() if number >= 10]
    assert len(common) > 50
    table = np.array([[counts[key] for key in common] for counts in (ours, theirs)])
    table = np.column_stack([table, NUM_SEEDS - table.sum(axis=1)])  # all rare ones together
    assert chi2_contingency(table).pvalue > RARE


def test_window_i_does_not_depend_on_the_number_of_windows() -> None:
    store = tiny_store([[2 + d] * (FULL + 1 + 3 * d % 17) for d in range(60)])
    for most in (1, 3, 100):
        many = draw(store, 10_000, seed=8, most=most)
        assert len({*many.start_W.tolist()}) == len(many)
        for num_windows in (1, 2, 17, 59):
            few = draw(store, num_windows, seed=8, most=most)
            assert few.document_W.tolist() == many.document_W[:num_windows].tolist()
            assert few.start_W.tolist() == many.start_W[:num_windows].tolist()
        assert draw(store, 59, seed=9, most=most).start_W.tolist() != few.start_W.tolist()


def test_lengths_with_the_same_preceding_tokens_share_targets_and_weights() -> None:
    store = tiny_store([[*range(2, 9 + d % 9)] for d in range(60)])
    longest, shorter = draw(store, 80), draw(store, 80, full_len=2, min_preceding=FULL)
    assert shorter.weight_W.tolist() == longest.weight_W.tolist()
    every = np.arange(80)
    assert shorter.tokens(every).tolist() == longest.tokens(every)[:, -3:].tolist()
    assert draw(store, 80, full_len=2).start_W.tolist() != shorter.start_W.tolist()


def test_targets_of_a_table() -> None:
    """In several blocks of tokens; EOS and tokens of other splits are none."""
    rng = np.random.default_rng(5)
    store = tiny_store([rng.integers(2, 9, int(rng.integers(3, 30))).tolist() for _ in range(40)], gap=70_000)
    table_V = np.isin(np.arange(9), [EOS, 1, 3, 8])
    windows = draw(store, 1000, most=100, target_table_V=table_V)
    assert sorted((windows.start_W + FULL).tolist()) == targets_of(store, table_V)
    few = draw(store, 30, target_table_V=table_V, exclude_ids=store.doc_ids_G[::3])
    assert np.isin(few.tokens(np.arange(30))[:, -1], [3, 8]).all() and not (few.document_W % 3 == 0).any()


def test_text_too_small_for_windows() -> None:
    tiny = tiny_store([[2] * 4, [3] * 8, [4] * 5])
    cases: dict[str, dict[str, Any]] = {
        r"0 of its 3 documents hold a window of 8 tokens, the longest has 8": {"full_len": 8},
        r"2 of its 3 documents .* \(the model was trained on all\)": {"exclude_ids": tiny.doc_ids_G},
        r"influence\.targets = word-start: no token is white space": {"target_table_V": np.zeros(9, dtype=bool)},
    }
    for words, options in cases.items():
        with pytest.raises(UserError, match=words):
            draw(tiny, 10, **options)
    with pytest.raises(UserError, match=r"0 of its 0 documents .* the longest has 0"):
        draw(tiny_store([]), 10)


def test_windows_of_documents_in_memory() -> None:
    """Their IDs are those of corpora; a name is hashed, unless it is an ID itself."""
    first, second = np.arange(10, 19), np.arange(30, 36)
    store = store_of([first, second], [id_of_text("a"), id_of_tokens(second)], source="x", split="own")
    windows = windows_before(store, 4, document_W=np.array([1, 0, 0]), target_W=np.array([5, 4, 8]))
    assert windows.tokens(np.arange(3)).tolist() == [[31, 32, 33, 34, 35], [10, 11, 12, 13, 14], [14, 15, 16, 17, 18]]
    assert windows.eligible_g.tolist() == [0, 1] and windows.weight_W.tolist() == [1, 1, 1]
    tokens = np.array([*first, 0, *second, 0], dtype="<u4")
    assert store.tokens_sha256 == hashlib.sha256(tokens.tobytes()).hexdigest() and windows.num_documents == 2
    for name in ("abc", "0123456789abcdeg"):
        assert id_of_tokens(second, name) == hash64(name.encode(), b"doc_id")
    assert id_of_tokens(second) == hash64(second.astype("<u4").tobytes(), b"doc_id")
    assert id_of_tokens(second, "0123456789abcdef") == 0x0123456789ABCDEF
    assert id_of_text("naïve") == hash64("naïve".encode(), b"doc_id")


def test_too_few_documents_are_told_with_what_would_do() -> None:
    ids = np.arange(38, dtype=np.uint64)
    assert few_documents(ids, 15.0) == "38 held-out documents, 50 needed for intervals: data.validation_percent=20"
    assert str(few_documents(ids, 38.0)).endswith("data.validation_percent=50")
    assert "use more or longer text" in str(few_documents(ids, 38.1))  # it would take 51
    longer = "38 documents, 50 needed for intervals: use more or longer text, or shorter windows"
    assert few_documents(np.repeat(ids, 3)) == longer
    assert "use more or longer text" in str(few_documents(ids[:2], 15.0)) and few_documents(ids[:0], 15.0) is not None
    store = tiny_store([[2 + d, *range(9)] for d in range(50)])
    said = few_documents(store.doc_ids_G, None, draw(store, 20))
    assert said is not None and said.startswith("20 windows of ") and said.endswith("(influence.num_windows)")
    assert few_documents(store.doc_ids_G, None, draw(store, 200)) is None
