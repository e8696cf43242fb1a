from __future__ import annotations

import dataclasses
import importlib.metadata
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError, Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Messages, write_corpus
from olmo.data.memmap_dataset import MemMapDataset

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, write_json
from olmo_sparsity.text import corpus, encoding, preparation, scheduling, vocabulary
from olmo_sparsity.text.preparation import describe, prepare, store_folder
from olmo_sparsity.text.records import ShardRecord
from olmo_sparsity.text.shard_writer import ShardTask
from olmo_sparsity.text.store import TokenFiles, TokenStore, is_prepared, open_store
from olmo_sparsity.text.verification import verify_prepared
from olmo_sparsity.text.vocabulary import read_tokenizer, tokenizer_text, train_bpe

SPLITS = ("train", "validation")


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_corpus(tmp_path_factory.mktemp("bpe") / "words.jsonl", 100, seed=1)
    texts = (json.loads(line)["text"] for line in path.read_text().splitlines())
    train_bpe(texts, 400, eos_token="<|endoftext|>").save(str(path.with_name("tokenizer.json")))
    return path.with_name("tokenizer.json")


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    source = write_corpus(tmp_path / "words.jsonl", 300, seed=5)
    return DataConfig(source=str(source), tokenizer="bpe:300", cache_dir=str(tmp_path / "cache"), validation_percent=30)


@pytest.fixture
def shards(tmp_path: Path, tokenizer_file: Path) -> DataConfig:
    """Five files of 40, 41, ... documents, one process."""
    (tmp_path / "texts").mkdir()
    for number, name in enumerate("abcde"):
        write_corpus(tmp_path / "texts" / f"{name}.jsonl", 40 + number, seed=number)
    return DataConfig(
        source=str(tmp_path / "texts"),
        tokenizer=str(tokenizer_file),
        cache_dir=str(tmp_path / "cache"),
        validation_percent=30.0,
        processes=1,
    )


def in_other_cache(data: DataConfig, name: str, **changes: Any) -> DataConfig:
    return dataclasses.replace(data, cache_dir=f"{data.cache_dir}-{name}", **changes)


def documents_of(store: TokenStore) -> list[list[int]]:
    return [store.tokens[a:b].tolist() for a, b in zip(store.begins_G.tolist(), store.ends_G.tolist(), strict=True)]


def files_of(folder: Path) -> dict[str, bytes]:
    """Return the content of all files of a prepared folder, except for its manifest."""
    names = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.is_file())
    return {str(name): (folder / name).read_bytes() for name in names if name.name != "manifest.json"}


def comparable_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest without times and other values that differ between equal preparations."""
    manifest = read_json(folder / "manifest.json")
    del manifest["speed"], manifest["data"]
    for shard in manifest["shards"]:
        del shard["seconds"]
    return manifest


def test_a_text_that_differs_in_anything_has_a_folder_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Name, size and time of each file, every key that the tokens depend on, and what the tokenizer's file holds."""
    folder, tokenizer, other = tmp_path / "texts", tmp_path / "own tokenizer.json", tmp_path / "run" / "tokenizer.json"
    for path in (folder, other.parent):
        path.mkdir()
    for path, words in ((folder / "a.txt", "one"), (folder / "b.txt", "two"), (tokenizer, "{}"), (other, "{}")):
        path.write_text(words)
    data = DataConfig(source=str(folder), tokenizer=str(tokenizer), cache_dir=str(tmp_path / "cache"))
    prepared = store_folder(data)
    assert prepared.parent == tmp_path / "cache"
    assert re.fullmatch("texts-own-tokenizer-[0-9a-f]{12}", prepared.name)
    (tmp_path / f"{'t' * 30}.json").write_text("{}")
    for source, words, of, name in (
        ("\u6cb3", "text", tokenizer, "own-tokenizer"),
        ("s" * 50, "s" * 40, tmp_path / f"{'t' * 30}.json", "t" * 20),
    ):
        (tmp_path / source).mkdir()
        (tmp_path / source / "a.txt").write_text("one")
        named = store_folder(dataclasses.replace(data, source=str(tmp_path / source), tokenizer=str(of)))
        assert re.fullmatch(f"{words}-{name}-[0-9a-f]{{12}}", named.name)
    assert store_folder(dataclasses.replace(data, processes=3)) == prepared
    assert store_folder(dataclasses.replace(data, cache_dir="x")) == Path("x") / prepared.name
    assert re.fullmatch("texts-measured-[0-9a-f]{12}", store_folder(data, other).name)
    builtin, c4 = (dataclasses.replace(data, source=source) for source in ("builtin", "c4"))
    folders = [prepared, store_folder(data, other), store_folder(builtin), store_folder(c4)]
    changes = {
        "eos_token": "x",
        "validation_percent": 20.0,
        "max_documents": 5,
        "max_tokens": 5,
        "tokenizer": "bpe:400",
    }
    folders += [store_folder(dataclasses.replace(data, **{key: value})) for key, value in changes.items()]  # type: ignore[arg-type]
    folders.append(store_folder(dataclasses.replace(c4, c4_revision="0" * 40)))
    other.write_text("{ }")
    folders.append(store_folder(data, other))
    times = (folder / "b.txt").stat()
    os.utime(folder / "b.txt", ns=(times.st_atime_ns, times.st_mtime_ns + 1))
    folders.append(store_folder(data))
    (folder / "b.txt").write_text("longer")
    os.utime(folder / "b.txt", ns=(times.st_atime_ns, times.st_mtime_ns))
    folders.append(store_folder(data))
    (folder / "b.txt").write_text("two")
    os.utime((folder / "b.txt").rename(folder / "c.txt"), ns=(times.st_atime_ns, times.st_mtime_ns))
    folders.append(store_folder(data))
    (folder / "c.txt").rename(folder / "b.txt")
    assert store_folder(data) == prepared
    tokenizer.write_text("{ }")
    folders.append(store_folder(data))
    monkeypatch.setattr(importlib.metadata, "version", lambda package: "0.0")  # of the package with the built-in text
    folders.append(store_folder(builtin))
    assert len(set(folders)) == len(folders) == 16


# --- text ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["one file", "five files"])
def test_the_store_holds_every_document_once_closed_by_eos(kind: str, data: DataConfig, shards: DataConfig) -> None:
    data = data if kind == "one file" else shards
    folder = prepare(data)
    tokenizer, eos = read_tokenizer(folder / "tokenizer.json"), read_json(folder / "manifest.json")["eos_id"]
    expected: dict[str, list[corpus.Document]] = {split: [] for split in SPLITS}
    for document in corpus.read_documents(data):
        expected[corpus.split_of(document, data.validation_percent)].append(document)
    ids = {}
    for split, documents in expected.items():
        store = open_store(folder, split)
        token_lists = documents_of(store)
        assert all(document[-1] == eos and eos not in document[:-1] for document in token_lists)
        assert [tokenizer.decode(document[:-1]) for document in token_lists] == [
            document.text for document in documents
        ]
        assert store.doc_ids_G.tolist() == [document.doc_id for document in documents]
        assert store.source_of(np.arange(store.num_documents)) == [document.source for document in documents]
        assert store.lengths_G.tolist() == list(map(len, token_lists))
        places = np.arange(len(store.tokens))
        assert store.document_of(places).tolist() == np.repeat(np.arange(len(token_lists)), store.lengths_G).tolist()
        ids[split] = set(store.doc_ids_G.tolist())
    assert not ids["train"] & ids["validation"]


@pytest.mark.parametrize("changed", ["characters", "documents", "threads"])
def test_batches_and_threads_do_not_change_the_result(
    changed: str, data: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prepare(in_other_cache(data, "expected", processes=1))
    if changed == "threads":
        data = dataclasses.replace(data, processes=3)
    monkeypatch.setattr(encoding, "BATCH_CHARACTERS", 700 if changed != "documents" else 10**9)
    monkeypatch.setattr(encoding, "BATCH_RECORDS", 7 if changed == "documents" else 10**9)
    again = prepare(data)
    assert files_of(again) == files_of(expected)
    assert comparable_manifest(again) == comparable_manifest(expected)


def test_the_result_does_not_depend_on_the_number_of_processes(shards: DataConfig) -> None:
    expected, folder = prepare(shards), prepare(in_other_cache(shards, "two", processes=2))
    assert files_of(folder) == files_of(expected)
    assert comparable_manifest(folder) == comparable_manifest(expected)
    assert folder.name == expected.name
    assert not (folder / "shards").exists()


def test_olmo_reads_every_token_file(shards: DataConfig) -> None:
    folder = prepare(shards)
    entry = read_json(folder / "manifest.json")["splits"]["train"]
    paths = [folder / file["path"] for file in entry["files"]]
    assert len(paths) == 5
    store = open_store(folder, "train")
    theirs = MemMapDataset(*paths, chunk_size=16, memmap_dtype=np.uint16)
    assert len(theirs) == sum(file["tokens"] // 16 for file in entry["files"])  # it drops the rest of each file
    chunk = 0
    for start, file in zip(store.tokens.starts.tolist(), entry["files"], strict=True):  # type: ignore[union-attr]
        for at in range(start, start + file["tokens"] - 15, 16):
            assert theirs[chunk]["input_ids"].tolist() == store.tokens[at : at + 16].tolist()
            chunk += 1


def test_token_files_behave_like_one_array() -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(1000, size=60).astype(np.uint16)
    files = TokenFiles(np.split(array, [0, 13, 13, 40, 60]))
    assert (len(files), files.dtype) == (60, np.uint16)
    for begin in range(-3, 63):
        for end in range(-3, 63):
            assert files[begin:end].tolist() == array[begin:end].tolist()
    for index in (np.array(59), np.arange(60), rng.integers(60, size=(4, 3, 2)), np.zeros((0, 3), dtype=np.int64)):
        assert files[index].shape == index.shape
        assert files[index].dtype == np.uint16
        assert np.array_equal(files[index], array[index])
        assert np.array_equal(files.take(index), array.take(index))
    assert files[np.int64(13)] == array[13]
    for outside in (60, -1):
        with pytest.raises(IndexError, match="outside"):
            files[np.array([0, outside])]
    with pytest.raises(TypeError, match="in pieces"):
        np.asarray(files)


def test_manifest_and_description_report_counts_and_speed(shards: DataConfig) -> None:
    source = Path(shards.source) / "c.jsonl"
    source.write_text('{broken\n{"text": " "}\n' + source.read_text() + "{broken\n")
    folder = prepare(dataclasses.replace(shards, on_error="skip"))
    manifest = read_json(folder / "manifest.json")
    texts = [d.text for d in corpus.read_documents(dataclasses.replace(shards, on_error="skip"))]
    assert manifest["documents"] == len(texts) == 210
    assert manifest["tokens"] == sum(len(open_store(folder, split).tokens) for split in SPLITS)
    assert manifest["bytes"] == manifest["speed"]["bytes"] == sum(len(text.encode()) for text in texts)
    assert manifest["skipped"] == {"broken": 2, "empty": 1} and manifest["made_from"] == "text"
    assert [shard["documents"] for shard in manifest["shards"]] == [40, 41, 42, 43, 44]
    message = "\n".join(describe(folder))
    for words in ("MB/s", "tokens/s", "skipped: 1 empty records"):
        assert words in message
    last = source.read_text().count("\n")
    lines = message.split("\n")
    for line, split in zip(lines, SPLITS, strict=False):
        store = open_store(folder, split)
        assert line == f"{folder / split}: {store.num_documents:,} documents, {len(store.tokens):,} tokens"
    assert lines[2].startswith(f"210 documents, {manifest['tokens']:,} tokens from 0.0 MB; ")
    assert not [line for line in lines if "more" in line]  # all broken ones are named
    named = lines[lines.index("skipped: 2 broken records") + 1 :][:2]
    assert [line.partition(": ")[0] for line in named] == [f"{source}:1", f"{source}:{last}"]
    assert all("not JSON" in line for line in named)
    speed = {"seconds": 5.0, "tokenizer_seconds": 3.0, "shards": 2, "tokens": 7000, "bytes": 9_000_000}
    for number, words in (
        (2, "from 1,234.5 MB; 4.5 MB/s, 3,500 tokens/s"),
        (0, "from 1,234.5 MB"),
    ):  # of 2 seconds; of no shard
        write_json(folder / "manifest.json", {**manifest, "bytes": 1_234_500_000, "speed": {**speed, "shards": number}})
        assert describe(folder)[2].endswith(words)
    write_json(folder / "manifest.json", {key: value for key, value in manifest.items() if key != "speed"})
    with pytest.raises(UserError, match="speed"):
        describe(folder)


def test_of_many_broken_records_the_first_are_named(
    shards: DataConfig, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of all shards together, and each shard keeps no more of its own."""
    first, source = (Path(shards.source) / f"{name}.jsonl" for name in "bc")
    first.write_text("{broken\n" * 2 + first.read_text())
    source.write_text("{broken\n" * 25 + source.read_text())
    (Path(shards.source) / "notes.csv").write_text("a,b")
    skipping = dataclasses.replace(shards, on_error="skip")
    kept = interrupted(skipping, monkeypatch) / "shards"
    records = [read_json(kept / f"{number:05d}.record.json") for number in range(5)]
    assert [len(record["broken"]) for record in records] == [0, 2, 10, 0, 0]
    assert [record["skipped"] for record in records[1:3]] == [{"broken": 2}, {"broken": 25}]
    with caplog.at_level("INFO", logger="olmo_sparsity"):
        lines = describe(prepare(skipping))
    begin = lines.index("skipped: 27 broken records") + 1
    assert [line.partition(": ")[0] for line in lines[begin : begin + 10]] == [
        *(f"{first}:{n}" for n in (1, 2)),
        *(f"{source}:{n}" for n in range(1, 9)),
    ]
    assert lines[begin + 10] == "and 17 more"
    assert f"{shards.source}: files read: 5 .jsonl; left out: 1 .csv" in caplog.messages
    last = describe(prepare(in_other_cache(shards, "exactly", on_error="skip", source=str(of_ten(first.parent)))))
    begin = last.index("skipped: 10 broken records") + 1
    assert len(last[begin:]) == 10 and not [line for line in last if "more" in line]


def of_ten(folder: Path) -> Path:
    """Return a file in a folder of its own with ten broken records, as many as are named."""
    path = folder.parent / "ten" / "ten.jsonl"
    path.parent.mkdir()
    path.write_text("{broken\n" * 10 + '{"text": "words"}\n')
    return path


def test_builtin_validation_text_shares_no_sequence_with_training_text(
    data: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Made-up texts stand for the built-in ones; a third of them quote others."""
    rng = np.random.default_rng(0)
    texts = [" ".join(f"w{number}" for number in rng.integers(100, 999, 20)) for _ in range(150)]
    texts += [f"{i} {texts[i]} {texts[i + 1]}" for i in range(0, 140, 2)]
    made = [corpus.make_document(text, "quotes" if n >= 150 else "texts") for n, text in enumerate(texts)]
    monkeypatch.setattr(corpus, "_builtin_documents", lambda: iter(made))
    folder = prepare(dataclasses.replace(data, source="builtin", processes=1))
    train, held_out = (open_store(folder, split) for split in SPLITS)
    trained = {tuple(tokens[i : i + 13]) for tokens in documents_of(train) for i in range(len(tokens) - 12)}

    def overlaps(tokens: list[int]) -> bool:
        return any(tuple(tokens[i : i + 13]) in trained for i in range(len(tokens) - 13))  # without EOS

    tokenizer = read_tokenizer(folder / "tokenizer.json")
    of_split = [document for document in made if corpus.split_of(document, 30) == "validation"]
    kept = [document for document in of_split if not overlaps([*tokenizer.encode(document.text).ids, 0])]
    assert 0 < len(kept) < len(of_split) - 10
    assert held_out.doc_ids_G.tolist() == [document.doc_id for document in kept]
    assert held_out.source_of(np.arange(held_out.num_documents)) == [document.source for document in kept]
    assert not any(overlaps(tokens) for tokens in documents_of(held_out))
    manifest = read_json(folder / "manifest.json")
    entry = manifest["splits"]["validation"]
    assert (entry["documents"], entry["tokens"]) == (len(kept), held_out.lengths_G.sum())
    assert manifest["removed"] == {"validation": len(of_split) - len(kept)}
    number = train.num_documents + len(kept)
    assert (manifest["documents"], manifest["tokens"]) == (number, len(train.tokens) + held_out.lengths_G.sum())
    (total,) = [line for line in describe(folder) if "MB/s" in line]
    assert total.startswith(f"{number} documents, {manifest['tokens']:,} tokens from 0.0 MB; ")
    assert total.endswith(" tokens/s; MB and speeds count removed documents, too")
    assert describe(folder)[-1] == (
        f"removed from validation: {len(of_split) - len(kept)} documents that share 13 consecutive tokens with the training split"
    )
    # The token files of both splits are whole; of validation the hash depends on which documents are left.
    hashes = {split: manifest["splits"][split] for split in SPLITS}
    assert [of["tokens_sha256"] == of["files"][0]["sha256"] for of in hashes.values()] == [True, False]
    assert train.num_documents + len(of_split) == len(made)


# --- interruptions ---------------------------------------------------------------------------------------------------

# Stops in the middle of one file, in whichever process reads it.
STUCK = """
import signal, sys, time
from olmo_sparsity.cli import app as cli
from olmo_sparsity.text import corpus

read = corpus.read_shard

def read_until_stuck(data, shard):
    for number, item in enumerate(read(data, shard)):
        if shard.name == "c.jsonl" and number == 5:
            time.sleep(60)
        yield item

corpus.read_shard = read_until_stuck
if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts jobs in the background with SIGINT ignored
    cli.main()
"""


@pytest.mark.parametrize(
    ("number", "processes"), [(signal.SIGKILL, 2), (signal.SIGINT, 2), (signal.SIGTERM, 2), (signal.SIGTERM, 1)]
)
def test_a_kill_loses_the_shards_in_flight(
    number: signal.Signals, processes: int, shards: DataConfig, tmp_path: Path
) -> None:
    expected = prepare(in_other_cache(shards, "expected"))
    script = tmp_path / "stuck.py"
    script.write_text(STUCK)
    keys = ("source", "tokenizer", "cache_dir", "validation_percent")
    overrides = [f"data.{key}={getattr(shards, key)}" for key in keys]
    process = subprocess.Popen(
        [sys.executable, str(script), "prepare", *overrides, f"data.processes={processes}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    folder = store_folder(shards)
    done = "ab" if processes == 1 else "abde"
    while process.poll() is None and len(list(folder.glob("shards/*.record.json"))) < len(done):
        time.sleep(0.01)
    time.sleep(0.05)
    if number != signal.SIGKILL:
        os.killpg(process.pid, number)  # as a terminal does, and a batch system
    else:
        process.send_signal(number)
    output, _ = process.communicate(timeout=60)  # until the last process that could write to it has ended
    assert process.returncode == (-number if number == signal.SIGKILL else 130), output
    assert ("continues from here" in output) == (number != signal.SIGKILL)
    assert "Traceback" not in output
    with pytest.raises(UserError, match="no such file"):
        open_store(folder, "train")
    finished = {path: path.stat().st_mtime_ns for path in folder.glob("train/tokens-*.bin")}
    assert {path.name for path in finished} == {f"tokens-{'abcde'.index(name):05d}.bin" for name in done}
    again = prepare(shards)
    assert again == folder
    assert {path: path.stat().st_mtime_ns for path in finished} == finished
    assert files_of(again) == files_of(expected)
    assert comparable_manifest(again) == comparable_manifest(expected)
    assert read_json(again / "manifest.json")["speed"]["shards"] == 5 - len(done)


@pytest.mark.parametrize("when", ["before the index", "before the manifest"])
def test_killed_when_all_shards_are_done_nothing_is_read_again(
    when: str, shards: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    expected = prepare(in_other_cache(shards, "expected"))
    with monkeypatch.context() as patched:
        patched.setattr(preparation, "_join_split" if when == "before the index" else "write_json", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(shards)
    with monkeypatch.context() as patched:
        patched.setattr(corpus, "read_shard", killed)
        folder = prepare(shards)
    assert files_of(folder) == files_of(expected)
    assert comparable_manifest(folder) == comparable_manifest(expected)


def interrupted(data: DataConfig, monkeypatch: pytest.MonkeyPatch, tokenizer_file: Path | None = None) -> Path:
    """Prepare until all shards are finished, and no further; return the folder."""

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(preparation, "_join_split", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(data, tokenizer_file)
    return store_folder(data, tokenizer_file)


def zero_half(path: Path) -> None:
    """What a crash of the machine leaves of a file that was not yet on the disk; its size stays."""
    size = path.stat().st_size
    path.write_bytes(path.read_bytes()[: size // 2] + bytes(size - size // 2))


@pytest.mark.parametrize(
    "name",
    [
        "train/tokens-00001.bin",
        "shards/00001.train.ends.bin",
        "shards/00001.validation.doc_ids.bin",
        "shards/00001.record.json",
    ],
)
@pytest.mark.parametrize("change", [zero_half, Path.unlink])
def test_a_finished_shard_that_was_damaged_is_prepared_again(
    name: str, change: Callable[[Path], None], shards: DataConfig, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prepare(in_other_cache(shards, "expected"))
    folder = interrupted(shards, monkeypatch)
    change(folder / name)
    prepare(shards)
    assert files_of(folder) == files_of(expected)
    assert comparable_manifest(folder) == comparable_manifest(expected)
    assert read_json(folder / "manifest.json")["speed"]["shards"] == 1
    unfinished = change is Path.unlink and name.endswith("record.json")
    again = "; the shard is prepared again"
    assert [line.startswith(f"{folder / name}: ") and line.endswith(again) for line in messages] == [True] * (
        not unfinished
    )
    if not name.endswith("record.json"):
        assert list(messages) == [f"{folder / name}: missing, or changed since its shard was finished{again}"]
    verify_prepared(folder)


AS_WRITTEN = "not as it was written when its shard was finished"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"documents": -5}, "key documents: expected int >= 0"),
        ({"documents": 42}, AS_WRITTEN),
        ({"cut": True}, AS_WRITTEN),
        ({"skipped": {"empty": 3}}, AS_WRITTEN),
        ({"content_sha256": "0"}, AS_WRITTEN),
        ({"bytes": "many"}, "key bytes: expected int, got str"),
        ({"splits": {}}, "key splits: expected object of length >= 1"),
        ({"limits": [None]}, "key limits: expected array of length 2"),
    ],
)
def test_a_record_with_a_wrong_value_is_named_in_one_line(
    change: dict[str, Any],
    message: str,
    shards: DataConfig,
    messages: Messages,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = interrupted(shards, monkeypatch) / "shards" / "00001.record.json"
    write_json(path, {**read_json(path), **change})
    folder = prepare(shards)
    assert read_json(folder / "manifest.json")["documents"] == 210
    (line,) = messages
    assert line.startswith(f"{path}: {message}")
    assert line.endswith("; the shard is prepared again")


def test_a_worker_that_is_killed_ends_the_preparation_with_one_line(shards: DataConfig) -> None:
    """A batch system kills whoever takes too much memory. What is finished stays."""
    ended = threading.Event()

    def kill_one() -> None:
        while not ended.is_set():
            for child in multiprocessing.active_children():
                os.kill(child.pid or 0, signal.SIGKILL)
                return
            time.sleep(0.001)

    killer = threading.Thread(target=kill_one)
    killer.start()
    try:
        said = "run the same command again, it continues; set data.processes to a smaller number if it happens again$"
        with pytest.raises(UserError, match=rf"^a process that tokenized was killed, .*; {said}"):
            prepare(dataclasses.replace(shards, processes=2))
    finally:
        ended.set()
        killer.join()
    assert files_of(prepare(shards)) == files_of(prepare(in_other_cache(shards, "expected")))


def test_a_script_whose_workers_would_prepare_the_text_again_is_told_so(shards: DataConfig, tmp_path: Path) -> None:
    """They import the script, and would wait without end for the lock that it holds."""
    script = tmp_path / "unguarded.py"
    settings = {**dataclasses.asdict(shards), "processes": 2}
    script.write_text(
        "from olmo_sparsity.config import DataConfig\n"
        "from olmo_sparsity.text.preparation import prepare\n"
        f"prepare(DataConfig(**{settings!r}))\n"
    )
    ended = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1
    assert 'put what the script does under `if __name__ == "__main__":`' in ended.stderr


@pytest.mark.parametrize("kind", ["bpe", "file", "measured"])
def test_the_tokenizer_of_an_interrupted_preparation_is_the_one_that_it_began_with(
    kind: str, shards: DataConfig, tokenizer_file: Path, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = dataclasses.replace(shards, tokenizer="bpe:300") if kind == "bpe" else shards
    given = tokenizer_file if kind == "measured" else None
    expected = prepare(in_other_cache(data, "expected"), given)
    folder = interrupted(data, monkeypatch, given)
    path = folder / "tokenizer.json"
    content = read_json(path)
    vocabulary = content["model"]["vocab"]
    first, second = list(vocabulary)[-2:]
    vocabulary[first], vocabulary[second] = vocabulary[second], vocabulary[first]
    write_json(path, content)
    prepare(data, given)
    assert files_of(folder) == files_of(expected)
    assert comparable_manifest(folder) == comparable_manifest(expected)
    assert read_json(folder / "manifest.json")["speed"]["shards"] == 0
    assert list(messages) == [f"{path}: not the tokenizer that this preparation began with; it is written again"]


def test_shards_without_the_hash_of_their_tokenizer_are_prepared_again(
    shards: DataConfig, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = prepare(in_other_cache(shards, "expected"))
    folder = interrupted(shards, monkeypatch)
    (folder / "shards" / "tokenizer.sha256").unlink()
    prepare(shards)
    assert files_of(folder) == files_of(expected)
    assert read_json(folder / "manifest.json")["speed"]["shards"] == 5
    assert "it begins anew" in "".join(messages)


def test_one_process_prepares_and_the_others_wait(
    data: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one is killed while it writes. Another one continues, and the rest find the work done."""
    really_write = preparation._prepare
    begun = tmp_path / "begun"

    def write(*arguments: object, **options: object) -> None:
        with open(begun, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        if len(begun.read_text().split()) == 1:
            time.sleep(60)  # until it is killed
        really_write(*arguments, **options)  # type: ignore[arg-type]
        time.sleep(0.3)  # a process that does not wait would start meanwhile

    monkeypatch.setattr(preparation, "_prepare", write)
    children = []
    for _ in range(4):
        child = os.fork()
        if child == 0:
            try:
                open_store(prepare(data), "train")
                os._exit(0)
            except BaseException as error:
                os.write(2, f"{error!r}\n".encode())
                os._exit(1)
        children.append(child)
    while not begun.is_file() or "\n" not in begun.read_text():
        time.sleep(0.02)
    time.sleep(0.3)
    first = int(begun.read_text().split()[0])
    assert len(begun.read_text().split()) == 1
    os.kill(first, signal.SIGKILL)
    ended = {child: os.waitpid(child, 0)[1] for child in children}
    assert {child for child, status in ended.items() if status != 0} == {first}
    assert len(begun.read_text().split()) == 2


@pytest.fixture
def worker_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Worker processes become threads, which start at once. Other tests cover processes."""

    @contextmanager
    def started(num_processes: int, num_shards: int) -> Iterator[Any]:
        progress = [0] * (3 * num_shards)
        with ThreadPoolExecutor(max(num_processes, 1)) as threads:
            yield lambda task: threads.submit(scheduling.write_shard, task, progress)

    monkeypatch.setattr(scheduling, "_started_workers", started)


class Written(Future[ShardRecord]):
    """A shard that is written when its record is asked for."""

    def __init__(self, write: Callable[[], ShardRecord]) -> None:
        super().__init__()
        self.write = write

    def result(self, timeout: float | None = None) -> ShardRecord:
        if self.cancelled():
            raise CancelledError
        return self.write()


@pytest.fixture
def workers(monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], list[tuple[ShardTask, Written]]]:
    """The numbers of processes that were asked for, and the shards that were given to them, which this process writes."""
    numbers: list[int] = []
    given: list[tuple[ShardTask, Written]] = []

    @contextmanager
    def started(num_processes: int, num_shards: int) -> Iterator[Any]:
        numbers.append(num_processes)

        def submit(task: ShardTask) -> Written:
            given.append((task, Written(lambda: scheduling.write_shard(task, [0] * (3 * num_shards)))))
            return given[-1][1]

        yield submit

    monkeypatch.setattr(scheduling, "_started_workers", started)
    return numbers, given


def test_shards_that_were_begun_behind_a_limit_leave_nothing(
    shards: DataConfig, workers: tuple[list[int], list[tuple[ShardTask, Written]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that has begun one writes it to its end."""
    monkeypatch.setattr(Written, "cancel", lambda self: self.write() is None)
    write_corpus(Path(shards.source) / "a.jsonl", 10)
    folder = prepare(dataclasses.replace(shards, processes=3, max_documents=60))
    assert [task.number for task, _ in workers[1]] == [0, 1, 2, 3, 4, 2]
    left = sorted(str(path.relative_to(folder)) for path in folder.rglob("tokens-*"))
    assert left == [f"{split}/tokens-{number:05d}.bin" for split in SPLITS for number in range(3)]


def test_shards_behind_one_that_can_be_read_at_the_second_try_are_written(
    shards: DataConfig, workers: tuple[list[int], list[tuple[ShardTask, Written]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The hub was away for a moment: the shard was read ahead, and may have been behind the limit."""
    asked = dataclasses.replace(shards, processes=3, max_documents=190)
    expected = prepare(in_other_cache(asked, "whole"))
    workers[1].clear()
    write, failures = scheduling.write_shard, [2]

    def written(task: ShardTask, progress: Any) -> ShardRecord:
        if task.number in failures:
            failures.remove(task.number)
            raise UserError("the hub cannot be reached")
        return write(task, progress)

    monkeypatch.setattr(scheduling, "write_shard", written)
    assert files_of(prepare(asked)) == files_of(expected)
    assert [(task.number, future.cancelled()) for task, future in workers[1]] == [
        (0, False), (1, False), (2, False), (3, True), (4, True), (2, False), (3, False), (4, False), (4, False),
    ]  # fmt: skip


# --- batches ---------------------------------------------------------------------------------------------------------


def test_a_few_batches_are_read_ahead_of_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that memory holds few of them, however fast the text is read; they come in order."""
    read: list[int] = []

    def batches(task: ShardTask) -> Iterator[Any]:
        for number in range(30):
            read.append(number)
            yield [number]

    monkeypatch.setattr(encoding, "_batches", batches)
    monkeypatch.setattr(encoding, "_encode", lambda tokenizer, items, **_: [10 * items[0]])
    monkeypatch.setattr(encoding, "read_tokenizer", lambda path: None)
    task: Any = SimpleNamespace(folder=Path("x"), dtype="<u2", eos_id=0, num_threads=2)
    with ThreadPoolExecutor(2) as pool:
        for number, (items, tokens) in enumerate(encoding._encoded_batches(task, pool)):
            assert (items, tokens) == ([number], [10 * number])
            assert len(read) <= number + 4
    assert number == 29


@pytest.mark.parametrize("before", [None, "true", "false"])
def test_the_tokenizers_library_starts_no_threads_meanwhile(
    before: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "TOKENIZERS_PARALLELISM"
    monkeypatch.setenv(name, str(before))
    if before is None:
        monkeypatch.delenv(name)
    for error in (None, UserError("x")):
        with suppress(UserError), encoding._single_threaded_tokenizers():
            assert os.environ[name] == "false"
            if error is not None:
                raise error
        assert os.environ.get(name) == before


# --- limits ----------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("worker_threads")
@pytest.mark.parametrize("max_documents", [1, 39, 40, 41, 100, 209, 210, 500])
@pytest.mark.parametrize("processes", [1, 3])
def test_max_documents_takes_the_first_documents(max_documents: int, processes: int, shards: DataConfig) -> None:
    everything = [document.doc_id for document in corpus.read_documents(shards)]
    folder = prepare(dataclasses.replace(shards, max_documents=max_documents, processes=processes))
    assert read_json(folder / "manifest.json")["documents"] == min(max_documents, 210)
    stores = [open_store(folder, split) for split in SPLITS]
    assert {i for store in stores for i in store.doc_ids_G.tolist()} == set(everything[:max_documents])
    wanted = next(n for n in range(1, 6) if sum([40, 41, 42, 43, 44][:n]) >= min(max_documents, 210))
    assert [len(list(folder.glob(f"{split}/tokens-*.bin"))) for split in SPLITS] == [wanted, wanted]


@pytest.mark.usefixtures("worker_threads")
@pytest.mark.parametrize("processes", [1, 3])
def test_max_tokens_ends_after_the_document_that_reaches_it(processes: int, shards: DataConfig) -> None:
    unlimited = open_store(prepare(shards), "train")
    shards = dataclasses.replace(shards, processes=processes)
    for document in (0, 20, 75, unlimited.num_documents - 1):
        for max_tokens, last in (
            (int(unlimited.ends_G[document]), document),
            (int(unlimited.ends_G[document]) - 1, document),
        ):
            folder = prepare(dataclasses.replace(shards, max_tokens=max_tokens))
            store = open_store(folder, "train")
            assert store.doc_ids_G.tolist() == unlimited.doc_ids_G[: last + 1].tolist()
            assert store.tokens[: len(store.tokens)].tolist() == unlimited.tokens[: unlimited.ends_G[last]].tolist()


def test_shards_behind_a_limit_are_not_read(shards: DataConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    (Path(shards.source) / "d.jsonl").write_text("{broken\n")  # behind the limit
    read = []
    read_shard = corpus.read_shard

    def watched(data: DataConfig, shard: corpus.Shard) -> Any:
        read.append(shard.name)
        return read_shard(data, shard)

    monkeypatch.setattr(corpus, "read_shard", watched)
    for number in (60, 81):  # so many as the first two have: by the first alone, the third seems to be needed
        read.clear()
        folder = prepare(dataclasses.replace(shards, max_documents=number))
        assert read_json(folder / "manifest.json")["documents"] == number
        assert read == ["a.jsonl", "b.jsonl"]
    with pytest.raises(UserError, match=r"d\.jsonl:1: not JSON"):
        prepare(dataclasses.replace(shards, max_documents=200))


def test_a_bpe_is_trained_on_no_document_behind_the_limit(data: DataConfig) -> None:
    lines = Path(data.source).read_text().splitlines(keepends=True)
    Path(data.source).write_text("".join(lines[:60]))
    expected = prepare(in_other_cache(data, "short"))
    Path(data.source).write_text("".join([*lines[:60], json.dumps({"text": "\u6cb3" * 9000}) + "\n", "{broken\n"]))
    folder = prepare(dataclasses.replace(data, max_documents=60))
    assert files_of(folder) == files_of(expected)


def test_a_bpe_is_trained_on_the_first_documents_of_the_training_split(
    data: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text that is held out, and words of a text behind the bound, would each get entries of their own."""
    known = [json.loads(line)["text"] for line in Path(data.source).read_text().splitlines()]
    numbered = (("\u6cb3" * 5000 + f" {number}") for number in range(1000))
    held_out = next(text for text in numbered if split_of_text(text, data) == "validation")
    texts = [held_out, *known]
    Path(data.source).write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    trained_on = [text for text in texts if split_of_text(text, data) == "train"]
    assert 100 < len(trained_on) < len(known)

    def entries_of(texts: list[str]) -> str:
        return str(train_bpe(texts, 300, eos_token=data.eos_token).to_str())

    assert tokenizer_text(data) == entries_of(trained_on) != entries_of(texts)
    monkeypatch.setattr(vocabulary, "BPE_DOCUMENTS", 3)
    assert tokenizer_text(data) == entries_of(trained_on[:3]) != entries_of(trained_on)


def split_of_text(text: str, data: DataConfig) -> str:
    return corpus.split_of(corpus.make_document(text, "x"), data.validation_percent)


@pytest.mark.usefixtures("worker_threads")
def test_a_broken_shard_that_is_read_ahead_counts_only_if_it_is_needed(shards: DataConfig) -> None:
    """After the first shard the fourth seems to be needed for 125 documents, and three shards hold 123."""
    shards = dataclasses.replace(shards, processes=3)
    expected = prepare(dataclasses.replace(in_other_cache(shards, "unbroken"), max_documents=123))
    (Path(shards.source) / "d.jsonl").write_text("{broken\n")
    with pytest.raises(UserError, match=r"d\.jsonl:1: not JSON"):
        prepare(dataclasses.replace(shards, max_documents=125))
    folder = prepare(dataclasses.replace(shards, max_documents=123))
    assert documents_of(open_store(folder, "train")) == documents_of(open_store(expected, "train"))
    (Path(shards.source) / "b.jsonl").write_text("{broken\n")  # needed in any case, whether it is read ahead or not
    with pytest.raises(UserError, match=r"b\.jsonl:1: not JSON"):
        prepare(dataclasses.replace(shards, max_documents=60))


@pytest.mark.parametrize("before_broken", [19, 200], ids=["in the same batch", "batches later"])
@pytest.mark.parametrize("processes", [1, 8])
def test_a_broken_line_counts_only_in_front_of_max_tokens(
    processes: int, before_broken: int, data: DataConfig, tokenizer_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However far the threads of one file read ahead."""
    monkeypatch.setattr(encoding, "BATCH_RECORDS", 40)
    wanted = 5
    write_corpus(Path(data.source), before_broken, seed=5)
    data = dataclasses.replace(data, tokenizer=str(tokenizer_file), processes=processes)
    unbroken = open_store(prepare(in_other_cache(data, "unbroken")), "train")
    with open(data.source, "a") as file:
        file.write("{broken\n")
    limit = int(unbroken.ends_G[wanted - 1])
    cut = open_store(prepare(dataclasses.replace(data, max_tokens=limit)), "train")
    assert cut.doc_ids_G.tolist() == unbroken.doc_ids_G[:wanted].tolist()
    for max_tokens in (int(unbroken.ends_G[-1]) + 1, None):
        with pytest.raises(UserError, match=rf"words\.jsonl:{before_broken + 1}: not JSON"):
            prepare(dataclasses.replace(data, max_tokens=max_tokens))


# --- mistakes --------------------------------------------------------------------------------------------------------


def test_a_source_without_text_leaves_nothing_behind(data: DataConfig) -> None:
    Path(data.source).write_text('{"text": " "}\n')
    with pytest.raises(UserError, match="no document with text"):
        prepare(dataclasses.replace(data, tokenizer="dolma-v1.5"))
    assert not list(Path(data.cache_dir).glob("*"))


def test_a_broken_line_in_a_worker_process_is_reported(shards: DataConfig) -> None:
    source = Path(shards.source) / "b.jsonl"
    source.write_text(source.read_text() + "{broken\n")
    with pytest.raises(UserError, match=r"b\.jsonl:42: not JSON"):
        prepare(dataclasses.replace(shards, processes=2))


def test_a_text_cannot_close_its_own_document(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "before <|endoftext|> after " * 20}) + "\n")
    folder = prepare(DataConfig(source=str(tmp_path / "a.jsonl"), tokenizer="dolma-v1.5", cache_dir=str(tmp_path)))
    manifest = read_json(folder / "manifest.json")
    stored = [t for split in SPLITS for t in open_store(folder, split).tokens.tolist()]  # type: ignore[union-attr]
    assert stored.count(manifest["eos_id"]) == 1
    assert manifest["dtype"] == "<u2"


def test_dolma2_needs_32_bits(tmp_path: Path) -> None:
    write_corpus(tmp_path / "a.jsonl", 5)
    data = DataConfig(source=str(tmp_path / "a.jsonl"), tokenizer="dolma2", cache_dir=str(tmp_path / "cache"))
    with pytest.raises(UserError, match=r"data\.token_dtype = uint16: the tokenizer has \d+ entries"):
        prepare(dataclasses.replace(data, token_dtype="uint16"))
    assert read_json(prepare(data) / "manifest.json")["dtype"] == "<u4"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tokenizer": "bpe:12"}, "between 300"),
        ({"tokenizer": "nowhere.json"}, "no such file"),
        ({"eos_token": "<eos>", "tokenizer": "dolma-v1.5"}, "no such token"),
        ({"source": "nowhere"}, "no such file, folder or glob"),
    ],
)
def test_unusable_settings_leave_nothing_behind(
    data: DataConfig, tmp_path: Path, change: dict[str, str], message: str
) -> None:
    """Neither files, nor folders above the text that were not there, nor a handler of signals."""
    terminated = signal.getsignal(signal.SIGTERM)
    data = dataclasses.replace(data, cache_dir=str(tmp_path / "new" / "cache"))
    with pytest.raises(UserError, match=message):
        prepare(dataclasses.replace(data, **change))
    assert [path.name for path in tmp_path.iterdir()] == ["words.jsonl"]
    assert signal.getsignal(signal.SIGTERM) is terminated


def test_a_text_is_prepared_in_any_thread(data: DataConfig, tokenizer_file: Path) -> None:
    """Only the main one may set handlers of signals, and leaves none."""
    data = dataclasses.replace(data, tokenizer=str(tokenizer_file), processes=1, max_documents=9)
    terminated = signal.getsignal(signal.SIGTERM)
    with ThreadPoolExecutor(1) as thread:
        folder = thread.submit(prepare, data).result()
    again = prepare(in_other_cache(data, "main"))
    assert files_of(folder) == files_of(again)
    assert signal.getsignal(signal.SIGTERM) is terminated


def test_what_is_unfinished_or_of_another_version_is_prepared_again(data: DataConfig) -> None:
    folder = prepare(data)
    files, manifest = files_of(folder), read_json(folder / "manifest.json")
    with pytest.raises(UserError, match=r"there is no split 'measured', only train, validation$"):
        open_store(folder, "measured")
    for change, said in (
        ({"format": 1}, r"another version of olmo-sparsity prepared this; run `olmo-sparsity prepare` again$"),
        ({"status": "running"}, r"this preparation is unfinished; run `olmo-sparsity prepare` again, it continues$"),
    ):
        assert is_prepared(folder)
        write_json(folder / "manifest.json", {**manifest, **change})
        assert not is_prepared(folder)
        with pytest.raises(UserError, match=said):
            open_store(folder, "train")
        assert prepare(data) == folder
        assert files_of(folder) == files
    assert not is_prepared(folder / "nowhere")


def test_a_truncated_token_file_or_index_is_refused(data: DataConfig) -> None:
    folder = prepare(data)
    for name in ("tokens-00000", "begins", "ends", "doc_ids"):
        path = folder / "validation" / f"{name}.bin"
        content = path.read_bytes()
        path.write_bytes(content[:-8])  # of an index one document
        with pytest.raises(
            UserError, match=rf"validation/{name}\.bin: \d+ bytes where \d+ were written; delete .* and prepare"
        ):
            open_store(folder, "validation")
        path.write_bytes(content)


def test_a_manifest_that_counts_other_tokens_than_its_files_hold_is_refused(data: DataConfig) -> None:
    folder = prepare(data)
    manifest = read_json(folder / "manifest.json")
    held = len(open_store(folder, "train").tokens)
    for where in ("", " of train/tokens-00000.bin"):
        changed = json.loads(json.dumps(manifest))
        entry = changed["splits"]["train"]
        (entry["files"][0] if where else entry)["tokens"] += 3
        write_json(folder / "manifest.json", changed)
        with pytest.raises(UserError) as refused:
            open_store(folder, "train")
        assert str(refused.value) == (
            f"{folder / 'manifest.json'}: splits.train counts {held + 3:,} tokens{where}, and its files hold {held:,}; delete "
            f"{folder} and prepare again"
        )
        assert open_store(folder, "validation").num_documents > 0
    write_json(folder / "manifest.json", manifest)
    assert int(open_store(folder, "train").lengths_G.sum()) == manifest["splits"]["train"]["tokens"] == held


@pytest.mark.parametrize("is_finished", [True, False])
def test_a_link_in_place_of_the_shards_is_one_line(is_finished: bool, shards: DataConfig, tmp_path: Path) -> None:
    folder = prepare(shards)
    others = tmp_path / "others"
    others.mkdir()
    (others / "thesis.tex").write_text("mine")
    (folder / "shards").symlink_to(others)
    if not is_finished:
        (folder / "manifest.json").unlink()
    with pytest.raises(UserError, match=r"shards: this is a symbolic link to .*others, .*; remove the link$"):
        prepare(shards)
    assert [path.name for path in others.iterdir()] == ["thesis.tex"]
