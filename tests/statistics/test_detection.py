"""Precision and recall against brute force, and of the tables of a validation."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from olmo_sparsity.config import Config
from olmo_sparsity.statistics.detection import LOSSES, _suite, detection, hits
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.view.as_json import detection_json

NUM = 12  # windows of each of the 4 suites of the validation


def test_hits_by_brute_force() -> None:
    rng = np.random.default_rng(0)
    ranked = np.stack([rng.permutation(9) for _ in range(40)])
    truth = [rng.permutation(9)[: rng.integers(1, 5)] for _ in range(40)]
    found = hits(ranked, truth)
    for w in range(40):
        for r in range(1, 10):
            assert found[w, r - 1] == len(set(ranked[w, :r].tolist()) & set(truth[w].tolist()))


def mean(estimate: Estimate | None) -> float:
    assert estimate is not None
    return estimate.mean


def test_validation_end_to_end(validated: tuple[Config, Path]) -> None:
    _, tables = validated
    planted, found = (read_table(tables, name).to_pandas() for name in ("planted", "found"))
    assert len(planted) == NUM * 4
    assert len(found) == NUM * 4 * 10
    assert all(sorted(ranked) == list(range(12)) for ranked in found["ranked_positions"])
    numbers = detection(tables)
    cells = [(suite.suite, suite.num_planted) for suite in numbers.suites]
    assert cells == [("needle-name", 1), ("needle-name", 2), ("needle-number", 1), ("needle-number", 2)]
    json.dumps(detection_json(numbers), allow_nan=False)
    for suite in numbers.suites:
        of = planted[(planted["suite"] == suite.suite) & (planted["num_planted"] == suite.num_planted)]
        for name in ("loss_short_nats", "loss_short_no_gap_nats", "loss_long_nats", "loss_planted_nats"):
            assert getattr(suite, name).mean == pytest.approx(of[name].mean(), abs=1e-6)
        assert suite.long_gain_nats.mean == pytest.approx(suite.loss_short_nats.mean - suite.loss_long_nats.mean)
        assert suite.chance == pytest.approx(of["planted_positions"].str.len().mean() / 12)
        for entry in suite.selectors:
            ranked = found[found["selector"] == entry.selector].set_index("window_id")["ranked_positions"]
            at_truth, precision, recall = [], [], []
            for window_id, truth in zip(of["window_id"], of["planted_positions"], strict=True):
                wanted = set(truth)
                at_truth.append(len(wanted & set(ranked[window_id][: len(wanted)])) / len(wanted))
                precision.append(len(wanted & set(ranked[window_id][:4])) / 4)
                recall.append(len(wanted & set(ranked[window_id][:4])) / len(wanted))
            assert mean(entry.precision_at_truth) == pytest.approx(np.mean(at_truth))
            (at_4,) = (at_k for at_k in entry.at_k if at_k.k == 4)
            assert mean(at_4.precision) == pytest.approx(np.mean(precision))
            assert mean(at_4.recall) == pytest.approx(np.mean(recall))
            local, full = 8, 20
            assert (suite.local_len, suite.full_len) == (local, full)
            distances = [full - np.mean(truth) for truth in of["planted_positions"]]
            for i, third in enumerate(entry.by_distance):
                low, high = (local + (full - local) * j / 3 for j in (i, i + 1))
                inside = [a for a, d in zip(at_truth, distances, strict=True) if low < d <= high]
                assert third.num_windows == len(inside)
                assert (third.precision_at_truth is not None) == bool(inside)
                if inside:
                    assert mean(third.precision_at_truth) == pytest.approx(np.mean(inside))


def test_a_third_with_many_windows_of_few_documents_has_no_interval() -> None:
    """The near third has 60 windows of 30 documents, the far one 60 windows of as many."""
    rng, num = np.random.default_rng(0), 120
    is_near = np.arange(num) < 60
    truth = [[int(position)] for position in np.where(is_near, 9, 2)]
    rows = pd.DataFrame(
        {
            "window_id": np.arange(num),
            "doc_id": [f"near {w // 2}" if near else f"far {w}" for w, near in enumerate(is_near)],
            "planted_positions": truth,
            "planted_distance_tokens": [20.0 - positions[0] for positions in truth],
            **{name: rng.random(num) for name in LOSSES},
        }
    )
    ranked = pd.DataFrame(
        {
            "window_id": np.arange(num),
            "selector": "kl",
            "ranked_positions": [np.roll(np.arange(12), -positions[0] + rng.integers(2)) for positions in truth],
        }
    )
    record = {"suite": "needle-name", "num_planted": 1, "local_len": 8, "full_len": 20}
    suite = _suite(rows, ranked, record=record, ks=[1])
    assert (suite.num_windows, suite.num_documents) == (120, 90)
    (of,) = suite.selectors
    near, middle, far = of.by_distance
    assert (near.num_windows, middle.num_windows, far.num_windows) == (60, 0, 60)
    assert near.precision_at_truth is not None and not near.precision_at_truth.has_interval
    assert far.precision_at_truth is not None and far.precision_at_truth.has_interval
