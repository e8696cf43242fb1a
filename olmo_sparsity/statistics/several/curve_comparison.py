"""Context curves of several models on the same windows, and what each gains beyond the training row.

A *ceiling* is a model whose training rows are as long as the full context: nothing lies beyond its row. The gain of another model
from the length of its row to the full context, as a share of the ceiling's gain between the same two lengths, tells how much of
what the text offers there the model reaches without having seen such rows.

Of a pretrained model a training row is known only where it is stated: without one it has no such gain. It is no ceiling: its
training text was another. Runs of a configuration with several seeds
are one model (``statistics.intervals.seeds``). All numbers share the same resamples of the
documents, so shares and differences are paired.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, Optional, TypeVar

import numpy as np

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.curves import ContextCurve, CurvePoint, curve_of_points, loss_sums
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.seeds import bounded, estimates_over_seeds
from olmo_sparsity.statistics.several.trained_models import TrainedModel, trained_models
from olmo_sparsity.statistics.single.measurement import SAME_WINDOWS, Lengths
from olmo_sparsity.statistics.single.summary import is_fragile
from olmo_sparsity.storage.folders import distinct_names
from olmo_sparsity.tables.reading import newest_finished, read_manifest

Loss = TypeVar("Loss", float, np.ndarray)


@dataclass(frozen=True)
class SeedCurve:
    """The context curve of one run.

    Attributes:
        run: its name, or its path where another run has the same name.
        seed: its seed of training; None of a pretrained model.
        losses_nats: mean loss at each point of the model's curve.
        gain_beyond_nats: mean gain beyond the training row; None where the model has none.
    """

    run: str
    seed: Optional[int]
    losses_nats: tuple[float, ...]
    gain_beyond_nats: Optional[float]


def _is_ceiling(lengths: Lengths) -> bool:
    return lengths.is_ceiling and not lengths.train_len_is_stated


@dataclass(frozen=True)
class ModelCurve:
    """The context curve of one model: the mean over the seeds of its training.

    Attributes:
        curve: its mean losses, and their changes from ``reference_len`` visible tokens.
        seeds: its runs.
        gain_beyond_nats: loss with ``row_len`` visible tokens minus that with ``full_len``; the two lengths are those of
            ``ComparedCurves``. None where nothing lies between them, where the curve ends before ``full_len``, and of a
            pretrained model without a stated row.
        share_of_ceiling: that gain over the ceiling's. None of the ceiling itself, where there is no ceiling, and where
            the interval of the ceiling's gain is not above 0.
    """

    curve: ContextCurve
    seeds: tuple[SeedCurve, ...]
    gain_beyond_nats: Optional[Estimate]
    share_of_ceiling: Optional[Estimate]

    @property
    def is_ceiling(self) -> bool:
        """True if it was trained here, on rows as long as the full context."""
        return _is_ceiling(self.curve.lengths)


@dataclass(frozen=True)
class ComparedCurves:
    """The context curves of models on the same windows.

    Attributes:
        reference_len: the number of visible tokens from which changes are counted: ``row_len``, or the local tokens where that
            is None.
        row_len: tokens of a training row of the models that are no ceiling; of the ceiling, if there is no other; None where
            all models are pretrained, and no row is stated within the full context.
        full_len: tokens of the full context.
        models: in the order in which they were named.
    """

    reference_len: int
    row_len: Optional[int]
    full_len: int
    models: tuple[ModelCurve, ...]

    @property
    def ceiling(self) -> Optional[ModelCurve]:
        """The ceiling, or None."""
        return next((model for model in self.models if model.is_ceiling), None)

    @property
    def shares_are_fragile(self) -> bool:
        """True if the ceiling's gain is above 0 by less than ``ROBUST_RATIO`` standard errors."""
        if self.ceiling is None:
            return False
        gain = self.ceiling.gain_beyond_nats
        return gain is not None and is_fragile(gain)


@dataclass(frozen=True)
class _ReadModel:
    """A model's runs, and the sums of their losses.

    Attributes:
        model: the runs.
        manifest: of the curve of the first run.
        visible: the measured numbers of visible tokens.
        sums: of each run, as ``loss_sums`` returns them.
    """

    model: TrainedModel
    manifest: dict[str, Any]
    visible: list[int]
    sums: list[dict[Any, np.ndarray]]

    @property
    def lengths(self) -> Lengths:
        return Lengths.from_manifest(self.manifest)


class _ComparedLengths(NamedTuple):
    """The lengths of ``ComparedCurves``."""

    reference_len: int
    row_len: Optional[int]
    full_len: int


class _Quantity(NamedTuple):
    """Key of an estimate: of a model, ``loss`` or ``change`` at a number of visible tokens, or ``gain`` or ``share``."""

    model: int
    name: str
    num_visible_tokens: int = 0


def compare_curves(runs: Sequence[Path]) -> ComparedCurves:
    """Read the newest context curve of each run and compare them.

    Raises:
        UserError: a run has no curve, the curves are of different windows or lengths, or there are two ceilings.
    """
    folders = {run: newest_finished(run, "context-curve") for run in runs}
    manifests = {run: read_manifest(folder, "context-curve") for run, folder in folders.items()}
    _check_same_windows(list(manifests.values()))
    read = [_read_model(model, folders, manifests=manifests) for model in trained_models(list(folders))]
    names = dict(zip(folders, distinct_names(list(folders)), strict=True))
    lengths = _compared_lengths(read)
    ceiling = next((i for i, model in enumerate(read) if _is_ceiling(model.lengths)), None)
    numbers = estimates_over_seeds(
        [model.sums for model in read],
        lambda totals: _quantities(totals, read, compared=lengths, ceiling=ceiling),
    )
    gain_of_ceiling = None if ceiling is None else numbers.get(_Quantity(ceiling, "gain"))
    has_shares = gain_of_ceiling is not None and gain_of_ceiling.is_above_zero
    models = []
    for i, model in enumerate(read):
        points = [
            CurvePoint(
                number,
                bounded(_defined(numbers, _Quantity(i, "loss", number)), most=math.inf),
                _defined(numbers, _Quantity(i, "change", number)),
            )
            for number in model.visible
        ]
        models.append(
            ModelCurve(
                curve=replace(curve_of_points(model.manifest, points), run=names[model.model.runs[0]]),
                seeds=_seed_curves(model, names, compared=lengths),
                gain_beyond_nats=numbers.get(_Quantity(i, "gain")),
                share_of_ceiling=numbers.get(_Quantity(i, "share")) if has_shares else None,
            )
        )
    return ComparedCurves(*lengths, tuple(models))


def _read_model(
    model: TrainedModel, folders: Mapping[Path, Path], *, manifests: Mapping[Path, dict[str, Any]]
) -> _ReadModel:
    manifest = manifests[model.runs[0]]
    _check_measured_alike([manifests[run] for run in model.runs])
    visible = [int(number) for number in manifest["num_visible_tokens"]]
    return _ReadModel(model, manifest, visible, [loss_sums(folders[run], visible) for run in model.runs])


def _quantities(
    totals: Sequence[Mapping[Any, np.ndarray]],
    read: Sequence[_ReadModel],
    *,
    compared: _ComparedLengths,
    ceiling: Optional[int],
) -> dict[_Quantity, np.ndarray]:
    """Return losses, changes, gains and shares of all models from the totals of each."""
    values: dict[_Quantity, np.ndarray] = {}
    for i, of_model in enumerate(totals):
        losses = {number: of_model[number] / of_model["weights"] for number in read[i].visible}
        for number, loss in losses.items():
            values[_Quantity(i, "loss", number)] = loss
            values[_Quantity(i, "change", number)] = loss - losses[compared.reference_len]
        gain_of_model = _gain(losses, read[i].lengths, compared=compared)
        if gain_of_model is not None:
            values[_Quantity(i, "gain")] = gain_of_model
    of_ceiling = None if ceiling is None else values.get(_Quantity(ceiling, "gain"))
    for i in range(len(totals)):
        gain = values.get(_Quantity(i, "gain"))
        if of_ceiling is not None and gain is not None and i != ceiling:
            values[_Quantity(i, "share")] = gain / of_ceiling
    return values


def _gain(losses: Mapping[int, Loss], lengths: Lengths, *, compared: _ComparedLengths) -> Optional[Loss]:
    """Return the gain beyond the training row; None where nothing lies there, where the curve ends before, or without a row.

    A ceiling has it between the same two lengths.
    """
    row_len, full_len = compared.row_len, compared.full_len
    has_row = lengths.train_len is not None and (_is_ceiling(lengths) or not lengths.is_ceiling)
    if not has_row or row_len is None or row_len >= full_len or full_len not in losses:
        return None
    return losses[row_len] - losses[full_len]


def _seed_curves(model: _ReadModel, names: Mapping[Path, str], *, compared: _ComparedLengths) -> tuple[SeedCurve, ...]:
    curves = []
    for run, seed, sums in zip(model.model.runs, model.model.seeds, model.sums, strict=True):
        losses = {number: float(sums[number].sum() / sums["weights"].sum()) for number in model.visible}
        gain = _gain(losses, model.lengths, compared=compared)
        curves.append(SeedCurve(names[run], seed, tuple(losses.values()), gain))
    return tuple(curves)


def _defined(numbers: Mapping[_Quantity, Optional[Estimate]], key: _Quantity) -> Estimate:
    estimate = numbers[key]
    assert estimate is not None, key  # a mean over one window or more
    return estimate


def _check_same_windows(manifests: list[dict[str, Any]]) -> None:
    first = manifests[0]
    for other in manifests[1:]:
        same_text = all(first[key] == other[key] for key in SAME_WINDOWS)
        same_lengths = all(first["context"][key] == other["context"][key] for key in ("local_len", "full_len"))
        if not (same_text and same_lengths):
            raise UserError(
                f"the context curves of {first['run']} and {other['run']} are of different windows and cannot be compared; "
                "measure them on the same text, with the same local_len, full_len, windows, seed and context_curve.max_visible"
            )


def _check_measured_alike(manifests: list[dict[str, Any]]) -> None:
    """Check that the curves of the seeds of one model were measured at one step and in one way."""
    for what, values in (
        ("checkpoint step", [manifest.get("checkpoint", {}).get("step") for manifest in manifests]),
        ("anchor", [manifest.get("anchor") for manifest in manifests]),
        ("precision", [manifest.get("precision") for manifest in manifests]),
    ):
        for manifest, value in zip(manifests, values, strict=True):
            if value != values[0]:
                raise UserError(
                    f"the context curves of {manifests[0]['run']} and {manifest['run']}, seeds of one model, have {what} "
                    f"{values[0]} and {value}; measure both again with the same options of `olmo-sparsity context-curve`"
                )


def _compared_lengths(read: Sequence[_ReadModel]) -> _ComparedLengths:
    """Return the lengths that the models are compared at.

    Raises:
        UserError: the rows of the models that are no ceiling differ, there are two ceilings, or a curve lacks the lengths.
    """
    full_len = read[0].lengths.full_len
    ceilings = [model for model in read if _is_ceiling(model.lengths)]
    known = {model.lengths.train_len for model in read if not model.lengths.is_ceiling} - {None}
    of_ceiling = [model.lengths.train_len for model in ceilings[:1]]
    row_lens = sorted(row_len for row_len in known or of_ceiling if row_len is not None)
    if len(row_lens) > 1:
        raise UserError(
            f"these runs were trained on rows of {' and '.join(map(str, row_lens))} tokens; compare context curves of one "
            f"context.train_len (of pretrained models one pretrained.train_len), and of a ceiling of {full_len}"
        )
    if len(ceilings) > 1:
        names = " and ".join(model.manifest["run"] for model in ceilings)
        raise UserError(
            f"{names} are both ceilings (rows as long as the full context, {full_len}); compare with one of them"
        )
    row_len = row_lens[0] if row_lens else None
    reference_len = read[0].lengths.local_len if row_len is None else row_len
    for model in read:
        if reference_len not in model.visible:
            remedy = f"give all of these runs context.local_len = {reference_len}"
            if reference_len > full_len:  # of a ceiling; there are no more local tokens than those of the full context
                remedy = f"measure the curves of all of these runs with context_curve.max_visible={reference_len}"
            raise UserError(
                f"the context curve of {model.manifest['run']} has no point at {reference_len} visible tokens, the training row "
                f"of the others; {remedy}"
            )
    return _ComparedLengths(reference_len, row_len, full_len)
