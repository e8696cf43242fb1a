"""Writes the files of one shard: its tokens and index for each split, hashed while they are written.

The files get their names when the shard is finished, and its record is written last. Until all shards are done, records and
indices are in ``shards/``.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, MutableSequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Optional

import numpy as np

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_type, read_json, written_whole
from olmo_sparsity.text import corpus
from olmo_sparsity.text.records import Limits, ShardRecord, ShardSplit, SourceRun, append_run
from olmo_sparsity.text.store import INDEX
from olmo_sparsity.text.verification import first_wrong

logger = logging.getLogger(__name__)

PROGRESS_FIELDS = 3  # documents, tokens and bytes


@dataclass(frozen=True)
class ShardTask:
    """Everything that a process needs to write one shard.

    Attributes:
        data: the configuration of the text.
        folder: the prepared folder.
        number: number of the shard.
        shard: the shard to read.
        is_tokens: True if the source is token files.
        splits: names of the splits; with one split, all documents belong to it.
        dtype: dtype of the token files, ``<u2`` or ``<u4``.
        eos_id: token that ends documents.
        vocab_size: entries of the tokenizer.
        limits: what the shards before this one leave of the limits, or more than that while it is not known.
        num_threads: threads that encode text.
    """

    data: DataConfig
    folder: Path
    number: int
    shard: corpus.Shard
    is_tokens: bool
    splits: tuple[str, ...]
    dtype: str
    eos_id: int
    vocab_size: int
    limits: Limits
    num_threads: int


def shard_path(number: int, name: str) -> str:
    """Return the path of a shard's record (``record.json``) or index (``SPLIT.begins.bin`` ...) in the prepared folder."""
    return f"shards/{number:05d}.{name}"


def tokens_path(split: str, number: int) -> str:
    """Return the path of a shard's token file of one split in the prepared folder."""
    return f"{split}/tokens-{number:05d}.bin"


def _split_files(split: str, number: int, *, is_tokens: bool) -> dict[str, str]:
    """Return the path of each file of a shard and split, by name. Token files that are a source are not copied."""
    index = {name: shard_path(number, f"{split}.{name}.bin") for name in INDEX}
    return index if is_tokens else {"tokens": tokens_path(split, number), **index}


def read_finished(folder: Path, number: int) -> Optional[ShardRecord]:
    """Return the record of a finished shard whose files match their hashes; None: one of them is damaged, which is logged."""
    path = folder / shard_path(number, "record.json")
    try:
        written = read_json(path)
        record = check_type(written, ShardRecord, where=path)
        wrong = first_wrong(folder, _hashes(record, number))
        if wrong is not None:
            raise UserError(f"{folder / wrong}: missing, or changed since its shard was finished")
    except UserError as error:
        logger.warning(f"{error}; the shard is prepared again")
        return None
    return record


def _hashes(record: ShardRecord, number: int) -> dict[str, str]:
    """Return the hash of every file of a shard, by its path in the prepared folder; token files of a source are outside of it."""
    hashes = {
        path: entry.sha256.get(name, "")
        for split, entry in record.splits.items()
        for name, path in _split_files(split, number, is_tokens=record.file is not None).items()
    }
    return hashes if record.file is None else {**hashes, record.file.path: record.file.sha256}


@dataclass
class _Column:
    """A file, its hash so far, and the values that wait to be written to it."""

    file: BinaryIO
    digest: Any = field(default_factory=hashlib.sha256)
    waiting: list[Any] = field(default_factory=list)

    def flush(self, name: str) -> None:
        """Write the waiting values."""
        if self.waiting:
            values = np.concatenate(self.waiting) if name == "tokens" else np.array(self.waiting, dtype=INDEX[name])
            self.file.write(values.data)
            self.digest.update(values.data)
            self.waiting.clear()


@dataclass
class _Split:
    """The files of one split of a shard by name, and what has been added so far."""

    columns: dict[str, _Column]
    documents: int = 0
    tokens: int = 0
    sources: list[SourceRun] = field(default_factory=list)


class ShardWriter:
    """Writes the documents of one shard, and counts them against its limits."""

    def __init__(
        self, task: ShardTask, progress: MutableSequence[int], *, files: dict[str, dict[str, BinaryIO]]
    ) -> None:
        self.task = task
        self.documents = self.num_bytes = 0
        self._progress = progress
        self._splits = {
            split: _Split({name: _Column(file) for name, file in of_split.items()}) for split, of_split in files.items()
        }

    @property
    def is_full(self) -> bool:
        """True if a limit is reached."""
        return self.task.limits.are_reached_by(self.documents, self._splits[self.task.splits[0]].tokens)

    def add(
        self,
        content: bytes,
        tokens: np.ndarray,
        *,
        doc_id: int,
        source: str,
        num_bytes: int,
        begin: Optional[int] = None,
    ) -> None:
        """Add a document.

        Args:
            content: what its split depends on.
            tokens: its tokens.
            doc_id: hash of its content.
            source: name of its file or data set.
            num_bytes: its size.
            begin: index of its first token in the token file that is the source; None: the tokens are written.
        """
        name = self.task.splits[0]
        if len(self.task.splits) > 1:
            name = corpus.split_of_content(content, self.task.data.validation_percent)
        split = self._splits[name]
        if begin is None:
            begin = split.tokens
            split.columns["tokens"].waiting.append(tokens)
        for column, value in {"begins": begin, "ends": begin + len(tokens), "doc_ids": doc_id}.items():
            split.columns[column].waiting.append(value)
        split.documents += 1
        split.tokens += len(tokens)
        append_run(split.sources, SourceRun(source, 1))
        self.documents += 1
        self.num_bytes += num_bytes

    def flush(self) -> None:
        """Write what was added since the last call, and report the progress."""
        for split in self._splits.values():
            for name, column in split.columns.items():
                column.flush(name)
        begin = PROGRESS_FIELDS * self.task.number
        tokens = sum(split.tokens for split in self._splits.values())
        self._progress[begin : begin + PROGRESS_FIELDS] = [self.documents, tokens, self.num_bytes]

    def split_records(self) -> dict[str, ShardSplit]:
        """Return the record of each split; everything must have been flushed."""
        return {
            name: ShardSplit(
                documents=split.documents,
                tokens=split.tokens,
                sources=split.sources,
                sha256={column: value.digest.hexdigest() for column, value in split.columns.items()},
            )
            for name, split in self._splits.items()
        }


@contextmanager
def open_shard_writer(task: ShardTask, progress: MutableSequence[int]) -> Iterator[ShardWriter]:
    """Open the files of a shard. At the end they are flushed and get their names; after an error they are removed.

    Args:
        task: the shard.
        progress: int64 [3 * shards]; documents, tokens and bytes of each shard so far, updated by ``flush``.
    """
    with ExitStack() as stack:

        def open_file(path: str) -> BinaryIO:
            return stack.enter_context(open(stack.enter_context(written_whole(task.folder / path)), "wb"))

        files = {
            split: {
                name: open_file(path)
                for name, path in _split_files(split, task.number, is_tokens=task.is_tokens).items()
            }
            for split in task.splits
        }
        writer = ShardWriter(task, progress, files=files)
        yield writer
        writer.flush()
