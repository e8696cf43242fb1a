"""`merge --check` on every kind of error, and merging of parts from separate folders."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from conftest import Messages
from typer.testing import CliRunner

from olmo_sparsity.cli.app import app
from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.work import Share
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables import merging
from olmo_sparsity.tables.merging import check_tables, merge_folders, range_words
from olmo_sparsity.tables.parts import part_path, write_parquet
from olmo_sparsity.tables.reading import read_table


@pytest.fixture
def copy(tiny_tables: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_tables, tmp_path / "tables"))


def rewrite(path: Path, change: Callable[[pa.Table], pa.Table]) -> None:
    """Rewrite a part with changed rows, and valid metadata."""
    write_parquet(change(pq.read_table(path)), path)


def with_metadata(path: Path, **changes: str) -> None:
    rewrite(
        path,
        lambda table: table.replace_schema_metadata(
            {**table.schema.metadata, **{key.encode(): value for key, value in changes.items()}}
        ),
    )


def flip_a_byte_of_a_loss(path: Path) -> None:
    """Flip a byte so that the file can still be read, with other losses. Only a checksum reveals it."""
    content, before = path.read_bytes(), pq.read_table(path)
    column = pq.ParquetFile(path).metadata.row_group(0).column(before.schema.get_field_index("loss_long_nats"))
    for place in range(column.data_page_offset, column.dictionary_page_offset or 4, -1):
        flipped = bytearray(content)
        flipped[place] ^= 1
        path.write_bytes(flipped)
        try:
            if not pq.read_table(path).equals(before):
                return
        except (pa.ArrowException, OSError):
            pass
    raise AssertionError("no such byte")


def of_window(table: pa.Table, window_id: int) -> pa.Table:
    """Return the rows of one window."""
    return table.filter(pc.field("window_id") == window_id)


ERRORS = {
    "a part is missing": (
        lambda folder: part_path(folder, "windows", part=1).unlink(),
        ["windows: windows 25-49 are missing (25 of 60)"],
    ),
    "a part of another table is missing": (
        lambda folder: part_path(folder, "selections", part=2).unlink(),
        ["selections: windows 50-59 are missing (10 of 60)"],
    ),
    "a whole table is missing": (
        lambda folder: shutil.rmtree(folder / "selections"),
        ["selections: windows 0-59 are missing (60 of 60)"],
    ),
    "a window twice in one part": (
        lambda folder: rewrite(part_path(folder, "windows", part=0), lambda t: pa.concat_tables([t, t.slice(3, 2)])),
        ["windows: windows 3-4 occur twice (2)"],
    ),
    "a window twice among its selections": (
        lambda folder: rewrite(
            part_path(folder, "selections", part=0), lambda t: pa.concat_tables([t, of_window(t, 2).slice(0, 1)])
        ),
        ["selections: windows 2 occur twice (1)"],
    ),
    "a part twice": (
        lambda folder: shutil.copy(part_path(folder, "windows", part=2), part_path(folder, "windows", part=3)),
        ["part-00003.parquet: there is no such part among the 3", "windows: windows 50-59 occur twice (10)"],
    ),
    "a part under another number": (
        lambda folder: shutil.copy(part_path(folder, "windows", part=0), part_path(folder, "windows", part=1)),
        ["part-00001.parquet: this is part 0, under the name of part 1", "windows: windows 25-49 are missing (25 of 60)"],
    ),
    "a file with another name": (
        lambda folder: shutil.copy(part_path(folder, "windows", part=0), folder / "windows" / "more.parquet"),
        ["more.parquet: there is no such part", "windows: windows 0-24 occur twice (25)"],
    ),
    "a part cut short": (
        lambda folder: part_path(folder, "windows", part=1).write_bytes(
            part_path(folder, "windows", part=1).read_bytes()[:-9]
        ),
        ["part-00001.parquet: damaged", "windows: windows 25-49 are missing (25 of 60)"],
    ),
    "a byte of a loss flipped": (
        lambda folder: flip_a_byte_of_a_loss(part_path(folder, "windows", part=1)),
        ["part-00001.parquet: damaged", "windows: windows 25-49 are missing (25 of 60)"],
    ),
    "a byte of two parts flipped": (
        lambda folder: [flip_a_byte_of_a_loss(part_path(folder, "windows", part=part)) for part in (0, 1)],
        [
            "part-00000.parquet: damaged",
            "part-00001.parquet: damaged",
            "windows: windows 0-49 are missing (50 of 60)",
        ],
    ),
    "a part without its number": (
        lambda folder: rewrite(
            part_path(folder, "windows", part=1),
            lambda t: t.replace_schema_metadata({k: v for k, v in t.schema.metadata.items() if k != b"part"}),
        ),
        ["part-00001.parquet: this is part None, under the name of part 1", "windows 25-49 are missing (25 of 60)"],
    ),
    "a part of another run": (
        lambda folder: with_metadata(part_path(folder, "selections", part=1), run_id="0123"),
        ["part-00001.parquet: from another measurement, run_id 0123; that of this folder", "windows 25-49 are missing"],
    ),
    "a part of another version": (
        lambda folder: with_metadata(part_path(folder, "windows", part=1), schema_version="1"),
        ["part-00001.parquet: schema version 1", "windows 25-49 are missing"],
    ),
    "a selection is missing": (
        lambda folder: rewrite(part_path(folder, "selections", part=0), lambda t: t.slice(1)),
        ["selections: windows 0 have fewer rows than others (1)"],
    ),
    "a window out of range": (
        lambda folder: rewrite(
            part_path(folder, "windows", part=2),
            lambda t: t.set_column(0, "window_id", pa.array(np.arange(51, 61))),
        ),
        ["part-00002.parquet: holds windows 51-60, but there are only 0-59", "windows: windows 50-59 are missing"],
    ),
    "windows out of range": (
        lambda folder: rewrite(
            part_path(folder, "windows", part=2),
            lambda t: t.set_column(0, "window_id", pa.array(np.arange(60, 70))),
        ),
        ["part-00002.parquet: holds windows 60-69, but there are only 0-59", "windows: windows 50-59 are missing"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("error", ERRORS)
def test_check_finds_every_kind_of_error(copy: Path, error: str) -> None:
    plant, expected = ERRORS[error]
    assert check_tables(copy).problems == []
    plant(copy)
    problems = check_tables(copy).problems
    assert len(problems) == len(expected), problems
    for problem, words in zip(problems, expected, strict=True):
        assert words in problem
        assert "\n" not in problem


def test_parts_of_another_version_are_neither_read_nor_merged(tiny_tables: Path, tmp_path: Path) -> None:
    newest, other = (Path(shutil.copytree(tiny_tables, tmp_path / name)) for name in ("newest", "other"))
    for path in other.rglob("part-*.parquet"):
        with_metadata(path, schema_version="3")
    said = r"part-00000.parquet: schema version 3, written by another version .*; run the same `olmo-sparsity influence` again"
    for sources in ([newest, other], [other, newest], [other]):
        with pytest.raises(UserError, match=said) as error:
            merge_folders(sources, tmp_path / f"merged-{len(list(tmp_path.iterdir()))}")
        assert "\n" not in str(error.value)
    with pytest.raises(UserError, match=said):
        read_table(other, "windows")


def test_check_on_the_command_line(copy: Path) -> None:
    manifest = read_json(copy / "manifest.json")
    write_manifest(
        copy, {**manifest, "num_windows": 10**10}
    )  # as many as a manifest may count: 90 GB, if each had an entry
    assert check_tables(copy).summary.startswith(f"{copy}: complete, 10,000,000,000 windows in 3 parts")
    missing = f"windows 60-{10**10 - 1} are missing ({10**10 - 60} of {10**10})"
    assert check_tables(copy).problems == [f"{copy}/{table}: {missing}" for table in ("windows", "selections")]
    write_manifest(copy, manifest)
    right = CliRunner().invoke(app, ["merge", "--check", str(copy)])
    assert right.exit_code == 0
    assert right.stdout == f"{copy}: complete, 60 windows in 3 parts of windows, selections\n"
    write_manifest(copy, {**read_json(copy / "manifest.json"), "status": "running"})
    unclosed = CliRunner().invoke(app, ["merge", "--check", str(copy)])
    assert unclosed.exit_code == 0
    assert "run the command that measured them again" in unclosed.stdout
    for number in range(20):
        shutil.copy(part_path(copy, "windows", part=0), copy / "windows" / f"more{number}.parquet")
    wrong = CliRunner().invoke(app, ["merge", "--check", str(copy)])
    assert wrong.exit_code == 2
    assert wrong.stdout == ""
    assert len(wrong.stderr.splitlines()) == 11
    assert wrong.stderr.endswith("and 11 more\n")
    problems = check_tables(copy).problems
    assert len(problems) == 21 and wrong.stderr.splitlines()[:10] == [str(problem) for problem in problems[:10]]
    whole = Path(shutil.copytree(copy, copy.with_name("whole"), ignore=shutil.ignore_patterns("more*")))
    both = CliRunner().invoke(app, ["merge", "--check", str(copy), str(whole)])
    assert both.exit_code == 2 and both.stdout.startswith(f"{whole}: ")  # whatever comes behind the wrong one
    more = sorted((copy / "windows").glob("more*"))
    for number, removed in ((11, more[: len(problems) - 11]), (10, more[-1:])):
        for path in removed:
            path.unlink()
        few = CliRunner().invoke(app, ["merge", "--check", str(copy)])
        left = check_tables(copy).problems
        assert (few.exit_code, len(left)) == (2, number)
        assert few.stderr.splitlines() == [*left[:10], *[f"{copy}: and 1 more"] * (number - 10)]


def test_range_words() -> None:
    assert range_words(np.array([0, 1, 2, 7, 9, 10])) == "0-2, 7, 9-10"
    assert range_words(np.arange(0, 40, 2)).endswith("16, 18 and 10 more ranges")


# --- merging -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def halves(tiny_config: Config, tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two shares of a measurement, each in its own folder: windows 0-24 and 50-59, and windows 25-49."""
    folder = tmp_path_factory.mktemp("halves")
    for index in (0, 1):
        measure(tiny_config, tiny_run, out=folder / str(index), share=Share(index, 2))
    return folder / "0", folder / "1"


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("links", [True, False])
def test_merged_shares_equal_one_measurement(
    halves: tuple[Path, Path], tiny_tables: Path, tmp_path: Path, links: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not links:  # another file system

        def refuse(*_arguments: object) -> None:
            raise OSError(18, "Invalid cross-device link")

        monkeypatch.setattr(merging.os, "link", refuse)
    before = [files_of(half) for half in halves]
    merge_folders(list(halves), tmp_path / "out")
    for table in ("windows", "selections"):
        assert read_table(tmp_path / "out", table).equals(read_table(tiny_tables, table))
        for part in range(3):
            path = part_path(tmp_path / "out", table, part=part)
            assert path.read_bytes() == part_path(tiny_tables, table, part=part).read_bytes()
            assert path.stat().st_nlink == (2 if links else 1)
    assert check_tables(tmp_path / "out").problems == []
    assert len(list((tmp_path / "out" / "sessions").iterdir())) == 2
    assert [files_of(half) for half in halves] == before
    merged = files_of(tmp_path / "out")
    merge_folders([tmp_path / "out", *halves], tmp_path / "out")  # the second time nothing is left to do
    assert read_table(tmp_path / "out", "windows").num_rows == 60 and files_of(tmp_path / "out") == merged


def test_a_merge_counts_the_parts_that_were_not_there_yet(
    halves: tuple[Path, Path], tmp_path: Path, messages: Messages
) -> None:
    out, (first, second) = tmp_path / "out", halves
    merge_folders([first], out)
    merge_folders([second, first, second], out)
    merge_folders([first, second], out)
    assert [line for line in messages if "copied" in line] == [
        f"{out}: copied 2 parts from 1 folder; 2 of 3 are there",
        f"{out}: copied 1 part from 3 folders; 3 of 3 are there",
        f"{out}: copied 0 parts from 2 folders; 3 of 3 are there",
    ]


def test_a_partial_merge_can_be_continued(
    halves: tuple[Path, Path], tiny_tables: Path, tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    merged = CliRunner().invoke(app, ["merge", str(halves[0]), "--out", str(out)])
    assert merged.exit_code == 2
    assert f"{out}: copied 2 parts from 1 folder; 2 of 3 are there" in merged.stderr
    assert "windows: windows 25-49 are missing" in merged.stderr
    assert read_json(out / "manifest.json")["status"] == "running"
    other = Path(shutil.copytree(out, tmp_path / "other"))
    merge_folders([halves[1]], other)
    measure(tiny_config, tiny_run, out=out)
    for folder in (out, other):
        assert read_json(folder / "manifest.json")["status"] == "complete"
        assert read_table(folder, "selections").equals(read_table(tiny_tables, "selections"))


def test_a_merge_that_is_killed_leaves_no_part_of_the_first_table_without_the_others(
    halves: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where parts are measured: the part of the first table vouches for those of the other tables."""
    copy, copied = merging._link_or_copy, []

    def killed_after_one(source: Path, path: Path) -> None:
        if copied:
            raise KeyboardInterrupt
        copied.append(path)
        copy(source, path)

    with monkeypatch.context() as patched:
        patched.setattr(merging, "_link_or_copy", killed_after_one)
        with pytest.raises(KeyboardInterrupt):
            merge_folders([halves[0]], tmp_path / "out")
    assert copied == [part_path(tmp_path / "out", "selections", part=0)]
    assert not part_path(tmp_path / "out", "windows", part=0).exists()
    merge_folders([*halves], tmp_path / "out")
    assert not check_tables(tmp_path / "out").problems


def test_unfinished_parts_are_not_copied(halves: tuple[Path, Path], tmp_path: Path) -> None:
    """Nor when the source was finished, of which the part was deleted."""
    source = Path(shutil.copytree(halves[0], tmp_path / "source"))
    part_path(source, "windows", part=2).unlink()
    manifest = read_json(source / "manifest.json")
    write_manifest(source, {**manifest, "status": "complete", "finished": "before"})
    merge_folders([source], tmp_path / "out")
    merged = read_json(tmp_path / "out" / "manifest.json")
    assert merged["status"] == "running" and "finished" not in merged
    assert not part_path(tmp_path / "out", "selections", part=2).exists()
    assert part_path(tmp_path / "out", "selections", part=0).exists()


def test_different_parts_are_refused_and_equal_ones_are_not(
    halves: tuple[Path, Path], tiny_tables: Path, tmp_path: Path
) -> None:
    same = Path(shutil.copytree(halves[1], tmp_path / "same"))
    rewrite(part_path(same, "windows", part=1), lambda table: table)
    assert part_path(same, "windows", part=1).read_bytes() != part_path(tiny_tables, "windows", part=1).read_bytes()
    merge_folders([*halves, same], tmp_path / "out")
    other = Path(shutil.copytree(halves[1], tmp_path / "other"))
    loss = pa.array(np.ones(25, np.float32))
    column = pq.read_schema(part_path(other, "windows", part=1)).get_field_index("loss_long_nats")
    rewrite(part_path(other, "windows", part=1), lambda t: t.set_column(column, t.schema.field(column), loss))
    before = files_of(tmp_path / "out")
    with pytest.raises(UserError, match=r"other/windows/part-00001.parquet: .* other values than .*out"):
        merge_folders([other], tmp_path / "out")
    assert files_of(tmp_path / "out") == before
    with pytest.raises(UserError, match="other values"):
        merge_folders([*halves, other], tmp_path / "new")


def test_damaged_parts_and_other_measurements_are_refused(
    halves: tuple[Path, Path], tmp_path: Path, tiny_run: Path
) -> None:
    damaged = Path(shutil.copytree(halves[1], tmp_path / "damaged"))
    flip_a_byte_of_a_loss(part_path(damaged, "windows", part=1))
    with pytest.raises(UserError, match=r"damaged/windows/part-00001.parquet: damaged"):
        merge_folders([*halves[:1], damaged], tmp_path / "out")
    assert not part_path(tmp_path / "out", "windows", part=1).exists()
    merge_folders(list(halves), tmp_path / "out")
    assert read_json(tmp_path / "out" / "manifest.json")["status"] == "complete"
    for path in (part_path(damaged, "windows", part=1), part_path(tmp_path / "out", "windows", part=1)):
        os.utime(path, (1, 1))  # as of a copy that keeps times; its size is the same, too
    with pytest.raises(UserError, match=r"damaged/windows/part-00001.parquet: damaged"):
        merge_folders([damaged], tmp_path / "out")
    other = Path(shutil.copytree(halves[1], tmp_path / "other"))
    manifest = read_json(halves[1] / "manifest.json")
    for fact, value in (
        ("run_id", "0123"), ("windows_sha256", "4567"), ("num_parts", 4), ("num_windows", 61), ("windows_per_part", 24),
        ("context", {**manifest["context"], "local_len": 7}),
    ):  # fmt: skip
        write_manifest(other, {**manifest, fact: value})
        words = f"other: from another measurement than .*: {fact} is {re.escape(str(value))}, not "
        with pytest.raises(UserError, match=words):
            merge_folders([halves[0], other], tmp_path / "new")
        with pytest.raises(UserError, match=f"out: from another measurement than .*other: {fact} is "):
            merge_folders([other], tmp_path / "out")
    write_manifest(other, {key: value for key, value in manifest.items() if key != "windows_sha256"})
    with pytest.raises(UserError, match=r"windows_sha256 is [0-9a-f]{64}, not None"):  # of what lacks it
        merge_folders([other, halves[0]], tmp_path / "new")
    assert not (tmp_path / "new").exists()
    for folder, message in ((tmp_path / "nowhere", "no such folder"), (tiny_run, "no folder of tables")):
        with pytest.raises(UserError, match=message):
            merge_folders([folder], tmp_path / "new")
        with pytest.raises(UserError, match=message):
            check_tables(folder)
    with pytest.raises(UserError, match="no influence folder"):
        merge_folders(list(halves), tiny_run)


def test_merge_needs_either_check_or_out(halves: tuple[Path, Path], tmp_path: Path) -> None:
    for options in ([], ["--check", "--out", str(tmp_path / "out")]):
        refused = CliRunner().invoke(app, ["merge", str(halves[0]), *options])
        assert isinstance(refused.exception, UserError)
        assert "either --check, or --out" in str(refused.exception)


@pytest.mark.parametrize("name", ["windows/part-00001.parquet", "sessions/pipe.json", "manifest.json"])
def test_a_pipe_is_refused_and_not_waited_for(halves: tuple[Path, Path], name: str, tmp_path: Path) -> None:
    piped = Path(shutil.copytree(halves[1], tmp_path / "piped"))
    (piped / name).unlink(missing_ok=True)
    os.mkfifo(piped / name)
    with pytest.raises(UserError, match=rf"piped/{name}: this is a pipe or a device"):
        merge_folders([halves[0], piped], tmp_path / "out")
    if name != "manifest.json":
        with pytest.raises(UserError, match=rf"piped/{name}: this is a pipe or a device"):
            merge_folders([halves[0]], piped)
