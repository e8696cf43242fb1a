"""Tables that are damaged, or of which a part is another's: they are refused, and never give other numbers."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from made_up import made_up_tables

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.tables.parts import part_path, write_part
from olmo_sparsity.tables.reading import find_tables, read_table, read_windows


@pytest.fixture(scope="module")
def undamaged(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_up_tables(tmp_path_factory.mktemp("tables") / "undamaged", num_documents=6)


@pytest.fixture
def tables(undamaged: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(undamaged, tmp_path / "tables"))


def rewrite(folder: Path, table: str, change: Callable[[pa.Table], pa.Table], **metadata: str) -> None:
    """Write the first part of a table again, valid and with other contents or metadata."""
    content = change(pq.read_table(part_path(folder, table, part=0)))
    write_part(folder, table, part=0, content=content, metadata={"run_id": "0", **metadata})


@pytest.mark.parametrize("table", ["windows", "selections"])
def test_a_flipped_bit_never_gives_other_numbers(tables: Path, table: str) -> None:
    """Bits all over the file: in pages, headers of pages and the footer. Some bits carry no meaning."""
    path, whole = part_path(tables, table, part=0), read_table(tables, table)
    content, rng = path.read_bytes(), random.Random(0)
    refused = 0
    for place in rng.sample(range(len(content)), 400):
        damaged = bytearray(content)
        damaged[place] ^= 1 << rng.randrange(8)
        path.write_bytes(damaged)
        try:
            assert read_table(tables, table).equals(whole), place
        except UserError:
            refused += 1
    assert 150 < refused < 400


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
        with pytest.raises(UserError, match=r"part-00000\.parquet: damaged; measure again"):
            read()


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
    ("status", 1, "key status: expected str, got int"),
    ("run_id", None, "key run_id: expected str, got null"),
    ("run_id", 17, "key run_id: expected str, got int"),
    ("num_parts", 1, "counts num_parts = 1 of this measurement, so there is no such part"),
    ("num_parts", 0, "key num_parts: expected int >= 1"),
    ("num_parts", -1, "key num_parts: expected int >= 1"),
    ("num_parts", 10**15, "key num_parts: expected int <= 10000000"),
    ("num_parts", 3, "part-00002.parquet: this part is missing"),
    ("num_parts", "2", "key num_parts: expected int, got str"),
    ("num_parts", 2.5, "key num_parts: expected int, got float"),
    ("num_parts", True, "key num_parts: expected int, got bool"),
    ("num_windows", 5, "rows, where .*manifest.json counts num_windows = 5"),
    ("context", [1], "key context: expected object, got array"),
    ("context", {}, "key context.(num_long_range|local_len|full_len) is missing"),
    ("context", {"num_long_range": 0, "local_len": 8, "full_len": 20}, "key context.num_long_range: expected int >= 1"),
    (
        "context",
        {"num_long_range": 2**40, "local_len": 8, "full_len": 20},
        "key context.num_long_range: expected int <= ",
    ),
    ("context", {"num_long_range": 11, "local_len": 8, "full_len": 20}, "schema version"),
    (
        "context",
        {"num_long_range": 12, "local_len": 8, "full_len": "20"},
        "key context.full_len: expected int, got str",
    ),
    ("influence", "kl", "key influence: expected object, got str"),
    ("influence", {"sampling": 3}, "key influence.sampling: expected str, got int"),
    ("model", {"name": "m"}, "key model.weights_sha256 is missing"),
    ("model", "m", "key model: expected object . null, got str"),
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
        path.write_text(json.dumps({**json.loads(path.read_text()), key: value}))
    with pytest.raises(UserError, match=error) as raised:
        load(find_tables(tables))
    assert str(tables) in str(raised.value)
    assert "\n" not in str(raised.value)


def test_the_undamaged_tables_are_read(tables: Path) -> None:
    assert len(load(find_tables(tables)).windows) == 9
