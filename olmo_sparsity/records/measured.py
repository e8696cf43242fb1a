"""What was measured: the lengths of its windows, the pretrained model, and the token in front."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Optional

# Words of manifests that numbers and sentences are looked up by.
Visibility = Literal["hidden", "contextual"]
PositionIDs = Literal["kept", "compact"]
AnchorChoice = Literal["bos", "none"]
Estimand = Literal["targets", "documents", "given"]
NullContext = Literal["same-source", "any-source", "same-document", "shuffled"]


@dataclass(frozen=True)
class MeasuredLengths:
    """The lengths that a measurement has, in tokens.

    Attributes:
        local_len: L, the number of local tokens.
        full_len: length of the full context.
        train_len: tokens of a training row; of a pretrained model as the user states it, None where no row is known.
        max_position: position IDs of training lie below this; None for a pretrained model, which itself knows its limit.
        num_long_range: M, the number of long-range tokens.
    """

    local_len: int
    full_len: int
    train_len: Optional[int]
    max_position: Optional[int]
    num_long_range: int


@dataclass(frozen=True)
class ModelRecord:
    """A pretrained model, as manifests hold it under ``model``.

    Attributes:
        name: its folder, file or hub repository, as it was given.
        revision: commit on the hub; None for files of this machine.
        weights_sha256: of the files with the weights, one after another in the order of their names.
        architecture: the name of its class.
        num_parameters: its number of weights.
        dtype: of the weights in memory, as torch names it, such as ``bfloat16``.
        max_position: its number of position IDs, as its configuration says.
        tokenizer_sha256: of the tokenizer's JSON text.
        rope_scaling: how its rotary positions are scaled here, with the factor, such as ``yarn:4``; None: as it has them.
    """

    name: str
    revision: Optional[str]
    weights_sha256: str
    architecture: str
    num_parameters: int
    dtype: str
    max_position: int
    tokenizer_sha256: str
    rope_scaling: Optional[str] = None


@dataclass(frozen=True)
class Anchor:
    """The token in front of every window that every token sees, always; it is neither local nor long-range.

    Attributes:
        id: its token ID.
        text: as the tokenizer writes it.
    """

    id: int
    text: str
