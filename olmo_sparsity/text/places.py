"""Places in one text: which token holds a character."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from tokenizers import Tokenizer

from olmo_sparsity.errors import UserError

BLOCK = 1 << 16  # characters that are encoded at once; the library takes some 250 bytes for each
OVERLAP = 1 << 12  # characters that neighbouring blocks share
LONGEST_AT_ONCE = 1 << 25  # characters, for which the library takes some 8 GB


@dataclass(frozen=True)
class EncodedText:
    """A text and its tokens, or those around a place."""

    text: str
    token_ids: np.ndarray  # int64 [tokens]; without special tokens, as in the token files of a corpus
    begins: np.ndarray  # int64 [tokens]; index in the text of each token's first character, which parts of one share
    ends: np.ndarray  # int64 [tokens]; one more than the index of the last character

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def pieces(self) -> list[str]:
        """The text cut into one piece a token; the first token of a character has it, and text without one goes with the next."""
        if not len(self):
            return []
        reached = np.maximum.accumulate(self.ends)
        reached[-1] = len(self.text)
        return [self.text[begin:end] for begin, end in pairwise([0, *reached.tolist()])]

    def begin_of(self, token: int) -> int:
        """Return the index in the text of a token's first character that is no white space, or of its first character."""
        begin, own = int(self.begins[token]), self.text[self.begins[token] : self.ends[token]]
        return begin + (len(own) - len(own.lstrip()) if own.strip() else 0)


def encode_text(tokenizer: Tokenizer, text: str) -> EncodedText:
    """Encode a text, and keep the characters of each token.

    It is encoded in blocks that overlap, and their middles are kept. If two blocks have other tokens around the place where they
    are joined, as in a word longer than the overlap, it is encoded at once.
    """
    begins = range(0, max(len(text), 1), BLOCK)
    blocks = [_encode(tokenizer, text, max(0, begin - OVERLAP), begin + BLOCK + OVERLAP) for begin in begins]
    if all(map(_agree, blocks, blocks[1:], begins[1:])):
        own = [(block[1] >= begin) & (block[1] < begin + BLOCK) for block, begin in zip(blocks, begins, strict=True)]
        blocks = [block[:, is_own] for block, is_own in zip(blocks, own, strict=True)]
    elif len(text) <= LONGEST_AT_ONCE:
        blocks = [_encode(tokenizer, text, 0, len(text))]
    else:
        raise UserError(f"the text: its tokens depend on text far away; give at most {LONGEST_AT_ONCE:,} characters")
    return EncodedText(text, *np.concatenate(blocks, axis=1))


def encode_around(tokenizer: Tokenizer, text: str, place: int, num_before: int) -> EncodedText:
    """Encode as much of a text as holds a character and ``num_before`` tokens before it, with the tokens of the whole text."""
    reach = BLOCK // 2
    while True:
        begin, end = max(0, place - reach), min(len(text), place + OVERLAP)
        block = _encode(tokenizer, text, begin, end)
        if begin > 0:  # the first tokens may depend on what is before them
            block = block[:, block[1] >= begin + OVERLAP]
        if begin == 0 or (block[1] < place).sum() >= num_before:
            return EncodedText(text, *block)
        reach *= 4


def _encode(tokenizer: Tokenizer, text: str, begin: int, end: int) -> np.ndarray:
    """Return the tokens of a part of a text, and where each begins and ends in the text; int64 [3, tokens]."""
    encoding = tokenizer.encode(text[begin:end], add_special_tokens=False)
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    return np.stack([np.array(encoding.ids, dtype=np.int64), offsets[:, 0] + begin, offsets[:, 1] + begin])


def _agree(first: np.ndarray, second: np.ndarray, place: int) -> bool:
    """Return True if two blocks have the same tokens around a place."""
    around = [block[:, np.abs(block[1] - place) < OVERLAP // 2] for block in (first, second)]
    return around[0].size > 0 and np.array_equal(around[0], around[1])


def place_at(encoded: EncodedText, offset: int, *, full_len: int, local_len: int) -> int:
    """Return the index of the token that holds a character, or of the first token behind it if no token holds it."""
    length = len(encoded.text)
    if not 0 <= offset < length:
        raise UserError(f"offset {offset}: the text has {length:,} characters, numbered from 0; choose one with --at")
    token = int(np.count_nonzero(np.maximum.accumulate(encoded.ends) <= offset))
    if token == len(encoded):
        raise UserError(f"offset {offset}: no token of the text holds it or follows; choose an earlier one with --at")
    if token < full_len:
        is_long = len(encoded) > full_len
        later = f"a place from character {encoded.begin_of(full_len)} on" if is_long else "a longer text"
        shorter = f" or a shorter context (--full-len {token})" if token > local_len else ""
        raise UserError(f"offset {offset}: {token} tokens before it, not {full_len}; choose {later}{shorter}")
    return token
