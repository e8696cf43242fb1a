"""Part files: each holds a fixed range of windows of one table and is written atomically."""

from __future__ import annotations

import re
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

import pyarrow as pa
import pyarrow.parquet as pq

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import remove_leftovers, written_whole
from olmo_sparsity.storage.manifests import read_manifest_of, write_manifest
from olmo_sparsity.tables.schemas import SCHEMA_VERSION, tables_of


def part_name(part: int) -> str:
    """Return the file name of a part in the folder of its table."""
    return f"part-{part:05d}.parquet"


def part_number(path: Path) -> Optional[int]:
    """Return the number of a part, as the name of its file tells it; None: it is no name of a part."""
    match = re.fullmatch(r"part-(\d{5,})\.parquet", path.name)
    return None if match is None else int(match[1])


def part_path(folder: Path, table: str, *, part: int) -> Path:
    """Return the path of a part of one table."""
    return folder / table / part_name(part)


def write_part(folder: Path, table: str, *, part: int, content: pa.Table, metadata: dict[str, str]) -> None:
    """Write one part file atomically.

    Args:
        folder: folder of the measurement.
        table: name of the table.
        part: number of the part.
        content: rows of the part, with the schema of the table.
        metadata: metadata of the file, besides the schema version and the name of the table.
    """
    path = part_path(folder, table, part=part)
    path.parent.mkdir(parents=True, exist_ok=True)
    identity = {"schema_version": SCHEMA_VERSION, "table": table, "part": str(part)}
    content = content.replace_schema_metadata({**identity, **metadata})
    with written_whole(path) as partial:
        write_parquet(content, partial)


def write_parquet(content: pa.Table, path: Path) -> None:
    """Write a table with checksums of its pages, which readers verify.

    The path is made absolute: pyarrow takes a ``~`` with which one begins for the home folder, and pathlib for a name.
    """
    pq.write_table(content, path.absolute(), compression="zstd", write_page_checksum=True)


def check_no_more_parts(folder: Path, table: str, *, num_parts: int) -> None:
    """Check that a table has no part beyond those that the manifest counts.

    Raises:
        UserError: it has one.
    """
    for path in sorted((folder / table).glob("part-*.parquet")):
        number = part_number(path)
        if number is not None and number >= num_parts:
            raise UserError(
                f"{path}: {folder / 'manifest.json'} counts num_parts = {num_parts} of this measurement, so there is no such "
                "part; the manifest was changed, or the file belongs elsewhere"
            )


def missing_parts(folder: Path, manifest: dict[str, Any]) -> list[int]:
    """Return the numbers of the parts that at least one table lacks.

    Raises:
        UserError: there are parts that the manifest does not count.
    """
    for table in tables_of(manifest):
        check_no_more_parts(folder, table, num_parts=manifest["num_parts"])
    present = [{path.name for path in (folder / table).glob("*.parquet")} for table in tables_of(manifest)]
    in_all_tables = set.intersection(*present)
    return [part for part in range(manifest["num_parts"]) if part_name(part) not in in_all_tables]


def finalize(folder: Path) -> int:
    """Mark a measurement as complete in its manifest if all parts exist, and return the number of missing parts.

    Any process may call this at any time, also repeatedly.
    """
    manifest = read_manifest_of(folder)
    if missing := missing_parts(folder, manifest):
        return len(missing)
    if manifest.get("status") != "complete":
        finished = datetime.now(timezone.utc).isoformat(timespec="microseconds")
        write_manifest(folder, {**manifest, "status": "complete", "finished": finished})
    remove_leftovers(folder, folder / "sessions", *(folder / table for table in tables_of(manifest)))
    return 0
