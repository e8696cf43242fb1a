"""Draw one figure: ``python -m analysis FIGURE [--run DIR ...] [--tables DIR] [--selector NAME] [--out DIR]``."""

from __future__ import annotations

import argparse
import inspect
from pathlib import Path
from typing import Any, NoReturn, Optional

from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.statistics.quantities import read_estimates
from olmo_sparsity.tables import figures_folder, find_tables

from .drawing import by_name, figure_module, figure_names, save

DEFAULT_RUN = Path("runs/demo")


class Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        """End with one line and exit code 2."""
        self.exit(2, f"analysis: error: {printable(message)}\n")


def draw(
    name: str, runs: list[Path], tables: Optional[Path], selector: Optional[str], out: Optional[Path]
) -> list[Path]:
    """Draw a figure; returns the paths of its files."""
    module = figure_module(name)
    options: dict[str, Any] = {}
    if selector is not None:
        if "selector" not in inspect.signature(module.figure).parameters:
            raise UserError(f"--selector {selector}: {name} is not a figure of one selector")
        options["selector"] = selector
    if module.NEEDS in ("run", "runs"):
        if tables is not None:
            raise UserError(f"--tables {tables}: {name} is a figure of runs; name them with --run")
        source: Any = runs
        out = out or runs[0] / "figures"
    else:
        if len(runs) > 1:
            raise UserError(f"--run {runs[1]}: {name} is a figure of one measurement")
        source = tables = tables or find_tables(runs[0])
        out = out or figures_folder(tables)
        if module.NEEDS == "frame":
            source = read_estimates(tables)
    drawn = by_name(module.figure(source, **options), name)
    return [path for own_name, figure in drawn.items() for path in save(figure, own_name, out)]


def main() -> None:
    """Draw the figure that the command line names, and print where it is."""
    parser = Parser(prog="python -m analysis", description="Draw one figure, and print where it is.")
    parser.add_argument("figure", help=", ".join(figure_names()))
    parser.add_argument("--run", type=Path, action="append", help="folder of a run; repeat it for several")
    parser.add_argument("--tables", type=Path, help="folder of a measurement; default: the newest of the run")
    parser.add_argument("--selector", help="of a figure of one selector")
    parser.add_argument("--out", type=Path, help="folder for the files; default: figures/ of the run")
    given = parser.parse_args()
    try:
        for path in draw(given.figure, given.run or [DEFAULT_RUN], given.tables, given.selector, given.out):
            print(printable(str(path)))
    except UserError as error:
        parser.error(str(error))
    except OSError as error:
        if error.errno is None:
            raise
        parser.error(f"{error.filename or 'a file'}: {error.strerror}")


if __name__ == "__main__":
    main()
