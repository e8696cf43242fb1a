"""Options and arguments that several commands share, and the configuration that results from them."""

from __future__ import annotations

import dataclasses
import re
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from olmo_sparsity.config import SELECTORS, Config
from olmo_sparsity.config.files import load_config
from olmo_sparsity.errors import UserError

SelectorName = Enum("SelectorName", {name: name for name in (*SELECTORS, "all")}, type=str)  # type: ignore[misc]


class PathName(str, Enum):
    compact = "compact"
    plain = "plain"
    masked = "masked"


class Precision(str, Enum):
    fp32 = "fp32"
    bf16 = "bf16"


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
        "--config", metavar="FILE", help="YAML configuration. Default: the run's own, otherwise configs/demo.yaml."
    ),
]
RunOption = Annotated[
    Optional[Path], typer.Option("--run", metavar="DIR", help="Folder of the run. Default: runs/NAME.")
]
Overrides = Annotated[
    Optional[list[str]],
    typer.Argument(metavar="[KEY=VALUE]...", help="Changes to the configuration, such as training.steps=200."),
]
OverwriteOption = Annotated[bool, typer.Option("--overwrite", help="Delete earlier results and start again.")]
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


def resolve(config: Optional[Path], run: Optional[Path], *, overrides: Optional[list[str]]) -> tuple[Config, Path]:
    """Return (the configuration, the folder of the run) that a command's options name."""
    if config is None and run is not None and (run / "config.yaml").is_file():
        config = run / "config.yaml"
    loaded = load_config(config, overrides or [])
    return loaded, run if run is not None else Path("runs") / loaded.name


def with_options(section: Any, given: dict[str, Any]) -> Any:
    """Return a section of the configuration, changed by the options that were given (not None) on the command line."""
    return dataclasses.replace(section, **{key: value for key, value in given.items() if value is not None})


def selector_names(selectors: Optional[list[SelectorName]]) -> Optional[list[str]]:
    """Return the selectors that ``--selector`` names, each once; None if it was not given."""
    if not selectors:
        return None
    names = [selector.value for selector in selectors]
    return list(SELECTORS) if "all" in names else list(dict.fromkeys(names))


def parse_k(text: str) -> list[int]:
    """Return the values of k: ``8`` -> [1, 2, 4, 8]; ``6`` -> [1, 2, 4, 6]; ``1,3,5`` -> [1, 3, 5].

    Raises:
        UserError: ``text`` is neither a number nor a list of numbers.
    """
    if not re.fullmatch(r"\d+(,\d+)*,?", text):
        raise UserError(
            f"--k {text}: must be a number, such as 8 (which measures 1, 2, 4, 8), or a list, such as 1,3,5"
        )
    values = [int(part) for part in text.split(",") if part]
    if "," in text:
        return sorted(set(values))
    powers = [2**i for i in range(values[0].bit_length()) if 2**i < values[0]]
    return [*powers, values[0]]
