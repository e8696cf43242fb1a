"""The dependency spectrum against the length of the full context: how many tokens the same targets need at several lengths.

At each length the need of a target is its sufficient k (``statistics.single.spectrum``) for a choice, for suffixes (`nearest`)
and for random tokens. p_all is another prediction at every length, so each need is that of another reaction.

The measured k differ by length, since a grid ends with all long-range tokens. A need is the smallest of the measured k that
suffices, so the next smaller one does not. A target is *shown to need more* at a longer context where that smaller k is at least
its need at the shorter one. Where the two needs may be equal, it counts neither as more nor as fewer.
A need of more than the largest measured k counts like any other.

Letters of shapes: W windows; P 0 and the measured k; U bootstrap units.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product, starmap
from typing import NamedTuple, Optional

import numpy as np

from olmo_sparsity.statistics.intervals.bands import share_bands
from olmo_sparsity.statistics.intervals.bootstrap import document_units
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.shares import Share, ShareDifference, paired_difference
from olmo_sparsity.statistics.several.same_targets import MeasuredLength, ModelAtLengths, models_of_same_targets
from olmo_sparsity.statistics.single.measurement import CONTEXTS, Measurement
from olmo_sparsity.statistics.single.spectrum import (
    NEAREST,
    RANDOM,
    TOLERANCE,
    TOLERANCES,
    Curve,
    Spectra,
    spectra,
    sufficient_ks,
)


class LongerKey(NamedTuple):
    """A curve at a longer context, which the same curve at the shortest one is compared with."""

    curve: Curve
    full_len: int


@dataclass(frozen=True)
class Growth:
    """How many targets need another number of tokens at a longer context than at the shortest one.

    Attributes:
        more: share of the targets that are shown to need more.
        fewer: share of those that are shown to need fewer.
        suffix_minus_this: share of the targets that need a longer suffix, minus ``more``; None of suffixes themselves.
    """

    more: Estimate
    fewer: Estimate
    suffix_minus_this: Optional[Estimate]


@dataclass(frozen=True)
class SpectrumOfModel(ModelAtLengths):
    """The spectra of one model at several lengths.

    Attributes:
        spectra: by length.
        growth: of every curve, at all lengths but the shortest.
    """

    spectra: dict[int, Spectra]
    growth: dict[LongerKey, Growth]

    @property
    def lengths(self) -> list[int]:
        """The lengths of the full context, rising."""
        return list(self.measurements)

    def growth_of(self, family: str, context: str = "real") -> Growth:
        """Return the growth from the shortest to the longest context, at the tolerance that is shown alone."""
        return self.growth[LongerKey(Curve(family, context, TOLERANCE), self.lengths[-1])]


@dataclass(frozen=True)
class SpectrumByLength:
    """The spectra of models against the length of the full context.

    Attributes:
        families: the choice, suffixes, and random tokens where all were measured with them.
        models: in the order in which they were named.
    """

    families: tuple[str, ...]
    models: tuple[SpectrumOfModel, ...]

    @property
    def selector(self) -> str:
        """The choice, which does not see the target."""
        return self.families[0]

    @property
    def curves(self) -> Iterator[Curve]:
        """What is measured at every length."""
        return starmap(Curve, product(self.families, CONTEXTS, TOLERANCES))


def spectrum_by_length(measured: Sequence[MeasuredLength], *, selector: str) -> SpectrumByLength:
    """Return the spectra of each model at each length.

    Raises:
        UserError: the measurements do not share their targets or their definitions, or lack a selector, or it sees the target.
    """
    models = models_of_same_targets(measured, selector=selector, controls=[NEAREST])
    random = [RANDOM] if all(RANDOM in one.measurement.selectors for one in measured) else []
    return SpectrumByLength((selector, NEAREST, *random), tuple(_of_model(model) for model in models))


def _of_model(model: ModelAtLengths) -> SpectrumOfModel:
    by_length = {length: spectra(measurement) for length, measurement in model.measurements.items()}
    return SpectrumOfModel(**vars(model), spectra=by_length, growth=_growth(model.measurements))


def _growth(measurements: Mapping[int, Measurement]) -> dict[LongerKey, Growth]:
    """Return the growth of every curve that all lengths have."""
    shortest, *longer = measurements.values()
    units, weights_W = document_units(shortest.windows["doc_id"]), shortest.weights_W
    weight_U, at_shortest = units.sums(weights_W), dict(sufficient_ks(shortest))
    parts: dict[tuple[LongerKey, str], np.ndarray] = {}
    for measurement in longer:
        for curve, longer_W in sufficient_ks(measurement):
            if curve not in at_shortest:
                continue
            key, shorter_W = LongerKey(curve, measurement.lengths.full_len), at_shortest[curve]
            more_W = shown_to_need_more(longer_W, shorter_W, ks=measurement.ks)
            fewer_W = shown_to_need_more(shorter_W, longer_W, ks=shortest.ks)
            parts[key, "more"], parts[key, "fewer"] = units.sums(weights_W * more_W), units.sums(weights_W * fewer_W)
    shares = {key: share for key, (share,) in share_bands({k: p[None] for k, p in parts.items()}, weight_U).items()}
    found = {}
    for key in dict.fromkeys(key for key, _ in parts):
        difference = None
        if key.curve.family != NEAREST:
            suffix = (key._replace(curve=key.curve._replace(family=NEAREST)), "more")
            of_units = ShareDifference(Share(parts[suffix], weight_U), Share(parts[key, "more"], weight_U))
            difference = paired_difference(shares[suffix], shares[key, "more"], of_units=of_units)
        found[key] = Growth(shares[key, "more"], shares[key, "fewer"], difference)
    return found


def shown_to_need_more(k_W: np.ndarray, other_W: np.ndarray, *, ks: Sequence[int]) -> np.ndarray:
    """Return which targets are shown to need more than at another length, bool [W].

    Args:
        k_W: sufficient k of each target, infinity where none of ``ks`` suffices.
        other_W: the same at the other length, of its own measured k.
        ks: the measured k that ``k_W`` is one of, rising.
    """
    ks_P = np.array([0, *ks])
    place_W = np.searchsorted(ks_P, k_W)  # of infinity: behind the last
    return (place_W > 0) & (ks_P[place_W - 1] >= other_W)
