"""The pictures in docs/images/, from what the demo's runs hold: ``make gallery``.

Copies the newest figures, and prints what each shows, for the alternative text of the page that holds it. Pictures of figures
that have not been drawn are not changed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer
from PIL import Image

from olmo_sparsity.tables.reading import figures_folder, newest_finished

from .drawing import mistakes_in_one_line, run_command

DOCS = Path("docs/images")
# Name in docs/images/ -> path of a picture that is no figure of the run, or one of several; {figures}: of its newest measurement.
PICTURES = {
    "demo-figure4": "{figures}/figure4-unmask-one.png",
    "demo-context-curve": "runs/figures/context-curve.png",
    "demo-scale": "runs/scale/figures/scale.png",
    "hypothesis": "runs/hypothesis/figures/hypothesis.png",
    "inside-and-beyond": "runs/twin/figures/inside-and-beyond.png",
    "engine": "benchmarks/results/methods.png",
}


def pictures_of(run: Path, figures: Path) -> dict[str, Path]:
    """Return the path of each picture by its name in docs/images/: those above, and the other figures of the run."""
    paths = {name: Path(pattern.format(figures=figures)) for name, pattern in PICTURES.items()}
    drawn = [path for folder in (figures, run / "figures") for path in sorted(folder.glob("*.png"))]
    for path in drawn:
        if not path.stem.startswith("figure4-"):  # one for each selector
            paths.setdefault(f"demo-{path.stem}", path)
    return paths


def finding_in(picture: Path) -> str:
    """Return the title in the metadata of a picture: what it shows, for the alternative text of the page that holds it."""
    with Image.open(picture) as opened:
        return str(opened.info.get("Title", ""))


def gallery(run: Annotated[Path, typer.Option(help="The demo's run.")] = Path("runs/demo")) -> None:
    """Update the pictures in docs/images/."""
    with mistakes_in_one_line():
        figures = figures_folder(run, newest_finished(run))
        for name, source in pictures_of(run, figures).items():
            if source.is_file():
                shutil.copyfile(source, DOCS / f"{name}.png")
            print(
                f"{DOCS / name}.png", finding_in(source) if source.is_file() else f"not changed: there is no {source}"
            )


if __name__ == "__main__":
    run_command(gallery)
