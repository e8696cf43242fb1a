"""Files of every kind as sources: the documents in them, and the one line that is said of what is none."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import zstandard

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.text.prepare import prepare, store_folder
from olmo_sparsity.text.sources import make_document, open_source, read_document, read_piece, split_of
from olmo_sparsity.text.store import open_store, read_manifest
from olmo_sparsity.text.tokenizer import train_bpe

TEXTS = ["naïve \u6cb3 \U0001f30a", "two\r\nlines\n", "\ufeff inside", " spaces  ", "last \x00 one"]
LINES = "".join(json.dumps({"id": 1, "text": text}) + "\n" for text in TEXTS).encode()
LFS = b"version https://git-lfs.github.com/spec/v1\n"


def data_of(path: Path | str, **changes: object) -> DataConfig:
    return dataclasses.replace(DataConfig(source=str(path), tokenizer="bpe:300"), **changes)  # type: ignore[arg-type]


def texts_of(data: DataConfig) -> list[str]:
    return [document.text for piece in open_source(data).pieces for document in read_piece(data, piece)]


def zstd(content: bytes, **options: int) -> bytes:
    parameters = zstandard.ZstdCompressionParameters(**options) if options else None
    return zstandard.ZstdCompressor(compression_params=parameters).compress(content)


def parquet(frame: pd.DataFrame, **options: int) -> bytes:
    return bytes(frame.to_parquet(**options))


def test_all_formats_give_the_same_documents(tmp_path: Path) -> None:
    """The first bytes say how a file is packed, whatever it is called."""
    skippable = b"\x50\x2a\x4d\x18\x04\x00\x00\x00abcd"
    frame = pd.DataFrame({"id": 1, "text": TEXTS})
    for name, content in {
        "a.parquet": parquet(frame, row_group_size=2),
        "b.PARQUET": parquet(pd.DataFrame({"text": pd.Categorical(TEXTS)})),
        "table.jsonl": parquet(frame),
        "lines.parquet": LINES,
        "a.jsonl": LINES,
        "a.json": b"\xef\xbb\xbf" + LINES.replace(b"\n", b"\n\n"),
        "a.jsonl.gz": gzip.compress(LINES[:99]) + gzip.compress(LINES[99:]) + bytes(512),
        "a.json.GZ": gzip.compress(LINES),
        "packed.jsonl": gzip.compress(LINES),
        "other.jsonl.gz": zstd(LINES),
        "plain.json.zst": LINES,
        "a.json.zst": zstd(LINES[:99]) + zstd(b"") + zstd(LINES[99:]),
        "a.jsonl.zst": skippable + zstd(LINES) + skippable,
        "long.jsonl.zst": zstd(LINES, window_log=28, enable_ldm=1),
        "nan.jsonl": LINES.replace(b"1", b"NaN"),
    }.items():
        (tmp_path / name).write_bytes(content)
        assert texts_of(data_of(tmp_path / name)) == TEXTS, name
    (tmp_path / "field.jsonl").write_bytes(LINES.replace(b'"text"', b'"body"'))
    assert texts_of(data_of(tmp_path / "field.jsonl", text_field="body")) == TEXTS
    for number, text in enumerate(TEXTS):
        (tmp_path / f"{number}.txt").write_bytes(b"\xef\xbb\xbf" + text.encode())  # a BOM is no part of the text
        assert read_document(tmp_path / f"{number}.txt", "text") == text  # line ends are
    assert texts_of(data_of(f"{tmp_path}/*.txt")) == TEXTS


def test_folders_and_globs_read_the_same_files(tmp_path: Path) -> None:
    """Hidden copies and what datasets writes are left out; an empty .txt is a document without text everywhere."""
    for name in ("b.txt", "sub/a.TXT", ".ipynb_checkpoints/b.txt", ".c.txt", "sub/._a.txt", "notes.csv", "state.json"):
        (tmp_path / "d" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "d" / name).write_text(name)
    (tmp_path / "d" / "empty.txt").write_text("")
    (tmp_path / "linked.txt").write_text("linked")
    (tmp_path / "d" / "link.txt").symlink_to(tmp_path / "linked.txt")
    (tmp_path / "empty").mkdir()
    (tmp_path / "d" / "folder.txt").symlink_to(tmp_path / "empty")
    for path in (tmp_path / "d", f"{tmp_path}/d/**/*"):
        source = open_source(data_of(path))
        names = [str(path.relative_to(tmp_path / "d")) for piece in source.pieces for path in piece]
        assert names == ["b.txt", "empty.txt", "link.txt", "sub/a.TXT"] and len(source.pieces) == 1
        assert texts_of(data_of(path)) == ["b.txt", "", "linked", "sub/a.TXT"]
        assert source.others == "1 linked folder, 1 .csv, 1 .json"
    (tmp_path / "[x].txt").write_text("marks of a glob")
    assert texts_of(data_of(tmp_path / "[x].txt")) == ["marks of a glob"]


BAD = {  # content of the file, and words of the line
    "none.jsonl": (None, "no such file, folder or glob"),
    "a.csv": (b"x", "no text (.jsonl, .jsonl.gz, "),
    "cut.jsonl": (LINES[:-9], "cut.jsonl:5: not JSON"),
    "null.jsonl": (b'{"text": "a"}\n\n{"text": null}\n', "null.jsonl:3: Expected `str`, got `null`"),
    "number.jsonl": (b'{"text": 5}\n', "Expected `str`, got `int`"),
    "body.jsonl": (b'{"body": "a"}\n', "missing required field `text`; name another field (data.text_field)"),
    "list.jsonl": (b'"a"\n', "list.jsonl:1: Expected `object`, got `str`"),
    "half.jsonl": (b'{"text": "a\\ud800"}\n', "half.jsonl:1: half a surrogate pair"),
    "latin.jsonl": (LINES + '{"text": "é"}\n'.encode("latin-1"), "latin.jsonl:6: not UTF-8 text"),
    "array.json": (b' \n[{"text": "a"}]', "a JSON array; write one object a line: jq -c .[]"),
    "array.json.gz": (gzip.compress(b'[{"text": "a"}]'), "a JSON array"),
    "pretty.json": (b'{\r\n  "text": "a"\r\n}\r\n', "a JSON object over several lines"),
    "nested.jsonl": (b'{"a":' * 99_999 + b"\n", "nested.jsonl:1: not JSON"),
    "lfs.jsonl": (LFS, "a Git LFS pointer; fetch the file it points to: git lfs pull"),
    "lfs.parquet": (LFS, "a Git LFS pointer"),
    "lfs.txt": (LFS, "a Git LFS pointer"),
    "lfs.npy": (LFS, "a Git LFS pointer"),
    "zip.json": (b"PK\x03\x04..", "a ZIP archive; unpack it"),
    "wide.txt": ("text".encode("utf-16"), "UTF-16 text; write it as UTF-8"),
    "bare.txt": ("text".encode("utf-16-le"), "UTF-16 text without its mark, or no text"),
    "wide.jsonl": (LINES.decode().encode("utf-16"), "UTF-16 text"),
    "latin.txt": ("é".encode("latin-1"), "latin.txt: not UTF-8 text"),
    "cut.jsonl.gz": (gzip.compress(LINES * 50)[:-9], "cannot be read on (Compressed file ended"),
    "cut.jsonl.zst": (zstd(LINES * 50)[:-9], "cannot be read on (Truncated"),
    "bits.jsonl.gz": (gzip.compress(LINES)[:10] + b"\xff" * 99, "bits.jsonl.gz:1: cannot be read on"),
    "table.parquet": (b"PAR1....PAR1", "cannot be read on (Parquet"),
    "cut.parquet": (parquet(pd.DataFrame({"text": TEXTS}))[:300], "cannot be read on (Parquet"),
    "null.parquet": (parquet(pd.DataFrame({"text": ["x", None]})), "null.parquet:2: Expected `str`, got `null`"),
    "body.parquet": (parquet(pd.DataFrame({"body": ["x"]})), "body.parquet:1: Object missing required field `text`"),
    "empty.txt": (b"", "holds no document with text in it"),
    "blank.jsonl": (b'\n{"text": " \\n"}\n', "holds no document with text in it"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_no_text_is_named_for_what_it_is(name: str, tmp_path: Path) -> None:
    content, words = BAD[name]
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    tokenizer = "dolma-v1.5" if name.endswith(".npy") else "bpe:300"
    with pytest.raises(UserError) as refused:
        prepare(data_of(path, cache_dir=str(tmp_path / "cache"), tokenizer=tokenizer))
    assert words in str(refused.value) and "\n" not in str(refused.value) and str(path) in str(refused.value)
    assert not list((tmp_path / "cache").glob("*"))


def test_folders_and_names_without_text(tmp_path: Path) -> None:
    def refused(source: Path | str, words: str) -> None:
        with pytest.raises(UserError, match=words):
            open_source(data_of(source))

    saved = tmp_path / "saved"
    saved.mkdir()
    refused(saved, "no text .* but nothing$")
    with pa.ipc.new_stream(saved / "data-00000-of-00001.arrow", pa.schema([("text", pa.string())])):
        pass
    for name in ("dataset_info.json", "state.json"):
        (saved / name).write_text("{}")
    refused(saved, r"but 2 \.json, 1 \.arrow; what datasets saved is read after to_parquet")
    for name in ("a.npy", "a.txt"):
        (saved / name).write_text("x")
    refused(saved, r"both text \(a\.txt\) and tokens \(a\.npy\); select one with a glob")
    (tmp_path / os.fsdecode(b"\xff.txt")).write_text("x")
    refused(f"{tmp_path}/*.txt", "not UTF-8, and could not be written into tables")
    os.mkfifo(tmp_path / "pipe.txt")
    refused(tmp_path / "pipe.txt", "a pipe or a device")
    (tmp_path / "two.jsonl").write_bytes(LINES)
    for path, words in ((tmp_path, "no such file"), (tmp_path / "two.jsonl", "5 documents, where one is expected")):
        with pytest.raises(UserError, match=words):
            read_document(path, "text")


def test_a_replaced_file_is_another_text(tmp_path: Path) -> None:
    """Of the same size and time, in the same place or moved there; and every key that the tokens depend on counts."""
    path, other = tmp_path / "a.txt", tmp_path / "b"
    path.write_text("one two")
    data = data_of(path, cache_dir=str(tmp_path / "cache"))
    first = store_folder(data, open_source(data))
    assert store_folder(data, open_source(data)) == first and first.name.startswith("a-txt-bpe-300-")
    names = {first.name}
    changed = {"validation_percent": 20.0, "max_tokens": 5, "tokenizer": "bpe:400", "eos_token": "x"}
    for key, value in changed.items():
        keyed = dataclasses.replace(data, **{key: value})  # type: ignore[arg-type]
        names.add(store_folder(keyed, open_source(keyed)).name)
    other.write_text("two one")
    for path_of in (path, other):
        os.utime(path_of, ns=(0, 0))
    names.add(store_folder(data, open_source(data)).name)
    time.sleep(0.02)  # times of files have the grain of the system's clock
    shutil.copy2(other, path)  # as cp -p
    names.add(store_folder(data, open_source(data)).name)
    time.sleep(0.02)
    os.replace(other, path)
    names.add(store_folder(data, open_source(data)).name)
    for contents in ("one", "two"):  # of the tokenizer
        (tmp_path / "t.json").write_text(contents)
        keyed = dataclasses.replace(data, tokenizer=str(tmp_path / "t.json"))
        names.add(store_folder(keyed, open_source(keyed)).name)
        names.add(store_folder(data, open_source(data), tmp_path / "t.json").name)
    assert len(names) == 12


def test_the_split_is_a_function_of_the_text() -> None:
    documents = [make_document(f"text {number}", "x") for number in range(4000)]
    held_out = {one.doc_id for one in documents if split_of(one.group, 10) == "validation"}
    assert abs(len(held_out) / 4000 - 0.1) < 5 * (0.1 * 0.9 / 4000) ** 0.5
    assert held_out <= {one.doc_id for one in documents if split_of(one.group, 20) == "validation"}
    parts = [make_document(f"The Moon -- part {number}", "x", group="The Moon") for number in range(40)]
    assert len({split_of(one.group, 50) for one in parts}) == 1  # parts of one article stay together


def test_c4_is_read_from_the_cache_of_the_hub(tmp_path: Path, cached_c4: Path) -> None:
    """File by file at its pinned revision; what is not there and cannot be fetched is one line."""
    (cached_c4 / "c4-train.00000-of-01024.json.gz").write_bytes(gzip.compress(LINES))
    (cached_c4 / "c4-train.00001-of-01024.json.gz").write_bytes(gzip.compress(LINES.replace(b"last", b"next")))
    train_bpe(TEXTS, 300, eos_token="<|endoftext|>").save(str(tmp_path / "t.json"))
    data = data_of(cached_c4, tokenizer=str(tmp_path / "t.json"), cache_dir=str(tmp_path / "cache"))
    local = open_store(prepare(data), "train")
    data = dataclasses.replace(data, source="c4", max_tokens=len(local.tokens))
    store = open_store(prepare(data), "train")
    assert store.doc_ids_G.tolist() == local.doc_ids_G.tolist()
    assert {*store.source_of(np.arange(store.num_documents))} == {"c4/en"}
    more = dataclasses.replace(data, max_tokens=len(local.tokens) + 1)
    with pytest.raises(
        UserError, match=r"^data\.source=c4: no access to the hub \(.+\); go online, or name local files"
    ):
        prepare(more)
    assert read_manifest(store_folder(more, open_source(more))).pieces == 2  # what was read is kept
