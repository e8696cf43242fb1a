"""Figures that are drawn, but neither laid out nor rendered, which takes seconds: their files are those of an empty picture.

A PNG has the caption in its metadata, as those of Matplotlib have, and beside it the style that the figure was drawn in.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, BinaryIO

from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.transforms import Bbox
from PIL import Image, PngImagePlugin


def _savefig(_: Figure, file: BinaryIO, *, format: str = "png", metadata: dict[str, Any] = {}, **options: Any) -> None:  # noqa: B006
    if format == "png":
        chunks = PngImagePlugin.PngInfo()
        style = json.dumps(dict(rcParams), default=str)
        for key, text in {"Software": "Matplotlib version 0", **metadata, "Style": style}.items():
            chunks.add_text(key, text)
        Image.new("1", (1, 1)).save(file, "png", pnginfo=chunks)
    elif format == "svg":
        file.write(b'<svg viewBox="0 0 1 1"></svg>')
    else:
        file.write(f"/Producer (Matplotlib 0)\n/Subject ({metadata['Subject']})\n".encode())


QUICK: dict[tuple[type, str], Any] = {
    (ConstrainedLayoutEngine, "execute"): lambda *_: None,
    (Figure, "draw_without_rendering"): lambda _: None,
    (Figure, "get_tightbbox"): lambda _: Bbox.unit(),
    (Figure, "savefig"): _savefig,
}


def draw_quickly() -> None:
    """Draw all figures of this process so."""
    for (of, name), quick in QUICK.items():
        setattr(of, name, quick)


def style_of(picture: Path) -> str:
    """Return the style in which a figure was drawn quickly."""
    with Image.open(picture) as image:
        return str(image.text["Style"])  # type: ignore[attr-defined]
