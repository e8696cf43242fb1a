"""Looks and command line of the figures that are drawn from whole runs, one or several."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from olmo_sparsity.errors import UserError

from .measured import WidthOption
from .mistakes import mistakes_in_one_line
from .paper import Width, drawn_for, folder_for

RUN_LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    {"color": "#009E73", "marker": "^", "linestyle": "-."},
    {"color": "#CC79A7", "marker": "D", "linestyle": ":"},
    {"color": "#E69F00", "marker": "v", "linestyle": "-"},
    {"color": "#56B4E9", "marker": "P", "linestyle": "--"},
    {"color": "#332288", "marker": "X", "linestyle": "-."},
    {"color": "#000000", "marker": "*", "linestyle": ":"},
)


def looks_of_runs(number: int) -> tuple[dict[str, Any], ...]:
    """Return the looks of so many runs or models in one figure.

    Raises:
        UserError: they cannot be told apart.
    """
    if number > len(RUN_LOOKS):
        raise UserError(f"{number} runs or models in one figure: at most {len(RUN_LOOKS)} can be told apart")
    return RUN_LOOKS[:number]


def script_of_runs(draw: Callable[[list[Path], Path], list[Path]]) -> None:
    """Run the command line of a figure that is drawn from runs."""

    def command(
        run: Annotated[list[Path], typer.Option(help="Folder of a run; may be repeated.")] = [Path("runs/demo")],  # noqa: B006
        out: Annotated[
            Optional[Path], typer.Option(help="Folder for the pictures. Default: figures/ of the first run.")
        ] = None,
        width: WidthOption = Width.screen,
    ) -> None:
        first = run[0] if run[0].exists() else Path(str(run[0]).rpartition(":")[0])  # RUN:SELECTOR
        with mistakes_in_one_line(), drawn_for(width):
            for path in draw(run, folder_for(out or first / "figures")):
                print(path)

    typer.run(command)
