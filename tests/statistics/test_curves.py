"""Context curves: every mean, change and interval by a loop over windows and documents."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
from made_up_runs import FULL, POSE, VISIBLE, made_up_curve, made_up_run

from olmo_sparsity.statistics.curves import context_curve, loss_sums
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.measurement import Lengths
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.storage.files import read_json

ROW_LEN = 12  # of a training row, which is longer than the local tokens


def unequal_windows(folder: Path) -> tuple[Path, np.ndarray, list[int]]:
    """Write a curve of 1 to 5 windows a document, in no order; return its folder, the losses [W, N], and the documents."""
    rng = np.random.default_rng(14)
    document_W = rng.permutation(np.repeat(np.arange(70), rng.integers(1, 6, 70)))
    losses_WN = 5 + rng.normal(0, 1, 70)[document_W, None] + rng.normal(0, 1, (len(document_W), len(VISIBLE)))
    run = made_up_run(folder / "uneven", row_len=ROW_LEN)
    curve = made_up_curve(
        run, losses_WN, doc_ids=[f"{d:016x}" for d in document_W], row_len=ROW_LEN, windows_sha256="x"
    )
    return curve, losses_WN.astype(np.float32).astype(float), document_W.tolist()


def test_points_by_brute_force(tmp_path: Path) -> None:
    folder, losses_WN, document_W = unequal_windows(tmp_path)
    documents = list(dict.fromkeys(document_W))
    draws = np.random.default_rng(0).integers(0, len(documents), (2000, len(documents)))

    def means(values_W: np.ndarray) -> tuple[float, np.ndarray]:
        """Return the weighted mean over the windows, and in every resample of the documents."""
        weights, totals = dict.fromkeys(documents, 0.0), dict.fromkeys(documents, 0.0)
        for i, (document, value) in enumerate(zip(document_W, values_W, strict=True)):
            weights[document] += (1, 2, 3)[i % 3]
            totals[document] += (1, 2, 3)[i % 3] * value
        weight_U, total_U = np.array(list(weights.values())), np.array(list(totals.values()))
        return total_U.sum() / weight_U.sum(), total_U[draws].sum(axis=1) / weight_U[draws].sum(axis=1)

    points = context_curve(folder).points
    assert [point.num_visible_tokens for point in points] == VISIBLE
    for i, point in enumerate(points):
        changes_W = losses_WN[:, i] - losses_WN[:, VISIBLE.index(ROW_LEN)]
        for found, (mean, resampled) in (
            (point.loss_nats, means(losses_WN[:, i])),
            (point.change_nats, means(changes_W)),
        ):
            low, high = np.percentile(resampled, [2.5, 97.5])
            expected = Estimate(mean, low, high, np.std(resampled, ddof=1))
            assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(expected), abs=1e-9)


def test_a_curve_says_what_was_measured(tmp_path: Path) -> None:
    folder, losses_WN, document_W = unequal_windows(tmp_path)
    curve, manifest = context_curve(folder), read_json(folder / "manifest.json")
    assert (curve.run, curve.source, curve.split) == ("uneven", "made up", "validation")
    assert (curve.num_windows, curve.num_documents) == (len(losses_WN), len(set(document_W)))
    assert (curve.windows_sha256, curve.tokens_sha256) == ("x", "t")
    with_preceding = {**manifest, "min_preceding": 40}
    assert Lengths.from_manifest(with_preceding) == dataclasses.replace(curve.lengths, min_preceding=40)
    of_tables = {**with_preceding, "influence": {"min_preceding": 30}}  # the key of a curve is none of other tables
    assert Lengths.from_manifest(of_tables).min_preceding == 30
    assert curve.lengths == Lengths.from_manifest(manifest) and curve.setup == ModelSetup.from_manifest(manifest)
    assert (curve.lengths.train_len, curve.lengths.full_len, POSE.num_chunks) == (
        ROW_LEN,
        FULL,
        curve.lengths.num_chunks,
    )


def test_sums_are_of_the_columns_of_their_lengths(tmp_path: Path) -> None:
    folder, losses_WN, _ = unequal_windows(tmp_path)
    sums, weight_W = loss_sums(folder, VISIBLE), 1.0 + np.arange(len(losses_WN)) % 3
    assert list(sums) == ["weights", *VISIBLE] and sums["weights"].sum() == weight_W.sum()
    for i, number in enumerate(VISIBLE):
        assert sums[number].sum() == pytest.approx(weight_W @ losses_WN[:, i])
