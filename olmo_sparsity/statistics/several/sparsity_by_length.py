"""Effective sparsity against context length: the smallest k whose D(k) reaches a share, of the same targets at several lengths.

All numbers of a model share the same resamples of its documents, so a slope over the lengths is paired.

D(k) is known at the measured k. Between two of them the smallest k is interpolated in the logarithm of k. Where no measured k
reaches the share, the smallest k is more than the largest measured one, and nothing else is said of it.

The interval of a smallest k holds every k at which the interval of D(k) holds the share, so it covers as often as that does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple, Optional

import numpy as np

from olmo_sparsity.statistics.intervals.bootstrap import document_units, estimates
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.ratios import Value, share_without, value_of
from olmo_sparsity.statistics.several.reactions import where_reached
from olmo_sparsity.statistics.several.same_targets import MeasuredLength, ModelAtLengths, models_of_same_targets
from olmo_sparsity.statistics.single.measurement import SHORT_DIVERGENCE, Measurement, SelectionKey

SHARES = (0.5, 0.8, 0.9)  # of D(k)
MIN_SLOPE_DOCUMENTS = 1000  # with fewer, percentiles of a slope cover the truth too rarely on heavy tails


class LineKey(NamedTuple):
    """A selector under a context, ``real`` or ``null``."""

    selector: str
    context: str


class PointKey(NamedTuple):
    """What a smallest k is named by."""

    line: LineKey
    share: float
    full_len: int


@dataclass(frozen=True)
class ReachingK:
    """The smallest k that reaches a share of D(k), with its 95% interval.

    Attributes:
        value: the number; None: more than ``max_k``.
        low: lower end of the interval; None: more than ``max_k``.
        high: upper end of the interval; None: more than ``max_k``.
        max_k: the largest measured k.
        has_interval: False with fewer documents than intervals of D(k) need; ``low`` and ``high`` then say nothing.
    """

    value: Optional[float]
    low: Optional[float]
    high: Optional[float]
    max_k: int
    has_interval: bool


class RecoveredKey(NamedTuple):
    """What a D(k) is named by."""

    line: LineKey
    k: int
    full_len: int


@dataclass(frozen=True)
class SparsityOfModel(ModelAtLengths):
    """Effective sparsity of one model at several lengths.

    Attributes:
        points: the smallest k of each line, share and length; those where no target reacts are missing.
        slopes: of log k against log full_len by least squares, for each line and share; None where there is one length, or some
            length does not reach the share. It has no interval where some resample does not, or with fewer than
            ``MIN_SLOPE_DOCUMENTS``.
    """

    points: dict[PointKey, ReachingK]
    slopes: dict[tuple[LineKey, float], Optional[Estimate]]

    @property
    def growth_of_constant_share(self) -> float:
        """Slope of log M against log full_len by least squares: that of the k of a constant share of the long-range tokens."""
        num_long_range = [measurement.lengths.num_long_range for measurement in self.measurements.values()]
        return float(slope_over_lengths(list(self.measurements), np.log(num_long_range)))


@dataclass(frozen=True)
class SparsityByLength:
    """Effective sparsity of models against the length of the full context.

    Attributes:
        selector: the selector that does not see the target.
        lines: the selector, the selector under the null context, and `random`.
        models: in the order in which they were named.
    """

    selector: str
    lines: tuple[LineKey, ...]
    models: tuple[SparsityOfModel, ...]

    @property
    def lengths(self) -> list[int]:
        """All lengths of the full context, rising."""
        return sorted({length for model in self.models for length in model.measurements})

    @property
    def first(self) -> Measurement:
        """One of the measurements; all have its number of local tokens, definition of visible and kind of null context."""
        return next(iter(self.models[0].measurements.values()))


def sparsity_by_length(measured: Sequence[MeasuredLength], *, selector: str) -> SparsityByLength:
    """Return the effective sparsity of each model at each length.

    Raises:
        UserError: the measurements do not share their targets or their definitions, or have no such selector, or one that sees
            the target.
    """
    lines = (LineKey(selector, "real"), LineKey(selector, "null"), LineKey("random", "real"))
    models = [
        _of_model(model, lines=lines)
        for model in models_of_same_targets(measured, selector=selector, controls=["random"])
    ]
    return SparsityByLength(selector, lines, tuple(models))


def log_smallest_k(recovered_KX: np.ndarray, ks: Sequence[int], share: float) -> np.ndarray:
    """Return the logarithm of the smallest k that reaches a share, infinite where none does, [...].

    Args:
        recovered_KX: D(k) at each measured k, [K, ...].
        ks: the measured k, rising.
        share: of D(k).
    """
    return where_reached(np.moveaxis(recovered_KX, 0, -1), np.log(ks), share)


def _of_model(model: ModelAtLengths, *, lines: Sequence[LineKey]) -> SparsityOfModel:
    """Return the numbers of one model, from measurements of the same targets."""
    measurements = model.measurements
    lengths = list(measurements)
    numbers = estimates(_sums(measurements, lines=lines), lambda totals: _quantities(totals, measurements, lines=lines))
    points = {}
    for line, share, length in product(lines, SHARES, lengths):
        ks = measurements[length].ks
        recovered = [numbers[RecoveredKey(line, k, length)] for k in ks]
        defined = [estimate for estimate in recovered if estimate is not None]
        if len(defined) == len(ks):
            points[PointKey(line, share, length)] = reaching_k(defined, ks, share)
    slopes = {(line, share): numbers.get(("slope", line, share)) for line, share in product(lines, SHARES)}
    if measurements[lengths[0]].num_documents < MIN_SLOPE_DOCUMENTS:
        slopes = {key: slope and slope.without_interval() for key, slope in slopes.items()}
    return SparsityOfModel(**vars(model), points=points, slopes=slopes)


def _sums(measurements: Mapping[int, Measurement], *, lines: Sequence[LineKey]) -> dict[Any, np.ndarray]:
    """Return the divergences of every length, summed over each document."""
    units = document_units(next(iter(measurements.values())).windows["doc_id"])
    sums: dict[Any, np.ndarray] = {}
    for length, measurement in measurements.items():
        windows, weights_W = measurement.windows, measurement.weights_W
        for line in lines:
            short_W = windows[SHORT_DIVERGENCE[line.context]].to_numpy(np.float64)
            sums["short", line.context, length] = units.sums(weights_W * short_W)
            for k in measurement.ks:
                divergence_W = measurement.divergences[SelectionKey(*line, k)].to_numpy(np.float64)
                sums[line, k, length] = units.sums(weights_W * divergence_W)
    return sums


def _quantities(
    totals: Mapping[Any, np.ndarray], measurements: Mapping[int, Measurement], *, lines: Sequence[LineKey]
) -> dict[Any, Value]:
    """Return every D(k), and slopes, from the totals of ``_sums``."""
    values: dict[Any, Value] = {}
    for line in lines:
        logs: dict[float, list[np.ndarray]] = {share: [] for share in SHARES}
        for length, measurement in measurements.items():
            short = totals["short", line.context, length]
            recovered_K = [share_without(totals[line, k, length], short) for k in measurement.ks]
            for k, recovered in zip(measurement.ks, recovered_K, strict=True):
                values[RecoveredKey(line, k, length)] = recovered
            recovered_KX = np.stack([value_of(recovered) for recovered in recovered_K])
            for share in SHARES:
                logs[share].append(log_smallest_k(recovered_KX, measurement.ks, share))
        if len(measurements) > 1:
            for share in SHARES:
                values["slope", line, share] = slope_over_lengths(list(measurements), np.stack(logs[share]))
    return values


def slope_over_lengths(lengths: Sequence[int], logs: np.ndarray) -> np.ndarray:
    """Return the slope of logarithms, [lengths, ...], against those of the lengths by least squares, [...]."""
    offsets = np.log(lengths) - np.log(lengths).mean()
    return np.tensordot(offsets / (offsets**2).sum(), logs, axes=1)


def reaching_k(recovered_K: Sequence[Estimate], ks: Sequence[int], share: float) -> ReachingK:
    """Return the smallest k that reaches a share, from D(k) at each measured k and its interval."""

    def smallest(values_K: Sequence[Optional[float]]) -> Optional[float]:
        k = float(np.exp(log_smallest_k(np.array(values_K, dtype=float), ks, share)))
        return k if np.isfinite(k) else None

    value, has_interval = smallest([d.mean for d in recovered_K]), all(d.has_interval for d in recovered_K)
    if not has_interval:
        return ReachingK(value, None, None, ks[-1], has_interval)
    low, high = smallest([d.high for d in recovered_K]), smallest([d.low for d in recovered_K])
    return ReachingK(value, low, high, ks[-1], has_interval)
