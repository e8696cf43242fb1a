"""Text -> a prepared folder of token files, shard by shard, in as many processes as there are cores.

The result is the same, byte for byte, however many processes made it and however often they were killed. While it is
made, ``shards/`` holds the record and index of every finished shard; then the indices are put together and it goes.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any, Optional

import numpy as np

from olmo_sparsity.config import DataConfig, fingerprint
from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.files import partial_path, read_json, rename_into_place, sha256_file, write_json, write_text
from olmo_sparsity.storage.folders import exclusive_lock, make_folder
from olmo_sparsity.text import corpus
from olmo_sparsity.text.encoding import Job, shard_path, tokens_path
from olmo_sparsity.text.store import FORMAT, INDEX, TokenStore, is_prepared, map_array, open_store
from olmo_sparsity.text.vocabulary import (
    OLMO_TOKENIZERS,
    eos_id_of,
    read_tokenizer,
    token_texts,
    tokenizer_text,
    train_bpe,
    word_start_table,
)
from olmo_sparsity.text.workers import Record, make_shards, terminated_as_interrupted, usable_cores

__all__ = [
    "OLMO_TOKENIZERS",
    "TokenStore",
    "describe",
    "eos_id_of",
    "is_prepared",
    "open_store",
    "prepare",
    "read_tokenizer",
    "store_folder",
    "token_texts",
    "train_bpe",
    "word_start_table",
]


def store_folder(data: DataConfig, tokenizer_file: Optional[Path] = None) -> Path:
    """The folder of a corpus under a tokenizer: a readable name and a hash of all that its contents depend on."""
    relevant = dataclasses.asdict(data)
    del relevant["cache_dir"], relevant["processes"]
    if tokenizer_file is not None:
        relevant["tokenizer"] = sha256_file(tokenizer_file)
    elif Path(data.tokenizer).is_file():
        relevant["tokenizer"] = sha256_file(Path(data.tokenizer))
    source = re.sub(r"[^A-Za-z0-9]+", "-", Path(data.source).name).strip("-")[:40] or "text"
    tokens = "measured" if tokenizer_file else re.sub(r"[^A-Za-z0-9]+", "-", Path(data.tokenizer).stem).strip("-")[:20]
    return Path(data.cache_dir) / f"{source}-{tokens}-{fingerprint(FORMAT, relevant, corpus.source_fingerprint(data))}"


def prepare(data: DataConfig, tokenizer_file: Optional[Path] = None) -> Path:
    """Writes the token files of a corpus, or finds them written; returns their folder.

    With ``tokenizer_file`` (text to measure a trained model on) every document goes into one split, ``measured``;
    otherwise into ``train`` and ``validation``. Interrupted, it loses the shards in flight. Of several processes one
    prepares; the others wait for it. A script that calls this with a source of several files begins, like every one that
    starts processes, with ``if __name__ == "__main__":``.

    Raises:
        UserError: the source or the tokenizer is not usable.
        KeyboardInterrupt: on Ctrl-C and SIGTERM.
    """
    folder = store_folder(data, tokenizer_file)
    if not is_prepared(folder) or (folder / "shards").exists():
        with terminated_as_interrupted(), exclusive_lock(folder.with_name(f"{folder.name}.lock")):
            if not is_prepared(folder):  # by the one that was waited for
                _prepare(data, folder, tokenizer_file)
            if (folder / "shards").exists():
                shutil.rmtree(folder / "shards")
    return folder


def describe(folder: Path) -> list[str]:
    """Lines that say what a finished preparation holds, how fast it was made and what it left out."""
    manifest = read_json(folder / "manifest.json")
    said = [
        f"{folder / split}: {entry['documents']:,} documents, {entry['tokens']:,} tokens"
        for split, entry in manifest["splits"].items()
    ]
    speed = manifest["speed"]
    seconds = max(speed["seconds"] - speed["tokenizer_seconds"], 1e-3)
    said.append(
        f"{manifest['documents']:,} documents, {manifest['tokens']:,} tokens from {manifest['bytes'] / 1e6:,.1f} MB"
    )
    if speed["shards"]:
        said[-1] += f"; {speed['bytes'] / seconds / 1e6:,.1f} MB/s, {speed['tokens'] / seconds:,.0f} tokens/s"
    said += [f"skipped: {count:,} {reason} records" for reason, count in manifest["skipped"].items()]
    said += [f"{name}: its last document has no EOS; it counts as one" for name in manifest["unclosed"]]
    return said


def _prepare(data: DataConfig, folder: Path, tokenizer_file: Optional[Path]) -> None:
    splits = ("train", "validation") if tokenizer_file is None else ("measured",)
    made_here = not folder.exists()
    try:
        _write_store(data, folder, splits, tokenizer_file)
    except UserError:
        # A source that failed at once leaves nothing behind; shards that are done stay, to go on from.
        if made_here and folder.exists() and not _has_shards(folder):
            shutil.rmtree(folder)
        raise


def _has_shards(folder: Path) -> bool:
    return any(path.stat().st_size for path in (folder / "shards").glob("*.doc_ids.bin"))


def _token_dtype(data: DataConfig, vocab_size: int) -> str:
    if data.token_dtype == "uint16" and vocab_size > 2**16:
        raise UserError(f"data.token_dtype = uint16: the tokenizer has {vocab_size} entries, too many for 16 bits")
    if data.token_dtype == "auto":
        return "<u2" if vocab_size <= 2**16 else "<u4"
    return {"uint16": "<u2", "uint32": "<u4"}[data.token_dtype]


def _write_store(data: DataConfig, folder: Path, splits: tuple[str, ...], tokenizer_file: Optional[Path]) -> None:
    begun = time.perf_counter()
    shards = corpus.shards_of(data)
    tokenizer_path = folder / "tokenizer.json"
    if not tokenizer_path.is_file():
        text = tokenizer_file.read_text(encoding="utf-8") if tokenizer_file else tokenizer_text(data)
        make_folder(folder)
        write_text(tokenizer_path, text)
    tokenizer = read_tokenizer(tokenizer_path)
    vocab_size = tokenizer.get_vocab_size()
    for name in ("shards", *splits):
        make_folder(folder / name)
    _remove_partials(folder, splits)
    template = Job(
        data=data,
        folder=folder,
        number=0,
        shard=shards[0],
        holds_tokens=corpus.holds_tokens(data),
        splits=splits,
        dtype=_token_dtype(data, vocab_size),
        eos_id=eos_id_of(tokenizer, data.eos_token),
        vocab_size=vocab_size,
        max_documents=data.max_documents,
        max_tokens=data.max_tokens,
        threads=1,
    )
    tokenized = time.perf_counter()
    records, done_here = make_shards(template, shards)
    documents = sum(record["documents"] for record in records)
    if documents == 0:
        raise UserError(f"data.source = {data.source}: it holds no document with text in it")
    if template.holds_tokens and not any(record["file"]["closed"] for record in records):
        shutil.rmtree(folder / "shards")  # there is nothing in it to go on from
        raise UserError(
            f"data.source = {data.source}: {data.eos_token!r} (token {template.eos_id}) closes no document in these token "
            "files; data.tokenizer or data.eos_token is not theirs, or data.token_dtype not their size"
        )
    for number in range(len(records), len(shards)):  # begun before it was known that the limit lies before them
        for split in splits:
            (folder / tokens_path(split, number)).unlink(missing_ok=True)
    files = {split: _files_of(template, split, records) for split in splits}
    entries = {split: _join_split(template, split, records, files[split]) for split in splits}
    now = time.perf_counter()
    manifest = {
        "kind": "tokens",
        "format": FORMAT,
        "status": "complete",
        "made_from": "token files" if template.holds_tokens else "text",
        "data": dataclasses.asdict(data),
        "dtype": template.dtype,
        "eos_id": template.eos_id,
        "vocab_size": vocab_size,
        "tokenizer_sha256": sha256_file(tokenizer_path),
        "documents": documents,
        "tokens": sum(entry["tokens"] for entry in entries.values()),
        "bytes": sum(record["bytes"] for record in records),
        "skipped": dict(sum((Counter(record["skipped"]) for record in records), Counter())),
        "unclosed": [record["name"] for record in records if record.get("file", {}).get("unclosed")],
        "splits": entries,
        "shards": [{key: record[key] for key in ("name", "documents", "skipped", "seconds")} for record in records],
        # Of the shards that were made since the last interruption; no hash depends on these.
        "speed": {
            "seconds": round(now - begun, 3),
            "tokenizer_seconds": round(tokenized - begun, 3),
            "shards": len(done_here),
            "processes": data.processes or usable_cores(),
            "documents": sum(record["documents"] for record in done_here),
            "tokens": sum(entry["tokens"] for record in done_here for entry in record["splits"].values()),
            "bytes": sum(record["bytes"] for record in done_here),
        },
    }
    _remove_partials(folder, splits)
    write_json(folder / "manifest.json", manifest)


def _remove_partials(folder: Path, splits: tuple[str, ...]) -> None:
    """Removes what processes that were ended left half written; who holds the lock knows that none is at work."""
    for name in ("", "shards", *splits):
        for path in (folder / name).glob(".*.partial"):
            path.unlink(missing_ok=True)


def _files_of(template: Job, split: str, records: list[Record]) -> list[dict[str, Any]]:
    """The token files of a split, in order: path, bytes, tokens, hash."""
    if template.holds_tokens:
        return [
            {
                key: record["file"][of]
                for key, of in (("path", "path"), ("bytes", "size"), ("tokens", "tokens"), ("sha256", "sha256"))
            }
            for record in records
        ]
    itemsize = np.dtype(template.dtype).itemsize
    return [
        {
            "path": tokens_path(split, number),
            "bytes": record["splits"][split]["tokens"] * itemsize,
            "tokens": record["splits"][split]["tokens"],
            "sha256": record["splits"][split]["sha256"]["tokens"],
        }
        for number, record in enumerate(records)
    ]


def _sha256_of(hashes: list[str]) -> str:
    return hashlib.sha256("\n".join(hashes).encode()).hexdigest()


def _join_split(template: Job, split: str, records: list[Record], files: list[dict[str, Any]]) -> dict[str, Any]:
    """Puts the indices of all shards into one, and returns the split's entry in the manifest."""
    for name, dtype in INDEX.items():
        path = template.folder / split / f"{name}.bin"
        partial, start = partial_path(path), 0
        with open(partial, "wb") as file:
            for number, entry in enumerate(files):
                index = map_array(shard_path(template.folder, number, f"{split}.{name}.bin"), dtype)
                file.write((index if name == "doc_ids" else index + start).tobytes())
                start += entry["tokens"]
        rename_into_place(partial, path)
    hashes = [file["sha256"] for file in files]
    if template.holds_tokens:  # the files are those of every split: which documents of them this one holds counts, too
        hashes += [sha256_file(template.folder / split / f"{name}.bin") for name in ("begins", "ends")]
    sources: list[list[Any]] = []
    for name, count in (run for record in records for run in record["splits"][split]["sources"]):
        if not sources or sources[-1][0] != name:
            sources.append([name, 0])
        sources[-1][1] += count
    return {
        "documents": sum(record["splits"][split]["documents"] for record in records),
        "tokens": sum(record["splits"][split]["tokens"] for record in records),
        "tokens_sha256": hashes[0] if len(hashes) == 1 else _sha256_of(hashes),
        "files": files,
        "sources": sources,
    }
