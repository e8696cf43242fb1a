"""Classifies the target of a window: exact repetitions, closing marks, numbers, names, function words.

Only the window and the target are used, a BPE token that may be only a part of a word: " Golo" may be a ``name`` and the "wich"
after it ``continues-word``. Repetitions are found by token ID, other classes by the decoded texts and the conventions of English.
"""

# ruff: noqa: RUF001, RUF002, SIM905  (curly quotation marks are meant; word lists are read best as text)

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from itertools import pairwise

# The classes in the order in which they are tried. A target gets the first one that fits.
CLASSES: dict[str, str] = {
    "induction": "The last local token and the target are adjacent in the long-range tokens, and nowhere in the local ones.",
    "repeat": "A token with a letter or digit that is long-range and not local, and no function word or inflection.",
    "closing": "A closing bracket or quotation mark, perhaps after . , ! or ?; a straight one only if one is open.",
    "number": "Digits, with nothing but . , - : / % $ beside them.",
    "continues-word": "Letters that continue the word before them, with or without an apostrophe in between.",
    "name": "A capitalised word or beginning of a word, other than I, that does not begin a sentence.",
    "function-word": "An article, preposition, conjunction, pronoun, auxiliary or negation.",
    "other": "All other targets: other words, beginnings of words, punctuation.",
}

FUNCTION_WORDS = frozenset(
    """
    a an the this that these those some any no every each either neither both all such another other
    i you he she it we they me him her us them my your his its our their mine yours hers ours theirs one
    myself yourself himself herself itself ourselves yourselves themselves who whom whose which what where when why how
    there here something anything nothing everything someone anyone everyone nobody
    of in to for with on at by from as into about like over after before between through under during without within
    against among around across along behind beyond beside besides near off onto out up down per since toward towards
    until till upon via above below than
    and or but nor so yet if because although though while whereas unless whether then
    be am is are was were been being do does did done doing have has had having
    can could may might must shall should will would ought cannot not never
    """.split()
)
# Endings of words. Like function words they occur everywhere, so they never count as ``repeat``. Most are ``continues-word``.
INFLECTIONS = frozenset("s es d ed ing 's 't 're 've 'll 'd 'm n't".split())

APOSTROPHES = "'’"
CLOSING = re.compile(r"""\s*[.,!?…]*(?:[)\]}»”]|''|(?P<straight>")|(?P<curly>’(?!\w)))""")
LAST_LETTER = re.compile(r"[^\W\d_]\Z")
IGNORED_AT_SENTENCE_START = " \t\u00a0\"'`“”‘’«»()[]{}"
SENTENCE_ENDS = tuple(".!?:\n\r\u2028\u2029")


def _is_mark(character: str) -> bool:
    """Return True for a combining mark, such as an accent, or a vowel sign of Hindi: it belongs to the letter before it."""
    return character != "" and unicodedata.category(character).startswith("M")


def _without_marks(text: str) -> str:
    return _without_marks(text[:-1]) if _is_mark(text[-1:]) else text


def _closes(before: str, text: str) -> bool:
    """Return True if a text begins with a closing bracket or quotation mark, perhaps after punctuation.

    A straight " closes if the window holds an odd number of them. Two of ' close, as in ``LaTeX''``; one may be an apostrophe. So
    may a ’: it closes after anything but a letter or a space, or if the last ‘ of the window is still open.
    """
    match = CLOSING.match(text)
    if match is None or not match["curly"]:
        return match is not None and (not match["straight"] or before.count('"') % 2 == 1)
    leading = before + text[: match.start("curly")]
    is_open = "‘" in leading and not re.search(r"’(?!\w)", leading[leading.rindex("‘") :])
    return is_open or not (leading == "" or _without_marks(leading)[-1:].isalpha() or leading[-1].isspace())


def _continues_word(before: str, text: str) -> bool:
    """Return True if a text begins with letters, or a combining mark, that continue the word before it, as "t" after "don'"."""
    letters = text[1:] if text[:1] in tuple(APOSTROPHES) else text
    before = before[:-1] if before.endswith(tuple(APOSTROPHES)) else before
    return (letters[:1].isalpha() or _is_mark(letters[:1])) and LAST_LETTER.search(_without_marks(before)) is not None


def _is_name(before: str, text: str) -> bool:
    """Return True for a capitalised word, other than I, that does not begin a sentence; "Dr." looks like the end of one."""
    word = text.lstrip()
    if not word[:1].isupper() or re.match(rf"I([{APOSTROPHES}]|\Z)", word.rstrip()):
        return False
    before = (before + text[: len(text) - len(word)]).rstrip(IGNORED_AT_SENTENCE_START)
    return before != "" and not before.endswith(SENTENCE_ENDS)


def target_class(
    token_ids: Sequence[int], token_texts: Sequence[str], *, target_id: int, target_text: str, num_long_range: int
) -> str:
    """Return the class of a target, a key of ``CLASSES``.

    ``token_texts`` are the window's tokens, each decoded on its own; the first ``num_long_range`` of them are long-range.
    A bigram across the border between them and the local ones belongs to neither.
    """
    long_range, local = token_ids[:num_long_range], token_ids[num_long_range:]
    before, word = "".join(token_texts), target_text.strip()
    continues_word = _continues_word(before, target_text)
    is_function_word = word.lower() in FUNCTION_WORDS and not continues_word  # not the "in" of "prote" + "in"
    bigram = (local[-1] if len(local) else -1, target_id)
    if len(local) > 0 and bigram in pairwise(long_range) and bigram not in pairwise(local):
        return "induction"
    is_repeated = target_id in long_range and target_id not in local and any(map(str.isalnum, word))
    if is_repeated and not is_function_word and target_text.lower().replace("’", "'") not in INFLECTIONS:
        return "repeat"
    if _closes(before, target_text):
        return "closing"
    if any(map(str.isdigit, word)) and all(c.isdigit() or c in ".,-:/%$" for c in word):
        return "number"
    if continues_word:
        return "continues-word"
    if _is_name(before, target_text):
        return "name"
    return "function-word" if is_function_word else "other"
