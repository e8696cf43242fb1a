"""Metrics of a training run: ``metrics.jsonl``, and the optional trackers TensorBoard and Weights & Biases."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from olmo_sparsity.config import Config, to_dict
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_type, decode_json, folder_name, write_text
from olmo_sparsity.train.parallel import on_leader

Write = Callable[[dict[str, Any]], None]


def check_trackers(trackers: Sequence[str]) -> None:
    """Raise UserError if a tracker's package is not installed."""
    for name in trackers:
        spec = importlib.util.find_spec(name)
        if spec is None or spec.origin is None:  # a mere folder of that name, such as one with logs, has no origin
            raise UserError(
                f"training.trackers: {name} is not installed; run pip install 'olmo-sparsity[{name}]', or remove it from "
                "the configuration (metrics.jsonl is always written)"
            )


@contextmanager
def metrics_writer(run: Path, step: int, *, config: Config, run_id: str) -> Iterator[Write]:
    """Yield a function that writes one line to the metrics of a run that goes on behind ``step``; a context manager.

    ``metrics.jsonl`` gets all values, trackers those that are single numbers. All processes must write every line.
    """
    writers: list[Write] = []
    with ExitStack() as stack:

        def open_all() -> None:
            writers.append(stack.enter_context(_jsonl(run, step)))
            for name in config.training.trackers:
                writers.append(stack.enter_context(TRACKERS[name](run, step, config, run_id)))

        def write_all(line: dict[str, Any]) -> None:
            for write in writers:
                write(line)

        on_leader(open_all)
        yield lambda line: on_leader(lambda: write_all(line))


@contextmanager
def _jsonl(run: Path, step: int) -> Iterator[Write]:
    """Append to ``metrics.jsonl``; lines of steps after ``step``, and a last one that was cut short, are removed first."""
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.is_file() else []
    kept = []
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}"
        if (
            check_type(check_type(decode_json(line, where=where), dict, where=where).get("step"), int, where=where)
            <= step
        ):
            kept.append(f"{line}\n")
    write_text(path, "".join(kept))
    with open(path, "a", encoding="utf-8", buffering=1) as file:
        yield lambda line: print(json.dumps(line), file=file)


def _scalars(line: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in line.items() if key != "step" and isinstance(value, (int, float))}


@contextmanager
def _tensorboard(run: Path, step: int, config: Config, run_id: str) -> Iterator[Write]:
    from torch.utils.tensorboard import SummaryWriter

    def write(line: dict[str, Any]) -> None:
        for key, value in _scalars(line).items():
            writer.add_scalar(key, value, line["step"])

    with SummaryWriter(str(run / "tensorboard"), purge_step=step + 1) as writer:
        yield write


@contextmanager
def _wandb(run: Path, step: int, config: Config, run_id: str) -> Iterator[Write]:
    import wandb  # type: ignore[import-not-found,unused-ignore]

    settings = {"id": run_id, "resume": "allow", "dir": str(run), "config": to_dict(config)}
    with wandb.init(project="olmo-sparsity", name=folder_name(run), **settings) as tracked:
        yield lambda line: tracked.log(_scalars(line), step=line["step"])


TRACKERS = {"tensorboard": _tensorboard, "wandb": _wandb}
