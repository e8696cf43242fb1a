"""What k counts: tokens under hidden visibility, entries under contextual, in every sentence, table, figure and page."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from drawn_figures import FIGURES, figures_of, read, words_on
from made_up import CONTEXTUAL, KS, PRETRAINED, made_up_tables

from olmo_sparsity.records.selectors import MAIN_SELECTORS
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.model_setup import Visibility
from olmo_sparsity.statistics.single.summary import Summary, summarize
from olmo_sparsity.view.one_window import show_window, terminal
from olmo_sparsity.wording.captions import blind_caption
from olmo_sparsity.wording.evidence import CLAIM, evidence_sentences
from olmo_sparsity.wording.units import (
    ENTRY_WORDS,
    counted_words,
    k_counts_words,
    k_words,
    shown_ks_words,
    unit_words,
    units_words,
)

# Tokens as what is counted by k: "8 tokens gain", "few tokens", "k tokens", "influential tokens", "one token".
COUNTED = re.compile(
    r"\b(?:few|one|k|random|influential|unmasked) tokens?\b|\b\d+ tokens (?:gain|give|take|of|chosen)\b"
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[Visibility, Path]:
    """The same numbers under both definitions."""
    folder = tmp_path_factory.mktemp("units")
    setups: dict[Visibility, dict] = {"hidden": PRETRAINED, "contextual": CONTEXTUAL}
    return {
        name: made_up_tables(folder / name, num_documents=120, setup=setup, selectors=MAIN_SELECTORS)
        for name, setup in setups.items()
    }


@pytest.mark.parametrize(
    ("unit", "visibility", "one", "several"),
    [
        ("token", "hidden", "one token", "8 tokens"),
        ("token", "contextual", "one entry", "8 entries"),
        ("sentence", "hidden", "one sentence", "8 sentences"),
        ("sentence", "contextual", "one sentence of entries", "8 sentences of entries"),
        ("block:16", "hidden", "one block of 16 tokens", "8 blocks of 16 tokens"),
        ("block:16", "contextual", "one block of 16 entries", "8 blocks of 16 entries"),
        ("block:1", "contextual", "one block of 1 entry", "8 blocks of 1 entry"),
    ],
)
def test_the_words_follow_from_unit_and_visibility(unit: str, visibility: Visibility, one: str, several: str) -> None:
    assert (counted_words(unit, visibility, 1), counted_words(unit, visibility, 8)) == (one, several)
    assert k_words(unit, visibility) == f"k, unmasked {unit_words(unit, visibility)}"


def sentences(summary: Summary) -> str:
    """Return every sentence that counts by k, without the paper's claim, which is about tokens."""
    gate_failed = dataclasses.replace(summary, gate="failed")
    words = [*evidence_sentences(summary), *evidence_sentences(gate_failed), blind_caption(summary)]
    return " ".join(words).replace(CLAIM, "")


def test_sentences_count_entries_under_contextual_alone(folders: dict[Visibility, Path]) -> None:
    hidden, contextual = (summarize(load(folders[name])) for name in ("hidden", "contextual"))
    assert COUNTED.search(sentences(hidden)) and "entr" not in sentences(hidden).replace("entropy", "")
    assert COUNTED.search(sentences(contextual).replace(ENTRY_WORDS, "")) is None
    assert "one entry gains" in sentences(contextual) and "few entries" in sentences(contextual)
    assert (units_words(hidden), k_counts_words(hidden)) == ("", "")
    assert (units_words(contextual), k_counts_words(contextual)) == (ENTRY_WORDS, "k counts entries")
    assert ENTRY_WORDS in blind_caption(contextual)


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


@pytest.mark.parametrize(
    ("ks", "shown", "words"),
    [
        ([1, 2, 8], [1, 8], "the smallest and the largest k"),
        ([16], [16], "the smallest and the largest k"),
        ([1, 2, 8], [1, 2, 8], "k = 1, 2, 8 (of 3 measured)"),
        ([48, 64], [48], "k = 48 (of 2 measured)"),  # the largest is all tokens
        ([1, 4, 12], [1, 4], "k = 1, 4 (of 3 measured)"),
    ],
)
def test_which_k_a_table_shows(ks: list[int], shown: list[int], words: str) -> None:
    assert shown_ks_words(SimpleNamespace(ks=ks, shown_ks=shown)) == words  # type: ignore[arg-type]


def test_where_random_alone_was_measured_it_is_not_compared_with_itself(folders: dict[str, Path]) -> None:
    summary = summarize(load(folders["hidden"]).restrict_selectors({"random": "random"}))
    words = units_words(dataclasses.replace(summary, unit="block:4"))
    assert words.startswith(
        "k counts blocks of 4 tokens; one block of 4 tokens of random: 1.0 tokens on average; 8 blocks"
    )
    assert "of random)" not in words


@pytest.mark.parametrize("whole", [(), (8,), (2, 8)], ids=str)
def test_windows_that_are_shown_whole_are_said_at_the_k_where_there_are_some(
    whole: tuple[int, ...], folders: dict[str, Path]
) -> None:
    """Of the first selector that does not see the target, under the real context."""
    summary = summarize(load(folders["hidden"]))
    shares = {("kl", "real", k): k / 40 for k in whole}
    selections = [
        dataclasses.replace(
            of, all_visible_share=shares.get(of.key, 0.0) if (of.selector, of.context) == ("kl", "real") else 0.77
        )
        for of in summary.selections
    ]
    words = units_words(dataclasses.replace(summary, unit="sentence", selections=tuple(selections)))
    _, _, said = words.partition(
        " Share of the windows that have no more than k sentences, so that J_k is all of the long context: "
    )
    assert said == (", ".join(f"{k / 40:.1%} at k = {k}" for k in whole) + "." if whole else "")
    assert ("Share of the windows" in words) == bool(whole) and words.count("%") == len(whole)


@pytest.mark.parametrize("name", sorted(FIGURES))
def test_figures_count_entries_under_contextual_alone(folders: dict[Visibility, Path], name: str) -> None:
    """The caption says once what an entry is; no axis, title or caption counts tokens by k."""
    for visibility, folder in folders.items():
        for figure in figures_of(FIGURES[name](read(folder))):
            words = words_on(figure)
            assert words.count(ENTRY_WORDS) == (visibility == "contextual"), words
            if visibility == "contextual":
                assert COUNTED.search(words.replace(ENTRY_WORDS, "")) is None, words


def test_a_window_is_shown_with_its_entries(
    folders: dict[Visibility, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    for visibility, visible, one in (("hidden", "2 visible", "token"), ("contextual", "2 entries visible", "entry")):
        show_window(folders[visibility], 0, console=terminal(), selector="kl", k=2)  # type: ignore[index]
        shown = capsys.readouterr().out
        assert visible in shown and re.search(rf"score +{one}\b", shown)
        assert (ENTRY_WORDS in " ".join(shown.split())) == (visibility == "contextual")
