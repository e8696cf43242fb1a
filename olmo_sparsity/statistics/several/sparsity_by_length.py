"""Effective sparsity against context length: the smallest k whose D(k) reaches a share, of the same targets at several lengths.

Every length is a measurement of its own, with ``influence.min_preceding`` in common, so that targets, documents and foreign text
are the same. All numbers of a model share the same resamples of its documents, so a slope over the lengths is paired.

D(k) is known at the measured k. Between two of them the smallest k is interpolated in the logarithm of k. Where no measured k
reaches the share, the smallest k is more than the largest measured one, and nothing else is said of it.

The interval of a smallest k holds every k at which the interval of D(k) holds the share, so it covers as often as that does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import pandas as pd

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.selectors import CONTROLS
from olmo_sparsity.statistics.intervals.bootstrap import document_units, estimates
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.ratios import Value, share_without, value_of
from olmo_sparsity.statistics.several.reactions import where_reached
from olmo_sparsity.statistics.single.measurement import SHORT_DIVERGENCE, Measurement, SelectionKey, load
from olmo_sparsity.statistics.single.model_setup import ModelSetup, Screening, subject_name, subject_names
from olmo_sparsity.statistics.single.sums import gate_gain
from olmo_sparsity.tables.reading import read_table

SHARES = (0.5, 0.8, 0.9)  # of D(k)
MIN_SLOPE_DOCUMENTS = 1000  # with fewer, percentiles of a slope cover the truth too rarely on heavy tails
TARGET_COLUMNS = ["window_id", "doc_id", "start_token", "target_id", "weight", "null_doc_id"]


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
class MeasuredLength:
    """A measurement at one length, and the targets of its windows.

    Attributes:
        measurement: the numbers.
        targets: one row a window: its document, the target's place in it and its token, weight, and the lender of foreign text.
    """

    measurement: Measurement
    targets: pd.DataFrame

    @property
    def full_len(self) -> int:
        """Length of the full context, in tokens."""
        return self.measurement.lengths.full_len

    @property
    def model(self) -> tuple[Any, ...]:
        """What is the same for two measurements of one model."""
        manifest, model = self.measurement.manifest, self.measurement.setup.model
        if model is not None:
            return (model.weights_sha256, model.dtype, model.rope_scaling)
        return (manifest["run"], manifest.get("checkpoint", {}).get("model_sha256"))

    @property
    def name(self) -> str:
        """The model or the run, for messages."""
        return subject_name(self.measurement.manifest["run"], self.measurement.setup)


@dataclass(frozen=True)
class SparsityOfModel:
    """Effective sparsity of one model at several lengths.

    Attributes:
        name: of the model or the run.
        run: name of the folder of the run.
        setup: the model, the definition of visible and the first token.
        measurements: by the length of the full context, rising.
        points: the smallest k of each line, share and length.
        slopes: of log k against log full_len by least squares, for each line and share; None where there is one length, or some
            length does not reach the share. It has no interval where some resample does not, or with fewer than
            ``MIN_SLOPE_DOCUMENTS``.
        long_gains_nats: mean long gain at each length.
        gate_gains_nats: what the first gate judges at each length.
    """

    name: str
    run: str
    setup: ModelSetup
    measurements: dict[int, Measurement]
    points: dict[PointKey, ReachingK]
    slopes: dict[tuple[LineKey, float], Optional[Estimate]]
    long_gains_nats: dict[int, Estimate]
    gate_gains_nats: dict[int, Estimate]

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


def read_length(tables: Path) -> MeasuredLength:
    """Read a finished influence folder.

    Raises:
        UserError: the tables are missing, unfinished or damaged.
    """
    measurement = load(tables)
    targets = (
        read_table(tables, "windows", columns=TARGET_COLUMNS).to_pandas().sort_values("window_id", ignore_index=True)
    )
    targets["target"] = targets.pop("start_token") + measurement.lengths.full_len
    return MeasuredLength(measurement, targets)


def sparsity_by_length(measured: Sequence[MeasuredLength], *, selector: str) -> SparsityByLength:
    """Return the effective sparsity of each model at each length.

    Raises:
        UserError: the measurements do not share their targets or their definitions, or have no such selector, or one that sees
            the target.
    """
    _check_selector(measured, selector)
    _check_alike(measured, selector)
    lines = (LineKey(selector, "real"), LineKey(selector, "null"), LineKey("random", "real"))
    of_models: dict[tuple[Any, ...], list[MeasuredLength]] = {}
    for one in measured:
        of_models.setdefault(one.model, []).append(one)
    subjects = [(group[0].measurement.manifest["run"], group[0].measurement.setup) for group in of_models.values()]
    models = []
    for name, of_model in zip(subject_names(subjects), of_models.values(), strict=True):
        in_order = sorted(of_model, key=lambda one: one.full_len)
        _check_targets(in_order)
        models.append(_of_model(in_order, name=name, lines=lines))
    return SparsityByLength(selector, lines, tuple(models))


def log_smallest_k(recovered_KX: np.ndarray, ks: Sequence[int], share: float) -> np.ndarray:
    """Return the logarithm of the smallest k that reaches a share, infinite where none does, [...].

    Args:
        recovered_KX: D(k) at each measured k, [K, ...].
        ks: the measured k, rising.
        share: of D(k).
    """
    return where_reached(np.moveaxis(recovered_KX, 0, -1), np.log(ks), share)


def _of_model(measured: list[MeasuredLength], *, name: str, lines: Sequence[LineKey]) -> SparsityOfModel:
    """Return the numbers of one model, from measurements of the same targets."""
    measurements = {one.full_len: one.measurement for one in measured}
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
    first = measured[0]
    if first.measurement.num_documents < MIN_SLOPE_DOCUMENTS:
        slopes = {key: slope and slope.without_interval() for key, slope in slopes.items()}

    def at_lengths(name: str) -> dict[int, Estimate]:
        found = {length: numbers[name, length] for length in lengths}
        return {length: gain for length, gain in found.items() if gain is not None}

    return SparsityOfModel(
        name,
        first.measurement.manifest["run"],
        first.measurement.setup,
        measurements,
        points,
        slopes,
        at_lengths("long gain"),
        at_lengths("gate gain"),
    )


def _sums(measurements: Mapping[int, Measurement], *, lines: Sequence[LineKey]) -> dict[Any, np.ndarray]:
    """Return weights, long gains, costs of the gap and divergences of every length, summed over each document."""
    first = next(iter(measurements.values()))
    units = document_units(first.windows["doc_id"])
    sums: dict[Any, np.ndarray] = {"weight": units.sums(first.weights_W)}
    for length, measurement in measurements.items():
        windows, weights_W = measurement.windows, measurement.weights_W
        sums["long gain", length] = units.sums(weights_W * windows["gain_long_nats"].to_numpy(np.float64))
        cost_W = windows["loss_short_nats"].to_numpy(np.float64) - windows["loss_short_no_gap_nats"]
        sums["gap cost", length] = units.sums(weights_W * cost_W.to_numpy())
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
    """Return every D(k), slopes, and gains with and without the cost of the gap, from the totals of ``_sums``."""
    values: dict[Any, Value] = {}
    for length in measurements:
        long_gain, gap_cost = totals["long gain", length], totals["gap cost", length]
        values["long gain", length] = long_gain / totals["weight"]
        values["gate gain", length] = gate_gain(long_gain, gap_cost) / totals["weight"]
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


def _check_selector(measured: Sequence[MeasuredLength], selector: str) -> None:
    for one in measured:
        selectors = one.measurement.selectors
        missing = [name for name in (selector, "random") if name not in selectors]
        if missing:
            raise UserError(
                f"{one.name} at full_len {one.full_len}: {' and '.join(missing)} not measured; measure it with "
                f"--selector {selector} --selector random"
            )
        if selectors[selector].sees_target or selector in CONTROLS:
            raise UserError(
                f"--selector {selector}: choose one that does not see the target and is no control, such as attention or kl"
            )


def _check_alike(measured: Sequence[MeasuredLength], selector: str) -> None:
    """Check that all measurements have the definitions in common, whatever their model."""
    measurements = [one.measurement for one in measured]
    for what, values in (
        ("local_len", [m.lengths.local_len for m in measurements]),
        ("visibility", [m.setup.visibility for m in measurements]),
        ("positions", [m.setup.positions for m in measurements]),
        ("anchor", [m.setup.anchor_choice for m in measurements]),
        ("null context", [m.null_context for m in measurements]),
        ("unit", [m.unit for m in measurements]),
        (f"candidates of {selector}", [_candidates_words(m.setup.screening, selector) for m in measurements]),
    ):
        for one, value in zip(measured, values, strict=True):
            if value != values[0]:
                raise UserError(
                    f"{one.name} at full_len {one.full_len} has {what} {value}, {measured[0].name} at full_len "
                    f"{measured[0].full_len} {values[0]}; measure all lengths with the same"
                )
    if measurements[0].unit != "token":
        raise UserError(f"these tables count k in units of {measurements[0].unit}; measure them with --unit token")


def _candidates_words(screening: Optional[Screening], selector: str) -> str:
    """Return which candidates of a selector were scored; at a length where fewer were, k is larger for that alone."""
    if screening is None or selector not in screening.selectors:
        return "not screened"
    return f"screened to {screening.num_candidates} by {screening.ranking}"


def _check_targets(measured: list[MeasuredLength]) -> None:
    """Check that the measurements of one model, by rising length, are of several lengths and of the same targets."""
    lengths = [one.full_len for one in measured]
    if len(measured) == 1:
        raise UserError(
            f"{measured[0].name} was measured at full_len {lengths[0]} alone; give tables of two lengths or more"
        )
    if len(set(lengths)) < len(lengths):
        raise UserError(
            f"{measured[0].name}: two of these tables have the same full_len, of {lengths}; give each length once"
        )
    for one in measured[1:]:
        if not one.targets.equals(measured[0].targets):
            raise UserError(
                f"{one.name}: the tables at full_len {lengths[0]} and {one.full_len} do not share their targets and foreign text"
                f"; measure every length on the same text, with the same seed and influence.min_preceding={lengths[-1]}"
            )
