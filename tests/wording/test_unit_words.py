"""What k counts: tokens under hidden visibility, entries under contextual, in every sentence, table, figure and page."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from made_up import CONTEXTUAL, KS, PRETRAINED, made_up_tables

from olmo_sparsity.records.selectors import MAIN_SELECTORS
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.model_setup import Visibility
from olmo_sparsity.statistics.single.summary import summarize
from olmo_sparsity.wording.units import (
    units_words,
)

# Tokens as what is counted by k: "8 tokens gain", "few tokens", "k tokens", "influential tokens", "one token".


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Visibility, Path]:
    """The same numbers under both definitions."""
    folder = tmp_path_factory.mktemp("units")
    setups: dict[Visibility, dict] = {"hidden": PRETRAINED, "contextual": CONTEXTUAL}
    return {
        name: made_up_tables(folder / name, num_documents=120, setup=setup, selectors=MAIN_SELECTORS)
        for name, setup in setups.items()
    }


def test_tokens_of_groups_are_those_of_their_selector_context_and_k(folders: dict[Visibility, Path]) -> None:
    """No two choices have as many tokens, nor the same share of windows that they show whole."""
    summary = summarize(load(folders["hidden"]))
    numbered = {
        of.key: dataclasses.replace(of, mean_tokens=i + 1.25, all_visible_share=i / 1000)
        for i, of in enumerate(summary.selections)
    }
    words = units_words(dataclasses.replace(summary, unit="word", selections=tuple(numbered.values())))
    for k, one in ((1, "one word"), (8, "8 words")):
        own, random = numbered["kl", "real", k].mean_tokens, numbered["random", "real", k].mean_tokens
        assert f"; {one} of kl: {own:.1f} tokens on average ({random:.1f} of random)" in words
    assert "; 12 long-range tokens in all." in words
    shares = ", ".join(f"{numbered['kl', 'real', k].all_visible_share:.1%} at k = {k}" for k in KS)
    assert words.endswith(f"have no more than k words, so that J_k is all of the long context: {shares}.")
