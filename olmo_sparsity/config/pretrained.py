"""The section of a configuration about a pretrained model."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Optional

from olmo_sparsity.config.keys import check_values, key, require

# Last parts of a path that do not tell which model it holds: checkpoints, and snapshots of the hub's cache.
UNINFORMATIVE_NAMES = re.compile(r"step\d+(-unsharded)?|latest|checkpoints|snapshots|main|[0-9a-f]{40}")


@dataclass(frozen=True)
class PretrainedConfig:
    """A pretrained model, which is measured instead of a trained run. Nothing is trained then."""

    model: Optional[str] = key(
        None,
        "The model: a Hugging Face folder or a name on the hub, a .gguf file, or a checkpoint folder of OLMo or of this "
        "package. null: the run's own model.",
    )
    revision: Optional[str] = key(None, "Branch, tag or commit of a model on the hub. null: its main branch.")
    device_map: Optional[str] = key(
        None,
        "How the model is spread over devices. null: all of it is on training.device. auto: over all devices, by accelerate.",
    )
    allow_pickle: bool = key(
        False,
        "Also load weights in PyTorch's pickle format (.bin). Without it only safetensors, GGUF and the model.pt of OLMo "
        "checkpoints are loaded. Code of a model is never run.",
    )

    def __post_init__(self) -> None:
        check_values(self, "pretrained")
        require(
            self.model is None or self.model.strip() != "",
            "pretrained.model = '': must name a model, or be null",
        )
        require(
            self.model is not None or self.revision is None,
            f"pretrained.revision = {self.revision}: there is no pretrained.model that it could be a revision of",
        )
        require(
            self.device_map in (None, "auto"),
            f"pretrained.device_map = {self.device_map}: must be auto, or null",
        )

    @property
    def folder_name(self) -> str:
        """Name of the folder of results: that of the model and its revision. The model must be given."""
        assert self.model is not None
        return slug(self.model) + (f"-{_plain(self.revision)}" if self.revision else "")


def slug(name: str) -> str:
    """Return a short name for folders: ``owner-model`` of a name on the hub, the last telling parts of a path."""
    path = Path(name).expanduser()
    if re.fullmatch(r"[\w.-]+/[\w.-]+", name) and not path.exists():
        return _plain(name)
    return _plain(telling_name(path.absolute().with_suffix("") if path.suffix == ".gguf" else path.absolute()))


def telling_name(path: PurePath) -> str:
    """Return the last part of a path; of a checkpoint or a snapshot, the last parts that tell of what."""
    parts = [part for part in path.parts if _plain(part)] or [str(path)]
    untelling: list[str] = []
    while len(parts) > 1 and UNINFORMATIVE_NAMES.fullmatch(parts[-1]):
        untelling.insert(0, parts.pop())
    kept = [part[:12] if len(part) == 40 else part for part in untelling if part not in ("checkpoints", "snapshots")]
    return "-".join([parts[-1], *kept])


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:80]
