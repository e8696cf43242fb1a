"""Tables of many windows: the numbers of those that they repeat."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from unlike_tables import unlike_manifest, unlike_rows, write_rows

from benchmarks.many_windows import repeat
from olmo_sparsity.statistics.frames import read_frames
from olmo_sparsity.statistics.quantities import estimate


def test_repeated_windows_have_the_same_numbers_and_documents_of_their_own(tmp_path: Path) -> None:
    manifest = unlike_manifest(unit="word")
    write_rows(tmp_path / "small", manifest, unlike_rows(manifest))  # 120 windows of 60 documents
    repeat(tmp_path / "small", tmp_path / "large", 360)
    small, large = (estimate(read_frames(tmp_path / name)) for name in ("small", "large"))
    pd.testing.assert_frame_equal(large[["quantity", "k", "x"]], small[["quantity", "k", "x"]])
    assert large["value"].to_numpy() == pytest.approx(small["value"].to_numpy(), abs=1e-6)
    assert set(large["n_windows"]) == {360}
    assert set(large["n_documents"]) == {180}
    means = small["quantity"].eq("gain_sparse_nats")
    assert np.median(large["se"][means] / small["se"][means]) == pytest.approx(3**-0.5, rel=0.05)


def test_the_last_part_is_cut(tmp_path: Path) -> None:
    manifest = unlike_manifest()
    write_rows(tmp_path / "small", manifest, unlike_rows(manifest))
    repeat(tmp_path / "small", tmp_path / "large", 250)
    windows = read_frames(tmp_path / "large").windows
    assert windows["window_id"].tolist() == list(range(250))
