"""What produced a run: config, commit, versions, device, seeds, hashes of inputs, status."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, Optional

from filelock import FileLock, Timeout

from olmo_sparsity import __version__
from olmo_sparsity.config import UserError

PACKAGES = ("ai2-olmo", "torch", "numpy", "datasets", "tokenizers", "pyarrow", "scipy")
HOST = re.sub(r"[^A-Za-z0-9-]+", "-", platform.node()) or "unknown"
STALE_SECONDS = 3600  # another machine's file that is written to is touched every second


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file of ours.

    Raises:
        UserError: it is missing, or not what was written.
    """
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path}: no such file; {path.parent} is not what it should be, or was cut short") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{path}: not valid JSON, the file is damaged") from None
    if not isinstance(value, dict):
        raise UserError(f"{path}: a JSON object was expected")
    return value


def own_name() -> str:
    """A file name's part that no other process has, on no machine, and that says whose it is: host, process, chance."""
    return f"{HOST}.{os.getpid()}.{uuid.uuid4().hex[:8]}"


def partial_path(path: Path) -> Path:
    """Where a file is written before it is renamed to ``path``. Several processes may write the same file at once; the
    dot hides what is not finished from those who read all files of a folder."""
    return path.with_name(f".{path.name}.{own_name()}.partial")


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def put_in_place(partial: Path, path: Path) -> None:
    """Renames a finished partial file to its name, where it is whole even if the machine fails."""
    _sync(partial)
    os.replace(partial, path)


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    partial = partial_path(path)
    partial.write_text(text, encoding="utf-8")
    put_in_place(partial, path)


def _json(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object whole or not at all."""
    write_text(path, _json(value))


def write_json_once(path: Path, value: dict[str, Any]) -> None:
    """Writes a JSON object whole, unless the file is there: of several processes that begin at once, one writes it, and
    none takes back what was written since."""
    partial = partial_path(path)
    partial.write_text(_json(value), encoding="utf-8")
    _sync(partial)
    try:
        os.link(partial, path)  # unlike a rename, it fails where the name is taken
    except FileExistsError:
        pass
    except OSError:  # a file system without hard links
        if not path.exists():
            os.replace(partial, path)
    partial.unlink(missing_ok=True)


def _may_be_written(partial: Path) -> bool:
    """Is the process that a partial file belongs to alive, as far as can be told."""
    found = re.fullmatch(r"\..*\.([A-Za-z0-9-]+)\.(\d+)\.[0-9a-f]{8}\.partial", partial.name)
    if found and found.group(1) == HOST:
        try:
            os.kill(int(found.group(2)), 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # another user's
            return True
        return int(found.group(2)) != os.getpid()
    try:
        return time.time() - partial.stat().st_mtime < STALE_SECONDS
    except FileNotFoundError:
        return False


def remove_leftovers(*folders: Path) -> None:
    """Removes the partial files that killed processes left in these folders, not those that a living one writes."""
    for folder in folders:
        for path in folder.glob("*.partial"):
            if path.is_file() and not path.is_symlink() and not _may_be_written(path):
                path.unlink(missing_ok=True)


@contextmanager
def one_at_a_time(lock: Path, busy: Optional[str] = None) -> Iterator[None]:
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


def holds(folder: Path, kind: str) -> bool:
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


def empty_folder(folder: Path) -> None:
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


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _commit() -> str | None:
    """The commit of the checkout that the package runs from, marked where it was changed; None where it is none."""
    here = Path(__file__).parent.parent
    if not (here / ".git").exists():
        return None
    try:
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty", "--abbrev=40", "--exclude=*"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=10,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None


def environment() -> dict[str, Any]:
    """Versions, commit and machine: what a result may depend on besides its configuration."""
    versions: dict[str, str | None] = {}
    for package in PACKAGES:
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = None
    return {
        "olmo_sparsity": __version__,
        "commit": _commit(),
        "python": platform.python_version(),
        "packages": versions,
        "machine": platform.machine(),
        "system": platform.system(),
    }
