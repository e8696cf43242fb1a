"""Results without lists in their cells, and a Python session without warnings of libraries."""

from __future__ import annotations

import dataclasses
import itertools
import subprocess
import sys
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pytest
from made_up import made_up_tables

from olmo_sparsity import api


@pytest.fixture(scope="module")
def results(tiny_tables: Path) -> api.Results:
    return api.read_results(tiny_tables)


def of_window(window: pd.Series, name: str, context: str) -> float:
    if "resampled" in context:
        return np.nan  # of another label
    return float(window[name if context == "real" or name == "loss_short_nats" else f"null_{name}"])


def test_tidy_has_every_number_of_every_selection_once(results: api.Results) -> None:
    tidy = results.tidy()
    assert not any(isinstance(value, (list, np.ndarray)) for value in tidy.iloc[0])
    names = [name for name in tidy if name in results.selections and name not in ("window_id", "k")]
    per_k = [name for name in names if isinstance(results.selections[name].iloc[0], np.ndarray)]
    assert {"loss_sparse_nats", "gain_sparse_nats"} <= set(per_k)
    expected = {}
    for row, window in itertools.product(results.selections.itertuples(), [results.windows.set_index("window_id")]):
        for index, k in enumerate(row.k):
            key = (row.window_id, row.selector, row.context, row.draw, k)
            assert key not in expected
            lists = {name: getattr(row, name) for name in per_k}
            expected[key] = {name: np.nan if values is None else values[index] for name, values in lists.items()} | {
                name: of_window(window.loc[row.window_id], name, row.context)
                for name in ("loss_short_nats", "loss_long_nats", "gain_long_nats")
            }
            expected[key] |= {
                name: window[name][row.window_id]
                for name in ("doc_id", "weight", "source", "target_class", "target_text")
            }
            expected[key] |= {"sees_target": row.sees_target, "num_evaluations": row.num_evaluations}
    assert len(tidy) == len(expected)
    of_windows = ["window_id", "doc_id", "weight", "source", "target_class", "target_text", "loss_short_nats"]
    of_choice = ["selector", "context", "draw", "sees_target", "num_evaluations", "k"]
    of_context = ["loss_long_nats", "gain_long_nats"]
    assert sorted(tidy) == sorted([*of_windows, *of_context, *of_choice, *per_k, "kl_short_to_sparse_nats"])
    assert {"real", "null", "resampled"} <= set(tidy["context"])
    for found in tidy.to_dict("records"):
        key = tuple(found[name] for name in ("window_id", "selector", "context", "draw", "k"))
        for name, value in expected[key].items():
            assert found[name] == value or (pd.isna(found[name]) and pd.isna(value)), (key, name)


def test_tidy_of_frames_that_were_joined_is_that_of_their_rows(results: api.Results) -> None:
    """Whose index repeats."""
    real, null = (
        results.selections.query(f"context == '{context}'").reset_index(drop=True) for context in ("real", "null")
    )
    joined = dataclasses.replace(results, selections=pd.concat([real, null])).tidy()
    order = ["window_id", "selector", "context", "k"]
    expected = results.tidy().query("context in ('real', 'null')")
    pd.testing.assert_frame_equal(
        joined.sort_values(order, ignore_index=True), expected.sort_values(order, ignore_index=True)
    )


def test_quantiles_of_the_spectrum_are_needs_that_were_found(results: api.Results) -> None:
    """Those of docs/python.md: none is between two k, and none is missing beside infinity."""
    spectrum = results.spectrum().query("context == 'real' and tolerance_nats == 0.05")
    found = spectrum.groupby("selector")["k"].quantile([0.5, 0.9], interpolation="higher")
    assert set(found) <= {0.0, *results.selections["k"].iloc[0].astype(float), np.inf}
    assert len(found) == 2 * spectrum["selector"].nunique()


def test_a_fraction_of_a_gain_that_is_not_shown_is_missing(tmp_path: Path) -> None:
    for long_gain in (0.5, 0.0):
        folder = made_up_tables(
            tmp_path / str(long_gain), long_gain=long_gain, selectors=["kl", "unmask-one", "random"]
        )
        found = api.read_results(folder).summary()
        low = found.query("quantity == 'gate_gain_nats'")["low"].item()
        assert ("recovered_fraction" in set(found["quantity"])) == (low > 0) == (long_gain > 0)


def test_results_are_equal_to_themselves_alone(tmp_path: Path) -> None:
    """Two that were read from one folder have frames that pandas would compare cell by cell."""
    folder = made_up_tables(tmp_path / "tables", num_documents=4, selectors=["kl", "random"])
    one, other = api.read_results(folder), api.read_results(folder)
    assert one == one and one != other and len({one, other, one}) == 2


def test_polars_and_duckdb_give_what_pandas_gives(results: api.Results) -> None:
    """The queries of docs/python.md."""
    tidy = results.tidy()
    expected = tidy.query("context == 'real'").groupby(["selector", "k"])["gain_sparse_nats"].mean().to_dict()
    real = pl.from_pandas(tidy).filter(pl.col("context") == "real")
    of_polars = real.group_by("selector", "k").agg(pl.col("gain_sparse_nats").mean()).rows()
    of_duckdb = duckdb.sql(
        "SELECT selector, k, avg(gain_sparse_nats) FROM tidy WHERE context = 'real' GROUP BY ALL"
    ).fetchall()
    for rows in (of_polars, of_duckdb):
        assert {(selector, k): mean for selector, k, mean in rows} == pytest.approx(expected)


def test_opening_a_model_shows_no_warning_of_a_library(tiny_run: Path) -> None:
    code = "import sys; from olmo_sparsity import api; api.open_model(sys.argv[1])"
    done = subprocess.run(
        [sys.executable, "-W", "default::DeprecationWarning:__main__", "-c", code, str(tiny_run)],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert "Warning" not in done.stderr
