"""What the figure of planted tokens inside a row and beyond it draws, under which label."""

from __future__ import annotations

import numpy as np
import pytest
from matplotlib import pyplot as plt
from matplotlib.collections import PathCollection
from matplotlib.colors import same_color, to_rgb

from analysis.inside_and_beyond import draw_inside_and_beyond
from olmo_sparsity.statistics.inside_and_beyond import InARow, InsideAndBeyond, Twin
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.synthetic import Setting

SETTING = Setting("parity", False, "pose", max_sparsity=2, train_lengths=(3, 6), max_position=14, modulus=4)


def cell(k: int, inside: float, beyond: float) -> InsideAndBeyond:
    return InsideAndBeyond(
        SETTING, 12, k, (0, 1), (inside + 0.02, inside - 0.03), (beyond + 0.04, beyond - 0.05), (0, 1), (0, 1),
        Estimate(inside, inside - 0.06, inside + 0.07, 0.03), Estimate(beyond, beyond - 0.08, beyond + 0.09, 0.04),
        Estimate(beyond - inside, beyond - inside - 0.1, beyond - inside + 0.1, 0.05), None,
    )  # fmt: skip


def test_each_place_has_its_accuracies_intervals_and_seeds() -> None:
    """Three k side by side, whose numbers are not their places; no two accuracies are alike."""
    cells = (cell(1, 0.81, 0.71), cell(2, 0.72, 0.52), cell(5, 0.43, 0.33))
    twin = Twin(6, 40, cells, tuple(InARow(SETTING, one.k, one.inside) for one in cells), ())
    figure = draw_inside_and_beyond(twin).figure
    (axis,) = figure.axes
    drawn = {str(container.lines[0].get_color()): container for container in axis.containers}
    labels = {str(line.get_color()): line.get_label() for line in figure.legends[0].get_lines()}
    for place in ("inside", "beyond"):
        (colour,) = (colour for colour, label in labels.items() if label == f"values {place} the row")
        line, _, (bars,) = drawn[colour].lines
        x, y = np.asarray(line.get_data(), dtype=float)
        np.testing.assert_allclose(y, [getattr(one, place).mean for one in cells])
        np.testing.assert_allclose(x, np.arange(3), atol=0.2)
        assert (x < np.arange(3)).all() if place == "inside" else (x > np.arange(3)).all()
        for number, (one, ((left, low), (right, high))) in enumerate(zip(cells, bars.get_segments(), strict=True)):
            estimate = getattr(one, place)
            assert (low, high) == pytest.approx((estimate.low, estimate.high))
            assert left == right == x[number]
    dots = [points for points in axis.collections if isinstance(points, PathCollection)]
    drawn_seeds = [
        (labels[colour], *map(float, at))
        for points in dots
        for colour in labels
        for at in np.asarray(points.get_offsets())
        if same_color(points.get_facecolor()[0, :3], to_rgb(colour))
    ]
    expected = [
        (f"values {place} the row", number + aside, share)
        for number, one in enumerate(cells)
        for place, aside in (("inside", -0.08), ("beyond", 0.08))
        for share in getattr(one, f"{place}_of_seeds")
    ]
    assert sorted(drawn_seeds) == [(place, pytest.approx(x), share) for place, x, share in sorted(expected)]
    assert [label.get_text() for label in axis.get_xticklabels()] == ["1", "2", "5"]
    assert axis.patches[0].get_x() + axis.patches[0].get_width() == 1.5  # training had the first two k
    assert [line.get_ydata()[0] for line in axis.lines if line.get_linestyle() == ":"] == [
        0.25
    ]  # chance of one in four
    plt.close(figure)
