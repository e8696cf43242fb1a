"""Files that appear whole or not at all."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import time
import uuid
from pathlib import Path
from typing import Any

from olmo_sparsity.errors import UserError

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


def unique_name() -> str:
    """A file name's part that no other process has, on no machine, and that says whose it is: host, process, chance."""
    return f"{HOST}.{os.getpid()}.{uuid.uuid4().hex[:8]}"


def partial_path(path: Path) -> Path:
    """Where a file is written before it is renamed to ``path``. Several processes may write the same file at once; the
    dot hides what is not finished from those who read all files of a folder."""
    return path.with_name(f".{path.name}.{unique_name()}.partial")


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def rename_into_place(partial: Path, path: Path) -> None:
    """Renames a finished partial file to its name, where it is whole even if the machine fails."""
    _sync(partial)
    os.replace(partial, path)


def write_text(path: Path, text: str) -> None:
    """Writes a file whole or not at all."""
    partial = partial_path(path)
    partial.write_text(text, encoding="utf-8")
    rename_into_place(partial, path)


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


def sha256_file(path: Path) -> str:
    """Hexadecimal SHA-256 of a file's bytes."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()
