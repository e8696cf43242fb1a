"""Measurements of the same targets at several lengths of the full context.

Every length is a measurement of its own, with ``influence.min_preceding`` in common, so that targets, documents and foreign text
are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.measured import HASH_DIGITS
from olmo_sparsity.records.selectors import CONTROLS
from olmo_sparsity.statistics.intervals.bootstrap import defined_estimates, document_units
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.measurement import Measurement, load
from olmo_sparsity.statistics.single.model_setup import ModelSetup, subject_name, subject_names
from olmo_sparsity.statistics.single.sums import gate_gain
from olmo_sparsity.tables.reading import read_table

TARGET_COLUMNS = ["window_id", "doc_id", "start_token", "target_id", "weight", "null_doc_id"]


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
class ModelAtLengths:
    """Measurements of one model of the same targets at several lengths.

    Attributes:
        name: of the model or the run.
        run: name of the folder of the run.
        setup: the model, the definition of visible and the first token.
        measurements: by the length of the full context, rising.
        long_gains_nats: mean long gain at each length.
        gate_gains_nats: what the first gate judges at each length.
    """

    name: str
    run: str
    setup: ModelSetup
    measurements: dict[int, Measurement]
    long_gains_nats: dict[int, Estimate]
    gate_gains_nats: dict[int, Estimate]


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


def models_of_same_targets(
    measured: Sequence[MeasuredLength], *, selector: str, controls: Sequence[str]
) -> Iterator[ModelAtLengths]:
    """Yield each model with its measurements of the same targets by rising length.

    Args:
        measured: of any models, in the order in which they were named.
        selector: must be measured, not see the target, and be no control.
        controls: selectors that must be measured, too.

    Raises:
        UserError: the measurements do not share their targets or their definitions, or have no such selector, or one that sees
            the target.
    """
    _check_selector(measured, selector, controls=controls)
    _check_alike(measured, selector)
    of_models: dict[tuple[Any, ...], list[MeasuredLength]] = {}
    for one in measured:
        of_models.setdefault(one.model, []).append(one)
    for name, of_model in zip(_names(of_models), of_models.values(), strict=True):
        in_order = sorted(of_model, key=lambda one: one.full_len)
        _check_targets(in_order)
        first, measurements = in_order[0].measurement, {one.full_len: one.measurement for one in in_order}
        yield ModelAtLengths(name, first.manifest["run"], first.setup, measurements, *_gains(measurements))


def _names(of_models: Mapping[tuple[Any, ...], Sequence[MeasuredLength]]) -> list[str]:
    """Return distinct names of the models; those of one name also have the hash of their weights."""
    firsts = [of_model[0].measurement for of_model in of_models.values()]
    names = subject_names([(first.manifest["run"], first.setup) for first in firsts])
    hashes = [
        first.manifest.get("checkpoint", {}).get("model_sha256", "unknown")
        if first.setup.model is None
        else first.setup.model.weights_sha256
        for first in firsts
    ]
    return [
        f"{name}, weights {sha256[:HASH_DIGITS]}" if names.count(name) > 1 else name
        for name, sha256 in zip(names, hashes, strict=True)
    ]


def _gains(measurements: Mapping[int, Measurement]) -> tuple[dict[int, Estimate], dict[int, Estimate]]:
    """Return by length the mean long gain, and what the first gate judges: the gain less the cost of the gap."""
    first = next(iter(measurements.values()))
    units = document_units(first.windows["doc_id"])
    sums: dict[Any, np.ndarray] = {"weight": units.sums(first.weights_W)}
    for length, measurement in measurements.items():
        windows, weights_W = measurement.windows, measurement.weights_W
        sums["long gain", length] = units.sums(weights_W * windows["gain_long_nats"].to_numpy(np.float64))
        cost_W = windows["loss_short_nats"].to_numpy(np.float64) - windows["loss_short_no_gap_nats"]
        sums["gap cost", length] = units.sums(weights_W * cost_W.to_numpy())

    def gains(totals: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        values = {}
        for length in measurements:
            long_gain, gap_cost = totals["long gain", length], totals["gap cost", length]
            values["long gain", length] = long_gain / totals["weight"]
            values["gate gain", length] = gate_gain(long_gain, gap_cost) / totals["weight"]
        return values

    found = defined_estimates(sums, gains)
    of_long, of_gate = ({length: found[name, length] for length in measurements} for name in ("long gain", "gate gain"))
    return of_long, of_gate


def _check_selector(measured: Sequence[MeasuredLength], selector: str, *, controls: Sequence[str]) -> None:
    for one in measured:
        selectors = one.measurement.selectors
        missing = [name for name in (selector, *controls) if name not in selectors]
        if missing:
            raise UserError(
                f"{one.name} at full_len {one.full_len}: {' and '.join(missing)} not measured; measure it with "
                f"{' '.join(f'--selector {name}' for name in (selector, *controls))}"
            )
        if selectors[selector].sees_target or selector in CONTROLS:
            raise UserError(
                f"--selector {selector}: choose one that does not see the target and is no control, such as attention or kl"
            )


def _check_alike(measured: Sequence[MeasuredLength], selector: str) -> None:
    """Check that all measurements have the definitions in common, whatever their model."""
    measurements = [one.measurement for one in measured]
    of_first, *of_others = (
        {
            "local_len": m.lengths.local_len,
            "null context": m.null_context,
            "unit": m.unit,
            **definitions(m.setup, selector),
            f"hash of the source of {selector}": source_of(m.manifest, selector),
        }
        for m in measurements
    )
    for what, value in of_first.items():
        for one, of_other in zip(measured[1:], of_others, strict=True):
            if of_other[what] != value:
                raise UserError(
                    f"{one.name} at full_len {one.full_len} has {what} {of_other[what]}, {measured[0].name} at full_len "
                    f"{measured[0].full_len} {value}; measure all lengths with the same"
                )
    if measurements[0].unit != "token":
        raise UserError(f"these tables count k in units of {measurements[0].unit}; measure them with --unit token")


def definitions(setup: ModelSetup, selector: str) -> dict[str, object]:
    """Return, by name, what measurements must have in common for a number of a selector to be one quantity."""
    return {
        "visibility": setup.visibility,
        "anchor": setup.anchor_choice,
        "precision": setup.precision,
    }


def source_of(manifest: Mapping[str, Any], selector: str) -> Optional[str]:
    """Return the hash of the source of a selector of one's own; None of one of the package's."""
    entry: dict[str, Any] = manifest.get("own_selectors", {}).get(selector, {})
    return entry.get("sha256")


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
