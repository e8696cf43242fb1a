"""Kinds of folders of tables: every kind has columns, and a damaged manifest of any kind is one line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.kinds import KINDS
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.merging import merge_folders
from olmo_sparsity.tables.reading import read_manifest
from olmo_sparsity.tables.schemas import COLUMNS

WHOLE: dict[str, Any] = {"status": "complete", "run_id": "0123456789ab", "num_parts": 1, "num_windows": 8}
LENGTHS = {"local_len": 4, "full_len": 12, "num_long_range": 8, "max_position": 12}
OF_TEXT = {**WHOLE, "context": LENGTHS, "run": "demo", "source": "builtin", "split": "validation"}
OF_TASK = {
    **WHOLE, "context": {"max_position": 12, "num_long_range": 8}, "task": "parity", "scratchpad": False,
    "positions": "pose", "max_sparsity": 2, "train_lengths": [4, 8], "training_seed": 0,
    "modulus": 2, "background": "noise", "num_chunks": 2, "position_embedding": "rope",
}  # fmt: skip
MANIFESTS: dict[str, dict[str, Any]] = {
    "influence": OF_TEXT,
    "synthetic": OF_TASK,
}  # fmt: skip
OPTIONAL = {"num_windows"}  # what reading the tables of some kinds does not ask for


def test_the_tables_of_every_kind_have_columns() -> None:
    assert sorted(table for kind in KINDS.values() for table in kind.tables) == sorted(COLUMNS)


@pytest.mark.parametrize("kind", KINDS)
def test_a_whole_manifest_is_read(kind: str, tmp_path: Path) -> None:
    write_manifest(tmp_path, {"kind": kind, **MANIFESTS[kind]})
    assert read_manifest(tmp_path, kind)["kind"] == kind


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_missing_or_of_another_type_is_named(kind: str, tmp_path: Path) -> None:
    whole = {"kind": kind, **MANIFESTS[kind]}
    cases = [(key, {other: value for other, value in whole.items() if other != key}) for key in MANIFESTS[kind]]
    cases += [(key, {**whole, key: wrong}) for key in MANIFESTS[kind] for wrong in ({"a": []}, 10**15)]
    for key, damaged in cases:
        if key in OPTIONAL and key not in damaged:
            continue
        if damaged.get(key) == 10**15 and type(whole[key]) is int and key not in ("num_parts", "num_windows"):
            continue  # a large number is a number
        write_manifest(tmp_path, damaged)
        with pytest.raises(UserError) as error:
            read_manifest(tmp_path, kind)
        assert key in str(error.value) or (key == "status" and "unfinished" in str(error.value)), (key, damaged)


@pytest.mark.parametrize("key", ["local_len", "full_len", "num_long_range"])
def test_lengths_are_from_one_token_to_as_many_as_no_table_has(key: str, tmp_path: Path) -> None:
    for length in (1, 10**8):
        context = {**LENGTHS, key: length}
        write_manifest(tmp_path, {"kind": "influence", **OF_TEXT, "context": context})
        assert read_manifest(tmp_path, "influence")["context"] == context
    for length in (0, 10**8 + 1):
        write_manifest(tmp_path, {"kind": "influence", **OF_TEXT, "context": {**LENGTHS, key: length}})
        with pytest.raises(UserError, match=key):
            read_manifest(tmp_path, "influence")


@pytest.mark.parametrize("kind", [["influence"], {"kind": 1}, None, 3])
def test_a_kind_that_is_no_name_is_one_line(kind: Any, tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    write_manifest(tmp_path / "in", {**OF_TEXT, "kind": kind})
    with pytest.raises(UserError, match="no folder of tables"):
        merge_folders([tmp_path / "in"], tmp_path / "out")
