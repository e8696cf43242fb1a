"""A prepared folder -> the token store of one split: many token files as one array, and where its documents lie there.

A token file is OLMo's own format: the raw little-endian ``uint16`` or ``uint32`` token IDs of document after document,
each closed by EOS, which ``olmo.data.memmap_dataset.MemMapDataset`` reads as it is. There is one a shard and split; where
the source was token files, those are read where they lie. Beside them lie raw arrays with one entry a document:

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
from olmo_sparsity.storage.files import read_json

FORMAT = 2  # of the folder; 1 had a single token file a split
INDEX = {"begins": "<i8", "ends": "<i8", "doc_ids": "<u8"}


class TokenFiles:
    """The tokens of several files, one behind another, read like a NumPy array: by a number, a slice of step 1, or an
    array of numbers of any shape. ``starts`` [files] (int64) is the index of each file's first token."""

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
                raise IndexError("token files are sliced in steps of 1")
            return self._slice(begin, max(begin, end))
        wanted = np.asarray(index)
        if wanted.size and not (wanted.min() >= 0 and wanted.max() < self._length):
            raise IndexError(f"token index outside [0, {self._length})")
        flat = wanted.ravel()
        number = np.searchsorted(self._ends, flat, side="right")  # an empty file never comes out
        found = np.empty(len(flat), dtype=self.dtype)
        order = np.argsort(number, kind="stable")
        used, first = np.unique(number[order], return_index=True)
        for file, (begin, end) in zip(used.tolist(), pairwise([*first.tolist(), len(flat)]), strict=True):
            here = order[begin:end]
            found[here] = self._files[file][flat[here] - self.starts[file]]
        return found.reshape(wanted.shape)[()]

    def take(self, index: Any) -> Any:
        """As NumPy's ``take`` without an axis."""
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

    ``tokens`` [all tokens] (uint16 | uint32), ``begins`` and ``ends`` [documents] (int64, rising; document d is
    ``tokens[begins[d]:ends[d]]``, its last token EOS; tokens between documents belong to another split), ``doc_ids``
    [documents] (uint64), ``sources`` and ``source_ends`` [sources] (document d comes from the first source whose end lies
    behind it), ``split``, and the hash of the token file or, where there are several, of their hashes.
    """

    tokens: np.ndarray | TokenFiles
    begins: np.ndarray
    ends: np.ndarray
    doc_ids: np.ndarray
    sources: list[str]
    source_ends: np.ndarray
    split: str
    tokens_sha256: str

    @property
    def num_documents(self) -> int:
        return len(self.doc_ids)

    @property
    def lengths(self) -> np.ndarray:
        """int64 [documents]: tokens of each document, its EOS among them."""
        return self.ends - self.begins

    def document_of(self, token: np.ndarray) -> np.ndarray:
        """int64 [tokens]: which documents these tokens, by their index, lie in."""
        return np.searchsorted(self.begins, token, side="right") - 1

    def source_of(self, document: np.ndarray) -> list[str]:
        """The source of each of these documents."""
        return [self.sources[i] for i in np.searchsorted(self.source_ends, document, side="right").tolist()]


def map_array(path: Path, dtype: Any) -> np.ndarray:
    """A raw file as a read-only array. Unlike ``np.memmap`` it holds no open file: a store has thousands."""
    if path.stat().st_size == 0:
        return np.zeros(0, dtype=dtype)
    with pa.memory_map(str(path)) as file:
        return np.frombuffer(file.read_buffer(), dtype=dtype)


def is_prepared(folder: Path) -> bool:
    """Is this folder a finished preparation."""
    if not (folder / "manifest.json").is_file():
        return False
    manifest = read_json(folder / "manifest.json")
    return manifest.get("status") == "complete" and manifest.get("format") == FORMAT


def _check_size(path: Path, size: int, cure: str) -> None:
    actual = path.stat().st_size if path.is_file() else 0
    if actual != size:
        raise UserError(f"{path}: {actual} bytes where {size} were written; {cure}")


def open_store(folder: Path, split: str) -> TokenStore:
    """Opens one split of a prepared folder.

    Raises:
        UserError: the folder is not a finished preparation, or a file's size is not what was written.
    """
    manifest = read_json(folder / "manifest.json")
    if manifest.get("status") != "complete":
        raise UserError(f"{folder}: this preparation is unfinished; run `olmo-sparsity prepare` again, it continues")
    if manifest.get("format") != FORMAT:
        raise UserError(f"{folder}: another version of olmo-sparsity prepared this; run `olmo-sparsity prepare` again")
    entry = manifest["splits"].get(split)
    if entry is None:
        raise UserError(f"{folder}: there is no split {split!r}, only {', '.join(manifest['splits'])}")
    paths = []
    for file in entry["files"]:
        path = folder / file["path"]  # an absolute path stays what it is
        ours = not Path(file["path"]).is_absolute()
        cure = f"delete {folder} and prepare again" if ours else "bring back the file, or prepare again"
        _check_size(path, file["bytes"], cure)
        paths.append(path)
    for name in INDEX:
        _check_size(folder / split / f"{name}.bin", 8 * entry["documents"], f"delete {folder} and prepare again")
    files = [map_array(path, np.dtype(manifest["dtype"])) for path in paths]
    return TokenStore(
        tokens=files[0] if len(files) == 1 else TokenFiles(files),
        **{name: map_array(folder / split / f"{name}.bin", dtype) for name, dtype in INDEX.items()},
        sources=[name for name, _ in entry["sources"]],
        source_ends=np.cumsum([count for _, count in entry["sources"]], dtype=np.int64),
        split=split,
        tokens_sha256=entry["tokens_sha256"],
    )
