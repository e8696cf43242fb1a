"""Prepares a corpus: sources -> documents -> tokens -> one growing token file a split.

The source is read piece by piece, in order. After each piece the manifest is written, which says how much of every file counts;
whoever continues cuts the files to that size and goes on with the next piece. So the result is the same, byte for byte, after any
number of interruptions. A thread reads documents while the tokenizers library encodes others, on as many cores as
``RAYON_NUM_THREADS`` or the machine allows.
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import os
import re
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import groupby
from pathlib import Path
from typing import Any, Optional

import numpy as np
from tokenizers import Tokenizer

from olmo_sparsity.config import DataConfig, fingerprint
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import exclusive_lock, remove_leftovers, sha256_file, sha256_text, write_text, written_whole
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.text import sources, store
from olmo_sparsity.text.overlap import NGRAM, documents_in_training
from olmo_sparsity.text.tokenizer import eos_id_of, parse_tokenizer, read_tokenizer, tokenizer_text, vocab_size_of

logger = logging.getLogger(__name__)

BATCH_CHARACTERS = 1 << 20  # the encodings of a batch take about 100 bytes a token until they are arrays
BATCH_RECORDS = 4096
BATCH_DECODED = 32  # documents of a batch that are decoded again
SCANNED_TOKENS = 1 << 22  # of a token file at a time


def store_folder(data: DataConfig, tokenizer_file: Optional[Path] = None) -> Path:
    """Return the folder of a corpus under a tokenizer: a readable name and a hash of all that its contents depend on."""
    relevant = dataclasses.asdict(data)
    del relevant["cache_dir"]
    if tokenizer_file is not None or Path(data.tokenizer).is_file():
        relevant["tokenizer"] = sha256_file(tokenizer_file or Path(data.tokenizer))
    names = (Path(data.source).name, "measured" if tokenizer_file else Path(data.tokenizer).stem)
    source, tokenizer = (re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40] or "text" for name in names)
    digest = fingerprint(store.FORMAT, relevant, tokenizer_file is None, sources.source_fingerprint(data))
    return Path(data.cache_dir) / f"{source}-{tokenizer}-{digest}"


def prepare(data: DataConfig, tokenizer_file: Optional[Path] = None) -> Path:
    """Write the token files of a corpus, unless they exist. Return their folder.

    With ``tokenizer_file`` (text to measure a trained model on) every document goes into one split, ``measured``; otherwise the
    splits are ``train`` and ``validation``. Of several processes that call this at once, one prepares and the others wait.
    """
    folder = store_folder(data, tokenizer_file)
    if not store.is_prepared(folder):
        with exclusive_lock(folder.with_name(f"{folder.name}.lock")):
            if not store.is_prepared(folder):  # another process may have finished meanwhile
                _prepare(data, folder, tokenizer_file)
    manifest = store.read_manifest(folder)
    if manifest.changed:
        logger.warning(
            f"{folder}: the tokens of {manifest.changed:,} of {manifest.decoded:,} documents do not decode to their text: the "
            "tokenizer changes or loses characters"
        )
    return folder


def describe(folder: Path) -> list[str]:
    """Return lines about a finished preparation: what it holds, how fast it was, and what was skipped."""
    manifest = store.read_manifest(folder)
    splits = manifest.splits.items()
    lines = [f"{folder / split}: {entry.documents:,} documents, {entry.tokens:,} tokens" for split, entry in splits]
    speed = manifest.bytes / 1e6 / max(manifest.seconds, 1e-3)
    lines.append(f"read: {manifest.bytes / 1e6:,.1f} MB in {manifest.seconds:,.1f} s, {speed:,.1f} MB/s")
    if manifest.empty:
        lines.append(f"skipped: {manifest.empty:,} documents without text")
    if manifest.overlapping:
        lines.append(
            f"left out of validation: {manifest.overlapping:,} documents that share {NGRAM} tokens in a row with training"
        )
    return lines + [f"{name}: its last document has no EOS; it is kept" for name in manifest.unclosed]


def _prepare(data: DataConfig, folder: Path, tokenizer_file: Optional[Path]) -> None:
    if Path(data.source).is_dir() and (others := sources.files_of_folder(Path(data.source))[1]):
        logger.info(f"{data.source}: not read: {others}")
    pieces = sources.list_pieces(data)
    manifest = _unfinished(folder) or _begin(data, folder, tokenizer_file)
    remove_leftovers(folder, *(folder / split for split in manifest.splits), seconds=0)
    tokenizer, first = read_tokenizer(folder / "tokenizer.json"), next(iter(manifest.splits.values()))
    try:
        with progress_bar("prepare", " documents", unit_scale=True) as bar:
            for piece in pieces[len(first.pieces) :]:
                if _is_full(data, manifest):
                    break
                begun = time.perf_counter()
                writers = {split: _Writer(folder, split, manifest) for split in manifest.splits}
                if manifest.made_from == "text":
                    source = None
                    _encode(data, manifest, writers, piece, tokenizer=tokenizer, bar=bar)
                else:
                    source = _scan(data, manifest, writers, piece[0], bar=bar)
                for writer in writers.values():
                    writer.close(source)
                manifest.seconds = round(manifest.seconds + time.perf_counter() - begun, 3)
                store.write_manifest(folder, manifest)
        _finish(data, folder, manifest)
    except (UserError, OSError) as error:
        is_useless = isinstance(error, UserError) and len(first.pieces) == len(pieces)
        if not first.pieces or is_useless:  # nothing is left of a source that failed at once, or holds nothing
            shutil.rmtree(folder)
        raise


def _unfinished(folder: Path) -> Optional[store.Manifest]:
    """Return the manifest of an interrupted preparation; None: there is none, or its files are shorter than it says."""
    if not (folder / "manifest.json").is_file():
        return None
    manifest = store.read_manifest(folder)
    sizes = {path: size for split in manifest.splits for path, size in _sizes(folder, split, manifest).items()}
    if any(path.stat().st_size < size for path, size in sizes.items()):
        logger.warning(f"{folder}: files are shorter than their manifest says; the text is prepared again")
        return None
    return manifest


def _begin(data: DataConfig, folder: Path, tokenizer_file: Optional[Path]) -> store.Manifest:
    """Make the folder with the tokenizer and empty splits. What can be wrong with the tokenizer is found before."""
    text = tokenizer_file.read_text(encoding="utf-8") if tokenizer_file else tokenizer_text(data)
    tokenizer = parse_tokenizer(text, name=str(tokenizer_file or data.tokenizer))
    vocab_size = vocab_size_of(tokenizer)
    if data.token_dtype == "uint16" and vocab_size > 2**16:
        raise UserError(f"data.token_dtype = uint16: the tokenizer has {vocab_size} entries, too many for 16 bits")
    is_short = data.token_dtype == "uint16" or (data.token_dtype == "auto" and vocab_size <= 2**16)
    manifest = store.Manifest(
        made_from="token files" if sources.is_token_source(data) else "text",
        data=dataclasses.asdict(data),
        dtype="<u2" if is_short else "<u4",
        eos_id=eos_id_of(tokenizer, data.eos_token),
        vocab_size=vocab_size,
        tokenizer_sha256=sha256_text(text),
        splits={split: store.Split() for split in (("measured",) if tokenizer_file else ("train", "validation"))},
    )
    for split in manifest.splits:
        (folder / split).mkdir(parents=True, exist_ok=True)
    write_text(folder / "tokenizer.json", text)
    return manifest


def _is_full(data: DataConfig, manifest: store.Manifest) -> bool:
    """Return True if a limit is reached; ``max_tokens`` counts the first split."""
    tokens = next(iter(manifest.splits.values())).tokens
    return (data.max_documents is not None and _num_documents(manifest) >= data.max_documents) or (
        data.max_tokens is not None and tokens >= data.max_tokens
    )


def _num_documents(manifest: store.Manifest) -> int:
    return sum(entry.documents for entry in manifest.splits.values())


class _Writer:
    """Appends the documents of one piece to the files of a split, and counts them in its entry of the manifest."""

    def __init__(self, folder: Path, split: str, manifest: store.Manifest) -> None:
        self.entry, self._folder, self._split = manifest.splits[split], folder, split
        self._begin = self.entry.stored_tokens
        self._num_tokens, self._digest = 0, hashlib.sha256()  # of what this piece adds to the token file
        self._tokens: list[np.ndarray] = []
        self._index: list[tuple[int, int, int]] = []
        self._paths = _sizes(folder, split, manifest)
        for path, size in self._paths.items():
            path.touch()
            os.truncate(path, size)  # what an interrupted piece left behind

    def add(self, tokens: np.ndarray, doc_id: int, *, source: str, begin: Optional[int] = None) -> None:
        """Add a document; ``begin``: where it begins in the token file that is the source, so that it is not copied."""
        if begin is None:
            begin = self._num_tokens
            self._num_tokens += len(tokens)
            self._tokens.append(tokens)
        begin += self._begin
        self._index.append((begin, begin + len(tokens), doc_id))
        entry = self.entry
        entry.documents += 1
        entry.tokens += len(tokens)
        if entry.sources and entry.sources[-1][0] == source:
            entry.sources[-1] = (source, entry.sources[-1][1] + 1)
        else:
            entry.sources.append((source, 1))

    def flush(self) -> None:
        """Write what was added since the last call."""
        if self._tokens:
            self._append("tokens", tokens := np.concatenate(self._tokens))
            self._digest.update(tokens.data)
        if self._index:
            for (name, dtype), values in zip(store.INDEX.items(), zip(*self._index, strict=True), strict=True):
                self._append(name, np.array(values, dtype=dtype))
        self._tokens, self._index = [], []

    def _append(self, name: str, values: np.ndarray) -> None:
        with open(self._folder / self._split / f"{name}.bin", "ab") as file:
            file.write(values.data)

    def close(self, source: Optional[store.Piece] = None) -> None:
        """Put the piece on the disk; it is what was written, or the token file that is the source."""
        self.flush()
        for path in self._paths:
            with open(path, "rb") as file:
                os.fsync(file.fileno())
        written = store.Piece(f"{self._split}/tokens.bin", self._num_tokens, self._digest.hexdigest())
        self.entry.pieces.append(source or written)


def _sizes(folder: Path, split: str, manifest: store.Manifest) -> dict[Path, int]:
    """Return how many bytes of each file of a split the manifest counts."""
    entry = manifest.splits[split]
    sizes = {name: 8 * entry.documents for name in store.INDEX}
    if manifest.made_from == "text":
        sizes["tokens"] = entry.stored_tokens * np.dtype(manifest.dtype).itemsize
    return {folder / split / f"{name}.bin": size for name, size in sizes.items()}


def _writer_of(group: bytes, data: DataConfig, writers: dict[str, _Writer]) -> _Writer:
    return writers.get("measured") or writers[sources.split_of(group, data.validation_percent)]


def _encode(
    data: DataConfig,
    manifest: store.Manifest,
    writers: dict[str, _Writer],
    piece: list[Path],
    *,
    tokenizer: Tokenizer,
    bar: Any,
) -> None:
    """Read, encode and write a piece of text until a limit is reached; what comes behind it, be it an error, does not count."""
    room = None if data.max_documents is None else data.max_documents - _num_documents(manifest)
    batches = _batches(sources.read_piece(data, piece), room)
    dtype = np.dtype(manifest.dtype)
    with ThreadPoolExecutor(1, "reader") as reader:
        reading = reader.submit(next, batches, None)
        while (batch := reading.result()) is not None:
            reading = reader.submit(next, batches, None)
            texts = [item.text for item in batch if item is not None]
            encoded = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
            decoded = tokenizer.decode_batch(encoded[:BATCH_DECODED], skip_special_tokens=False)
            manifest.decoded += len(decoded)
            manifest.changed += sum(text != found for text, found in zip(texts, decoded, strict=False))
            ids = iter(encoded)
            for item in batch:
                if item is None:
                    manifest.empty += 1
                    continue
                tokens = np.array([*next(ids), manifest.eos_id], dtype=dtype)
                _writer_of(item.group, data, writers).add(tokens, item.doc_id, source=item.source)
                manifest.bytes += item.num_bytes
                bar.update()
                if _is_full(data, manifest):
                    return
            for writer in writers.values():
                writer.flush()


def _batches(
    items: Iterator[Optional[sources.Document]], room: Optional[int]
) -> Iterator[list[Optional[sources.Document]]]:
    """Yield what is read in batches, ``room`` documents at most; before an error of the source, what was read before it."""
    batch: list[Optional[sources.Document]] = []
    num_documents = num_characters = 0
    try:
        for item in items:
            batch.append(item)
            if item is not None:
                num_documents += 1
                num_characters += len(item.text)
            if num_documents == room:
                break
            if num_characters >= BATCH_CHARACTERS or len(batch) >= BATCH_RECORDS:
                yield batch
                batch, num_characters = [], 0
    except UserError:
        yield batch
        raise
    yield batch


def _scan(
    data: DataConfig, manifest: store.Manifest, writers: dict[str, _Writer], path: Path, *, bar: Any
) -> store.Piece:
    """Find the documents of a token file that OLMo's or dolma's tools wrote; it is read where it is, to its end for its hash."""
    tokens, digest = _map_tokens(path, manifest.dtype), hashlib.sha256()

    def add(begin: int, end: int) -> None:
        document = tokens[begin:end]
        # Without EOS and as 32 bits, so that the same tokens have the same hash in files of either dtype.
        content = document[: len(document) - int(document[-1] == manifest.eos_id)].astype("<u4").tobytes()
        doc_id = sources.hash64(content, b"doc_id")
        _writer_of(content, data, writers).add(document, doc_id, source=path.name, begin=begin)
        manifest.bytes += document.nbytes
        bar.update()

    begin = 0
    for offset in range(0, len(tokens), SCANNED_TOKENS):
        block = tokens[offset : offset + SCANNED_TOKENS]
        digest.update(block.data)
        if block.max() >= manifest.vocab_size:
            first = int(np.argmax(block >= manifest.vocab_size))
            raise UserError(
                f"{path}: token {offset + first} is {block[first]}, and the tokenizer has {manifest.vocab_size} entries; another "
                "tokenizer made this file (data.tokenizer), or its tokens are of another size (data.token_dtype)"
            )
        for end in (np.flatnonzero(block == manifest.eos_id) + offset + 1).tolist():
            if _is_full(data, manifest):
                break
            if end - begin == 1:
                manifest.empty += 1
            else:
                add(begin, end)
            begin = end
            manifest.closed += 1
        for writer in writers.values():
            writer.flush()
    if begin < len(tokens) and not _is_full(data, manifest):
        add(begin, len(tokens))
        manifest.unclosed.append(path.name)
    return store.Piece(str(path.resolve()), len(tokens), digest.hexdigest())


def _map_tokens(path: Path, dtype: str) -> np.ndarray:
    with open(sources.check_regular(path), "rb") as file:
        sources.check_kind(path, file.read(sources.HEAD_BYTES))
    size, itemsize = path.stat().st_size, np.dtype(dtype).itemsize
    if size % itemsize:
        raise UserError(f"{path}: {size} bytes are no whole number of {itemsize}-byte tokens; see data.token_dtype")
    tokens = store.map_array(path, dtype)
    start = tokens[:SCANNED_TOKENS]
    if dtype == "<u2" and len(start) >= 16 and not start[1::2].any() and start[::2].any():
        raise UserError(
            f"{path}: every second token is 0, so the tokens seem to have 32 bits; set data.token_dtype=uint32"
        )
    return tokens


def _finish(data: DataConfig, folder: Path, manifest: store.Manifest) -> None:
    """Hash the splits, and write the final manifest."""
    if _num_documents(manifest) == 0:
        raise UserError(f"data.source = {data.source}: it holds no document with text in it")
    if manifest.made_from == "token files" and not manifest.closed:
        raise UserError(
            f"data.source = {data.source}: {data.eos_token!r} (token {manifest.eos_id}) closes no document in these token "
            "files; data.tokenizer, data.eos_token or data.token_dtype is not the one that they were written with"
        )
    for split, entry in manifest.splits.items():
        entry.index_sha256 = _index_hashes(folder, split)
        hashes = [piece.sha256 for piece in entry.pieces]
        if manifest.made_from == "token files":  # all splits have the same files
            hashes += [entry.index_sha256["begins"], entry.index_sha256["ends"]]
        entry.tokens_sha256 = hashes[0] if len(hashes) == 1 else sha256_text("\n".join(hashes))
    if data.source == "builtin" and "validation" in manifest.splits:
        _remove_overlap(folder, manifest)
    manifest.status = "complete"
    store.write_manifest(folder, manifest)


def _index_hashes(folder: Path, split: str) -> dict[str, str]:
    return {name: sha256_file(folder / split / f"{name}.bin") for name in store.INDEX}


def _remove_overlap(folder: Path, manifest: store.Manifest) -> None:
    """Remove the validation documents that share a sequence of tokens with the training split from the index."""
    held_out, training = (store.split_store(folder, split, manifest) for split in ("validation", "train"))
    is_kept_G = ~documents_in_training(held_out, training)
    kept = {"begins": held_out.begins_G, "ends": held_out.ends_G, "doc_ids": held_out.doc_ids_G}
    for name, array in kept.items():
        with written_whole(folder / "validation" / f"{name}.bin") as partial:  # the old file stays mapped
            partial.write_bytes(array[is_kept_G].tobytes())
    entry, kept_g = manifest.splits["validation"], np.flatnonzero(is_kept_G)
    manifest.overlapping = entry.documents - len(kept_g)
    entry.documents, entry.tokens = len(kept_g), int(held_out.lengths_G[kept_g].sum())
    entry.sources = [(source, len(list(own))) for source, own in groupby(held_out.source_of(kept_g))]
    entry.index_sha256 = _index_hashes(folder, "validation")
    entry.tokens_sha256 = sha256_text("\n".join([entry.tokens_sha256, *entry.index_sha256.values()]))
