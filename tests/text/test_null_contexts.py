"""Each kind of null context against all places that its definition allows, on tiny stores."""

from __future__ import annotations

import hashlib
from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from scipy.stats import chi2
from tiny_stores import EOS, tiny_store

from olmo_sparsity.text.null_contexts import ALONE, FALLBACKS, NullContexts, draw_null_contexts
from olmo_sparsity.text.windows import Windows, sample_windows

FULL, M = 5, 3
NUM_SEEDS = 500
RARE = 1e-6  # chance that a test of a correct draw would fail for another choice of seeds
# Source and length of each document. Document 5 is the only one of its source, and those of `twins` have equal text.
DOCUMENTS = [("a", 8), ("b", 17), ("a", 6), ("b", 9), ("a", 4), ("c", 9), ("twins", 11), ("twins", 11), ("a", 13)]


@pytest.fixture(scope="module")
def windows() -> Windows:
    """Every window of the store."""
    texts = [[10 * min(d, 6) + 2 + i % 7 for i in range(length)] for d, (_, length) in enumerate(DOCUMENTS)]
    store = tiny_store(texts, sources=[source for source, _ in DOCUMENTS])
    return sample_windows(store, FULL, num_windows=100, max_per_document=100, seed=0)


def draw(windows: Windows, kind: str, *, seed: int = 0) -> NullContexts:
    return draw_null_contexts(windows, M, kind=kind, seed=seed)


def allowed(windows: Windows, window: int, kind: str) -> dict[int, float]:
    """Return the probability of each first token of the null context, by the definition; empty if there is none."""
    store, own = windows.store, int(windows.document_W[window])
    spans = list(zip(store.begins_G.tolist(), (store.ends_G - 1).tolist(), strict=True))  # without EOS
    start = int(windows.start_W[window])
    if kind == "shuffled":
        return {start: 1.0}
    if kind == "same-document":
        taken = set(range(start, start + FULL + 1))
        begin, end = spans[own]
        places = [s for s in range(begin, end - M + 1) if not taken & set(range(s, s + M))]
        return {s: 1 / len(places) for s in places}
    lenders = [
        d
        for d, (source, length) in enumerate(DOCUMENTS)
        if length > FULL
        and store.doc_ids_G[d] != store.doc_ids_G[own]
        and (kind == "any-source" or source == DOCUMENTS[own][0])
    ]
    chances = {}
    for d in lenders:
        places = range(spans[d][0], spans[d][1] - FULL)
        chances.update({s: 1 / len(lenders) / len(places) for s in places})
    return chances


@pytest.mark.parametrize("kind", FALLBACKS)
def test_places_have_the_law_of_the_definition(windows: Windows, kind: str) -> None:
    """A window that has no place of its kind has the law of the next kind that it has a place of, and says so."""
    draws = [draw(windows, kind, seed=seed) for seed in range(NUM_SEEDS)]
    expected_kinds = []
    for window in range(len(windows)):
        actual: str = kind
        while not (chances := allowed(windows, window, actual)):
            actual = FALLBACKS[actual] or "nothing left"
        expected_kinds.append(actual)
        seen = Counter(int(one.start_W[window]) for one in draws)
        assert set(seen) <= set(chances)
        statistic = sum((seen[s] - NUM_SEEDS * p) ** 2 / (NUM_SEEDS * p) for s, p in chances.items())
        assert len(chances) == 1 or statistic < chi2.isf(RARE, len(chances) - 1)
    assert draws[0].kinds == expected_kinds
    assert draws[0].counts() == Counter(expected_kinds)


def test_every_fallback_occurs(windows: Windows) -> None:
    assert set(draw(windows, "same-source").counts()) == {"same-source", "any-source"}
    assert set(draw(windows, "same-document").counts()) == {"same-document", "same-source", "any-source"}
    assert set(draw(windows, "any-source").counts()) == {"any-source"}
    assert set(draw(windows, "shuffled").counts()) == {"shuffled"}


@pytest.mark.parametrize("kind", ALONE)
def test_a_single_document_lends_to_itself_or_is_shuffled(kind: str) -> None:
    """Also two copies of one text. Windows near the middle of the document leave no room beside them."""
    text = list(range(2, 2 + FULL + M + 2))
    store = tiny_store([text, text])
    windows = sample_windows(store, FULL, num_windows=100, max_per_document=100, seed=0)
    contexts = draw(windows, kind)
    for window, tokens in enumerate(windows.tokens(np.arange(len(windows))).tolist()):
        outside = [token for token in text if token not in tokens]
        has_room = max(text.index(tokens[0]), len(text) - 1 - text.index(tokens[-1])) >= M
        drawn = contexts.tokens(np.array([window]))[0].tolist()
        if has_room and kind != "shuffled":
            assert contexts.kinds[window] == "same-document"
            assert set(drawn) <= set(outside)
        else:
            assert contexts.kinds[window] == "shuffled"
            assert sorted(drawn) == tokens[:M]
    assert set(contexts.counts()) == ({"shuffled"} if kind == "shuffled" else {"same-document", "shuffled"})


@pytest.mark.parametrize("kind", FALLBACKS)
def test_tokens_and_documents_are_those_of_the_place(windows: Windows, kind: str) -> None:
    store, contexts = windows.store, draw(windows, kind)
    window_ids_W = np.arange(len(windows))
    tokens_WM, doc_ids = contexts.tokens(window_ids_W), contexts.doc_ids(window_ids_W)
    for window, start in enumerate(contexts.start_W.tolist()):
        tokens = store.tokens[start : start + M].tolist()
        assert EOS not in tokens
        if kind == "shuffled":
            assert tokens == windows.tokens(window_ids_W)[window, :M].tolist()
            tokens_of = sorted(tokens_WM[window].tolist())
            tokens = sorted(tokens)
        else:
            tokens_of = tokens_WM[window].tolist()
        assert tokens_of == tokens
        is_own = contexts.kinds[window] in ("same-document", "shuffled")
        assert (doc_ids[window] == windows.doc_ids(window_ids_W)[window]) == is_own
    some = np.array([7, 2])
    assert contexts.tokens(some).tolist() == tokens_WM[some].tolist()
    # In front of the window's own local tokens and target.
    assert contexts.window_tokens(some).tolist() == [
        [*tokens_WM[window].tolist(), *windows.tokens(window_ids_W)[window, M:].tolist()] for window in (7, 2)
    ]


def test_shuffled_tokens_have_every_order_equally_often(windows: Windows) -> None:
    own = windows.tokens(np.array([4]))[0, :M].tolist()
    seen = Counter(tuple(draw(windows, "shuffled", seed=seed).tokens(np.array([4]))[0]) for seed in range(NUM_SEEDS))
    orders = set(permutations(own))
    assert len(orders) == 6
    assert set(seen) == orders
    assert sum((seen[order] - NUM_SEEDS / 6) ** 2 / (NUM_SEEDS / 6) for order in orders) < chi2.isf(RARE, 5)


def test_a_null_context_does_not_depend_on_the_number_of_windows(windows: Windows) -> None:
    few = sample_windows(windows.store, FULL, num_windows=9, max_per_document=100, seed=0)
    for kind in FALLBACKS:
        assert draw(few, kind).start_W.tolist() == draw(windows, kind).start_W[:9].tolist()
        assert draw(few, kind, seed=1).start_W.tolist() != draw(few, kind).start_W.tolist() or kind == "shuffled"


@pytest.mark.parametrize("kind", ["same-source", "any-source", "same-document"])
def test_null_contexts_of_shorter_windows_end_those_of_longer_ones(windows: Windows, kind: str) -> None:
    """Also where a window falls back to another kind: whether it must depends on the longest."""
    shorter = sample_windows(windows.store, FULL - 1, num_windows=100, max_per_document=100, seed=0, min_preceding=FULL)
    every = np.arange(len(windows))
    assert shorter.tokens(every)[:, -1].tolist() == windows.tokens(every)[:, -1].tolist()
    for seed in range(10):
        longest = draw(windows, kind, seed=seed)
        contexts = draw_null_contexts(shorter, M - 1, kind=kind, seed=seed)
        assert contexts.kinds == longest.kinds
        assert contexts.tokens(every).tolist() == longest.tokens(every)[:, 1:].tolist()
        assert contexts.doc_ids(every) == longest.doc_ids(every)


def test_shorter_windows_are_shuffled_for_themselves(windows: Windows) -> None:
    shorter = sample_windows(windows.store, FULL - 1, num_windows=100, max_per_document=100, seed=0, min_preceding=FULL)
    contexts = draw_null_contexts(shorter, M - 1, kind="shuffled", seed=0)
    every = np.arange(len(shorter))
    assert [sorted(row) for row in contexts.tokens(every).tolist()] == [
        sorted(row[: M - 1]) for row in shorter.tokens(every).tolist()
    ]


def test_shuffled_tokens_have_the_order_of_earlier_versions() -> None:
    store = tiny_store([list(range(2, 40))])
    windows = sample_windows(store, 8, num_windows=3, max_per_document=3, seed=1, sampling="documents")
    for seed, orders in (
        (5, [[4, 0, 5, 1, 3, 2], [0, 4, 3, 5, 1, 2], [3, 1, 2, 5, 4, 0]]),
        (6, [[4, 3, 1, 2, 5, 0], [3, 5, 2, 1, 4, 0], [1, 0, 2, 5, 3, 4]]),
    ):
        contexts = draw_null_contexts(windows, 6, kind="shuffled", seed=seed)
        assert (contexts.places(np.arange(3)) - windows.start_W[:, None]).tolist() == orders


def test_text_of_any_source_is_drawn_as_in_earlier_versions() -> None:
    """The hash was computed before there were other kinds."""
    store = tiny_store([[2 + (7 * d + 3 * i) % 40 for i in range(5 + d % 9)] for d in range(30)])
    windows = sample_windows(store, 4, num_windows=70, max_per_document=3, seed=5, sampling="documents")
    contexts = draw_null_contexts(windows, 3, kind="any-source", seed=5)
    drawn = np.stack([windows.document_W, windows.start_W, contexts.start_W])
    assert hashlib.sha256(drawn.tobytes()).hexdigest().startswith("3e33c6d37d91f2dc0b1293884625658a78a5bde0fd004ee8")
