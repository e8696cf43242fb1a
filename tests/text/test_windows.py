from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from scipy.stats import chisquare
from tiny_stores import tiny_store

from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.text.preparation import prepare
from olmo_sparsity.text.store import TokenStore, open_store
from olmo_sparsity.text.windows import Windows, _is_among, sample_windows


@pytest.fixture
def store(tiny_config: Config) -> TokenStore:
    return open_store(prepare(tiny_config.data), "train")


def sample(
    store: TokenStore, num_windows: int, *, full_len: int = 20, max_per_document: int = 4, seed: int = 0, **options: Any
) -> Windows:
    settings = {"num_windows": num_windows, "max_per_document": max_per_document, "seed": seed}
    return sample_windows(store, full_len, **{**settings, **options})


def test_windows_lie_inside_one_document_at_different_places(store: TokenStore) -> None:
    windows = sample(store, 10_000)
    eligible = (store.lengths_G - 1 >= 21).sum()
    assert eligible < len(windows) < 10_000  # documents repeat, and run out
    assert (windows.start_W >= store.begins_G[windows.document_W]).all()
    assert (windows.start_W + 20 < store.ends_G[windows.document_W] - 1).all()  # EOS is no target
    assert len({*zip(windows.document_W.tolist(), windows.start_W.tolist(), strict=True)}) == len(windows)
    assert max(Counter(windows.document_W.tolist()).values()) == 4
    assert np.unique(windows.document_W).tolist() == np.flatnonzero(store.lengths_G - 1 >= 21).tolist()


def test_the_draw_is_that_of_earlier_versions() -> None:
    """With other seeds or purposes of the generators the numbers would be others."""
    tiny = tiny_store([[2 + (7 * d + 3 * i) % 40 for i in range(5 + 3 * (d % 9))] for d in range(6)])
    windows = sample_windows(tiny, 4, num_windows=8, max_per_document=2, seed=5)
    assert windows.document_W.tolist() == [4, 1, 5, 2, 4, 2, 5, 1]
    assert windows.start_W.tolist() == [59, 12, 75, 27, 63, 26, 88, 10]
    assert windows.weight_W.tolist() == [4.0, 2.0, 3.0, 1.5, 4.0, 1.5, 3.0, 2.0]


def test_window_i_does_not_depend_on_the_number_of_windows(store: TokenStore) -> None:
    few, many = (sample(store, num_windows, seed=3) for num_windows in (40, 400))
    for name in ("document_W", "start_W"):
        assert getattr(many, name)[:40].tolist() == getattr(few, name).tolist()
    assert sample(store, 40, seed=4).start_W.tolist() != few.start_W.tolist()


def test_lengths_with_the_same_preceding_tokens_share_targets_and_weights(store: TokenStore) -> None:
    longest = sample(store, 300)
    shorter = sample_windows(store, 12, num_windows=300, max_per_document=4, seed=0, min_preceding=20)
    assert shorter.document_W.tolist() == longest.document_W.tolist()
    assert shorter.weight_W.tolist() == longest.weight_W.tolist()
    some = np.arange(0, 300, 7)
    assert shorter.tokens(some).tolist() == longest.tokens(some)[:, -13:].tolist()  # the most recent, and the target
    own = sample_windows(store, 12, num_windows=300, max_per_document=4, seed=0)
    assert (own.start_W + 12).tolist() != (longest.start_W + 20).tolist()  # eligible targets differ without it


def test_all_tokens_of_a_document_are_targets_equally_often(store: TokenStore) -> None:
    document = int(np.argmin(np.where(store.lengths_G >= 40, store.lengths_G, 10**9)))
    begin, end = store.begins_G[document], store.ends_G[document] - 1
    possible = {int(start - begin) for start in range(begin, end - 20)}
    seen = Counter(
        int(start - begin)
        for windows in (sample(store, 10_000, max_per_document=2, seed=seed) for seed in range(150))
        for start in windows.start_W[windows.document_W == document].tolist()
    )
    assert set(seen) == possible
    assert chisquare([seen[start] for start in sorted(possible)]).pvalue > 1e-3


def test_a_limit_that_is_none_takes_no_memory(store: TokenStore) -> None:
    few, many = (
        sample_windows(store, 8, num_windows=5, max_per_document=limit, seed=0)
        for limit in (1000, 10**9)  # no document has so many targets
    )
    assert few.sha256 == many.sha256


def test_excluded_documents_are_not_drawn(store: TokenStore) -> None:
    first = sample(store, 50, max_per_document=1)
    others = sample(store, 500, max_per_document=1, exclude_ids=store.doc_ids_G[first.document_W])
    assert not set(others.document_W) & set(first.document_W)


def test_ids_are_found_among_many_others() -> None:
    """IDs below, between and above those of the others, some of them twice; the others are read in blocks of 2**20."""
    ids = np.array([5, 90, 7, 40, 5, 2**64 - 1, 1, 60], dtype=np.uint64)
    others = np.full((1 << 20) + 3, 50, dtype=np.uint64)
    others[[0, 9, -2, -1]] = [40, 2, 7, 91]
    assert _is_among(ids, others).tolist() == [i in {50, 40, 2, 7, 91} for i in ids.tolist()]
    assert _is_among(ids, others[:0]).tolist() == [False] * 8
    assert _is_among(ids[:0], others).tolist() == []


def test_documents_of_equal_text_count_once() -> None:
    tiny = tiny_store([[2, 3, 4, 5], [6, 7, 8], [2, 3, 4, 5]])
    windows = sample(tiny, 9, full_len=2)
    assert sorted(windows.document_W.tolist()) == [0, 0, 1, 2, 2]
    assert windows.num_documents == 2
    assert windows.doc_ids(np.flatnonzero(windows.document_W == 1)) == ["0000000000000002"]


def test_windows_with_other_weights_or_of_other_places_are_others() -> None:
    tiny = tiny_store([[2] * 9, [3] * 8])
    windows = sample(tiny, 5, full_len=4)
    found = {windows.sha256}
    for name in ("document_W", "start_W", "weight_W"):
        values = getattr(windows, name).copy()
        values[3] += 1
        found.add(dataclasses.replace(windows, **{name: values}).sha256)
    assert len(found) == 4 and sample(tiny, 5, full_len=4).sha256 in found


def test_text_too_small_for_windows(store: TokenStore) -> None:
    with pytest.raises(UserError, match=r"0 of its \d+ documents hold a window of 5000 tokens.*the longest document"):
        sample_windows(store, 5000, num_windows=10, max_per_document=4, seed=0)
    tiny = tiny_store([[2] * 4, [3] * 8, [4] * 5])
    with pytest.raises(
        UserError, match=r"0 of its 3 documents hold a window of 8 .* \(the longest document has 8 tokens"
    ):
        sample(tiny, 10, full_len=8)
    for exclude_ids in (None, tiny.doc_ids_G):  # of those that are too short none is left out for what it is
        with pytest.raises(UserError, match=r"a window of 8 tokens and its target \(the longest document"):
            sample(tiny, 10, full_len=8, exclude_ids=exclude_ids)
    with pytest.raises(UserError) as refused:
        sample(tiny, 10, full_len=4, exclude_ids=tiny.doc_ids_G)
    assert str(refused.value) == (
        "the text to measure is too small: 2 of its 3 documents hold a window of 4 tokens and its target, 2 of them left out: "
        "the model was trained on them (the longest document has 8 tokens); use longer text, or shorter windows (--full-len; "
        "influence.min_preceding, if it is set)"
    )
    with pytest.raises(
        UserError, match=r"^influence\.targets = word-start: no token of the measured text begins a word$"
    ):
        sample(tiny, 10, full_len=4, target_table_V=np.zeros(9, dtype=bool))
