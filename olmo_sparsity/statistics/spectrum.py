"""The dependency spectrum: the smallest number of long-range tokens that suffices, over targets.

With the nested sets J_1, J_2, ... of a selector, k tokens suffice where ``KL(p_all, p_{J_k})`` is at most a tolerance. The
sufficient k of a target is the smallest measured k of which that holds (first passage): 0 where the local tokens suffice,
infinity where no measured k does. No label enters. It is an upper bound of the number of tokens that some choice needs.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from olmo_sparsity.statistics.frames import CONTEXTS, PREFIX, Frames
from olmo_sparsity.statistics.intervals import Estimates, Units, share_bands

TOLERANCES = (0.01, 0.05, 0.1, 0.5)  # nats; fixed before anything was measured, for every model alike
TOLERANCE = 0.05  # where there is room for one


def short_suffices(frames: Frames, context: str, tolerance: float) -> np.ndarray:
    """Whether the local tokens alone suffice, bool [W]."""
    return np.asarray(frames.windows[f"{PREFIX[context]}kl_short_nats"].to_numpy() <= tolerance)


def suffices(frames: Frames, tolerance: float = TOLERANCE) -> np.ndarray:
    """Whether at most k tokens suffice, bool [S, W]."""
    found = np.zeros(frames.divergence.shape, dtype=bool)
    for selector in frames.selectors.index:
        for context in CONTEXTS:
            rows = frames.rows(selector, context)
            some = (frames.divergence[rows] <= tolerance) | short_suffices(frames, context, tolerance)
            found[rows] = np.logical_or.accumulate(some, axis=0)
    return found


def shows_all(frames: Frames) -> np.ndarray:
    """Whether J_k is all long-range tokens in every window, bool [S]."""
    most = {context: of.max(initial=0) for context, of in frames.num_groups.items()}
    return np.asarray(frames.selections["k"] >= frames.selections["context"].map(most))


def spectrum(frames: Frames, units: Units) -> tuple[pd.DataFrame, Estimates]:
    """Shares of the targets whose sufficient k is at most k, with simultaneous bands over k.

    Returns:
        Rows of selector, context, k (0 and the measured k) and x (the tolerance in nats); and their estimates, one a row.
    """
    weight_W, ks = frames.windows["weight"].to_numpy(), [0, *frames.ks]
    curves, parts = [], []
    for tolerance in TOLERANCES:
        enough = suffices(frames, tolerance)
        for selector in frames.selectors.index:
            for context in CONTEXTS:
                some = np.vstack([short_suffices(frames, context, tolerance), enough[frames.rows(selector, context)]])
                parts.append(units.sums(weight_W * some))
                curves += [(selector, context, k, tolerance) for k in ks]
    bands = Estimates(*(of.ravel() for of in share_bands(np.array(parts), units.sums(weight_W))))
    rows = pd.DataFrame(curves, columns=["selector", "context", "k", "x"])
    is_all = rows.merge(
        frames.selections.assign(is_all=shows_all(frames)), on=["selector", "context", "k"], how="left"
    )["is_all"].eq(True)
    known = is_all.to_numpy() & (bands.value == 1) & np.isfinite(bands.low)  # no estimate
    return rows, Estimates(bands.value, np.where(known, 1.0, bands.low), bands.high, np.where(known, 0.0, bands.se))


def sufficient_k(frames: Frames) -> pd.DataFrame:
    """The sufficient k of every target, one row for each window, selector, context and tolerance.

    Returns:
        window_id, doc_id, weight, target_class; selector, context, tolerance_nats; ``k``, infinity where more than ``max_k``, the
        largest measured k, are needed. An interpolated quantile of k is missing beside infinity; take
        ``quantile(..., interpolation="higher")``.
    """
    of_window = frames.windows[["window_id", "doc_id", "weight", "target_class"]].reset_index(drop=True)
    found = []
    for tolerance in TOLERANCES:
        enough = suffices(frames, tolerance)
        for selector in frames.selectors.index:
            for context in CONTEXTS:
                some = np.vstack([short_suffices(frames, context, tolerance), enough[frames.rows(selector, context)]])
                k_W = np.where(some.any(axis=0), np.array([0.0, *frames.ks])[some.argmax(axis=0)], np.inf)
                names = {"selector": selector, "context": context, "tolerance_nats": tolerance}
                found.append(of_window.assign(**names, k=k_W, max_k=frames.ks[-1]))
    return pd.concat(found, ignore_index=True)
