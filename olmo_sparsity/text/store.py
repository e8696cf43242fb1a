"""The token store: the tokens of one split as one array, with the boundaries of its documents.

    SPLIT/tokens.bin   uint16 | uint32      SPLIT/begins.bin   SPLIT/ends.bin   int64      SPLIT/doc_ids.bin   uint64

``tokens.bin`` has OLMo's own format, raw little-endian token IDs, each document closed by EOS. Token files that are a source are
read where they are, as one array. The manifest is written after each piece of the source, and says how much of it is done.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Optional

import msgspec
import numpy as np
import pyarrow as pa

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_type, read_json, sha256_file, write_json

FORMAT = 4  # version of the folder's layout
INDEX = {"begins": "<i8", "ends": "<i8", "doc_ids": "<u8"}  # the raw arrays of a split and their dtypes
READ_AT_ONCE = 1 << 20  # tokens of a memory-mapped file


class Split(msgspec.Struct):
    """The entry of a split in the manifest."""

    documents: int = 0
    tokens: int = 0  # of its documents
    tokens_sha256: str = ""  # identifies its documents
    piece_sha256: list[str] = []  # of the tokens of each piece of text
    sources: list[tuple[str, int]] = []  # numbers of consecutive documents of one source


class Manifest(msgspec.Struct, kw_only=True):
    """``manifest.json`` of a prepared folder."""

    kind: Literal["tokens"] = "tokens"
    format: int = FORMAT
    status: Literal["running", "complete"] = "running"
    made_from: Literal["text", "token files"]
    data: dict[str, Any]
    dtype: Literal["<u2", "<u4"]
    eos_id: int
    vocab_size: int
    tokenizer_sha256: str
    splits: dict[str, Split]
    pieces: int = 0  # of the source, that are done
    # SHA-256 of each file: of the folder, or, with its whole path, a token file that is a source.
    files: dict[str, str] = {}
    scanned: int = 0  # tokens of these token files
    bytes: int = 0  # of the text
    seconds: float = 0
    empty: int = 0  # documents without text, which are left out
    decoded: int = 0  # documents whose tokens were decoded again
    changed: int = 0  # of these, which gave another text
    closed: int = 0  # documents of token files that end with EOS
    unclosed: list[str] = []  # token files whose last document does not
    overlapping: int = 0  # validation documents that were left out

    @property
    def token_files(self) -> list[str]:
        """The token files that are the source."""
        return [name for name in self.files if Path(name).is_absolute()]


class TokenFiles:
    """Several token files, read like one NumPy array: by an integer, a slice of step 1, or an array of integers."""

    def __init__(self, files: Sequence[np.ndarray]) -> None:
        self._files = list(files)
        self._starts = np.cumsum([0, *map(len, files)], dtype=np.int64)  # and, last, the end
        self.dtype = files[0].dtype

    def __len__(self) -> int:
        return int(self._starts[-1])

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            begin, end, _ = index.indices(len(self))
            first, last = np.searchsorted(self._starts, begin, side="right") - 1, np.searchsorted(self._starts, end)
            spans = zip(self._files[first:last], self._starts[first:last].tolist(), strict=True)
            pieces = [file[max(begin - start, 0) : end - start] for file, start in spans]
            return pieces[0] if len(pieces) == 1 else np.concatenate([*pieces, np.zeros(0, self.dtype)])
        index = np.asarray(index)
        file_numbers = np.searchsorted(self._starts, index, side="right") - 1  # never that of an empty file
        tokens = np.empty(index.shape, dtype=self.dtype)
        for number in np.unique(file_numbers).tolist():
            is_own = file_numbers == number
            tokens[is_own] = self._files[number][index[is_own] - self._starts[number]]
        return tokens[()]


@dataclass(frozen=True, eq=False)
class TokenStore:
    """The documents of one split, memory-mapped."""

    tokens: np.ndarray | TokenFiles  # uint16 | uint32
    begins_G: np.ndarray  # int64, rising; index of each document's first token
    ends_G: np.ndarray  # int64; one more than the index of its EOS. What lies between documents is of another split
    doc_ids_G: np.ndarray  # uint64; hash of each document's content
    sources: list[str]  # in the order of the documents
    source_ends: np.ndarray  # int64; document g is of the first source whose end is larger than g
    split: str  # train, validation or measured
    tokens_sha256: str

    @property
    def num_documents(self) -> int:
        """Number of documents."""
        return len(self.doc_ids_G)

    @property
    def lengths_G(self) -> np.ndarray:
        """int64; tokens of each document, with its EOS."""
        return self.ends_G - self.begins_G

    def document_of(self, index: np.ndarray) -> np.ndarray:
        """Return the number of the document (int64, shape of ``index``) that holds each of these tokens."""
        return np.searchsorted(self.begins_G, index, side="right") - 1

    def holds(self, index: np.ndarray, num_tokens: int) -> np.ndarray:
        """Return whether a document holds so many tokens from each of these on, without its EOS; bool, shape of ``index``."""
        document = self.document_of(index)
        return np.asarray((document >= 0) & (index + num_tokens < self.ends_G[document]))

    def source_of(self, documents_g: np.ndarray) -> list[str]:
        """Return the name of the source of each of these documents."""
        return [self.sources[i] for i in np.searchsorted(self.source_ends, documents_g, side="right").tolist()]

    def source_numbers(self, documents_g: np.ndarray) -> np.ndarray:
        """Return a number for the source of each of these documents, int64 [g]: equal for equal names."""
        _, number_of_run = np.unique(np.array(self.sources, dtype=object), return_inverse=True)
        return np.asarray(number_of_run[np.searchsorted(self.source_ends, documents_g, side="right")])


def read_manifest(folder: Path) -> Manifest:
    path = folder / "manifest.json"
    return check_type(read_json(path), Manifest, where=path)


def write_manifest(folder: Path, manifest: Manifest) -> None:
    write_json(folder / "manifest.json", msgspec.to_builtins(manifest))


def is_prepared(folder: Path) -> bool:
    """Return True if a folder is a finished preparation in the present format."""
    found = read_json(folder / "manifest.json") if (folder / "manifest.json").is_file() else {}
    return found.get("status") == "complete" and found.get("format") == FORMAT


def open_store(folder: Path, split: str, manifest: Optional[Manifest] = None) -> TokenStore:
    """Map the files of one split of a prepared folder; ``manifest``: of one that is not finished."""
    manifest = manifest or read_manifest(folder)
    entry = manifest.splits[split]
    files = [map_array(folder / path, manifest.dtype) for path in manifest.token_files or [f"{split}/tokens.bin"]]
    tokens = files[0] if len(files) == 1 else TokenFiles(files)
    begins_G, ends_G, doc_ids_G = (map_array(folder / split / f"{name}.bin", INDEX[name]) for name in INDEX)
    names = [name for name, _ in entry.sources]
    source_ends = np.cumsum([number for _, number in entry.sources], dtype=np.int64)
    return TokenStore(tokens, begins_G, ends_G, doc_ids_G, names, source_ends, split, entry.tokens_sha256)


def map_array(path: Path, dtype: Any) -> np.ndarray:
    """Map a raw file as a read-only array. Unlike ``np.memmap`` it keeps no file open: a store may have thousands."""
    if path.stat().st_size == 0:
        return np.zeros(0, dtype=dtype)
    with pa.memory_map(str(path)) as file:
        return np.frombuffer(file.read_buffer(), dtype=dtype)


def verify_prepared(folder: Path) -> None:
    """Compare all files of a prepared text with their hashes."""
    for name, digest in read_manifest(folder).files.items():
        path = folder / name
        if not path.is_file() or sha256_file(path) != digest:
            found = "other contents than were written there" if path.is_file() else "this file is gone"
            remedy = "bring the file back, or" if Path(name).is_absolute() else f"delete {folder} and"
            raise UserError(f"{path}: {found}; {remedy} prepare again")


@functools.cache
def token_counts(store: TokenStore) -> np.ndarray:
    """Return how often each token occurs in the documents of a store, without EOS; int64 up to the largest ID."""
    counts_V = np.zeros(1, dtype=np.int64)
    for begin in range(0, len(store.tokens), READ_AT_ONCE):
        block = store.tokens[begin : begin + READ_AT_ONCE]
        more_V = np.bincount(block[store.holds(np.arange(begin, begin + len(block)), 1)], minlength=len(counts_V))
        more_V[: len(counts_V)] += counts_V
        counts_V = more_V
    return counts_V
