"""The token store: the token files of one split as one array, with the boundaries of its documents.

A token file has OLMo's own format: the token IDs of one document after another, each closed by EOS, as raw little-endian
``uint16`` or ``uint32``. ``olmo.data.memmap_dataset.MemMapDataset`` reads it without conversion. There is one file for each
shard and split. If the source is token files, those are read where they are and not copied. Raw arrays with one entry for each
document lie beside them:

    SPLIT/tokens-00000.bin   uint16 | uint32         SPLIT/begins.bin   SPLIT/ends.bin   int64      SPLIT/doc_ids.bin   uint64
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_type, need, read_manifest_of
from olmo_sparsity.text.records import SplitEntry

FORMAT = 2  # version of the folder's layout; version 1 had a single token file for each split
INDEX = {"begins": "<i8", "ends": "<i8", "doc_ids": "<u8"}  # the raw arrays of a split and their dtypes


class TokenFiles:
    """Several token files, read like one NumPy array.

    The index is an integer, a slice of step 1, or an integer array of any shape. ``starts`` [files] (int64) is the index of
    each file's first token.
    """

    def __init__(self, files: Sequence[np.ndarray]) -> None:
        ends = np.cumsum([len(file) for file in files], dtype=np.int64)
        self._files = list(files)
        self._length = int(ends[-1])
        self._ends = ends
        self.starts = ends - [len(file) for file in files]
        self.dtype = files[0].dtype

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            begin, end, step = index.indices(self._length)
            if step != 1:
                raise IndexError("token files can be sliced in steps of 1 only")
            return self._slice(begin, max(begin, end))
        index = np.asarray(index)
        if index.size and not (index.min() >= 0 and index.max() < self._length):
            raise IndexError(f"token index outside [0, {self._length})")
        flat = index.ravel()
        file_numbers = np.searchsorted(self._ends, flat, side="right")  # never that of an empty file
        tokens = np.empty(len(flat), dtype=self.dtype)
        order = np.argsort(file_numbers, kind="stable")
        used, first = np.unique(file_numbers[order], return_index=True)
        for file, (begin, end) in zip(used.tolist(), pairwise([*first.tolist(), len(flat)]), strict=True):
            in_file = order[begin:end]
            tokens[in_file] = self._files[file][flat[in_file] - self.starts[file]]
        return tokens.reshape(index.shape)[()]

    def take(self, index: Any) -> Any:
        """Return the tokens at ``index``, as NumPy's ``take`` without an axis."""
        return self[np.asarray(index)]

    def __array__(self, dtype: Any = None, copy: Any = None) -> np.ndarray:
        raise TypeError("token files are read in pieces; all of them at once may not fit into memory")

    def _slice(self, begin: int, end: int) -> np.ndarray:
        first = int(np.searchsorted(self._ends, begin, side="right"))
        pieces = []
        for file, start in zip(self._files[first:], self.starts[first:].tolist(), strict=True):
            if start >= end:
                break
            pieces.append(file[max(begin - start, 0) : end - start])
        if len(pieces) == 1:
            return pieces[0]
        return np.concatenate(pieces) if pieces else np.zeros(0, dtype=self.dtype)


@dataclass(frozen=True)
class TokenStore:
    """The documents of one split, memory-mapped.

    Attributes:
        tokens: uint16 | uint32 [all tokens of the files].
        begins_G: int64, rising; index in ``tokens`` of each document's first token.
        ends_G: int64; one more than the index of each document's last token, which is EOS. Tokens between two documents
            belong to another split.
        doc_ids_G: uint64; hash of each document's content.
        sources: names of the sources, in the order of the documents.
        source_ends: int64 [sources]; document ``g`` is from the first source whose end is larger than ``g``.
        split: ``train``, ``validation`` or ``measured``.
        tokens_sha256: hash of the token file; of several files, the hash of their hashes.
    """

    tokens: np.ndarray | TokenFiles
    begins_G: np.ndarray
    ends_G: np.ndarray
    doc_ids_G: np.ndarray
    sources: list[str]
    source_ends: np.ndarray
    split: str
    tokens_sha256: str

    @property
    def num_documents(self) -> int:
        """Number of documents in the split."""
        return len(self.doc_ids_G)

    @property
    def lengths_G(self) -> np.ndarray:
        """int64; tokens of each document, including its EOS."""
        return self.ends_G - self.begins_G

    def document_of(self, index: np.ndarray) -> np.ndarray:
        """Return the number of the document (int64, shape of ``index``) that holds each of these tokens."""
        return np.searchsorted(self.begins_G, index, side="right") - 1

    def source_of(self, documents_g: np.ndarray) -> list[str]:
        """Return the name of the source of each of these documents."""
        return [self.sources[i] for i in np.searchsorted(self.source_ends, documents_g, side="right").tolist()]

    def source_numbers(self, documents_g: np.ndarray) -> np.ndarray:
        """Return a number for the source of each of these documents, int64 [g]: equal for equal names."""
        _, number_of_run = np.unique(np.array(self.sources, dtype=object), return_inverse=True)
        return np.asarray(number_of_run[np.searchsorted(self.source_ends, documents_g, side="right")])


def map_array(path: Path, dtype: Any) -> np.ndarray:
    """Map a raw file as a read-only array. Unlike ``np.memmap`` it keeps no file open: a store has thousands of files."""
    if path.stat().st_size == 0:
        return np.zeros(0, dtype=dtype)
    with pa.memory_map(str(path)) as file:
        return np.frombuffer(file.read_buffer(), dtype=dtype)


def is_prepared(folder: Path) -> bool:
    """Return True if a folder is a finished preparation in the present format."""
    if not (folder / "manifest.json").is_file():
        return False
    manifest = read_manifest_of(folder)
    return manifest.get("status") == "complete" and manifest.get("format") == FORMAT


def remedy_of(folder: Path, name: str) -> str:
    """Return what to do about a wrong file of a prepared folder; an absolute name is that of a source outside of it."""
    return "bring back the file, or prepare again" if Path(name).is_absolute() else f"delete {folder} and prepare again"


def _check_size(folder: Path, name: str, *, size: int) -> None:
    path = folder / name
    actual = path.stat().st_size if path.is_file() else 0
    if actual != size:
        raise UserError(f"{path}: {actual} bytes where {size} were written; {remedy_of(folder, name)}")


def _check_tokens(folder: Path, split: str, *, entry: SplitEntry, dtype: str, num_tokens: int) -> None:
    """Check that the manifest counts the tokens that the files of a split hold, and its documents (``num_tokens``)."""
    size = np.dtype(dtype).itemsize
    counts = [(f" of {file.path}", file.tokens, file.bytes // size) for file in entry.files]
    for where, counted, found in (*counts, ("", entry.tokens, num_tokens)):
        if counted != found:
            raise UserError(
                f"{folder / 'manifest.json'}: splits.{split} counts {counted:,} tokens{where}, and its files hold {found:,}; "
                f"{remedy_of(folder, 'manifest.json')}"
            )


def open_store(folder: Path, split: str) -> TokenStore:
    """Open one split of a prepared folder.

    Raises:
        UserError: the preparation is unfinished or of another version, has no such split, or a file does not have the size
            with which it was written, or the tokens that the manifest counts.
    """
    manifest = read_manifest_of(folder)
    if manifest.get("status") != "complete":
        raise UserError(f"{folder}: this preparation is unfinished; run `olmo-sparsity prepare` again, it continues")
    if manifest.get("format") != FORMAT:
        raise UserError(f"{folder}: another version of olmo-sparsity prepared this; run `olmo-sparsity prepare` again")
    need(manifest, "splits", where=folder / "manifest.json")
    if split not in manifest["splits"]:
        raise UserError(f"{folder}: there is no split {split!r}, only {', '.join(manifest['splits'])}")
    need(manifest, "dtype", where=folder / "manifest.json")
    entry = check_type(manifest["splits"][split], SplitEntry, where=f"{folder / 'manifest.json'}: splits.{split}")
    return split_store(folder, split, entry=entry, dtype=manifest["dtype"])


def split_store(folder: Path, split: str, *, entry: SplitEntry, dtype: str) -> TokenStore:
    """Open the files of one split.

    Args:
        folder: the prepared folder.
        split: name of the split.
        entry: its entry in the manifest.
        dtype: dtype of the token files.

    Raises:
        UserError: a file does not have the size with which it was written, or the tokens that its entry counts.
    """
    for file in entry.files:
        _check_size(folder, file.path, size=file.bytes)
    files = [map_array(folder / file.path, np.dtype(dtype)) for file in entry.files]
    index = {}
    for name, index_dtype in INDEX.items():
        _check_size(folder, f"{split}/{name}.bin", size=8 * entry.documents)
        index[name] = map_array(folder / split / f"{name}.bin", index_dtype)
    _check_tokens(folder, split, entry=entry, dtype=dtype, num_tokens=int((index["ends"] - index["begins"]).sum()))
    return TokenStore(
        tokens=files[0] if len(files) == 1 else TokenFiles(files),
        begins_G=index["begins"],
        ends_G=index["ends"],
        doc_ids_G=index["doc_ids"],
        sources=[run.source for run in entry.sources],
        source_ends=np.cumsum([run.num_documents for run in entry.sources], dtype=np.int64),
        split=split,
        tokens_sha256=entry.tokens_sha256,
    )


COUNTED_AT_ONCE = 2**24  # tokens
_counted: dict[tuple[str, str], np.ndarray] = {}  # by hash and split of the store


def token_counts(store: TokenStore) -> np.ndarray:
    """Return how often each token occurs in the documents of a store, int64, up to the largest token ID; counted once."""
    key = (store.tokens_sha256, store.split)
    if key not in _counted:
        follows_G = np.append(
            store.begins_G[1:] == store.ends_G[:-1], False
        )  # documents that lie side by side are one span
        ends_g = store.ends_G[~follows_G]
        begins_g = store.begins_G[np.append(True, ~follows_G[:-1])]
        counts_V = np.zeros(1, dtype=np.int64)
        for begin, end in zip(begins_g.tolist(), ends_g.tolist(), strict=True):
            for first in range(begin, end, COUNTED_AT_ONCE):
                more_V = np.bincount(store.tokens[first : min(first + COUNTED_AT_ONCE, end)], minlength=len(counts_V))
                more_V[: len(counts_V)] += counts_V
                counts_V = more_V
        np.subtract.at(
            counts_V, store.tokens[store.ends_G - 1], 1
        )  # the token that closes a document is none of its text
        _counted[key] = counts_V
    return _counted[key]
