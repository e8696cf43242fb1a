"""Part files: each holds a fixed range of windows, and appears whole or not at all."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from olmo_sparsity.storage.files import (
    partial_path,
    read_json,
    remove_leftovers,
    rename_into_place,
    write_json,
)
from olmo_sparsity.tables.schemas import SCHEMA_VERSION, tables_of


def part_name(part: int) -> str:
    """The file name of a part, in the folder of its table."""
    return f"part-{part:05d}.parquet"


def part_path(folder: Path, table: str, part: int) -> Path:
    """Where a part of a table lies."""
    return folder / table / part_name(part)


def write_part(
    folder: Path, table: str, part: int, columns: dict[str, Any], schema: pa.Schema, facts: dict[str, str]
) -> None:
    """Writes one part file, whole or not at all; ``facts`` and the schema version go into its metadata."""
    path = part_path(folder, table, part)
    path.parent.mkdir(parents=True, exist_ok=True)
    metadata = {"schema_version": SCHEMA_VERSION, "table": table, **facts}
    content = pa.table(columns, schema=schema.with_metadata(metadata))
    partial = partial_path(path)
    pq.write_table(content, partial, compression="zstd", write_page_checksum=True)  # `merge --check` reads them
    rename_into_place(partial, path)


def missing_parts(folder: Path, manifest: dict[str, Any]) -> list[int]:
    """Numbers of the parts that are not there, in every table."""
    there = [{path.name for path in (folder / name).glob("*.parquet")} for name in tables_of(manifest)]
    in_all = set.intersection(*there)
    return [part for part in range(manifest["num_parts"]) if part_name(part) not in in_all]


def close(folder: Path) -> int:
    """Says in the manifest that the measurement is complete, if it is; returns how many parts are missing.

    Any process may ask, at any time, again and again.
    """
    manifest = read_json(folder / "manifest.json")
    if missing := missing_parts(folder, manifest):
        return len(missing)
    if manifest.get("status") != "complete":
        finished = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        write_json(folder / "manifest.json", {**manifest, "status": "complete", "finished": finished})
    remove_leftovers(folder, folder / "sessions", *(folder / name for name in tables_of(manifest)))
    return 0
