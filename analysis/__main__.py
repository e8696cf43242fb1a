"""Draws every figure of a measurement."""

from __future__ import annotations

from analysis import agreement, classes, distance, figure4, figure5, recovered_fraction, sample_size
from analysis.style import script

if __name__ == "__main__":
    script(
        figure4.draw,
        figure5.draw,
        recovered_fraction.draw,
        distance.draw,
        classes.draw,
        agreement.draw,
        sample_size.draw,
    )
