"""Writes one shard of text or tokens, in one process.

One thread reads the text while others encode batches of it. The tokenizers library releases Python's lock meanwhile.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Iterator, MutableSequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
from tokenizers import Tokenizer

from olmo_sparsity.errors import UserError
from olmo_sparsity.text import corpus
from olmo_sparsity.text.records import ShardRecord
from olmo_sparsity.text.scanning import scan_token_file
from olmo_sparsity.text.shard_writer import ShardTask, ShardWriter, open_shard_writer, write_record
from olmo_sparsity.text.vocabulary import read_tokenizer

BATCH_CHARACTERS = 1 << 18  # the encodings of a batch take about 100 bytes a token until they are arrays
BATCH_DOCUMENTS = 512


@dataclass(frozen=True)
class _Batch:
    """Documents that are encoded together, and the numbers of records skipped before them.

    Attributes:
        documents: the documents.
        skipped_before: for each document, the number of records of the shard skipped before it, by reason.
        skipped: the same at the end of the batch.
        error: why the shard cannot be read beyond these documents; None if it can, or ends there.
    """

    documents: list[corpus.Document]
    skipped_before: list[dict[str, int]]
    skipped: dict[str, int]
    error: Optional[UserError] = None


def write_shard(task: ShardTask, progress: MutableSequence[int]) -> ShardRecord:
    """Write the files of one shard, and its record last. Return the record.

    Args:
        task: the shard.
        progress: int64 [3 * shards]; documents, tokens and bytes of each shard so far. Updated.

    Raises:
        UserError: the source is not usable.
    """
    begun = time.perf_counter()
    source_file = None
    with open_shard_writer(task, progress) as writer:
        if task.is_tokens:
            scan = scan_token_file(task, writer)
            source_file = scan.source_file
            skipped = {"empty": scan.num_empty} if scan.num_empty else {}
        else:
            skipped = _encode_shard(task, writer)
    record = ShardRecord(
        name=task.shard.name,
        limits=task.limits,
        is_cut=writer.is_full,
        documents=writer.documents,
        num_bytes=writer.num_bytes,
        skipped=skipped,
        source_file=source_file,
        seconds=round(time.perf_counter() - begun, 3),
        splits=writer.split_records(),
    )
    write_record(task.folder, task.number, record=record)
    return record


def _encode_shard(task: ShardTask, writer: ShardWriter) -> dict[str, int]:
    """Read, encode and write a shard of text. Return the number of skipped records for each reason."""
    tokenizer = read_tokenizer(task.folder / "tokenizer.json")
    dtype = np.dtype(task.dtype)
    skipped: dict[str, int] = {}
    queue: deque[tuple[_Batch, Future[list[np.ndarray]]]] = deque()
    pool = ThreadPoolExecutor(task.num_threads)
    with _single_threaded_tokenizers():
        try:
            for batch in _batches(task):
                queue.append((batch, pool.submit(_encode_batch, tokenizer, batch, dtype=dtype, eos_id=task.eos_id)))
                if len(queue) > task.num_threads + 1:
                    skipped = _write_batch(writer, queue.popleft())
                if writer.is_full:
                    break
            while queue and not writer.is_full:
                skipped = _write_batch(writer, queue.popleft())
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return skipped


def _batches(task: ShardTask) -> Iterator[_Batch]:
    """Yield the documents of a shard in batches, as many as ``max_documents`` allows. The last batch may be empty.

    More is read than ``max_tokens`` allows, and how much depends on the number of threads. So the last batch holds the error that
    ends the reading, which counts only if the documents before it do not reach the limit.
    """
    skipped: dict[str, int] = {}
    documents: list[corpus.Document] = []
    skipped_before: list[dict[str, int]] = []
    num_documents = num_characters = 0
    error: Optional[UserError] = None
    try:
        for item in corpus.read_shard(task.data, task.shard):
            if isinstance(item, str):
                skipped = {**skipped, item: skipped.get(item, 0) + 1}
                continue
            documents.append(item)
            skipped_before.append(skipped)
            num_documents += 1
            num_characters += len(item.text)
            if num_documents == task.limits.documents:
                break
            if num_characters >= BATCH_CHARACTERS or len(documents) >= BATCH_DOCUMENTS:
                yield _Batch(documents, skipped_before, skipped)
                documents, skipped_before, num_characters = [], [], 0
    except UserError as caught:
        error = caught
    yield _Batch(documents, skipped_before, skipped, error)


@contextmanager
def _single_threaded_tokenizers() -> Iterator[None]:
    """Stop the tokenizers library from starting threads.

    Batches are encoded side by side instead, so no batch waits for the longest document of another.
    """
    before = os.environ.get("TOKENIZERS_PARALLELISM")
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    try:
        yield
    finally:
        if before is None:
            del os.environ["TOKENIZERS_PARALLELISM"]
        else:
            os.environ["TOKENIZERS_PARALLELISM"] = before


def _encode_batch(tokenizer: Tokenizer, batch: _Batch, *, dtype: np.dtype[Any], eos_id: int) -> list[np.ndarray]:
    """Return the tokens of each document, followed by EOS."""
    encodings = tokenizer.encode_batch_fast([document.text for document in batch.documents], add_special_tokens=False)
    return [np.array([*encoding.ids, eos_id], dtype=dtype) for encoding in encodings]


def _write_batch(writer: ShardWriter, encoded: tuple[_Batch, Future[list[np.ndarray]]]) -> dict[str, int]:
    """Write an encoded batch, until a limit is reached. Return the numbers of records skipped up to there.

    Raises:
        UserError: the shard cannot be read beyond the batch, and no limit is reached.
    """
    batch, tokens = encoded
    skipped = batch.skipped
    for document, skipped_before, ids in zip(batch.documents, batch.skipped_before, tokens.result(), strict=True):
        split = writer.split_of(document.group.encode())
        begin = writer.tokens_of(split)
        writer.add(
            split,
            begin=begin,
            end=begin + len(ids),
            doc_id=document.doc_id,
            source=document.source,
            num_bytes=document.num_bytes,
            tokens=ids,
        )
        if writer.is_full:
            skipped = skipped_before
            break
    writer.flush()
    if batch.error is not None and not writer.is_full:
        raise batch.error
    return skipped
