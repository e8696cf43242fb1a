from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_up import ROWS_PER_WINDOW, made_up_tables

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.kinds import KINDS
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.parts import part_path, write_parquet
from olmo_sparsity.tables.reading import list_rows, read_parts, read_table, read_windows, rows_by_choice
from olmo_sparsity.tables.schemas import COLUMNS, ROW_MEANINGS, SCHEMA_VERSION, schemas


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


def test_a_folder_that_is_named_like_the_home_folder_is_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As shells leave it in ``--out=~/tables``: pyarrow alone would take it for the home folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    tables = made_up_tables(Path("~/tables"), 4)
    assert read_table(tables, "windows").num_rows > 0
    assert [path.name for path in tmp_path.iterdir()] == ["~"]


def test_metadata_identifies_the_measurement(tiny_tables: Path) -> None:
    metadata = pq.read_schema(part_path(tiny_tables, "windows", part=0)).metadata
    assert metadata[b"schema_version"].decode() == SCHEMA_VERSION
    assert metadata[b"run_id"].decode() == read_json(tiny_tables / "manifest.json")["run_id"]
    assert metadata[b"full_len"] == b"20"


def test_another_schema_is_refused(copy: Path) -> None:
    path = part_path(copy, "windows", part=1)
    table = pq.read_table(path)
    write_parquet(table.replace_schema_metadata({"schema_version": "99"}), path)
    with pytest.raises(UserError, match="schema version 99"):
        read_table(copy, "windows")
    write_parquet(table.drop_columns(["loss_long_nats"]), path)
    with pytest.raises(UserError, match=r"again, with --overwrite$"):
        read_table(copy, "windows")


def test_missing_cut_and_unfinished_tables_are_refused(copy: Path, tmp_path: Path) -> None:
    path = part_path(copy, "selections", part=0)
    path.write_bytes(path.read_bytes()[:-50])
    with pytest.raises(UserError, match="cut short"):
        read_table(copy, "selections")
    path.unlink()
    with pytest.raises(UserError, match="missing"):
        read_table(copy, "selections")
    write_manifest(copy, {**read_json(copy / "manifest.json"), "status": "running"})
    with pytest.raises(UserError, match="unfinished"):
        read_table(copy, "windows")
    with pytest.raises(UserError, match="is no influence folder"):
        read_table(tmp_path, "windows")
    with pytest.raises(UserError, match="no influence tables"):
        read_table(tmp_path / "nothing", "windows")


def test_every_table_and_column_is_explained_and_no_explanation_is_written(tiny_tables: Path) -> None:
    assert set(COLUMNS) == set(ROW_MEANINGS) == {table for kind in KINDS.values() for table in kind.tables}
    for table, columns in COLUMNS.items():
        assert [column.name for column in columns] == schemas(12, "word", has_places=True)[table].names
        of_tokens = [column.name for column in columns if not (column.only_of_groups or column.only_of_places)]
        assert of_tokens == schemas(12)[table].names
        assert all(column.meaning.endswith(".") for column in columns)
    for table in ("windows", "selections"):
        assert all(field.metadata is None for field in read_table(tiny_tables, table).schema)


SIZES = (1, 50, 7, 32)  # windows in each part


@pytest.fixture(scope="module")
def uneven(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_tables(tmp_path_factory.mktemp("uneven") / "tables", part_sizes=SIZES)


def test_parts_are_read_in_order_and_hold_all_rows_of_their_windows(uneven: Path) -> None:
    for table, rows_per_window in (("windows", 1), ("selections", ROWS_PER_WINDOW)):
        first = 0
        for number, (part, size) in enumerate(zip(read_parts(uneven, table), SIZES, strict=True)):
            assert part.equals(pq.read_table(part_path(uneven, table, part=number)).replace_schema_metadata(None))
            ids, counts = np.unique(part["window_id"], return_counts=True)
            assert ids.tolist() == list(range(first, first + size))
            assert set(counts.tolist()) == {rows_per_window}
            first += size
        assert first == 90
    (columns,) = {
        tuple(part.column_names) for part in read_parts(uneven, "selections", columns=["context", "window_id"])
    }
    assert set(columns) == {"context", "window_id"}


def test_parts_are_opened_one_at_a_time(uneven: Path, tmp_path: Path) -> None:
    """A missing part raises only when the reader gets to it."""
    tables = Path(shutil.copytree(uneven, tmp_path / "tables"))
    part_path(tables, "windows", part=2).unlink()
    parts = read_parts(tables, "windows")
    assert [next(parts).num_rows, next(parts).num_rows] == [1, 50]
    said = r"part-00002\.parquet: this part is missing; run the same `olmo-sparsity influence` again, it continues$"
    with pytest.raises(UserError, match=said):
        next(parts)


@pytest.mark.parametrize("window_id", [0, 1, 50, 57, 89])
def test_the_rows_of_one_window(uneven: Path, window_id: int) -> None:
    for table in ("windows", "selections"):
        expected = [row for row in read_table(uneven, table).to_pylist() if row["window_id"] == window_id]
        assert len(expected) == (1 if table == "windows" else ROWS_PER_WINDOW)
        assert read_windows(uneven, table, window_ids=[window_id]) == expected
    assert read_windows(uneven, "windows", window_ids=[90]) == []


@pytest.mark.parametrize("window_ids", [[], [89, 0], range(40, 60), [90, 57, 57], range(90)])
def test_the_rows_of_some_windows(uneven: Path, window_ids: Sequence[int]) -> None:
    for table in ("windows", "selections"):
        expected = [row for row in read_table(uneven, table).to_pylist() if row["window_id"] in window_ids]
        assert read_windows(uneven, table, window_ids=window_ids) == expected


def test_a_window_is_found_without_reading_the_texts_of_others(uneven: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[object] = []
    original_read = pq.ParquetFile.read
    monkeypatch.setattr(
        pq.ParquetFile, "read", lambda self, columns=None: read.append(columns) or original_read(self, columns=columns)
    )
    read_windows(uneven, "windows", window_ids=[52])
    assert read == [["window_id"]] * 3 + [None]
    read.clear()
    read_windows(uneven, "windows", window_ids={52, 3})
    assert read == [["window_id"]] * 2 + [None, ["window_id"], None]


@pytest.mark.parametrize("contexts", [("real", "null"), ("resampled",)])
def test_rows_by_choice_against_a_filter(uneven: Path, contexts: tuple[str, ...]) -> None:
    for part in read_parts(uneven, "selections"):
        rows = part.to_pylist()
        choice_rows = list(rows_by_choice(part, contexts=contexts))
        choices = [(choice.selector, choice.context) for choice in choice_rows]
        expected = dict.fromkeys((row["selector"], row["context"]) for row in rows)
        assert choices == [choice for choice in expected if choice[1] in contexts]
        for choice in choice_rows:
            assert choice.rows_r.tolist() == [
                i
                for i, row in enumerate(rows)
                if (row["selector"], row["context"]) == (choice.selector, choice.context)
            ]


@pytest.mark.parametrize("kind", [pa.list_(pa.float32()), pa.list_(pa.float32(), 2)])
def test_list_rows(kind: pa.DataType) -> None:
    column = pa.chunked_array([pa.array([[1, 2], [3, 4]], kind), pa.array([[5, 6]], kind)])
    assert list_rows(column).tolist() == [[1, 2], [3, 4], [5, 6]]
    assert list_rows(column.slice(1)).tolist() == [[3, 4], [5, 6]]
    assert list_rows(column).dtype == np.float32
