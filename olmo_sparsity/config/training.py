"""The section of a configuration that describes the training loop."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, Optional

from olmo_sparsity.config.keys import key, require

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
