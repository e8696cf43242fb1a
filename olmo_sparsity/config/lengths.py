"""The lengths of a measurement, and the words of its settings that other rooms know."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Literal, Optional

from msgspec import Meta

Visibility = Literal["hidden", "contextual"]
NullContext = Literal["document", "shuffled"]
# Larger numbers than any table has; memory is allocated by some of them.
Length = Annotated[int, Meta(ge=1, le=10**8)]


@dataclass(frozen=True)
class Lengths:
    """Lengths of an experiment in tokens, and the position IDs of training: the entry ``context`` of manifests."""

    local_len: Length  # L, tokens that the model always sees
    full_len: Length  # tokens of a window
    num_long_range: Length  # M, the long-range tokens of a window
    train_len: Optional[int] = None  # tokens of a training row; None: not known
    max_position: Optional[int] = None  # position IDs of training rows lie below this; None: not known
    pose_method: Optional[Literal["pose", "randpos"]] = None  # None, here and below: no training row is known
    num_chunks: Optional[int] = None  # chunks of a training row; 1: no PoSE
    pose_contents: Optional[Literal["contiguous", "matched"]] = None  # which text the chunks hold
    train_len_is_stated: Optional[bool] = None  # by the user, of a pretrained model; max_position is then its own

    @property
    def last_n(self) -> list[int]:
        """Numbers of latest tokens whose loss is measured: 2^i and 3 * 2^i from full_len/16 on, and the lengths themselves."""
        powers = [2**i for i in range(self.full_len.bit_length())]
        grid = {n for power in powers for n in (power, 3 * power) if n >= self.full_len / 16}
        grid |= {self.local_len, self.full_len, self.train_len or self.full_len}
        return sorted(n for n in grid if n <= self.full_len)

    @property
    def is_ceiling(self) -> bool:
        """True if training rows are at least as long as the full context, so that nothing lies beyond them."""
        return self.train_len is not None and self.train_len >= self.full_len

    @property
    def len_before_gain(self) -> int:
        """The number of recent tokens from which changes are counted: a training row, or where none is known the local ones."""
        return self.local_len if self.train_len is None else self.train_len
