"""What was measured: the lengths of its windows, the pretrained model, and the token in front.

The entries ``context``, ``model``, ``anchor`` and ``fit.anchor`` of manifests are written from these records and read into them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from pathlib import PurePath
from typing import Annotated, Any, Literal, Optional

from msgspec import Meta

# Words of manifests that numbers and sentences are looked up by.
Visibility = Literal["hidden", "contextual"]
AnchorChoice = Literal["bos", "none"]
ComparedLength = Literal["short", "long"]  # the local tokens alone, or all tokens
Estimand = Literal["targets", "given"]
NullContext = Literal["document", "shuffled"]

# Last parts of a path that do not tell which model it holds: checkpoints, and snapshots of the hub's cache.
UNINFORMATIVE_NAMES = re.compile(r"step\d+(-unsharded)?|latest|checkpoints|snapshots|main|[0-9a-f]{40}")
HASH_DIGITS = 12  # that are shown of a hash of weights, and of a commit on the hub
DAMPING = tuple(tenth / 10 for tenth in range(1, 10))  # weights of p_all in the blends with p_{}
# Larger numbers than any table has; what is larger still is no number of ours, and memory is allocated by some of them.
Length = Annotated[int, Meta(ge=1, le=10**8)]
# Both keys are there.
OfBothChoices = Annotated[dict[AnchorChoice, float], Meta(min_length=2)]
OfBothLengths = Annotated[dict[ComparedLength, Optional[AnchorChoice]], Meta(min_length=2)]


@dataclass(frozen=True)
class MeasuredLengths:
    """The lengths that a measurement has, in tokens, as its fingerprint holds them; manifests hold ``Lengths``.

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

    @property
    def last_n(self) -> list[int]:
        """Numbers of latest tokens whose loss is measured: 2^i and 3 * 2^i from full_len/16 on, and the lengths themselves."""
        powers = [2**i for i in range(self.full_len.bit_length())]
        grid = {n for power in powers for n in (power, 3 * power) if n >= self.full_len / 16}
        grid |= {self.local_len, self.full_len, self.train_len or self.full_len}
        return sorted(n for n in grid if n <= self.full_len)


@dataclass(frozen=True)
class Lengths:
    """Lengths of the experiment in tokens, and the position IDs of training.

    Attributes:
        local_len: L, tokens that the model always sees.
        full_len: Lbar, tokens of a window.
        num_long_range: M, the long-range tokens of a window.
        train_len: tokens of a training row; None: none is known, as of a pretrained model of which none is stated.
        max_position: position IDs of training rows lie below this; None: not known.
        pose_method: how a training row gets its position IDs; None: no training row is known.
        num_chunks: chunks of a training row; 1: no PoSE; None: no training row is known.
        pose_contents: which text the chunks of a training row hold; None: no training row is known.
        min_preceding: tokens that every target has before it, where that was set; None: those of a window.
        train_len_is_stated: True where the user has stated ``train_len``, of a pretrained model; ``max_position`` is then its
            own number of positions.
    """

    local_len: Length
    full_len: Length
    num_long_range: Length
    train_len: Optional[int] = None
    max_position: Optional[int] = None
    pose_method: Optional[Literal["pose", "randpos"]] = None
    num_chunks: Optional[int] = None
    pose_contents: Optional[Literal["contiguous", "matched"]] = None
    min_preceding: Optional[int] = None
    train_len_is_stated: Optional[bool] = None

    @property
    def is_ceiling(self) -> bool:
        """True if training rows are at least as long as the full context, so that nothing lies beyond them."""
        return self.train_len is not None and self.train_len >= self.full_len

    @property
    def len_before_gain(self) -> int:
        """The number of recent tokens from which changes are counted: a training row, or where none is known the local ones."""
        return self.local_len if self.train_len is None else self.train_len

    @classmethod
    def from_manifest(cls, manifest: dict[str, Any]) -> Lengths:
        """Read the lengths from the manifest of a folder of tables."""
        recorded = {**manifest["context"], "min_preceding": manifest.get("influence", {}).get("min_preceding")}
        return cls(**{field.name: recorded[field.name] for field in fields(cls) if field.name in recorded})


@dataclass(frozen=True)
class ModelRecord:
    """A pretrained model.

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

    @property
    def short_name(self) -> str:
        """The name on the hub, or the last part of the path that tells which model it is, and how its positions are scaled."""
        name = telling_name(PurePath(self.name)) if self.revision is None else self.name
        return name if self.rope_scaling is None else f"{name} {self.rope_scaling}"


@dataclass(frozen=True)
class Anchor:
    """The token in front of every window that every token sees, always; it is neither local nor long-range.

    Attributes:
        id: its token ID.
        text: as the tokenizer writes it.
    """

    id: int
    text: str


@dataclass(frozen=True)
class AnchorCheck:
    """Mean losses of the same windows with a BOS in front and without.

    Attributes:
        chosen: with which the model was measured.
        text: the BOS, as the tokenizer writes it.
        num_windows: how many windows.
        loss_short_nats: with the local tokens alone, of each choice.
        loss_long_nats: with all tokens, of each choice.
        standard_error_short_nats: of the difference of the two means with the local tokens alone; None: it is not known.
        standard_error_nats: the same with all tokens.
        lower_with: the choice with which each mean is clearly lower; None: neither.
    """

    chosen: AnchorChoice
    text: str
    num_windows: int
    loss_short_nats: OfBothChoices
    loss_long_nats: OfBothChoices
    standard_error_short_nats: Optional[float]
    standard_error_nats: Optional[float]
    lower_with: OfBothLengths

    @property
    def other(self) -> AnchorChoice:
        """The choice with which the model was not measured."""
        return "none" if self.chosen == "bos" else "bos"


def telling_name(path: PurePath) -> str:
    """Return the last part of a path; of a checkpoint or a snapshot, the last parts that tell of what."""
    parts = [part for part in path.parts if plain_name(part)] or [str(path)]
    untelling: list[str] = []
    while len(parts) > 1 and UNINFORMATIVE_NAMES.fullmatch(parts[-1]):
        untelling.insert(0, parts.pop())
    kept = [part[:12] if len(part) == 40 else part for part in untelling if part not in ("checkpoints", "snapshots")]
    return "-".join([parts[-1], *kept])


def plain_name(name: str) -> str:
    """Return a name that a folder can have."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:80]
