"""The commands ``synth train``, ``synth eval`` and ``synth summary``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Optional

import typer

from olmo_sparsity.cli.options import (
    RUNS,
    Named,
    Overrides,
    OverwriteOption,
    TaskConfigOption,
    TaskRunOption,
)
from olmo_sparsity.cli.steps import as_trained, interruptible, needs_training
from olmo_sparsity.config import PretrainedConfig, config_folder, load_config, require, shipped
from olmo_sparsity.errors import UserError

logger = logging.getLogger(__name__)

TaskArgument = Annotated[
    str,
    typer.Argument(
        metavar="TASK",
        help="Name of a configuration in configs/synthetic/, such as parity; with --config the key `name` of that file.",
    ),
]
OutOption = Annotated[
    Optional[Path], typer.Option("--out", metavar="DIR", help="Folder of the table. Default: one inside the run.")
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print everything as JSON.")]


def resolve_task(task: str, config: Optional[Path], run: Optional[Path], *, overrides: Optional[list[str]]) -> Named:
    """Return the configuration and the run of a synthetic task.

    Raises:
        UserError: there is no such configuration, or it is of another task.
    """
    folder = run or RUNS / "synthetic" / task
    if config is None and (folder / "config.yaml").is_file():
        config = folder / "config.yaml"
    path = config or shipped(f"synthetic/{task}")
    if config is None and not path.is_file():
        names = ", ".join(sorted(found.stem for found in (config_folder() / "synthetic").glob("*.yaml")))
        raise UserError(f"synth: no task is named {task!r}; there are {names}; or give a configuration with --config")
    loaded = load_config(path, overrides or [])
    require(
        loaded.name == task,
        f"{path}: this configuration is of {loaded.name!r}, not of {task!r}; name that, or choose another --run",
    )
    require(
        loaded.pretrained == PretrainedConfig(),
        f"synth {task}: the keys of pretrained are about a pretrained model, which synthetic tasks do not use; leave them out",
    )
    return Named(loaded, folder, path)


def synth_train(
    task: TaskArgument,
    config: TaskConfigOption = None,
    run: TaskRunOption = None,
    overwrite: OverwriteOption = False,
    overrides: Overrides = None,
) -> None:
    """Train a model on a synthetic task, or resume its training. Its run is runs/synthetic/TASK, unless --run names another."""
    named = resolve_task(task, config, run, overrides=overrides)
    from olmo_sparsity.synthetic.tasks import open_task
    from olmo_sparsity.train.loop import train

    with interruptible():
        train(named.config, named.folder, overwrite=overwrite, open_data=open_task)


def synth_eval(
    task: TaskArgument,
    config: TaskConfigOption = None,
    run: TaskRunOption = None,
    out: OutOption = None,
    overwrite: OverwriteOption = False,
    as_json: JsonOption = False,
    overrides: Overrides = None,
) -> None:
    """Let the model answer prompts of every length and k, and print the accuracies. Trains it first if it is not trained."""
    from olmo_sparsity.files import manifest_of_kind
    from olmo_sparsity.measure.parts import WHOLE
    from olmo_sparsity.synthetic.evaluate import evaluate_task
    from olmo_sparsity.synthetic.tasks import open_task
    from olmo_sparsity.train.loop import train
    from olmo_sparsity.view.trials import print_accuracies

    loaded, folder, _ = named = resolve_task(task, config, run, overrides=overrides)
    if out is not None:
        manifest_of_kind(out, "synthetic")  # refuses another one before the training
    with interruptible():
        command = f"olmo-sparsity synth train {task}"
        if needs_training(loaded, folder, share=WHOLE, command=command):
            logger.info(f"{folder}: not trained yet; training first")
            train(as_trained(named, command=command), folder, open_data=open_task)
        tables = evaluate_task(loaded, folder, out=out, overwrite=overwrite)
    logger.info(f"{tables}")
    print_accuracies([tables], as_json=as_json)


def synth_summary(
    runs: Annotated[
        list[Path],
        typer.Option(
            "--run",
            metavar="DIR",
            help="An evaluated run; repeat the option. Seeds of a configuration are one model.",
            show_default=False,
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Print the accuracies of several runs by length and k, and how many seeds have learned their task."""
    from olmo_sparsity.view.trials import print_accuracies

    print_accuracies(runs, as_json=as_json)
