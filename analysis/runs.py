"""What the figures of whole runs, one or several, share: looks and a command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from olmo_sparsity.errors import UserError

from .paper import Width, folder_for, set_width
from .style import WidthOption

RUN_LOOKS: tuple[dict[str, Any], ...] = (
    {"color": "#0072B2", "marker": "o", "linestyle": "-"},
    {"color": "#D55E00", "marker": "s", "linestyle": "--"},
    {"color": "#009E73", "marker": "^", "linestyle": "-."},
    {"color": "#CC79A7", "marker": "D", "linestyle": ":"},
)


def script_of_runs(draw: Callable[[list[Path], Path], list[Path]]) -> None:
    """The command line of a figure that is drawn of runs."""

    def command(
        run: Annotated[list[Path], typer.Option(help="Folder of a run; may be given again.")] = [Path("runs/demo")],  # noqa: B006
        out: Annotated[Optional[Path], typer.Option(help="Where to. Default: figures/ of the first run.")] = None,
        width: WidthOption = Width.screen,
    ) -> None:
        set_width(width)
        first = run[0] if run[0].exists() else Path(str(run[0]).rpartition(":")[0])  # RUN:SELECTOR
        try:
            for path in draw(run, folder_for(out or first / "figures")):
                print(path)
        except UserError as error:
            typer.echo(f"analysis: error: {error}", err=True)
            raise typer.Exit(2) from None

    typer.run(command)
