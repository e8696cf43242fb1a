"""The dependency spectrum: the distribution, over targets, of the smallest number of long-range tokens that suffices.

With S_0 = {}, S_1, ..., S_M = all the nested sets of a *family* (J_k of a selector; of `nearest` suffixes), ``delta(k) =
KL(p_all, p_{S_k})``. Tokens *suffice* where ``delta`` is at most a tolerance in nats, and the *sufficient k* is the smallest
measured k of which that holds: 0 where the local tokens suffice, infinity where no measured k does. No label enters.

The sufficient k of a choice is an upper bound of the number of tokens that some choice needs.

Letters of shapes: W windows; K measured k; P 0 and the measured k; U bootstrap units.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Optional

import numpy as np
import pandas as pd

from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.statistics.intervals.bands import share_bands
from olmo_sparsity.statistics.intervals.bootstrap import document_units
from olmo_sparsity.statistics.intervals.estimate import Estimate, SmallestK
from olmo_sparsity.statistics.single.measurement import CONTEXTS, SHORT_DIVERGENCE, Measurement, SelectionKey

TOLERANCES = (0.01, 0.05, 0.1, 0.5)  # nats; fixed before anything was measured, for every model alike
TOLERANCE = 0.05  # where there is room for one
REACHED = (0.5, 0.8, 0.9)  # the shares of targets whose k is given
NEAREST, RANDOM = "nearest", "random"
ROUNDING = 1e-9  # of a share


class Curve(NamedTuple):
    """What a cumulative distribution is of: a family of sets, a context and a tolerance in nats."""

    family: str
    context: str
    tolerance_nats: float


@dataclass(frozen=True)
class Spectrum:
    """A cumulative distribution over targets, with a simultaneous band.

    Attributes:
        curve: what it is of.
        ks: 0 and the measured k.
        shares: share of the targets whose sufficient k is at most each of ``ks``. The intervals hold all shares at once.
    """

    curve: Curve
    ks: tuple[int, ...]
    shares: tuple[Estimate, ...]

    @property
    def none_needed(self) -> Estimate:
        """The share of the targets that need no long-range token."""
        return self.shares[0]

    @property
    def has_intervals(self) -> bool:
        """True if there are documents enough for a band."""
        return self.shares[0].has_interval

    def at_most(self, k: int) -> Optional[Estimate]:
        """Return the share of the targets that need at most k; None where k was not measured."""
        return self.shares[self.ks.index(k)] if k in self.ks else None

    def reaching(self, share: float) -> SmallestK:
        """Return the smallest k that is enough for a share of the targets; its interval holds every k at which the band holds it.

        None stands for more than the largest measured k. The ends are None, too, where there is no band.
        """

        def first(bounds: Sequence[Optional[float]]) -> Optional[int]:
            enough = (
                k for k, bound in zip(self.ks, bounds, strict=True) if bound is not None and bound >= share - ROUNDING
            )
            return next(enough, None)

        return SmallestK(
            first([of.mean for of in self.shares]),
            first([of.high for of in self.shares]),
            first([of.low for of in self.shares]),
        )


@dataclass(frozen=True)
class Spectra:
    """The spectra of one measurement.

    Attributes:
        by_curve: the spectra.
        row_k: the k at which a suffix is a training row; None where no row is known, or it has all tokens, or fewer than the
            local ones, or where the suffix has read what is before it (``contextual`` visibility).
        max_k: the largest measured k.
        is_rounded: True if the divergences were measured in bf16, whose rounding is of the size of small tolerances.
    """

    by_curve: dict[Curve, Spectrum]
    row_k: Optional[int]
    max_k: int
    is_rounded: bool = False

    @property
    def families(self) -> list[str]:
        """The measured families."""
        return list(dict.fromkeys(curve.family for curve in self.by_curve))

    def of(self, family: str, context: str = "real", *, tolerance: float = TOLERANCE) -> Optional[Spectrum]:
        """Return one spectrum of the smallest sufficient k; None where it was not measured."""
        return self.by_curve.get(Curve(family, context, tolerance))

    def chosen(self, blind: Collection[str]) -> Optional[str]:
        """Return what ``chosen_family`` does, of the measured families; ``blind``: the selectors that do not see the target."""
        return chosen_family([family for family in self.families if family in blind])

    def beyond_row(self, context: str = "real", *, tolerance: float = TOLERANCE) -> Optional[Estimate]:
        """Return the share of the targets of which a suffix as long as a training row does not suffice.

        None where `nearest` was not measured at ``row_k``, or there is no such k.
        """
        nearest = self.of(NEAREST, context, tolerance=tolerance)
        within = None if nearest is None or self.row_k is None else nearest.at_most(self.row_k)
        return None if within is None else complement(within)


def complement(share: Estimate) -> Estimate:
    """Return 1 minus a share, with its interval."""
    low, high = (None if bound is None else 1 - bound for bound in (share.high, share.low))
    return Estimate(1 - share.mean, low, high, share.standard_error)


def chosen_family(blind: Sequence[str]) -> Optional[str]:
    """Return the family that stands for chosen tokens: the selector that goes furthest for a small divergence, without the label.

    None of them being measured, any other that is no control; else None.

    Args:
        blind: the measured selectors that do not see the target, as their tables say.
    """
    known = [name for name in blind if name in SELECTORS]
    chosen = [name for name in known if not SELECTORS[name].is_control]
    return next((name for name in ("greedy-kl", "greedy-patching", "kl", *chosen) if name in chosen), None)


def sufficient_k(divergence_WK: np.ndarray, short_W: np.ndarray, *, ks: Sequence[int], tolerance: float) -> np.ndarray:
    """Return the sufficient k of every target, float64 [W]; infinity: more than the largest measured k.

    Args:
        divergence_WK: KL(p_all, p_{S_k}) at each measured k, nats.
        short_W: KL(p_all, p_{}), nats.
        ks: the measured k, rising.
        tolerance: in nats.
    """
    suffices_WP = np.column_stack([short_W, divergence_WK]) <= tolerance
    return np.where(suffices_WP.any(axis=1), np.array([0.0, *ks])[suffices_WP.argmax(axis=1)], np.inf)


def sufficient_ks(
    measurement: Measurement, *, tolerances: Sequence[float] = TOLERANCES
) -> Iterator[tuple[Curve, np.ndarray]]:
    """Yield the sufficient k of every target, float64 [W], for each curve."""
    for context in CONTEXTS:
        short_W = measurement.windows[SHORT_DIVERGENCE[context]].to_numpy(np.float64)
        divergences = {
            name: np.column_stack([measurement.divergences[SelectionKey(name, context, k)] for k in measurement.ks])
            for name in measurement.selectors
        }
        for tolerance in tolerances:
            for name, divergence_WK in divergences.items():
                k_W = sufficient_k(divergence_WK, short_W, ks=measurement.ks, tolerance=tolerance)
                yield Curve(name, context, tolerance), k_W


def spectra(measurement: Measurement, *, tolerances: Sequence[float] = TOLERANCES) -> Spectra:
    """Return the spectra of a measurement, weighted as its windows are."""
    units, weights_W = document_units(measurement.windows["doc_id"]), measurement.weights_W
    ks = (0, *measurement.ks)
    parts = {
        curve: np.stack([units.sums(weights_W * (k_W <= k)) for k in ks])
        for curve, k_W in sufficient_ks(measurement, tolerances=tolerances)
    }
    bands = share_bands(parts, units.sums(weights_W))
    # Where every window shows all of its tokens, 1 is no estimate.
    is_all = {context: [k >= measurement.num_groups_W(context).max() for k in ks] for context in CONTEXTS}
    by_curve = {
        curve: Spectrum(curve, ks, tuple(map(_known, shares, is_all[curve.context]))) for curve, shares in bands.items()
    }
    is_rounded = measurement.manifest.get("precision") == "bf16"
    return Spectra(by_curve, _row_k(measurement), ks[-1], is_rounded)


def _known(share: Estimate, is_all: bool) -> Estimate:
    return Estimate(1.0, 1.0, 1.0, 0.0) if is_all and share.has_interval and share.mean == 1 else share


def _suffix_is_context(measurement: Measurement) -> bool:
    """Return True if k nearest are all that the model reads but the local tokens: entries that have read more are not."""
    return measurement.unit == "token" and measurement.setup.visibility == "hidden"


def _row_k(measurement: Measurement) -> Optional[int]:
    lengths = measurement.lengths
    if not _suffix_is_context(measurement) or lengths.train_len is None or lengths.is_ceiling:
        return None
    return lengths.train_len - lengths.local_len if lengths.train_len >= lengths.local_len else None


def spectrum_frame(measurement: Measurement) -> pd.DataFrame:
    """Return one row a target, family, context and tolerance.

    Returns:
        Columns window_id, doc_id, weight, target_class, family, context, tolerance_nats; ``k``, the sufficient k,
        float64: infinity is more than ``max_k``, the largest measured k; ``min_context_tokens``, of `nearest` where the unit is a
        token and visibility ``hidden``: the length of the shortest suffix of the window that suffices, local tokens included
        (minimum context length), else missing.
    """
    of_window = measurement.windows[["window_id", "doc_id", "weight", "target_class"]].reset_index(drop=True)
    frames = []
    for curve, k_W in sufficient_ks(measurement):
        is_suffix = curve.family == NEAREST and _suffix_is_context(measurement)
        frames.append(
            of_window.assign(
                family=curve.family,
                context=curve.context,
                tolerance_nats=curve.tolerance_nats,
                k=k_W,
                max_k=measurement.ks[-1],
                min_context_tokens=measurement.lengths.local_len + k_W if is_suffix else np.nan,
            )
        )
    return pd.concat(frames, ignore_index=True)
