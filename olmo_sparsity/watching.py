"""Watching a training run: losses on held-out documents, ``metrics.jsonl``, and trackers for those who want them.

Legend: B rows, T tokens of a row.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Optional

import torch
import torch.nn.functional as F

from olmo_sparsity.batches import Batch
from olmo_sparsity.config import Config, UserError, to_dict
from olmo_sparsity.manifest import write_text
from olmo_sparsity.optimization import SummedLoss
from olmo_sparsity.parallel import total
from olmo_sparsity.torchrun import Place

Record = dict[str, Any]
# What is seen of a model at intervals. The first is of rows such as those of training; the others are of ``full_len``
# consecutive tokens: their mean over the positions that one training row spans, over those beyond, and each.
EVALUATED = (
    "validation_loss_nats",
    "loss_within_train_len_nats",
    "loss_beyond_train_len_nats",
    "loss_by_position_nats",
)
DIGITS = 6  # of the losses by position, of which there are many
TRACKER_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}  # the package that a tracker needs, and its extra


def _passes(batch: Batch, rows_at_once: int, device: torch.device) -> Iterator[tuple[torch.Tensor, ...]]:
    fields = (batch.tokens_BT, batch.positions_BT, batch.targets_BT)
    for begin in range(0, len(batch.tokens_BT), rows_at_once):
        yield tuple(field[begin : begin + rows_at_once].to(device) for field in fields)


@torch.no_grad()
def _summed_nats(loss: SummedLoss, batch: Batch, rows_at_once: int, device: torch.device) -> torch.Tensor:
    """Cross-entropy of all trained targets of a batch, nats, summed; fp64 scalar on the CPU."""
    parts = [loss(*fields)[1].double() for fields in _passes(batch, rows_at_once, device)]
    return torch.stack(parts).sum().cpu()


@torch.no_grad()
def _nats_by_position(loss: SummedLoss, batch: Batch, rows_at_once: int, device: torch.device) -> torch.Tensor:
    """Cross-entropy of each place's targets, nats, summed over the rows of a batch; fp64 [T] on the CPU."""
    parts = []
    for tokens_BT, positions_BT, targets_BT in _passes(batch, rows_at_once, device):
        logits = loss.logits(tokens_BT, positions_BT)
        nats = F.cross_entropy(logits.flatten(0, 1), targets_BT.flatten(), reduction="none")
        parts.append(nats.view_as(targets_BT).double().sum(dim=0))
    return torch.stack(parts).sum(dim=0).cpu()


def _mean(values: torch.Tensor) -> Optional[float]:
    return float(values.mean()) if values.numel() else None


def evaluate(
    loss: SummedLoss,
    validation: Batch,
    by_position: Optional[Batch],
    train_len: int,
    rows_at_once: int,
    device: torch.device,
    place: Place,
) -> Record:
    """Losses on held-out documents, nats a target.

    Args:
        loss: the model, and how it is computed; left in training mode.
        validation: this process's share of rows such as those of training.
        by_position: its share of rows of consecutive tokens at positions 0, 1, ...; None where there are none.
        train_len: tokens of a training row.
        rows_at_once: training rows of a forward pass; of longer ones, as many as hold no more tokens.
        device: of the model.
        place: of this process.
    """
    loss.eval()
    record: Record = dict.fromkeys(EVALUATED)
    nats = total(_summed_nats(loss, validation, rows_at_once, device), place)
    record["validation_loss_nats"] = float(nats) / validation.num_targets
    if by_position is not None:
        # These rows are longer than those of training, for which the device was found large enough.
        fewer = max(1, rows_at_once * train_len // by_position.tokens_BT.shape[1])
        summed = total(_nats_by_position(loss, by_position, fewer, device), place)
        losses_T = summed * summed.numel() / by_position.num_targets
        record["loss_within_train_len_nats"] = _mean(losses_T[:train_len])
        record["loss_beyond_train_len_nats"] = _mean(losses_T[train_len:])
        record["loss_by_position_nats"] = [round(nats, DIGITS) for nats in losses_T.tolist()]
    loss.train()
    return record


# --- what was seen, written down -------------------------------------------------------------------------------------


def check_trackers(trackers: list[str]) -> None:
    """Are the packages of these trackers installed.

    Raises:
        UserError: one is not.
    """
    for name in trackers:
        if importlib.util.find_spec(TRACKER_PACKAGES[name]) is None:
            raise UserError(
                f"training.trackers: {name} is not installed; pip install 'olmo-sparsity[{name}]', or leave it out "
                "(metrics.jsonl is written always)"
            )


def _truncate(path: Path, step: int) -> None:
    """Drops the lines of steps behind ``step``, and one that was cut short."""
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except json.JSONDecodeError:
            break
    write_text(path, "".join(f"{line}\n" for line in kept))


def _scalars(record: Record) -> dict[str, float]:
    return {key: value for key, value in record.items() if key != "step" and isinstance(value, (int, float))}


@contextmanager
def _tensorboard(run: Path, step: int) -> Iterator[Callable[[Record], None]]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run / "tensorboard"), purge_step=step + 1) as writer:

        def write(record: Record) -> None:
            for key, value in _scalars(record).items():
                writer.add_scalar(key, value, record["step"])

        yield write


@contextmanager
def _wandb(run: Path, config: Config, run_id: str) -> Iterator[Callable[[Record], None]]:
    import wandb  # type: ignore[import-not-found,unused-ignore]

    with wandb.init(
        project="olmo-sparsity", name=run.name, id=run_id, resume="allow", dir=str(run), config=to_dict(config)
    ) as tracked:
        yield lambda record: tracked.log(_scalars(record), step=record["step"])


@contextmanager
def metrics_writer(
    run: Path, step: int, config: Config, run_id: str, writes: bool = True
) -> Iterator[Callable[[Record], None]]:
    """A function that takes one step's numbers: ``metrics.jsonl`` gets all of them, the trackers those that are single.

    Args:
        run: folder of the run.
        step: the step that training goes on from; what is written behind it is dropped.
        config: names the trackers.
        run_id: of the run, for trackers that continue one by its name.
        writes: False in processes that leave it to another.
    """
    if not writes:
        yield lambda record: None
        return
    path = run / "metrics.jsonl"
    _truncate(path, step)
    with ExitStack() as stack:
        lines = stack.enter_context(open(path, "a", encoding="utf-8", buffering=1))
        sinks: list[Callable[[Record], None]] = [lambda record: print(json.dumps(record), file=lines)]
        if "tensorboard" in config.training.trackers:
            sinks.append(stack.enter_context(_tensorboard(run, step)))
        if "wandb" in config.training.trackers:
            sinks.append(stack.enter_context(_wandb(run, config, run_id)))

        def write(record: Record) -> None:
            for sink in sinks:
                sink(record)

        yield write
