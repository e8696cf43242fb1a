"""Places in one text: which token holds a character."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Optional

import numpy as np
from tokenizers import Tokenizer

from olmo_sparsity.errors import UserError

BLOCK = 1 << 18  # characters that are encoded at once; the library takes some 250 bytes for each
OVERLAP = 1 << 12  # characters that neighbouring blocks share
LONGEST_AT_ONCE = 1 << 25  # characters, for which the library takes some 8 GB


@dataclass(frozen=True)
class EncodedText:
    """A text and its tokens, or those around a place."""

    text: str
    token_ids: np.ndarray  # int32 [tokens]; without special tokens, as in the token files of a corpus
    begins: np.ndarray  # int64 [tokens]; index in the text of each token's first character, which parts of one share
    ends: np.ndarray  # int64 [tokens]; one more than the index of the last character

    def __len__(self) -> int:
        return len(self.token_ids)

    @property
    def pieces(self) -> list[str]:
        """The text cut into one piece a token; together they are the text.

        Of tokens that are parts of one character the first has it. What no token holds, such as white space that a normalizer
        takes away, goes with the token behind it, and at the end with the last one.
        """
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

    A long text is encoded block by block. Neighbouring blocks overlap, and are joined where both have the same tokens through the
    middle half of the overlap. Where they have not, as in a word longer than the overlap, the text is encoded at once.
    """
    kept: list[np.ndarray] = []
    block = _encode(tokenizer, text, 0, BLOCK)
    for begin in range(BLOCK - OVERLAP, len(text) - OVERLAP, BLOCK - OVERLAP):
        following = _encode(tokenizer, text, begin, begin + BLOCK)
        joint = _joint(block, following, begin)
        if joint is None and len(text) > LONGEST_AT_ONCE:
            raise UserError(
                f"the text has {len(text):,} characters, and tokens around character {begin:,} depend on text far away, so that "
                f"it cannot be encoded in pieces; give at most {LONGEST_AT_ONCE:,} characters"
            )
        if joint is None:
            kept, block = [], _encode(tokenizer, text, 0, len(text))
            break
        kept.append(block[:, : joint[0]].copy())
        block = following[:, joint[1] :]
    token_ids, begins, ends = np.concatenate([*kept, block], axis=1)
    return EncodedText(text, token_ids.astype(np.int32), begins, ends)


def encode_around(tokenizer: Tokenizer, text: str, place: int, num_before: int) -> EncodedText:
    """Encode as much of a text as holds a character and ``num_before`` tokens before it, with the tokens of the whole text."""
    reach = BLOCK // 2
    while True:
        begin, end = max(0, place - reach), min(len(text), place + OVERLAP)
        block = _encode(tokenizer, text, begin, end)
        if begin > 0:  # the first tokens may depend on what is before them
            block = block[:, block[1] >= begin + OVERLAP]
        if begin == 0 or (block[1] < place).sum() >= num_before:
            return EncodedText(text, block[0].astype(np.int32), block[1], block[2])
        reach *= 4


def _encode(tokenizer: Tokenizer, text: str, begin: int, end: int) -> np.ndarray:
    """Return the tokens of a part of a text, and where each begins and ends in the text; int64 [3, tokens]."""
    encoding = tokenizer.encode(text[begin:end], add_special_tokens=False)
    offsets = np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
    return np.stack([np.array(encoding.ids, dtype=np.int64), offsets[:, 0] + begin, offsets[:, 1] + begin])


def _joint(first: np.ndarray, second: np.ndarray, begin: int) -> Optional[tuple[int, int]]:
    """Return the numbers in two blocks of one token in the overlap that starts at ``begin``, if they agree around it."""
    low, middle, high = (begin + OVERLAP * quarter // 4 for quarter in (1, 2, 3))
    around = [block[:, (block[1] >= low) & (block[1] < high)] for block in (first, second)]
    if around[0].shape != around[1].shape or (around[0] != around[1]).any():
        return None
    at = [int(np.searchsorted(block[1], middle)) for block in (first, second)]
    is_start = at[0] < first.shape[1] and at[1] < second.shape[1] and first[1, at[0]] < high
    return (at[0], at[1]) if is_start else None


def place_at(encoded: EncodedText, offset: int, *, full_len: int, local_len: int) -> int:
    """Return the index of the token that holds a character, or of the first token behind it if no token holds it."""
    length = len(encoded.text)
    if not 0 <= offset < length:
        raise UserError(
            f"offset {offset}: the text has {length:,} characters, numbered from 0; choose one of them with --at"
        )
    is_behind = encoded.ends > offset
    if not is_behind.any():
        raise UserError(
            f"offset {offset}: the tokenizer drops the end of the text, and no token follows; choose an earlier one with --at"
        )
    token = int(is_behind.argmax())  # the first
    if token >= full_len:
        return token
    remedies = []
    if token > local_len:
        remedies.append(f"a shorter full context (--full-len {token})")
    elif token >= 2:
        remedies.append(f"shorter lengths (--local-len {token // 2} --full-len {token})")
    if len(encoded) > full_len:
        remedies.append(f"a place from character {encoded.begin_of(full_len)} on")
    else:
        remedies.append(f"a longer text (this one has {len(encoded)} tokens)")
    raise UserError(
        f"offset {offset}: {token} tokens before it, and the full context has {full_len}; choose {' or '.join(remedies)}"
    )
