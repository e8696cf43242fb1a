"""Labels beside the right ends of lines, in place of a legend."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes

LINE_HEIGHT = 0.075  # of a line of a label, as a share of a small panel


@dataclass(frozen=True)
class EndLabel:
    """A label beside the right end of a line.

    Attributes:
        y: where the line ends, in data coordinates.
        words: the label.
        color: that of the line.
    """

    y: float
    words: str
    color: str


def label_line_ends(axis: Axes, labels: Sequence[EndLabel]) -> None:
    """Write labels to the right of a panel whose limits are set, in the order of the lines' ends, none over another."""
    low, high = axis.get_ylim()
    in_order = sorted(labels, key=lambda label: label.y)
    heights = np.array([LINE_HEIGHT * (label.words.count("\n") + 1) for label in in_order])
    wanted = np.clip([(label.y - low) / (high - low) for label in in_order], 0, 1)
    places = wanted.copy()
    for i in range(1, len(places)):  # from below: each at least its height above the one before it
        places[i] = max(places[i], places[i - 1] + (heights[i - 1] + heights[i]) / 2)
    excess = max(0.0, places[-1] + heights[-1] / 2 - 1.05)
    for i in range(len(places) - 1, -1, -1):  # from above: none beyond the top
        above = places[i + 1] - (heights[i] + heights[i + 1]) / 2 if i + 1 < len(places) else places[i] - excess
        places[i] = min(places[i], above)
    for label, place in zip(in_order, places, strict=True):
        axis.annotate(
            label.words, (1.02, place), xycoords="axes fraction", color=label.color, fontsize="small", va="center",
            ha="left", linespacing=1.0, annotation_clip=False,
        )  # fmt: skip
