"""What kind of token a target is, from its window alone: exact repetitions, brackets, numbers, names, function words.

The unit is the BPE token, which may be only part of a word: the class is that of the token. " Golo" may be a ``name`` and
"wich" after it ``continues-word``. Repetition is of token ids; everything else is read off the decoded texts, with the
conventions of English. A token that holds part of a character shows U+FFFD, which is no letter, digit or punctuation.
"""

# ruff: noqa: RUF001, RUF002, SIM905  (curly quotation marks are meant; word lists are read best as text)

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

# In the order in which they are tried: the first that fits is the class.
CLASSES: dict[str, str] = {
    "induction": "Completes a bigram: the last local token and the target stand side by side within the long-range tokens, "
    "and nowhere within the local ones.",
    "repeat": "A token with a letter or digit, no function word or inflection, that is among the long-range tokens and not "
    "among the local ones.",
    "closing": "A closing bracket or quotation mark, perhaps after . , ! or ?; a straight one only where one is open.",
    "number": "Digits, with nothing but . , - : / % $ beside them.",
    "continues-word": "Letters that go on with the word before them, with or without an apostrophe between.",
    "name": "A capitalised word or beginning of a word, other than I, that does not begin a sentence.",
    "function-word": "An article, preposition, conjunction, pronoun, auxiliary or negation.",
    "other": "None of these: other words, beginnings of words, punctuation.",
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
# Of words; they recur everywhere, as function words do, so that they are no ``repeat``. Most are ``continues-word``.
INFLECTIONS = frozenset("s es d ed ing 's 't 're 've 'll 'd 'm n't".split())

APOSTROPHES = "'’"
CLOSING = re.compile(r"""\s*[.,!?…]*(?:[)\]}»”]|''|(?P<straight>")|(?P<curly>’(?!\w)))""")
CONTINUES_WORD = re.compile(rf"[^\W\d_][{APOSTROPHES}]?\Z")
IGNORED_AT_SENTENCE_START = " \t\u00a0\"'`“”‘’«»()[]{}"
SENTENCE_ENDS = tuple(".!?:\n\r\u2028\u2029")


def _pair_in(tokens: Sequence[int], first: int, second: int) -> bool:
    return (first, second) in pairwise(tokens)


def _closes(before: str, text: str) -> bool:
    """Does the target begin with a closing mark?

    Where opening and closing look different, the opening may lie before the window. A straight " closes if an odd number
    stands in the window: one that was opened before it is misjudged. '' closes, as in ``LaTeX''. A lone ' never does, for
    it may be an apostrophe. So may ’: it closes after other than a letter or space, or where the window's last ‘ is open.
    """
    match = CLOSING.match(text)
    if match is None:
        return False
    if match["straight"]:
        return before.count('"') % 2 == 1
    if match["curly"]:
        leading = before + text[: match.start("curly")]
        is_open = "‘" in leading and not re.search(r"’(?!\w)", leading[leading.rindex("‘") :])
        return is_open or not (leading == "" or leading[-1].isalpha() or leading[-1].isspace())
    return True


def _is_number(word: str) -> bool:
    """Also the digits of "covid19" or of "2024" in two tokens; "19th" in one token is no number."""
    return any(c.isdigit() for c in word) and all(c.isdigit() or c in ".,-:/%$" for c in word)


def _continues_word(before: str, text: str) -> bool:
    """Also "t" after "don" and "'"; not the "th" of "19th" or what follows a hyphen."""
    letters = text[1:] if text[:1] in tuple(APOSTROPHES) else text
    return letters[:1].isalpha() and CONTINUES_WORD.search(before) is not None


def _is_name(before: str, text: str) -> bool:
    """Misses names at the begin of a sentence, and after an abbreviation ("Dr. Smith"), which looks like one."""
    word = text.lstrip()
    if not word[:1].isupper() or re.match(rf"I([{APOSTROPHES}]|\Z)", word.rstrip()):
        return False
    before = (before + text[: len(text) - len(word)]).rstrip(IGNORED_AT_SENTENCE_START)
    return before != "" and not before.endswith(SENTENCE_ENDS)


def target_class(
    token_ids: Sequence[int], token_texts: Sequence[str], target_id: int, target_text: str, num_long_range: int
) -> str:
    """The target's class, a key of ``CLASSES``.

    Args:
        token_ids: int [full_len], the window; its last token is the one before the target.
        token_texts: str [full_len], each token decoded on its own; may be empty.
        target_id: the next token.
        target_text: it, decoded.
        num_long_range: M: so many of the tokens are long-range, the others local. A bigram across the border between
            them is within neither.
    """
    long_range, local = token_ids[:num_long_range], token_ids[num_long_range:]
    before, word = "".join(token_texts), target_text.strip()
    continues_word = _continues_word(before, target_text)
    function_word = word.lower() in FUNCTION_WORDS and not continues_word  # not the "in" of "prote" + "in"
    recurs_anyway = function_word or target_text.lower().replace("’", "'") in INFLECTIONS
    if len(local) > 0 and _pair_in(long_range, local[-1], target_id) and not _pair_in(local, local[-1], target_id):
        return "induction"
    if target_id in long_range and target_id not in local and any(map(str.isalnum, word)) and not recurs_anyway:
        return "repeat"
    if _closes(before, target_text):
        return "closing"
    if _is_number(word):
        return "number"
    if continues_word:
        return "continues-word"
    if _is_name(before, target_text):
        return "name"
    return "function-word" if function_word else "other"
