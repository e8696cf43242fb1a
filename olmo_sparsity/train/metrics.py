"""Metrics of a training run: ``metrics.jsonl``, and the optional trackers TensorBoard and Weights & Biases."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TypedDict

from olmo_sparsity.config import Config, to_dict
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_type, decode_json, folder_name, write_text
from olmo_sparsity.train.parallel import on_leader

Write = Callable[[dict[str, Any]], object]


class Line(TypedDict):
    """What is read again of a line of ``metrics.jsonl``."""

    step: int


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
    """Yield a function that writes a line of metrics; all processes must call it, the leader writes. A context manager.

    ``metrics.jsonl`` gets all values, trackers the single numbers. Lines of steps after ``step`` are removed first.
    """
    writers: list[Write] = []
    with ExitStack() as stack:

        def open_all() -> None:
            for opened in (_jsonl, *(TRACKERS[name] for name in config.training.trackers)):
                writers.append(stack.enter_context(opened(run, step, config, run_id)))

        on_leader(open_all)
        yield lambda line: on_leader(lambda: [write(line) for write in writers] and None)


@contextmanager
def _jsonl(run: Path, step: int, _config: Config, _run_id: str) -> Iterator[Write]:
    path = run / "metrics.jsonl"
    lines = path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1] if path.is_file() else []
    kept = []  # neither later steps nor a last line that was cut short
    for number, line in enumerate(lines, start=1):
        where = f"{path}:{number}"
        if check_type(decode_json(line, where=where), Line, where=where)["step"] <= step:
            kept.append(f"{line}\n")
    write_text(path, "".join(kept))
    with open(path, "a", encoding="utf-8", buffering=1) as file:
        yield lambda line: print(json.dumps(line), file=file)


def _scalars(line: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in line.items() if key != "step" and isinstance(value, (int, float))}


@contextmanager
def _tensorboard(run: Path, step: int, _config: Config, _run_id: str) -> Iterator[Write]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run / "tensorboard"), purge_step=step + 1) as writer:
        yield lambda line: [writer.add_scalar(key, value, line["step"]) for key, value in _scalars(line).items()]


@contextmanager
def _wandb(run: Path, _step: int, config: Config, run_id: str) -> Iterator[Write]:
    import wandb  # type: ignore[import-not-found,unused-ignore]

    settings = {"id": run_id, "resume": "allow", "dir": str(run), "config": to_dict(config)}
    with wandb.init(project="olmo-sparsity", name=folder_name(run), **settings) as tracked:
        yield lambda line: tracked.log(_scalars(line), step=line["step"])


TRACKERS = {"tensorboard": _tensorboard, "wandb": _wandb}
