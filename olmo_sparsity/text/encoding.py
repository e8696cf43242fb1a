"""One shard -> its token files: what one process does on its own.

Text is read by one thread while others encode batches of it, outside Python's lock; token files are scanned for EOS. The
files of a shard appear under their names one by one, its record last: a shard with a record is whole.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections import deque
from collections.abc import Iterator, MutableSequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
from tokenizers import Tokenizer

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import partial_path, read_json, rename_into_place, write_json
from olmo_sparsity.text import corpus
from olmo_sparsity.text.store import INDEX, map_array
from olmo_sparsity.text.vocabulary import read_tokenizer

BATCH_CHARACTERS = 1 << 18  # the encodings of a batch take some 100 bytes a token until they are arrays
BATCH_DOCUMENTS = 512
SCAN_TOKENS = 1 << 22
COUNTS = 3  # documents, tokens and bytes done so far, of each shard, for whoever watches
NPY_MAGIC = b"\x93NUMPY"


@dataclass(frozen=True)
class Job:
    """A shard, and what it is to become.

    ``max_documents`` and ``max_tokens`` (of ``splits[0]``) are what the shards before it leave of the limits, or more
    while that is not known; ``threads`` is how many encode.
    """

    data: DataConfig
    folder: Path
    number: int
    shard: corpus.Shard
    holds_tokens: bool
    splits: tuple[str, ...]
    dtype: str
    eos_id: int
    vocab_size: int
    max_documents: Optional[int]
    max_tokens: Optional[int]
    threads: int

    @property
    def limits(self) -> list[Optional[int]]:
        """As its record names them."""
        return [self.max_documents, self.max_tokens]


def shard_path(folder: Path, number: int, what: str) -> Path:
    """Where a shard's record (``record.json``) and index (``SPLIT.begins.bin`` and so on) lie until all shards are done."""
    return folder / "shards" / f"{number:05d}.{what}"


def tokens_path(split: str, number: int) -> str:
    """A shard's token file of one split, inside the store's folder."""
    return f"{split}/tokens-{number:05d}.bin"


class _Output:
    """A file that is written beside its name and hashed on the way."""

    def __init__(self, path: Path) -> None:
        self.path, self.partial = path, partial_path(path)
        self.file = open(self.partial, "wb")  # noqa: SIM115 (closed by _outputs)
        self.digest = hashlib.sha256()
        self.num_bytes = 0

    def write(self, data: bytes) -> None:
        self.file.write(data)
        self.digest.update(data)
        self.num_bytes += len(data)


@contextmanager
def _outputs(job: Job) -> Iterator[dict[tuple[str, str], _Output]]:
    """The files of a shard, by split and name; given their names if all goes well, removed if not."""
    names = list(INDEX) if job.holds_tokens else ["tokens", *INDEX]
    with ExitStack() as stack:
        files = {}
        for split in job.splits:
            for name in names:
                what = f"{split}.{name}.bin"
                path = shard_path(job.folder, job.number, what)
                if name == "tokens":
                    path = job.folder / tokens_path(split, job.number)
                files[split, name] = file = _Output(path)
                stack.callback(file.partial.unlink, missing_ok=True)
                stack.enter_context(file.file)
        yield files
        for file in files.values():
            file.file.close()
            rename_into_place(file.partial, file.path)


class _Counter:
    """What was written of a shard, split by split; says when a limit is reached."""

    def __init__(self, job: Job, counts: MutableSequence[int]) -> None:
        self.job, self.counts = job, counts
        self.documents = dict.fromkeys(job.splits, 0)
        self.tokens = dict.fromkeys(job.splits, 0)
        self.sources: dict[str, list[list[Any]]] = {split: [] for split in job.splits}
        self.num_bytes = 0

    def add(self, split: str, source: str, tokens: int, num_bytes: int) -> None:
        self.documents[split] += 1
        self.tokens[split] += tokens
        self.num_bytes += num_bytes
        runs = self.sources[split]
        if not runs or runs[-1][0] != source:
            runs.append([source, 0])
        runs[-1][1] += 1

    def tell(self) -> None:
        at = COUNTS * self.job.number
        self.counts[at : at + COUNTS] = [sum(self.documents.values()), sum(self.tokens.values()), self.num_bytes]

    @property
    def full(self) -> bool:
        job = self.job
        return (job.max_documents is not None and sum(self.documents.values()) >= job.max_documents) or (
            job.max_tokens is not None and self.tokens[job.splits[0]] >= job.max_tokens
        )


def write_shard(job: Job, counts: MutableSequence[int]) -> dict[str, Any]:
    """Writes the files of one shard and returns its record, which it writes last.

    Args:
        job: what to do.
        counts: int64 [3 a shard]: documents, tokens and bytes of text done so far, kept up to date.

    Raises:
        UserError: the source is not usable.
    """
    begun = time.perf_counter()
    counter = _Counter(job, counts)
    with _outputs(job) as files:
        skipped, found = (_scan if job.holds_tokens else _encode)(job, counter, files)
    record = {
        "name": job.shard.name,
        "limits": job.limits,
        "cut": counter.full,
        "documents": sum(counter.documents.values()),
        "bytes": counter.num_bytes,
        "skipped": skipped,
        **found,
        "seconds": round(time.perf_counter() - begun, 3),
        "splits": {
            split: {
                "documents": counter.documents[split],
                "tokens": counter.tokens[split],
                "sources": counter.sources[split],
                "sha256": {name: file.digest.hexdigest() for (of, name), file in files.items() if of == split},
            }
            for split in job.splits
        },
    }
    write_json(shard_path(job.folder, job.number, "record.json"), record)
    return record


def read_record(folder: Path, number: int) -> Optional[dict[str, Any]]:
    """A shard's record; None where the shard is still to do."""
    path = shard_path(folder, number, "record.json")
    return read_json(path) if path.is_file() else None


Item = tuple[corpus.Document, dict[str, int]]


def _batches(job: Job) -> Iterator[tuple[list[Item], dict[str, int]]]:
    """Batches of documents, each with what had been skipped when it came; and what had been skipped behind the last."""
    skipped: dict[str, int] = {}
    batch: list[Item] = []
    documents = characters = 0
    for item in corpus.read_shard(job.data, job.shard):
        if isinstance(item, str):
            skipped = {**skipped, item: skipped.get(item, 0) + 1}
            continue
        batch.append((item, skipped))
        documents += 1
        characters += len(item.text)
        if documents == job.max_documents:
            break
        if characters >= BATCH_CHARACTERS or len(batch) >= BATCH_DOCUMENTS:
            yield batch, skipped
            batch, characters = [], 0
    yield batch, skipped


@contextmanager
def _unthreaded() -> Iterator[None]:
    """Keeps the tokenizers library from threads of its own: batches are encoded side by side instead, so that none waits
    for the longest document of another."""
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def _array(ids: list[int], dtype: np.dtype[Any], eos_id: int) -> np.ndarray:
    ids.append(eos_id)
    return np.array(ids, dtype=dtype)


def _ids(tokenizer: Tokenizer, batch: list[Item], dtype: np.dtype[Any], eos_id: int) -> list[np.ndarray]:
    encodings = tokenizer.encode_batch_fast([document.text for document, _ in batch], add_special_tokens=False)
    return [_array(encoding.ids, dtype, eos_id) for encoding in encodings]


def _encode(
    job: Job, counter: _Counter, files: dict[tuple[str, str], _Output]
) -> tuple[dict[str, int], dict[str, Any]]:
    """Reads, encodes and writes a shard of text; returns what was skipped."""
    tokenizer = read_tokenizer(job.folder / "tokenizer.json")
    dtype = np.dtype(job.dtype)
    skipped: dict[str, int] = {}
    waiting: deque[Any] = deque()
    pool = ThreadPoolExecutor(job.threads)

    def write_next() -> None:
        nonlocal skipped
        batch, skipped_behind, encoded = waiting.popleft()
        columns: dict[tuple[str, str], list[Any]] = {key: [] for key in files}
        for (document, skipped_before), ids in zip(batch, encoded.result(), strict=True):
            split = job.splits[0]
            if len(job.splits) > 1:
                split = corpus.split_of(document, job.data.validation_percent)
            columns[split, "begins"].append(counter.tokens[split])
            counter.add(split, document.source, len(ids), document.num_bytes)
            columns[split, "ends"].append(counter.tokens[split])
            columns[split, "doc_ids"].append(document.doc_id)
            columns[split, "tokens"].append(ids)
            if counter.full:
                skipped = skipped_before
                break
        else:
            skipped = skipped_behind
        for (split, name), values in columns.items():
            if values:
                column = np.concatenate(values) if name == "tokens" else np.array(values, dtype=INDEX[name])
                files[split, name].write(column.tobytes())
        counter.tell()

    with _unthreaded():
        try:
            for batch, skipped_behind in _batches(job):
                waiting.append((batch, skipped_behind, pool.submit(_ids, tokenizer, batch, dtype, job.eos_id)))
                if len(waiting) > job.threads + 1:
                    write_next()
                if counter.full:
                    break
            while waiting and not counter.full:
                write_next()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return skipped, {}


def _check_tokens(job: Job, path: Path, tokens: np.ndarray, at: int) -> None:
    if job.dtype == "<u2" and at == 0 and len(tokens) >= 16 and not tokens[1::2].any() and tokens[::2].any():
        raise UserError(f"{path}: every second token is 0, as if these were 32 bits each; set data.token_dtype=uint32")
    if tokens.max(initial=0) >= job.vocab_size:
        first = int(np.argmax(tokens >= job.vocab_size))
        raise UserError(
            f"{path}: token {at + first} is {tokens[first]}, and the tokenizer has {job.vocab_size} entries; another "
            "tokenizer made this file (data.tokenizer), or its tokens are of another size (data.token_dtype)"
        )


def _scan(job: Job, counter: _Counter, files: dict[tuple[str, str], _Output]) -> tuple[dict[str, int], dict[str, Any]]:
    """Finds the documents of a token file, block by block; returns how many were empty, and the file as it lies there."""
    (path,) = job.shard.paths
    itemsize = np.dtype(job.dtype).itemsize
    with open(path, "rb") as file:
        if file.read(len(NPY_MAGIC)) == NPY_MAGIC:
            raise UserError(
                f"{path}: a NumPy file with a header, where raw tokens were expected (OLMo's .npy files have none); "
                "numpy.load(...).tofile(...) writes them"
            )
    size = path.stat().st_size
    if size % itemsize:
        raise UserError(f"{path}: {size} bytes are no whole number of {itemsize}-byte tokens; see data.token_dtype")
    tokens = map_array(path, job.dtype)
    digest = hashlib.sha256()
    begin, closed, empty = 0, 0, 0
    columns: dict[tuple[str, str], list[int]] = {key: [] for key in files}

    def add(end: int, source: str = path.name) -> None:
        """A document up to ``end``, unless it is EOS alone."""
        nonlocal empty
        if end - begin == 1 and tokens[begin] == job.eos_id:
            empty += 1
            return
        # The same tokens have the same hash, whichever size the file gives them.
        content = tokens[begin : end - (tokens[end - 1] == job.eos_id)].astype("<u4").tobytes()
        split = job.splits[0]
        if len(job.splits) > 1:
            split = corpus.split_of_hash(corpus.hash64(content, b"split"), job.data.validation_percent)
        counter.add(split, source, end - begin, (end - begin) * itemsize)
        columns[split, "begins"].append(begin)
        columns[split, "ends"].append(end)
        columns[split, "doc_ids"].append(corpus.hash64(content, b"doc_id"))

    def flush() -> None:
        for key, values in columns.items():
            files[key].write(np.array(values, dtype=INDEX[key[1]]).tobytes())
            values.clear()
        counter.tell()

    for at in range(0, len(tokens), SCAN_TOKENS):
        block = tokens[at : at + SCAN_TOKENS]
        digest.update(block.data)  # all of it, even where a limit ends the scan: the hash says which file this is
        _check_tokens(job, path, block, at)
        for end in (np.flatnonzero(block == job.eos_id) + at + 1).tolist():
            if counter.full:
                break
            add(end)
            begin, closed = end, closed + 1
        flush()
    unclosed = begin < len(tokens) and not counter.full
    if unclosed:
        add(len(tokens))
        flush()
    found = {"path": str(path.resolve()), "size": size, "sha256": digest.hexdigest(), "tokens": len(tokens)}
    return {"empty": empty} if empty else {}, {"file": {**found, "closed": closed, "unclosed": unclosed}}
