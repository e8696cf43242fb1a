"""A measurement is a folder of part files, each of a fixed range of windows: a part appears whole or not at all, and a
rerun does the missing ones.

Several processes, on one machine or on many that share a file system, may measure into the same folder, each its own
share of the parts. They never wait for each other: the manifest is written once by whoever comes first, each process
writes down where it ran in a file of its own, and whoever finds every part there closes the manifest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np

from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.shares import WHOLE, Share
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.storage.environment import environment
from olmo_sparsity.storage.files import read_json, unique_name, write_json, write_json_once
from olmo_sparsity.storage.folders import clear_folder, is_folder_of_kind, make_folder
from olmo_sparsity.tables.parts import finalize, missing_parts, write_part
from olmo_sparsity.tables.schemas import TABLES, schemas

logger = logging.getLogger(__name__)


def is_measured(folder: Path, kind: str, key: str, overwrite: bool) -> bool:
    """Does the folder hold the finished measurement that ``key`` names (and may it stay).

    Raises:
        UserError: the folder holds another measurement, or something else.
    """
    if not is_folder_of_kind(folder, kind) or overwrite:
        return False
    there = read_json(folder / "manifest.json")
    _check_run_id(folder, there, key)
    if there.get("status") != "complete":
        return False
    if missing := missing_parts(folder, there):
        logger.info(
            f"{folder}: finished, but {len(missing)} of {there['num_parts']} parts are gone; they are measured again"
        )
        return False
    logger.info(f"{folder}: already measured ({there['num_windows']} windows); nothing to do")
    return True


def _check_run_id(folder: Path, there: dict[str, Any], key: str) -> None:
    if there.get("run_id") != key:
        raise UserError(
            f"{folder}: these tables were measured with other settings, another model or other text; choose another "
            "folder with --out DIR, or replace them with --overwrite"
        )


def measure_parts(
    folder: Path,
    manifest: dict[str, Any],
    part_size: int,
    measure_part: Callable[[np.ndarray], dict[str, dict[str, Any]]],
    overwrite: bool,
    share: Share = WHOLE,
) -> None:
    """Measures the parts of a share that are missing, writes each when it is done, and closes the manifest if all parts,
    those of others too, are there.

    Args:
        folder: of the tables; ``is_measured`` was asked before.
        manifest: facts of the measurement: ``kind``, ``run_id``, ``num_windows``, ``context`` among them.
        part_size: windows in a part; a folder that is there already keeps its own.
        measure_part: numbers of the part's windows (int64) -> columns of each table.
        overwrite: delete what is there first; never with a share of the whole.
        share: which parts.

    Raises:
        UserError: another measurement was begun in this folder meanwhile.
    """
    kind, num_windows = manifest["kind"], manifest["num_windows"]
    assert not (overwrite and share.count > 1)
    begun = {
        **manifest,
        "status": "running",
        "num_parts": -(-num_windows // part_size),
        "windows_per_part": part_size,
    }
    if overwrite and is_folder_of_kind(folder, kind):
        logger.info(f"deleting {folder}, as --overwrite asks")
        clear_folder(folder)
        write_json(folder / "manifest.json", begun)
    make_folder(folder)
    write_json_once(folder / "manifest.json", begun)
    there = read_json(folder / "manifest.json")
    _check_run_id(folder, there, manifest["run_id"])
    part_size = there.get("windows_per_part", part_size)
    schema_of = schemas(manifest["context"]["num_long_range"])
    facts = {"run_id": manifest["run_id"], **{name: str(value) for name, value in manifest["context"].items()}}

    def windows_of(part: int) -> np.ndarray:
        return np.arange(part * part_size, min((part + 1) * part_size, num_windows))

    own = range(share.index, there["num_parts"], share.count)
    missing = sorted(set(own) & set(missing_parts(folder, there)))
    if missing:
        _write_session(folder, manifest, share)
    total = sum(len(windows_of(part)) for part in own)
    left = sum(len(windows_of(part)) for part in missing)
    with progress_bar(kind, " windows", total=total, initial=total - left) as bar:
        for part in missing:
            columns = measure_part(windows_of(part))
            for table in reversed(TABLES[kind]):
                if table in columns:
                    write_part(
                        folder, table, part=part, columns=columns[table], schema=schema_of[table], metadata=facts
                    )
            bar.update(len(windows_of(part)))
    finalize(folder)


def _write_session(folder: Path, manifest: dict[str, Any], share: Share) -> None:
    """A measurement may be begun here and finished there: each process that measures says where it ran."""
    make_folder(folder / "sessions")
    session = {
        "share": f"{share.index}/{share.count}",
        "started": datetime.now(timezone.utc).isoformat(timespec="microseconds"),
        "device": manifest.get("device"),
        "environment": environment(),
    }
    write_json(folder / "sessions" / f"{unique_name()}.json", session)
