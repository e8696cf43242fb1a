"""Units of a window's text: which tokens make a word, a sentence or a block.

The decoded text is cut into words or sentences, and every token is put into one of them. Neither text outside the window nor its
target is used: what a selector may choose from tells nothing about the target.

Shape letters: W windows, T tokens of a window, M long-range positions.
"""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise

import numpy as np
import sentencex
from tokenizers import Tokenizer

from olmo_sparsity.config import block_size
from olmo_sparsity.text.tokenizer import token_texts

REPLACEMENT = "\ufffd"  # what a token decodes to that holds only a part of a character
MAX_PIECE = 64  # tokens that are decoded together: bounds the time for text that is not valid UTF-8
# Characters of scripts that put no spaces between words: Hiragana, Katakana (also of half width), Chinese ideographs. Each is a
# word of its own, with what belongs to it: marks of its sound, and selectors of its form.
IDEOGRAPHS = (
    "\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff66-\uff9f\U00020000-\U0003ffff"
)
MARKS = "\u3099\u309a\uff9e\uff9f\ufe00-\ufe0f\U000e0100-\U000e01ef"
WORD = re.compile(rf"[{IDEOGRAPHS}][{MARKS}]*|[^\s{IDEOGRAPHS}]+")
OTHER_SPACE = re.compile(r"[^\S\x00-\x7f]")  # white space that is not ASCII
LANGUAGE = "en"  # of the sentence splitter: abbreviations are English, marks that end a sentence those of many scripts


@dataclass(frozen=True)
class DecodedTokens:
    """A text, and where each of its T tokens begins, and the last one that it was decoded together with ends."""

    text: str
    begins_T: np.ndarray  # int64
    ends_T: np.ndarray  # int64


def decode_tokens(tokenizer: Tokenizer, token_ids: Sequence[int]) -> DecodedTokens:
    """Decode tokens, and return where each of them begins; parts of one character share it.

    A part of a character that is not complete (at the start of a window, say) is U+FFFD.
    """
    ids = [int(token) for token in token_ids]
    alone = dict(zip(distinct := sorted(set(ids)), token_texts(tokenizer, distinct), strict=True))
    begins, ends, text = list[int](), list[int](), ""
    while len(begins) < len(ids):
        first = len(begins)
        prefixes = [alone[ids[first]]]  # texts of the tokens from this one on, one more token each
        for following in range(first + 1, min(first + MAX_PIECE, len(ids))):
            if not prefixes[-1].endswith(REPLACEMENT) or REPLACEMENT not in alone[ids[following]]:
                break
            prefixes.append(str(tokenizer.decode(ids[first : following + 1], skip_special_tokens=False)))
        piece, begin = prefixes[-1], 0
        for prefix in prefixes:
            begins.append(len(text) + begin)
            ends.append(len(text) + len(piece))
            begin = len(os.path.commonprefix([prefix, piece]))  # noqa: RUF071 (of any texts)
        text += piece
    return DecodedTokens(text, np.array(begins, dtype=np.int64), np.array(ends, dtype=np.int64))


def shown_texts(tokenizer: Tokenizer, token_ids: Sequence[int]) -> list[str]:
    """Return the text that is shown for each of consecutive tokens; together they are the decoded text.

    A character whose bytes several tokens hold is shown at the last of them, which completes it.
    """
    decoded = decode_tokens(tokenizer, token_ids)
    return [decoded.text[begin:end] for begin, end in pairwise([*decoded.begins_T.tolist(), len(decoded.text)])]


def word_starts(text: str) -> list[int]:
    """Return where words begin: runs of characters that are no white space; in Chinese and Japanese every character."""
    return [match.start() for match in WORD.finditer(text)]


def sentence_starts(text: str) -> list[int]:
    """Return where sentences begin by sentencex, the sentence splitter of Wikimedia. A blank line ends a sentence."""
    text = OTHER_SPACE.sub(" ", text)  # the splitter panics at a capital letter, such a character and a period
    segments = sentencex.segment(LANGUAGE, text)
    assert "".join(segments) == text, "the splitter keeps every character"
    begins = accumulate((len(segment) for segment in segments), initial=0)
    return [begin for begin, segment in zip(begins, segments, strict=False) if segment.strip()]


def group_numbers(tokenizer: Tokenizer, tokens_WT: np.ndarray, *, num_long_range: int, unit: str) -> np.ndarray:
    """Return the number of the group that each long-range position is in, int64 [W, M]; from 0 on, rising by 0 or 1.

    A token belongs to the word or sentence of its first character that is no white space; white space to the word behind it, or
    the sentence before it. ``tokens_WT``: windows without their targets; local tokens show where the last sentence ends.
    """
    size = 1 if unit == "token" else block_size(unit)
    if size is not None:
        return np.broadcast_to(np.arange(num_long_range) // size, (len(tokens_WT), num_long_range))
    groups_WM = np.empty((len(tokens_WT), num_long_range), dtype=np.int64)
    for w, tokens_T in enumerate(tokens_WT):
        decoded = decode_tokens(tokenizer, tokens_T.tolist())
        starts = word_starts(decoded.text) if unit == "word" else sentence_starts(decoded.text)
        numbers_T = _numbers(decoded, starts, blank_goes_back=unit == "sentence")
        groups_WM[w] = np.cumsum(np.diff(numbers_T[:num_long_range], prepend=numbers_T[0]) != 0)
    return groups_WM


def _numbers(decoded: DecodedTokens, starts: list[int], *, blank_goes_back: bool) -> np.ndarray:
    """Return the number of the word or sentence that each token belongs to, int64 [T], not falling."""
    numbers, blank = list[int](), 0  # the latest tokens of white space alone, which wait for what is behind them
    for begin, stop in zip(decoded.begins_T.tolist(), decoded.ends_T.tolist(), strict=True):
        own = decoded.text[begin:stop]
        if own.strip():
            numbers += [bisect_right(starts, begin + len(own) - len(own.lstrip()))] * (blank + 1)
            blank = 0
        elif blank_goes_back and numbers:
            numbers.append(numbers[-1])
        else:
            blank += 1
    return np.array(numbers + [len(starts) + 1] * blank, dtype=np.int64)
