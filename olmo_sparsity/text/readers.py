"""Readers of local text files: ``.txt``, JSON lines (plain, ``.gz``, ``.zst``) and Parquet."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import pyarrow as pa
import pyarrow.parquet as pq

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_regular

LINE_ENDINGS = tuple(f"{kind}{packed}" for kind in (".jsonl", ".json") for packed in ("", ".gz", ".zst"))
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
TEXT_ENDINGS = (*LINE_ENDINGS, ".parquet", ".txt")


@dataclass(frozen=True)
class TextRecord:
    """One record of a file.

    Attributes:
        number: number of the line or row, from 0.
        text: its text; empty if there is a problem.
        problem: why the record has no text; None if it has.
    """

    number: int
    text: str
    problem: Optional[str] = None


def has_ending(path: Path, endings: tuple[str, ...] | str) -> bool:
    """Return True if the name of a file ends in one of some endings, in letters of either case."""
    return path.name.lower().endswith(endings)


def read_records(path: Path, text_field: str) -> Iterator[TextRecord]:
    """Yield the records of one file, in order. Blank lines are no records.

    Args:
        path: a file whose name ends in one of ``TEXT_ENDINGS``.
        text_field: field of a JSON line, or column of a Parquet file, that holds the text.

    Raises:
        UserError: the file is damaged or lacks the column. A single broken record does not raise; it has a ``problem``.
    """
    check_regular(path)
    if has_ending(path, ".txt"):
        return _read_txt(path)
    if has_ending(path, ".parquet"):
        return _read_parquet(path, text_field)
    return _read_json_lines(path, text_field)


def read_document(path: Path, text_field: str) -> str:
    """Return the text of a file that holds one document: plain text, or one record of a format that ``read_records`` reads.

    Raises:
        UserError: the file is missing or a folder, is no text, or holds another number of documents.
    """
    if path.is_dir():
        raise UserError(f"{path}: this is a folder; --text names a file with one document, so name one of its files")
    if not check_regular(path).is_file():
        raise UserError(f"{path}: no such file; --text names a file with one document")
    records = list(read_records(path, text_field) if has_ending(path, TEXT_ENDINGS) else _read_txt(path))
    if len(records) != 1:
        raise UserError(f"{path}: {len(records):,} documents, where one is expected; write it into a file of its own")
    if records[0].problem is not None:
        raise UserError(f"{path}: {records[0].problem}")
    return records[0].text


def _read_txt(path: Path) -> Iterator[TextRecord]:
    """Yield the whole file as one record."""
    try:
        yield TextRecord(0, path.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        yield TextRecord(0, "", "not UTF-8 text")


def _read_parquet(path: Path, text_field: str) -> Iterator[TextRecord]:
    try:
        file = pq.ParquetFile(path.absolute())
        columns = file.schema_arrow.names
    except (pa.ArrowException, OSError, UnicodeDecodeError) as error:  # the last: of the name of a column
        _raise_of_system(error, path)
        raise UserError(f"{path}: not a Parquet file, or cut short ({str(error)[:80]})") from None
    if text_field not in columns:
        raise UserError(f"{path}: no column {text_field!r} (data.text_field); it has {', '.join(columns)}")
    number = 0
    try:
        for batch in file.iter_batches(columns=[text_field], batch_size=1024):
            for value in batch.column(0):
                yield _parse_value(value, text_field, number=number)
                number += 1
    except (pa.ArrowException, OSError) as error:
        _raise_of_system(error, path)
        raise UserError(f"{path}: damaged near record {number + 1} ({str(error)[:80]})") from None


def _raise_of_system(error: Exception, path: Path) -> None:
    """Raise an error of the operating system as Python does, with the file; pyarrow's other errors have no number."""
    if isinstance(error, OSError) and error.errno is not None:
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from None


def _parse_value(value: pa.Scalar, text_field: str, *, number: int) -> TextRecord:
    """Return the record of a Parquet value. Its text is not decoded before here: files may hold strings that are not UTF-8."""
    kind = value.type.value_type if pa.types.is_dictionary(value.type) else value.type
    try:
        text = value.as_py() if kind in (pa.string(), pa.large_string(), pa.string_view()) else None
    except UnicodeDecodeError:
        return TextRecord(number, "", f"the text in column {text_field!r} is not UTF-8")
    if text is None:
        return TextRecord(number, "", f"no text in column {text_field!r} (data.text_field), but {value.type}")
    return TextRecord(number, text)


def _read_json_lines(path: Path, text_field: str) -> Iterator[TextRecord]:
    packed = next((kind for ending, kind in COMPRESSIONS.items() if has_ending(path, ending)), None)
    try:
        stream = pa.input_stream(str(path), compression=packed)  # it reads files of several frames
    except OSError as error:
        _raise_of_system(error, path)
        raise
    with io.BufferedReader(stream) as lines:
        number = 0
        while True:
            try:
                line = lines.readline()
            except OSError as error:
                _raise_of_system(error, path)
                raise UserError(
                    f"{path}:{number + 1}: cannot read on, the file is cut short or damaged ({error})"
                ) from None
            if not line:
                return
            if line.strip():
                yield _parse_line(line, text_field, number=number)
            number += 1


def _parse_line(line: bytes, text_field: str, *, number: int) -> TextRecord:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:  # also invalid UTF-8, a number too long, nesting too deep
        return TextRecord(number, "", f"not JSON ({error.__class__.__name__}: {str(error)[:80]})")
    text = record.get(text_field) if isinstance(record, dict) else None
    if not isinstance(text, str):
        return TextRecord(number, "", f"no text in the field {text_field!r} (data.text_field)")
    try:
        text.encode()
    except UnicodeEncodeError:
        return TextRecord(number, "", "the text holds half a surrogate pair, which is not a character")
    return TextRecord(number, text)
