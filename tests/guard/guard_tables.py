"""Tables of one measurement as plain columns, and their comparison with frozen ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
from guard_commands import EXPECTED

NATS = 2e-5  # tolerance of losses, divergences and scores
TIED = 1e-4  # scores nearer than this may swap places
KEYS = {"windows": ["window_id"], "selections": ["window_id", "selector", "context", "draw"]}
PER_K = ("loss_sparse_nats", "gain_sparse_nats", "kl_sparse_nats", "kl_short_to_sparse_nats", "num_tokens")


def read(folder: Path, table: str) -> pd.DataFrame:
    """Return a table of a measurement in the order of its keys."""
    return pq.read_table(folder / table).to_pandas().sort_values(KEYS[table]).reset_index(drop=True)


def assert_equal(found: pd.DataFrame, frozen: pd.DataFrame) -> None:
    """Integers and strings must be equal, floats within ``NATS``; tied positions may have swapped places."""
    assert set(frozen.columns) <= set(found.columns), set(frozen.columns) - set(found.columns)
    assert len(found) == len(frozen)
    swapped = _swapped_rows(found, frozen) if "positions" in frozen else np.zeros(len(frozen), dtype=bool)
    for name in frozen.columns:
        follows_order = name in (*PER_K, "positions", "distance_tokens", "group_first", "group_last")
        rows = ~swapped if "positions" in frozen and follows_order else np.ones(len(frozen), dtype=bool)
        _assert_column(found.loc[rows, name].tolist(), frozen.loc[rows, name].tolist(), name)


def _assert_column(found: list[Any], frozen: list[Any], name: str) -> None:
    if name == "scores":  # `gradient` has no bound: relative to the largest score of the row
        scales = [max(1.0, np.nanmax(np.abs(row))) for row in frozen]
        found, frozen = ([row / scale for row, scale in zip(rows, scales, strict=True)] for rows in (found, frozen))
    sizes = [None if value is None else np.size(value) for value in frozen]
    assert [None if value is None else np.size(value) for value in found] == sizes, name
    flat_found, flat_frozen = (
        np.concatenate([np.ravel(value) for value in values if value is not None] or [np.empty(0)])
        for values in (found, frozen)
    )
    if flat_frozen.dtype.kind == "f":
        np.testing.assert_allclose(flat_found, flat_frozen, atol=NATS, rtol=2e-6, equal_nan=True, err_msg=name)
    else:
        assert flat_found.tolist() == flat_frozen.tolist(), name


def _swapped_rows(found: pd.DataFrame, frozen: pd.DataFrame) -> np.ndarray:
    """Return which rows have the same choices in another order, whose scores must be tied."""
    swapped = np.zeros(len(frozen), dtype=bool)
    for row, (here, there) in enumerate(zip(found["positions"], frozen["positions"], strict=True)):
        if np.array_equal(here, there) or len(here) != len(there):
            continue
        scores = frozen["scores"][row]
        if len(scores) <= max(*here, *there):
            continue  # scores of groups, which are few: no ties
        swapped[row] = bool((np.abs(scores[here] - scores[there]) < TIED).all())
    return swapped


def assert_numbers(name: str, found: dict[str, Any], *, tolerance: float) -> None:
    """Compare with ``expected/NAME.json``: floats within a tolerance, everything else equal; nothing frozen may be missing."""
    frozen = json.loads((EXPECTED / f"{name}.json").read_text(encoding="utf-8"))
    assert frozen.keys() <= found.keys(), frozen.keys() - found.keys()
    for key, value in frozen.items():
        if isinstance(value, float) and found[key] is not None:
            assert abs(found[key] - value) <= tolerance, f"{key}: {found[key]} instead of {value}"
        else:
            assert found[key] == value, f"{key}: {found[key]} instead of {value}"


def assert_tables(name: str, folder: Path) -> None:
    """Compare a measurement with the rows ``NAME`` of ``expected/windows.parquet`` and ``expected/selections.parquet``."""
    for table in KEYS:
        frozen = pq.read_table(EXPECTED / f"{table}.parquet", filters=[("setting", "=", name)]).to_pandas()
        frozen = frozen.drop(columns="setting").dropna(axis="columns", how="all").reset_index(drop=True)
        assert len(frozen) > 0, f"nothing is frozen of {name}"
        assert_equal(read(folder, table), frozen)
