"""The manifests of all kinds of folders: which keys a reader may rely on, and of which types."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal, Optional, TypedDict

from msgspec import Meta

from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.records.kinds import KINDS
from olmo_sparsity.storage.files import read_json, sha256_file
from olmo_sparsity.storage.typed import check_type

# Larger numbers than any table has; what is larger still is no number of ours, and memory is allocated by some of them.
Length = Annotated[int, Meta(ge=1, le=10**8)]
Parts = Annotated[int, Meta(ge=1, le=10**7)]
Count = Annotated[int, Meta(ge=1, le=10**10)]


class _Lengths(TypedDict):
    local_len: Length
    full_len: Length
    num_long_range: Length


class Lengths(_Lengths, total=False):
    """Entry ``context`` of a folder of tables."""

    train_len: Optional[int]
    max_position: Optional[int]
    num_chunks: Optional[int]
    pose_method: Optional[str]
    pose_contents: Optional[str]


class _Run(TypedDict):
    status: str
    config: Config


class Run(_Run, total=False):
    """Of a training run."""

    run_id: str
    token_store: str
    tokens_sha256: str
    tokenizer_sha256: str
    num_parameters: int
    steps: int
    tokens: int
    validation_loss_nats: float
    seconds: float
    checkpoint: Checkpoint
    training_flops_per_token: float
    peak_flops_per_second: float
    environment: dict[str, Any]


class Checkpoint(TypedDict):
    """Which checkpoint a manifest speaks of."""

    step: int
    model_sha256: str


class _Model(TypedDict):
    name: str
    weights_sha256: str
    num_parameters: int
    dtype: str


class Model(_Model, total=False):
    """A pretrained model."""

    revision: Optional[str]
    tokenizer_sha256: str
    architecture: str
    max_position: int


class Anchor(TypedDict):
    """The first token in front of every window."""

    id: int
    text: str


class AnchorLosses(TypedDict):
    """What another first token gives."""

    loss_long_nats: dict[str, float]
    text: str
    num_windows: int


class AnchorCheck(AnchorLosses, total=False):
    """The same, with what earlier manifests lack."""

    standard_error_nats: Optional[float]
    loss_short_nats: dict[str, float]
    standard_error_short_nats: Optional[float]
    lower_with: dict[str, Optional[str]]


class Fit(TypedDict, total=False):
    """What was checked of a pretrained model."""

    anchor: Optional[AnchorCheck]


class Suite(TypedDict):
    """A suite of planted windows."""

    suite: str
    num_planted: int
    full_len: int
    local_len: int


class Influence(TypedDict, total=False):
    """The settings of a measurement, as far as they are read again."""

    sampling: str
    min_preceding: Optional[int]
    null_context: str
    unit: str
    screen: Optional[int]
    save_candidates: bool
    seed: int
    windows_seed: int
    k: list[int]
    selectors: list[str]


class Validation(TypedDict):
    """The settings of a validation, as far as they are read again."""

    k: list[int]


class _Tables(TypedDict):
    run_id: str
    num_parts: Parts
    context: Lengths


class Tables(_Tables, total=False):
    """Of a folder of tables of any kind."""

    status: str
    finished: str
    run: str
    source: str
    split: str
    sampling: str
    min_preceding: Optional[int]
    visibility: str
    num_windows: Count
    num_documents: Count
    num_parameters: int
    windows_per_part: Count
    tokenizer_sha256: str
    tokens_sha256: str
    windows_sha256: str
    num_visible_tokens: list[int]
    influence: Influence
    validation: Validation
    suites: list[Suite]
    model: Optional[Model]
    anchor: Optional[Anchor]
    fit: Optional[Fit]
    checkpoint: Optional[Checkpoint]
    environment: dict[str, Any]


class Positions(TypedDict):
    """Entry ``context`` of a folder of tables of a synthetic task."""

    max_position: Length
    num_long_range: Length


class _SyntheticTables(TypedDict):
    run_id: str
    num_parts: Parts
    context: Positions
    task: str
    scratchpad: bool
    positions: str
    max_sparsity: int
    train_lengths: tuple[int, int]
    training_seed: int
    hide_tokens: bool


class SyntheticTables(_SyntheticTables, total=False):
    """Of a folder of tables of a synthetic task."""

    status: str
    finished: str
    run: str
    num_windows: Count
    num_parameters: int
    training_seconds: Optional[float]
    windows_per_part: Count
    selectors: list[str]
    checkpoint: Optional[Checkpoint]
    environment: dict[str, Any]


class Speed(TypedDict):
    """How fast a text was prepared."""

    seconds: float
    tokenizer_seconds: float
    shards: int
    tokens: int
    bytes: int


class _Tokens(TypedDict):
    status: str


class Tokens(_Tokens, total=False):
    """Of a prepared text."""

    format: int
    made_from: str
    dtype: Literal["<u2", "<u4"]
    eos_id: int
    vocab_size: int
    tokenizer_sha256: str
    documents: int
    tokens: int
    bytes: int
    skipped: dict[str, int]
    removed: dict[str, int]
    unclosed: list[str]
    splits: dict[str, dict[str, Any]]  # each a SplitEntry, of the present format
    speed: Speed


class Pretrained(TypedDict, total=False):
    """Of the results of a pretrained model."""

    status: str
    model: Model


class Exported(TypedDict, total=False):
    """Of an exported model."""

    files: dict[str, str]


SHAPES: dict[str, type] = {
    "run": Run,
    **dict.fromkeys(KINDS, Tables),
    "synthetic": SyntheticTables,
    "bridge": SyntheticTables,
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
    manifest = read_json(path)
    kind = manifest.get("kind")
    shape = SHAPES.get(kind) if isinstance(kind, str) else None
    if shape is not None:
        check_type(manifest, shape, where=path)
    need(manifest, *needed, where=path)
    return manifest


def need(manifest: dict[str, Any], *keys: str, where: Path) -> None:
    """Check that a manifest has some keys.

    Raises:
        UserError: one is missing.
    """
    for key in keys:
        if manifest.get(key) is None:
            raise UserError(f"{where}: key {key} is missing; the file is damaged, or was changed")


def read_config_of(run: Path) -> Config:
    """Return the configuration that a run was made with. Keys that were added since have their defaults.

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
