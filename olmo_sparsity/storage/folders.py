"""Folders that this package owns: recognised by their manifest, and locked while they are written."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Optional

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.kinds import KINDS, is_kind
from olmo_sparsity.storage.files import PARTIAL_NAME, read_json
from olmo_sparsity.storage.manifests import checked, read_manifest_of, write_manifest

logger = logging.getLogger(__name__)

NAMED = 5  # files that are named in a message
_CHECKPOINT = ("config.yaml", "model.pt", "optim.pt", "train.json")
# What commands write into a folder of each kind, as patterns. ``--overwrite`` deletes nothing else.
OWN_FILES: dict[str, tuple[str, ...]] = {
    "run": (
        *("config.yaml", "tokenizer.json", "metrics.jsonl", "tensorboard/events.out.tfevents.*", "checkpoints/latest"),
        # The last: of a process that was killed while it wrote or deleted a checkpoint.
        *(f"checkpoints/{step}/{name}" for step in ("step[0-9]*", ".step[0-9]*.partial") for name in _CHECKPOINT),
    ),
    **{kind.name: kind.own_files for kind in KINDS.values()},
}


@contextmanager
def exclusive_lock(lock: Path, busy: Optional[str] = None) -> Iterator[None]:
    """Hold a lock file for the duration of the context. The lock of a killed process is released.

    Args:
        lock: path of the lock file; it is removed at the end.
        busy: error message if another process holds the lock; None: wait for it.

    Raises:
        UserError: the file cannot be created or is none of ours, or another process holds the lock and ``busy`` is given.
    """
    from filelock import FileLock, Timeout  # it hooks into every later import, and most commands lock nothing

    make_folder(lock.parent)
    if _is_foreign(lock):
        raise UserError(f"{lock}: this file is no lock of olmo-sparsity, and a lock is to get its name; rename it")
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


def _is_foreign(lock: Path) -> bool:
    """Return True of a file that is no lock: that is empty or, where the file system cannot lock, begins with a process ID."""
    try:
        return lock.is_file() and lock.read_bytes()[:1] not in b"0123456789"
    except OSError:  # removed in the meantime, or locking it will fail as well
        return False


def make_folder(folder: Path) -> None:
    """Create a folder and its parents, unless they exist.

    Raises:
        UserError: it cannot be created, for example because a file has its name.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder}: cannot make this folder ({error.strerror})") from None


def check_writable(folder: Path, name: str = "") -> None:
    """Check that a folder takes files, or can be made. Nothing stays there. Call it before any long work.

    Args:
        folder: where to write.
        name: of the file that is to be written, for the error.

    Raises:
        UserError: the folder cannot be made.
        OSError: no file can be written into it.
    """
    there = folder.absolute()
    while not os.path.lexists(there):
        there = there.parent
    if not there.is_dir():
        make_folder(folder)  # it cannot be made, and this says why
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        if there != folder.absolute():
            raise UserError(f"{folder}: cannot make this folder ({error.strerror})") from None
        raise OSError(error.errno, error.strerror, str(folder / name)) from None


def check_no_link(folder: Path) -> None:
    """Check that a folder that is to be deleted or replaced is no symbolic link: what it leads to may be somebody else's.

    Raises:
        UserError: it is one.
    """
    if folder.is_symlink():
        raise UserError(
            f"{folder}: this is a symbolic link to {os.readlink(folder)}, where a folder of olmo-sparsity is to be deleted; "
            "remove the link"
        )


def remove_folder(folder: Path) -> None:
    """Delete a folder of this package with all that is in it.

    Raises:
        UserError: it is a symbolic link.
    """
    check_no_link(folder)
    shutil.rmtree(folder)


def folder_name(folder: Path) -> str:
    """Return the last part of the path of a folder, also of ``.`` and ``..``, which do not name it."""
    return os.path.basename(os.path.abspath(folder))


def distinct_names(folders: Sequence[Path]) -> list[str]:
    """Return the names of folders, or their paths where two have the same name."""
    names = list(map(folder_name, folders))
    return names if len(set(names)) == len(names) else list(map(str, folders))


def is_folder_of_kind(folder: Path, kind: str) -> bool:
    """Return whether ``manifest_of_kind`` finds a manifest."""
    return manifest_of_kind(folder, kind) is not None


def manifest_of_kind(folder: Path, kind: str) -> Optional[dict[str, Any]]:
    """Return the manifest of a folder of one kind (``run``, ``influence``, ``tokens``, ``hf``), which is read once.

    Return None if nothing is there yet.

    Raises:
        UserError: something else is there, which must be neither written to nor deleted; or the manifest is damaged.
    """
    # List the files first: another process that starts now writes its manifest before anything else.
    paths = list(folder.iterdir()) if folder.is_dir() else []
    path = folder / "manifest.json"
    if path.is_file():
        manifest = read_json(path)
        if manifest.get("kind") == kind:  # of another kind, other keys are right
            return checked(manifest, where=path)
        raise UserError(
            f"{folder}: this is no {kind} folder of olmo-sparsity (its manifest says {manifest.get('kind')!r}); choose another"
        )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder}: this is a file, where a folder of the kind {kind!r} was expected")
    if any(not path.name.endswith(".partial") for path in paths):
        raise UserError(f"{folder}: this folder exists and is no {kind} folder of olmo-sparsity; choose another")
    return None


def clear_folder(folder: Path) -> None:
    """Delete what commands of this package wrote into one of our folders, except its manifest; leave and name the rest.

    The manifest is set to ``running`` first. If the deletion is interrupted, what remains is therefore an unfinished folder.
    Tables inside of a run, which are those of the deleted model, go with it.
    """
    write_manifest(folder, {**read_manifest_of(folder), "status": "running"})
    _delete_own(folder)
    manifest = folder / "manifest.json"
    rest = [path.relative_to(folder).as_posix() for path in _files(folder) if path != manifest]
    if rest:
        more = f" and {len(rest) - NAMED} more" if len(rest) > NAMED else ""
        logger.info(f"{folder}: left as they are, since they are no part of it: {', '.join(rest[:NAMED])}{more}")


def _delete_own(folder: Path) -> None:
    """Delete the files of a folder that its kind has, and of a run the tables inside of it; then what folders are empty."""
    kind = read_json(folder / "manifest.json").get("kind")
    patterns = OWN_FILES.get(kind, ()) if isinstance(kind, str) else ()
    for path in sorted(folder.iterdir()):
        # In place of a folder of ours; what it leads to is somebody else's.
        if path.is_symlink() and any(pattern.startswith(f"{path.name}/") for pattern in patterns):
            path.unlink()
    for pattern in patterns:  # likewise further down
        for path in folder.glob(pattern.rpartition("/")[0]) if "/" in pattern else ():
            if path.is_symlink() and not _is_linked(path.parent, folder):
                path.unlink()
    own = {path for pattern in patterns for path in folder.glob(pattern)}
    partial = {path for pattern in (".*.partial", "*/.*.partial") for path in folder.glob(pattern)}
    own |= {path for path in partial if PARTIAL_NAME.fullmatch(path.name)}
    own = {path for path in own if not _is_linked(path.parent, folder)}
    # In reverse order, ``windows`` goes before the tables that its parts vouch for.
    for path in sorted(own, reverse=True):
        if path.is_file() or path.is_symlink():
            path.unlink(missing_ok=True)
    nested = [*folder.glob("*/manifest.json"), *folder.glob("*/*/manifest.json")] if kind == "run" else []
    for manifest in sorted(nested):
        if manifest.is_file() and not _is_linked(manifest.parent, folder) and _is_ours(manifest):
            write_manifest(manifest.parent, {**read_json(manifest), "status": "running"})
            _delete_own(manifest.parent)
            manifest.unlink()
    for path in sorted(folder.rglob("*"), reverse=True):
        if path.is_dir() and not path.is_symlink() and not any(path.iterdir()):
            path.rmdir()


def _is_linked(path: Path, folder: Path) -> bool:
    """Return True if a symbolic link lies between a folder and a path inside of it."""
    return any(part.is_symlink() for part in (path, *path.parents) if folder in part.parents)


def _is_ours(manifest: Path) -> bool:
    try:
        return is_kind(read_json(manifest).get("kind"))
    except UserError:
        return False


def _files(folder: Path) -> list[Path]:
    """Return what is in a folder and is no folder; links are not followed."""
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
