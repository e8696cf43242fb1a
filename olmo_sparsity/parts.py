"""A measurement is a folder of part files, each of a fixed range of windows: a part appears whole or not at all, and a
rerun does the missing ones."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import numpy as np
from tqdm import tqdm

from olmo_sparsity import tables
from olmo_sparsity.config import UserError
from olmo_sparsity.manifest import empty_folder, environment, holds, make_folder, read_json, write_json


def is_measured(folder: Path, kind: str, key: str, overwrite: bool, say: Callable[[str], None]) -> bool:
    """Does the folder hold the finished measurement that ``key`` names (and may it stay).

    Raises:
        UserError: the folder holds another measurement, or something else.
    """
    if not holds(folder, kind) or overwrite:
        return False
    there = read_json(folder / "manifest.json")
    if there.get("run_id") != key:
        raise UserError(
            f"{folder}: these tables were measured with other settings, another model or other text; choose another "
            "folder with --out DIR, or replace them with --overwrite"
        )
    if there.get("status") == "complete":
        say(f"{folder}: already measured ({there['num_windows']} windows); nothing to do")
        return True
    return False


def measure_parts(
    folder: Path,
    manifest: dict[str, Any],
    part_size: int,
    measure_part: Callable[[np.ndarray], dict[str, dict[str, Any]]],
    overwrite: bool,
    say: Callable[[str], None],
) -> None:
    """Measures the parts that are missing, writes each when it is done, and closes the manifest.

    Args:
        folder: of the tables; ``is_measured`` was asked before.
        manifest: facts of the measurement: ``kind``, ``run_id``, ``num_windows``, ``context`` among them.
        part_size: windows in a part.
        measure_part: numbers of the part's windows (int64) -> columns of each table.
        overwrite: delete what is there first.
        say: where one-line remarks go.
    """
    kind, num_windows = manifest["kind"], manifest["num_windows"]
    num_parts = -(-num_windows // part_size)
    begun = holds(folder, kind)
    if begun and overwrite:
        say(f"deleting {folder}, as --overwrite asks")
        empty_folder(folder)
    make_folder(folder)
    # A measurement may be begun here and finished there: each session says where it ran.
    before = read_json(folder / "manifest.json") if begun and not overwrite else manifest
    session = {"device": manifest.get("device"), "environment": environment()}
    sessions = [*before.get("sessions", []), session]
    manifest = {**manifest, "status": "running", "num_parts": num_parts, "sessions": sessions}
    write_json(folder / "manifest.json", manifest)
    schemas = tables.schemas(manifest["context"]["num_long_range"])
    facts = {"run_id": manifest["run_id"], **{name: str(value) for name, value in manifest["context"].items()}}
    names = tables.TABLES[kind]
    # The first table of a part is written last: it says that the others are there.
    missing = [part for part in range(num_parts) if not tables.part_path(folder, names[0], part).is_file()]
    with tqdm(total=num_windows, desc=kind, unit=" windows", disable=None) as bar:
        bar.update(num_windows - sum(min(part_size, num_windows - part * part_size) for part in missing))
        for part in missing:
            chosen = np.arange(part * part_size, min((part + 1) * part_size, num_windows))
            columns = measure_part(chosen)
            for table in reversed(names):
                if table in columns:
                    tables.write_part(folder, table, part, columns[table], schemas[table], facts)
            bar.update(len(chosen))
    manifest["status"] = "complete"
    manifest["finished"] = datetime.now(timezone.utc).isoformat(timespec="microseconds")
    write_json(folder / "manifest.json", manifest)
