"""What ``olmo-sparsity merge`` prints of tables that are complete, and of those that are not."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from planted_measurements import PLANTED, write
from printed_text import Printed
from syrupy.assertion import SnapshotAssertion

from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.parts import part_path, write_part
from olmo_sparsity.tables.reading import read_table


def rewrite(
    folder: Path, table: str, part: int, change: Callable[[pa.Table], pa.Table], *, run_id: str = "r17"
) -> None:
    path = part_path(folder, table, part=part)
    content = pq.read_table(path, partitioning=None)
    path.unlink()
    write_part(
        folder, table, part=part, content=change(content).replace_schema_metadata(None), metadata={"run_id": run_id}
    )


def without_some(folder: Path) -> None:
    rewrite(folder, "windows", 1, lambda rows: rows.slice(0, len(rows) - 2))
    part_path(folder, "selections", part=2).unlink()


def twice(folder: Path) -> None:
    rewrite(folder, "selections", 0, lambda rows: pa.concat_tables([rows, rows.slice(0, 3)]))


def fewer(folder: Path) -> None:
    rewrite(folder, "selections", 0, lambda rows: rows.slice(2))


def damaged(folder: Path) -> None:
    path = part_path(folder, "windows", part=0)
    path.write_bytes(path.read_bytes()[:200])
    shutil.copy(part_path(folder, "selections", part=1), part_path(folder, "selections", part=7))


def foreign(folder: Path) -> None:
    rewrite(folder, "windows", 2, lambda rows: rows, run_id="another")
    rewrite(folder, "selections", 2, lambda rows: rows.drop_columns(["k"]))


def beyond(folder: Path) -> None:
    manifest = read_json(folder / "manifest.json")
    write_manifest(folder, {**manifest, "num_windows": 20, "status": "running"})


def unfinished(folder: Path) -> None:
    manifest = read_json(folder / "manifest.json")
    write_manifest(folder, {**manifest, "status": "running"})


def other_values(folder: Path) -> None:
    column = lambda rows: rows.set_column(2, "weight", pa.array([9.0] * len(rows)))  # noqa: E731
    rewrite(folder, "windows", 1, column)


def other_run(folder: Path) -> None:
    manifest = read_json(folder / "manifest.json")
    write_manifest(folder, {**manifest, "run_id": "another"})


@pytest.mark.parametrize(
    "change", [None, without_some, twice, fewer, damaged, foreign, beyond, unfinished, other_values, other_run]
)
def test_merge(
    change: Callable[[Path], None] | None,
    tmp_path: Path,
    printed: Printed,
    snapshot: SnapshotAssertion,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of = replace(PLANTED["gap"], num_documents=27, draws=1)
    whole, folder = write(tmp_path / "whole", of), write(tmp_path / "tables", of)
    if change is not None:
        change(folder)
    monkeypatch.chdir(tmp_path)
    said = [printed("merge tables --check"), printed("merge whole tables --out merged")]
    assert said == snapshot
    if change is None:
        assert read_table(Path("merged"), "windows").equals(read_table(whole, "windows"))
