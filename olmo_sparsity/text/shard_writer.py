"""Writes the files of one shard: its tokens and index for each split, hashed while they are written.

The files get their names when the shard is finished, and its record is written last. Until all shards are done, records and
indices are in ``shards/``.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, MutableSequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import partial_path, read_json, rename_into_place, write_json
from olmo_sparsity.text import corpus
from olmo_sparsity.text.records import Limits, ShardRecord, ShardSplit, SourceRun, append_run
from olmo_sparsity.text.store import INDEX
from olmo_sparsity.text.verification import Stamps, compare, stamp

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


def shard_path(folder: Path, number: int, *, name: str) -> Path:
    """Return the path of a shard's record (``record.json``) or index (``SPLIT.begins.bin`` and so on)."""
    return folder / "shards" / f"{number:05d}.{name}"


def tokens_path(split: str, number: int) -> str:
    """Return the path of a shard's token file of one split, relative to the prepared folder."""
    return f"{split}/tokens-{number:05d}.bin"


def _file_path(number: int, split: str, *, name: str) -> str:
    """Return the path of a file of a shard (``tokens``, or a name of ``INDEX``), relative to the prepared folder."""
    return (
        tokens_path(split, number) if name == "tokens" else str(shard_path(Path(), number, name=f"{split}.{name}.bin"))
    )


def has_record(folder: Path, number: int) -> bool:
    """Return True if a shard is finished."""
    return shard_path(folder, number, name="record.json").is_file()


def read_finished(folder: Path, number: int) -> Optional[tuple[ShardRecord, Stamps]]:
    """Read the record of a finished shard, and compare the shard's files with their hashes.

    Returns:
        (the record, the stamps of the files); None: one of them is damaged, which is logged.
    """
    path = shard_path(folder, number, name="record.json")
    wrong: Optional[str] = path.relative_to(folder).as_posix()
    with suppress(UserError, KeyError, TypeError, ValueError, AttributeError):  # what a damaged record raises
        record = ShardRecord.from_json(read_json(path))
        stamps, wrong = compare(folder, _hashes(record, number))
        if wrong is None:
            return record, stamps
    logger.warning(
        f"{folder / str(wrong)}: missing, or changed since its shard was finished; the shard is prepared again"
    )
    return None


def stamps_of(folder: Path, number: int, *, record: ShardRecord) -> Stamps:
    """Return the stamps of the files of a shard that was written a moment ago."""
    return {name: stamp(folder / name) for name in _hashes(record, number)}


def _hashes(record: ShardRecord, number: int) -> dict[str, str]:
    """Return the hash of every file of a shard, by its path in the prepared folder; token files of a source are outside of it."""
    hashes = {
        _file_path(number, split, name=name): entry.sha256[name]
        for split, entry in record.splits.items()
        for name in _file_names(is_tokens=record.source_file is not None)
    }
    if record.source_file is not None:
        hashes[record.source_file.file.path] = record.source_file.file.sha256
    return hashes


def _file_names(*, is_tokens: bool) -> list[str]:
    return [*INDEX] if is_tokens else ["tokens", *INDEX]


def write_record(folder: Path, number: int, *, record: ShardRecord) -> None:
    """Write the record of a finished shard."""
    write_json(shard_path(folder, number, name="record.json"), record.to_json())


class _HashedFile:
    """A file that is written under a temporary name and hashed meanwhile."""

    def __init__(self, path: Path) -> None:
        self.path, self.partial = path, partial_path(path)
        self.file = open(self.partial, "wb")  # noqa: SIM115 (closed by open_shard_writer)
        self.digest = hashlib.sha256()

    def write(self, data: bytes) -> None:
        """Append to the file."""
        self.file.write(data)
        self.digest.update(data)


class _SplitWriter:
    """The files of one split of a shard, the values that wait to be written to them, and what has been added so far."""

    def __init__(self, files: dict[str, _HashedFile]) -> None:
        self.files = files
        self.columns: dict[str, list[Any]] = {name: [] for name in files}
        self.documents = self.tokens = 0
        self.sources: list[SourceRun] = []

    def flush(self) -> None:
        """Write the waiting values."""
        for name, values in self.columns.items():
            if values:
                column = np.concatenate(values) if name == "tokens" else np.array(values, dtype=INDEX[name])
                self.files[name].write(column.tobytes())
                values.clear()

    def record(self) -> ShardSplit:
        """Return the record of this split; everything must have been flushed."""
        return ShardSplit(
            documents=self.documents,
            tokens=self.tokens,
            sources=self.sources,
            sha256={name: file.digest.hexdigest() for name, file in self.files.items()},
        )


class ShardWriter:
    """Writes the documents of one shard, and counts them against its limits."""

    def __init__(
        self, task: ShardTask, progress: MutableSequence[int], *, files: dict[str, dict[str, _HashedFile]]
    ) -> None:
        self.task = task
        self.num_bytes = 0
        self._progress = progress
        self._splits = {split: _SplitWriter(files[split]) for split in task.splits}

    def split_of(self, content: bytes) -> str:
        """Return the split that a document of this content (or group) belongs to."""
        if len(self.task.splits) == 1:
            return self.task.splits[0]
        return corpus.split_of_content(content, self.task.data.validation_percent)

    def tokens_of(self, split: str) -> int:
        """Return the number of tokens added to a split so far."""
        return self._splits[split].tokens

    @property
    def documents(self) -> int:
        """Number of documents added so far."""
        return sum(split.documents for split in self._splits.values())

    @property
    def is_full(self) -> bool:
        """True if a limit is reached."""
        return self.task.limits.is_reached_by(self.documents, self.tokens_of(self.task.splits[0]))

    def add(
        self,
        split: str,
        *,
        begin: int,
        end: int,
        doc_id: int,
        source: str,
        num_bytes: int,
        tokens: Optional[np.ndarray] = None,
    ) -> None:
        """Add a document.

        Args:
            split: its split.
            begin: index of its first token in the token file.
            end: one more than the index of its last token.
            doc_id: hash of its content.
            source: name of its file or data set.
            num_bytes: its size.
            tokens: its tokens; None if they are in the source already.
        """
        writer = self._splits[split]
        values: dict[str, Any] = {"begins": begin, "ends": end, "doc_ids": doc_id}
        if tokens is not None:
            values["tokens"] = tokens
        for name, value in values.items():
            writer.columns[name].append(value)
        writer.documents += 1
        writer.tokens += end - begin
        append_run(writer.sources, SourceRun(source, 1))
        self.num_bytes += num_bytes

    def flush(self) -> None:
        """Write what was added since the last call, and report the progress."""
        for split in self._splits.values():
            split.flush()
        begin = PROGRESS_FIELDS * self.task.number
        tokens = sum(split.tokens for split in self._splits.values())
        self._progress[begin : begin + PROGRESS_FIELDS] = [self.documents, tokens, self.num_bytes]

    def split_records(self) -> dict[str, ShardSplit]:
        """Return the record of each split."""
        return {split: writer.record() for split, writer in self._splits.items()}


@contextmanager
def open_shard_writer(task: ShardTask, progress: MutableSequence[int]) -> Iterator[ShardWriter]:
    """Open the files of a shard. They get their names on success, and are removed after an error.

    Args:
        task: the shard.
        progress: int64 [3 * shards]; documents, tokens and bytes of each shard so far, updated by ``flush``.
    """
    with ExitStack() as stack:
        files: dict[str, dict[str, _HashedFile]] = {}
        for split in task.splits:
            files[split] = {}
            for name in _file_names(is_tokens=task.is_tokens):
                files[split][name] = file = _HashedFile(task.folder / _file_path(task.number, split, name=name))
                stack.callback(file.partial.unlink, missing_ok=True)
                stack.enter_context(file.file)
        yield ShardWriter(task, progress, files=files)
        for file in [file for of_split in files.values() for file in of_split.values()]:
            file.file.close()
            rename_into_place(file.partial, file.path)
