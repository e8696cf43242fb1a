"""Prepares a corpus: writes a folder of token files, shard by shard, in as many processes as there are cores.

The result is the same, byte for byte, for any number of processes and after any number of interruptions. During the preparation
``shards/`` holds the record and the index of every finished shard, and the hash of the tokenizer. Whoever continues compares what
is there with its hashes. At the end the indices are joined and ``shards/`` is deleted.
"""

from __future__ import annotations

import dataclasses
import logging
import multiprocessing
import re
import shutil
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Optional

import numpy as np

from olmo_sparsity.config import DataConfig, fingerprint
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import (
    exclusive_lock,
    make_folder,
    read_manifest_of,
    sha256_file,
    sha256_text,
    write_bytes,
    write_json,
    write_text,
    written_whole,
)
from olmo_sparsity.text import corpus
from olmo_sparsity.text.overlap import NGRAM, documents_in_training
from olmo_sparsity.text.records import NAMED_RECORDS, Limits, ShardRecord, SourceRun, SplitEntry, TokenFile, append_run
from olmo_sparsity.text.scheduling import usable_cores, write_shards
from olmo_sparsity.text.shard_writer import ShardTask, shard_path, tokens_path
from olmo_sparsity.text.store import FORMAT, INDEX, is_prepared, map_array, split_store
from olmo_sparsity.text.vocabulary import eos_id_of, parse_tokenizer, read_tokenizer, tokenizer_text, vocab_size_of

logger = logging.getLogger(__name__)


def store_folder(data: DataConfig, tokenizer_file: Optional[Path] = None) -> Path:
    """Return the folder of a corpus under a tokenizer: a readable name and a hash of all that its contents depend on."""
    relevant = dataclasses.asdict(data)
    del relevant["cache_dir"]
    if tokenizer_file is not None:
        relevant["tokenizer"] = sha256_file(tokenizer_file)
    elif Path(data.tokenizer).is_file():
        relevant["tokenizer"] = sha256_file(Path(data.tokenizer))
    source = _plain(Path(data.source).name)[:40] or "text"
    tokenizer = "measured" if tokenizer_file else _plain(Path(data.tokenizer).stem)[:20]
    digest = fingerprint(FORMAT, relevant, corpus.source_fingerprint(data))
    return Path(data.cache_dir) / f"{source}-{tokenizer}-{digest}"


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "-", name).strip("-")


def prepare(data: DataConfig, tokenizer_file: Optional[Path] = None) -> Path:
    """Write the token files of a corpus, unless they exist. Return their folder.

    With ``tokenizer_file`` (text to measure a trained model on) every document goes into one split, ``measured``. Otherwise the
    splits are ``train`` and ``validation``. An interruption loses only the shards that are being written. If several processes
    call this at once, one of them prepares and the others wait. A script that calls it with a source of several files needs
    ``if __name__ == "__main__":``, as every script that starts processes does.

    Raises:
        UserError: the source or the tokenizer is not usable, or a script lacks this line.
        KeyboardInterrupt: on Ctrl-C and SIGTERM.
    """
    if words := corpus.folder_words(data.source):
        logger.info(words)
    folder = store_folder(data, tokenizer_file)
    if not is_prepared(folder) or (folder / "shards").exists():
        _check_guarded()
        with (
            _removed_if_empty(folder.parent),
            _terminated_as_interrupted(),
            exclusive_lock(folder.with_name(f"{folder.name}.lock")),
        ):
            if not is_prepared(folder):  # another process may have finished meanwhile
                _prepare(data, folder, tokenizer_file=tokenizer_file)
            if (folder / "shards").exists():
                shutil.rmtree(folder / "shards")
    return folder


def _check_guarded() -> None:
    """Check that this is no worker process that imports the script of its parent, which holds the lock and waits for the worker.

    Raises:
        UserError: it is one.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):  # as multiprocessing itself finds it out
        raise UserError(
            "text is prepared in several processes, each of which imports the script that started them; put what the script does "
            'under `if __name__ == "__main__":`'
        )


@contextmanager
def _removed_if_empty(folder: Path) -> Iterator[None]:
    """Remove a folder that did not exist before, and the new ones above it, if nothing is in them afterwards."""
    is_new = [parent for parent in (folder, *folder.parents) if not parent.exists()]
    try:
        yield
    finally:
        with suppress(OSError):  # something is in it, which stays
            for parent in is_new:
                parent.rmdir()


@contextmanager
def _terminated_as_interrupted() -> Iterator[None]:
    """Turn SIGTERM, which batch systems send before they kill, into ``KeyboardInterrupt``, as Ctrl-C is."""

    def interrupt(_number: int, _frame: Optional[FrameType]) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def describe(folder: Path) -> list[str]:
    """Return lines about a finished preparation: what it holds, how fast it was, and what was skipped."""
    manifest = read_manifest_of(
        folder, "splits", "speed", "tokens", "bytes", "skipped", "broken", "removed", "unclosed"
    )
    lines = [
        f"{folder / split}: {entry['documents']:,} documents, {entry['tokens']:,} tokens"
        for split, entry in manifest["splits"].items()
    ]
    speed = manifest["speed"]
    documents = sum(entry["documents"] for entry in manifest["splits"].values())
    total = f"{documents:,} documents, {manifest['tokens']:,} tokens from {manifest['bytes'] / 1e6:,.1f} MB"
    if speed["shards"]:
        seconds = max(speed["seconds"] - speed["tokenizer_seconds"], 1e-3)
        total += f"; {speed['bytes'] / seconds / 1e6:,.1f} MB/s, {speed['tokens'] / seconds:,.0f} tokens/s"
    lines.append(total + ("; MB and speeds count removed documents, too" if any(manifest["removed"].values()) else ""))
    broken = manifest["broken"]
    for reason, count in manifest["skipped"].items():
        lines.append(f"skipped: {count:,} {reason} records")
        if reason == "broken" and broken:
            lines += broken if count <= len(broken) else [*broken, f"and {count - len(broken):,} more"]
    lines += [
        f"removed from {split}: {count:,} documents that share {NGRAM} consecutive tokens with the training split"
        for split, count in manifest["removed"].items()
    ]
    lines += [f"{name}: its last document has no EOS; it is kept" for name in manifest["unclosed"]]
    return lines


def _prepare(data: DataConfig, folder: Path, *, tokenizer_file: Optional[Path]) -> None:
    """Write all files of a prepared folder, the manifest last."""
    is_new = not folder.exists()
    try:
        begun = time.perf_counter()
        shards = corpus.list_shards(data)
        tokenizer_sha256 = _write_tokenizer(data, folder, tokenizer_file=tokenizer_file)
        splits = ("train", "validation") if tokenizer_file is None else ("measured",)
        template = _first_task(data, folder, splits=splits, shard=shards[0])
        tokenizer_seconds = time.perf_counter() - begun
        written = write_shards(template, shards)
        _check_records(template, written.records)
        # Shards behind a limit may have been written before it was known where the limit is.
        for number in range(len(written.records), len(shards)):
            for split in splits:
                (folder / tokens_path(split, number)).unlink(missing_ok=True)
        entries = {split: _join_split(template, split, records=written.records) for split in splits}
        removed = {}
        if data.source == "builtin" and "validation" in entries:
            num_documents = entries["validation"].documents
            entries["validation"] = _without_overlap(template, entries)
            removed["validation"] = num_documents - entries["validation"].documents
        _remove_partials(template)
        manifest = _manifest(
            template, written.records, tokenizer_sha256=tokenizer_sha256, entries=entries, removed=removed
        )
        seconds = {"seconds": time.perf_counter() - begun, "tokenizer_seconds": tokenizer_seconds}
        write_json(folder / "manifest.json", {**manifest, "speed": _speed(data, written.new_records, seconds=seconds)})
    except (UserError, OSError):
        # Nothing is left of a source that failed at once. Finished shards are kept, so that a rerun continues.
        if is_new and folder.exists() and not any(path.stat().st_size for path in folder.glob("shards/*.doc_ids.bin")):
            shutil.rmtree(folder)
        raise


def _write_tokenizer(data: DataConfig, folder: Path, *, tokenizer_file: Optional[Path]) -> str:
    """Write the tokenizer into the folder, unless it is the one that the finished shards were written with. Return its hash.

    Its hash is kept beside these. Another tokenizer in its place is made again, as it was made then. If that gives another one,
    or no hash tells, the shards are written again, too.
    """
    path, kept = folder / "tokenizer.json", folder / "shards" / "tokenizer.sha256"
    begun_with = kept.read_text(encoding="utf-8", errors="replace") if kept.is_file() else None
    present = sha256_file(path) if path.is_file() else None
    if present is not None and present == begun_with:
        return present
    text = tokenizer_file.read_text(encoding="utf-8") if tokenizer_file else tokenizer_text(data)
    eos_id_of(parse_tokenizer(text, name=str(tokenizer_file or data.tokenizer)), data.eos_token)
    made = sha256_text(text)
    if present not in (None, made):
        logger.warning(f"{path}: not the tokenizer that this preparation began with; it is written again")
    if kept.parent.exists() and made != begun_with:
        logger.warning(f"{folder}: it is unknown with which tokenizer this preparation began; it begins anew")
        shutil.rmtree(kept.parent)
    make_folder(kept.parent)
    write_text(path, text)
    write_text(kept, made)
    return made


def _first_task(data: DataConfig, folder: Path, *, splits: tuple[str, ...], shard: corpus.Shard) -> ShardTask:
    """Make the folders of the splits, and return the task of the first shard, with the limits of all shards."""
    tokenizer = read_tokenizer(folder / "tokenizer.json")
    vocab_size = vocab_size_of(tokenizer)
    template = ShardTask(
        data=data,
        folder=folder,
        number=0,
        shard=shard,
        is_tokens=corpus.is_token_source(data),
        splits=splits,
        dtype=_token_dtype(data, vocab_size),
        eos_id=eos_id_of(tokenizer, data.eos_token),
        vocab_size=vocab_size,
        limits=Limits(data.max_documents, data.max_tokens),
        num_threads=1,
    )
    for split in splits:
        make_folder(folder / split)
    _remove_partials(template)
    return template


def _token_dtype(data: DataConfig, vocab_size: int) -> str:
    if data.token_dtype == "uint16" and vocab_size > 2**16:
        raise UserError(f"data.token_dtype = uint16: the tokenizer has {vocab_size} entries, too many for 16 bits")
    if data.token_dtype == "auto":
        return "<u2" if vocab_size <= 2**16 else "<u4"
    return {"uint16": "<u2", "uint32": "<u4"}[data.token_dtype]


def _remove_partials(template: ShardTask) -> None:
    """Remove the partial files of killed processes. The caller holds the lock, so no other process is writing."""
    for name in ("", "shards", *template.splits):
        for path in (template.folder / name).glob(".*.partial"):
            path.unlink(missing_ok=True)


def _check_records(template: ShardTask, records: list[ShardRecord]) -> None:
    """Check that there are documents, and that EOS ends those of token files.

    Raises:
        UserError: it is not so.
    """
    data = template.data
    if sum(record.documents for record in records) == 0:
        raise UserError(f"data.source = {data.source}: it holds no document with text in it")
    if template.is_tokens and not any(record.file is not None and record.file.closed for record in records):
        shutil.rmtree(template.folder / "shards")  # a rerun cannot use it
        raise UserError(
            f"data.source = {data.source}: {data.eos_token!r} (token {template.eos_id}) closes no document in these token "
            "files; data.tokenizer, data.eos_token or data.token_dtype is not the one that they were written with"
        )


def _join_split(template: ShardTask, split: str, *, records: list[ShardRecord]) -> SplitEntry:
    """Join the indices of all shards into one, and return the split's entry in the manifest."""
    files = [_token_file(template, split, number, record=record) for number, record in enumerate(records)]
    for name, dtype in INDEX.items():
        path = template.folder / split / f"{name}.bin"
        start = 0
        with written_whole(path) as partial, open(partial, "wb") as output:
            for number, file in enumerate(files):
                index = map_array(template.folder / shard_path(number, f"{split}.{name}.bin"), dtype)
                output.write((index if name == "doc_ids" else index + start).tobytes())
                start += file.tokens
    sources: list[SourceRun] = []
    for record in records:
        for run in record.splits[split].sources:
            append_run(sources, run)
    index_sha256 = _index_hashes(template.folder, split)
    hashes = [file.sha256 for file in files]
    if template.is_tokens:  # all splits have the same files, so the hash must depend on the documents of this one
        hashes += [index_sha256["begins"], index_sha256["ends"]]
    return SplitEntry(
        documents=sum(record.splits[split].documents for record in records),
        tokens=sum(record.splits[split].tokens for record in records),
        tokens_sha256=hashes[0] if len(hashes) == 1 else sha256_text("\n".join(hashes)),
        index_sha256=index_sha256,
        files=files,
        sources=sources,
    )


def _token_file(template: ShardTask, split: str, number: int, *, record: ShardRecord) -> TokenFile:
    """Return the token file of one shard and split."""
    if record.file is not None:
        return TokenFile(record.file.path, record.file.size, record.file.tokens, record.file.sha256)
    tokens = record.splits[split].tokens
    num_bytes = tokens * np.dtype(template.dtype).itemsize
    return TokenFile(tokens_path(split, number), num_bytes, tokens, record.splits[split].sha256["tokens"])


def _index_hashes(folder: Path, split: str) -> dict[str, str]:
    return {name: sha256_file(folder / split / f"{name}.bin") for name in INDEX}


def _without_overlap(template: ShardTask, entries: dict[str, SplitEntry]) -> SplitEntry:
    """Remove the validation documents that share a sequence of tokens with the training split from the index.

    Their tokens stay in the token file, as those of another split do in files that are a source. Return the split's entry.
    """
    stores = {
        split: split_store(template.folder, split, entry=entry, dtype=template.dtype)
        for split, entry in entries.items()
    }
    held_out, entry = stores["validation"], entries["validation"]
    is_kept_G = ~documents_in_training(held_out, stores["train"])
    for name, array in (("begins", held_out.begins_G), ("ends", held_out.ends_G), ("doc_ids", held_out.doc_ids_G)):
        write_bytes(template.folder / "validation" / f"{name}.bin", array[is_kept_G].tobytes())
    sources: list[SourceRun] = []
    begin = 0
    for run, end in zip(entry.sources, held_out.source_ends.tolist(), strict=True):
        append_run(sources, SourceRun(run.source, int(is_kept_G[begin:end].sum())))
        begin = end
    index_sha256 = _index_hashes(template.folder, "validation")
    return dataclasses.replace(
        entry,
        documents=int(is_kept_G.sum()),
        tokens=int(held_out.lengths_G[is_kept_G].sum()),
        tokens_sha256=sha256_text("\n".join([entry.tokens_sha256, *index_sha256.values()])),
        index_sha256=index_sha256,
        sources=sources,
    )


def _manifest(
    template: ShardTask,
    records: list[ShardRecord],
    *,
    tokenizer_sha256: str,
    entries: dict[str, SplitEntry],
    removed: dict[str, int],
) -> dict[str, Any]:
    """Return the manifest without its entry on speed. ``removed``: documents of a split that share tokens with training."""
    return {
        "kind": "tokens",
        "format": FORMAT,
        "status": "complete",
        "made_from": "token files" if template.is_tokens else "text",
        "data": dataclasses.asdict(template.data),
        "dtype": template.dtype,
        "eos_id": template.eos_id,
        "vocab_size": template.vocab_size,
        "tokenizer_sha256": tokenizer_sha256,
        "documents": sum(entry.documents for entry in entries.values()),
        "tokens": sum(entry.tokens for entry in entries.values()),
        "bytes": sum(record.bytes for record in records),
        "skipped": dict(sum((Counter(record.skipped) for record in records), Counter())),
        "broken": [line for record in records for line in record.broken][:NAMED_RECORDS],
        "unclosed": [record.name for record in records if record.file is not None and record.file.unclosed],
        "removed": removed,
        "splits": {split: dataclasses.asdict(entry) for split, entry in entries.items()},
        "shards": [
            {"name": r.name, "documents": r.documents, "skipped": r.skipped, "seconds": r.seconds} for r in records
        ],
    }


def _speed(data: DataConfig, records: list[ShardRecord], *, seconds: dict[str, float]) -> dict[str, Any]:
    """Return the manifest's entry on speed, on which no hash depends.

    ``records`` are of the shards that this call wrote. Their documents, tokens and bytes are those of removed documents, too.
    """
    return {
        **{name: round(value, 3) for name, value in seconds.items()},
        "shards": len(records),
        "processes": usable_cores(),
        "documents": sum(record.documents for record in records),
        "tokens": sum(split.tokens for record in records for split in record.splits.values()),
        "bytes": sum(record.bytes for record in records),
    }
