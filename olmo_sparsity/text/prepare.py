"""Prepares a corpus: sources -> documents -> tokens -> one growing token file a split.

After each piece of the source the manifest says how much of every file counts; whoever continues cuts the files to that size, so
that the result is the same, byte for byte, after any interruptions. A thread reads documents while the tokenizers library encodes
others, on as many cores as ``RAYON_NUM_THREADS`` or the machine allows.
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
from contextlib import ExitStack, contextmanager
from itertools import groupby
from operator import ne
from pathlib import Path
from typing import Any, BinaryIO, Optional

import numpy as np
from tokenizers import Tokenizer
from tqdm import tqdm

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
SCANNED_TOKENS = 1 << 20  # of a token file at a time
Encoded = tuple[sources.Document, np.ndarray, int]  # the number: where a document of token files begins


def store_folder(data: DataConfig, source: sources.Source, tokenizer_file: Optional[Path] = None) -> Path:
    """Return the folder of a corpus under a tokenizer: a readable name and a hash of all that its contents depend on."""
    relevant = dataclasses.asdict(data)
    del relevant["cache_dir"]
    if tokenizer_file is not None or Path(data.tokenizer).is_file():
        relevant["tokenizer"] = sha256_file(tokenizer_file or Path(data.tokenizer))
    names = (Path(data.source).name, "measured" if tokenizer_file else Path(data.tokenizer).stem)
    text, tokenizer = (re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")[:40] or "text" for name in names)
    digest = fingerprint(store.FORMAT, relevant, tokenizer_file is None, source.fingerprint)
    return Path(data.cache_dir) / f"{text}-{tokenizer}-{digest}"


def prepare(data: DataConfig, tokenizer_file: Optional[Path] = None) -> Path:
    """Write the token files of a corpus, unless they exist. Return their folder.

    With ``tokenizer_file`` (text to measure a trained model on) every document goes into one split, ``measured``; otherwise the
    splits are ``train`` and ``validation``. Of several processes that call this at once, one prepares and the others wait.
    """
    source = sources.open_source(data)
    folder = store_folder(data, source, tokenizer_file)
    if not store.is_prepared(folder):
        with exclusive_lock(folder.with_name(f"{folder.name}.lock")):
            if not store.is_prepared(folder):  # another process may have finished meanwhile
                _prepare(data, source, folder, tokenizer_file)
    manifest = store.read_manifest(folder)
    if manifest.changed:
        number = f"{manifest.changed:,} of {manifest.decoded:,} documents"
        logger.warning(f"{folder}: the tokens of {number} do not decode to their text: the tokenizer loses characters")
    return folder


def describe(folder: Path) -> list[str]:
    """Return lines about a finished preparation: what it holds, how fast it was, and what was left out."""
    manifest = store.read_manifest(folder)
    splits = manifest.splits.items()
    lines = [f"{folder / split}: {entry.documents:,} documents, {entry.tokens:,} tokens" for split, entry in splits]
    speed = manifest.bytes / 1e6 / max(manifest.seconds, 1e-3)
    lines.append(f"read: {manifest.bytes / 1e6:,.1f} MB in {manifest.seconds:,.1f} s, {speed:,.1f} MB/s")
    if manifest.empty:
        lines.append(f"skipped: {manifest.empty:,} documents without text")
    if number := manifest.overlapping:
        lines.append(f"left out of validation: {number:,} documents that share {NGRAM} tokens in a row with training")
    return lines + [f"{name}: its last document has no EOS; it is kept" for name in manifest.unclosed]


def _prepare(data: DataConfig, source: sources.Source, folder: Path, tokenizer_file: Optional[Path]) -> None:
    if source.others:
        logger.info(f"{data.source}: not read: {source.others}")
    is_begun = (folder / "manifest.json").is_file()
    manifest = store.read_manifest(folder) if is_begun else _begin(data, source, folder, tokenizer_file)
    remove_leftovers(folder, *(folder / split for split in manifest.splits), seconds=0)
    tokenizer = read_tokenizer(folder / "tokenizer.json")
    try:
        with progress_bar("prepare", " documents", unit_scale=True) as bar:
            for piece in source.pieces[manifest.pieces :]:
                if _is_full(data, manifest):
                    break
                is_text = manifest.made_from == "text"
                found = _encoded(data, manifest, piece, tokenizer) if is_text else _scanned(manifest, piece[0])
                _add_piece(data, folder, manifest, found, bar)
        _finish(data, folder, manifest)
    except (UserError, OSError) as error:
        is_useless = isinstance(error, UserError) and manifest.pieces == len(source.pieces)
        if manifest.pieces == 0 or is_useless:  # nothing is left of a source that failed at once, or holds nothing
            shutil.rmtree(folder)
        raise


def _sizes(manifest: store.Manifest) -> dict[str, int]:
    """Return how many bytes of each file that grows the manifest counts."""
    sizes: dict[str, int] = {}
    for split, entry in manifest.splits.items():
        sizes |= {f"{split}/{name}.bin": 8 * entry.documents for name in store.INDEX}
        if manifest.made_from == "text":
            sizes[f"{split}/tokens.bin"] = entry.tokens * np.dtype(manifest.dtype).itemsize
    return sizes


def _begin(data: DataConfig, source: sources.Source, folder: Path, tokenizer_file: Optional[Path]) -> store.Manifest:
    """Make the folder with the tokenizer and empty splits. What can be wrong with the tokenizer is found before."""
    text = tokenizer_file.read_text(encoding="utf-8") if tokenizer_file else tokenizer_text(data, source)
    tokenizer = parse_tokenizer(text, name=str(tokenizer_file or data.tokenizer))
    vocab_size = vocab_size_of(tokenizer)
    manifest = store.Manifest(
        made_from="token files" if source.is_tokens else "text",
        data=dataclasses.asdict(data),
        dtype="<u2" if vocab_size <= 2**16 else "<u4",
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
    """Return True if the first split has ``max_tokens``."""
    return next(iter(manifest.splits.values())).tokens >= (data.max_tokens or np.inf)


def _add_piece(
    data: DataConfig, folder: Path, manifest: store.Manifest, found: Iterator[Encoded], bar: tqdm[Any]
) -> None:
    """Append the documents of a piece to the files of their splits, up to the limit, and count them in the manifest."""
    begun, is_text, is_measured = time.perf_counter(), manifest.made_from == "text", "measured" in manifest.splits
    digests = {split: hashlib.sha256() for split in manifest.splits}
    with ExitStack() as stack:
        sizes = _sizes(manifest).items()
        files = {name: stack.enter_context(_appended(folder / name, size)) for name, size in sizes}
        for document, tokens, begin in found:
            bar.update()
            split = "measured" if is_measured else sources.split_of(document.group, data.validation_percent)
            entry = manifest.splits[split]
            if is_text:
                begin = entry.tokens
                files[f"{split}/tokens.bin"].write(tokens.data)
                digests[split].update(tokens.data)
            for name, value in zip(store.INDEX, (begin, begin + len(tokens), document.doc_id), strict=True):
                files[f"{split}/{name}.bin"].write(value.to_bytes(8, "little"))
            entry.documents += 1
            entry.tokens += len(tokens)
            manifest.bytes += len(document.text.encode()) if is_text else tokens.nbytes
            if not entry.sources or entry.sources[-1][0] != document.source:
                entry.sources.append((document.source, 0))
            entry.sources[-1] = (document.source, entry.sources[-1][1] + 1)
            if _is_full(data, manifest):  # what comes behind the limit, be it an error, does not count
                break
    for split, digest in digests.items() if is_text else ():
        manifest.splits[split].piece_sha256.append(digest.hexdigest())
    if data.source == "builtin" and "validation" in manifest.splits:
        _remove_overlap(folder, manifest)
    manifest.pieces += 1
    manifest.seconds = round(manifest.seconds + time.perf_counter() - begun, 3)
    store.write_manifest(folder, manifest)


@contextmanager
def _appended(path: Path, size: int) -> Iterator[BinaryIO]:
    """Open a file to append to its first ``size`` bytes; what is behind them was left by an interrupted piece."""
    with open(path, "ab", buffering=1 << 20) as file:
        if file.tell() < size:
            raise UserError(f"{path}: shorter than its manifest says; delete {path.parents[1]} and prepare again")
        file.truncate(size)
        yield file
        file.flush()
        os.fsync(file.fileno())


def _encoded(data: DataConfig, manifest: store.Manifest, piece: list[Path], tokenizer: Tokenizer) -> Iterator[Encoded]:
    """Read and encode a piece of text; a thread reads the next batch meanwhile."""
    batches = _batches(sources.read_piece(data, piece))
    with ThreadPoolExecutor(1, "reader") as reader:
        reading = reader.submit(next, batches, None)
        while (batch := reading.result()) is not None:
            reading = reader.submit(next, batches, None)
            texts = [document.text for document in batch if document.group]
            ids = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
            decoded = tokenizer.decode_batch(ids[:BATCH_DECODED], skip_special_tokens=False)
            manifest.decoded += len(decoded)
            manifest.changed += sum(map(ne, texts, decoded))
            tokens = (np.array([*of_text, manifest.eos_id], dtype=manifest.dtype) for of_text in ids)
            for document in batch:
                if document.group:
                    yield document, next(tokens), 0
                else:
                    manifest.empty += 1


def _batches(documents: Iterator[sources.Document]) -> Iterator[list[sources.Document]]:
    """Yield documents in batches; before an error of the source, what was read before it."""
    batch: list[sources.Document] = []
    num_characters = 0
    try:
        for document in documents:
            batch.append(document)
            num_characters += len(document.text)
            if num_characters >= BATCH_CHARACTERS or len(batch) >= BATCH_RECORDS:
                yield batch
                batch, num_characters = [], 0
    except UserError:
        yield batch
        raise
    yield batch


def _scanned(manifest: store.Manifest, path: Path) -> Iterator[Encoded]:
    """Find the documents of a token file that OLMo's or dolma's tools wrote; it is read where it is."""
    sources.check_kind(path, store.map_array(path, "u1")[: sources.HEAD_BYTES].tobytes(), sources.NO_TOKENS)
    size, itemsize = path.stat().st_size, np.dtype(manifest.dtype).itemsize
    if size % itemsize:
        raise UserError(f"{path}: {size} bytes are no whole number of {itemsize}-byte tokens; see data.tokenizer")
    tokens = store.map_array(path, manifest.dtype)
    start = tokens[:SCANNED_TOKENS]
    if itemsize == 2 and len(start) >= 16 and not start[1::2].any() and start[::2].any():
        raise UserError(f"{path}: every second token is 0, as if it had 32 bits; see data.tokenizer, or write uint16")
    manifest.files[str(path.absolute())] = sha256_file(path)

    def document(begin: int, end: int) -> Encoded:
        own = tokens[begin:end]
        # Without EOS and as 32 bits, so that the same tokens have the same hash in files of either dtype.
        content = own[: len(own) - int(own[-1] == manifest.eos_id)].astype("<u4").tobytes()
        doc_id = sources.hash64(content, b"doc_id")
        return sources.Document(doc_id, "", path.name, content), own, manifest.scanned + begin

    begin = 0
    for offset in range(0, len(tokens), SCANNED_TOKENS):
        block = tokens[offset : offset + SCANNED_TOKENS]
        if block.max() >= manifest.vocab_size:
            first = int(np.argmax(block >= manifest.vocab_size))
            found = f"token {offset + first} is {block[first]}, but the tokenizer has {manifest.vocab_size} entries"
            raise UserError(f"{path}: {found}; see data.tokenizer")
        for end in (np.flatnonzero(block == manifest.eos_id) + offset + 1).tolist():
            manifest.closed += 1
            manifest.empty += end == begin + 1
            if end > begin + 1:
                yield document(begin, end)
            begin = end
    if begin < len(tokens):
        manifest.unclosed.append(path.name)
        yield document(begin, len(tokens))
    manifest.scanned += len(tokens)


def _finish(data: DataConfig, folder: Path, manifest: store.Manifest) -> None:
    """Hash the splits, and write the final manifest."""
    if not any(entry.documents for entry in manifest.splits.values()):
        raise UserError(f"data.source = {data.source}: it holds no document with text in it")
    if manifest.made_from == "token files" and not manifest.closed:
        closes = f"{data.eos_token!r} (token {manifest.eos_id}) closes no document"
        raise UserError(f"data.source = {data.source}: {closes}; see data.eos_token and data.tokenizer")
    of_source = [manifest.files[name] for name in manifest.token_files]
    manifest.files |= {name: sha256_file(folder / name) for name in ("tokenizer.json", *_sizes(manifest))}
    for split, entry in manifest.splits.items():
        begins, ends, doc_ids = (manifest.files[f"{split}/{name}.bin"] for name in store.INDEX)
        hashes = [*of_source, begins, ends] if of_source else entry.piece_sha256
        if data.source == "builtin" and split == "validation":  # not all its tokens are of its documents
            hashes = [*hashes, begins, ends, doc_ids]
        entry.tokens_sha256 = hashes[0] if len(hashes) == 1 else sha256_text("\n".join(hashes))
    manifest.status = "complete"
    store.write_manifest(folder, manifest)


def _remove_overlap(folder: Path, manifest: store.Manifest) -> None:
    """Remove the validation documents that share a sequence of tokens with the training split from the index."""
    held_out, training = (store.open_store(folder, split, manifest) for split in ("validation", "train"))
    is_kept_G = ~documents_in_training(held_out, training)
    for name, array in zip(store.INDEX, (held_out.begins_G, held_out.ends_G, held_out.doc_ids_G), strict=True):
        with written_whole(folder / "validation" / f"{name}.bin") as partial:  # the old file stays mapped
            partial.write_bytes(array[is_kept_G].tobytes())
    entry, kept_g = manifest.splits["validation"], np.flatnonzero(is_kept_G)
    manifest.overlapping = entry.documents - len(kept_g)
    entry.documents, entry.tokens = len(kept_g), int(held_out.lengths_G[kept_g].sum())
    entry.sources = [(source, len(list(own))) for source, own in groupby(held_out.source_of(kept_g))]
