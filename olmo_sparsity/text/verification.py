"""Compares the files of a prepared text with the hashes in its manifest, before they enter training or a measurement."""

from __future__ import annotations

from pathlib import Path
from typing import Optional

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_type, read_manifest_of, sha256_file
from olmo_sparsity.text.records import SplitEntry
from olmo_sparsity.text.store import remedy_of


def verify_prepared(folder: Path) -> None:
    """Compare the tokenizer, token files and indices of a prepared text with their hashes.

    Raises:
        UserError: a file is missing, or has other contents than were written.
    """
    wrong = first_wrong(folder, _hashes(folder))
    if wrong is not None:
        what = "other contents than were written there" if (folder / wrong).is_file() else "this file is gone"
        raise UserError(f"{folder / wrong}: {what}; {remedy_of(folder, wrong)}")


def first_wrong(folder: Path, hashes: dict[str, str]) -> Optional[str]:
    """Return the first file that is missing or has another hash; None: there is none.

    Args:
        folder: the prepared folder.
        hashes: of each file, by its path in the folder.
    """
    for name, expected in hashes.items():
        path = folder / name
        if not path.is_file() or sha256_file(path) != expected:
            return name
    return None


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
