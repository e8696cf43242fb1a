"""``metrics.jsonl`` and the optional trackers of a training run."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from olmo_sparsity.config import Config, to_dict
from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import write_text
from olmo_sparsity.training.evaluation import Record

TRACKER_PACKAGES = {"tensorboard": "tensorboard", "wandb": "wandb"}  # the package that a tracker needs, and its extra


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
