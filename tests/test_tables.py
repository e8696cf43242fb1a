from __future__ import annotations

import shutil
from pathlib import Path

import duckdb
import pandas as pd
import polars as pl
import pyarrow.parquet as pq
import pytest

from olmo_sparsity.config import UserError
from olmo_sparsity.manifest import read_json, write_json
from olmo_sparsity.tables import SCHEMA_VERSION, part_path, read_table, schemas


@pytest.fixture
def copy(tiny_tables: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_tables, tmp_path / "tables"))


@pytest.mark.parametrize("table", ["windows", "selections"])
def test_pandas_polars_and_duckdb_read_the_same(tiny_tables: Path, table: str) -> None:
    ours = read_table(tiny_tables, table)
    assert ours.schema.equals(schemas(12)[table])
    files = str(tiny_tables / table / "*.parquet")
    from_pandas = pd.read_parquet(tiny_tables / table)
    from_polars = pl.read_parquet(files)
    from_duckdb = duckdb.sql(f"select * from '{files}'").fetchall()
    expected = ours.to_pylist()
    assert list(from_pandas.columns) == from_polars.columns == ours.column_names
    assert from_polars.to_dicts() == expected
    assert [dict(zip(ours.column_names, row, strict=True)) for row in from_duckdb] == expected
    assert len(from_pandas) == len(expected)
    for column in ("window_id", "doc_id"):
        assert from_pandas[column].tolist() == [row[column] for row in expected]


def test_metadata_says_what_it_is(tiny_tables: Path) -> None:
    metadata = pq.read_schema(part_path(tiny_tables, "windows", 0)).metadata
    assert metadata[b"schema_version"].decode() == SCHEMA_VERSION
    assert metadata[b"run_id"].decode() == read_json(tiny_tables / "manifest.json")["run_id"]
    assert metadata[b"full_len"] == b"20"


def test_another_schema_is_refused(copy: Path) -> None:
    path = part_path(copy, "windows", 1)
    table = pq.read_table(path)
    pq.write_table(table.replace_schema_metadata({"schema_version": "99"}), path)
    with pytest.raises(UserError, match="schema version 99"):
        read_table(copy, "windows")
    pq.write_table(table.drop_columns(["loss_long_nats"]), path)
    with pytest.raises(UserError, match="measure again"):
        read_table(copy, "windows")


def test_missing_cut_and_unfinished_tables_are_refused(copy: Path, tmp_path: Path) -> None:
    path = part_path(copy, "selections", 0)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(UserError, match="cut short"):
        read_table(copy, "selections")
    path.unlink()
    with pytest.raises(UserError, match="missing"):
        read_table(copy, "selections")
    write_json(copy / "manifest.json", {**read_json(copy / "manifest.json"), "status": "running"})
    with pytest.raises(UserError, match="unfinished"):
        read_table(copy, "windows")
    with pytest.raises(UserError, match="is no influence folder"):
        read_table(tmp_path, "windows")
    with pytest.raises(UserError, match="no influence tables"):
        read_table(tmp_path / "nothing", "windows")
