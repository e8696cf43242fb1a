"""Checksums of the column chunks of part files.

Parquet has checksums of the contents of pages, but none of their headers: one flipped bit in a header shortens a column, and no
reader notices. So every part carries, in the metadata of its schema, a CRC-32 of each column chunk with all of its headers. A
reader verifies those of the columns that it reads.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple, Optional

import pyarrow as pa
import pyarrow.parquet as pq

KEY = b"column_crc32"


class _Chunk(NamedTuple):
    """A column chunk: where it lies in the file, and the column of the table that it belongs to."""

    column: str
    begin: int
    size: int


def _chunks(metadata: pq.FileMetaData) -> Iterator[_Chunk]:
    """Yield the column chunks of a file in their order; a column of lists has one for its items."""
    for group in range(metadata.num_row_groups):
        for number in range(metadata.num_columns):
            chunk = metadata.row_group(group).column(number)
            begin = chunk.data_page_offset if chunk.dictionary_page_offset is None else chunk.dictionary_page_offset
            yield _Chunk(chunk.path_in_schema.partition(".")[0], begin, chunk.total_compressed_size)


def write_parquet(content: pa.Table, path: Path) -> None:
    """Write a table, with the checksums of its chunks in the metadata of its schema.

    It is encoded twice: other metadata change the end of the file alone, which no checksum covers. The path is absolute, since
    pyarrow takes a ``~`` with which one begins for the home folder, and pathlib for a name.
    """
    encoded = pa.BufferOutputStream()
    _encode(content, encoded)
    buffer = encoded.getvalue()
    chunks = _chunks(pq.ParquetFile(pa.BufferReader(buffer)).metadata)
    sums = [zlib.crc32(buffer[chunk.begin : chunk.begin + chunk.size]) for chunk in chunks]
    _encode(
        content.replace_schema_metadata({**(content.schema.metadata or {}), KEY: json.dumps(sums)}), path.absolute()
    )


def _encode(content: pa.Table, where: Path | pa.NativeFile) -> None:
    pq.write_table(content, where, compression="zstd", write_page_checksum=True)


def read_verified(file: pq.ParquetFile, path: Path, *, columns: Optional[list[str]] = None) -> pa.Table:
    """Return some columns of a file (None: all), whose checksums are verified first.

    Raises:
        ArrowInvalid: a checksum differs, or as for ``ParquetFile.read``.
    """
    if not _is_undamaged(file, path, columns=columns):
        raise pa.ArrowInvalid(f"{path}: a checksum differs")
    return file.read(columns=columns)


def _is_undamaged(file: pq.ParquetFile, path: Path, *, columns: Optional[Collection[str]]) -> bool:
    """Return True if the chunks of some columns (None: of all) match their checksums."""
    chunks = list(_chunks(file.metadata))
    try:
        sums = json.loads((file.schema_arrow.metadata or {}).get(KEY, b""))  # where they are gone, the file is damaged
    except ValueError:
        return False
    if not isinstance(sums, list) or len(sums) != len(chunks):
        return False
    with open(path, "rb") as content:
        for chunk, expected in zip(chunks, sums, strict=True):
            if columns is None or chunk.column in columns:
                if chunk.begin < 0 or chunk.size < 0:
                    return False
                content.seek(chunk.begin)
                if zlib.crc32(content.read(chunk.size)) != expected:
                    return False
    return True
