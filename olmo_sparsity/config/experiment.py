"""The configuration of one experiment: all of its sections."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
from dataclasses import dataclass, field
from typing import Any

from olmo_sparsity.config.keys import check_values, counted, key, require
from olmo_sparsity.config.lengths import Lengths
from olmo_sparsity.config.measuring import InfluenceConfig
from olmo_sparsity.config.pretrained import PretrainedConfig
from olmo_sparsity.config.sections import ContextConfig, DataConfig, ModelConfig, PoseConfig
from olmo_sparsity.config.synthetic import SyntheticConfig
from olmo_sparsity.config.training import TrainingConfig
from olmo_sparsity.config.units import block_size, most_groups


@dataclass(frozen=True)
class Config:
    """One experiment."""

    name: str = key("demo", "Name of the run. Its folder is runs/NAME, unless --run names another.")
    data: DataConfig = field(default_factory=DataConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    pose: PoseConfig = field(default_factory=PoseConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    pretrained: PretrainedConfig = field(default_factory=PretrainedConfig)
    influence: InfluenceConfig = field(default_factory=InfluenceConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)

    def __post_init__(self) -> None:
        check_values(self, "")
        require(
            re.fullmatch(r"[\w][\w. -]*", self.name) is not None,
            f"name = {self.name!r}: must be a plain folder name of letters, digits, spaces, '.', '_' and '-', and begin with a "
            "letter, a digit or '_'",
        )
        require(
            self.max_position >= self.context.full_len,
            f"pose.max_position = {self.max_position}: must be at least context.full_len = {self.context.full_len}",
        )
        require(
            self.model.position_embedding != "none" or (self.pose.method == "pose" and self.pose.num_chunks == 1),
            f"model.position_embedding = none: a model without positions has no use for pose.method = {self.pose.method} with "
            f"pose.num_chunks = {self.pose.num_chunks}; set pose.num_chunks=1"
            + ", without pose.method"
            * (self.pose.method != "pose"),
        )
        self._check_measured_lengths()

    def _check_measured_lengths(self) -> None:
        lengths = self.measured_lengths
        require(
            lengths.full_len > lengths.local_len,
            f"influence.full_len = {lengths.full_len}: must be larger than influence.local_len = {lengths.local_len}",
        )
        preceding = self.influence.min_preceding
        require(
            preceding is None or preceding >= lengths.full_len,
            f"influence.min_preceding = {preceding}: must be at least the length of the full context, {lengths.full_len}; give "
            "measurements that share their targets the largest of their lengths",
        )
        require(
            lengths.max_position is None or lengths.full_len <= lengths.max_position,
            f"influence.full_len = {lengths.full_len}: the run is trained with {lengths.max_position} positions; measure "
            f"at most as many, with --full-len {lengths.max_position} or less",
        )

    @property
    def max_position(self) -> int:
        """Position IDs are smaller than this: ``pose.max_position``, or ``context.full_len`` if that is null."""
        return self.context.full_len if self.pose.max_position is None else self.pose.max_position

    @property
    def num_positions(self) -> int:
        """Number of position IDs of training rows, that of the BOS in front included."""
        return self.max_position + self.context.bos

    @property
    def measured_lengths(self) -> Lengths:
        """The lengths of every measurement: those of ``influence``, or where they are null those of ``context``."""
        local_len = self.influence.local_len or self.context.local_len
        full_len = self.influence.full_len or self.context.full_len
        is_trained_here = self.pretrained.model is None
        return Lengths(
            local_len=local_len,
            full_len=full_len,
            train_len=self.context.row_len if is_trained_here else self.pretrained.train_len,
            max_position=self.max_position if is_trained_here else None,
            num_long_range=full_len - local_len,
        )

    def with_measured_k(self) -> Config:
        """Return the configuration with the k that are measured in place of a grid of k; they are checked as ``check_k`` does.

        Raises:
            UserError: as ``check_k``.
        """
        resolved = dataclasses.replace(self, influence=self.influence.with_grid_of(self.num_groups))
        resolved.check_k()
        return resolved

    @property
    def num_groups(self) -> int:
        """Number of long-range tokens, or of blocks of them: the largest k."""
        return most_groups(self.measured_lengths.num_long_range, self.influence.unit)

    def check_k(self) -> None:
        """Check ``influence.k`` against the number of long-range tokens, or of blocks of them.

        This is not checked when the configuration is loaded, since training does not need it. Of words and sentences each window
        has its own number, which is at most that of tokens.

        Raises:
            UserError: there are fewer long-range tokens or blocks than they ask for.
        """
        lengths, block, num_groups = self.measured_lengths, block_size(self.influence.unit), self.num_groups
        measured_k = self.influence.with_grid_of(num_groups).k
        groups = f"M = {counted(lengths.num_long_range, 'long-range token')}"
        are = "is" if num_groups == 1 else "are"
        if block is not None:
            groups = f"{counted(num_groups, 'block')} of {block} among the {groups}"
        too_large = [k for k in measured_k if k > num_groups]
        require(
            not too_large,
            f"influence.k = {too_large}: there {are} only {groups} (full_len {lengths.full_len} - local_len "
            f"{lengths.local_len}); use smaller values, for example with --k",
        )


def with_keys(config: Config, values: dict[str, dict[str, Any]]) -> Config:
    """Return a configuration with other values of some keys.

    Args:
        config: the configuration.
        values: the values by section and key.

    Raises:
        UserError: a value is not accepted.
    """
    sections = {section: dataclasses.replace(getattr(config, section), **keys) for section, keys in values.items()}
    return dataclasses.replace(config, **sections)


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a configuration or a section to plain dicts, lists and values, as they are written to YAML and JSON."""
    return dataclasses.asdict(config)


def fingerprint(*parts: Any) -> str:
    """Return 12 hexadecimal digits that depend on every value of ``parts`` (dataclasses, dicts, plain values)."""
    plain = [to_dict(part) if dataclasses.is_dataclass(part) else part for part in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]
