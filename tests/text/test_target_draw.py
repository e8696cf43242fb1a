"""Targets drawn with the same chance each: against a draw one by one, on tiny stores."""

from __future__ import annotations

from collections import Counter
from functools import cache
from typing import Optional

import numpy as np
import pytest
from scipy.stats import chi2, chi2_contingency
from tiny_stores import EOS, tiny_store

from olmo_sparsity.text import target_draw
from olmo_sparsity.text.store import TokenStore
from olmo_sparsity.text.target_draw import DrawnTargets, count_targets, draw_targets, possible_targets
from olmo_sparsity.text.windows import sample_windows

FULL = 4
ELIGIBLE = [1, 2, 5, 12]  # eligible targets of each document
NUM_SEEDS = 1500
RARE = 1e-6  # chance that a test of a correct draw would fail for another choice of seeds


@pytest.fixture(scope="module")
def store() -> TokenStore:
    return tiny_store([[2 + d] * (FULL + number) for d, number in enumerate(ELIGIBLE)])


def draw(store: TokenStore, num_windows: int, *, seed: int, max_per_document: int = 2) -> DrawnTargets:
    documents_g = np.arange(store.num_documents)
    return draw_targets(
        store,
        FULL,
        documents_g=documents_g,
        num_windows=num_windows,
        max_per_document=max_per_document,
        seed=seed,
    )


def targets_of(store: TokenStore) -> list[int]:
    """Every eligible target, by the definition."""
    return [
        index
        for begin, end in zip(store.begins_G.tolist(), store.ends_G.tolist(), strict=True)
        for index in range(begin + FULL, end)
        if store.tokens[index] != EOS
    ]


def drawn_one_by_one(
    num_windows: int, max_per_document: int, *, rng: np.random.Generator
) -> tuple[list[int], list[int]]:
    """Return (documents of the windows, draws that fell on each document) of a draw as the definition has it."""
    documents = [d for d, number in enumerate(ELIGIBLE) for _ in range(number)]
    kept: list[int] = []
    fallen: Counter[int] = Counter()
    for document in rng.permutation(documents).tolist():
        if fallen[document] < max_per_document:
            if len(kept) == num_windows:
                break
            kept.append(document)
        fallen[document] += 1
    return kept, [fallen[d] for d in range(len(ELIGIBLE))]


@cache
def many_draws(num_windows: int) -> list[DrawnTargets]:
    store = tiny_store([[2 + d] * (FULL + number) for d, number in enumerate(ELIGIBLE)])
    return [draw(store, num_windows, seed=seed) for seed in range(NUM_SEEDS)]


def test_every_target_is_the_first_draw_equally_often(store: TokenStore) -> None:
    seen = Counter(int(drawn.target_W[0]) for drawn in many_draws(4))
    targets = targets_of(store)
    assert set(seen) <= set(targets)
    expected = NUM_SEEDS / len(targets)
    statistic = sum((seen[target] - expected) ** 2 / expected for target in targets)
    assert statistic < chi2.isf(RARE, len(targets) - 1)


@pytest.mark.parametrize("num_windows", [1, 4, 6])
def test_the_weighted_mean_is_unbiased_where_documents_are_full(store: TokenStore, num_windows: int) -> None:
    """The weighted share of each target has the mean that the definition says, 1 / eligible targets.

    With 2 windows of each document at most, 4 and 6 of the 7 windows fill most documents. A plain mean fails.
    """
    targets = targets_of(store)
    shares = np.zeros((NUM_SEEDS, len(targets)))
    plain = np.zeros_like(shares)
    for row, drawn in enumerate(many_draws(num_windows)):
        own = np.searchsorted(targets, drawn.target_W)
        shares[row, own] = drawn.weight_W / drawn.weight_W.sum()
        plain[row, own] = 1 / len(own)

    def largest_z(values: np.ndarray) -> float:
        errors = values.std(axis=0, ddof=1) / NUM_SEEDS**0.5
        return float(np.abs((values.mean(axis=0) - 1 / len(targets)) / errors).max())

    bound = chi2.isf(RARE / len(targets), 1) ** 0.5
    assert largest_z(shares) < bound
    assert num_windows == 1 or largest_z(plain) > bound


def test_windows_and_weights_have_the_law_of_a_draw_one_by_one(store: TokenStore) -> None:
    rng = np.random.default_rng(1)
    ours: Counter[object] = Counter()
    theirs: Counter[object] = Counter()
    for drawn in many_draws(4):
        weights = {int(d): float(w) for d, w in zip(drawn.document_W, drawn.weight_W, strict=True)}
        kept = Counter(drawn.document_W.tolist())
        ours[(*drawn.document_W.tolist(), *(round(weights.get(d, 0) * kept[d], 9) for d in range(len(ELIGIBLE))))] += 1
    for _ in range(NUM_SEEDS):
        documents, fallen = drawn_one_by_one(4, 2, rng=rng)
        theirs[(*documents, *map(float, fallen))] += 1
    common = [key for key, number in (ours + theirs).items() if number >= 10]
    assert len(common) > 50
    table = np.array([[counts[key] for key in common] for counts in (ours, theirs)])
    table = np.column_stack([table, NUM_SEEDS - table.sum(axis=1)])  # all rare ones together
    assert chi2_contingency(table).pvalue > RARE


def test_text_that_runs_out_gives_each_document_its_number_of_targets(store: TokenStore) -> None:
    for num_windows in (7, 50):
        drawn = draw(store, num_windows, seed=3)
        assert sorted(drawn.document_W.tolist()) == [0, 1, 1, 2, 2, 3, 3]
        for document, number in enumerate(ELIGIBLE):
            assert drawn.weight_W[drawn.document_W == document].sum() == number
    everything = draw(store, 50, seed=3, max_per_document=12)
    assert sorted(everything.target_W.tolist()) == targets_of(store)
    assert (everything.weight_W == 1).all()


def test_target_i_does_not_depend_on_the_number_of_windows() -> None:
    store = tiny_store([[2 + d] * (FULL + 1 + 3 * d % 17) for d in range(60)])
    for max_per_document in (1, 3, 100):
        many = draw(store, 10_000, seed=8, max_per_document=max_per_document)
        assert len({*many.target_W.tolist()}) == len(many.target_W)
        for num_windows in (1, 2, 17, 59):
            few = draw(store, num_windows, seed=8, max_per_document=max_per_document)
            assert few.document_W.tolist() == many.document_W[:num_windows].tolist()
            assert few.target_W.tolist() == many.target_W[:num_windows].tolist()
            assert (few.weight_W >= 1).all()


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("with_table", [False, True])
def test_targets_are_counted_block_by_block(monkeypatch: pytest.MonkeyPatch, block: int, with_table: bool) -> None:
    monkeypatch.setattr(target_draw, "COUNTED_TOKENS", block)
    rng = np.random.default_rng(4)
    store = tiny_store([rng.integers(2, 9, int(rng.integers(6, 30))).tolist() for _ in range(25)])
    table_V: Optional[np.ndarray] = np.isin(np.arange(9), [EOS, 1, 3, 8]) if with_table else None
    documents_g = np.flatnonzero(store.lengths_G % 3 > 0)
    counts_g = count_targets(store, FULL, documents_g=documents_g, target_table_V=table_V)
    for document, count in zip(documents_g.tolist(), counts_g.tolist(), strict=True):
        begin, end = int(store.begins_G[document]), int(store.ends_G[document])
        expected = [
            i
            for i in range(begin + FULL, end)
            if store.tokens[i] != EOS and (not with_table or store.tokens[i] in (3, 8))
        ]
        assert count == len(expected)
        found = possible_targets(store, FULL, document=document, target_table_V=table_V)
        assert found.tolist() == expected


def test_windows_have_targets_of_the_table_and_no_eos() -> None:
    rng = np.random.default_rng(5)
    store = tiny_store([rng.integers(2, 9, int(rng.integers(3, 30))).tolist() for _ in range(40)])
    table_V = np.isin(np.arange(9), [EOS, 1, 3])
    windows = sample_windows(store, FULL, num_windows=50, max_per_document=3, seed=0, target_table_V=table_V)
    tokens_WT = windows.tokens(np.arange(len(windows)))
    assert len(windows) == 50
    assert (tokens_WT[:, -1] == 3).all()
    assert (tokens_WT != EOS).all()
    assert (windows.start_W >= store.begins_G[windows.document_W]).all()
    assert (windows.start_W + FULL < store.ends_G[windows.document_W] - 1).all()


def test_the_hash_of_windows_holds_their_weights(store: TokenStore) -> None:
    hashes = set()
    for num_windows in (5, 7):
        windows = sample_windows(store, FULL, num_windows=num_windows, max_per_document=2, seed=0)
        hashes.add(windows.sha256)
    assert len(hashes) == 2
    reweighted = sample_windows(store, FULL, num_windows=7, max_per_document=2, seed=0)
    reweighted.weight_W[0] += 1
    assert reweighted.sha256 not in hashes
