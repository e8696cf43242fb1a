"""What commands share: options, the run or model that they name, and the training that comes first."""

from __future__ import annotations

import dataclasses
import logging
import os
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Optional

import typer

from olmo_sparsity import config as configuration
from olmo_sparsity.config import PretrainedConfig, load_config, parsed, powers_up_to, shipped
from olmo_sparsity.errors import UserError

if TYPE_CHECKING:
    from olmo_sparsity.measure.parts import Share

RUNS, DEMO = Path("runs"), Path("runs/demo")
logger = logging.getLogger(__name__)
option: Any = partial(typer.Option, show_default=False)  # the help says the default in words, or not at all


def _show_all(context: typer.Context, asked: bool) -> None:
    if asked:
        for parameter in context.command.params:
            parameter.hidden = False  # type: ignore[attr-defined]
        print(context.get_help())
        raise typer.Exit()


File = Optional[Path]
Files = Optional[list[Path]]
Number = Optional[int]
Word = Optional[str]
Words = Optional[list[str]]
ConfigFile = Annotated[File, option("--config", metavar="FILE", help="YAML. Default: that of the run, or demo.yaml.")]
Run = Annotated[File, option("--run", metavar="DIR", help="Folder of the run. Default: runs/NAME.")]
Model = Annotated[Word, option("--model", help="In place of a run: a Hugging Face folder or name, or a .gguf file.")]
Keys = Annotated[Words, typer.Argument(metavar="KEY=VALUE", help="Changed keys, such as training.steps=200.")]
Overwrite = Annotated[bool, option("--overwrite", help="Replace what exists.")]
Selectors = Annotated[Words, option("--selector", metavar="NAME", help="A name, all, or FILE.py:NAME. Repeatable.")]
Windows = Annotated[Number, option("--num-windows", help="Windows to measure.")]
Source = Annotated[Word, option("--data", help="Text: builtin, c4, a file, folder or glob.")]
K = Annotated[Word, option("--k", help="Tokens to unmask. 8: 1, 2, 4, 8. 1,3,5: these. all: 1 to M. geometric.")]
Unit = Annotated[Word, option("--unit", help="What k counts: token, word, sentence, or block:N.")]
LocalLen = Annotated[Number, option("--local-len", help="Local tokens. Default: those of the run.")]
FullLen = Annotated[Number, option("--full-len", help="Length of the full context.")]
Visible = Optional[configuration.Visibility]
Visibility = Annotated[Visible, option("--visibility", help="Which tokens do not see hidden ones: all, or local ones.")]
Seed = Annotated[Number, option("--seed", hidden=True, help="Seed of the windows and the controls.")]
Precision = Annotated[Optional[configuration.Precision], option("--precision", hidden=True, help="Of the losses.")]
Train = Annotated[bool, option("--train", hidden=True, help="Train the run first, even if it is not runs/NAME.")]
Shard = Annotated[Word, option("--shard", metavar="I/N", hidden=True, help="Measure share I of N, from 0 to N - 1.")]
Out = Annotated[File, option("--out", hidden=True, help="Where to write. Default: in the run.")]
Json = Annotated[bool, option("--json", help="Print every number as JSON.")]
HelpAll = Annotated[bool, option("--help-all", is_eager=True, callback=_show_all, help="Show all options.")]


class Named(NamedTuple):
    """What the options of a command name."""

    config: configuration.Config  # with what options and overrides change
    folder: Path  # of the run, or of a model's results
    file: Path  # that the configuration was loaded from


def keys_of(*, k: Optional[str], selector: Optional[Sequence[str]], **given: Any) -> dict[str, Any]:
    """Return the keys of ``influence`` that options give; a user's files of selectors are run. ``--k 6`` is [1, 2, 4, 6]."""
    keys = {f"influence.{name}": value for name, value in given.items() if value is not None}
    if k in ("all", "geometric"):
        keys["influence.k"] = k
    elif k is not None:
        if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*", k):
            raise UserError(f"--k {k}: must be a number, such as 8 (1, 2, 4, 8), a list, as 1,3,5, all or geometric")
        values = [int(part) for part in k.split(",")]
        keys["influence.k"] = sorted(set(values)) if "," in k else powers_up_to(values[0])
    if selector:
        from olmo_sparsity.selectors import ALL_SELECTORS
        from olmo_sparsity.selectors.own import names_of

        every = ALL_SELECTORS if "all" in selector else ()
        keys["influence.selectors"] = names_of([*every, *(name for name in selector if name not in ("all", *every))])
    return keys


def resolve(
    config: Optional[Path],
    run: Optional[Path],
    *,
    overrides: Optional[Sequence[str]],
    model: Optional[str] = None,
    keys: Mapping[str, Any] = {},
) -> Named:
    """Return what options name. The file is that of ``--config``, else the folder's own, else one of the package."""
    keys = {**keys, **({} if model is None else {"pretrained.model": model})}
    for override in overrides or ():
        for dotted in parsed(override):
            if dotted in keys:
                raise UserError(f"{override}: an option of this command gives {dotted}, too; leave one of them out")
    file = config or shipped("demo" if model is None else "pretrained")
    if run is None and model is not None:
        run = RUNS / load_config(file, overrides or (), keys).pretrained.folder_name
    if config is None and run is not None and (run / "config.yaml").is_file():
        file = run / "config.yaml"
    loaded = load_config(file, overrides or (), keys)
    name = loaded.name if loaded.pretrained.model is None else loaded.pretrained.folder_name
    return Named(loaded, run or RUNS / name, file)


def shown_folder(run: Optional[Path], model: Optional[str]) -> Path:
    """Return the folder whose results are shown; where ``--model`` is given, it must hold the results of this model."""
    if model is None:
        return run or DEMO
    from olmo_sparsity.files import manifest_of_kind

    folder = run or RUNS / PretrainedConfig(model).folder_name
    stored = (manifest_of_kind(folder, "pretrained") or {}).get("model", {"name": model})["name"]
    if Path(os.path.expanduser(stored)).resolve() != Path(os.path.expanduser(model)).resolve():
        raise UserError(f"{folder}: these are the results of {stored}; measure {model} into another folder with --run")
    return folder


def train_first(
    named: Named, *, num_processes: int, asked: bool, out: Optional[Path] = None, task: bool = False
) -> None:
    """Train the run unless it is trained; of a trained run, check that it is the same experiment.

    Without ``--train`` only the folder that the configuration names is trained in: any other may be a slip of the pen.
    """
    config, run, file = named
    if config.pretrained.model is not None:
        if asked:
            raise UserError(f"--train: {config.pretrained.model} is a pretrained model, which is never trained")
        config.pretrained.check_there()
        return
    from olmo_sparsity.files import manifest_of_kind

    manifest = manifest_of_kind(run, "run")
    command = f"olmo-sparsity {f'synth train {config.name}' if task else 'train'} --run {run}"
    if manifest is not None and manifest["status"] == "complete":
        from olmo_sparsity.train.experiment import ANOTHER, check_same_experiment, is_trained

        named_run = f"name it with --run {run}, which reads its own configuration, or {ANOTHER}"
        check_same_experiment(run, manifest, config, remedy=named_run)
        if not is_trained(run, manifest):
            raise UserError(f"{run}: this run has lost its last checkpoint; bring it back, or run `{command}`")
        return
    if num_processes > 1:
        raise UserError(f"{run}: this run is not trained; run `{command}` alone, then measure with several processes")
    if manifest is None and not (asked or task or run.resolve() == (RUNS / config.name).resolve()):
        raise UserError(f"{run}: this run is not trained; train it with `{command}`, or add --train to this command")
    if out is not None:
        manifest_of_kind(out, "synthetic" if task else "influence")  # refuses another folder before the training
    if not task:
        from olmo_sparsity.measure.opening import check_before_training

        check_before_training(config)
    logger.info(f"{run}: not trained yet; training first")
    from olmo_sparsity.train.loop import open_training_text, train

    open_data = open_training_text
    if task:
        from olmo_sparsity.synthetic.tasks import open_task as open_data
    # What options say of a measurement holds for this one only.
    train(dataclasses.replace(config, influence=load_config(file).influence), run, open_data=open_data)


def finish_share(tables: Path, share: Share) -> bool:
    """Report how far a measurement is, and return whether this process prints its results."""
    from olmo_sparsity.tables import finalize

    missing = finalize(tables)
    if missing or not share.is_leader:
        rest = f"; {missing} parts are left to others" if missing else ", and with it all parts"
        typer.echo(f"{tables}: share {share.index} of {share.count} is done{rest}", err=True)
    return not missing and share.is_leader
