"""Tables that are damaged, or of which a part is another's: they are refused, and never give other numbers."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from conftest import Messages
from made_up import made_up_tables

from olmo_sparsity.cli.app import app
from olmo_sparsity.cli.endings import run
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.parts import is_measured
from olmo_sparsity.storage.manifests import read_manifest_of, write_manifest
from olmo_sparsity.tables.merging import check_tables, read_verified_part
from olmo_sparsity.tables.parts import part_path, write_part
from olmo_sparsity.tables.reading import (
    check_values,
    find_tables,
    list_finished,
    named_tables,
    newest_shown,
    read_table,
    read_windows,
)
from olmo_sparsity.tables.schemas import ROW_MEANINGS, schemas


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_tables(tmp_path_factory.mktemp("tables") / "undamaged", num_documents=6)


@pytest.fixture
def tables(undamaged: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(undamaged, tmp_path / "tables"))


def load(tables: Path) -> dict[str, pa.Table]:
    return {table: read_table(tables, table) for table in ("windows", "selections")}


def rewrite(folder: Path, table: str, change: Callable[[pa.Table], pa.Table], **metadata: str) -> None:
    """Write the first part of a table again, valid and with other contents or metadata."""
    content = change(pq.read_table(part_path(folder, table, part=0)))
    write_part(folder, table, part=0, content=content, metadata={"run_id": "0", **metadata})


@pytest.mark.parametrize("table", ["windows", "selections"])
def test_a_damaged_page_is_found_by_every_way_to_read(tables: Path, table: str) -> None:
    path = part_path(tables, table, part=0)
    column = pq.ParquetFile(path).metadata.row_group(0).column(0)  # window_id
    content = bytearray(path.read_bytes())
    begin = column.dictionary_page_offset or column.data_page_offset
    content[begin + column.total_compressed_size - 2] ^= 1  # inside of the last page
    path.write_bytes(content)
    for read in (
        lambda: load(tables),
        lambda: read_table(tables, table, columns=["window_id"]),
        lambda: read_windows(tables, table, window_ids=[0]),
    ):
        with pytest.raises(
            UserError,
            match=r"part-00000\.parquet: damaged; delete it, then run the same .* again, it continues$",
        ):
            read()


@pytest.mark.parametrize("number", [errno.EACCES, errno.EMFILE, errno.EIO, errno.ESTALE])
def test_a_part_that_the_system_cannot_read_is_not_called_damaged(
    tables: Path, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = part_path(tables, "selections", part=0)

    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError(number, "Failed to open local file")  # of pyarrow's errors no attribute names the file

    monkeypatch.setattr(pq, "ParquetFile", refuse)
    for read in (
        lambda: read_table(tables, "selections"),
        lambda: read_windows(tables, "selections", window_ids=[0]),
        lambda: read_verified_part(path, "selections", part=0, manifest=read_manifest_of(tables)),
    ):
        with pytest.raises(OSError, match=re.escape(os.strerror(number))) as error:
            read()
        assert (error.value.errno, error.value.filename) == (number, str(path))


def test_too_many_open_files_are_one_line_that_says_so(
    tables: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.EMFILE, "Failed to open local file")

    write_manifest(tables, {**read_manifest_of(tables), "num_windows": read_table(tables, "windows").num_rows})
    monkeypatch.setattr(pq, "ParquetFile", refuse)
    for words in (["summary", "--tables"], ["merge", "--check"]):
        assert run(app, [*words, str(tables)]) == 2
        said = capsys.readouterr().err
        assert "part-00000.parquet: too many open files; allow more (ulimit -n)" in said
        assert "damaged" not in said and "--overwrite" not in said


def test_a_folder_in_place_of_a_part_is_no_parquet_file(tables: Path) -> None:
    path = part_path(tables, "selections", part=0)
    write_manifest(tables, {**read_manifest_of(tables), "num_windows": read_table(tables, "windows").num_rows})
    path.unlink()
    path.mkdir()
    said = (
        r"part-00000\.parquet: not a Parquet file, or cut short; delete it, then run the same .* again, it continues$"
    )
    with pytest.raises(UserError, match=said):
        read_table(tables, "selections")
    assert f"{path}: damaged, or no Parquet file" in check_tables(tables).problems


def test_a_part_of_another_measurement_is_refused(tables: Path) -> None:
    rewrite(tables, "selections", lambda content: content, run_id="another")
    with pytest.raises(UserError, match="from another measurement, run_id another; that of this folder is 0"):
        read_table(tables, "selections")
    with pytest.raises(UserError, match="from another measurement"):
        read_windows(tables, "selections", window_ids=[0])


def test_parts_under_each_others_names_are_refused(tables: Path) -> None:
    first, second = (part_path(tables, "selections", part=part) for part in (0, 1))
    shutil.copy(first, second)
    with pytest.raises(UserError, match="this is part 0, under the name of part 1"):
        read_table(tables, "selections")


def with_value(name: str, value: float) -> Callable[[pa.Table], pa.Table]:
    """Return a change of the first number of a column."""

    def change(content: pa.Table) -> pa.Table:
        field = content.schema.field(name)
        rows = content[name].to_pylist()
        rows[0] = [value, *rows[0][1:]] if isinstance(rows[0], list) else value
        return content.set_column(content.column_names.index(name), field, pa.array(rows, field.type))

    return change


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize(
    ("table", "column"),
    [
        ("windows", "weight"),
        ("windows", "loss_long_nats"),
        ("selections", "gain_sparse_nats"),
        ("selections", "scores"),
    ],
)
def test_numbers_that_are_none_are_refused(tables: Path, table: str, column: str, value: float) -> None:
    rewrite(tables, table, with_value(column, value))
    with pytest.raises(UserError, match=rf"part-00000.parquet: column {column} holds NaN or an infinite number"):
        read_table(tables, table)


def in_rows(name: str, change: Callable[[Any], Any]) -> Callable[[pa.Table], pa.Table]:
    """Return a change of the values of a column."""

    def changed(content: pa.Table) -> pa.Table:
        field = content.schema.field(name)
        rows = [change(row) for row in content[name].to_pylist()]
        return content.set_column(content.column_names.index(name), field, pa.array(rows, field.type))

    return changed


# A table and column, what is done to each of its values, and the error. The checksums of the part are right.
VALUES: list[tuple[str, str, Callable[[Any], Any], str]] = [
    ("selections", "positions", lambda row: [-1, *row[1:]], "a number that is no long-range position, 0 to 11"),
    ("selections", "positions", lambda row: [*row[:-1], 12], "a number that is no long-range position, 0 to 11"),
    ("selections", "distance_tokens", lambda row: [0, *row[1:]], "a number below 1"),
    ("selections", "distance_tokens", lambda row: row[1:], "lists of other lengths than those of positions"),
    ("selections", "k", lambda row: [0, *row[1:]], "a number below 1"),
    ("selections", "k", lambda row: None, "null, where every row has a list"),
    ("selections", "gain_sparse_nats", lambda row: row[1:], "lists of other lengths than those of k"),
    ("selections", "kl_sparse_nats", lambda row: row and [*row, 1.0], "lists of other lengths than those of k"),
    ("selections", "draw", lambda row: row - 1, "a number below 0"),
    ("windows", "weight", lambda row: -row, "a number below 0"),
    ("windows", "target_id", lambda row: -1, "a number below 0"),
    ("windows", "token_ids", lambda row: row[1:], "lists of other lengths than those of token_texts"),
    ("windows", "resampled_loss_long_nats", lambda row: row[1:], "lists of other lengths than those of resampled_loss"),
]


@pytest.mark.parametrize(
    ("table", "column", "change", "error"), VALUES, ids=[f"{case[1]}-{n}" for n, case in enumerate(VALUES)]
)
def test_values_that_no_measurement_has_are_refused(
    tables: Path, table: str, column: str, change: Callable[[Any], Any], error: str
) -> None:
    rewrite(tables, table, in_rows(column, change))
    with pytest.raises(UserError, match=rf"part-00000\.parquet: column {column} holds {error}"):
        read_table(tables, table)


# Of all tables: whole numbers that may be negative, since a model generates them; those that are at least 1; and those that are
# positions among the 12 long-range ones. All others count from 0.
FREE = {"response_ids", "true_ids", "response_positions", "true_positions"}
FROM_ONE = {("selections", "k"), ("selections", "distance_tokens"), ("windows", "last_n")}
LONG_RANGE = {
    ("windows", "group_first"), ("windows", "null_group_first"), ("selections", "positions"), ("selections", "group_first"),
    ("selections", "group_last"),
}  # fmt: skip


@pytest.mark.parametrize("table", ROW_MEANINGS)
def test_every_whole_number_has_its_range(table: str) -> None:
    manifest = {"context": {"num_long_range": 12}}
    for field in schemas(12, "word", has_places=True)[table]:
        is_list = pa.types.is_nested(field.type)
        if not pa.types.is_integer(field.type.value_type if is_list else field.type) or field.name in FREE:
            continue
        least = int((table, field.name) in FROM_ONE)
        for value in (least - 1, least, 11, 12):
            content = pa.table({field.name: pa.array([[value] if is_list else value], field.type)})
            if value < least or (value == 12 and (table, field.name) in LONG_RANGE):
                with pytest.raises(UserError, match=f"^rows: column {field.name} holds a number "):
                    check_values(content, table, where="rows", manifest=manifest)
            else:
                check_values(content, table, where="rows", manifest=manifest)


# The columns whose lists belong together, entry by entry.
AS_LONG = [
    ("windows", ("token_ids", "token_texts")),
    ("windows", ("resampled_target_ids", "resampled_loss_short_nats", "resampled_loss_long_nats")),
    ("selections", ("positions", "distance_tokens")),
    ("selections", ("group_first", "group_last")),
    (
        "selections",
        ("k", "num_tokens", "loss_sparse_nats", "gain_sparse_nats", "kl_sparse_nats", "kl_short_to_sparse_nats"),
    ),
    ("windows", ("last_n", "loss_last_nats")),
    ("windows", ("loss_damped_nats", "kl_damped_nats", "null_loss_damped_nats", "null_kl_damped_nats")),
]


@pytest.mark.parametrize(("table", "names"), AS_LONG, ids=lambda value: value if isinstance(value, str) else value[0])
def test_lists_that_belong_together_are_as_long(table: str, names: tuple[str, ...]) -> None:
    schema, manifest = schemas(12, "word")[table], {"context": {"num_long_range": 12}}
    rows = {name: [["1", "2"] if name == "token_texts" else [1, 2]] for name in names}
    for short in (None, *names):
        lists = {name: [row[0][:1]] if name == short else row for name, row in rows.items()}
        content = pa.table(lists, schema=pa.schema([schema.field(name) for name in names]))
        if short is None:
            check_values(content, table, where="rows", manifest=manifest)
            continue
        with pytest.raises(UserError, match=r"^rows: column .* holds lists of other lengths than those of "):
            check_values(content, table, where="rows", manifest=manifest)


def test_windows_has_as_many_rows_as_the_manifest_counts(tables: Path) -> None:
    manifest, number = read_manifest_of(tables), len(read_table(tables, "windows"))
    write_manifest(tables, {**manifest, "num_windows": number})
    assert len(read_table(tables, "windows")) == number
    write_manifest(tables, {**manifest, "num_windows": number + 1})
    with pytest.raises(
        UserError, match=rf"windows: {number} rows, where .* num_windows = {number + 1}; parts are missing"
    ):
        read_table(tables, "windows")


@pytest.mark.parametrize("other", [[1, 2, 5, 9], [1, 2], [1, 2, 4, 9]])
def test_a_part_with_other_k_is_refused(tables: Path, other: list[int]) -> None:
    """Its numbers would be averaged as those of the first part's k."""
    names = ["gain_sparse_nats", "loss_sparse_nats", "kl_sparse_nats", "kl_short_to_sparse_nats"]

    def change(content: pa.Table) -> pa.Table:
        content = in_rows("k", lambda row: other)(content)
        for name in names:
            content = in_rows(name, lambda row: row and [*row, *row][: len(other)])(content)
        return content

    content = change(pq.read_table(part_path(tables, "selections", part=1)))
    write_part(tables, "selections", part=1, content=content, metadata={"run_id": "0"})
    with pytest.raises(UserError, match=r"part-00001\.parquet: column k holds other numbers than \[1, 2, 8\]"):
        load(tables)


# Entry of the manifest (None: the whole file is replaced by the value), its value, and the error.
MANIFESTS: list[tuple[str | None, Any, str]] = [
    (None, "", "not valid JSON"),
    (None, "[]", "expected a JSON object"),
    (None, '{"kind": "influence", "num_parts": NaN}', "not valid JSON"),
    (None, '{"kind": "influence", "num_parts": 1e999}', "not valid JSON"),
    (None, "[" * 100_000, "not valid JSON"),
    (None, '{"kind": "\\ud800"}', "not valid JSON"),
    (None, '{"n": ' + "9" * 5000 + "}", "not valid JSON"),
    (None, "\xff", "not valid JSON"),
    ("kind", 3, "no influence folder"),
    ("kind", [], "no influence folder"),
    ("num_parts", 1, "counts num_parts = 1 of this measurement, so there is no such part"),
    ("num_parts", 3, "part-00002.parquet: this part is missing"),
    ("num_parts", True, "key num_parts: expected int, got bool"),
    ("num_windows", 5, "rows, where .*manifest.json counts num_windows = 5"),
    ("context", {"num_long_range": 0, "local_len": 8, "full_len": 20}, "key context.num_long_range: expected int >= 1"),
    (
        "context",
        {"num_long_range": 2**40, "local_len": 8, "full_len": 20},
        "key context.num_long_range: expected int <= ",
    ),
    ("context", {"num_long_range": 11, "local_len": 8, "full_len": 20}, "this is olmo-sparsity's selections table"),
    ("influence", {"sampling": "x"}, "key influence.sampling: invalid enum value 'x'"),
    ("influence", {"null_context": "y"}, "key influence.null_context: invalid enum value 'y'"),
    ("influence", {"unit": "block:0"}, "key influence.unit: expected str matching regex"),
    ("visibility", "seen", "key visibility: invalid enum value 'seen'"),
    ("model", {"name": "m"}, "key model.revision is missing"),
    ("anchor", {"id": "7", "text": "x"}, "key anchor.id: expected int, got str"),
    (
        "fit",
        {"anchor": {"loss_long_nats": {"bos": "low"}, "text": "x", "num_windows": 1}},
        "key fit.anchor.loss_long_nats",
    ),
]


@pytest.mark.parametrize(("key", "value", "error"), MANIFESTS)
def test_a_manifest_of_something_else_is_refused_in_one_line(
    tables: Path, key: str | None, value: Any, error: str
) -> None:
    path = tables / "manifest.json"
    if key is None:
        path.write_bytes(value.encode("latin-1"))
    else:
        write_manifest(tables, {**json.loads(path.read_text()), key: value})
    with pytest.raises(UserError, match=error) as raised:
        load(find_tables(tables))
    assert str(tables) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_undamaged_tables_are_read(tables: Path) -> None:
    assert len(load(find_tables(tables))["windows"]) == 9


def test_every_flipped_bit_of_a_manifest_is_found_or_changes_nothing(tables: Path) -> None:
    """What is read is the same, or it is refused; a checksum that lost its own key is missed in words."""
    path, whole = tables / "manifest.json", read_manifest_of(tables)
    content = path.read_bytes()
    found = 0
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 7
        path.write_bytes(damaged)
        try:
            read = read_manifest_of(tables)
        except UserError:
            found += 1
            continue
        is_known = read == whole or read.get("kind") != "influence"  # of no kind: no reader takes it
        assert is_known or b"content_sha256" not in damaged, content[place - 20 : place + 20]
    assert found > len(content) / 2


def test_a_manifest_that_was_changed_by_hand_is_one_line(tables: Path) -> None:
    path = tables / "manifest.json"
    content = {**json.loads(path.read_text()), "windows_sha256": "another"}
    path.write_text(json.dumps(content))
    with pytest.raises(UserError, match=r"manifest\.json: key content_sha256 is not the checksum .*delete this key"):
        load(tables)
    content.pop("content_sha256")
    path.write_text(json.dumps(content))
    assert read_manifest_of(tables)["windows_sha256"] == "another"


def test_layout_and_order_of_a_manifest_do_not_count(tables: Path) -> None:
    path, whole = tables / "manifest.json", read_manifest_of(tables)
    path.write_text(json.dumps(dict(reversed(json.loads(path.read_text()).items())), indent=7))
    assert read_manifest_of(tables) == whole


def test_a_manifest_without_its_checksum_is_read_and_that_is_said_once(tables: Path, messages: Messages) -> None:
    path = tables / "manifest.json"
    path.write_text(json.dumps(read_manifest_of(tables)))
    load(tables)
    load(tables)
    assert [line for line in messages if "content_sha256" in line] == [
        f"{path}: it has no content_sha256, so a value that was changed is not noticed"
    ]


@pytest.mark.parametrize(
    "content", ["", '{"kind": "influence"', '{"kind": "influence", "run_id": "\x1b", "num_parts": 1}']
)
def test_a_damaged_measurement_is_left_out_unless_it_is_asked_for(
    undamaged: Path, tmp_path: Path, messages: Messages, content: str
) -> None:
    """The others of its run are shown, with one warning; alone, or named in full or by its end, it is the error."""
    good, bad = (tmp_path / "influence" / name for name in ("good", "very-bad"))
    for folder in (good, bad):
        shutil.copytree(undamaged, folder)
    (bad / "manifest.json").write_text(content)
    assert list_finished(tmp_path) == [good] and newest_shown(tmp_path) == find_tables(tmp_path) == good
    warned = [line for line in messages if "this measurement is left out" in line]
    assert len(warned) == 1 and warned[0].startswith(f"{bad / 'manifest.json'}: ")
    assert named_tables(Path("bad"), tmp_path) == bad
    (good / "manifest.json").write_text("{")
    for read in (lambda: load(bad), lambda: newest_shown(tmp_path), lambda: find_tables(tmp_path)):
        with pytest.raises(UserError, match=r"manifest\.json: "):
            read()
    assert list_finished(tmp_path) == []


def test_a_finished_folder_that_does_not_say_how_many_windows_it_has_is_not_measured_over(tables: Path) -> None:
    with pytest.raises(UserError, match=r"manifest\.json: key num_windows is missing; the file is damaged"):
        is_measured(tables, "influence", run_id="0")
    with pytest.raises(UserError, match=r"manifest\.json: key num_windows is missing; the file is damaged"):
        check_tables(tables)
