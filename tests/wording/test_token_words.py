"""The text of a token that stands alone: something of it can be seen, and it is alike wherever it stands."""

from __future__ import annotations

import pytest

from olmo_sparsity.wording.tokens import token_words, unseen_words


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (" river", " river"),
        ("\n", "\u21b5"),
        ("", "\u2025"),
        (" ", "\u2423"),
        ("\u00a0", "\u2423"),
        ("\u200d", "(U+200D)"),
        (" \u200c", " (U+200C)"),
        ("\u3164", "(U+3164)"),
        ("\u0301", "\u25cc\u0301"),  # an acute accent
        ("\u0941", "\u25cc\u0941"),  # a vowel of Devanagari
        ("\u200d\ufe0f", "(U+200D)\u25cc\ufe0f"),
        ("e\u0301", "e\u0301"),
        ("\u0646\u200c", "\u0646\u200c"),
    ],
)
def test_something_of_a_token_is_seen(text: str, words: str) -> None:
    assert token_words(text) == words


def test_pages_get_what_stands_for_tokens_that_cannot_be_seen_with_and_without_their_space() -> None:
    found = unseen_words([" river", "constructor", " ", "", " \u200c", "\u0301", "\n"])
    assert found == {"": "\u2025", " \u200c": " (U+200C)", "\u200c": "(U+200C)", "\u0301": "\u25cc\u0301"}
