"""Token files that OLMo's or dolma's tools wrote, as a source."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from conftest import Messages
from tokenizers import Tokenizer, models

from olmo_sparsity.config import Config, DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, sha256_file
from olmo_sparsity.measure.opening import open_model
from olmo_sparsity.text import preparation, scanning
from olmo_sparsity.text.preparation import describe, prepare
from olmo_sparsity.text.store import open_store
from olmo_sparsity.text.verification import verify_prepared

EOS = 3
VOCAB = 400
SPLITS = ("train", "validation")


def save_tokenizer(path: Path, vocab_size: int = VOCAB) -> Path:
    vocabulary = {f"w{number}": number for number in range(vocab_size)}
    vocabulary["<|endoftext|>"] = vocabulary.pop(f"w{EOS}")
    Tokenizer(models.WordLevel(vocabulary, unk_token="w0")).save(str(path))
    return path


def random_documents(seed: int, count: int) -> list[list[int]]:
    rng = np.random.default_rng(seed)
    return [[*rng.integers(EOS + 1, VOCAB, rng.integers(1, 30)).tolist(), EOS] for _ in range(count)]


@pytest.fixture
def documents() -> dict[str, list[list[int]]]:
    return {"a.npy": random_documents(0, 200), "b.npy": random_documents(1, 90), "c.npy": random_documents(2, 1)}


@pytest.fixture
def data(tmp_path: Path) -> DataConfig:
    (tmp_path / "tokens").mkdir()
    return DataConfig(
        source=str(tmp_path / "tokens"),
        tokenizer=str(save_tokenizer(tmp_path / "tokenizer.json")),
        cache_dir=str(tmp_path / "cache"),
        validation_percent=30,
        processes=1,
    )


def write(data: DataConfig, files: dict[str, list[list[int]]], dtype: str = "<u2") -> None:
    for name, documents in files.items():
        np.array([token for document in documents for token in document], dtype=dtype).tofile(Path(data.source) / name)


@pytest.mark.parametrize(("dtype", "token_dtype"), [("<u2", "auto"), ("<u2", "uint16"), ("<u4", "uint32")])
def test_token_files_are_used_without_copying(
    dtype: str,
    token_dtype: str,
    data: DataConfig,
    documents: dict[str, list[list[int]]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(scanning, "SCAN_TOKENS", 37)  # most blocks end inside a document
    write(data, documents, dtype)
    folder = prepare(dataclasses.replace(data, token_dtype=token_dtype))  # type: ignore[arg-type]
    manifest = read_json(folder / "manifest.json")
    assert (manifest["dtype"], manifest["made_from"]) == (dtype, "token files")
    assert (manifest["eos_id"], manifest["vocab_size"]) == (EOS, VOCAB)
    everything = [(name, document) for name, of_file in documents.items() for document in of_file]
    seen: dict[tuple[str, tuple[int, ...]], str] = {}
    for split in SPLITS:
        assert not list(folder.glob(f"{split}/tokens*"))
        store = open_store(folder, split)
        sources = store.source_of(np.arange(store.num_documents))
        for source, begin, end in zip(sources, store.begins_G.tolist(), store.ends_G.tolist(), strict=True):
            seen[source, tuple(store.tokens[begin:end].tolist())] = split
            assert (store.document_of(np.arange(begin, end)) == store.begins_G.tolist().index(begin)).all()
        # A split holds some of the documents, in their order.
        expected = [document for name, document in everything if seen.get((name, tuple(document))) == split]
        assert [store.tokens[a:b].tolist() for a, b in zip(store.begins_G, store.ends_G, strict=True)] == expected
        files = manifest["splits"][split]["files"]
        assert [Path(file["path"]) for file in files] == [(Path(data.source) / name).resolve() for name in documents]
        assert [file["sha256"] for file in files] == [sha256_file(Path(data.source) / name) for name in documents]
    assert len(seen) == len(everything) == manifest["documents"]
    share = open_store(folder, "validation").num_documents / len(everything)
    assert abs(share - 0.3) < 5 * (0.3 * 0.7 / len(everything)) ** 0.5
    hashes = {manifest["splits"][split]["tokens_sha256"] for split in SPLITS}
    assert len(hashes) == 2  # the same files, but other documents


def test_document_ids_and_splits_depend_on_the_tokens_alone(
    data: DataConfig, documents: dict[str, list[list[int]]]
) -> None:
    write(data, documents)
    first = {split: set(open_store(prepare(data), split).doc_ids_G.tolist()) for split in SPLITS}
    for path in Path(data.source).iterdir():
        path.unlink()
    write(data, {"other.bin": [document for of_file in reversed(documents.values()) for document in of_file]}, "<u4")
    second = prepare(dataclasses.replace(data, token_dtype="uint32"))
    assert {split: set(open_store(second, split).doc_ids_G.tolist()) for split in SPLITS} == first
    assert not first["train"] & first["validation"]


def test_the_result_does_not_depend_on_the_number_of_processes(
    data: DataConfig, documents: dict[str, list[list[int]]]
) -> None:
    write(data, documents)
    expected = prepare(data)
    folder = prepare(dataclasses.replace(data, processes=2, cache_dir=f"{data.cache_dir}2"))
    for split in SPLITS:
        for name in ("begins", "ends", "doc_ids"):
            assert (expected / split / f"{name}.bin").read_bytes() == (folder / split / f"{name}.bin").read_bytes()
    assert read_json(expected / "manifest.json")["splits"] == read_json(folder / "manifest.json")["splits"]


def test_an_open_end_and_empty_documents_are_reported(data: DataConfig) -> None:
    write(data, {"a.bin": [[5, 6, EOS], [EOS], [7, 8, EOS], [EOS], [9, 10, 11]], "b.bin": [[12, EOS]]})
    folder = prepare(data)
    token_lists = []
    for split in SPLITS:
        store = open_store(folder, split)
        token_lists += [store.tokens[a:b].tolist() for a, b in zip(store.begins_G, store.ends_G, strict=True)]
    assert sorted(token_lists) == [[5, 6, EOS], [7, 8, EOS], [9, 10, 11], [12, EOS]]
    assert read_json(folder / "manifest.json")["skipped"] == {"empty": 2}
    assert "a.bin: its last document has no EOS" in "\n".join(describe(folder))
    assert "b.bin: its last" not in "\n".join(describe(folder))


def test_eos_that_closes_empty_documents_alone_is_the_eos_of_the_files(data: DataConfig) -> None:
    """The only documents with tokens in them are the last of their files, without EOS."""
    write(data, {f"{i:02d}.bin": [[EOS], text[:-1]] for i, text in enumerate(random_documents(7, 40))})
    manifest = read_json(prepare(data) / "manifest.json")
    assert manifest["documents"] == 40 and manifest["skipped"] == {"empty": 40}


def test_a_document_without_its_end_is_the_same_document(data: DataConfig) -> None:
    """The last document of a file may lack its EOS. It has the ID and the split of the same tokens with an EOS."""
    texts = random_documents(7, 40)
    write(data, {f"{i:02d}.bin": [text, texts[(i + 1) % 40][:-1]] for i, text in enumerate(texts)})
    folder = prepare(data)
    split_of: dict[tuple[int, ...], set[tuple[str, int]]] = {}
    for split in SPLITS:
        store = open_store(folder, split)
        for begin, end, doc_id in zip(store.begins_G, store.ends_G, store.doc_ids_G.tolist(), strict=True):
            tokens = store.tokens[begin:end].tolist()
            split_of.setdefault(tuple(token for token in tokens if token != EOS), set()).add((split, doc_id))
    assert len(split_of) == 40
    assert all(len(found) == 1 for found in split_of.values())
    assert {split for found in split_of.values() for split, _ in found} == set(SPLITS)


def test_limits(data: DataConfig, documents: dict[str, list[list[int]]]) -> None:
    write(data, documents)
    few = prepare(dataclasses.replace(data, max_documents=205))
    everything = [document for of_file in documents.values() for document in of_file]
    stores = [open_store(few, split) for split in SPLITS]
    token_lists = [s.tokens[a:b].tolist() for s in stores for a, b in zip(s.begins_G, s.ends_G, strict=True)]
    assert sorted(token_lists) == sorted(everything[:205])
    unlimited = open_store(prepare(data), "train")
    cut = open_store(prepare(dataclasses.replace(data, max_tokens=int(unlimited.lengths_G[:50].sum()))), "train")
    assert cut.doc_ids_G.tolist() == unlimited.doc_ids_G[:50].tolist()


def test_a_changed_file_is_refused(data: DataConfig, documents: dict[str, list[list[int]]]) -> None:
    write(data, documents)
    folder = prepare(data)
    path = Path(data.source) / "b.npy"
    with open(path, "ab") as file:
        file.write(bytes(2))
    with pytest.raises(UserError, match=r"b\.npy: \d+ bytes where \d+ were written; bring back the file"):
        open_store(folder, "train")


def test_files_without_valid_tokens_are_refused(data: DataConfig, documents: dict[str, list[list[int]]]) -> None:
    source = Path(data.source)

    def refused(message: str, **changes: str) -> None:
        with pytest.raises(UserError, match=message):
            prepare(dataclasses.replace(data, **changes))  # type: ignore[arg-type]
        assert not list(Path(data.cache_dir).glob("*"))

    np.save(source / "a.npy", np.arange(5, dtype=np.uint16))
    refused(
        r"a\.npy: a NumPy file with a header, where raw tokens were expected \(OLMo's \.npy files have none\); "
        r"numpy\.load\(\.\.\.\)\.tofile\(\.\.\.\) writes them"
    )
    write(data, {"a.npy": documents["a.npy"]})
    refused(r"bpe:400: .* holds token files, and no tokenizer can be trained on those", tokenizer="bpe:400")
    refused(r"a\.npy: token \d+ is \d+, and the tokenizer has 400 entries", token_dtype="uint32")
    smaller = save_tokenizer(source.parent / "small.json", 50)
    refused(r"a\.npy: token \d+ is \d+, and the tokenizer has 50 entries", tokenizer=str(smaller))
    refused(
        r"'w1' \(token 1\) closes no document in these token files; data\.tokenizer, data\.eos_token or data\.token_dtype is not",
        eos_token="w1",
    )
    write(data, {"a.npy": documents["a.npy"]}, "<u4")
    refused(r"every second token is 0, so the tokens seem to have 32 bits; set data\.token_dtype=uint32")
    (source / "a.npy").write_bytes(bytes(7))
    refused(r"a\.npy: 7 bytes are no whole number of 2-byte tokens; see data\.token_dtype")
    (source / "a.npy").write_bytes(b"")
    refused("no document")


def test_the_first_wrong_token_is_named_and_few_tokens_or_zeros_are_no_sign_of_32_bits() -> None:
    def check(block: list[int], *, offset: int = 0, dtype: str = "<u2") -> None:
        task: Any = SimpleNamespace(dtype=dtype, vocab_size=50)
        scanning._check_tokens(task, Path("a.npy"), block=np.array(block, dtype=dtype), offset=offset)

    with pytest.raises(
        UserError,
        match=r"a\.npy: token 102 is 50, and the tokenizer has 50 entries; another tokenizer made this file \(data\.tokenizer\), "
        r"or its tokens are of another size \(data\.token_dtype\)",
    ):
        check([3, 49, 50, 60], offset=100)
    with pytest.raises(UserError, match="every second token is 0"):
        check([7, 0] * 8)
    check([7, 0] * 8, offset=16)  # a whole block of a file that did not begin so
    check([7, 0] * 8, dtype="<u4")
    check([7, 0] * 7)
    check([0] * 16)
    check([0, 7] * 8)
    check([7, 0] * 7 + [7, 1])
    check([])


def test_16_bits_hold_65536_tokens(data: DataConfig) -> None:
    of_16_bits, of_32_bits = (dataclasses.replace(data, token_dtype=dtype) for dtype in ("uint16", "uint32"))  # type: ignore[arg-type]
    assert [preparation._token_dtype(data, size) for size in (65_535, 65_536, 65_537)] == ["<u2", "<u2", "<u4"]
    assert preparation._token_dtype(of_16_bits, 65_536) == "<u2" and preparation._token_dtype(of_32_bits, 5) == "<u4"
    with pytest.raises(UserError, match="the tokenizer has 65537 entries, too many for 16 bits"):
        preparation._token_dtype(of_16_bits, 65_537)


def test_bytes_are_those_of_the_tokens(data: DataConfig, documents: dict[str, list[list[int]]]) -> None:
    write(data, documents, "<u4")
    folder = prepare(dataclasses.replace(data, token_dtype="uint32"))
    num_tokens = sum(len(document) for of_file in documents.values() for document in of_file)
    assert read_json(folder / "manifest.json")["bytes"] == 4 * num_tokens


def test_a_warning_if_training_documents_cannot_be_left_out(
    tiny_config: Config, tiny_run: Path, tmp_path: Path, messages: Messages
) -> None:
    """The model was trained on text: the same documents as token files are not known to be the same."""
    trained_on = Path(read_json(tiny_run / "manifest.json")["token_store"])
    np.asarray(open_store(trained_on, "train").tokens).tofile(tmp_path / "same.npy")
    for source, num_warnings in ((str(tmp_path / "same.npy"), 1), (tiny_config.data.source, 0)):
        config = dataclasses.replace(tiny_config, influence=dataclasses.replace(tiny_config.influence, data=source))
        messages.clear()
        assert open_model(config, tiny_run).text.split == "held-out"
        assert len([line for line in messages if "cannot be left out" in line]) == num_warnings


def test_a_source_that_changed_during_an_interruption_is_read_again(
    data: DataConfig, documents: dict[str, list[list[int]]], messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Size and time are those of the file that was read."""

    def killed(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    write(data, documents)
    with monkeypatch.context() as patched:
        patched.setattr(preparation, "_join_split", killed)
        with pytest.raises(KeyboardInterrupt):
            prepare(data)
    path = Path(data.source) / "b.npy"
    status = path.stat()
    write(data, {"b.npy": documents["b.npy"][::-1]})
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    folder = prepare(data)
    verify_prepared(folder)
    assert [f"{path}: missing, or changed" in line for line in messages] == [True]
    (file,) = [
        file for file in read_json(folder / "manifest.json")["splits"]["train"]["files"] if file["path"] == str(path)
    ]
    assert file["sha256"] == sha256_file(path)
