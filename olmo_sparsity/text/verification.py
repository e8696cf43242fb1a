"""Compares the files of a prepared text with the hashes in its manifest, before they enter training or a measurement.

Hashing takes seconds for each GB. So ``verified.json`` keeps size, times and inode of the files that were found right, and those
that still have them are not read again. Whoever writes to a file changes its times.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Optional

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import read_json, sha256_file, write_json
from olmo_sparsity.storage.manifests import read_manifest_of
from olmo_sparsity.storage.typed import check_type
from olmo_sparsity.text.records import SplitEntry
from olmo_sparsity.text.store import remedy_of

VERIFIED = "verified.json"
Stamps = dict[str, list[int]]  # size, times and inode of each file, by its path in the prepared folder


def verify_prepared(folder: Path) -> None:
    """Compare the tokenizer, token files and indices of a prepared text with their hashes.

    Raises:
        UserError: a file is missing, or has other contents than were written.
    """
    known = _verified(folder)
    stamps, wrong = compare(folder, _hashes(folder), known=known)
    if wrong is not None:
        what = "other contents than were written there" if (folder / wrong).is_file() else "this file is gone"
        raise UserError(f"{folder / wrong}: {what}; {remedy_of(folder, wrong)}")
    if stamps != known:
        _record(folder, stamps)


def compare(folder: Path, hashes: dict[str, str], *, known: Optional[Stamps] = None) -> tuple[Stamps, Optional[str]]:
    """Compare files with their hashes.

    Args:
        folder: the prepared folder.
        hashes: of each file, by its path in the folder.
        known: stamps of files that were found right before; those that still have them are not read.

    Returns:
        (the stamps that the files had before they were read, the first one that is missing or has other contents or None).
    """
    stamps: Stamps = {}
    for name, expected in hashes.items():
        path = folder / name
        if not path.is_file():
            return stamps, name
        stamps[name] = stamp(path)
        if (known or {}).get(name) != stamps[name] and sha256_file(path) != expected:
            return stamps, name
    return stamps, None


def record_verified(folder: Path, stamps: Stamps) -> None:
    """Record that the files of a text, which was prepared just now, are those of its manifest.

    Args:
        folder: the prepared folder.
        stamps: those that files had when they were hashed; the others were hashed a moment ago.
    """
    _record(folder, {name: stamps.get(name) or stamp(folder / name) for name in _hashes(folder)})


def _hashes(folder: Path) -> dict[str, str]:
    """Return the hash of every file that the manifest knows one of, by its path in the folder."""
    path = folder / "manifest.json"
    manifest = read_manifest_of(folder, "splits", "tokenizer_sha256")
    hashes = {"tokenizer.json": str(manifest["tokenizer_sha256"])}
    for split, raw in manifest["splits"].items():
        entry = check_type(raw, SplitEntry, where=f"{path}: splits.{split}")
        hashes |= {file.path: file.sha256 for file in entry.files}
        hashes |= {f"{split}/{name}.bin": digest for name, digest in entry.index_sha256.items()}
    return hashes


def stamp(path: Path) -> list[int]:
    """Return what changes when somebody writes to a file."""
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


def _verified(folder: Path) -> Stamps:
    """Return the stamps of the files that were found right before; nothing where the record is missing or damaged."""
    path = folder / VERIFIED
    try:
        return check_type(read_json(path), Stamps, where=path)
    except UserError:
        return {}


def _record(folder: Path, stamps: Stamps) -> None:
    if os.access(folder, os.W_OK):  # a text that belongs to somebody else is hashed each time
        write_json(folder / VERIFIED, stamps)
