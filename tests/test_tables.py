"""Tables: what is written is what any reader reads; damage is one line; merging and killed processes lose nothing."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pandas as pd
import polars
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Messages
from started_commands import run_cli, start_command

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, write_manifest
from olmo_sparsity.tables import (
    COLUMNS,
    ROW_MEANINGS,
    check_tables,
    figures_folder,
    find_tables,
    list_finished,
    merge_folders,
    named_tables,
    newest_finished,
    part_path,
    read_parts,
    read_table,
    read_windows,
    run_of_tables,
    schemas_of,
    write_part,
)

TABLES = ("windows", "selections")
# In a process of its own: it tells of 200 leaks where one that has used it ends.
DUCKDB = """import duckdb, json, sys; print(json.dumps(duckdb.sql(f"SELECT {sys.argv[2]} FROM '{sys.argv[1]}'").fetchall()))"""


@pytest.fixture
def copy(tiny_tables: Path, tmp_path: Path) -> Path:
    """A finished measurement of 60 windows in 3 parts, alone in a folder of a run."""
    return Path(shutil.copytree(tiny_tables, tmp_path / "run" / "influence" / "copy"))


def part_bytes(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.glob("*/part-*.parquet"))}


def rewritten(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    pq.write_table(change(pq.read_table(path)), path, write_page_checksum=True)


@pytest.mark.parametrize("table", TABLES)
def test_any_reader_reads_the_same(tiny_tables: Path, table: str) -> None:
    ours = read_table(tiny_tables, table)
    assert ours.schema.equals(schemas_of(read_json(tiny_tables / "manifest.json"))[table])
    pattern = str(tiny_tables / table / "*.parquet")
    names = ["window_id", "doc_id", "loss_short_nats" if table == "windows" else "positions"]
    expected = [[row[name] for name in names] for row in ours.to_pylist()]
    assert [list(row) for row in polars.read_parquet(pattern)[names].rows()] == expected
    command = [sys.executable, "-c", DUCKDB, pattern, ",".join(names)]
    assert json.loads(subprocess.run(command, capture_output=True, check=True).stdout) == expected
    pd.testing.assert_frame_equal(pd.read_parquet(tiny_tables / table), ours.to_pandas())
    assert [len(part) for part in read_parts(tiny_tables, "windows")] == [25, 25, 10]
    assert pq.read_schema(part_path(tiny_tables, table, part=0)).metadata[b"full_len"] == b"20"
    wanted = [3, 59, 26, 99]
    rows = [row for row in ours.to_pylist() if row["window_id"] in wanted]
    assert read_windows(tiny_tables, table, window_ids=wanted) == rows and len(rows) >= 3


def test_every_table_and_column_is_explained_once() -> None:
    assert set(COLUMNS) == set(ROW_MEANINGS)
    for columns in COLUMNS.values():
        assert len({column.name for column in columns}) == len(columns)
        assert all(column.meaning.endswith(".") for column in columns)


def flip(path: Path) -> None:
    """Flip a byte in the last page of the file."""
    group = pq.ParquetFile(path).metadata.row_group(0)
    content = bytearray(path.read_bytes())
    content[group.column(group.num_columns - 1).data_page_offset + 60] ^= 0xFF
    path.write_bytes(content)


def in_place_of(path: Path, other: str) -> None:
    shutil.copy(path.with_name(other), path)


def with_metadata(path: Path, key: str) -> None:
    rewritten(path, lambda table: table.replace_schema_metadata({**table.schema.metadata, key.encode(): "0"}))


# What is done to a part, and what the line about it must say.
DAMAGE: dict[str, tuple[Callable[[Path], Any], str]] = {
    "flipped": (flip, "damaged, or no Parquet file; delete it, then run the same"),
    "cut short": (lambda path: os.truncate(path, path.stat().st_size // 2), "damaged, or no Parquet file"),
    "empty": (lambda path: path.write_bytes(b""), "damaged, or no Parquet file"),
    "text": (lambda path: path.write_bytes(b"window_id,loss\n" * 100), "damaged, or no Parquet file"),
    "missing": (Path.unlink, "this part is missing; run the same `olmo-sparsity influence` again"),
    "another part": (lambda path: in_place_of(path, "part-00000.parquet"), "this file has part 0, where 1 belongs"),
    "another measurement": (lambda path: with_metadata(path, "run_id"), "this file has run_id 0, where"),
    "another version": (
        lambda path: with_metadata(path, "schema_version"),
        "this file has schema_version 0, where 6 belongs",
    ),
    "another column": (lambda path: rewritten(path, lambda table: table.drop_columns("doc_id")), "columns window_id, "),
    "another type": (
        lambda path: rewritten(path, lambda table: table.set_column(0, "window_id", table["window_id"].cast("int32"))),
        "with their types",
    ),
    "no metadata": (
        lambda path: rewritten(path, lambda table: table.replace_schema_metadata(None)),
        "run_id none, where",
    ),
}


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize("damage", DAMAGE)
def test_damage_is_one_line_that_names_the_part(damage: str, table: str, copy: Path) -> None:
    change, said = DAMAGE[damage]
    path = part_path(copy, table, part=1)
    change(path)
    with pytest.raises(UserError) as caught:
        read_table(copy, table)
    assert str(caught.value).startswith(f"{path}: ") and said in str(caught.value) and "\n" not in str(caught.value)
    assert check_tables(copy) == [str(caught.value)]
    if damage != "missing":
        with pytest.raises(UserError, match="part-00001"):
            merge_folders([copy], copy.parent / "merged")
        assert "part-00001.parquet" not in {path.name for path in (copy.parent / "merged").rglob(f"{table}/*")}


def test_rows_that_are_missing_are_counted(copy: Path) -> None:
    path = part_path(copy, "windows", part=2)
    rewritten(path, lambda table: table.slice(1))
    with pytest.raises(UserError, match=r"59 rows, where .*manifest\.json counts num_windows = 60"):
        read_table(copy, "windows")


def test_a_manifest_that_does_not_describe_its_tables_is_one_line(copy: Path) -> None:
    whole = read_json(copy / "manifest.json")
    for changes, said in (
        ({"context": {**whole["context"], "num_long_range": 0}}, "key context.num_long_range: expected int >= 1"),
        ({"context": {"local_len": 8}}, "full_len"), ({"influence": {"unit": "line"}}, "key influence.unit"),
        ({"visibility": "seen"}, "key visibility"), ({"model": {"revision": "a"}}, "name"),
        ({"fit": {"anchor": {"chosen": "x"}}}, "key fit.anchor"), ({"num_windows": None}, "key num_windows is missing"),
        ({"own_selectors": {"a b": {}}}, "key own_selectors"), ({"status": "running"}, "these tables are unfinished"),
        ({"kind": "hf"}, "no influence folder"), ({"num_windows": 61}, "60 rows, where"),
    ):  # fmt: skip
        write_manifest(copy, {**whole, **changes})
        with pytest.raises(UserError, match=said):
            read_table(copy, "windows")


@pytest.fixture
def halves(copy: Path) -> list[Path]:
    """Parts 0 and 1 in one folder, and 1 and 2 in another."""
    folders = [Path(shutil.copytree(copy, copy.with_name(f"half{part}"))) for part in (2, 0)]
    for folder, part in zip(folders, (2, 0), strict=True):
        write_manifest(folder, {**read_json(folder / "manifest.json"), "status": "running", "finished": None})
        for table in TABLES:
            part_path(folder, table, part=part).unlink()
    return folders


def test_merged_shares_equal_one_measurement(halves: list[Path], copy: Path) -> None:
    out = copy.parent / "merged"
    partly = run_cli("merge", str(halves[0]), "--out", str(out), cwd=copy)
    assert partly.returncode == 2 and "windows/part-00002.parquet: this part is missing" in partly.stderr
    with pytest.raises(UserError, match="unfinished"):
        read_table(out, "windows")
    checked = run_cli("merge", "--check", str(halves[0]), str(copy), cwd=copy)
    assert (checked.returncode, checked.stdout) == (2, f"{copy}: complete\n")
    (halves[1] / "windows" / "part-00000.parquet").write_bytes(b"begun")  # no part: the other table has none
    (leftover := out / "windows" / ".part-00002.parquet.0a1b2c3d.partial").touch()
    os.utime(leftover, (0, 0))
    done = run_cli("merge", *map(str, halves), "--out", str(out), cwd=copy)
    assert done.returncode == 0 and not leftover.exists(), done.stderr
    assert f"{out}: 3 of 3 parts are there" in done.stdout + done.stderr
    assert part_bytes(out) == part_bytes(copy)
    assert {path.name for path in (out / "sessions").iterdir()} == {path.name for path in (copy / "sessions").iterdir()}
    assert read_json(out / "manifest.json")["status"] == "complete"
    before = (out / "manifest.json").read_bytes()
    merge_folders(halves, out)
    assert (out / "manifest.json").read_bytes() == before


@pytest.mark.parametrize("written", ["manifest.json", "selections/part-00000.parquet", "windows/part-00001.parquet"])
def test_a_merge_that_is_killed_can_be_repeated(written: str, halves: list[Path], copy: Path) -> None:
    out = copy.parent / "merged"
    command = start_command("merge", *map(str, halves), "--out", str(out), cwd=copy)
    while command.poll() is None and not (out / written).exists():
        time.sleep(0.001)
    with contextlib.suppress(ProcessLookupError):
        command.send_signal(signal.SIGKILL)
    command.communicate()
    assert part_bytes(out).items() <= part_bytes(copy).items()
    merge_folders(halves, out)
    assert part_bytes(out) == part_bytes(copy)


def test_what_does_not_belong_together_is_not_merged(halves: list[Path], copy: Path, tmp_path: Path) -> None:
    manifest, part = read_json(halves[1] / "manifest.json"), part_path(halves[1], "windows", part=1)
    out, content, secret = tmp_path / "out", part.read_bytes(), tmp_path / "secret.json"
    secret.write_text('{"mine": 1}')

    def other_values() -> None:
        rewritten(part, lambda table: table.set_column(2, "weight", pa.array([2.0] * len(table))))

    def link_out() -> None:
        (halves[1] / "sessions" / "a.json").symlink_to(secret)

    def pipe() -> None:
        part.unlink()
        os.mkfifo(part)

    def link_part() -> None:
        part.unlink()
        part.symlink_to(secret)

    for change, said in (
        (other_values, "this part has other values than"), (link_out, "a symbolic link leads out of"), (pipe, "this is a pipe"),
        (link_part, "a symbolic link leads out of"),
        (lambda: write_manifest(halves[1], {**manifest, "num_parts": None}), "key num_parts is missing"),
        (lambda: write_manifest(halves[1], {**manifest, "run_id": "0"}), "run_id is 0, not"),
        (lambda: write_manifest(halves[1], {**manifest, "num_parts": 4}), "num_parts is 4, not 3"),
        (lambda: write_manifest(halves[1], {**manifest, "kind": "run"}), "this is no folder of tables"),
    ):  # fmt: skip
        change()
        with pytest.raises(UserError, match=said):
            merge_folders(halves, out)
        assert not list(out.rglob("a.json")) and part_bytes(out).items() <= part_bytes(copy).items()
        (halves[1] / "sessions" / "a.json").unlink(missing_ok=True)
        part.unlink()
        part.write_bytes(content)


def test_finished_folders_are_found_in_their_order(
    copy: Path, messages: Messages, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, manifest = copy.parents[1], read_json(copy / "manifest.json")
    for name, finished in (("8of20-a", "2"), ("8of20-b", "0"), ("4of20-b", "1"), ("begun", None)):
        status = "running" if finished is None else "complete"
        (run / "influence" / name).mkdir()
        write_manifest(run / "influence" / name, {**manifest, "finished": finished, "status": status})
    assert [folder.name for folder in list_finished(run)] == ["8of20-b", "4of20-b", "8of20-a", "copy"]
    assert newest_finished(run) == find_tables(run) == find_tables(copy) == copy
    assert "3 more there" in messages[-1]
    (run / "influence" / "8of20-a" / "manifest.json").write_text("{")
    assert len(list_finished(run)) == 3 and "8of20-a" in messages[-1] and "left out" in messages[-1]
    for given, meant in (("8of20-a", "8of20-a"), ("20-a", "8of20-a"), ("4of20-b", "4of20-b"), ("copy", "copy")):
        assert named_tables(Path(given), run) == run / "influence" / meant
    with pytest.raises(UserError, match="4of20-b and 8of20-b of"):
        named_tables(Path("b"), run)
    for elsewhere in (Path("nowhere"), Path("nowhere/8of20-a")):
        assert named_tables(elsewhere, run) == elsewhere
    assert (run_of_tables(copy), figures_folder(copy)) == (run, run / "figures" / "copy")
    link = run.parent / "elsewhere" / "link"
    link.parent.mkdir()
    link.symlink_to(copy)
    assert run_of_tables(link) == run.resolve()
    monkeypatch.chdir(run)
    assert run_of_tables(Path("influence/copy")) == run.resolve()
    monkeypatch.chdir(copy)
    assert figures_folder(Path()) == run / "figures" / "copy"
    for nothing, said in ((run / "influence", "nothing"), (run / "nowhere", "no such folder")):
        with pytest.raises(UserError, match=f"{said}.*run `olmo-sparsity influence` first"):
            newest_finished(nothing)
    alone = run.parent / "alone" / "influence" / "damaged"
    alone.mkdir(parents=True)
    (alone / "manifest.json").write_text("{")
    with pytest.raises(UserError, match=r"damaged/manifest\.json: "):
        newest_finished(run.parent / "alone")
    with pytest.raises(UserError, match="elsewhere/moved: these tables are not in a run folder; say with --out"):
        figures_folder(copy.rename(link.with_name("moved")))


def test_a_folder_that_is_named_like_the_home_folder_is_itself(
    copy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(copy, "~")
    content = read_table(Path("~"), "windows")
    write_part(Path("~/written"), "windows", part=0, content=content, metadata={"run_id": "0"})
    assert pq.read_table(str(tmp_path / "~" / "written" / "windows" / "part-00000.parquet")).equals(content)
