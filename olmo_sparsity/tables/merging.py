"""Are all windows of a measurement there, once each and undamaged; and parts measured in several folders -> one folder.
Imports no torch."""

from __future__ import annotations

import filecmp
import logging
import os
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import partial_path, read_json, rename_into_place, write_json_once
from olmo_sparsity.storage.folders import is_folder_of_kind, make_folder
from olmo_sparsity.tables.parts import close, missing_parts, part_path
from olmo_sparsity.tables.schemas import SCHEMA_VERSION, TABLES, schemas, tables_of

logger = logging.getLogger(__name__)

# What a row of each table is about, its window apart.
KEYS = {
    "selections": ["selector", "context"],
    "candidates": ["context"],
    "found": ["selector"],
    "screening": ["selector", "context"],
}
SAMPLED = ("screening",)  # tables of some of the windows
# In what the manifests of two folders must agree, besides the run_id, for their parts to fit.
SAME_FACTS = ("run_id", "num_windows", "num_parts", "windows_per_part", "windows_sha256", "solver_sha256", "context")


def range_words(numbers: np.ndarray) -> str:
    """``[0, 1, 2, 7]`` -> ``0-2, 7``; the first ten ranges of many."""
    runs = np.split(numbers, np.flatnonzero(np.diff(numbers) > 1) + 1)
    words = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:10]]
    return ", ".join(words) + (f" and {len(runs) - 10} more ranges" if len(runs) > 10 else "")


def _read_manifest(folder: Path) -> dict[str, Any]:
    """The manifest of a folder of tables, of whatever kind, finished or not.

    Raises:
        UserError: it is none.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder")
    manifest = read_json(folder / "manifest.json")
    if manifest.get("kind") not in TABLES:
        raise UserError(f"{folder}: this is no folder of tables (its manifest says {manifest.get('kind')!r})")
    return manifest


def read_part(path: Path, table: str, manifest: dict[str, Any]) -> pa.Table:
    """One part, all of it read and held against its checksums.

    Raises:
        UserError: it is damaged, of another measurement or of another schema.
    """
    try:
        content = pq.ParquetFile(path, page_checksum_verification=True).read()
    except (pa.ArrowException, OSError):
        raise UserError(f"{path}: damaged, or no Parquet file") from None
    metadata = content.schema.metadata or {}
    run_id, version = (metadata.get(key, b"none").decode(errors="replace") for key in (b"run_id", b"schema_version"))
    if run_id != manifest["run_id"]:
        raise UserError(f"{path}: of another measurement, run_id {run_id}; that of this folder is {manifest['run_id']}")
    expected = schemas(manifest["context"]["num_long_range"])[table]
    if version != SCHEMA_VERSION or not content.schema.equals(expected, check_metadata=False):
        raise UserError(f"{path}: schema version {version}, or other columns than those of {table}, {SCHEMA_VERSION}")
    return content


def _check_table(folder: Path, table: str, manifest: dict[str, Any]) -> list[str]:
    """Problems of one table, a line each; one part at a time is in memory."""
    num_windows, problems = manifest["num_windows"], []
    rows_of = np.zeros(num_windows, dtype=np.int64)
    twice = np.zeros(num_windows, dtype=bool)
    for path in sorted((folder / table).glob("*.parquet")):
        number = re.fullmatch(r"part-(\d{5,})\.parquet", path.name)
        if number is None or int(number[1]) >= manifest["num_parts"]:
            problems.append(f"{path}: there is no such part among the {manifest['num_parts']} of this measurement")
        try:
            content = read_part(path, table, manifest)
        except UserError as error:
            problems.append(str(error))
            continue
        keys = content.select(["window_id", *KEYS.get(table, [])])
        ids = keys["window_id"].to_numpy()
        if len(ids) and not (ids.min() >= 0 and ids.max() < num_windows):
            problems.append(f"{path}: windows {ids.min()}-{ids.max()}, where there are 0-{num_windows - 1}")
            continue
        counts = np.bincount(ids, minlength=num_windows)
        distinct = keys.group_by(keys.column_names).aggregate([])["window_id"].to_numpy()
        twice |= (rows_of > 0) & (counts > 0)
        twice |= counts > np.bincount(distinct, minlength=num_windows)
        rows_of += counts
    if (missing := np.flatnonzero(rows_of == 0)).size and table not in SAMPLED:
        problems.append(
            f"{folder / table}: windows {range_words(missing)} are missing ({len(missing)} of {num_windows})"
        )
    if twice.any():
        repeated = np.flatnonzero(twice)
        problems.append(f"{folder / table}: windows {range_words(repeated)} occur twice ({len(repeated)})")
    few = np.flatnonzero((rows_of > 0) & (rows_of < rows_of.max(initial=0)) & ~twice)
    if few.size and not twice.any():
        problems.append(f"{folder / table}: windows {range_words(few)} have fewer rows than others ({len(few)})")
    return problems


def check_tables(folder: Path) -> tuple[list[str], str]:
    """(what is wrong with a folder of tables, a line each; what to say where nothing is).

    Every table must hold every window once (for every selector and context), in parts that are whole and of this
    measurement. Unfinished folders can be asked, too.

    Raises:
        UserError: this is no folder of tables.
    """
    manifest = _read_manifest(folder)
    names = tables_of(manifest)
    problems = [problem for name in names for problem in _check_table(folder, name, manifest)]
    words = (
        f"{folder}: complete, {manifest['num_windows']} windows in {manifest['num_parts']} parts of {', '.join(names)}"
    )
    if manifest.get("status") != "complete":
        words += "; the command that measured them, run again, will say so in the manifest"
    return problems, words


def _take(source: Path, path: Path) -> None:
    """Puts a file there whole: a hard link where both are on one file system that has them, otherwise a copy."""
    make_folder(path.parent)
    try:
        os.link(source.resolve(), path)
    except FileExistsError:
        pass
    except OSError:
        partial = partial_path(path)
        shutil.copyfile(source, partial)
        rename_into_place(partial, path)


def gather(sources: list[Path], out: Path) -> None:
    """Brings the finished parts of several folders of one measurement together in ``out``, and closes it if they are all.

    Args:
        sources: the folders; parts that several of them hold must hold the same values.
        out: where to; new, or begun by an earlier merge or by the measuring command, which can go on with it.

    Raises:
        UserError: a folder is of another measurement, a part is damaged, or two parts differ. Nothing of ``out`` is lost.
    """
    manifests = [_read_manifest(source) for source in sources]
    first = manifests[0]
    there = [(out, read_json(out / "manifest.json"))] if is_folder_of_kind(out, first["kind"]) else []
    for folder, manifest in [*zip(sources, manifests, strict=True), *there]:
        for fact in SAME_FACTS:
            if manifest.get(fact) != first.get(fact):
                raise UserError(
                    f"{folder}: of another measurement than {sources[0]}: {fact} {manifest.get(fact)}, not {first.get(fact)}"
                )
    make_folder(out)
    begun = {key: value for key, value in first.items() if key != "finished"}
    write_json_once(out / "manifest.json", {**begun, "status": "running"})
    names = tables_of(first)
    taken = 0
    for source in sources:
        if source.resolve() == out.resolve():
            continue
        missing = set(missing_parts(source, first))
        for part in (part for part in range(first["num_parts"]) if part not in missing):
            for table in reversed(names):  # as they are measured: the first table's part is the last to come
                ours, theirs = part_path(out, table, part), part_path(source, table, part)
                if ours.is_file() and filecmp.cmp(ours, theirs, shallow=False):
                    continue
                content = read_part(theirs, table, first)
                if not ours.is_file():
                    _take(theirs, ours)
                elif not content.equals(read_part(ours, table, first)):
                    raise UserError(f"{theirs}: this part has other values than {ours}; delete one of the two")
            taken += 1
        for session in sorted((source / "sessions").glob("*.json")):
            _take(session, out / "sessions" / session.name)
    left = close(out)
    logger.info(
        f"{out}: {taken} parts from {len(sources)} folders; {first['num_parts'] - left} of {first['num_parts']} are there"
    )
