"""Writes one shard of text or tokens, in one process.

One thread reads the text while others encode batches of it. The tokenizers library releases Python's lock meanwhile.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections import Counter, deque
from collections.abc import Iterator, MutableSequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import numpy as np
from tokenizers import Tokenizer

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import write_json
from olmo_sparsity.text import corpus
from olmo_sparsity.text.records import NAMED_RECORDS, ShardRecord
from olmo_sparsity.text.scanning import scan_token_file
from olmo_sparsity.text.shard_writer import ShardTask, ShardWriter, open_shard_writer, shard_path
from olmo_sparsity.text.vocabulary import read_tokenizer

BATCH_CHARACTERS = 1 << 18  # the encodings of a batch take about 100 bytes a token until they are arrays
BATCH_RECORDS = 512
Item = (
    corpus.Document | corpus.Skipped | UserError
)  # a document, why a record was skipped, or why the shard cannot be read on


def write_shard(task: ShardTask, progress: MutableSequence[int]) -> ShardRecord:
    """Write the files of one shard, and its record last. Return the record.

    Args:
        task: the shard.
        progress: int64 [3 * shards]; documents, tokens and bytes of each shard so far. Updated.

    Raises:
        UserError: the source is not usable.
    """
    begun = time.perf_counter()
    with open_shard_writer(task, progress) as writer:
        source_file, broken = None, list[str]()
        if task.is_tokens:
            source_file, skipped = scan_token_file(task, writer)
        else:
            skipped, broken = _encode_shard(task, writer)
    record = ShardRecord(
        name=task.shard.name,
        limits=task.limits,
        cut=writer.is_full,
        documents=writer.documents,
        bytes=writer.num_bytes,
        skipped=skipped,
        broken=broken,
        seconds=round(time.perf_counter() - begun, 3),
        splits=writer.split_records(),
        file=source_file,
    )
    write_json(task.folder / shard_path(task.number, "record.json"), dataclasses.asdict(record))
    return record


def _encode_shard(task: ShardTask, writer: ShardWriter) -> tuple[dict[str, int], list[str]]:
    """Read, encode and write a shard of text, until a limit is reached.

    More is read than ``max_tokens`` allows, and how much depends on the number of threads. What comes after the document that
    reaches the limit, be it an error, does not count.

    Returns:
        (the number of skipped records for each reason, the first broken ones: file, line and problem of each).

    Raises:
        UserError: the shard cannot be read, and no limit is reached before.
    """
    skipped: Counter[str] = Counter()
    broken: list[str] = []
    pool = ThreadPoolExecutor(task.num_threads)
    try:
        with _single_threaded_tokenizers():
            for items, tokens in _encoded_batches(task, pool):
                tokens_of_documents = iter(tokens)
                for item in items:
                    if isinstance(item, UserError):
                        raise item
                    if isinstance(item, corpus.Skipped):
                        skipped[item.reason] += 1
                        if item.record is not None and len(broken) < NAMED_RECORDS:
                            broken.append(item.record)
                        continue
                    writer.add(
                        item.group.encode(),
                        next(tokens_of_documents),
                        doc_id=item.doc_id,
                        source=item.source,
                        num_bytes=item.num_bytes,
                    )
                    if writer.is_full:
                        return dict(skipped), broken
                writer.flush()
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
    return dict(skipped), broken


def _encoded_batches(task: ShardTask, pool: ThreadPoolExecutor) -> Iterator[tuple[list[Item], list[np.ndarray]]]:
    """Yield the batches of a shard, each with the tokens of its documents. Threads encode the next ones meanwhile."""
    tokenizer = read_tokenizer(task.folder / "tokenizer.json")
    dtype = np.dtype(task.dtype)

    def encode(items: list[Item]) -> list[np.ndarray]:
        return _encode(tokenizer, items, dtype=dtype, eos_id=task.eos_id)

    waiting: deque[tuple[list[Item], Future[list[np.ndarray]]]] = deque()
    for items in _batches(task):
        waiting.append((items, pool.submit(encode, items)))
        if len(waiting) > task.num_threads + 1:
            items, tokens = waiting.popleft()
            yield items, tokens.result()
    while waiting:
        items, tokens = waiting.popleft()
        yield items, tokens.result()


def _batches(task: ShardTask) -> Iterator[list[Item]]:
    """Yield what a shard holds in batches, with as many documents as ``max_documents`` allows. The last one may be empty."""
    items: list[Item] = []
    num_documents = num_characters = 0
    try:
        for item in corpus.read_shard(task.data, task.shard):
            items.append(item)
            if isinstance(item, corpus.Document):
                num_documents += 1
                num_characters += len(item.text)
                if num_documents == task.limits.documents:
                    break
            if num_characters >= BATCH_CHARACTERS or len(items) >= BATCH_RECORDS:
                yield items
                items, num_characters = [], 0
    except UserError as error:
        items.append(error)
    yield items


def _encode(tokenizer: Tokenizer, items: list[Item], *, dtype: np.dtype, eos_id: int) -> list[np.ndarray]:
    """Return the tokens of each document among some records, followed by EOS."""
    texts = [item.text for item in items if isinstance(item, corpus.Document)]
    encodings = tokenizer.encode_batch_fast(texts, add_special_tokens=False)
    return [np.array([*encoding.ids, eos_id], dtype=dtype) for encoding in encodings]


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
