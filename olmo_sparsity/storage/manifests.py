"""The manifests of all kinds of folders: which keys a reader may rely on, and of which types."""

from __future__ import annotations

import logging
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal, Optional

from msgspec import UNSET, Meta, Struct, UnsetType

from olmo_sparsity.config import Config
from olmo_sparsity.config.sections import PositionEmbedding
from olmo_sparsity.config.synthetic import Background, TaskName, TaskPositions, TaskScaling
from olmo_sparsity.errors import UserError
from olmo_sparsity.records.kinds import KINDS, is_kind
from olmo_sparsity.records.measured import (
    Anchor,
    AnchorCheck,
    Estimand,
    Length,
    Lengths,
    ModelRecord,
    NullContext,
    Visibility,
)
from olmo_sparsity.storage.files import (
    CHECKSUM,
    is_as_written,
    read_json,
    sha256_file,
    with_checksum,
    write_json,
    write_json_once,
)
from olmo_sparsity.storage.typed import check_type

logger = logging.getLogger(__name__)

# Larger numbers than any folder has.
Parts = Annotated[int, Meta(ge=1, le=10**7)]
Count = Annotated[int, Meta(ge=1, le=10**10)]
Total = Annotated[int, Meta(ge=0)]
Unit = Annotated[str, Meta(pattern="^(token|word|sentence|block:[1-9][0-9]*)$")]

# A key with a default may be missing: in unfinished folders, or of some kinds.


class Checkpoint(Struct):
    """Which checkpoint a manifest speaks of."""

    step: int
    model_sha256: str


class Run(Struct):
    """Of a training run."""

    status: str
    config: Config
    run_id: str = ""
    token_store: str = ""
    tokens_sha256: str = ""
    tokenizer_sha256: str = ""
    num_parameters: int = 0
    steps: int = 0
    tokens: int = 0
    validation_loss_nats: float = 0
    seconds: float = 0
    checkpoint: Checkpoint | UnsetType = UNSET
    training_flops_per_token: float = 0
    peak_flops_per_second: float = 0
    environment: dict[str, Any] = {}


class Fit(Struct):
    """What was checked of a pretrained model."""

    anchor: Optional[AnchorCheck]


class Influence(Struct):
    """The settings of a measurement, as far as they are read again."""

    sampling: Estimand = "targets"
    min_preceding: Optional[int] = None
    null_context: NullContext = "document"
    unit: Unit = "token"
    seed: int = 0
    windows_seed: int = 0
    k: list[int] = []
    selectors: list[str] = []


class AnyTables(Struct, kw_only=True):
    """Of a folder of tables of any kind."""

    run_id: str
    num_parts: Parts
    status: str = ""
    finished: str = ""
    run: str = ""
    num_windows: Count = 1
    num_parameters: int = 0
    windows_per_part: Count = 1
    checkpoint: Optional[Checkpoint] = None
    environment: dict[str, Any] = {}
    own_selectors: dict[str, dict[str, Any]] = {}


class Tables(AnyTables, kw_only=True):
    """Of a folder of tables of a text."""

    context: Lengths
    source: str = ""
    split: str = ""
    min_preceding: Optional[int] = None
    visibility: Visibility = "hidden"
    num_documents: Count = 1
    tokenizer_sha256: str = ""
    tokens_sha256: str = ""
    windows_sha256: str = ""
    influence: Influence | UnsetType = UNSET
    model: Optional[ModelRecord] = None
    anchor: Optional[Anchor] = None
    fit: Optional[Fit] = None


class Positions(Struct):
    """Entry ``context`` of a folder of tables of a synthetic task."""

    max_position: Length
    num_long_range: Length


class SyntheticTables(AnyTables, kw_only=True):
    """Of a folder of tables of a synthetic task."""

    context: Positions
    task: TaskName
    scratchpad: bool
    positions: TaskPositions
    max_sparsity: int
    train_lengths: tuple[int, int]
    training_seed: int
    modulus: Annotated[int, Meta(ge=2)]
    background: Background
    num_chunks: Count
    position_embedding: PositionEmbedding
    rope_scaling: TaskScaling = "none"
    rope_factor: Optional[float] = None
    test_row_len: Optional[Count] = None
    locality: Optional[Count] = None
    spread: Count = 1
    ended_by: Optional[str] = None
    validation_loss_nats: Optional[float] = None
    training_seconds: Optional[float] = None
    selectors: list[str] = []


class Speed(Struct):
    """How fast a text was prepared."""

    seconds: float
    tokenizer_seconds: float
    shards: int
    tokens: int
    bytes: int


class Tokens(Struct):
    """Of a prepared text."""

    status: str
    format: Total = 0
    made_from: str = ""
    dtype: Literal["<u2", "<u4"] = "<u2"
    eos_id: Total = 0
    vocab_size: Total = 0
    tokenizer_sha256: str = ""
    documents: Total = 0
    tokens: Total = 0
    bytes: Total = 0
    skipped: dict[str, Total] = {}
    broken: list[str] = []
    removed: dict[str, Total] = {}
    unclosed: list[str] = []
    splits: dict[str, dict[str, Any]] = {}  # each a SplitEntry, of the present format
    speed: Speed | UnsetType = UNSET


class Pretrained(Struct):
    """Of the results of a pretrained model."""

    status: str = ""
    model: ModelRecord | UnsetType = UNSET


class Exported(Struct):
    """Of an exported model."""

    files: dict[str, str] = {}


SHAPES: dict[str, type] = {
    "run": Run,
    **dict.fromkeys(KINDS, Tables),
    "synthetic": SyntheticTables,
    "tokens": Tokens,
    "pretrained": Pretrained,
    "hf": Exported,
}


def read_manifest_of(folder: Path, *needed: str) -> dict[str, Any]:
    """Return the manifest of a folder, with all of its keys.

    Args:
        folder: of any kind; what is no kind of this package is returned as it is.
        needed: keys that the caller needs besides those that every manifest of the kind has.

    Raises:
        UserError: there is none, it is no JSON, or a key is missing or of another type.
    """
    path = folder / "manifest.json"
    return checked(read_json(path), *needed, where=path)


def write_manifest(folder: Path, manifest: dict[str, Any], *, once: bool = False) -> None:
    """Write the manifest of a folder atomically; of a folder of tables with its checksum.

    Args:
        folder: where to.
        manifest: what it holds.
        once: leave one that exists as it is.
    """
    content = with_checksum(manifest) if is_kind(manifest.get("kind")) else manifest
    (write_json_once if once else write_json)(folder / "manifest.json", content)


def checked(manifest: dict[str, Any], *needed: str, where: Path) -> dict[str, Any]:
    """Return a manifest, with all of its keys, if it has the keys of its kind with their types, and without its checksum.

    Raises:
        UserError: a key is missing or of another type, or the checksum differs.
    """
    kind = manifest.get("kind")
    shape = SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is not None:
        check_type(manifest, shape, where=where)
    need(manifest, *needed, where=where)
    if not is_kind(kind):
        return manifest
    found = is_as_written(manifest)
    if found is None:
        _warn_of_none(where)
        return manifest
    if not found:
        raise UserError(
            f"{where}: key {CHECKSUM} is not the checksum of what the file holds: it is damaged, or was changed by "
            "hand; restore it, or delete this key to have the file read as it is"
        )
    return {key: value for key, value in manifest.items() if key != CHECKSUM}


@cache  # one line for each folder, however often it is read
def _warn_of_none(where: Path) -> None:
    logger.warning(f"{where}: it has no {CHECKSUM}, so a value that was changed is not noticed")


def need(manifest: dict[str, Any], *keys: str, where: Path) -> None:
    """Check that a manifest has some keys.

    Raises:
        UserError: one is missing.
    """
    for key in keys:
        if manifest.get(key) is None:
            raise UserError(
                f"{where}: key {key} is missing; the file is damaged, or of another version of olmo-sparsity"
            )


def read_config_of(run: Path) -> Config:
    """Return the configuration that a run was made with. Keys that it lacks have their defaults.

    Raises:
        UserError: there is no manifest of a run, or a value in it is wrong.
    """
    path = run / "manifest.json"
    return check_type(read_manifest_of(run, "config")["config"], Config, where=f"{path}: config")


def tokenizer_of_run(run: Path, manifest: dict[str, Any]) -> Path:
    """Return the path of a run's tokenizer, which is compared with the hash in the manifest.

    Raises:
        UserError: it is another one, or the hash is missing.
    """
    need(manifest, "tokenizer_sha256", where=run / "manifest.json")
    path = run / "tokenizer.json"
    if path.is_file() and sha256_file(path) != manifest["tokenizer_sha256"]:
        raise UserError(f"{path}: not the tokenizer that the manifest beside it was written with; restore it")
    return path
