"""A measurement is a folder of part files, each of a fixed range of windows: a part appears whole or not at all, and a
rerun does the missing ones.

Several processes, on one machine or on many that share a file system, may measure into the same folder, each its own
share of the parts. They never wait for each other: the manifest is written once by whoever comes first, each process
writes down where it ran in a file of its own, and whoever finds every part there closes the manifest.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

import numpy as np
from tqdm import tqdm

from olmo_sparsity import tables
from olmo_sparsity.config import UserError
from olmo_sparsity.manifest import (
    empty_folder,
    environment,
    holds,
    make_folder,
    own_name,
    read_json,
    remove_leftovers,
    write_json,
    write_json_once,
)
from olmo_sparsity.torchrun import own_place


@dataclass(frozen=True)
class Share:
    """What one of ``count`` processes measures: the parts whose number leaves ``index`` when divided by ``count``.

    Every count-th part rather than a range of them: a folder that one process began and several go on with has its
    missing parts at the end, and each of the several still gets as many.

    ``leads`` is False where another process of the same terminal does the talking.
    """

    index: int = 0
    count: int = 1
    leads: bool = True


WHOLE = Share()


def own_share(shard: Optional[str], overwrite: bool, variables: Mapping[str, str] = os.environ) -> Share:
    """The share of this process: ``--shard I/N``, split further among the processes of torchrun.

    Raises:
        UserError: these do not fit, or ``overwrite`` was asked for, by which each process would delete the others' work.
    """
    index, count = 0, 1
    if shard is not None:
        found = re.fullmatch(r"(\d+)/(\d+)", shard)
        index, count = (int(found[1]), int(found[2])) if found else (0, 0)
        if index >= count:
            raise UserError(f"--shard {shard}: I/N, with I from 0 to N - 1; a measurement in two has 0/2 and 1/2")
    place = own_place(variables)
    share = Share(index * place.count + place.rank, count * place.count, leads=place.leads)
    if overwrite and share.count > 1:
        raise UserError(
            f"--overwrite: one of {share.count} processes would delete what the others measure; delete the folder, or "
            "choose another with --out DIR"
        )
    return share


def missing_parts(folder: Path, manifest: dict[str, Any]) -> list[int]:
    """Numbers of the parts that are not there, in every table."""
    there = [{path.name for path in (folder / name).glob("*.parquet")} for name in tables.tables_of(manifest)]
    in_all = set.intersection(*there)
    return [part for part in range(manifest["num_parts"]) if tables.part_name(part) not in in_all]


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
    remove_leftovers(folder, folder / "sessions", *(folder / name for name in tables.tables_of(manifest)))
    return 0


def is_measured(folder: Path, kind: str, key: str, overwrite: bool, say: Callable[[str], None]) -> bool:
    """Does the folder hold the finished measurement that ``key`` names (and may it stay).

    Raises:
        UserError: the folder holds another measurement, or something else.
    """
    if not holds(folder, kind) or overwrite:
        return False
    there = read_json(folder / "manifest.json")
    _check_run_id(folder, there, key)
    if there.get("status") != "complete":
        return False
    if missing := missing_parts(folder, there):
        say(f"{folder}: finished, but {len(missing)} of {there['num_parts']} parts are gone; they are measured again")
        return False
    say(f"{folder}: already measured ({there['num_windows']} windows); nothing to do")
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
    say: Callable[[str], None],
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
        say: where one-line remarks go.
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
    if overwrite and holds(folder, kind):
        say(f"deleting {folder}, as --overwrite asks")
        empty_folder(folder)
        write_json(folder / "manifest.json", begun)
    make_folder(folder)
    write_json_once(folder / "manifest.json", begun)
    there = read_json(folder / "manifest.json")
    _check_run_id(folder, there, manifest["run_id"])
    part_size = there.get("windows_per_part", part_size)
    schemas = tables.schemas(manifest["context"]["num_long_range"])
    facts = {"run_id": manifest["run_id"], **{name: str(value) for name, value in manifest["context"].items()}}

    def windows_of(part: int) -> np.ndarray:
        return np.arange(part * part_size, min((part + 1) * part_size, num_windows))

    own = range(share.index, there["num_parts"], share.count)
    missing = sorted(set(own) & set(missing_parts(folder, there)))
    if missing:
        _write_session(folder, manifest, share)
    total = sum(len(windows_of(part)) for part in own)
    left = sum(len(windows_of(part)) for part in missing)
    silent = None if share.leads else True  # None: where there is no terminal
    with tqdm(total=total, initial=total - left, desc=kind, unit=" windows", disable=silent) as bar:
        for part in missing:
            columns = measure_part(windows_of(part))
            for table in reversed(tables.TABLES[kind]):
                if table in columns:
                    tables.write_part(folder, table, part, columns[table], schemas[table], facts)
            bar.update(len(windows_of(part)))
    close(folder)


def _write_session(folder: Path, manifest: dict[str, Any], share: Share) -> None:
    """A measurement may be begun here and finished there: each process that measures says where it ran."""
    make_folder(folder / "sessions")
    session = {
        "share": f"{share.index}/{share.count}",
        "started": datetime.now(timezone.utc).isoformat(timespec="microseconds"),
        "device": manifest.get("device"),
        "environment": environment(),
    }
    write_json(folder / "sessions" / f"{own_name()}.json", session)
