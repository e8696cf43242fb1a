"""How many tokens are enough: to give back half of the gain on average, or to predict as all tokens do nine times of ten."""

from __future__ import annotations

from typing import Optional

import pandas as pd

from olmo_sparsity.statistics.quantities import FEW, Gate, first_blind, gate, pick, shown_ks, side_of_zero
from olmo_sparsity.statistics.spectrum import TOLERANCE

HALF, MOST = 0.5, 0.9  # of the gain, and of the predictions, is enough
WORST: tuple[Gate, ...] = ("not applicable", "too few", "below", "unclear")


def share_at(frame: pd.DataFrame, name: str, selector: Optional[str], k: int, of: str = "real") -> Optional[pd.Series]:
    """R(k), or the share of the predictions that need at most k tokens at the shown tolerance, in a context."""
    x = TOLERANCE if name == "spectrum_share" else None
    return pick(frame, name, selector=selector, context=of, k=k, x=x)


def _side(row: Optional[pd.Series], level: float) -> Gate:
    return side_of_zero(None if row is None else {end: row[end] - level for end in ("low", "high")})


def few(frame: pd.DataFrame, *, of_targets: bool = False) -> tuple[Optional[int], Gate]:
    """The smallest few tokens that are enough, else the most that are still few; and whether they are enough.

    On average: k tokens give back half of the gain, and choosing them beats random tokens, by more than in the null context.
    Of targets: k tokens suffice for most predictions, and as many random or nearest ones for fewer.
    """
    selector, passed, sides = first_blind(frame), gate(frame), dict[int, Gate]()
    if passed != "above" or selector is None:
        return None, "too few" if passed == "too few" else "not applicable"
    for k in shown_ks(frame):
        if of_targets:
            share, *others = (share_at(frame, "spectrum_share", of, k) for of in (selector, "random", "nearest"))
            found = [_side(share, MOST), *(_side(share, other["high"]) for other in others if other is not None)]
        else:
            gains = ("gain_over_random_nats", "excess_over_random_nats")
            over_random = [pick(frame, name, selector=selector, context="real", k=k) for name in gains]
            found = [_side(share_at(frame, "recovered_fraction", selector, k), HALF), *map(side_of_zero, over_random)]
        if k <= FEW * frame.attrs["num_units"]:  # a measurement of large k alone shows the smallest of them
            sides[k] = next((one for one in WORST if one in found), "above")
    best = next((k for k in sides if sides[k] == "above"), max(sides, default=None))
    return (None, "not applicable") if best is None else (best, sides[best])
