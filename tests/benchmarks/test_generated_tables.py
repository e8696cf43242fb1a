"""The tables that the benchmark of reading makes: real ones, with what was planted."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from benchmarks.generated_tables import RUN, SELECTORS, M, write_tables
from olmo_sparsity.statistics.single.measurement import SelectorInfo, load
from olmo_sparsity.statistics.single.summary import summarize
from olmo_sparsity.tables.reading import read_parts, read_table


def test_generated_tables_hold_what_was_planted(tmp_path: Path) -> None:
    write_tables(tmp_path, 2500, windows_per_part=1000)
    assert [part.num_rows for part in read_parts(tmp_path, "windows")] == [1000, 1000, 500]
    measurement = load(tmp_path)
    assert list(measurement.windows["window_id"]) == list(range(2500))
    assert 1000 < measurement.windows["doc_id"].nunique() < 2500
    entries = {tuple(selection.key): selection for selection in summarize(measurement).selections}
    both = {(selector, context, k) for selector in SELECTORS for context in ("real", "null") for k in RUN.ks}
    assert set(entries) == both
    for selector, context, k in both:
        entry = entries[selector, context, k]
        invented = SELECTORS[selector]
        long_gain = measurement.windows["gain_long_nats" if context == "real" else "null_gain_long_nats"].mean()
        expected = min(1, invented.share * k**0.5) * long_gain + invented.optimism * k**0.5
        assert entry.gain_sparse_nats is not None
        assert entry.gain_sparse_nats.mean == pytest.approx(expected, abs=0.01)  # five standard errors
        assert entry.info == SelectorInfo(invented.sees_target, invented.num_evaluations)
    for row in read_table(tmp_path, "selections").slice(0, 50).to_pylist():
        best = sorted(range(M), key=lambda j, scores=row["scores"]: (-scores[j], -j))  # of ties the nearer
        assert row["positions"] == best[: RUN.ks[-1]]
        assert row["distance_tokens"] == [48 - j for j in best[: RUN.ks[-1]]]
        assert np.subtract(row["loss_sparse_nats"], row["loss_sparse_nats"][0]) == pytest.approx(
            np.subtract(row["gain_sparse_nats"][0], row["gain_sparse_nats"]), abs=1e-5
        )
