"""The pictures in docs/images/, from what the demo's runs hold: ``make gallery``.

Copies the newest figures, and prints what each shows, for the alternative text of the page that holds it. Takes a picture of the
report in Chromium, if that is installed. Pictures of figures that have not been drawn are not changed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import numpy as np
import typer
from matplotlib import image
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


def picture_of_page(page: Path, out: Path) -> None:
    """Take a picture of the top of the report, and beside it of its windows with a few tokens unmasked."""
    from playwright.sync_api import sync_playwright

    halves = [out.with_name(f"{out.stem}-{half}.png") for half in ("left", "right")]
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 820, "height": 836})
        view.goto(page.resolve().as_uri())
        view.wait_for_selector("#figure4 svg")
        view.screenshot(path=halves[0])
        view.locator("#k").fill("2")
        view.locator("#filter-box summary").click()
        view.locator("#windows-title").evaluate("element => element.scrollIntoView({behavior: 'instant'})")
        view.evaluate("window.scrollBy({top: -80, behavior: 'instant'})")  # the bar at the top covers 80 pixels
        view.wait_for_timeout(500)
        view.screenshot(path=halves[1])
        browser.close()
    image.imsave(out, np.concatenate([image.imread(half) for half in halves], axis=1))
    for half in halves:
        half.unlink()


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
    page = figures / "report.html"
    if page.is_file() and shutil.which("chromium"):
        picture_of_page(page, DOCS / "report.png")
        print(DOCS / "report.png")


if __name__ == "__main__":
    run_command(gallery)
