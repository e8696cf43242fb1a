"""Checks that a folder of tables is complete and undamaged, and merges parts that were measured in several folders."""

from __future__ import annotations

import filecmp
import logging
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from olmo_sparsity.config.keys import counted
from olmo_sparsity.errors import UserError
from olmo_sparsity.records.kinds import is_kind
from olmo_sparsity.storage.files import check_regular, written_whole
from olmo_sparsity.storage.folders import make_folder, manifest_of_kind
from olmo_sparsity.storage.manifests import need, read_manifest_of, write_manifest
from olmo_sparsity.tables.parts import finalize, missing_parts, part_number, part_path
from olmo_sparsity.tables.reading import check_identity, check_schema, check_values, said_if_damaged
from olmo_sparsity.tables.schemas import tables_of

logger = logging.getLogger(__name__)

# The columns that, together with the window, identify a row of each table.
KEYS = {"selections": ["selector", "context", "draw"]}
# The keys that must have the same value in the manifests of two folders whose parts are merged.
SAME_IN_MANIFESTS = (
    "run_id",
    "num_windows",
    "num_parts",
    "windows_per_part",
    "windows_sha256",
    "context",
)


@dataclass(frozen=True)
class TablesCheck:
    """What ``check_tables`` found out about a folder of tables.

    Attributes:
        problems: one line for each problem; empty if the tables are complete and undamaged.
        summary: one line about the folder, valid if there are no problems.
    """

    problems: list[str]
    summary: str


def range_words(numbers: np.ndarray) -> str:
    """Format rising numbers as ranges: ``[0, 1, 2, 7]`` -> ``0-2, 7``. Only the first ten ranges are listed."""
    ends = np.flatnonzero(np.diff(numbers) > 1)
    return _words_of_ranges(numbers[np.append(0, ends + 1)], numbers[np.append(ends, -1)])


def _words_of_ranges(first_R: np.ndarray, last_R: np.ndarray) -> str:
    ranges = list(zip(first_R[:10].tolist(), last_R[:10].tolist(), strict=True))
    words = [str(first) if first == last else f"{first}-{last}" for first, last in ranges]
    more = len(first_R) - len(words)
    return ", ".join(words) + (f" and {counted(more, 'more range')}" if more else "")


def _missing_words(present: np.ndarray, total: int) -> Optional[str]:
    """Return which of the numbers below ``total`` are not among these, which rise; None: all are there.

    A manifest that a stranger wrote may count more than memory holds: only the ranges between those that are there are listed.
    """
    bounds = np.concatenate([[-1], present, [total]])
    gaps = np.flatnonzero(np.diff(bounds) > 1)
    if not gaps.size:
        return None
    words = _words_of_ranges(bounds[gaps] + 1, bounds[gaps + 1] - 1)
    return f"{words} are missing ({total - len(present)} of {total})"


def _read_any_manifest(folder: Path) -> dict[str, Any]:
    """Read the manifest of a folder of tables of any kind, finished or not.

    Raises:
        UserError: it is no folder of tables.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    manifest = read_manifest_of(folder)
    if not is_kind(manifest.get("kind")):
        raise UserError(f"{folder}: this is no folder of tables (its manifest says {manifest.get('kind')!r})")
    need(manifest, "num_windows", where=folder / "manifest.json")
    return manifest


def read_verified_part(path: Path, table: str, *, part: Optional[int], manifest: dict[str, Any]) -> pa.Table:
    """Read all of one part and verify its checksums, schema and measurement.

    Args:
        path: the file.
        table: the table that it should be of.
        part: the number that it should have; None: any.
        manifest: of the measurement.

    Raises:
        UserError: it is damaged, or belongs to another measurement or schema.
    """
    check_regular(path)
    with (
        said_if_damaged(path, f"{path}: damaged, or no Parquet file"),
        pq.ParquetFile(path.absolute(), page_checksum_verification=True) as file,
    ):
        content = file.read()
    check_identity(content.schema, path, manifest=manifest, table=table, part=part)
    check_schema(content.schema, path, manifest=manifest, table=table)
    check_values(content, table, where=path, manifest=manifest)
    return content


class _WindowCounts:
    """Counts the rows of each window in the parts of one table, to find missing and repeated windows."""

    def __init__(self, num_windows: int) -> None:
        self._num_windows = num_windows
        self._of_parts = [
            np.empty((3, 0), dtype=np.int64)
        ]  # of the windows that are there: number, rows, whether repeated

    def add(self, keys: pa.Table) -> None:
        """Add the rows of one part, given its key columns."""
        distinct = keys.group_by(keys.column_names).aggregate([])
        windows_p, rows_p = np.unique(keys["window_id"].to_numpy(), return_counts=True)
        _, distinct_p = np.unique(distinct["window_id"].to_numpy(), return_counts=True)
        self._of_parts.append(np.stack([windows_p, rows_p, rows_p > distinct_p]))

    def problems(self, table: Path) -> list[str]:
        """Return one line for each kind of problem."""
        windows_P, rows_P, is_repeated_P = np.concatenate(self._of_parts, axis=1)
        windows_W, index_P, num_parts_W = np.unique(windows_P, return_inverse=True, return_counts=True)
        rows_W, times_W = (np.bincount(index_P, weights, len(windows_W)) for weights in (rows_P, is_repeated_P))
        problems = []
        if missing := _missing_words(windows_W, self._num_windows):
            problems.append(f"{table}: windows {missing}")
        repeated = windows_W[(num_parts_W > 1) | (times_W > 0)]
        if repeated.size:
            problems.append(f"{table}: windows {range_words(repeated)} occur twice ({len(repeated)})")
        incomplete = windows_W[rows_W < rows_W.max(initial=0)]
        if incomplete.size and not repeated.size:
            problems.append(
                f"{table}: windows {range_words(incomplete)} have fewer rows than others ({len(incomplete)})"
            )
        return problems


def _check_table(folder: Path, table: str, *, manifest: dict[str, Any]) -> list[str]:
    """Return the problems of one table, a line each. One part at a time is in memory."""
    num_windows, problems = manifest["num_windows"], []
    counts = _WindowCounts(num_windows)
    for path in sorted((folder / table).glob("*.parquet")):
        part = part_number(path)
        if part is None or part >= manifest["num_parts"]:
            problems.append(f"{path}: there is no such part among the {manifest['num_parts']} of this measurement")
            part = None
        try:
            content = read_verified_part(path, table, part=part, manifest=manifest)
        except UserError as error:
            problems.append(str(error))
            continue
        keys = content.select(["window_id", *KEYS.get(table, [])])
        ids = keys["window_id"].to_numpy()
        if len(ids) and not (ids.min() >= 0 and ids.max() < num_windows):
            problems.append(f"{path}: holds windows {ids.min()}-{ids.max()}, but there are only 0-{num_windows - 1}")
            continue
        counts.add(keys)
    return problems + counts.problems(folder / table)


def check_tables(folder: Path) -> TablesCheck:
    """Check that every table holds every window once (for every selector and context), in undamaged parts.

    The folder may be unfinished.

    Raises:
        UserError: this is no folder of tables.
    """
    manifest = _read_any_manifest(folder)
    tables = tables_of(manifest)
    summary = f"{folder}: complete, {manifest['num_windows']:,} windows in {manifest['num_parts']} parts of {', '.join(tables)}"
    if manifest.get("status") != "complete":
        summary += "; run the command that measured them again to mark the folder as complete"
    problems = [problem for table in tables for problem in _check_table(folder, table, manifest=manifest)]
    return TablesCheck(problems=problems, summary=summary)


def merge_folders(sources: list[Path], out: Path) -> None:
    """Copy the finished parts of several folders of one measurement to ``out``, and mark it as complete if all are there.

    Args:
        sources: the folders. If several of them hold the same part, its values must be equal.
        out: destination: a new folder, or one that an earlier merge or the measuring command began. The measuring command
            can continue in it.

    Raises:
        UserError: a folder belongs to another measurement, a part is damaged, or two parts differ. Parts that are in ``out``
            are kept.
    """
    manifest = _check_same_measurement(sources, out)
    for folder in (*sources, out):
        _check_files(folder, manifest)
    make_folder(out)
    unfinished = {key: value for key, value in manifest.items() if key != "finished"}
    write_manifest(out, {**unfinished, "status": "running"}, once=True)
    num_copied = sum(
        _copy_parts(source, out, manifest=manifest) for source in sources if source.resolve() != out.resolve()
    )
    num_parts, num_missing = manifest["num_parts"], finalize(out)
    copied = f"{counted(num_copied, 'part')} from {counted(len(sources), 'folder')}"
    logger.info(f"{out}: copied {copied}; {num_parts - num_missing} of {num_parts} are there")


def _check_same_measurement(sources: list[Path], out: Path) -> dict[str, Any]:
    """Return the manifest of the first source, after comparing it with those of the others and of ``out``.

    Raises:
        UserError: a folder is no folder of tables, or of another measurement.
    """
    manifests = {folder: _read_any_manifest(folder) for folder in sources}
    first = manifests[sources[0]]
    merged = manifest_of_kind(out, first["kind"])
    if merged is not None:
        manifests[out] = merged
    for folder, manifest in manifests.items():
        for key in SAME_IN_MANIFESTS:
            if manifest.get(key) != first.get(key):
                raise UserError(
                    f"{folder}: from another measurement than {sources[0]}: {key} is {manifest.get(key)}, not {first.get(key)}"
                )
    return first


def _copy_parts(source: Path, out: Path, *, manifest: dict[str, Any]) -> int:
    """Copy the finished parts and session records of one folder, and return the number of parts that were not there yet.

    Raises:
        UserError: a part is damaged, or differs from that in ``out``.
    """
    finished = sorted(set(range(manifest["num_parts"])) - set(missing_parts(source, manifest)))
    copied = set()
    for part in finished:
        # In the order in which they are measured: the first table's part is written last.
        for table in reversed(tables_of(manifest)):
            ours, theirs = part_path(out, table, part=part), part_path(source, table, part=part)
            if ours.is_file() and filecmp.cmp(ours, theirs, shallow=False):
                continue
            content = read_verified_part(theirs, table, part=part, manifest=manifest)
            if not ours.is_file():
                _link_or_copy(theirs, ours)
                copied.add(part)
            elif not content.equals(read_verified_part(ours, table, part=part, manifest=manifest)):
                raise UserError(f"{theirs}: this part has other values than {ours}; delete one of the two")
    for session in sorted((source / "sessions").glob("*.json")):
        _link_or_copy(session, out / "sessions" / session.name)
    return len(copied)


def _check_files(folder: Path, manifest: dict[str, Any]) -> None:
    """Check that a folder of tables holds files, and that no symbolic link leads out of it.

    Whoever made a link would decide what is copied, or where to; a pipe would be waited for without end.

    Raises:
        UserError: one does, or something is a pipe or a device.
    """
    for name in ("sessions", *tables_of(manifest)):
        for path in (folder / name, *sorted((folder / name).glob("*"))):
            if not path.resolve().is_relative_to(folder.resolve()):
                raise UserError(
                    f"{path}: a symbolic link leads out of {folder}, to {path.resolve()}; name the folder that it leads to"
                )
            check_regular(path)


def _link_or_copy(source: Path, path: Path) -> None:
    """Create ``path`` atomically as a hard link to ``source``, or as a copy where links are not possible."""
    make_folder(path.parent)
    try:
        os.link(source.resolve(), path)
    except FileExistsError:
        pass
    except OSError:  # another file system, or one without hard links
        with written_whole(path) as partial:
            shutil.copyfile(source, partial)
