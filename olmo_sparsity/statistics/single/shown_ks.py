"""Which of the measured k stand where there is no room for all: in short tables, sentences, and figures of one k.

Where k is all long-range tokens, every selector chooses the same, and R(k) and D(k) are 1 by definition. So that k is none of
them, nor are those of most tokens, as far as smaller ones were measured.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

FEW = 0.25  # of the long-range tokens: chosen ones that are more than this share of them are not few
DEFAULT_K = 8  # the largest k that is measured where none is asked for; it is shown of a small number of tokens, too
LEAST, MOST = 2, 4  # k that are shown, where as many were measured
APART = 4  # times the one before


def few_ks(ks: Sequence[int], num_units: float) -> list[int]:
    """Return the measured k up to a quarter of all, or up to ``DEFAULT_K``; at least the two smallest that are not all.

    Args:
        ks: the measured k, rising.
        num_units: mean number of long-range tokens of a window, or of groups of them.
    """
    some = [k for k in ks if k < num_units] or list(ks[:1])
    few = [k for k in some if k <= max(FEW * num_units, DEFAULT_K)]
    return few if len(few) >= LEAST else some[:LEAST]


def quarter_ks(ks: Sequence[int], num_units: float) -> list[int]:
    """Return the k up to a quarter of all; where none is so small, the smallest."""
    return [k for k in ks if k <= FEW * num_units] or list(ks[:1])


def spread_ks(ks: Sequence[int], most: int) -> list[int]:
    """Return at most so many of some rising k, the smallest and the largest among them, evenly spaced by their logarithms."""
    return sorted({min(ks, key=lambda k: abs(np.log(k / aim))) for aim in np.geomspace(ks[0], ks[-1], most)})


def shown_ks(ks: Sequence[int], num_units: float) -> list[int]:
    """Return the smallest and the largest of ``few_ks``, up to two between, each about four times the one before, and the largest
    up to a quarter of all, of which conclusions about few are."""
    few = few_ks(ks, num_units)
    number = sum(few[-1] >= few[0] * APART**power for power in range(MOST))
    return sorted({*spread_ks(few, max(LEAST, number)), quarter_ks(few, num_units)[-1]})
