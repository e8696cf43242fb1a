"""The text of one token where it stands alone, marked, in a table or in a sentence: something of it can be seen."""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable

from olmo_sparsity.errors import JOINERS, printable

PART = "\u2025"  # stands for a token that holds a part of a character, which stands at a later token
SPACE = "\u2423"  # stands for a token of white space
CIRCLE = "\u25cc"  # what a mark that combines stands on where no letter is before it
BLANKS = (
    f"{JOINERS}\u115f\u1160\u2800\u3164\uffa0"  # without a glyph, but no white space: joiners, fillers, empty Braille
)


def token_words(text: str) -> str:
    """Return the printable text of a token, or where nothing of it can be seen, what stands for it.

    A joiner or another character without a glyph is named by its number, ``(U+200D)``; a mark stands on a dotted circle.
    """
    shown = printable(text)
    if shown.strip() == "":
        return SPACE if shown else PART
    if any(not (_is_mark(c) or c in BLANKS or c.isspace()) for c in shown):
        return shown
    return "".join(f"(U+{ord(c):04X})" if c in BLANKS else f"{CIRCLE}{c}" if _is_mark(c) else c for c in shown)


def unseen_words(texts: Iterable[str]) -> dict[str, str]:
    """Return what stands for each printable text of which nothing can be seen, with and without its first space, for pages.

    White space is left out: where it stands between others it is shown as it is.
    """
    distinct = {part for text in map(printable, texts) for part in (text, text.removeprefix(" ") or text)}
    return {text: words for text in sorted(distinct) if not text.isspace() and (words := token_words(text)) != text}


def _is_mark(character: str) -> bool:
    return unicodedata.category(character)[0] == "M"
