"""The numbers of a context curve."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from olmo_sparsity.statistics.intervals.bootstrap import defined_estimates, document_units
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.measurement import Lengths
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.tables.reading import list_rows, read_manifest, read_parts


@dataclass(frozen=True)
class CurvePoint:
    """The mean loss of the targets when only the most recent tokens are visible.

    Attributes:
        num_visible_tokens: how many are visible.
        loss_nats: mean loss, as all means here weighted.
        change_nats: the loss minus that with ``Lengths.len_before_gain`` visible tokens, window by window.
    """

    num_visible_tokens: int
    loss_nats: Estimate
    change_nats: Estimate


@dataclass(frozen=True)
class ContextCurve:
    """Mean loss against the number of visible recent tokens, with the same targets at every number.

    Attributes:
        run: name of the run.
        source: the text that was measured.
        split: the part of it.
        num_windows: number of windows.
        num_documents: number of documents that they come from.
        windows_sha256: fingerprint of the choice of windows.
        tokens_sha256: fingerprint of the tokens.
        lengths: lengths and positions of the experiment.
        setup: the model, and the first token.
        points: from few visible tokens to many.
    """

    run: str
    source: str
    split: str
    num_windows: int
    num_documents: int
    windows_sha256: str
    tokens_sha256: str
    lengths: Lengths
    setup: ModelSetup
    points: tuple[CurvePoint, ...]


def context_curve(folder: Path) -> ContextCurve:
    """Read a context curve and estimate its losses.

    Raises:
        UserError: the table is missing, unfinished or of another schema.
    """
    manifest = read_manifest(folder, "context-curve")
    lengths = Lengths.from_manifest(manifest)
    visible = [int(number) for number in manifest["num_visible_tokens"]]
    sums = loss_sums(folder, visible)

    def quantities(totals: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        means = {number: totals[number] / totals["weights"] for number in visible}
        changes = {("change", number): means[number] - means[lengths.len_before_gain] for number in visible}
        return {**means, **changes}

    estimate_of = defined_estimates(sums, quantities)
    points = [CurvePoint(number, estimate_of[number], estimate_of["change", number]) for number in visible]
    return curve_of_points(manifest, points)


def curve_of_points(manifest: dict[str, Any], points: Sequence[CurvePoint]) -> ContextCurve:
    """Return the curve with these points of a measurement with this manifest."""
    return ContextCurve(
        run=manifest["run"],
        source=manifest["source"],
        split=manifest["split"],
        num_windows=manifest["num_windows"],
        num_documents=manifest["num_documents"],
        windows_sha256=manifest["windows_sha256"],
        tokens_sha256=manifest["tokens_sha256"],
        lengths=Lengths.from_manifest(manifest),
        setup=ModelSetup.from_manifest(manifest),
        points=tuple(points),
    )


def loss_sums(folder: Path, visible: list[int]) -> dict[Any, np.ndarray]:
    """Return the sum of ``weights`` and the weighted sum of losses at each number of visible tokens, float64 [U]."""
    doc_ids, weights, losses = [], [], []
    for part in read_parts(folder, "curve", columns=["doc_id", "weight", "num_visible_tokens", "loss_nats"]):
        doc_ids.append(part["doc_id"].to_pandas())
        weights.append(part["weight"].to_numpy())
        losses.append(list_rows(part["loss_nats"]))
    weight_W, losses_WN = np.concatenate(weights), np.concatenate(losses)
    units = document_units(pd.concat(doc_ids, ignore_index=True))
    sums: dict[Any, np.ndarray] = {"weights": units.sums(weight_W)}
    for i, number in enumerate(visible):
        sums[number] = units.sums(weight_W * losses_WN[:, i])
    return sums
