"""Finds the documents of a token file that OLMo's or dolma's tools wrote. The file is read where it is and not copied."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np

from olmo_sparsity.errors import UserError
from olmo_sparsity.text import corpus
from olmo_sparsity.text.records import SourceFile
from olmo_sparsity.text.shard_writer import ShardTask, ShardWriter
from olmo_sparsity.text.store import map_array

SCAN_TOKENS = 1 << 22  # tokens that are scanned at a time
NPY_MAGIC = b"\x93NUMPY"


def scan_token_file(task: ShardTask, writer: ShardWriter) -> tuple[SourceFile, dict[str, int]]:
    """Add the documents of a token file to the writer, block by block, until a limit is reached.

    Returns:
        (the file, the number of skipped documents by reason: those that are EOS alone are ``empty``).

    Raises:
        UserError: it is no file of raw tokens of this dtype and vocabulary.
    """
    (path,) = task.shard.paths
    _check_format(task, path)
    tokens = map_array(path, task.dtype)
    digest = hashlib.sha256()
    begin = num_closed = num_empty = 0
    for offset in range(0, len(tokens), SCAN_TOKENS):
        block = tokens[offset : offset + SCAN_TOKENS]
        digest.update(block.data)  # even after a limit is reached: the hash identifies the whole file
        _check_tokens(task, path, block=block, offset=offset)
        for end in (np.flatnonzero(block == task.eos_id) + offset + 1).tolist():
            if writer.is_full:
                break
            if end - begin == 1:
                num_empty += 1
            else:
                _add_document(task, writer, path=path, document=tokens[begin:end], begin=begin)
            begin, num_closed = end, num_closed + 1
        writer.flush()
    has_open_end = begin < len(tokens) and not writer.is_full
    if has_open_end:
        _add_document(task, writer, path=path, document=tokens[begin:], begin=begin)
    file = SourceFile(
        path=str(path.resolve()),
        size=path.stat().st_size,
        sha256=digest.hexdigest(),
        tokens=len(tokens),
        closed=num_closed,
        unclosed=has_open_end,
    )
    return file, {"empty": num_empty} if num_empty else {}


def _add_document(task: ShardTask, writer: ShardWriter, *, path: Path, document: np.ndarray, begin: int) -> None:
    """Add a document whose first token has the index ``begin`` in its file."""
    # Without EOS and as 32 bits, so that the same tokens have the same hash in files of either dtype.
    content = document[: len(document) - int(document[-1] == task.eos_id)].astype("<u4").tobytes()
    writer.add(
        content,
        document,
        doc_id=corpus.hash64(content, b"doc_id"),
        source=path.name,
        num_bytes=document.nbytes,
        begin=begin,
    )


def _check_format(task: ShardTask, path: Path) -> None:
    with open(path, "rb") as file:
        if file.read(len(NPY_MAGIC)) == NPY_MAGIC:
            raise UserError(
                f"{path}: a NumPy file with a header, where raw tokens were expected (OLMo's .npy files have none); "
                "numpy.load(...).tofile(...) writes them"
            )
    size, itemsize = path.stat().st_size, np.dtype(task.dtype).itemsize
    if size % itemsize:
        raise UserError(f"{path}: {size} bytes are no whole number of {itemsize}-byte tokens; see data.token_dtype")


def _check_tokens(task: ShardTask, path: Path, *, block: np.ndarray, offset: int) -> None:
    if task.dtype == "<u2" and offset == 0 and len(block) >= 16 and not block[1::2].any() and block[::2].any():
        raise UserError(
            f"{path}: every second token is 0, so the tokens seem to have 32 bits; set data.token_dtype=uint32"
        )
    if block.max(initial=0) >= task.vocab_size:
        first = int(np.argmax(block >= task.vocab_size))
        raise UserError(
            f"{path}: token {offset + first} is {block[first]}, and the tokenizer has {task.vocab_size} entries; another "
            "tokenizer made this file (data.tokenizer), or its tokens are of another size (data.token_dtype)"
        )
