"""The section of a configuration about a pretrained model."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Literal, Optional

from olmo_sparsity.config.keys import LARGEST_LENGTH, check_values, key, require

HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
RopeScaling = Literal["none", "linear", "yarn"]
# Last parts of a path that do not tell which model it holds: checkpoints, and snapshots of the hub's cache.
UNINFORMATIVE_NAMES = re.compile(r"step\d+(-unsharded)?|latest|checkpoints|snapshots|main|[0-9a-f]{40}")


@dataclass(frozen=True)
class PretrainedConfig:
    """A pretrained model, which is measured instead of a trained run. Nothing is trained then."""

    model: Optional[str] = key(
        None,
        "The model: a Hugging Face folder or a name on the hub, or a .gguf file. null: the run's own model.",
    )
    revision: Optional[str] = key(None, "Branch, tag or commit of a model on the hub. null: its main branch.")
    device_map: Optional[str] = key(
        None,
        "Devices of the model. null: training.device. auto: accelerate spreads the model over all devices.",
    )
    train_len: Optional[int] = key(
        None,
        "Number of tokens in a row of its training, as its authors say. If it is stated, the gate beyond the training row "
        "applies, and with rotary positions lengths beyond the row and beyond the model's positions are measured, with a "
        "warning. Every output says that it was stated. null: not known.",
        least=2,
        most=LARGEST_LENGTH,
    )
    rope_scaling: RopeScaling = key(
        "none",
        "How rotary positions are scaled for longer contexts than those of training, as in transformers. none: as the model "
        "has them. linear: all distances are divided by rope_factor. yarn: YaRN, which begins at train_len, or if it is null "
        "at the model's number of positions.",
    )
    rope_factor: Optional[float] = key(
        None, "The factor of rope_scaling, by which the context grows. null: there is no scaling.", least=1, most=10**4
    )

    def __post_init__(self) -> None:
        check_values(self, "pretrained")
        require(
            self.model is None or self.model.strip() != "",
            "pretrained.model = '': must name a model, or be null",
        )
        require(
            self.model is not None or self.revision is None,
            f"pretrained.revision = {self.revision}: there is no pretrained.model that it could be a revision of; name one "
            "with --model, or leave the revision out",
        )
        require(
            self.device_map in (None, "auto"),
            f"pretrained.device_map = {self.device_map}: must be auto, or null",
        )
        require(
            (self.rope_scaling == "none") == (self.rope_factor is None),
            f"pretrained.rope_factor = {self.rope_factor} with pretrained.rope_scaling = {self.rope_scaling}: give both, such as "
            "pretrained.rope_scaling=yarn pretrained.rope_factor=4, or neither",
        )

    @property
    def folder_name(self) -> str:
        """Name of the folder of results: that of the model, its revision and its scaling. The model must be given."""
        assert self.model is not None
        scaling = "" if self.scaling is None else f"-{self.rope_scaling}{self.rope_factor:g}"
        return slug(self.model) + (f"-{plain_name(self.revision)}" if self.revision else "") + scaling

    def check_used(self) -> None:
        """Check that no training row and no scaling of positions is stated where there is no pretrained model.

        This is not checked when the configuration is loaded, since ``--model`` names the model later.

        Raises:
            UserError: one is.
        """
        require(
            self.model is not None or (self.train_len, self.rope_scaling) == (None, "none"),
            "pretrained.train_len and pretrained.rope_scaling are about a pretrained model, and none is named; name one with "
            "--model, or leave them out: the row of a run is known (context.train_len), and its positions are not scaled",
        )

    def check_there(self) -> None:
        """Check that the model is a file or folder on this machine, or has a name that the hub may know.

        Raises:
            UserError: it is neither.
        """
        path = Path(os.path.expanduser(self.model or ""))
        can_be_on_hub = HUB_NAME.fullmatch(self.model or "") and path.suffix != ".gguf"
        require(
            self.model is None or path.exists() or bool(can_be_on_hub),
            f"pretrained.model = {self.model}: no such folder or file; give the path of a model, or its name on the hub",
        )

    @property
    def scaling(self) -> Optional[str]:
        """How rotary positions are scaled, with the factor, such as ``yarn:4``; None: they are not."""
        return None if self.rope_scaling == "none" else f"{self.rope_scaling}:{self.rope_factor:g}"


def slug(name: str) -> str:
    """Return a short name for folders: ``owner-model`` of a name on the hub, the last telling parts of a path."""
    path = Path(os.path.expanduser(name))
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not path.exists():
        return plain_name(name)
    return plain_name(telling_name(path.absolute().with_suffix("") if path.suffix == ".gguf" else path.absolute()))


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
