"""The tables: Arrow schemas, part files that appear whole or not at all, checked reading. Imports no torch.

An influence folder holds one folder a table, each with Parquet part files of consecutive windows. Missing is null.
Units are in the names: ``*_nats``, ``*_tokens``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.folders import is_folder_of_kind
from olmo_sparsity.tables.parts import part_path
from olmo_sparsity.tables.schemas import COMMANDS, SCHEMA_VERSION, TABLES, schemas


def read_manifest(folder: Path, kind: str = "influence") -> dict[str, Any]:
    """The manifest of a finished folder of one kind (a key of ``TABLES``).

    Raises:
        UserError: it is none, or is unfinished.
    """
    if not is_folder_of_kind(folder, kind):
        raise UserError(f"{folder}: there are no {kind} tables here; run `olmo-sparsity {COMMANDS[kind]}` first")
    manifest = read_json(folder / "manifest.json")
    if manifest.get("status") != "complete":
        raise UserError(
            f"{folder}: these tables are unfinished; run the same `olmo-sparsity {COMMANDS[kind]}` again, it goes on"
        )
    return manifest


def _open_part(path: Path, table: str, kind: str, expected: pa.Schema) -> pq.ParquetFile:
    """A part whose footer says that it is of this table and version; nothing else is read yet."""
    try:
        file = pq.ParquetFile(path)
        found = file.schema_arrow
    except FileNotFoundError:
        raise UserError(
            f"{path}: this part is missing; measure again with `olmo-sparsity {COMMANDS[kind]} --overwrite`"
        ) from None
    except (pa.ArrowException, OSError):
        raise UserError(f"{path}: not a Parquet file, or cut short; measure again with --overwrite") from None
    version = (found.metadata or {}).get(b"schema_version", b"none").decode(errors="replace")
    if version != SCHEMA_VERSION or not found.equals(expected, check_metadata=False):
        raise UserError(
            f"{path}: schema version {version} and columns {', '.join(found.names)}; this is olmo-sparsity's "
            f"{table} table, version {SCHEMA_VERSION}, with {', '.join(expected.names)}; measure again"
        )
    return file


def _parts(
    folder: Path, table: str, columns: Optional[list[str]], window_ids: Optional[Iterable[int]] = None
) -> Iterator[pa.Table]:
    """The parts of a table one after the other, or only those that hold some of the windows."""
    missing = None if window_ids is None else set(window_ids)
    kind = next(kind for kind, names in TABLES.items() if table in names)
    manifest = read_manifest(folder, kind)
    expected = schemas(manifest["context"]["num_long_range"])[table]
    for number in range(manifest["num_parts"]):
        if missing is not None and not missing:
            return
        path = part_path(folder, table, number)
        with _open_part(path, table, kind, expected) as file:
            try:
                if missing is not None:
                    held = missing.intersection(file.read(columns=["window_id"])["window_id"].unique().to_pylist())
                    if not held:
                        continue
                    missing -= held
                part = file.read(columns=columns).replace_schema_metadata(None)
            except (pa.ArrowException, OSError):
                raise UserError(
                    f"{path}: damaged; measure again with `olmo-sparsity {COMMANDS[kind]} --overwrite`"
                ) from None
        yield part


def read_parts(folder: Path, table: str, columns: Optional[list[str]] = None) -> Iterator[pa.Table]:
    """A table of a finished folder, or some of its columns, one part after the other.

    Holds the asked columns of one part at a time, however long the table. A part holds all rows of its windows.

    Raises:
        UserError: when it comes to a part that is missing or damaged, or has another schema than this version writes.
    """
    return _parts(folder, table, columns)


def read_table(folder: Path, table: str, columns: Optional[list[str]] = None) -> pa.Table:
    """As ``read_parts``, all parts at once: for tables that are known to be small."""
    return pa.concat_tables(read_parts(folder, table, columns))


def read_windows(
    folder: Path, table: str, window_ids: Collection[int], columns: Optional[list[str]] = None
) -> list[dict[str, Any]]:
    """The rows of some windows, in the table's order, as far as it holds them; of parts that hold none of them only the window
    numbers are read, and nothing of those after the last.

    Raises:
        UserError: as ``read_parts``.
    """
    wanted = pc.field("window_id").isin(pa.array(list(window_ids), pa.int64()))
    parts = _parts(folder, table, columns and ["window_id", *columns], window_ids)
    return [row for part in parts for row in part.filter(wanted).to_pylist()]


def read_window(folder: Path, table: str, window_id: int, columns: Optional[list[str]] = None) -> list[dict[str, Any]]:
    """As ``read_windows``, of one window."""
    return read_windows(folder, table, [window_id], columns)


def list_rows(column: pa.ChunkedArray) -> np.ndarray:
    """A column of lists that are all equally long, as one array [rows, length]."""
    return np.asarray(pc.list_flatten(column).to_numpy().reshape(len(column), -1))


def rows_by_choice(part: pa.Table) -> Iterator[tuple[str, str, np.ndarray]]:
    """(selector, context, numbers of its rows, int64, rising) in a part of ``selections``, in order of first appearance."""
    (selectors, of_selector), (contexts, of_context) = (
        (encoded.dictionary.to_pylist(), encoded.indices.to_numpy())
        for encoded in (part[name].combine_chunks().dictionary_encode() for name in ("selector", "context"))
    )
    choice = of_selector * len(contexts) + of_context
    values, first = np.unique(choice, return_index=True)
    for value in values[np.argsort(first)].tolist():
        selector, context = divmod(value, len(contexts))
        yield selectors[selector], contexts[context], np.flatnonzero(choice == value)


NOTHING_THERE = {
    "influence": "nothing has been measured in this run; run `olmo-sparsity influence` first",
    "context-curve": "it has no context curve; run `olmo-sparsity context-curve --run {run}` first",
    "validation": "nothing has been validated in this run; run `olmo-sparsity validate` first",
}


def newest_finished(run: Path, kind: str = "influence") -> Path:
    """The finished folder of one kind that a run got last.

    Raises:
        UserError: it has none.
    """
    finished = list_finished(run, kind)
    if not finished:
        raise UserError(f"{run}: {NOTHING_THERE[kind].format(run=run)}")
    return finished[-1]


def list_finished(run: Path, kind: str = "influence") -> list[Path]:
    """The finished folders of one kind in a run, the newest last."""
    found = []
    for path in (run / kind).glob("*/manifest.json"):
        manifest = read_json(path)
        if manifest.get("status") == "complete":
            found.append((manifest.get("finished", ""), path.parent))
    return [folder for _, folder in sorted(found)]


def find_tables(path: Path) -> Path:
    """The influence folder that a path names: itself, or the newest measurement of the run that it is.

    Raises:
        UserError: it is neither.
    """
    if (path / "windows").is_dir():
        read_manifest(path)
        return path
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; a run or an influence folder is expected")
    return newest_finished(path)
