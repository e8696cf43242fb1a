"""Folders that this package owns: recognised by their manifest, locked while they are written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Optional

from filelock import FileLock, Timeout

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import read_json, write_json


@contextmanager
def exclusive_lock(lock: Path, busy: Optional[str] = None) -> Iterator[None]:
    """Only one process at a time, of all that name the same file, goes on. A killed one lets go.

    Args:
        lock: the file; in the end it is removed.
        busy: what to say where another process goes on; None: wait for it.

    Raises:
        UserError: the file cannot be made, or another process goes on and is not waited for.
    """
    make_folder(lock.parent)
    held = FileLock(lock)
    try:
        held.acquire(timeout=-1 if busy is None else 0)
    except Timeout:
        raise UserError(str(busy)) from None
    except OSError as error:
        raise UserError(f"{lock}: cannot lock this file ({error.strerror})") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)  # still held; who waits for it sees that it is gone, and makes a new one
        held.release()


def make_folder(folder: Path) -> None:
    """Makes a folder and its parents.

    Raises:
        UserError: it cannot be made, a file is in the way, say.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot make this folder ({error.strerror})") from None


def is_folder_of_kind(folder: Path, kind: str) -> bool:
    """Is this folder one of ours, of this kind (``run``, ``influence``, ``tokens``, ``hf``); False where nothing is there yet.

    Raises:
        UserError: something else is there, which is then neither written to nor deleted.
    """
    # Listed first: another process that begins here now writes its manifest before all else.
    listed = list(folder.iterdir()) if folder.is_dir() else []
    if (folder / "manifest.json").is_file():
        found = read_json(folder / "manifest.json").get("kind")
        if found == kind:
            return True
        raise UserError(
            f"{folder}: this is no {kind} folder of olmo-sparsity (its manifest says {found!r}); choose another"
        )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: this is a file, where a {kind} folder was expected")
    if any(not path.name.endswith(".partial") for path in listed):
        raise UserError(f"{folder}: this folder exists and is no {kind} folder of olmo-sparsity; choose another")
    return False


def clear_folder(folder: Path) -> None:
    """Deletes what one of our folders holds, all but its manifest. Cut short, what is left is an unfinished folder of
    ours, for its manifest says so from the beginning."""
    write_json(folder / "manifest.json", {**read_json(folder / "manifest.json"), "status": "running"})
    for path in sorted(folder.iterdir(), reverse=True):  # windows before the tables that their parts vouch for
        if path.name == "manifest.json":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
