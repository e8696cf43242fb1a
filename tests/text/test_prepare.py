"""Prepared text: against the documents and the tokenizer themselves, after kills, under limits, from token files."""

from __future__ import annotations

import dataclasses
import itertools
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path

import msgspec
import numpy as np
import pytest
from conftest import Messages, write_corpus
from olmo.data.memmap_dataset import MemMapDataset
from tokenizers import Tokenizer, models

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.text.prepare import describe, prepare, store_folder
from olmo_sparsity.text.sources import make_document, open_source, read_piece, split_of
from olmo_sparsity.text.store import (
    TokenFiles,
    TokenStore,
    open_store,
    read_manifest,
    token_counts,
    verify_prepared,
    write_manifest,
)
from olmo_sparsity.text.tokenizer import read_tokenizer, train_bpe

SPLITS = ("train", "validation")
EOS, VOCAB = 3, 400  # of token files


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_corpus(tmp_path_factory.mktemp("bpe") / "words.jsonl", 100, seed=1)
    texts = (json.loads(line)["text"] for line in path.read_text().splitlines())
    train_bpe(texts, 400, eos_token="<|endoftext|>").save(str(path.with_name("tokenizer.json")))
    return path.with_name("tokenizer.json")


@pytest.fixture
def data(tmp_path: Path, tokenizer_file: Path) -> DataConfig:
    """Five files of 40, 41, ... documents."""
    for number, name in enumerate("abcde"):
        write_corpus(tmp_path / "texts" / f"{name}.jsonl", 40 + number, seed=number)
    return DataConfig(
        str(tmp_path / "texts"),
        tokenizer=str(tokenizer_file),
        cache_dir=str(tmp_path / "cache"),
        validation_percent=30.0,
    )


def documents_of(store: TokenStore) -> list[list[int]]:
    return [store.tokens[a:b].tolist() for a, b in zip(store.begins_G.tolist(), store.ends_G.tolist(), strict=True)]


def files_of(folder: Path) -> dict[str, bytes]:
    """Contents of all files; of the manifest without what differs between equal preparations."""
    files = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}
    manifest = dict(json.loads(files.pop("manifest.json")), seconds=0, data={})
    return {**files, "manifest.json": json.dumps(manifest).encode()}


def elsewhere(data: DataConfig, **changes: object) -> DataConfig:
    return dataclasses.replace(data, cache_dir=f"{data.cache_dir}-other", **changes)  # type: ignore[arg-type]


def test_the_store_holds_every_document_once_closed_by_eos(data: DataConfig) -> None:
    folder = prepare(data)
    verify_prepared(folder)
    manifest, tokenizer = read_manifest(folder), read_tokenizer(folder / "tokenizer.json")
    expected: dict[str, list[tuple[str, int, str]]] = {split: [] for split in SPLITS}
    for path in sorted(Path(data.source).iterdir()):
        for line in path.read_text().splitlines():
            document = make_document(json.loads(line)["text"], path.name)
            expected[split_of(document.group, 30)].append((document.text, document.doc_id, path.name))
    for split, documents in expected.items():
        store = open_store(folder, split)
        tokens = documents_of(store)
        assert tokens == [[*tokenizer.encode(text).ids, manifest.eos_id] for text, *_ in documents]
        assert store.doc_ids_G.tolist() == [doc_id for _, doc_id, _ in documents]
        assert store.source_of(np.arange(store.num_documents)) == [source for *_, source in documents]
        places = store.document_of(np.arange(len(store.tokens)))
        assert places.tolist() == np.repeat(np.arange(len(tokens)), store.lengths_G).tolist()
        counts_V = np.bincount([token for document in tokens for token in document[:-1]])
        assert token_counts(store)[: len(counts_V)].tolist() == counts_V.tolist() and store.tokens.dtype == np.uint16
    assert manifest.bytes == sum(len(text.encode()) for documents in expected.values() for text, *_ in documents)
    chunks = MemMapDataset(folder / "train" / "tokens.bin", chunk_size=16, memmap_dtype=np.uint16)  # OLMo's own reader
    flat = [token for document in documents_of(open_store(folder, "train")) for token in document]
    assert [token for chunk in chunks for token in chunk["input_ids"].tolist()] == flat[: len(chunks) * 16]
    measured = prepare(data, folder / "tokenizer.json")
    assert open_store(measured, "measured").num_documents == 210 and "-measured-" in measured.name


def test_the_hash_of_the_tokens_is_that_of_all_files(data: DataConfig) -> None:
    found = set()
    for second in (1, 2):
        source = Path(f"{data.source}-{second}")
        for name, seed in (("a", 0), ("b", second)):
            write_corpus(source / f"{name}.jsonl", 40, seed=seed)
        found.add(open_store(prepare(dataclasses.replace(data, source=str(source))), "train").tokens_sha256)
    for number, text in enumerate(("éè", "èé")):  # documents of the same length
        path = Path(f"{data.source}-{number}.txt")
        path.write_text(text, encoding="utf-8")
        folder = prepare(dataclasses.replace(data, source=str(path)), Path(data.tokenizer))
        found.add(open_store(folder, "measured").tokens_sha256)
    assert len(found) == 4


SCRIPT = """
import sys
from olmo_sparsity.config import DataConfig
from olmo_sparsity.text.prepare import prepare
sys.stdin.readline()
prepare(DataConfig(sys.argv[1], tokenizer=sys.argv[2], cache_dir=sys.argv[3], validation_percent=30.0))
"""


def started(data: DataConfig) -> subprocess.Popen[bytes]:
    arguments = (data.source, data.tokenizer, data.cache_dir)
    return subprocess.Popen([sys.executable, "-c", SCRIPT, *arguments], stdin=subprocess.PIPE)


def pieces_done(folder: Path) -> int:
    return read_manifest(folder).pieces if (folder / "manifest.json").is_file() else 0


def test_killed_at_any_moment_nothing_is_lost(data: DataConfig) -> None:
    """A second process waits while the first prepares, and continues where that is killed."""
    for number in range(20):
        write_corpus(Path(data.source) / f"f{number:02d}.jsonl", 150, seed=number)
    expected = files_of(prepare(elsewhere(data)))
    folder, wanted = store_folder(data, open_source(data)), random.randrange(1, 20)
    (folder / "train").mkdir(parents=True)  # as a kill in the first piece leaves it
    (folder / "train" / "tokens.bin").write_bytes(b"cut")
    (folder / "train" / ".ends.bin.0a1b2c3d.partial").touch()
    first, second = started(data), started(data)
    for process in (first, second):
        assert process.stdin is not None
        process.stdin.write(b"\n")
        process.stdin.flush()
        while pieces_done(folder) < wanted:
            assert process.poll() is None
            time.sleep(0.001)
    time.sleep(random.random() * 0.02)
    first.kill()
    first.wait()
    assert pieces_done(folder) >= wanted  # what was finished is kept
    second.communicate()
    assert second.returncode == 0 and files_of(folder) == expected
    verify_prepared(folder)
    assert not [path for path in Path(data.cache_dir).iterdir() if path != folder]


@pytest.mark.parametrize("number", [1, 41, 100, 500])
def test_a_limit_keeps_the_beginning(number: int, data: DataConfig) -> None:
    """Of so many training documents. An error behind the limit does not count; where the limit is one token higher, it does."""
    whole = [documents_of(open_store(prepare(data), split)) for split in SPLITS]
    few = dataclasses.replace(data, max_tokens=sum(map(len, whole[0][:number])))
    training, held_out = (documents_of(open_store(prepare(few), split)) for split in SPLITS)
    assert training == whole[0][:number] and held_out == whole[1][: len(held_out)]
    if len(training) == number:
        files = [path for path in sorted(Path(data.source).iterdir()) for _ in path.read_text().splitlines()]
        files = files[: len(training) + len(held_out)]
        last, at = files[-1], files.count(files[-1])
        lines = last.read_text().splitlines(keepends=True)
        last.write_text("".join([*lines[:at], "{broken\n", *lines[at:]]))
        assert documents_of(open_store(prepare(few), "train")) == training
        with pytest.raises(UserError, match=f"{last.name}:{at + 1}: not JSON"):
            prepare(dataclasses.replace(few, max_tokens=few.max_tokens + 1))  # type: ignore[operator]


def test_what_does_not_decode_to_its_text_is_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A BPE without bytes or a token for the unknown loses other scripts; special tokens of a text are text."""
    losing = Tokenizer(models.BPE({"<|endoftext|>": 0, "a": 1, "b": 2, "ab": 3}, [("a", "b")]))
    losing.save(str(tmp_path / "t.json"))
    for name, text in {"a": "ab", "b": "a\u6cb3", "c": "<|endoftext|>ab", "d": " \n"}.items():
        (tmp_path / f"{name}.txt").write_text(text)
    data = DataConfig(f"{tmp_path}/*.txt", tokenizer=str(tmp_path / "t.json"), cache_dir=str(tmp_path / "cache"))
    folder = prepare(data)
    assert "tokens of 2 of 3 documents do not decode to their text" in caplog.text
    tokens = [document for split in SPLITS for document in documents_of(open_store(folder, split))]
    assert sorted(tokens) == [[1, 0], [3, 0], [3, 0]] and read_manifest(folder).empty == 1


def test_a_file_that_changed_is_refused(data: DataConfig) -> None:
    folder = prepare(data)
    for name in ("train/tokens.bin", "validation/ends.bin", "train/doc_ids.bin", "tokenizer.json"):
        content = (folder / name).read_bytes()
        for wrong in (content[:-2], content + b"xx", bytes([content[0] ^ 1]) + content[1:], None):
            (folder / name).unlink() if wrong is None else (folder / name).write_bytes(wrong)
            found = "this file is gone" if wrong is None else "other contents"
            with pytest.raises(UserError, match=f"{name}: {found}.*; delete .* and prepare again"):
                verify_prepared(folder)
        (folder / name).write_bytes(content)
    verify_prepared(folder)
    write_manifest(folder, msgspec.structs.replace(read_manifest(folder), status="running"))
    prepare(data)
    verify_prepared(folder)
    write_manifest(folder, msgspec.structs.replace(read_manifest(folder), status="running", pieces=1))
    os.truncate(folder / "train" / "ends.bin", 100)
    with pytest.raises(UserError, match=r"ends\.bin: shorter than its manifest says; delete .* and prepare again"):
        prepare(data)


def test_validation_text_of_the_package_shares_no_sequence_with_training(data: DataConfig) -> None:
    data = dataclasses.replace(data, source="builtin", max_tokens=80_000)
    folder = prepare(data)
    verify_prepared(folder)
    manifest, stores = read_manifest(folder), {split: open_store(folder, split) for split in SPLITS}
    num_read = sum(store.num_documents for store in stores.values()) + manifest.overlapping
    documents = itertools.islice(read_piece(data, *open_source(data).pieces), num_read)
    held_out = [one for one in documents if split_of(one.group, 30) == "validation"]
    tokens = read_tokenizer(folder / "tokenizer.json")

    def sequences(ids: list[int]) -> set[tuple[int, ...]]:
        return {tuple(ids[i : i + 13]) for i in range(len(ids) - 12)}

    trained = set().union(*(sequences(document[:-1]) for document in documents_of(stores["train"])))
    kept = [one.doc_id for one in held_out if not sequences(tokens.encode(one.text).ids) & trained]
    assert stores["validation"].doc_ids_G.tolist() == kept
    assert manifest.overlapping == len(held_out) - len(kept) > 0
    assert all(len({*of.doc_ids_G.tolist()}) == of.num_documents for of in stores.values())  # each text once
    left_out = f"left out of validation: {manifest.overlapping:,} documents that share 13 tokens in a row with training"
    assert left_out in describe(folder)


def token_source(folder: Path, documents: dict[str, list[list[int]]], vocab_size: int = VOCAB) -> DataConfig:
    """A source of token files that ``documents`` names, each closed by EOS, as wide as a vocabulary needs."""
    (folder / "tokens").mkdir(parents=True)
    for name, of_file in documents.items():
        tokens = np.array(list(itertools.chain(*of_file)), dtype="<u2" if vocab_size <= 65536 else "<u4")
        tokens.tofile(folder / "tokens" / name)
    vocabulary = {"<|endoftext|>" if number == EOS else f"w{number}": number for number in range(vocab_size)}
    Tokenizer(models.WordLevel(vocabulary, unk_token="w0")).save(str(folder / "t.json"))
    options = {"cache_dir": str(folder / "cache"), "validation_percent": 30.0}
    return DataConfig(str(folder / "tokens"), tokenizer=str(folder / "t.json"), **options)  # type: ignore[arg-type]


def random_documents(seed: int, count: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[*rng.integers(EOS + 1, VOCAB, rng.integers(1, 30)).tolist(), EOS] for _ in range(count)]


@pytest.mark.parametrize("vocab_size", [VOCAB, 65537])
def test_token_files_are_used_in_place(vocab_size: int, tmp_path: Path, messages: Messages) -> None:
    """A block ends inside a document; empty documents are skipped, and an open end is kept."""
    documents = {name: random_documents(seed, 80) for seed, name in enumerate(("a.npy", "b.npy"))}
    documents["a.npy"].append([7] * (1 << 20) + [EOS])
    documents["c.npy"] = [[EOS], [7, 8, EOS], [EOS], documents["a.npy"][0][:-1]]
    data = token_source(tmp_path, documents, vocab_size)
    (Path(data.source) / "notes.csv").touch()
    folder = prepare(data)
    assert f"{data.source}: not read: 1 .csv" in messages
    verify_prepared(folder)
    manifest, stores = read_manifest(folder), [open_store(folder, split) for split in SPLITS]
    everything = sorted(one for one in itertools.chain(*documents.values()) if one != [EOS])
    assert sorted(one for store in stores for one in documents_of(store)) == everything
    assert manifest.empty == 2 and manifest.unclosed == ["c.npy"] and not list(folder.rglob("tokens.bin"))
    assert stores[0].tokens_sha256 != stores[1].tokens_sha256
    assert sum(int(token_counts(store).sum()) for store in stores) == sum(len(one) - 1 for one in everything)
    assert manifest.bytes == sum(map(len, everything)) * stores[0].tokens.dtype.itemsize
    write_manifest(folder, msgspec.structs.replace(manifest, bytes=3_000_000, seconds=0.5))
    said = ["read: 3.0 MB in 0.5 s, 6.0 MB/s", "skipped: 2 documents without text"]
    assert describe(folder)[2:] == [*said, "c.npy: its last document has no EOS; it is kept"]
    # IDs and splits depend on the tokens alone: not on the file, its dtype, or an EOS.
    other = token_source(tmp_path / "other", {"x.bin": [one for one in everything if one[-1] == EOS][::-1]})
    for split, store in zip(SPLITS, stores, strict=True):
        assert {*open_store(prepare(other), split).doc_ids_G.tolist()} == {*store.doc_ids_G.tolist()}
        contents = {tuple(token for token in one if token != EOS) for one in documents_of(store)}
        assert len({*store.doc_ids_G.tolist()}) == len(contents)
    first = documents_of(stores[0])[:-5]
    limited = dataclasses.replace(data, max_tokens=sum(map(len, first)))
    assert documents_of(open_store(prepare(limited), "train")) == first
    path = Path(data.source) / "b.npy"
    path.write_bytes(path.read_bytes()[::-1])
    with pytest.raises(UserError, match=r"b\.npy: other contents .* bring the file back, or prepare again"):
        verify_prepared(folder)


def tokens_of(*tokens: int, dtype: str = "<u2") -> bytes:
    return np.array(tokens, dtype=dtype).tobytes()


BAD_TOKENS: list[tuple[bytes, dict[str, str], str]] = [
    (tokens_of(5, EOS), {"tokenizer": "bpe:400"}, "holds tokens; name what made them"),
    (tokens_of(5, EOS), {"eos_token": "</s>"}, "the tokenizer has no such token"),
    (tokens_of(5, 6, VOCAB, EOS), {}, r"a\.npy: token 2 is 400, but the tokenizer has 400 entries"),
    (tokens_of(5, 6, 7, EOS), {"eos_token": "w1"}, r"'w1' \(token 1\) closes no document"),
    (tokens_of(*[5, EOS] * 9, dtype="<u4"), {}, "every second token is 0, as if it had 32 bits; see data.tokenizer"),
    (bytes(7), {}, "7 bytes are no whole number of 2-byte tokens"),
    (b"\x93NUMPY\x01\x00v\x00{'descr'", {}, "a NumPy file with a header; write raw tokens"),
    (b"", {}, "no document with text"),
]


@pytest.mark.parametrize(("content", "changes", "words"), BAD_TOKENS)
def test_files_without_valid_tokens_are_refused(
    content: bytes, changes: dict[str, str], words: str, tmp_path: Path
) -> None:
    data = dataclasses.replace(token_source(tmp_path, {"a.npy": []}), **changes)  # type: ignore[arg-type]
    (Path(data.source) / "a.npy").write_bytes(content)
    with pytest.raises(UserError, match=words):
        prepare(data)
    assert not list(Path(data.cache_dir).glob("*"))


def test_a_token_file_may_begin_like_a_packed_one(tmp_path: Path) -> None:
    documents = [[7, 8, EOS], [0x8B1F, 5, EOS]]  # the second with the first bytes of gzip
    data = token_source(tmp_path, {"a.npy": documents[1:], "b.npy": documents[:1]}, vocab_size=2**16)
    assert sorted(one for split in SPLITS for one in documents_of(open_store(prepare(data), split))) == documents


def test_token_files_behave_like_one_array() -> None:
    rng = np.random.default_rng(0)
    array = rng.integers(1000, size=60).astype(np.uint16)
    files = TokenFiles(np.split(array, [0, 13, 13, 40, 60]))
    for begin in range(-3, 63):
        for end in range(-3, 63):
            assert files[begin:end].tolist() == array[begin:end].tolist()
    for index in (np.array(59), np.arange(60), rng.integers(60, size=(4, 3, 2)), np.zeros((0, 3), dtype=np.int64)):
        assert files[index].dtype == np.uint16 and np.array_equal(files[index], array[index])
    for outside in (60, -1):
        with pytest.raises(IndexError):
            files[np.array([0, outside])]
