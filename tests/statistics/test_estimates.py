"""The file of estimates beside its tables, and estimates of some windows of what was measured."""

from __future__ import annotations

import copy
import resource
import shutil
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
from unlike_tables import Rows, unlike_manifest, unlike_rows, write_rows

from olmo_sparsity.api.results import read_results
from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.frames import read_frames
from olmo_sparsity.statistics.quantities import estimate, read_estimates

MANIFEST = unlike_manifest()


@pytest.fixture(scope="module")
def rows() -> Rows:
    return unlike_rows(MANIFEST)


@pytest.fixture(scope="module")
def estimated(rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tables with their estimates."""
    folder = write_rows(tmp_path_factory.mktemp("estimated") / "tables", MANIFEST, rows)
    read_estimates(folder)
    return folder


@pytest.fixture
def folder(estimated: Path, tmp_path: Path) -> Path:
    """A copy of them without the estimates."""
    return Path(shutil.copytree(estimated, tmp_path / "tables", ignore=shutil.ignore_patterns("estimates.parquet")))


def same(found: pd.DataFrame, expected: pd.DataFrame) -> bool:
    """Whether two frames have the same rows in the same order, with the same types."""
    pd.testing.assert_frame_equal(found, expected, check_exact=True)
    return True


def test_estimates_are_written_once_and_read_back_whole(folder: Path) -> None:
    made = read_estimates(folder)
    (written,) = folder.glob("*estimates*")
    before = written.stat()
    read = read_estimates(folder)
    assert same(read, made)
    assert read.attrs == made.attrs
    assert (written.stat().st_ino, written.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    frames = read_frames(folder)
    whole, by_class = made[made["group"].isna()], made[made["group"].notna()]
    assert same(whole.reset_index(drop=True), estimate(frames))
    assert same(by_class.reset_index(drop=True), estimate(frames, by="target_class"))
    assert made.attrs["manifest"]["run"] == "unlike"


@pytest.mark.parametrize(
    "change", ["another measurement", "another run_id", "cut short", "no Parquet", "other columns"]
)
def test_estimates_that_are_not_of_these_tables_are_made_again(
    change: str, estimated: Path, folder: Path, rows: Rows, tmp_path: Path
) -> None:
    path, expected = folder / "estimates.parquet", read_estimates(estimated)
    shutil.copy(estimated / "estimates.parquet", path)
    content = path.read_bytes()
    if change == "another measurement":
        moved = copy.deepcopy(rows)
        for window in moved["windows"]:
            window["kl_short_nats"] *= 2
        other = write_rows(tmp_path / "other", unlike_manifest(run_id="s"), moved)
        assert not read_estimates(other)["value"].equals(expected["value"])
        shutil.copy(other / "estimates.parquet", path)
    elif change == "another run_id":
        table = pq.read_table(path)
        metadata = {name: value.replace(b'"r"', b'"q"') for name, value in table.schema.metadata.items()}
        pq.write_table(table.replace_schema_metadata(metadata), path)
    elif change == "cut short":
        path.write_bytes(content[: len(content) // 2])
    elif change == "no Parquet":
        path.write_text("value\n1\n")
    else:
        expected.drop(columns="se").to_parquet(path)
    assert same(read_estimates(folder), expected)
    assert path.read_bytes() == content


def test_a_disk_that_takes_no_more_shows_the_numbers_all_the_same(folder: Path) -> None:
    before, (soft, hard) = sorted(folder.iterdir()), resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100, hard))
    try:
        found = read_estimates(folder)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(folder.iterdir()) == before
    assert same(found, read_estimates(folder))


def test_damaged_tables_have_no_estimates(folder: Path) -> None:
    part = folder / "selections" / "part-00001.parquet"
    part.write_bytes(part.read_bytes()[:-100])
    with pytest.raises(UserError):
        read_estimates(folder)
    assert not (folder / "estimates.parquet").exists()


def test_saved_results_do_not_keep_the_estimates_of_what_they_replace(folder: Path, tmp_path: Path) -> None:
    results = read_results(folder)
    saved = results.save(tmp_path / "saved")
    before = read_estimates(saved)
    changed = type(results)(results.windows.assign(kl_short_nats=1.0), results.selections, results.manifest)
    found = read_estimates(changed.save(saved, overwrite=True))
    assert same(found[found["group"].isna()], changed.summary())
    assert not found["value"].equals(before["value"])
