"""Metrics of a training run: ``metrics.jsonl``, and the optional trackers TensorBoard and Weights & Biases."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, TypedDict

from olmo_sparsity.config import Config, to_dict
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_type, decode_json, folder_name, write_text
from olmo_sparsity.torchrun import SINGLE_PROCESS, ProcessInfo
from olmo_sparsity.train.evaluation import Evaluation
from olmo_sparsity.train.processes import broadcast_from_leader

EVALUATION_KEYS = tuple(field.name for field in dataclasses.fields(Evaluation))


@dataclass(frozen=True)
class StepMetrics:
    """One line of ``metrics.jsonl``.

    Attributes:
        step: optimizer steps done.
        loss_nats: mean loss of the trained targets of the last batch.
        evaluation: losses on held-out documents; None if this step is not evaluated.
        learning_rate: of the last step.
        grad_norm: gradient norm of the last step, before clipping.
        tokens: tokens trained on since the start of the run.
        tokens_per_second: since the line before; evaluation and saving are not counted.
        share_of_peak: operations per second over the measured peak of the devices.
        seconds: training time since the start of the run, over all interruptions.
    """

    step: int
    loss_nats: float
    evaluation: Optional[Evaluation]
    learning_rate: float
    grad_norm: float
    tokens: int
    tokens_per_second: int
    share_of_peak: float
    seconds: float

    def to_json(self) -> dict[str, Any]:
        """Return the keys and values of the line, in their order; those of the evaluation lie among the others."""
        line: dict[str, Any] = {}
        for field in dataclasses.fields(self):
            if field.name == "evaluation":
                line |= {key: getattr(self.evaluation, key, None) for key in EVALUATION_KEYS}
            else:
                line[field.name] = getattr(self, field.name)
        return line


Writer = Callable[[StepMetrics], None]
_LineWriter = Callable[[dict[str, Any]], None]


def check_trackers(trackers: list[str]) -> None:
    """Check that the packages of these trackers are installed.

    Raises:
        UserError: one is not.
    """
    for name in trackers:
        found = importlib.util.find_spec(name)  # each has the name of its package
        is_folder = found is not None and found.origin is None and found.submodule_search_locations is not None
        if found is None or is_folder:  # a mere folder of the name, such as one with logs, can be imported, too
            raise UserError(
                f"training.trackers: {name} is not installed; run pip install 'olmo-sparsity[{name}]', or remove it from "
                "the configuration (metrics.jsonl is always written)"
            )


class _Line(TypedDict):
    step: int


def _truncate(path: Path, step: int) -> None:
    """Remove the lines of steps after ``step``, and a last line that was cut short.

    Raises:
        UserError: a line in between is none of ours.
    """
    lines = []
    content = path.read_bytes().decode(errors="replace") if path.is_file() else ""
    for number, line in enumerate(content.split("\n")[:-1], start=1):  # what follows the last line break was cut short
        if not line:
            continue
        where = f"{path}:{number}"
        if check_type(decode_json(line, where=where), _Line, where=where)["step"] <= step:
            lines.append(line)
    write_text(path, "".join(f"{line}\n" for line in lines))


def _scalars(line: dict[str, Any]) -> dict[str, float]:
    return {key: value for key, value in line.items() if key != "step" and isinstance(value, (int, float))}


@contextmanager
def _tensorboard(run: Path, step: int) -> Iterator[_LineWriter]:
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter(str(run / "tensorboard"), purge_step=step + 1) as writer:

        def write(line: dict[str, Any]) -> None:
            for key, value in _scalars(line).items():
                writer.add_scalar(key, value, line["step"])

        yield write


@contextmanager
def _wandb(run: Path, config: Config, *, run_id: str) -> Iterator[_LineWriter]:
    import wandb  # type: ignore[import-not-found,unused-ignore]

    with wandb.init(
        project="olmo-sparsity", name=folder_name(run), id=run_id, resume="allow", dir=str(run), config=to_dict(config)
    ) as tracked:
        yield lambda line: tracked.log(_scalars(line), step=line["step"])


@contextmanager
def metrics_writer(
    run: Path, step: int, *, config: Config, run_id: str, process: ProcessInfo = SINGLE_PROCESS
) -> Iterator[Writer]:
    """Open the metrics of a run; a context manager that returns a function that writes one line.

    ``metrics.jsonl`` gets all values, the trackers those that are single numbers.

    Args:
        run: folder of the run.
        step: the step that training resumes from; lines of later steps are removed.
        config: lists the trackers.
        run_id: the ID under which a tracker continues the run.
        process: this process. All processes must open the metrics and write every line; the leader writes.
    """
    path = run / "metrics.jsonl"
    writers: list[_LineWriter] = []
    with ExitStack() as stack:

        def open_all() -> None:
            _truncate(path, step)
            file = stack.enter_context(open(path, "a", encoding="utf-8", buffering=1))
            writers.append(lambda line: print(json.dumps(line), file=file))
            if "tensorboard" in config.training.trackers:
                writers.append(stack.enter_context(_tensorboard(run, step)))
            if "wandb" in config.training.trackers:
                writers.append(stack.enter_context(_wandb(run, config, run_id=run_id)))

        def write_all(line: dict[str, Any]) -> None:
            for write_line in writers:
                write_line(line)

        broadcast_from_leader(open_all, process)
        yield lambda metrics: broadcast_from_leader(lambda: write_all(metrics.to_json()), process)
