"""Errors that end a command with one line instead of a traceback, and the characters that such a line may hold."""

from __future__ import annotations

import unicodedata

MARKS = {" ": " ", "\n": "\u21b5", "\r": "\u21b5", "\t": "\u2192", "\u2028": "\u21b5", "\u2029": "\u21b5"}
JOINERS = "\u200c\u200d"  # zero-width; Persian, Indic scripts and emoji are written with them


class UserError(Exception):
    """A mistake that the user can correct: one line that says where it is, what is wrong and what to do. Exit code 2."""


class Interrupted(Exception):
    """The user stopped the command after its work was saved; running it again continues. Exit code 130."""


def printable(text: str) -> str:
    """Return a text on one line: line breaks and tabs become arrows; what controls the terminal or is no character, U+FFFD."""
    return "".join(MARKS.get(c, c if c in JOINERS or unicodedata.category(c)[0] != "C" else "\ufffd") for c in text)


def printable_lines(text: str) -> str:
    """Return a text whose lines are each ``printable``."""
    return "\n".join(map(printable, text.split("\n")))
