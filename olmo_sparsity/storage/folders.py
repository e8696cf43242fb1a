"""Folders that this package owns: recognised by their manifest, and locked while they are written."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Optional

from filelock import FileLock, Timeout

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import write_json
from olmo_sparsity.storage.manifests import read_manifest_of


@contextmanager
def exclusive_lock(lock: Path, busy: Optional[str] = None) -> Iterator[None]:
    """Hold a lock file for the duration of the context. The lock of a killed process is released.

    Args:
        lock: path of the lock file; it is removed at the end.
        busy: error message if another process holds the lock; None: wait for it.

    Raises:
        UserError: the file cannot be created, or another process holds the lock and ``busy`` is given.
    """
    make_folder(lock.parent)
    file_lock = FileLock(lock)
    try:
        file_lock.acquire(timeout=-1 if busy is None else 0)
    except Timeout:
        raise UserError(str(busy)) from None
    except OSError as error:
        raise UserError(f"{lock}: cannot lock this file ({error.strerror})") from None
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)  # while it is still held: a waiting process notices that, and creates a new file
        file_lock.release()


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, unless they exist.

    Raises:
        UserError: it cannot be created, for example because a file has its name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot make this folder ({error.strerror})") from None


def is_folder_of_kind(folder: Path, kind: str) -> bool:
    """Return True if a folder was written by this package and is of one kind (``run``, ``influence``, ``tokens``, ``hf``).

    Return False if nothing is there yet.

    Raises:
        UserError: something else is there. It must be neither written to nor deleted.
    """
    # List the files first: another process that starts now writes its manifest before anything else.
    paths = list(folder.iterdir()) if folder.is_dir() else []
    if (folder / "manifest.json").is_file():
        actual = read_manifest_of(folder).get("kind")
        if actual == kind:
            return True
        raise UserError(
            f"{folder}: this is no {kind} folder of olmo-sparsity (its manifest says {actual!r}); choose another"
        )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: this is a file, where a {kind} folder was expected")
    if any(not path.name.endswith(".partial") for path in paths):
        raise UserError(f"{folder}: this folder exists and is no {kind} folder of olmo-sparsity; choose another")
    return False


def clear_folder(folder: Path) -> None:
    """Delete everything in one of our folders except its manifest.

    The manifest is set to ``running`` first. If the deletion is interrupted, what remains is therefore an unfinished folder.
    """
    write_json(folder / "manifest.json", {**read_manifest_of(folder), "status": "running"})
    # In reverse order, ``windows`` goes before the tables that its parts vouch for.
    for path in sorted(folder.iterdir(), reverse=True):
        if path.name == "manifest.json":
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()
