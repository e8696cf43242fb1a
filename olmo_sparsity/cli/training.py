"""Commands that prepare, train, evaluate synthetic tasks, export, and print the configuration."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Optional

import typer

from olmo_sparsity.cli import options as opt
from olmo_sparsity.config import PretrainedConfig, config_folder, load_config, shipped, to_yaml
from olmo_sparsity.errors import UserError

logger = logging.getLogger(__name__)
Task = Annotated[str, typer.Argument(metavar="[TASK]", help="A name in configs/synthetic/, or that of --config.")]


def prepare(config: opt.ConfigFile = None, run: opt.Run = None, overrides: opt.Keys = None) -> None:
    """Tokenize the text: write token files in OLMo's format, and the tokenizer."""
    from olmo_sparsity.text.prepare import describe
    from olmo_sparsity.text.prepare import prepare as prepare_tokens

    loaded, *_ = opt.resolve(config, run, overrides=overrides)
    folder = prepare_tokens(loaded.data)
    for line in describe(folder):
        logger.info(line)
    typer.echo(folder)


def train(
    config: opt.ConfigFile = None, run: opt.Run = None, overwrite: opt.Overwrite = False, overrides: opt.Keys = None
) -> None:
    """Train the model, or resume its training. Prepares the text first if it is not prepared yet."""
    loaded, folder, _ = opt.resolve(config, run, overrides=overrides)
    if loaded.pretrained.model is not None:
        raise UserError(f"train: {loaded.pretrained.model} is a pretrained model, which is never trained; leave it out")
    from olmo_sparsity.train.loop import train as train_run

    train_run(loaded, folder, overwrite=overwrite)


def show_config(config: opt.ConfigFile = None, run: opt.Run = None, overrides: opt.Keys = None) -> None:
    """Print the configuration that the other commands would use, with an explanation of every key."""
    loaded, *_ = opt.resolve(config, run, overrides=overrides)
    files = sorted(path.relative_to(config_folder()).as_posix() for path in config_folder().rglob("*.yaml"))
    typer.echo(f"# Configurations in this package: {', '.join(files)}\n{to_yaml(loaded, explain=True)}", nl=False)


def export_hf(
    run: Annotated[Path, typer.Argument(metavar="[RUN]", help="A trained run.")] = opt.DEMO,
    out: Annotated[opt.File, typer.Argument(metavar="[DIR]", help="Folder to write. Default: RUN/hf.")] = None,
    overwrite: opt.Overwrite = False,
) -> None:
    """Write model and tokenizer as a Hugging Face folder, which transformers loads without code of this package."""
    from olmo_sparsity.export import export_hf as write_hf

    exported = write_hf(run, out or run / "hf", overwrite=overwrite)
    logger.info(
        f"{exported.architecture}, {exported.num_parameters / 1e6:.2f}M parameters; loaded with transformers, its logits "
        f"differ from those of the run by at most {exported.largest_logit_difference:.2g}"
    )
    typer.echo(out or run / "hf")


def _task(task: str, config: Optional[Path], run: Optional[Path], overrides: Optional[list[str]]) -> opt.Named:
    folder = run or opt.RUNS / "synthetic" / task
    own = folder / "config.yaml"
    file = config or (own if own.is_file() else shipped(f"synthetic/{task}"))
    if config is None and not file.is_file():
        names = ", ".join(sorted(path.stem for path in (config_folder() / "synthetic").glob("*.yaml")))
        raise UserError(f"synth: no task is named {task!r}; there are {names}; or give a configuration with --config")
    loaded = load_config(file, overrides or ())
    if loaded.name != task:
        raise UserError(f"{file}: this configuration is of {loaded.name!r}, not of {task!r}; name it, or another --run")
    if loaded.pretrained != PretrainedConfig():
        raise UserError("pretrained: synthetic tasks do not use the keys of this section; leave them out")
    return opt.Named(loaded, folder, file)


def synth_train(
    task: Task = "parity",
    config: opt.ConfigFile = None,
    run: opt.Run = None,
    overwrite: opt.Overwrite = False,
    overrides: opt.Keys = None,
) -> None:
    """Train a model on a synthetic task, or resume its training. Its run is runs/synthetic/TASK, unless --run names another."""
    loaded, folder, _ = _task(task, config, run, overrides)
    from olmo_sparsity.synthetic.tasks import open_task
    from olmo_sparsity.train.loop import train as train_run

    train_run(loaded, folder, overwrite=overwrite, open_data=open_task)


def synth_eval(
    task: Task = "parity",
    config: opt.ConfigFile = None,
    run: opt.Run = None,
    out: opt.Out = None,
    overwrite: opt.Overwrite = False,
    as_json: opt.Json = False,
    help_all: opt.HelpAll = False,
    overrides: opt.Keys = None,
) -> None:
    """Let the model answer prompts of every length and k, and print the accuracies. Trains it first if it is not trained."""
    named = _task(task, config, run, overrides)
    opt.train_first(named, num_processes=1, asked=True, out=out, task=True)
    from olmo_sparsity.synthetic.evaluate import evaluate_task
    from olmo_sparsity.view.comparisons import print_accuracies

    tables = evaluate_task(named.config, named.folder, out=out, overwrite=overwrite)
    logger.info(f"{tables}")
    print_accuracies([tables], as_json=as_json)


def synth_summary(
    runs: Annotated[opt.Files, opt.option("--run", help="May be repeated. Default: runs/synthetic/parity.")] = None,
    as_json: opt.Json = False,
) -> None:
    """Print the accuracies of runs by length and k, and how many seeds have learned their task."""
    from olmo_sparsity.view.comparisons import print_accuracies

    print_accuracies(runs or [opt.RUNS / "synthetic" / "parity"], as_json=as_json)
