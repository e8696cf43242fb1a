"""Places in one text: which token stands at a character.

The text is encoded once, and each token keeps the characters that it stands for.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Optional

import numpy as np
from tokenizers import Tokenizer

from olmo_sparsity.errors import UserError
from olmo_sparsity.progress import progress_bar

BLOCK = 1 << 18  # characters that are encoded at once
OVERLAP = 1 << 12  # characters that neighbouring blocks share
LONGEST_AT_ONCE = 1 << 25  # characters, for which the library takes some 8 GB


@dataclass(frozen=True)
class EncodedText:
    """A text and its tokens.

    Attributes:
        text: the text.
        token_ids: int32 [tokens]; without special tokens, as in the token files of a corpus.
        begins: int32 [tokens], or int64 where the text is too long for that; index in ``text`` of each token's first character.
            Tokens that are parts of one character all have this character.
        ends: likewise; one more than the index of the last character.
    """

    text: str
    token_ids: np.ndarray
    begins: np.ndarray
    ends: np.ndarray

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def pieces(self) -> list[str]:
        """The text cut into one piece a token, so that all pieces together are the text.

        Of tokens that are parts of one character the first has it, and the others have nothing. What no token stands for, such as
        white space that a normalizer takes away, goes with the token behind it, and at the end with the last one.
        """
        if not len(self):
            return []
        reached = np.maximum.accumulate(self.ends)
        reached[-1] = len(self.text)
        cuts = [0, *reached.tolist()]
        return [self.text[begin:end] for begin, end in pairwise(cuts)]

    def begin_of(self, token: int) -> int:
        """Return the index in the text of a token's first character that is no white space, or of its first character."""
        begin, end = int(self.begins[token]), int(self.ends[token])
        own = self.text[begin:end]
        return begin + (len(own) - len(own.lstrip()) if own.strip() else 0)


def encode_text(tokenizer: Tokenizer, text: str) -> EncodedText:
    """Encode a text, and keep the characters of each token.

    All of it, since the number of the target in its document, and foreign text from elsewhere in the document, are part of what
    is measured. A long text is encoded block by block, since the library takes some 250 bytes for each character of what it
    encodes at once. Neighbouring blocks overlap, and are joined where a word begins in both and their tokens around it are the
    same, so that neither the end of the one nor the beginning of the other is near. Where there is no such place, as without
    words or in a word that is longer than the overlap, the text is encoded at once.

    Raises:
        UserError: that would take more memory than most machines have.
    """
    joined: list[tuple[np.ndarray, ...]] = []
    block = _encode_block(tokenizer, text, 0, min(len(text), BLOCK))
    with progress_bar("encode", " characters", total=len(text), unit_scale=True, leave=False, delay=1) as bar:
        while block.end < len(text):
            begin = block.end - OVERLAP
            behind = _encode_block(tokenizer, text, begin, min(len(text), begin + BLOCK))
            joint = _joint(block, behind)
            if joint is None and len(text) > LONGEST_AT_ONCE:
                raise UserError(
                    f"the text has {len(text):,} characters, and around character {begin:,} its tokenizer begins no word for "
                    f"{OVERLAP:,} of them, so that it cannot be encoded in pieces; give at most {LONGEST_AT_ONCE:,} characters"
                )
            if joint is None:
                joined, block = [], _encode_block(tokenizer, text, 0, len(text))
                break
            joined.append(block.restrict(0, joint[0]).kept)
            block = behind.restrict(joint[1], None)
            bar.update(block.end - bar.n)
    columns = [list(arrays) for arrays in zip(*joined, block.kept, strict=True)]
    del joined, block
    return EncodedText(text, *(np.concatenate(columns.pop(0)) for _ in range(3)))  # each frees its blocks


@dataclass(frozen=True)
class _Block:
    """The tokens of a part of a text, as in ``EncodedText``; ``words``: the number of the word of each; ``end``: of the part."""

    token_ids: np.ndarray
    begins: np.ndarray
    ends: np.ndarray
    words: np.ndarray
    end: int

    @property
    def kept(self) -> tuple[np.ndarray, ...]:
        """What is needed once the block is joined to the next: tokens, begins, ends."""
        return self.token_ids, self.begins, self.ends

    def restrict(self, first: int, last: Optional[int]) -> _Block:
        """Return the tokens from ``first`` to before ``last``."""
        ids, begins, ends, words = (
            array[first:last].copy()  # which frees the rest
            for array in (self.token_ids, self.begins, self.ends, self.words)
        )
        return _Block(ids, begins, ends, words, self.end)


def _encode_block(tokenizer: Tokenizer, text: str, begin: int, end: int) -> _Block:
    encoding = tokenizer.encode(text[begin:end], add_special_tokens=False)
    integer = np.int32 if len(text) <= np.iinfo(np.int32).max else np.int64
    offsets: np.ndarray = np.array(encoding.offsets, dtype=integer).reshape(-1, 2)
    offsets += begin
    words = np.array([-1 if word is None else word for word in encoding.word_ids], dtype=np.int32)
    return _Block(np.array(encoding.ids, dtype=np.int32), offsets[:, 0].copy(), offsets[:, 1].copy(), words, end)


def _joint(first: _Block, second: _Block) -> Optional[tuple[int, int]]:
    """Return the numbers of a token in both blocks, with which a word begins, the tokens around it being the same in both.

    It stands in the middle half of the overlap. None: there is none.
    """
    begin, quarter = first.end - OVERLAP, OVERLAP // 4
    low, high = begin + quarter, first.end - quarter
    for at in range(int(np.searchsorted(first.begins, low)), int(np.searchsorted(first.begins, high))):
        place = first.begins[at]
        other = int(np.searchsorted(second.begins, place))
        starts_word = all(
            0 < number < len(block.words)
            and block.begins[number] == place
            and block.begins[number - 1] < place
            and block.words[number] != block.words[number - 1]
            for block, number in ((first, at), (second, other))
        )
        if starts_word and _around(first, place, quarter) == _around(second, place, quarter):
            return at, other
    return None


def _around(block: _Block, place: int, distance: int) -> list[tuple[int, int]]:
    """Return the tokens that begin less than this many characters from a place, each with where it begins."""
    low, high = np.searchsorted(block.begins, (place - distance + 1, place + distance))
    return list(zip(block.begins[low:high].tolist(), block.token_ids[low:high].tolist(), strict=True))


def place_at(encoded: EncodedText, offset: int, *, full_len: int, local_len: int) -> int:
    """Return the index of the token that holds a character, or of the first token behind it if no token holds it.

    Args:
        encoded: the text.
        offset: index of the character, from 0.
        full_len: tokens of a window, all of which must stand before the token.
        local_len: L, the number of local tokens.

    Raises:
        UserError: the offset lies outside the text, or too few tokens stand before it.
    """
    length = len(encoded.text)
    is_behind = encoded.ends > offset
    if not 0 <= offset < length:
        raise UserError(
            f"offset {offset}: the text has {length:,} characters, numbered from 0; choose one of them with --at"
        )
    if not is_behind.any():
        raise UserError(
            f"offset {offset}: no token stands at this character or behind it: the tokenizer takes away the end of the text; "
            "choose an earlier one with --at"
        )
    token = int(is_behind.argmax())  # the first
    if token < full_len:
        raise UserError(f"offset {offset}: {_too_early(encoded, token, full_len=full_len, local_len=local_len)}")
    return token


def _too_early(encoded: EncodedText, token: int, *, full_len: int, local_len: int) -> str:
    """Return why a token has no full window, and what to do."""
    remedies = []
    if token > local_len:
        remedies.append(f"a shorter full context (--full-len {token})")
    elif token >= 2:
        remedies.append(f"shorter lengths (--local-len {token // 2} --full-len {token})")
    if len(encoded) > full_len:
        remedies.append(f"a place from character {encoded.begin_of(full_len)} on")
    else:
        remedies.append(f"a longer text (this one has {len(encoded)} tokens)")
    before = "only 1 token stands" if token == 1 else f"only {token} tokens stand"
    return f"{before} before it, and the full context has {full_len}; choose {' or '.join(remedies)}"
