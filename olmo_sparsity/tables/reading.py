"""Reading of finished tables, part by part, with every part checked against its schema.

A folder of tables holds one folder for each table, and in it Parquet part files of consecutive windows.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Optional

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.kinds import KINDS
from olmo_sparsity.selectors import OwnEntries
from olmo_sparsity.storage.files import check_regular
from olmo_sparsity.storage.folders import folder_name, manifest_of_kind
from olmo_sparsity.storage.manifests import need, read_manifest_of
from olmo_sparsity.storage.typed import check_type
from olmo_sparsity.tables.parts import check_no_more_parts, part_path
from olmo_sparsity.tables.schemas import COLUMNS, SCHEMA_VERSION, schemas_of, tables_of

# What pyarrow raises for damaged files; names of columns that are no UTF-8 are found by Python.
DAMAGED = (pa.ArrowException, OSError, UnicodeDecodeError)
logger = logging.getLogger(__name__)
# How a command is run again: it measures parts that are missing; with --overwrite it deletes all and begins anew.
CONTINUES, OVERWRITES = "it continues", "with --overwrite"


def run_again(kind: str, how: str) -> str:
    """Return the advice to run the command again that measured a kind of tables: as it was run, for it may name another run."""
    return f"run the same `olmo-sparsity {KINDS[kind].command}` again, {how}"


def _again_without_it(kind: str) -> str:
    """Return the advice to measure again what a damaged file held, and nothing else."""
    return f"delete it, then {run_again(kind, CONTINUES)}"


def read_manifest(folder: Path, kind: str = "influence") -> dict[str, Any]:
    """Read the manifest of a finished folder of one kind (a key of ``KINDS``).

    Raises:
        UserError: the folder is of another kind, or unfinished.
    """
    manifest = manifest_of_kind(folder, kind)
    if manifest is None:
        raise UserError(f"{folder}: there are no {kind} tables here; run `olmo-sparsity {KINDS[kind].command}` first")
    if manifest.get("status") != "complete":
        raise UserError(f"{folder}: these tables are unfinished; {run_again(kind, CONTINUES)}")
    need(manifest, *KINDS[kind].needed, where=folder / "manifest.json")
    check_type(manifest.get("own_selectors", {}), OwnEntries, where=folder / "manifest.json")
    return manifest


@contextmanager
def said_if_damaged(path: Path, line: str) -> Iterator[None]:
    """Turn what pyarrow raises for a damaged file into a ``UserError`` of one line.

    Raises:
        OSError: the system cannot read the file, such as for want of permission, which says nothing about what it holds.
    """
    try:
        yield
    except DAMAGED as error:
        if isinstance(error, OSError) and error.errno not in (None, errno.EINVAL):  # EINVAL: a damaged footer's offset
            raise OSError(error.errno, os.strerror(error.errno), str(path)) from error  # pyarrow's names no file
        raise UserError(line) from None


def _open_part(path: Path, table: str, *, kind: str, manifest: dict[str, Any]) -> pq.ParquetFile:
    """Open a part and check its schema and version. Only the file's footer is read.

    Raises:
        UserError: the part is missing, damaged, or of another schema.
    """
    check_regular(path)
    try:
        with said_if_damaged(path, f"{path}: not a Parquet file, or cut short; {_again_without_it(kind)}"):
            # Without this, a damaged page passes for other numbers.
            file = pq.ParquetFile(path.absolute(), page_checksum_verification=True)
            schema = file.schema_arrow
    except FileNotFoundError:
        raise UserError(f"{path}: this part is missing; {run_again(kind, CONTINUES)}") from None
    check_schema(schema, path, manifest=manifest, table=table)
    return file


def check_begun(folder: Path, manifest: dict[str, Any]) -> None:
    """Check that a measurement that was begun has the columns of this version, before other parts are added to it.

    Raises:
        UserError: its first part of a table is damaged, or of another schema.
    """
    for table in tables_of(manifest):
        for path in sorted((folder / table).glob("part-*.parquet"))[:1]:
            _open_part(path, table, kind=manifest["kind"], manifest=manifest).close()


def check_schema(schema: pa.Schema, path: Path, *, manifest: dict[str, Any], table: str) -> None:
    """Check that a file has the columns of a table.

    Raises:
        UserError: another version wrote it, or it has other columns.
    """
    version = (schema.metadata or {}).get(b"schema_version", b"none").decode(errors="replace")
    if version != SCHEMA_VERSION:
        raise UserError(
            f"{path}: schema version {version}, written by another version of olmo-sparsity, which this one, of schema version "
            f"{SCHEMA_VERSION}, does not read; {run_again(manifest['kind'], OVERWRITES)}"
        )
    expected = schemas_of(manifest)[table]
    if not schema.equals(expected, check_metadata=False):
        raise UserError(
            f"{path}: columns {', '.join(schema.names)}; this is olmo-sparsity's {table} table, with "
            f"{', '.join(expected.names)}; {run_again(manifest['kind'], OVERWRITES)}"
        )


def check_identity(schema: pa.Schema, path: Path, *, manifest: dict[str, Any], table: str, part: Optional[int]) -> None:
    """Check that a file is this part of this table of this measurement, as its metadata say.

    Parts of another measurement may have the same columns, the same windows even, and other numbers.

    Raises:
        UserError: it is another one.
    """
    metadata = {
        key.decode(errors="replace"): value.decode(errors="replace") for key, value in (schema.metadata or {}).items()
    }
    run_id = metadata.get("run_id", "none")
    if run_id != manifest["run_id"]:
        raise UserError(
            f"{path}: from another measurement, run_id {run_id}; that of this folder is {manifest['run_id']}"
        )
    for key, expected in (("table", table), ("part", None if part is None else str(part))):
        if expected is not None and metadata.get(key) != expected:
            raise UserError(
                f"{path}: this is {key} {metadata.get(key)}, under the name of {key} {expected}; restore the files"
            )


def check_values(
    content: pa.Table,
    table: str,
    *,
    where: Path | str,
    manifest: dict[str, Any],
    same: Optional[dict[str, list[Any]]] = None,
) -> None:
    """Check that the values of some columns are such as the schema says.

    No number is NaN or infinite; what was not measured is null.

    Args:
        content: rows of a part.
        table: the table.
        where: the file, or what else holds the rows.
        manifest: of the measurement.
        same: what every row of the folder holds in the columns where all are the same, as far as it is known; updated.

    Raises:
        UserError: a value is another.
    """
    num_long_range, same = manifest["context"]["num_long_range"], {} if same is None else same
    for column in COLUMNS[table]:
        if column.name not in content.column_names:
            continue
        values, wrong = _flat(content[column.name]), None
        if pa.types.is_floating(values.type) and not _all(pc.is_finite(values)):
            wrong = "NaN or an infinite number"
        elif column.least is not None and not _all(pc.greater_equal(values, column.least)):
            wrong = f"a number below {column.least}"
        elif column.is_position and not _all(pc.and_(pc.greater_equal(values, 0), pc.less(values, num_long_range))):
            wrong = f"a number that is no long-range position, 0 to {num_long_range - 1}"
        elif column.as_many_as in content.column_names:
            lengths, others = (pc.list_value_length(content[name]) for name in (column.name, column.as_many_as))
            if not _all(pc.equal(lengths, others)):
                wrong = f"lists of other lengths than those of {column.as_many_as}"
        elif column.same_in_all_rows and content[column.name].null_count:
            wrong = "null, where every row has a list"
        elif column.same_in_all_rows and len(content):
            first = same.setdefault(column.name, content[column.name][0].as_py())
            are_as_long = pc.equal(pc.list_value_length(content[column.name]), len(first))
            if not _all(are_as_long) or not np.array_equal(values, np.tile(first, len(content))):
                wrong = f"other numbers than {first}, which the first row of the folder holds"
        if wrong is not None:
            remedy = f"; {run_again(manifest['kind'], OVERWRITES)}" if isinstance(where, Path) else ""
            raise UserError(f"{where}: column {column.name} holds {wrong}{remedy}")


def _flat(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return the values of a column; of lists those of all lists."""
    return pc.list_flatten(column) if pa.types.is_nested(column.type) else column


def _all(is_right: pa.ChunkedArray) -> bool:
    """Return True if all values are true; null is no value."""
    return pc.all(is_right).as_py() is not False


def _parts(
    folder: Path, table: str, *, columns: Optional[list[str]], window_ids: Optional[Iterable[int]] = None
) -> Iterator[pa.Table]:
    """Yield the parts of a table, or only those that hold some of ``window_ids``."""
    wanted = None if window_ids is None else set(window_ids)
    kind = next(kind.name for kind in KINDS.values() if table in kind.tables)
    manifest = read_manifest(folder, kind)
    check_no_more_parts(folder, table, num_parts=manifest["num_parts"])
    num_rows = 0
    same: dict[str, list[Any]] = {}
    for number in range(manifest["num_parts"]):
        if wanted is not None and not wanted:
            return
        path = part_path(folder, table, part=number)
        with _open_part(path, table, kind=kind, manifest=manifest) as file:
            check_identity(file.schema_arrow, path, manifest=manifest, table=table, part=number)
            with said_if_damaged(path, f"{path}: damaged; {_again_without_it(kind)}"):
                if wanted is not None:
                    ids = file.read(columns=["window_id"])["window_id"]
                    in_part = wanted.intersection(ids.unique().to_pylist())
                    if not in_part:
                        continue
                    wanted -= in_part
                part = file.read(columns=columns)
        check_values(part, table, where=path, manifest=manifest, same=same)
        num_rows += len(part)
        yield part.replace_schema_metadata(None).select(columns or part.column_names)
    num_windows = manifest.get("num_windows")
    if table == "windows" and wanted is None and num_windows is not None and num_rows != num_windows:
        raise UserError(
            f"{folder / table}: {num_rows} rows, where {folder / 'manifest.json'} counts num_windows = {num_windows}; parts are "
            f"missing, or the manifest was changed; {run_again(kind, OVERWRITES)}"
        )


def read_parts(folder: Path, table: str, *, columns: Optional[list[str]] = None) -> Iterator[pa.Table]:
    """Yield the parts of a table of a finished folder, with all columns or some of them.

    Only one part is in memory at a time. All rows of a window are in the same part.

    Raises:
        UserError: raised at the first part that is missing, damaged, or of another schema.
    """
    return _parts(folder, table, columns=columns)


def read_table(folder: Path, table: str, *, columns: Optional[list[str]] = None) -> pa.Table:
    """Read all parts of a table that is known to be small. See ``read_parts``."""
    return pa.concat_tables(read_parts(folder, table, columns=columns))


def read_windows(folder: Path, table: str, *, window_ids: Collection[int]) -> list[dict[str, Any]]:
    """Return the rows of some windows, in the order of the table. Windows that the table lacks are ignored.

    Only the window IDs are read from parts that hold none of the windows, and nothing from parts after the last one.

    Raises:
        UserError: as for ``read_parts``.
    """
    is_wanted = pc.field("window_id").isin(pa.array(list(window_ids), pa.int64()))
    parts = _parts(folder, table, columns=None, window_ids=window_ids)
    return [row for part in parts for row in part.filter(is_wanted).to_pylist()]


def list_rows(column: pa.ChunkedArray) -> np.ndarray:
    """Convert a column of lists of equal length to one array [R, length]."""
    return np.asarray(pc.list_flatten(column).to_numpy().reshape(len(column), -1))


class ChoiceRows(NamedTuple):
    """The rows of one selector and context in a part of ``selections``."""

    selector: str
    context: str
    rows_r: np.ndarray  # int64, rising: numbers of the rows in the part


def rows_by_choice(part: pa.Table, *, contexts: Collection[str] = ("real", "null")) -> Iterator[ChoiceRows]:
    """Yield the rows of each selector and context in a part of ``selections``, in order of first appearance.

    Args:
        part: with the columns ``selector`` and ``context``.
        contexts: rows of other contexts are ignored. Under ``resampled`` a window has a row for each draw.
    """
    selectors, context_R = (part[name].combine_chunks().dictionary_encode() for name in ("selector", "context"))
    names_of_contexts = context_R.dictionary.to_pylist()
    choice_R = selectors.indices.to_numpy() * len(names_of_contexts) + context_R.indices.to_numpy()
    choices, first_row = np.unique(choice_R, return_index=True)
    for choice in choices[np.argsort(first_row)].tolist():
        selector, context = divmod(choice, len(names_of_contexts))
        if names_of_contexts[context] in contexts:
            yield ChoiceRows(
                selector=selectors.dictionary[selector].as_py(),
                context=names_of_contexts[context],
                rows_r=np.flatnonzero(choice_R == choice),
            )


def list_finished(run: Path, kind: str = "influence") -> list[Path]:
    """Return the finished folders of one kind in a run, in the order in which they were finished.

    A folder whose manifest is damaged is left out, with a warning; where it is asked for by its name, reading it raises.
    """
    finished, damaged = _finished_and_damaged(run, kind)
    _warn_of_damaged(tuple(reason for _, reason in damaged))
    return finished


def _finished_and_damaged(run: Path, kind: str) -> tuple[list[Path], list[tuple[Path, str]]]:
    """Return the finished folders of one kind in a run, and those whose manifests are damaged, each with why."""
    finished: list[tuple[str, Path]] = []
    damaged: list[tuple[Path, str]] = []
    for path in sorted((run / kind).glob("*/manifest.json")):
        try:
            manifest = read_manifest_of(path.parent)
        except UserError as error:
            damaged.append((path.parent, str(error)))
            continue
        if manifest.get("status") == "complete":
            finished.append((manifest.get("finished", ""), path.parent))
    return [folder for _, folder in sorted(finished)], damaged


@cache  # one line for each folder, however often a command lists them
def _warn_of_damaged(reasons: tuple[str, ...]) -> None:
    for reason in reasons:
        logger.warning(f"{reason}; this measurement is left out")


def newest_finished(run: Path, kind: str = "influence") -> Path:
    """Return the folder of one kind in a run that was finished last.

    Raises:
        UserError: the run has none.
    """
    return _some_finished(run, kind)[-1]


def _some_finished(run: Path, kind: str = "influence") -> list[Path]:
    """Return ``list_finished``, or raise UserError where there are none, or only damaged ones."""
    finished, damaged = _finished_and_damaged(run, kind)
    if damaged and not finished:
        raise UserError(damaged[0][1])
    _warn_of_damaged(tuple(reason for _, reason in damaged))
    if not finished and not run.is_dir():
        raise UserError(f"{run}: no such folder; name another, or run `olmo-sparsity {KINDS[kind].command}` first")
    if not finished:
        raise UserError(f"{run}: {KINDS[kind].not_measured.format(run=run)}")
    return finished


def newest_shown(run: Path) -> Path:
    """Return the influence folder of a run that was finished last, to be shown; a message says so where there are others.

    Raises:
        UserError: the run has none.
    """
    *others, newest = _some_finished(run)
    if others:
        also = "another one is" if len(others) == 1 else f"{len(others)} others are"
        logger.info(f"{newest}: the newest measurement of {run}; {also} there (`olmo-sparsity list` lists them)")
    return newest


def find_tables(path: Path) -> Path:
    """Return ``path`` if it is an influence folder, or the newest influence folder if it is a run.

    Raises:
        UserError: it is neither.
    """
    if (path / "windows").is_dir():
        read_manifest(path)
        return path
    if not path.is_dir():
        raise UserError(f"{path}: no such folder; expected a run or an influence folder")
    return newest_shown(path)


def named_tables(name: Path, run: Path) -> Path:
    """Return the influence folder that a name means: its path, or in a run its name or how no other name there ends.

    Args:
        name: as a user gives it.
        run: folder of the run.

    Raises:
        UserError: several finished folders of the run end so.
    """
    if name.exists() or len(name.parts) != 1:
        return name
    readable, damaged = _finished_and_damaged(run, "influence")
    finished = [folder.name for folder in (*readable, *(folder for folder, _ in damaged))]
    named = [own for own in finished if own == name.name] or [own for own in finished if own.endswith(name.name)]
    if len(named) > 1:
        raise UserError(f"{name}: {' and '.join(named)} of {run} end so; give more of the name")
    return run / "influence" / named[0] if named else name


def run_of_tables(tables: Path, kind: str = "influence") -> Optional[Path]:
    """Return the folder of the run or model that a folder of one kind lies in; None: it lies elsewhere."""
    path = tables if len(tables.parts) > 2 and tables.parent.name == kind else tables.resolve()
    return path.parent.parent if path.parent.name == kind else None


def figures_folder(tables: Path) -> Path:
    """The folder for the figures and the report of an influence folder.

    Raises:
        UserError: the tables lie in no run.
    """
    run = run_of_tables(tables)
    if run is None:
        read_manifest(tables)
        raise UserError(f"{tables}: these tables are not in a run folder; say with --out where to write")
    return run / "figures" / folder_name(tables)
