"""Draw every figure of a measurement."""

from __future__ import annotations

from .drawing import FigureOfMeasurement, command_of
from .every_figure import figures_of

if __name__ == "__main__":
    command_of(figures_of(FigureOfMeasurement))
