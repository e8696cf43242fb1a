"""Compares the files of a prepared text with the hashes in its manifest, before they enter training or a measurement.

Hashing takes seconds for each GB. So ``verified.json`` keeps size, times and inode of the files that were found right, and those
that still have them are not read again. Whoever writes to a file changes its times.
"""

from __future__ import annotations

import os
from pathlib import Path

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import read_json, sha256_file, write_json
from olmo_sparsity.storage.manifests import Split, read_manifest_of
from olmo_sparsity.storage.typed import check_type
from olmo_sparsity.text.records import SplitEntry

VERIFIED = "verified.json"


def verify_prepared(folder: Path) -> None:
    """Compare the tokenizer, token files and indices of a prepared text with their hashes.

    Raises:
        UserError: a file is missing, or has other contents than were written.
    """
    hashes = _hashes(folder)
    known = _verified(folder)
    stamps: dict[str, list[int]] = {}
    for name, expected in hashes.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"{path}: this file is gone; {_remedy(folder, name)}")
        stamps[name] = _stamp(path)
        if known.get(name) != stamps[name] and sha256_file(path) != expected:
            raise UserError(f"{path}: other contents than were written there; {_remedy(folder, name)}")
    if stamps != known:
        _record(folder, stamps)


def record_verified(folder: Path) -> None:
    """Record that the files of a text, which was prepared just now, are those of its manifest."""
    _record(folder, {name: _stamp(folder / name) for name in _hashes(folder)})


def _hashes(folder: Path) -> dict[str, str]:
    """Return the hash of every file that the manifest knows one of, by its path in the folder."""
    path = folder / "manifest.json"
    manifest = read_manifest_of(folder, "splits", "tokenizer_sha256")
    hashes = {"tokenizer.json": str(manifest["tokenizer_sha256"])}
    for split, raw in manifest["splits"].items():
        entry = SplitEntry.from_json(check_type(raw, Split, where=f"{path}: splits.{split}"))
        hashes |= {file.path: file.sha256 for file in entry.files}
        hashes |= {f"{split}/{name}.bin": digest for name, digest in entry.index_sha256.items()}
    return hashes


def _remedy(folder: Path, name: str) -> str:
    return "bring back the file, or prepare again" if Path(name).is_absolute() else f"delete {folder} and prepare again"


def _stamp(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _verified(folder: Path) -> dict[str, list[int]]:
    """Return the stamps of the files that were found right before; nothing where the record is missing or damaged."""
    path = folder / VERIFIED
    try:
        return check_type(read_json(path), dict[str, list[int]], where=path)
    except UserError:
        return {}


def _record(folder: Path, stamps: dict[str, list[int]]) -> None:
    if os.access(folder, os.W_OK):  # a text that belongs to somebody else is hashed each time
        write_json(folder / VERIFIED, stamps)
