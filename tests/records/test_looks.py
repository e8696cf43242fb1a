"""Colours of selectors can be told apart, also by those who do not see red or green.

How they see colours is simulated as Machado, Oliveira and Fernandes (2009) do, at full severity: matrices for linear RGB, Table 1
of https://www.inf.ufrgs.br/~oliveira/pubs_files/CVD_Simulation/CVD_Simulation.html. Distances are those of CIE 1976 (Lab, D65).
"""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from matplotlib.markers import MarkerStyle

from olmo_sparsity.records.selectors import MAIN_SELECTORS, SELECTORS

VISION = {
    "trichromat": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
TO_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
WHITE = TO_XYZ @ np.ones(3)
LEAST = 20.0  # 2.3 is just noticeable side by side; thin lines and small marks need far more
DRAWN_TOGETHER = [
    name for name, selector in SELECTORS.items() if not (selector.on_request or selector.by_name_only)
]  # unless others are named
GROUNDS = {"on_light": "#ffffff", "on_dark": "#15191e"}


def linear(color: str) -> np.ndarray:
    values = np.array([int(color[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    t = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    x, y, z = np.where(t > (6 / 29) ** 3, np.cbrt(t), t / (3 * (6 / 29) ** 2) + 4 / 29)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def distance(first: str, second: str, vision: str) -> float:
    one, other = (lab(VISION[vision] @ linear(color)) for color in (first, second))
    return float(np.linalg.norm(one - other))


def test_the_simulation_is_the_published_one() -> None:
    """Neutral colours stay as they are, pure red turns dark yellow, and red and green come close; of Lab the known values."""
    for vision, matrix in VISION.items():
        assert matrix @ np.ones(3) == pytest.approx(np.ones(3), abs=1e-5), vision
    assert lab(linear("#ffffff")) == pytest.approx([100, 0, 0], abs=0.01)
    assert lab(linear("#ff0000")) == pytest.approx([53.24, 80.09, 67.20], abs=0.02)
    assert lab(linear("#0000ff")) == pytest.approx([32.30, 79.19, -107.86], abs=0.02)
    assert distance("#c00000", "#4d7300", "trichromat") > 90 > 40 > distance("#c00000", "#4d7300", "deuteranopia")


@pytest.mark.parametrize("vision", VISION)
@pytest.mark.parametrize("ground", ["color", *GROUNDS])
def test_selectors_that_are_drawn_together_have_colours_that_stay_apart(ground: str, vision: str) -> None:
    assert set(MAIN_SELECTORS) <= set(DRAWN_TOGETHER) and len(DRAWN_TOGETHER) >= 6
    colours = {name: getattr(SELECTORS[name].look, ground) for name in DRAWN_TOGETHER}
    least = LEAST if ground == "color" else 0.8 * LEAST  # on a page, each also has its name beside it
    for (first, one), (second, other) in combinations(colours.items(), 2):
        assert distance(one, other, vision) >= least, (first, second)


def test_no_marker_is_a_line_which_an_error_bar_hides() -> None:
    for name, selector in SELECTORS.items():
        marker = MarkerStyle(selector.look.marker)
        box = marker.get_path().transformed(marker.get_transform()).get_extents()
        assert min(box.width, box.height) > 0.2, name


@pytest.mark.parametrize("ground", GROUNDS)
def test_colours_stand_out_from_the_ground_of_a_page(ground: str) -> None:
    """3 to 1, as WCAG 2.1 asks of graphics (1.4.11)."""
    weights = TO_XYZ[1]
    below = float(weights @ linear(GROUNDS[ground]))
    for name, selector in SELECTORS.items():
        own = float(weights @ linear(getattr(selector.look, ground)))
        bright, dark = max(own, below), min(own, below)
        assert (bright + 0.05) / (dark + 0.05) >= 3, name
