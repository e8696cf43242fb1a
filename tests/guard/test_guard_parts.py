"""``influence`` in parts: draws of windows, killed and resumed, sharded and merged, in parts of another size."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from guard_commands import Command, run
from guard_tables import assert_equal, assert_numbers, read


@pytest.mark.parametrize("seed", [0, 7])
def test_draws(seed: int, workplace: Path) -> None:
    """Which windows are drawn, with their weights, classes and null contexts, where most documents are full."""
    keys = ["influence.num_windows=90", "influence.max_windows_per_document=2", f"influence.seed={seed}"]
    keys += ["influence.selectors=[random]", "influence.k=[1]", "influence.resampled_draws=0", "influence.full_len=12"]
    run("-q", "influence", "--run", "runs/guard", "--out", f"draws-{seed}", *keys, cwd=workplace)
    frame = read(workplace / f"draws-{seed}", "windows")
    columns = ["doc_id", "start_token", "weight", "null_doc_id", "target_class", "null_target_class", "train_overlap"]
    drawn = {f"{row['window_id']} {name}": row[name] for row in frame.to_dict("records") for name in columns}
    assert_numbers(f"draws-{seed}", drawn, tolerance=1e-9)


def assert_same_rows(here: Path, there: Path) -> None:
    for table in ("windows", "selections"):
        pd.testing.assert_frame_equal(read(here, table), read(there, table), check_exact=True)


MANY = [
    "influence.num_windows=40",
    "influence.windows_per_part=2",
    "influence.selectors=[unmask-one,kl,attention,random]",
]


@pytest.fixture(scope="module")
def whole(workplace: Path) -> Path:
    run("-q", "influence", "--run", "runs/guard", "--out", "whole", *MANY, cwd=workplace)
    return workplace / "whole"


def test_killed_and_resumed(workplace: Path, whole: Path) -> None:
    arguments = ("-q", "influence", "--run", "runs/guard", "--out", "killed", *MANY)
    parts = workplace / "killed" / "windows"
    Command(*arguments, cwd=workplace).kill_when(lambda: parts.is_dir() and len(list(parts.glob("*.parquet"))) >= 3)
    assert Command("summary", "--tables", "killed", cwd=workplace).wait() == 2
    run(*arguments, cwd=workplace)
    assert_same_rows(workplace / "killed", whole)


def test_sharded_and_merged(workplace: Path, whole: Path) -> None:
    for share in ("0/2", "1/2"):
        out = f"share-{share[0]}"
        run("-q", "influence", "--run", "runs/guard", "--out", out, "--shard", share, *MANY, cwd=workplace)
    run("merge", "share-0", "share-1", "--out", "merged", cwd=workplace)
    assert_same_rows(workplace / "merged", whole)
    run("-q", "influence", "--run", "runs/guard", "--out", "two", *MANY, cwd=workplace, processes=2)
    assert_same_rows(workplace / "two", whole)


def test_other_parts(workplace: Path, whole: Path) -> None:
    """The size of parts and of forward passes changes no choice, and losses only by rounding."""
    keys = [MANY[0], "influence.windows_per_part=7", "influence.batch_tokens=100", MANY[2]]
    run("-q", "influence", "--run", "runs/guard", "--out", "other-parts", *keys, cwd=workplace)
    for table in ("windows", "selections"):
        assert_equal(read(workplace / "other-parts", table), read(whole, table))
