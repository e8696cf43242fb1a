"""Two measurements side by side: values and differences are those of the frames, and what cannot be compared is not."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd
import pytest
from unlike_tables import unlike_manifest, unlike_rows, write_rows

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.compare import CHOSEN, KEYS, compare
from olmo_sparsity.statistics.frames import read_frames
from olmo_sparsity.statistics.quantities import QUANTITIES, estimate, read_estimates

SAME: dict[str, Any] = {"tokens_sha256": "t", "windows_sha256": "w", "tokenizer_sha256": "z"}
FEW: dict[str, Any] = {"ks": (1, 3), "selectors": {"kl": False, "random": False}, "draws": 1}


def written(folder: Path, *, seed: int, rows: Optional[dict[str, Any]] = None, **manifest: Any) -> str:
    folder.mkdir(parents=True)
    made = unlike_manifest(run=folder.name, **{**SAME, **manifest})
    return str(write_rows(folder, made, unlike_rows(made, seed=seed, **(rows or {}))))


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Two measurements of the same documents that differ in their numbers and in one of their k."""
    folder = tmp_path_factory.mktemp("compared")
    return written(folder / "one", seed=0), written(folder / "two", seed=1, rows={"ks": (1, 3, 4), "long_gain": 0.9})


def whole(frame: pd.DataFrame) -> pd.DataFrame:
    return frame[frame["group"].isna() & frame["x"].isna()].set_index(KEYS)


def test_values_and_differences_are_those_of_the_frames(pair: tuple[str, str]) -> None:
    found = compare(*pair).frame.set_index(KEYS)
    difference = estimate(read_frames(Path(pair[1])), minus=read_frames(Path(pair[0]))).set_index(KEYS)
    frames = {
        "a": whole(read_estimates(Path(pair[0]))),
        "b": whole(read_estimates(Path(pair[1]))),
        "difference": difference,
    }
    assert set(found.index.get_level_values("k").dropna()) == {1, 3}
    for end in ("value", "low", "high"):
        for name, frame in frames.items():
            np.testing.assert_array_equal(found[f"{end}_{name}"], frame[end].reindex(found.index))
    np.testing.assert_allclose(found["value_difference"], found["value_b"] - found["value_a"], atol=1e-12)
    for name in (
        "long_gain_nats",
        "gain_beyond_nats",
        "recovered_fraction",
        "corrected_gain_nats",
        "gain_over_damping_nats",
    ):
        assert name in found.index.get_level_values("quantity")


def test_a_number_that_one_of_both_lacks_has_no_difference(tmp_path: Path, pair: tuple[str, str]) -> None:
    """Without a gain there is no R(k)."""
    without = written(tmp_path / "without", seed=2, rows={**FEW, "long_gain": -0.4})
    frame = compare(pair[0], without).frame
    recovered = frame[frame["quantity"] == "recovered_fraction"]
    assert recovered["value_a"].notna().all()
    assert recovered["value_b"].isna().all()
    assert recovered["value_difference"].isna().all()


@pytest.mark.parametrize(
    ("other", "is_paired", "has_same_tokens"),
    [
        ({}, True, True),
        ({"windows_sha256": "other"}, False, True),
        ({"context": {"local_len": 7, "full_len": 20, "num_long_range": 12, "train_len": 14}}, False, True),
        ({"tokens_sha256": "other"}, False, True),  # another text, the same tokenizer
        ({"tokens_sha256": "other", "tokenizer_sha256": "other"}, False, False),
    ],
)
def test_what_both_have_in_common(
    other: dict[str, Any], is_paired: bool, has_same_tokens: bool, tmp_path: Path, pair: tuple[str, str]
) -> None:
    comparison = compare(pair[0], written(tmp_path / "other", seed=3, rows=FEW, **other))
    assert (comparison.is_paired, comparison.has_same_tokens) == (is_paired, has_same_tokens)
    frame = comparison.frame
    in_nats = np.array([QUANTITIES[name].unit == "nats" for name in frame["quantity"]])
    assert frame["value_difference"][in_nats].notna().all() == has_same_tokens
    assert frame["value_difference"][~in_nats].notna().all()
    assert frame[["value_a", "value_b"]].notna().all(axis=None)


def test_selectors_are_compared_under_one_name(pair: tuple[str, str]) -> None:
    comparison = compare(f"{pair[0]}:kl", f"{pair[1]}:unmask-one")
    frame = comparison.frame
    assert set(frame["selector"].dropna()) == {CHOSEN}
    assert comparison.labels == ("one:kl", "two:unmask-one")
    assert comparison.seeing == [CHOSEN]
    frames = [read_estimates(Path(folder)) for folder in pair]
    for of, selector, column in ((frames[0], "kl", "value_a"), (frames[1], "unmask-one", "value_b")):
        rows = of[(of["quantity"] == "gain_over_random_nats") & (of["selector"] == selector) & of["group"].isna()]
        expected = rows[rows["k"].isin([1, 3])].set_index(["context", "k"])["value"]
        found = frame[frame["quantity"] == "gain_over_random_nats"].set_index(["context", "k"])[column]
        pd.testing.assert_series_equal(found, expected, check_names=False, check_dtype=False)


def test_random_tokens_can_be_compared_too(pair: tuple[str, str]) -> None:
    frame = compare(f"{pair[0]}:random", f"{pair[1]}:kl").frame
    rows = frame[frame["quantity"] == "gain_sparse_nats"]
    assert set(rows["selector"]) == {CHOSEN} and rows["value_difference"].notna().all()


def test_two_of_one_name_are_called_as_the_user_calls_them(tmp_path: Path, pair: tuple[str, str]) -> None:
    again = written(tmp_path / "one", seed=4, rows=FEW)
    assert compare(pair[0], again).labels == (pair[0], again)


@pytest.mark.parametrize(
    ("first", "second", "said"),
    [
        ("{0}:kl", "{1}", "for both runs"),
        ("{0}:greedy", "{1}:kl", "greedy was not measured there"),
        ("{0}:my-own", "{1}:kl", "my-own was not measured there"),
        ("{0}", "no:where/run", "no:where/run: no such folder"),
        ("{0}", "nowhere", "nowhere: no such folder"),
    ],
)
def test_what_cannot_be_compared(first: str, second: str, said: str, pair: tuple[str, str]) -> None:
    with pytest.raises(UserError, match=said):
        compare(first.format(*pair), second.format(*pair))


def test_a_selector_of_the_user_with_another_source_is_named(
    tmp_path: Path, pair: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    entry = {"file": "own.py", "meaning": "mine", "sees_target": False}
    folders = [
        written(tmp_path / name, seed=seed, rows=FEW, own_selectors={"mine": {**entry, "sha256": sha256}})
        for seed, (name, sha256) in enumerate((("a", "1"), ("b", "2"), ("c", "1"), ("typed", None)))
    ]
    with caplog.at_level(logging.WARNING):
        compare(folders[0], folders[2])
        compare(folders[0], pair[0])  # which has none
        compare(folders[3], folders[3])  # one measurement
        assert "mine" not in caplog.text
        compare(folders[0], folders[1])
        assert "mine" in caplog.text
