"""Tokens as words that a person reads, with the visible ones marked."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from typing import NamedTuple

from olmo_sparsity.errors import JOINERS

PART, SPACE, CIRCLE = "\u2025", "\u2423", "\u25cc"  # part of a character; white space; what a combining mark stands on
BLANKS = f"{JOINERS}\u115f\u1160\u2800\u3164\uffa0"  # no glyph, yet no white space
IN_WORD = re.compile(r"[\w'\u2019\u2025-]")


def alone(text: str) -> str:
    """A printable text of which something can be seen: a token of white space, a joiner or a mark has a sign."""
    if text.strip() == "":
        return SPACE if text else PART
    marks = [unicodedata.category(c)[0] == "M" for c in text]
    if any(not (mark or c in BLANKS or c.isspace()) for c, mark in zip(text, marks, strict=True)):
        return text
    return "".join(
        f"(U+{ord(c):04X})" if c in BLANKS else CIRCLE * mark + c for c, mark in zip(text, marks, strict=True)
    )


class Word(NamedTuple):
    """Tokens between two spaces or signs, the space in front, and the ranks of the visible ones."""

    space: str
    text: str
    ranks: tuple[int, ...]


AROUND = 10  # words that are shown on each side of a visible one
CUT = Word(" ", "\u2026", ())


def words(texts: Sequence[str], visible: dict[int, int]) -> list[Word]:
    """Words of consecutive tokens; a rank is named once in each."""
    found: list[Word] = []
    for position, text in enumerate(texts):
        space, part = (" ", text[1:]) if text.startswith(" ") else ("", text)
        rank = visible.get(position)
        shown = part if rank is None else alone(part or space)
        before = found[-1].text[-1:] if found else ""
        if found and not space and (part == "" or (IN_WORD.match(before) and IN_WORD.match(part))):
            word = found.pop()
        else:
            word = Word(space if position else "", "", ())
        ranks = word.ranks if rank is None or rank in word.ranks else (*word.ranks, rank)
        found.append(Word(word.space, word.text + shown, ranks))
    return found


def near_visible(found: Sequence[Word]) -> list[Word]:
    """Words within ``AROUND`` of words with a rank; what lies between is cut."""
    visible = [at for at, word in enumerate(found) if word.ranks]
    kept = [at for at in range(len(found)) if any(abs(at - of) <= AROUND for of in visible)]
    shown: list[Word] = []
    for before, at in zip([-1, *kept], [*kept, len(found)], strict=True):
        shown += [CUT] * (at - before > 1) + [*found[at : at + 1]]
    return shown
