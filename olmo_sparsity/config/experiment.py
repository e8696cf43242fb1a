"""The configuration of one experiment: all of its sections together."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from olmo_sparsity.config.keys import key, require
from olmo_sparsity.config.measuring import ContextCurveConfig, InfluenceConfig, ValidationConfig
from olmo_sparsity.config.sections import ContextConfig, DataConfig, ModelConfig, PoseConfig
from olmo_sparsity.config.training import TrainingConfig


@dataclass(frozen=True)
class Config:
    """One experiment."""

    name: str = key("demo", "Name of the run; its folder is runs/NAME unless --run says otherwise.")
    data: DataConfig = field(default_factory=DataConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    pose: PoseConfig = field(default_factory=PoseConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    influence: InfluenceConfig = field(default_factory=InfluenceConfig)
    context_curve: ContextCurveConfig = field(default_factory=ContextCurveConfig)
    validation: ValidationConfig = field(default_factory=ValidationConfig)

    def __post_init__(self) -> None:
        require(
            re.fullmatch(r"[\w][\w. -]*", self.name) is not None,
            f"name = {self.name!r}: must be a plain folder name of letters, digits, '.', '_' and '-'",
        )
        require(
            self.pose.num_chunks <= self.context.row_len,
            f"pose.num_chunks = {self.pose.num_chunks}: a row of {self.context.row_len} tokens has no room for so many",
        )
        require(
            self.max_position >= self.context.full_len,
            f"pose.max_position = {self.max_position}: must be at least context.full_len = {self.context.full_len}",
        )

    @property
    def max_position(self) -> int:
        """Position IDs lie below this: ``pose.max_position``, or ``context.full_len`` where that is null."""
        return self.context.full_len if self.pose.max_position is None else self.pose.max_position

    def check_k(self) -> None:
        """Are there as many long-range tokens as ``influence.k`` asks for.

        Raises:
            UserError: there are not.
        """
        too_many = [k for k in self.influence.k if k > self.context.num_long_range]
        require(
            not too_many,
            f"influence.k = {too_many}: there are only M = {self.context.num_long_range} long-range tokens "
            f"(context.full_len {self.context.full_len} - context.local_len {self.context.local_len}); ask for less with --k",
        )
        screen = self.influence.screen
        require(
            screen is None or max(self.influence.k) <= screen <= self.context.num_long_range,
            f"influence.screen = {screen}: must lie between the largest k, {max(self.influence.k)}, and "
            f"M = {self.context.num_long_range}",
        )


def to_dict(config: Any) -> dict[str, Any]:
    """Plain dicts, lists and numbers, as they go into YAML and JSON."""
    return dataclasses.asdict(config)


def fingerprint(*parts: Any) -> str:
    """12 hexadecimal digits that depend on every value of ``parts`` (dataclasses, dicts, plain values)."""
    plain = [to_dict(p) if dataclasses.is_dataclass(p) else p for p in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]
