"""Draw every figure of a measurement."""

from __future__ import annotations

from .every_figure import MEASUREMENT_FIGURES
from .measured import script

if __name__ == "__main__":
    script(*MEASUREMENT_FIGURES)
