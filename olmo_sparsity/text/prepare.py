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
from itertools import groupby, pairwise
from pathlib import Path
from typing import Optional

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
SCANNED_TOKENS = 1 << 20  # of a token file at a time
# A document, its tokens, and where it begins in token files that are the source and are not copied; None: without text.
Encoded = Optional[tuple[sources.Document, np.ndarray, Optional[int]]]
Batch = list[Encoded]


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


def _prepare(data: DataConfig, folder: Path, tokenizer_file: Optional[Path]) -> None:
    if Path(data.source).is_dir() and (others := sources.files_of_folder(Path(data.source))[1]):
        logger.info(f"{data.source}: not read: {others}")
    pieces = sources.list_pieces(data)
    manifest = _unfinished(folder) or _begin(data, folder, tokenizer_file)
    remove_leftovers(folder, *(folder / split for split in manifest.splits), seconds=0)
    for path, size in _counted(folder, manifest).items():
        path.touch()
        os.truncate(path, size)  # what an interrupted piece left behind
    tokenizer = read_tokenizer(folder / "tokenizer.json")
    try:
        with progress_bar("prepare", " documents", unit_scale=True) as bar:
            for piece in pieces[manifest.pieces :]:
                if _is_full(data, manifest):
                    break
                begun = time.perf_counter()
                is_text = manifest.made_from == "text"
                begins = {split: entry.tokens for split, entry in manifest.splits.items()}
                for batch in _encoded(data, manifest, piece, tokenizer) if is_text else _scanned(manifest, piece[0]):
                    _add(data, folder, manifest, batch)
                    bar.update(len(batch))
                    if _is_full(data, manifest):  # what comes behind a limit, be it an error, does not count
                        break
                for path in _counted(folder, manifest):
                    with open(path, "rb") as file:
                        os.fsync(file.fileno())
                for split, begin in begins.items() if is_text else ():
                    added = store.map_array(folder / split / "tokens.bin", manifest.dtype)[begin:]
                    manifest.splits[split].piece_sha256.append(hashlib.sha256(added.data).hexdigest())
                manifest.pieces += 1
                manifest.seconds = round(manifest.seconds + time.perf_counter() - begun, 3)
                store.write_manifest(folder, manifest)
        _finish(data, folder, manifest)
    except (UserError, OSError) as error:
        is_useless = isinstance(error, UserError) and manifest.pieces == len(pieces)
        if manifest.pieces == 0 or is_useless:  # nothing is left of a source that failed at once, or holds nothing
            shutil.rmtree(folder)
        raise


def _unfinished(folder: Path) -> Optional[store.Manifest]:
    """Return the manifest of an interrupted preparation; None: there is none, or its files are shorter than it says."""
    if not (folder / "manifest.json").is_file():
        return None
    manifest = store.read_manifest(folder)
    sizes = _counted(folder, manifest).items()
    if all(path.is_file() and path.stat().st_size >= size for path, size in sizes):
        return manifest
    logger.warning(f"{folder}: files are shorter than their manifest says; the text is prepared again")
    return None


def _counted(folder: Path, manifest: store.Manifest) -> dict[Path, int]:
    """Return how many bytes of each file that grows the manifest counts."""
    sizes: dict[Path, int] = {}
    for split, entry in manifest.splits.items():
        sizes |= {folder / split / f"{name}.bin": 8 * entry.documents for name in store.INDEX}
        if manifest.made_from == "text":
            sizes[folder / split / "tokens.bin"] = entry.tokens * np.dtype(manifest.dtype).itemsize
    return sizes


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


def _num_documents(manifest: store.Manifest) -> int:
    return sum(entry.documents for entry in manifest.splits.values())


def _is_full(data: DataConfig, manifest: store.Manifest) -> bool:
    """Return True if a limit is reached; ``max_tokens`` counts the first split."""
    first = next(iter(manifest.splits.values()))
    counted = ((data.max_documents, _num_documents(manifest)), (data.max_tokens, first.tokens))
    return any(limit is not None and number >= limit for limit, number in counted)


def _add(data: DataConfig, folder: Path, manifest: store.Manifest, batch: Batch) -> None:
    """Append documents to the files of their splits until a limit is reached, and count them."""
    tokens: dict[str, list[np.ndarray]] = {split: [] for split in manifest.splits}
    index: dict[str, list[tuple[int, int, int]]] = {split: [] for split in manifest.splits}
    for item in batch:
        if item is None:
            manifest.empty += 1
            continue
        document, own, begin_in_source = item
        is_measured = "measured" in manifest.splits
        split = "measured" if is_measured else sources.split_of(document.group, data.validation_percent)
        entry = manifest.splits[split]
        begin = entry.tokens if begin_in_source is None else begin_in_source
        index[split].append((begin, begin + len(own), document.doc_id))
        if begin_in_source is None:
            tokens[split].append(own)
        entry.documents += 1
        entry.tokens += len(own)
        manifest.bytes += document.num_bytes
        if not entry.sources or entry.sources[-1][0] != document.source:
            entry.sources.append((document.source, 0))
        entry.sources[-1] = (document.source, entry.sources[-1][1] + 1)
        if _is_full(data, manifest):
            break
    for split in manifest.splits:
        arrays = {"tokens": np.concatenate(tokens[split])} if tokens[split] else {}
        if index[split]:
            columns = zip(store.INDEX.items(), zip(*index[split], strict=True), strict=True)
            arrays |= {name: np.array(values, dtype=dtype) for (name, dtype), values in columns}
        for name, array in arrays.items():
            with open(folder / split / f"{name}.bin", "ab") as file:
                file.write(array.data)


def _encoded(data: DataConfig, manifest: store.Manifest, piece: list[Path], tokenizer: Tokenizer) -> Iterator[Batch]:
    """Read and encode a piece of text; None stands for a document without text."""
    batches = _batches(sources.read_piece(data, piece))
    with ThreadPoolExecutor(1, "reader") as reader:
        reading = reader.submit(next, batches, None)
        while (batch := reading.result()) is not None:
            reading = reader.submit(next, batches, None)
            texts = [item.text for item in batch if item is not None]
            encoded = [encoding.ids for encoding in tokenizer.encode_batch_fast(texts, add_special_tokens=False)]
            decoded = tokenizer.decode_batch(encoded[:BATCH_DECODED], skip_special_tokens=False)
            manifest.decoded += len(decoded)
            manifest.changed += sum(text != found for text, found in zip(texts, decoded, strict=False))
            ids = (np.array([*of_text, manifest.eos_id], dtype=manifest.dtype) for of_text in encoded)
            yield [None if item is None else (item, next(ids), None) for item in batch]


def _batches(items: Iterator[Optional[sources.Document]]) -> Iterator[list[Optional[sources.Document]]]:
    """Yield what is read in batches; before an error of the source, what was read before it."""
    batch: list[Optional[sources.Document]] = []
    num_characters = 0
    try:
        for item in items:
            batch.append(item)
            num_characters += 0 if item is None else len(item.text)
            if num_characters >= BATCH_CHARACTERS or len(batch) >= BATCH_RECORDS:
                yield batch
                batch, num_characters = [], 0
    except UserError:
        yield batch
        raise
    yield batch


def _scanned(manifest: store.Manifest, path: Path) -> Iterator[Batch]:
    """Find the documents of a token file that OLMo's or dolma's tools wrote; it is read where it is."""
    tokens = _map_tokens(path, manifest.dtype)
    manifest.files[str(path.absolute())] = sha256_file(path)

    def found(begin: int, end: int) -> Encoded:
        if end - begin == 1 and tokens[begin] == manifest.eos_id:
            return None
        own = tokens[begin:end]
        # Without EOS and as 32 bits, so that the same tokens have the same hash in files of either dtype.
        content = own[: len(own) - int(own[-1] == manifest.eos_id)].astype("<u4").tobytes()
        document = sources.Document(sources.hash64(content, b"doc_id"), "", path.name, content, own.nbytes)
        return document, own, manifest.scanned + begin

    begin = 0
    for offset in range(0, len(tokens), SCANNED_TOKENS):
        block = tokens[offset : offset + SCANNED_TOKENS]
        if block.max() >= manifest.vocab_size:
            first = int(np.argmax(block >= manifest.vocab_size))
            raise UserError(
                f"{path}: token {offset + first} is {block[first]}, and the tokenizer has {manifest.vocab_size} entries; another "
                "tokenizer made this file (data.tokenizer), or its tokens are of another size (data.token_dtype)"
            )
        ends = (np.flatnonzero(block == manifest.eos_id) + offset + 1).tolist()
        manifest.closed += len(ends)
        yield [found(first, end) for first, end in pairwise([begin, *ends])]
        begin = ends[-1] if ends else begin
    if begin < len(tokens):
        yield [found(begin, len(tokens))]
        manifest.unclosed.append(path.name)
    manifest.scanned += len(tokens)


def _map_tokens(path: Path, dtype: str) -> np.ndarray:
    sources.check_kind(sources.check_regular(path))
    size, itemsize = path.stat().st_size, np.dtype(dtype).itemsize
    if size % itemsize:
        raise UserError(f"{path}: {size} bytes are no whole number of {itemsize}-byte tokens; see data.token_dtype")
    tokens = store.map_array(path, dtype)
    start = tokens[:SCANNED_TOKENS]
    if dtype == "<u2" and len(start) >= 16 and not start[1::2].any() and start[::2].any():
        raise UserError(f"{path}: every second token is 0, as if tokens had 32 bits; set data.token_dtype=uint32")
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
    if data.source == "builtin" and "validation" in manifest.splits:
        _remove_overlap(folder, manifest)
    of_source = [manifest.files[name] for name in manifest.token_files]
    written = (folder / "tokenizer.json", *_counted(folder, manifest))
    manifest.files |= {str(path.relative_to(folder)): sha256_file(path) for path in written}
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
