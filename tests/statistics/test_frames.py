"""Tables as arrays: what is read, by parts, and what is refused."""

from __future__ import annotations

import copy
from pathlib import Path

import numpy as np
import pytest
from unlike_tables import KS, SEES_TARGET, M, Rows, unlike_manifest, unlike_rows, write_rows

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.frames import Frames, five_windows, read_frames, read_windows

WORDS = unlike_manifest(unit="word")


@pytest.fixture(scope="module")
def rows() -> Rows:
    return unlike_rows(WORDS)


@pytest.fixture(scope="module")
def folder(rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Path:
    order = np.random.default_rng(0).permutation(len(rows["windows"]))
    return write_rows(tmp_path_factory.mktemp("tables"), WORDS, rows, parts=np.split(order, [3, 61]))


@pytest.fixture(scope="module")
def frames(folder: Path) -> Frames:
    return read_frames(folder)


def test_windows_rise_and_groups_are_counted(rows: Rows, frames: Frames) -> None:
    assert frames.windows["window_id"].tolist() == list(range(len(rows["windows"])))
    assert frames.windows["doc_id"].tolist() == [window["doc_id"] for window in rows["windows"]]
    assert frames.windows["target_class"].tolist() == [window["target_class"] for window in rows["windows"]]
    assert frames.num_groups["null"].tolist() == [len(window["null_group_first"]) for window in rows["windows"]]
    weight = sum(window["weight"] for window in rows["windows"])
    mean = sum(window["weight"] * len(window["group_first"]) for window in rows["windows"]) / weight
    assert frames.num_units == pytest.approx(mean)
    assert frames.last_n == rows["windows"][0]["last_n"]
    assert frames.ks == list(KS)


def test_some_windows(rows: Rows, frames: Frames) -> None:
    keep = frames.windows["target_class"].eq("other").to_numpy()
    some = frames.restrict(keep)
    kept = np.flatnonzero(keep)
    assert some.windows["window_id"].tolist() == kept.tolist()
    for name in ("gain", "divergence", "optimism", "num_tokens"):
        assert np.array_equal(getattr(some, name), getattr(frames, name)[:, kept], equal_nan=True)
    assert np.array_equal(some.lists["null_kl_damped_nats"], frames.lists["null_kl_damped_nats"][:, kept])
    assert some.num_groups["real"].tolist() == frames.num_groups["real"][kept].tolist()


def test_some_selectors_under_other_names(frames: Frames) -> None:
    renamed = frames.renamed({"random": "chance", "kl": "kl"})
    assert renamed.selections["selector"].unique().tolist() == ["kl", "chance"]
    for context in ("real", "null"):
        before, after = frames.rows("random", context), renamed.rows("chance", context)
        assert np.array_equal(renamed.gain[after], frames.gain[before])
        assert np.array_equal(renamed.divergence[after], frames.divergence[before])
    assert renamed.rows("nearest", "real").size == 0
    assert renamed.selectors["num_evaluations"].to_dict() == {"chance": 18, "kl": 6}


def test_tokens_are_their_own_groups(tmp_path: Path) -> None:
    manifest = unlike_manifest(train_len=None)
    frames = read_frames(write_rows(tmp_path, manifest, unlike_rows(manifest, draws=0)))
    assert frames.num_units == M
    assert np.isnan(frames.optimism).all()
    assert frames.windows["optimism_all"].isna().all()
    assert frames.windows["train_overlap"].isna().all()
    assert frames.selectors["sees_target"].to_dict() == SEES_TARGET
    one = write_rows(tmp_path / "one", manifest, unlike_rows(manifest, num_documents=1))
    assert set(five_windows(one, "kl", KS[0]).values()) == {0}  # of a single window


def test_the_cost_of_a_selector_is_a_mean_over_windows(rows: Rows, tmp_path: Path) -> None:
    changed = copy.deepcopy(rows)
    for row in changed["selections"]:
        row["num_evaluations"] += row["window_id"] % 2 * 10
    selectors = read_frames(write_rows(tmp_path, WORDS, changed)).selectors
    assert selectors["num_evaluations"].to_dict() == {"kl": 11, "unmask-one": 35, "random": 23, "nearest": 26}


@pytest.mark.parametrize(
    ("is_left_out", "message"),
    [
        (
            lambda row: row["selector"] == "kl" and row["window_id"] == 5 and row["context"] == "null",
            "some windows lack selections",
        ),
        (
            lambda row: row["context"] == "resampled" and row["window_id"] == 119 and row["draw"] == 1,
            "some windows lack selections",
        ),
        (lambda row: row["selector"] == "nearest" and row["window_id"] < 40, "belong to different measurements"),
    ],
)
def test_incomplete_tables_are_refused(is_left_out, message: str, rows: Rows, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    some = {**rows, "selections": [row for row in rows["selections"] if not is_left_out(row)]}
    with pytest.raises(UserError, match=message):
        read_frames(write_rows(tmp_path, WORDS, some))


def test_selections_of_unknown_windows_are_refused(rows: Rows, tmp_path: Path) -> None:
    fewer = {**rows, "windows": rows["windows"][:60]}
    with pytest.raises(UserError, match="belong to different measurements"):
        read_frames(write_rows(tmp_path, WORDS, fewer, parts=[range(60), range(60, 120)]))


def test_some_columns_of_windows(rows: Rows, folder: Path) -> None:
    windows = read_windows(folder, ["window_id", "start_token", "target_text"])
    assert windows["window_id"].tolist() == list(range(len(rows["windows"])))
    assert windows.columns.tolist() == ["window_id", "start_token", "target_text"]
