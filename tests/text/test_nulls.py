"""Each kind of null context against all places that its definition allows, on tiny stores."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2
from tiny_stores import EOS, tiny_store

from olmo_sparsity.config import InfluenceConfig, NullContext
from olmo_sparsity.text.nulls import NullContexts, draw_null_contexts
from olmo_sparsity.text.windows import Windows, sample_windows

FULL, M = 5, 3
MANY = InfluenceConfig(num_windows=100, max_windows_per_document=100)
NUM_SEEDS = 500
KINDS: tuple[NullContext, ...] = ("document", "shuffled")
RARE = 1e-6  # chance that a test of a correct draw would fail for another choice of seeds
# Source and length of each document. Document 5 is the only one of its source, and those of `twins` have equal text.
DOCUMENTS = [("a", 8), ("b", 17), ("a", 6), ("b", 9), ("a", 4), ("c", 9), ("twins", 11), ("twins", 11), ("a", 13)]


@pytest.fixture(scope="module")
def windows() -> Windows:
    """Every window of the store."""
    texts = [[10 * min(d, 6) + 2 + i % 7 for i in range(length)] for d, (_, length) in enumerate(DOCUMENTS)]
    store = tiny_store(texts, sources=[source for source, _ in DOCUMENTS])
    return sample_windows(store, FULL, MANY)


def draw(windows: Windows, kind: NullContext, *, seed: int = 0) -> NullContexts:
    return draw_null_contexts(windows, M, kind=kind, seed=seed)


def allowed(windows: Windows, window: int) -> dict[int, float]:
    """Return the probability of each first token of the null context from another document, by the definition."""
    store, own = windows.store, int(windows.document_W[window])
    spans = list(zip(store.begins_G.tolist(), (store.ends_G - 1).tolist(), strict=True))  # without EOS
    others = [
        d for d, (_, length) in enumerate(DOCUMENTS) if length > FULL and store.doc_ids_G[d] != store.doc_ids_G[own]
    ]
    lenders = [d for d in others if DOCUMENTS[d][0] == DOCUMENTS[own][0]] or others
    chances = {}
    for d in lenders:
        places = range(spans[d][0], spans[d][1] - FULL)
        chances.update({s: 1 / len(lenders) / len(places) for s in places})
    return chances


def test_places_have_the_law_of_the_definition(windows: Windows) -> None:
    """Of a window without another document in its source, that of all other documents."""
    draws = [draw(windows, "document", seed=seed) for seed in range(NUM_SEEDS)]
    for window in range(len(windows)):
        seen, chances = Counter(int(one.start_W[window]) for one in draws), allowed(windows, window)
        assert set(seen) <= set(chances)
        statistic = sum((seen[s] - NUM_SEEDS * p) ** 2 / (NUM_SEEDS * p) for s, p in chances.items())
        assert len(chances) == 1 or statistic < chi2.isf(RARE, len(chances) - 1)
    assert draws[0].kind == "document"
    sources = {DOCUMENTS[d][0] for d in windows.document_W.tolist()}
    assert sources == {"a", "b", "c", "twins"}  # the last two have no document of another text in their source


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_document_is_shuffled(kind: NullContext) -> None:
    """Also two copies of one text."""
    text = list(range(2, 2 + FULL + M + 2))
    single = sample_windows(tiny_store([text, text]), FULL, MANY)
    contexts, every = draw(single, kind), np.arange(len(single))
    assert contexts.kind == "shuffled" and contexts.doc_ids(every) == single.doc_ids(every)
    assert np.sort(contexts.tokens(every), axis=1).tolist() == single.tokens(every)[:, :M].tolist()


def test_tokens_and_documents_are_those_of_the_place(windows: Windows) -> None:
    store, contexts, every = windows.store, draw(windows, "document"), np.arange(len(windows))
    expected = [store.tokens[start : start + M].tolist() for start in contexts.start_W.tolist()]
    assert contexts.tokens(every).tolist() == expected and EOS not in np.array(expected)
    assert not any(map(str.__eq__, contexts.doc_ids(every), windows.doc_ids(every)))
    some = np.array([7, 2])  # in front of the window's own local tokens and target
    assert contexts.window_tokens(some).tolist() == [
        [*expected[window], *windows.tokens(every)[window, M:].tolist()] for window in (7, 2)
    ]


def test_a_null_context_depends_on_the_window_alone(windows: Windows) -> None:
    """Not on the number of windows; that of a shorter window ends that of a longer one."""
    few = sample_windows(windows.store, FULL, replace(MANY, num_windows=9))
    shorter = sample_windows(windows.store, FULL - 1, replace(MANY, min_preceding=FULL))
    every = np.arange(len(windows))
    for seed in range(10):
        longest = draw(windows, "document", seed=seed)
        assert draw(few, "document", seed=seed).start_W.tolist() == longest.start_W[:9].tolist()
        contexts = draw_null_contexts(shorter, M - 1, kind="document", seed=seed)
        assert contexts.tokens(every).tolist() == longest.tokens(every)[:, 1:].tolist()
        assert contexts.doc_ids(every) == longest.doc_ids(every)
