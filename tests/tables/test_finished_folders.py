"""Which of the finished folders of a run is meant: the newest, or the one of a name; and lists of unequal lengths."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from conftest import Messages

from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.merging import range_words
from olmo_sparsity.tables.parts import part_number
from olmo_sparsity.tables.reading import (
    figures_folder,
    list_finished,
    named_tables,
    newest_finished,
    newest_shown,
)

CONTEXT = {"local_len": 8, "full_len": 20, "num_long_range": 12}


def measurement(run: Path, name: str, *, finished: str, kind: str = "influence", status: str = "complete") -> Path:
    folder = run / kind / name
    folder.mkdir(parents=True)
    manifest = {"kind": kind, "run_id": "a", "num_parts": 1, "num_windows": 1, "context": CONTEXT}
    write_manifest(folder, {**manifest, "status": status, "finished": finished})
    return folder


@pytest.fixture
def folders(tmp_path: Path) -> list[Path]:
    """Three measurements in the order in which they were finished, which is not that of their names."""
    measurement(tmp_path, "z-late", finished="2026-03-01", status="running")
    measurement(tmp_path, "zz", finished="2026-04-01", kind="synthetic")
    dates = {"own-b": "2026-01-01", "c": "2026-01-02", "a-b": "2026-02-01"}
    return [measurement(tmp_path, name, finished=date) for name, date in dates.items()]


def test_the_folder_that_was_finished_last_is_the_newest(
    folders: list[Path], tmp_path: Path, messages: Messages
) -> None:
    assert list_finished(tmp_path) == folders
    assert newest_finished(tmp_path) == newest_shown(tmp_path) == folders[-1]
    assert [line.partition("; ")[2].partition(" there")[0] for line in messages] == ["2 others are"]
    messages.clear()
    one = tmp_path / "one"
    only = measurement(one, "only", finished="2026-01-01")
    assert newest_shown(one) == only and not list(messages)
    measurement(one, "second", finished="2026-01-02")
    assert newest_shown(one).name == "second"
    assert [line.partition("; ")[2].partition(" there")[0] for line in messages] == ["another one is"]


def test_a_name_means_the_folder_that_has_it_or_the_only_one_that_ends_so(folders: list[Path], tmp_path: Path) -> None:
    own_b, c, a_b = folders
    for name, meant in (("c", c), ("own-b", own_b), ("a-b", a_b), ("n-b", own_b), ("zz", Path("zz")), ("d", Path("d"))):
        assert named_tables(Path(name), tmp_path) == meant
    with pytest.raises(UserError, match=r"b: own-b and a-b of .* end so; give more of the name"):
        named_tables(Path("b"), tmp_path)
    assert named_tables(Path("some/c"), tmp_path) == Path("some/c")
    assert named_tables(tmp_path / "influence", tmp_path) == tmp_path / "influence"
    measurement(tmp_path, "b", finished="2026-01-05")
    assert named_tables(Path("b"), tmp_path) == tmp_path / "influence" / "b"
    assert figures_folder(c / ".." / "c") == tmp_path / "figures" / "c"


@pytest.mark.parametrize(
    ("number", "ending"), [(9, "16"), (10, "18"), (11, "18 and 1 more range"), (12, "18 and 2 more ranges")]
)
def test_ten_ranges_are_listed(number: int, ending: str) -> None:
    assert range_words(np.arange(number) * 2).split(", ")[-1] == ending


def test_the_number_of_a_part_stands_in_its_name() -> None:
    names = {
        "part-00012.parquet": 12,
        "part-123456.parquet": 123456,
        "part-0012.parquet": None,
        "part-00012.json": None,
    }
    names |= {"xpart-00012.parquet": None, "part-00012.parquet.partial": None, "part-00012_parquet": None}
    assert {name: part_number(Path("windows") / name) for name in names} == names
