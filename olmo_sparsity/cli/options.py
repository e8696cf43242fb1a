"""Options and arguments that several commands share, and the configuration that results from them."""

from __future__ import annotations

import dataclasses
import re
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from olmo_sparsity.config import SCREEN_RANKINGS, Config, PretrainedConfig
from olmo_sparsity.config.files import load_config, pretrained_config_path
from olmo_sparsity.errors import UserError
from olmo_sparsity.records.selectors import SELECTORS

RUNS = Path("runs")
SelectorName = Enum("SelectorName", {name: name for name in (*SELECTORS, "all")}, type=str)  # type: ignore[misc]


class PathName(str, Enum):
    compact = "compact"
    plain = "plain"
    masked = "masked"


class Precision(str, Enum):
    auto = "auto"
    fp32 = "fp32"
    bf16 = "bf16"


class VisibilityName(str, Enum):
    hidden = "hidden"
    contextual = "contextual"


class AnchorName(str, Enum):
    auto = "auto"
    bos = "bos"
    none = "none"


class ContextName(str, Enum):
    real = "real"
    null = "null"


class FigureWidth(str, Enum):
    screen = "screen"
    one = "one"
    two = "two"


ConfigOption = Annotated[
    Optional[Path],
    typer.Option(
        "--config",
        metavar="FILE",
        help="YAML configuration. Default: the run's own, otherwise configs/demo.yaml, or with --model configs/pretrained.yaml.",
    ),
]
TaskConfigOption = Annotated[
    Optional[Path],
    typer.Option(
        "--config",
        metavar="FILE",
        help="YAML configuration. Default: the run's own, otherwise configs/synthetic/TASK.yaml.",
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
        help="A pretrained model in place of a run: a Hugging Face folder or name, a .gguf file, an OLMo checkpoint folder.",
    ),
]
RevisionOption = Annotated[
    Optional[str], typer.Option("--revision", metavar="REV", help="Branch, tag or commit of --model on the hub.")
]
UnitOption = Annotated[
    Optional[str],
    typer.Option(
        "--unit",
        metavar="UNIT",
        help="What is unmasked and counted: token, word, sentence, or block:N, N tokens each. Default: token.",
    ),
]
VisibilityOption = Annotated[
    Optional[VisibilityName],
    typer.Option(
        "--visibility",
        help="hidden: hidden tokens are seen by no token. contextual: only the local tokens do not see them.",
        show_default=False,
    ),
]
AnchorOption = Annotated[
    Optional[AnchorName],
    typer.Option(
        "--anchor",
        help="A first token that every token sees. Default (auto): bos for a run, or a checkpoint or an export of one, trained "
        "with one, and for any other pretrained model whose tokenizer adds one or under contextual.",
        show_default=False,
    ),
]
LocalLenOption = Annotated[
    Optional[int], typer.Option("--local-len", metavar="N", help="Local tokens. Default: those of the run.")
]
FullLenOption = Annotated[
    Optional[int],
    typer.Option("--full-len", metavar="N", help="Length of the full context. Default: that of the run."),
]
Overrides = Annotated[
    Optional[list[str]],
    typer.Argument(metavar="KEY=VALUE", help="Changes to the configuration, such as training.steps=200."),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Delete earlier results and start again.")]
TrainOption = Annotated[
    bool,
    typer.Option(
        "--train",
        help="Train the run first if it is not trained. Without it, only the run that the configuration names, runs/NAME.",
    ),
]
ShardOption = Annotated[
    Optional[str],
    typer.Option("--shard", metavar="I/N", help="Measure only share I of N equal shares, I from 0 to N - 1."),
]
NumWindowsOption = Annotated[Optional[int], typer.Option("--num-windows", help="Windows to measure.")]
SelectorOption = Annotated[
    Optional[list[SelectorName]],
    typer.Option(
        "--selector",
        help="Selector to measure; repeat the option for several. Default: those of the configuration.",
        show_default=False,
    ),
]
DataOption = Annotated[
    Optional[str],
    typer.Option("--data", metavar="SOURCE", help="Text to measure: builtin, c4, or a file, folder or glob."),
]


def resolve(
    config: Optional[Path],
    run: Optional[Path],
    *,
    overrides: Optional[list[str]],
    model: Optional[str] = None,
    revision: Optional[str] = None,
) -> tuple[Config, Path]:
    """Return (the configuration, the folder of the run or of a model's results) that a command's options name.

    Raises:
        UserError: the configuration is unusable, or ``--model`` is given together with a key that names a model.
    """
    for override in overrides or []:
        key = override.partition("=")[0]
        if model is not None and key in ("pretrained.model", "pretrained.revision"):
            raise UserError(f"{override}: beside --model there is no {key}; use the options --model and --revision")
    loaded = None if config is None else load_config(config, overrides or [])
    if loaded is not None and revision is None and loaded.pretrained.model == model:
        revision = loaded.pretrained.revision
    pretrained = PretrainedConfig(model, revision) if model is not None else None
    folder = run
    if folder is None and pretrained is not None:
        folder = RUNS / pretrained.folder_name
    if loaded is None:
        if folder is not None and (folder / "config.yaml").is_file():
            config = folder / "config.yaml"
        elif pretrained is not None:
            config = pretrained_config_path()
        loaded = load_config(config, overrides or [])
    if pretrained is not None or revision is not None:
        named: dict[str, Any] = {"model": model or loaded.pretrained.model, "revision": revision}
        loaded = dataclasses.replace(loaded, pretrained=dataclasses.replace(loaded.pretrained, **named))
    if folder is None:
        folder = RUNS / (loaded.name if loaded.pretrained.model is None else loaded.pretrained.folder_name)
    return loaded, folder


def with_options(section: Any, given: dict[str, Any]) -> Any:
    """Return a section of the configuration, changed by the options that were given (not None) on the command line."""
    return dataclasses.replace(section, **{key: value for key, value in given.items() if value is not None})


def definition(
    local_len: Optional[int],
    full_len: Optional[int],
    *,
    visibility: Optional[VisibilityName],
    anchor: Optional[AnchorName],
) -> dict[str, Any]:
    """Return the keys of ``influence`` that define the losses, as options give them."""
    return {
        "local_len": local_len,
        "full_len": full_len,
        "visibility": visibility and visibility.value,
        "anchor": anchor and anchor.value,
    }


def selector_names(selectors: Optional[list[SelectorName]]) -> Optional[list[str]]:
    """Return the selectors that ``--selector`` names, each once; None if it was not given."""
    if not selectors:
        return None
    names = [selector.value for selector in selectors]
    return list(SELECTORS) if "all" in names else list(dict.fromkeys(names))


def parse_screen(text: str) -> dict[str, Any]:
    """Return the keys of ``influence`` that ``--screen`` gives: ``64``, or ``hierarchy:64``.

    Raises:
        UserError: ``text`` is neither.
    """
    ranking, colon, number = text.rpartition(":")
    if (colon and ranking not in SCREEN_RANKINGS) or not re.fullmatch(r"[1-9]\d{0,8}", number):
        raise UserError(
            f"--screen {text}: must be a number of tokens, such as 64, or a ranking and a number, such as hierarchy:64; the "
            f"rankings are {', '.join(SCREEN_RANKINGS)}"
        )
    return {"screen": int(number), "screen_by": ranking or None}


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
    powers = [2**i for i in range(values[0].bit_length()) if 2**i < values[0]]
    return [*powers, values[0]]
