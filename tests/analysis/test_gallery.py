"""The pictures of the documentation: which picture of which run each is, what is said of it, and the picture of the report."""

from __future__ import annotations

from pathlib import Path

from PIL import Image, PngImagePlugin

from analysis import gallery


def picture(path: Path, title: str | None, *, color: int = 0) -> Path:
    """Write a picture with a title, and with a description, in its metadata."""
    metadata = PngImagePlugin.PngInfo()
    metadata.add_text("Description", "the caption")
    if title is not None:
        metadata.add_text("Title", title)
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (3, 2), (color, color, color)).save(path, pnginfo=metadata)
    return path


def test_each_picture_has_its_own_source(tmp_path: Path) -> None:
    """A figure of the newest measurement comes before one of the run; of figure4 there is one for each selector."""
    run, figures = tmp_path / "run", tmp_path / "run" / "figures" / "newest"
    of_measurement = ("classes", "both", "figure4-kl", "figure4-unmask-one", "context-curve")
    for folder, names in ((figures, of_measurement), (run / "figures", ("training", "both", "figure4-kl"))):
        for name in names:
            picture(folder / f"{name}.png", name)
    assert gallery.pictures_of(run, figures) == {
        "demo-figure4": figures / "figure4-unmask-one.png",
        "demo-context-curve": Path("runs/figures/context-curve.png"),  # of several runs
        "demo-scale": Path("runs/scale/figures/scale.png"),
        "hypothesis": Path("runs/hypothesis/figures/hypothesis.png"),
        "inside-and-beyond": Path("runs/twin/figures/inside-and-beyond.png"),
        "engine": Path("benchmarks/results/methods.png"),
        "demo-both": figures / "both.png",
        "demo-classes": figures / "classes.png",
        "demo-training": run / "figures" / "training.png",
    }


def test_what_a_picture_shows_is_its_title(tmp_path: Path) -> None:
    assert gallery.finding_in(picture(tmp_path / "a.png", "Gains rise with k.")) == "Gains rise with k."
    assert gallery.finding_in(picture(tmp_path / "b.png", None)) == ""
