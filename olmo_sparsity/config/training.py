"""The section of a configuration about the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Optional

from olmo_sparsity.config.keys import check_values, key, require

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

    steps: int = key(1000, "Number of optimizer steps.", least=1, most=10**9)
    stop_loss: Optional[float] = key(
        None,
        "Training ends early at the first evaluation whose validation loss, in nats, is at most this (null: it does not end "
        "early). It is that of the tokens: position IDs that a model predicts are no part of it.",
        above=0,
    )
    batch_rows: int = key(256, "Number of rows in a batch, over all devices.", least=1, most=10**7)
    micro_batch_rows: Optional[int] = key(
        None,
        "Number of rows in one forward and backward pass of a device; gradients are accumulated over the batch (null: all of "
        "the device's rows).",
        least=1,
        most=10**7,
    )
    parallel: Literal["ddp", "fsdp"] = key(
        "ddp",
        "Data parallelism under torchrun. ddp: every process holds the whole model. fsdp: every process holds a share of it "
        "(FSDP2), for models that do not fit on one device.",
    )
    learning_rate: float = key(4e-3, "Peak learning rate of AdamW.", above=0)
    scheduler: str = key("cosine_with_warmup", "Learning rate scheduler, one of OLMo's: " + ", ".join(SCHEDULERS) + ".")
    warmup_steps: int = key(100, "Number of steps of linear warm-up.", least=0, most=10**9)
    final_lr_fraction: float = key(
        0.05, "Learning rate at the end of a cosine or linear schedule, as a fraction of the peak.", least=0, most=1
    )
    weight_decay: float = key(0.1, "Weight decay of AdamW. Layer norms are not decayed.", least=0)
    beta1: float = key(0.9, "First beta of AdamW.", least=0, below=1)
    beta2: float = key(0.95, "Second beta of AdamW.", least=0, below=1)
    max_grad_norm: float = key(1.0, "Gradients are clipped to this norm.", above=0)
    z_loss: float = key(0.0, "Weight of the z-loss, the mean square of log Z (PaLM and OLMo: 1e-4). 0: none.", least=0)
    seed: int = key(0, "Seed of the initial weights and of all batches.", least=0, below=2**63)
    precision: Literal["auto", "bf16", "fp32"] = key(
        "auto",
        "Autocast precision of the forward pass. auto: bf16 on a device with units for it (a GPU, or a CPU with AMX), "
        "otherwise fp32.",
    )
    compile: Literal["auto", "always", "never"] = key(
        "auto", "Whether to use torch.compile. auto: on a GPU, and on a CPU if there is a C++ compiler."
    )
    device: str = key("auto", "cpu, cuda, or cuda:N. auto: a GPU if there is one.")
    threads: Optional[int] = key(None, "Number of CPU threads (null: chosen by torch).", least=1, most=4096)
    checkpoint_every: int = key(
        500, "Number of steps between checkpoints. The last step is always saved.", least=1, most=10**9
    )
    keep_checkpoints: int = key(2, "Number of checkpoints to keep; older ones are deleted.", least=1, most=10**9)
    keep_every: Optional[int] = key(
        None,
        "Checkpoints whose step is a multiple of this number are kept permanently. It must be a multiple of checkpoint_every "
        "(null: none are).",
        least=1,
        most=10**9,
    )
    log_every: int = key(10, "Number of steps between lines of metrics.jsonl.", least=1, most=10**9)
    eval_every: int = key(500, "Number of steps between evaluations on validation rows.", least=1, most=10**9)
    eval_rows: int = key(1024, "Number of validation rows in an evaluation.", least=1, most=10**7)
    trackers: list[str] = key(
        [],
        "Trackers to log to, in addition to metrics.jsonl: tensorboard, wandb. Each is an optional dependency of this package.",
    )

    def __post_init__(self) -> None:
        check_values(self, "training")
        require(
            self.keep_every is None or self.keep_every % self.checkpoint_every == 0,
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
        rows = self.micro_batch_rows
        require(
            rows is None or self.batch_rows % rows == 0,
            f"training.micro_batch_rows = {rows}: must divide training.batch_rows = {self.batch_rows}",
        )
