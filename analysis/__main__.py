"""Draws every figure of a measurement."""

from __future__ import annotations

from analysis import distance, figure4, figure5, recovered_fraction
from analysis.style import script

if __name__ == "__main__":
    script(figure4.draw, figure5.draw, recovered_fraction.draw, distance.draw)
