"""Speed of the training step of ``train`` against a bare loop, in one process: ``python -m benchmarks.training [KEY=VALUE...]``.

One side is ``train()`` itself, with its thread that draws batches, its schedule, signals and metrics. The time of a step is
read from its metrics, which do not count evaluation and saving. The other side is a loop as one would write it by hand: the
same model, batches, learning rates, precision, compilation and AdamW, with all batches on the device beforehand, and nothing
written. It runs with deterministic kernels, as ``train`` does, and again without them.

The three take turns, 10 steps each, so that other load on the machine affects all of them. Medians are taken over these
stretches, without the first two of each repeat, which warm up. The losses of the sides are compared, too, to show that they
do the same work, and so are the gradient norms. ``training.z_loss`` is 0 on all sides. ``--synthetic`` trains a synthetic task,
as ``synth train`` does; of position IDs, only those that are given.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any, Optional
from unittest import mock

import torch
import torch.nn.functional as F

from olmo_sparsity.config import Config, TrainingConfig
from olmo_sparsity.config.files import load_config
from olmo_sparsity.config.keys import require
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.devices import device_name, pick_device
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, olmo_model_config
from olmo_sparsity.synthetic.data import SYNTHETIC
from olmo_sparsity.torchrun import SINGLE_PROCESS
from olmo_sparsity.training import loop as training_module
from olmo_sparsity.training.data import TEXT, DataSource, TrainingData
from olmo_sparsity.training.metrics import StepMetrics, metrics_writer
from olmo_sparsity.training.resources import measured_peak, training_flops_per_token
from olmo_sparsity.training.step import build_schedule, deterministic, resolve_compile, resolve_precision

STRETCH = 10  # steps that are timed together: those between two lines of metrics
WARM_UP = 2  # first stretches of each repeat, which are not counted: compilation takes place in them
SAME_NORM = 0.2  # the same for gradient norms, relative
SAME_NATS = 0.05  # the largest difference of losses allowed: bf16 rounds differently where code is fused differently
TOOL, BARE, FREE = "train", "bare loop", "bare loop, any kernels"


@dataclass(frozen=True)
class Turn:
    """The measurements of one side in one repeat.

    Attributes:
        seconds: seconds per step, of each stretch after the warm-up.
        losses: loss in nats after each stretch, with those of the warm-up.
        grad_norms: gradient norm before clipping at the same steps. AdamW hides a wrong scale of the gradient from the losses.
    """

    seconds: list[float]
    losses: list[float]
    grad_norms: list[float]


def settle(config: Config, steps: int) -> Config:
    """Return the configuration of a repeat: ``steps`` steps after the warm-up; evaluation and checkpoint only at the end."""
    total = STRETCH * (WARM_UP + max(1, round(steps / STRETCH)))
    training = dataclasses.replace(
        config.training,
        steps=total,
        log_every=STRETCH,
        eval_every=total + 1,
        checkpoint_every=total + 1,
        keep_every=None,
        eval_rows=config.training.batch_rows,
        z_loss=0.0,
        stop_loss=None,
        patience=None,
        trackers=[],
    )
    return dataclasses.replace(config, training=training)


@contextmanager
def _any_kernels() -> Iterator[None]:
    """Switch deterministic kernels off within the context."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(False)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])


@dataclass(frozen=True)
class _DeviceBatch:
    """A batch on the device, with the number of its trained targets."""

    fields_BT: tuple[torch.Tensor, ...]  # tokens, positions, targets; int64
    num_targets: int


def _device_batches(config: Config, data: TrainingData, device: torch.device) -> list[_DeviceBatch]:
    batches = [data.draw(step) for step in range(config.training.steps)]
    return [_DeviceBatch(tuple(field.to(device) for field in batch.fields), batch.num_targets) for batch in batches]


def _plain_adamw(model: torch.nn.Module, training: TrainingConfig) -> torch.optim.AdamW:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() > 1]
    norms = [parameter for parameter in model.parameters() if parameter.dim() == 1]
    return torch.optim.AdamW(
        [{"params": matrices, "weight_decay": training.weight_decay}, {"params": norms, "weight_decay": 0.0}],
        betas=(training.beta1, training.beta2),
        fused=True,
    )


def bare_loop(config: Config, *, same_bits: bool, source: DataSource = TEXT) -> Iterator[tuple[float, float, float]]:
    """Train by hand, one stretch each time that the iterator is advanced.

    Args:
        config: the experiment.
        same_bits: use deterministic kernels.
        source: where the batches come from.

    Yields:
        (seconds per step, loss in nats at the end, gradient norm at the end) of the stretch.
    """
    training = config.training
    device = pick_device(training.device)
    bf16 = resolve_precision(training, device) == "bf16"
    data = source.open(config, SINGLE_PROCESS)
    batches = _device_batches(config, data, device)
    schedule = build_schedule(training)
    rates = [schedule.get_lr(training.learning_rate, step, training.steps) for step in range(training.steps)]
    model = _fresh_model(config, data).to(device).train()
    optimizer = _plain_adamw(model, training)

    def summed_loss(tokens_BT: torch.Tensor, positions_BT: torch.Tensor, targets_BT: torch.Tensor) -> torch.Tensor:
        with torch.autocast(device.type, torch.bfloat16, enabled=bf16):
            logits_BTV = model(tokens_BT, positions_BT)
        return F.cross_entropy(logits_BTV.float().flatten(0, 1), targets_BT.flatten(), reduction="sum")

    step_loss: Callable[..., torch.Tensor] = summed_loss
    if resolve_compile(training, device):
        step_loss = torch.compile(summed_loss, dynamic=False)
    rows_per_pass = training.micro_batch_rows or training.batch_rows
    for begin in range(0, training.steps, STRETCH):
        with deterministic() if same_bits else _any_kernels():
            start = time.perf_counter()
            for step in range(begin, begin + STRETCH):
                for group in optimizer.param_groups:
                    group["lr"] = rates[step]
                losses = []
                for first in range(0, training.batch_rows, rows_per_pass):
                    fields_bT = [field[first : first + rows_per_pass] for field in batches[step].fields_BT]
                    loss = step_loss(*fields_bT) / batches[step].num_targets
                    loss.backward()
                    losses.append(loss.detach())
                grad_norm = torch.nn.utils.clip_grad_norm_(model.parameters(), training.max_grad_norm)
                optimizer.step()
                optimizer.zero_grad(set_to_none=True)
            loss_nats = float(torch.stack(losses).sum())  # waits for a GPU
            seconds = (time.perf_counter() - start) / STRETCH
        yield seconds, loss_nats, float(grad_norm)


def _fresh_model(config: Config, data: TrainingData) -> OLMoWithPositions:
    return build_model(olmo_model_config(config, vocab_size=data.vocab_size, eos_id=data.eos_id), config.training.seed)


def one_turn(config: Config, run: Path, source: DataSource = TEXT) -> dict[str, Turn]:
    """Train a new run with ``train()``. After each of its stretches, every bare loop does one of its own.

    The bare loops run when ``train()`` writes a line of metrics, which is outside the time that it measures.
    """
    turns = {name: Turn([], [], []) for name in (TOOL, BARE, FREE)}
    loops = {
        BARE: bare_loop(config, same_bits=True, source=source),
        FREE: bare_loop(config, same_bits=False, source=source),
    }
    batch_tokens = config.training.batch_rows * source.row_len(config)

    @contextmanager
    def writer(*arguments: Any, **named: Any) -> Iterator[Callable[[StepMetrics], None]]:
        with metrics_writer(*arguments, **named) as write:

            def write_and_take_turns(metrics: StepMetrics) -> None:
                write(metrics)
                stretch = {TOOL: (batch_tokens / metrics.tokens_per_second, metrics.loss_nats, metrics.grad_norm)}
                stretch.update({name: next(loop) for name, loop in loops.items()})
                for name, (seconds, loss, grad_norm) in stretch.items():
                    if metrics.step > WARM_UP * STRETCH:
                        turns[name].seconds.append(seconds)
                    turns[name].losses.append(loss)
                    turns[name].grad_norms.append(grad_norm)

            yield write_and_take_turns

    with mock.patch.object(training_module, "metrics_writer", writer):
        training_module.train(config, run, source=source)
    return turns


def compare(config: Config, repeats: int, source: DataSource = TEXT) -> dict[str, list[Turn]]:
    """Measure every side ``repeats`` times, each time with new models."""
    turns: dict[str, list[Turn]] = {TOOL: [], BARE: [], FREE: []}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(repeats):
            for name, turn in one_turn(config, Path(folder) / f"run{repeat}", source).items():
                turns[name].append(turn)
            torch.compiler.reset()  # otherwise the models of earlier repeats slow down the lookup of compiled code
    return turns


def _print_all(config: Config, turns: dict[str, list[Turn]], source: DataSource = TEXT) -> bool:
    """Print the results. Return True if both sides did the same work."""
    training, row_len = config.training, source.row_len(config)
    device = pick_device(training.device)
    precision, compiled = resolve_precision(training, device), resolve_compile(training, device)
    data = source.open(config, SINGLE_PROCESS)
    model = _fresh_model(config, data)
    peak = measured_peak(device, torch.bfloat16 if precision == "bf16" else torch.float32)
    batch_tokens = training.batch_rows * row_len
    shares = {TOOL: data.share_with_logits(config)}  # bare loops compute all logits
    flops = {
        name: batch_tokens
        * training_flops_per_token(model, row_len, num_bos=data.num_bos, share_with_logits=shares.get(name, 1.0))
        for name in turns
    }
    millions = sum(parameter.numel() for parameter in model.parameters()) / 1e6
    print(
        f"{device_name(device)}, {torch.get_num_threads()} threads, {precision}, "
        f"{'compiled' if compiled else 'not compiled'}; {millions:.2f}M parameters, {batch_tokens} tokens per step; "
        f"measured peak {peak / 1e12:.3g} TFLOP/s"
    )
    medians = {name: median([s for turn in repeats for s in turn.seconds]) for name, repeats in turns.items()}
    print(f"{'':24} {'ms/step':>9} {'fastest':>9} {'slowest':>9} {'tokens/s':>10} {'of peak':>8} {'to bare':>8}")
    for name, repeats in turns.items():
        milliseconds = [1000 * s for turn in repeats for s in turn.seconds]
        print(
            f"{name:24} {1000 * medians[name]:9.2f} {min(milliseconds):9.2f} {max(milliseconds):9.2f} "
            f"{batch_tokens / medians[name]:10,.0f} {flops[name] / medians[name] / peak:8.3f} "
            f"{medians[name] / medians[BARE]:8.3f}"
        )
    pairs = zip(turns[TOOL], turns[BARE], strict=True)
    ratios = [a / b for ours, bare in pairs for a, b in zip(ours.seconds, bare.seconds, strict=True)]
    print(f"{TOOL} to {BARE}, stretch by stretch: median {median(ratios):.3f} of {len(ratios)}")
    ours, bare = turns[TOOL][0], turns[BARE][0]
    difference = max(abs(a - b) for a, b in zip(ours.losses, bare.losses, strict=True))
    of_norms = max(abs(a / b - 1) for a, b in zip(ours.grad_norms, bare.grad_norms, strict=True))
    same = difference <= SAME_NATS and of_norms <= SAME_NORM
    limits = f"NOT the same work (more than {SAME_NATS}, or {SAME_NORM:.0%}), so do not compare the times"
    print(
        f"losses of {TOOL} and {BARE} differ by at most {difference:.1e} nats, gradient norms by {of_norms:.2%}: "
        f"{'the same work' if same else limits}"
    )
    return same


def main(arguments: Optional[list[str]] = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, help="default: configs/demo.yaml")
    parser.add_argument("--steps", type=int, default=60, help="steps of each side after the warm-up; default 60")
    parser.add_argument("--repeats", type=int, default=3, help="repeats with new models; default 3")
    parser.add_argument("--synthetic", action="store_true", help="train the synthetic task of the configuration")
    parser.add_argument("overrides", metavar="KEY=VALUE", nargs="*", help="for example training.batch_rows=64")
    given = parser.parse_args(arguments)
    try:
        config = settle(load_config(given.config, given.overrides), given.steps)
        if config.training.threads is not None:
            torch.set_num_threads(config.training.threads)
        source = SYNTHETIC if given.synthetic else TEXT
        require(
            not given.synthetic or config.synthetic.positions != "predicted",
            "synthetic.positions = predicted: the bare loop has no loss of position IDs; choose another",
        )
        turns = compare(config, max(1, given.repeats), source)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0 if _print_all(config, turns, source) else 1


if __name__ == "__main__":
    sys.exit(main())
