"""Options and arguments that several commands share, and the configuration that results from them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Optional

import typer

from olmo_sparsity.config import (
    Config,
    Visibility,
    load_config,
    parsed,
    powers_up_to,
    shipped,
)
from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.selectors import ALL_SELECTORS, is_own
from olmo_sparsity.selectors.own import names_of

RUNS = Path("runs")
ALL = "all"  # in place of the names of selectors
GRIDS = ("all", "geometric")  # in place of the values of k: every one, or powers of two and the largest

Keys = dict[str, dict[str, Any]]  # what options say: values by section and key


class ContextName(str, Enum):
    real = "real"
    null = "null"


ConfigOption = Annotated[
    Optional[Path],
    typer.Option(
        "--config",
        metavar="FILE",
        help="YAML configuration. Default: that in the folder of --run or of the results of --model; if there is none, "
        "configs/demo.yaml, or with --model configs/pretrained.yaml.",
    ),
]
TaskConfigOption = Annotated[
    Optional[Path],
    typer.Option(
        "--config",
        metavar="FILE",
        help="YAML configuration. Default: that in the folder of the run; if there is none, configs/synthetic/TASK.yaml.",
    ),
]
TaskRunOption = Annotated[
    Optional[Path],
    typer.Option("--run", metavar="DIR", help="Folder of the run. Default: runs/synthetic/TASK."),
]
RunOption = Annotated[
    Optional[Path],
    typer.Option("--run", metavar="DIR", help="Folder of the run, or of the results of --model. Default: runs/NAME."),
]
ModelOption = Annotated[
    Optional[str],
    typer.Option(
        "--model",
        metavar="MODEL",
        help="A pretrained model in place of a run: a Hugging Face folder or name, or a .gguf file.",
    ),
]
RevisionOption = Annotated[
    Optional[str], typer.Option("--revision", metavar="REV", help="Branch, tag or commit of --model on the hub.")
]
Overrides = Annotated[
    Optional[list[str]],
    typer.Argument(metavar="KEY=VALUE", help="Changes to the configuration, such as training.steps=200."),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Delete earlier results and start again.")]
OverwritePageOption = Annotated[bool, typer.Option("--overwrite", help="Replace a page that exists.")]
TextOption = Annotated[Path, typer.Option("--text", metavar="FILE", help="File with one document.", show_default=False)]
SeedOption = Annotated[
    Optional[int],
    typer.Option("--seed", min=0, help="Seed of the controls. Default: influence.seed.", show_default=False),
]
TrainOption = Annotated[
    bool,
    typer.Option(
        "--train",
        help="Train the run first if it is not trained. Without this option only the run that the configuration names, "
        "runs/NAME, is trained.",
    ),
]
ShardOption = Annotated[
    Optional[str],
    typer.Option("--shard", metavar="I/N", help="Measure only share I of N equal shares, I from 0 to N - 1."),
]
# Of a finished measurement, which may have selectors of one's own.
ShownSelectorOption = Annotated[
    Optional[str],
    typer.Option(
        "--selector", metavar="NAME", help="Selector whose choice is shown. Default: one that does not see the target."
    ),
]


NumWindowsOption = Annotated[Optional[int], typer.Option("--num-windows", help="Windows to measure.")]
DataOption = Annotated[
    Optional[str],
    typer.Option("--data", metavar="SOURCE", help="Text to measure: builtin, c4, or a file, folder or glob."),
]
UnitOption = Annotated[
    Optional[str],
    typer.Option(
        "--unit",
        metavar="UNIT",
        help="What is unmasked and counted: token, word, sentence, or block:N, N tokens each. Default: token.",
    ),
]
LocalLenOption = Annotated[
    Optional[int], typer.Option("--local-len", metavar="N", help="Local tokens. Default: those of the run.")
]
FullLenOption = Annotated[
    Optional[int],
    typer.Option("--full-len", metavar="N", help="Length of the full context. Default: that of the run."),
]
VisibilityOption = Annotated[
    Optional[Visibility],
    typer.Option(
        "--visibility",
        help="hidden: hidden tokens are seen by no token. contextual: only the local tokens do not see them.",
    ),
]
PrecisionOption = Annotated[
    Optional[Literal["auto", "fp32", "bf16"]],
    typer.Option(
        "--precision",
        help="Precision of the losses: fp32, or bf16, which is faster and less exact. Default (auto): fp32, but bf16 for a "
        "pretrained model from elsewhere on a GPU with units for it.",
    ),
]
KOption = Annotated[
    Optional[str],
    typer.Option(
        "--k",
        metavar="K",
        help="Numbers of tokens to unmask. 8: k = 1, 2, 4, 8. 1,3,5: these. all: every k. geometric: 1, 2, 4, ... and all "
        "long-range tokens.",
    ),
]


def selector_option(choices: Iterable[str], default: str) -> Any:
    """Return the type of an option ``--selector``, which may be repeated.

    Args:
        choices: the names that it takes.
        default: what is measured without it.
    """
    known = tuple(choices)
    shown = "|".join((*known, "FILE.py:NAME"))

    def chosen(value: str) -> str:
        if value not in known and not is_own(value):
            raise typer.BadParameter(
                f"{printable(value)!r} is not one of {', '.join(map(repr, known))}, nor FILE.py:NAME."
            )
        return value

    return typer.Option(
        "--selector",
        metavar=f"[{shown}]",
        parser=chosen,
        help=f"Selector to measure, or FILE.py:NAME, a selector of your own; repeat the option for several. Default: {default}.",
        show_default=False,
    )


def parse_k(text: str) -> list[int]:
    """Return the values of k: ``8`` -> [1, 2, 4, 8]; ``6`` -> [1, 2, 4, 6]; ``1,3,5`` -> [1, 3, 5].

    Raises:
        UserError: ``text`` is neither a number nor a list of numbers.
    """
    if not re.fullmatch(r"[0-9]{1,9}(,[0-9]{1,9})*,?", text):
        raise UserError(
            f"--k {text}: must be a number, such as 8 (which measures 1, 2, 4, 8), or a list, such as 1,3,5"
        )
    values = [int(part) for part in text.split(",") if part]
    if "," in text:
        return sorted(set(values))
    return powers_up_to(values[0])


def keys_of_k(text: str) -> dict[str, Any]:
    """Return the keys of ``influence`` that ``--k`` gives: the values of k, or the name of a grid.

    Raises:
        UserError: ``text`` is neither.
    """
    if text in GRIDS:
        return {"k_grid": text}
    try:
        return {"k": parse_k(text), "k_grid": None}
    except UserError as error:
        raise UserError(f"{error}, or all, or geometric (1, 2, 4, ... and all)") from None


def selectors_named(names: Sequence[str]) -> list[str]:
    """Return the selectors that options name, each once; ``all`` stands for those that are not measured by name only.

    Raises:
        UserError: a selector of one's own is unusable.
    """
    others = [name for name in names if name != ALL]
    if ALL in names:
        others = [name for name in others if name not in ALL_SELECTORS]
    return names_of([*(ALL_SELECTORS if ALL in names else ()), *others])


def keys_of_influence(*, k: Optional[str] = None, selector: Optional[list[str]] = None, **given: Any) -> Keys:
    """Return the keys of ``influence`` that options give, of those that are given.

    Raises:
        UserError: ``k`` or a selector is unusable.
    """
    keys = {name: value for name, value in given.items() if value is not None}
    if k is not None:
        keys |= keys_of_k(k)
    if selector:
        keys["selectors"] = selectors_named(selector)
    return {"influence": keys}


class Named(NamedTuple):
    """What the options of a command name.

    Attributes:
        config: the experiment.
        folder: of the run, or of a model's results.
        file: the YAML file that the experiment was loaded from, before what options and overrides change.
    """

    config: Config
    folder: Path
    file: Path


def given_keys(overrides: Optional[list[str]]) -> list[tuple[str, str]]:
    """Return (the override, printable, and the dotted name of a key) for every key that overrides give.

    Raises:
        UserError: an override is wrong.
    """
    return [(printable(override), key) for override in overrides or [] for key in parsed(override)]


def check_given_once(overrides: Optional[list[str]], keys: Keys) -> None:
    """Check that no override gives a key that an option of the command gives, too: one of the two would have no effect.

    Args:
        overrides: as ``SECTION.KEY=VALUE``.
        keys: what options give, by section and key.

    Raises:
        UserError: one does.
    """
    for override, key in given_keys(overrides):
        section, _, name = key.partition(".")
        if name in keys.get(section, {}):
            raise UserError(f"{override}: an option of this command gives {key}, too; leave one of them out")


def check_text_options(
    overrides: Optional[list[str]],
    *,
    selector: Optional[list[Any]],
    k: Optional[str],
    seed: Optional[int],
) -> None:
    """Check the overrides of a command that measures one text, whose selectors are those of ``--selector`` or its own.

    Raises:
        UserError: one gives selectors, or what an option gives, too.
    """
    options = {"selectors": selector or None, "k": k, "seed": seed}
    check_given_once(overrides, {"influence": {name: given for name, given in options.items() if given is not None}})
    for override, key in given_keys(overrides):
        if key == "influence.selectors":
            raise UserError(f"{override}: this command measures the selectors that --selector names; use that")


def resolve(
    config: Optional[Path],
    run: Optional[Path],
    *,
    overrides: Optional[list[str]],
    model: Optional[str] = None,
    revision: Optional[str] = None,
    keys: Optional[Keys] = None,
) -> Named:
    """Return what a command's options name. The file is that of ``--config``, else the folder's own, else a shipped one.

    Raises:
        UserError: the configuration is unusable, or a key is given together with an option that stands for it.
    """
    options = {"pretrained.model": model, "pretrained.revision": model or revision}
    for override, key in given_keys(overrides):
        if options.get(key) is not None:
            beside = "--revision" if model is None else "--model"
            raise UserError(f"{override}: beside {beside} there is no {key}; use the options --model and --revision")
    check_given_once(overrides, keys or {})
    overrides, keys = overrides or [], keys or {}
    if config is not None and revision is None:
        of_file = load_config(config, overrides).pretrained
        revision = of_file.revision if of_file.model == model else None
    named = {name: given for name, given in {"model": model, "revision": revision}.items() if model or given}
    flat = {f"{section}.{name}": value for section, of in keys.items() for name, value in of.items()}
    flat |= {f"pretrained.{name}": value for name, value in named.items()}
    default = shipped("demo") if model is None else shipped("pretrained")
    folder = run
    if folder is None and model is not None:
        folder = RUNS / load_config(config or default, overrides, flat).pretrained.folder_name
    if config is None:
        config = default
        if folder is not None and (folder / "config.yaml").is_file():
            config = folder / "config.yaml"
    loaded = load_config(config, overrides, flat)
    if folder is None:
        folder = RUNS / (loaded.name if loaded.pretrained.model is None else loaded.pretrained.folder_name)
    return Named(loaded, folder, config)
