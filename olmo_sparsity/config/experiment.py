"""The configuration of one experiment: all of its sections."""

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

    name: str = key("demo", "Name of the run. Its folder is runs/NAME, unless --run names another.")
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
            f"pose.num_chunks = {self.pose.num_chunks}: must be at most {self.context.row_len}, the tokens of a training row",
        )
        require(
            self.max_position >= self.context.full_len,
            f"pose.max_position = {self.max_position}: must be at least context.full_len = {self.context.full_len}",
        )

    @property
    def max_position(self) -> int:
        """Position IDs are smaller than this: ``pose.max_position``, or ``context.full_len`` if that is null."""
        return self.context.full_len if self.pose.max_position is None else self.pose.max_position

    def check_k(self) -> None:
        """Check ``influence.k`` and ``influence.screen`` against the number of long-range tokens.

        This is not checked when the configuration is loaded, since training does not need it.

        Raises:
            UserError: there are fewer long-range tokens than they ask for.
        """
        too_large = [k for k in self.influence.k if k > self.context.num_long_range]
        require(
            not too_large,
            f"influence.k = {too_large}: there are only M = {self.context.num_long_range} long-range tokens "
            f"(context.full_len {self.context.full_len} - context.local_len {self.context.local_len}); use smaller values, "
            "for example with --k",
        )
        screen = self.influence.screen
        require(
            screen is None or max(self.influence.k) <= screen <= self.context.num_long_range,
            f"influence.screen = {screen}: must lie between the largest k, {max(self.influence.k)}, and "
            f"M = {self.context.num_long_range}",
        )


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a configuration or a section to plain dicts, lists and values, as they are written to YAML and JSON."""
    return dataclasses.asdict(config)


def fingerprint(*parts: Any) -> str:
    """Return 12 hexadecimal digits that depend on every value of ``parts`` (dataclasses, dicts, plain values)."""
    plain = [to_dict(part) if dataclasses.is_dataclass(part) else part for part in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]
