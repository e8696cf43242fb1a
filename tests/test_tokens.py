from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from conftest import write_corpus
from olmo.data.memmap_dataset import MemMapDataset

from olmo_sparsity import corpus, tokens
from olmo_sparsity.config import DataConfig, UserError
from olmo_sparsity.manifest import read_json
from olmo_sparsity.tokens import TokenStore, open_store, prepare, read_tokenizer, store_folder


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    source = write_corpus(tmp_path / "words.jsonl", 300, seed=5)
    return DataConfig(source=str(source), tokenizer="bpe:300", cache_dir=str(tmp_path / "cache"), validation_percent=30)


def documents_of(store: TokenStore) -> list[list[int]]:
    return [store.tokens[a:b].tolist() for a, b in zip(store.offsets[:-1], store.offsets[1:], strict=True)]


def test_the_store_holds_every_document_once_closed_by_eos(data: DataConfig) -> None:
    folder = prepare(data)
    tokenizer, eos = read_tokenizer(folder / "tokenizer.json"), read_json(folder / "manifest.json")["eos_id"]
    texts: dict[str, list[str]] = {"train": [], "validation": []}
    for document, _ in corpus.read_documents(data, Counter()):
        texts[corpus.split_of(document, data.validation_percent)].append(document.text)
    ids = {}
    for split, expected in texts.items():
        store = open_store(folder, split)
        found = documents_of(store)
        assert all(document[-1] == eos and eos not in document[:-1] for document in found)
        assert [tokenizer.decode(document[:-1]) for document in found] == expected
        ids[split] = set(store.doc_ids.tolist())
    assert not ids["train"] & ids["validation"]


def test_olmo_reads_the_token_file(data: DataConfig) -> None:
    folder = prepare(data)
    store = open_store(folder, "train")
    theirs = MemMapDataset(folder / "train" / "tokens.bin", chunk_size=16, memmap_dtype=np.uint16)
    assert len(theirs) == len(store.tokens) // 16
    for i in (0, 7, len(theirs) - 1):
        assert theirs[i]["input_ids"].tolist() == store.tokens[16 * i : 16 * (i + 1)].tolist()


def test_an_interrupted_preparation_continues_to_the_same_files(
    data: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokens, "ENCODE_BATCH", 16)
    monkeypatch.setattr(tokens, "FLUSH_BATCHES", 2)
    whole = prepare(data)
    interrupted = dataclasses.replace(data, cache_dir=f"{data.cache_dir}2")
    read = corpus.read_documents

    def failing(*args: object) -> object:
        for number, item in enumerate(read(*args)):  # type: ignore[arg-type]
            if number == 150:
                raise KeyboardInterrupt
            yield item

    (store_folder(interrupted)).mkdir(parents=True)
    (store_folder(interrupted) / "tokenizer.json").write_text((whole / "tokenizer.json").read_text())
    monkeypatch.setattr(corpus, "read_documents", failing)
    with pytest.raises(KeyboardInterrupt):
        prepare(interrupted)
    with pytest.raises(UserError, match="no such file"):
        open_store(store_folder(interrupted), "train")
    assert read_json(store_folder(interrupted) / "progress.json")["documents"] == 128
    monkeypatch.setattr(corpus, "read_documents", read)
    again = prepare(interrupted)
    for split in ("train", "validation"):
        for name in tokens.ARRAYS:
            path = Path(split) / f"{name}.bin"
            assert (again / path).read_bytes() == (whole / path).read_bytes(), path


def test_killed_before_its_manifest_a_preparation_is_not_done_twice(
    data: DataConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def killed(_path: Path) -> str:
        raise KeyboardInterrupt

    source = Path(data.source)
    source.write_text(source.read_text() + "{broken\n" * 3)
    data = dataclasses.replace(data, on_error="skip")
    sha256_file = tokens.sha256_file
    monkeypatch.setattr(tokens, "sha256_file", killed)
    with pytest.raises(KeyboardInterrupt):
        prepare(data)
    monkeypatch.setattr(tokens, "sha256_file", sha256_file)
    folder = prepare(data)
    assert read_json(folder / "manifest.json")["documents"] == 300
    assert sum(open_store(folder, split).num_documents for split in ("train", "validation")) == 300
    assert read_json(folder / "manifest.json")["skipped"] == {"broken": 3}


def test_of_several_processes_one_prepares(data: DataConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first is killed while it writes; the others wait for it, one of them goes on, and the rest find it done."""
    really_write = tokens._write_store
    begun = tmp_path / "begun"

    def write(*arguments: object) -> None:
        with open(begun, "a", encoding="utf-8") as file:
            file.write(f"{os.getpid()}\n")
        if len(begun.read_text().split()) == 1:
            time.sleep(60)  # until it is killed
        really_write(*arguments)  # type: ignore[arg-type]
        time.sleep(0.3)  # so that whoever does not wait comes in between

    monkeypatch.setattr(tokens, "_write_store", write)
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


def test_a_source_without_text_leaves_nothing_behind(data: DataConfig) -> None:
    Path(data.source).write_text('{"text": " "}\n')
    with pytest.raises(UserError, match="no document with text"):
        prepare(dataclasses.replace(data, tokenizer="dolma-v1.5"))
    assert not list(Path(data.cache_dir).glob("*"))


def test_a_text_cannot_close_its_own_document(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "before <|endoftext|> after " * 20}) + "\n")
    folder = prepare(DataConfig(source=str(tmp_path / "a.jsonl"), tokenizer="dolma-v1.5", cache_dir=str(tmp_path)))
    manifest = read_json(folder / "manifest.json")
    stored = [t for split in ("train", "validation") for t in open_store(folder, split).tokens.tolist()]
    assert stored.count(manifest["eos_id"]) == 1
    assert manifest["dtype"] == "<u2"


def test_dolma2_needs_32_bits(tmp_path: Path) -> None:
    write_corpus(tmp_path / "a.jsonl", 5)
    folder = prepare(DataConfig(source=str(tmp_path / "a.jsonl"), tokenizer="dolma2", cache_dir=str(tmp_path)))
    assert read_json(folder / "manifest.json")["dtype"] == "<u4"


def test_max_documents_and_max_tokens(data: DataConfig) -> None:
    assert read_json(prepare(dataclasses.replace(data, max_documents=33)) / "manifest.json")["documents"] == 33
    few = read_json(prepare(dataclasses.replace(data, max_tokens=1)) / "manifest.json")
    assert 1 <= few["documents"] <= 300


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"tokenizer": "bpe:12"}, "between 300"),
        ({"tokenizer": "nowhere.json"}, "no such file"),
        ({"eos_token": "<eos>", "tokenizer": "dolma-v1.5"}, "no such token"),
        ({"source": "nowhere"}, "no such file, folder or glob"),
    ],
)
def test_unusable_settings_leave_nothing_behind(data: DataConfig, change: dict[str, str], said: str) -> None:
    with pytest.raises(UserError, match=said):
        prepare(dataclasses.replace(data, **change))
    assert not list(Path(data.cache_dir).glob("*"))


def test_a_cut_token_file_is_refused(data: DataConfig) -> None:
    folder = prepare(data)
    path = folder / "train" / "tokens.bin"
    path.write_bytes(path.read_bytes()[:-10])
    with pytest.raises(UserError, match=r"tokens\.bin: \d+ bytes where"):
        open_store(folder, "train")
