from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from scipy.stats import chisquare

from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.text.preparation import prepare
from olmo_sparsity.text.store import TokenStore, open_store
from olmo_sparsity.text.windows import sample_windows


@pytest.fixture
def store(tiny_config: Config) -> TokenStore:
    return open_store(prepare(tiny_config.data), "train")


def test_windows_lie_inside_one_document_at_different_places(store: TokenStore) -> None:
    windows = sample_windows(store, 20, 10_000, 4, seed=0)
    eligible = (store.lengths - 1 >= 21).sum()
    assert eligible < len(windows) < 10_000  # documents repeat, and run out
    assert (windows.start >= store.begins[windows.document]).all()
    assert (windows.start + 20 < store.ends[windows.document] - 1).all()  # EOS is no target
    assert len({*zip(windows.document.tolist(), windows.start.tolist(), strict=True)}) == len(windows)
    assert max(Counter(windows.document.tolist()).values()) == 4
    assert sorted(windows.document[:eligible].tolist()) == np.flatnonzero(store.lengths - 1 >= 21).tolist()


def test_window_i_does_not_depend_on_how_many_are_asked_for(store: TokenStore) -> None:
    few, many = (sample_windows(store, 20, n, 4, seed=3) for n in (40, 400))
    for name in ("document", "start", "null_start"):
        assert getattr(many, name)[:40].tolist() == getattr(few, name).tolist()
    assert sample_windows(store, 20, 40, 4, seed=4).start.tolist() != few.start.tolist()


def test_all_places_of_a_document_are_targets_equally_often(store: TokenStore) -> None:
    document = int(np.argmin(np.where(store.lengths >= 40, store.lengths, 10**9)))
    begin, end = store.begins[document], store.ends[document] - 1
    everything = {int(s - begin) for s in range(begin, end - 20)}
    seen = Counter(
        int(start - begin)
        for windows in (sample_windows(store, 20, 10_000, 2, seed) for seed in range(150))
        for start in windows.start[windows.document == document].tolist()
    )
    assert set(seen) == everything
    assert chisquare([seen[place] for place in sorted(everything)]).pvalue > 1e-3


def test_the_null_context_comes_from_another_document(store: TokenStore) -> None:
    windows = sample_windows(store, 20, 300, 4, seed=0)
    lender = store.document_of(windows.null_start)
    assert (lender != windows.document).all()
    assert (windows.null_start + 20 < store.ends[lender]).all()
    assert len(set(lender.tolist())) > 50
    place = (windows.null_start - store.begins[lender]) / (store.lengths[lender] - 1 - 20)  # uniform on [0, 1)
    assert abs(place.mean() + 0.5 / (store.lengths[lender] - 21).mean() - 0.5) < 0.1
    assert (place == 0).mean() < 0.2


def test_excluded_documents_and_word_starts(store: TokenStore) -> None:
    first = sample_windows(store, 20, 50, 1, seed=0)
    excluded = store.doc_ids[first.document]
    assert not set(sample_windows(store, 20, 500, 1, 0, exclude_ids=excluded).document) & set(first.document)
    assert set(sample_windows(store, 20, 30, 4, 0).document) == set(sample_windows(store, 20, 30, 1, 0).document)
    table = np.zeros(320, dtype=bool)
    table[290:] = True
    windows = sample_windows(store, 20, 50, 4, seed=0, target_table=table)
    assert table[windows.tokens(np.arange(len(windows)))[:, -1]].all()
    few = sample_windows(store, 20, 20, 4, seed=0, target_table=table)
    assert len(set(few.document.tolist())) == 20  # a second window of a document only when all have given one
    assert windows.start[:20].tolist() == few.start.tolist()


def test_text_too_small_for_windows(store: TokenStore) -> None:
    with pytest.raises(UserError, match=r"0 of its \d+ documents hold a window of 5000 tokens.*the longest document"):
        sample_windows(store, 5000, 10, 4, seed=0)
    with pytest.raises(UserError, match="the model was trained on them"):
        sample_windows(store, 20, 10, 4, seed=0, exclude_ids=store.doc_ids)
