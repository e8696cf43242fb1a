"""The section of a configuration about the training loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Optional

from olmo_sparsity.config.keys import key, require, require_positive, require_positive_or_null

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
class TrainingConfig:
    """The training loop."""

    steps: int = key(1000, "Number of optimizer steps.")
    batch_rows: int = key(256, "Number of rows in a batch, over all devices.")
    micro_batch_rows: Optional[int] = key(
        None,
        "Number of rows in one forward and backward pass of a device; gradients are accumulated over the batch (null: all of "
        "the device's rows).",
    )
    parallel: Literal["ddp", "fsdp"] = key(
        "ddp",
        "Data parallelism under torchrun. ddp: every process holds the whole model. fsdp: every process holds a share of it "
        "(FSDP2), for models that do not fit on one device.",
    )
    learning_rate: float = key(4e-3, "Peak learning rate of AdamW.")
    scheduler: str = key("cosine_with_warmup", "Learning rate scheduler, one of OLMo's: " + ", ".join(SCHEDULERS) + ".")
    warmup_steps: int = key(100, "Number of steps of linear warm-up.")
    final_lr_fraction: float = key(
        0.05, "Learning rate at the end of a cosine or linear schedule, as a fraction of the peak."
    )
    weight_decay: float = key(0.1, "Weight decay of AdamW. Layer norms are not decayed.")
    beta1: float = key(0.9, "First beta of AdamW.")
    beta2: float = key(0.95, "Second beta of AdamW.")
    max_grad_norm: float = key(1.0, "Gradients are clipped to this norm.")
    z_loss: float = key(0.0, "Weight of the z-loss, the mean square of log Z (PaLM and OLMo: 1e-4). 0: none.")
    seed: int = key(0, "Seed of the initial weights and of all batches.")
    precision: Literal["auto", "bf16", "fp32"] = key(
        "auto",
        "Autocast precision of the forward pass. auto: bf16 on a device with units for it (a GPU, or a CPU with AMX), "
        "otherwise fp32.",
    )
    compile: Literal["auto", "always", "never"] = key(
        "auto", "Whether to use torch.compile. auto: on a GPU, and on a CPU if there is a C++ compiler."
    )
    device: str = key("auto", "cpu, cuda, or cuda:N. auto: a GPU if there is one.")
    threads: Optional[int] = key(None, "Number of CPU threads (null: chosen by torch).")
    checkpoint_every: int = key(500, "Number of steps between checkpoints. The last step is always saved.")
    keep_checkpoints: int = key(2, "Number of checkpoints to keep; older ones are deleted.")
    keep_every: Optional[int] = key(
        None,
        "Also keep the checkpoints of every so many steps for good; a multiple of checkpoint_every (null: none).",
    )
    log_every: int = key(10, "Number of steps between lines of metrics.jsonl.")
    eval_every: int = key(500, "Number of steps between evaluations on validation rows.")
    eval_rows: int = key(1024, "Number of validation rows in an evaluation.")
    trackers: list[str] = key(
        [],
        "Trackers to log to, besides metrics.jsonl: tensorboard, wandb. Each is an optional dependency of this package.",
    )

    def __post_init__(self) -> None:
        require_positive(
            self,
            "training",
            names=(
                "max_grad_norm",
                "steps",
                "batch_rows",
                "checkpoint_every",
                "keep_checkpoints",
                "log_every",
                "eval_every",
                "eval_rows",
            ),
        )
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
            f"training.warmup_steps = 0: must be positive, since training.scheduler = {self.scheduler} depends on it",
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
        require_positive_or_null(self, "training", names=("threads",))
        require(
            0 < self.learning_rate < math.inf,
            f"training.learning_rate = {self.learning_rate}: must be positive and finite",
        )
        require(
            0 <= self.final_lr_fraction <= 1,
            f"training.final_lr_fraction = {self.final_lr_fraction}: must lie between 0 and 1",
        )
        rows = self.micro_batch_rows
        require(
            rows is None or (0 < rows <= self.batch_rows and self.batch_rows % rows == 0),
            f"training.micro_batch_rows = {rows}: must divide training.batch_rows = {self.batch_rows}",
        )
