"""Figures that are drawn, but neither laid out nor made a picture of, which takes seconds: their files hold the style."""

from __future__ import annotations

import json

from matplotlib import rcParams
from matplotlib.figure import Figure
from matplotlib.transforms import Bbox

QUICK = {
    "draw_without_rendering": lambda _: None,
    "get_tightbbox": lambda _: Bbox.unit(),
    "savefig": lambda _, file, **options: file.write(json.dumps(dict(rcParams), default=str).encode()),
}


def draw_quickly() -> None:
    """Draw all figures of this process so."""
    for name, quick in QUICK.items():
        setattr(Figure, name, quick)
