"""Atomic file writes: a reader sees a complete file or no file, even after a crash."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import stat
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Optional

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.typed import decode_json

HOST = re.sub(r"[^A-Za-z0-9-]+", "-", platform.node()) or "unknown"
END_BYTES = 1 << 16  # of the beginning and of the end of a file, which tell who wrote it
CHECKSUM = "content_sha256"  # key of the JSON files whose values no other file repeats
STALE_SECONDS = 3600  # a partial file of another machine that did not change for so long is taken for abandoned
PARTIAL_NAME = re.compile(r"\.(?P<name>.*)\.(?P<host>[A-Za-z0-9-]+)\.(?P<pid>\d+)\.[0-9a-f]{8}\.partial")


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object that this package wrote.

    Raises:
        UserError: the file is missing, is not JSON, or holds something other than an object.
    """
    try:
        content = check_regular(path).read_bytes()
    except FileNotFoundError:
        raise UserError(
            f"{path}: no such file; {path.parent} is not the folder that was expected, or it is incomplete"
        ) from None
    value = decode_json(content, where=str(path))
    if not isinstance(value, dict):
        raise UserError(f"{path}: expected a JSON object")
    return value


def checksum_of(value: dict[str, Any]) -> str:
    """Return the SHA-256 of what a JSON object holds but its checksum. Layout and order of the keys do not count."""
    content = json.loads(json.dumps({key: of for key, of in value.items() if key != CHECKSUM}))  # as it is read again
    return sha256_text(json.dumps(content, sort_keys=True))


def with_checksum(value: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON object with the checksum of what it holds as its last key."""
    content = {key: of for key, of in value.items() if key != CHECKSUM}
    return {**content, CHECKSUM: checksum_of(content)}


def is_as_written(value: dict[str, Any]) -> Optional[bool]:
    """Return whether a JSON object holds what its checksum is of; None: it has no checksum."""
    try:
        return value[CHECKSUM] == checksum_of(value) if CHECKSUM in value else None
    except RecursionError:  # nested more deeply than this package writes
        return False


def unique_name() -> str:
    """Return a part of a file name, ``HOST.PID.RANDOM``, that no other process on any machine uses."""
    return f"{HOST}.{os.getpid()}.{uuid.uuid4().hex[:8]}"


def partial_path(path: Path) -> Path:
    """Return the temporary path where a file is written before it is renamed to ``path``.

    The name is unique, so several processes may write the same file at once. It starts with a dot, so tools that read all
    files of a folder skip it.
    """
    return path.with_name(f".{path.name}.{unique_name()}.partial")


def final_path(partial: str) -> str:
    """Return the path that a partial file was to get; of any other path, the path itself."""
    path = Path(partial)
    if match := PARTIAL_NAME.fullmatch(path.name):
        return str(path.with_name(match["name"]))
    return partial


def _sync(path: Path) -> None:
    with open(path, "rb") as file:
        os.fsync(file.fileno())


def rename_into_place(partial: Path, path: Path) -> None:
    """Flush a finished partial file to disk and rename it to ``path``, atomically."""
    _sync(partial)
    os.replace(partial, path)


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give the path of a partial file to write. Rename it to ``path`` at the end; after an error, remove it."""
    partial = partial_path(path)
    try:
        yield partial
        rename_into_place(partial, path)
    finally:
        with suppress(OSError):  # it has its name, or its folder cannot be read
            partial.unlink(missing_ok=True)


def write_bytes(path: Path, content: bytes) -> None:
    """Write a file atomically."""
    with written_whole(path) as partial:
        partial.write_bytes(content)


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    write_bytes(path, text.encode())


def check_regular(path: Path) -> Path:
    """Return a path that is to be read, unless what is there is no file: a pipe would be waited for without end.

    Raises:
        UserError: it is a pipe, a device or a socket.
    """
    if path.exists() and not path.is_file() and not path.is_dir():
        raise UserError(f"{path}: this is a pipe or a device, where a file was expected; write it into a file")
    return path


def check_replaceable(path: Path, is_own: Callable[[bytes], object], *, what: str) -> bool:
    """Return True if a file is at a path where one is to be written, and False if nothing is there.

    Args:
        path: where to write.
        is_own: returns something true of the first and the last 64 KiB of a file that the tool wrote.
        what: what the tool writes there, in a message.

    Raises:
        UserError: what is there must not be replaced: a folder, a link, a pipe, or a file that the tool did not write.
    """
    try:
        status = path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    if stat.S_ISLNK(status.st_mode):
        raise UserError(f"{path}: this is a symbolic link to {os.readlink(path)}; name a file instead of the link")
    if stat.S_ISDIR(status.st_mode):
        raise UserError(f"{path}: this is a folder, where a file is to be written; name a file")
    if not stat.S_ISREG(status.st_mode):
        raise UserError(f"{path}: this is a pipe or a device, where a file is to be written; choose another")
    with open(path, "rb") as file:
        ends = file.read(END_BYTES)
        file.seek(max(len(ends), status.st_size - END_BYTES))
        ends += file.read(END_BYTES)
    if not is_own(ends):
        raise UserError(
            f"{path}: this is no {what} that olmo-sparsity wrote, so it is not replaced; move it or name another"
        )
    return True


def to_json(value: dict[str, Any]) -> str:
    """Return the text of a JSON file."""
    return json.dumps(value, indent=2, ensure_ascii=False) + "\n"


def write_json(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object atomically."""
    write_text(path, to_json(value))


def write_new(path: Path, content: bytes) -> bool:
    """Write a file atomically, unless something has its name; return whether it was written.

    If several processes call this at once, exactly one of them writes the file, and a later version never replaces it.
    """
    partial = partial_path(path)
    try:
        partial.write_bytes(content)
        _sync(partial)
        try:
            os.link(partial, path)  # unlike a rename, a link fails if the name exists
        except FileExistsError:
            return False
        except OSError:  # the file system has no hard links
            if os.path.lexists(path):
                return False
            os.replace(partial, path)
        return True
    finally:
        with suppress(OSError):  # it has its name, or its folder cannot be read
            partial.unlink(missing_ok=True)


def write_json_once(path: Path, value: dict[str, Any]) -> None:
    """Write a JSON object as ``write_new`` does; what is there stays."""
    write_new(path, to_json(value).encode())


def _may_be_in_use(partial: Path) -> bool:
    """Return False if the process that wrote a partial file has certainly ended, or its file is stale."""
    match = PARTIAL_NAME.fullmatch(partial.name)
    if match and match["host"] == HOST:
        pid = int(match["pid"])
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
        except PermissionError:  # a process of another user
            return True
        return pid != os.getpid()
    try:
        return time.time() - partial.stat().st_mtime < STALE_SECONDS
    except FileNotFoundError:
        return False


def remove_leftovers(*folders: Path) -> None:
    """Remove the partial files that killed processes left in these folders. Files of running processes and of others are kept."""
    for folder in folders:
        for path in folder.glob("*.partial"):
            is_own = PARTIAL_NAME.fullmatch(path.name) is not None
            if is_own and path.is_file() and not path.is_symlink() and not _may_be_in_use(path):
                path.unlink(missing_ok=True)


def sha256_text(text: str) -> str:
    """Return the SHA-256 of a text in UTF-8, in hexadecimal."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_file(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hexadecimal."""
    return sha256_files([path])


def sha256_files(paths: Iterable[Path]) -> str:
    """Return the SHA-256 of the bytes of several files one after another, in hexadecimal."""
    digest = hashlib.sha256()
    for path in paths:
        with open(check_regular(path), "rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
    return digest.hexdigest()
