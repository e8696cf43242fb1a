"""Arguments from Python are of the type that is wanted, or are refused by name; numbers of NumPy and pandas are numbers."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from olmo_sparsity import api
from olmo_sparsity.errors import UserError

TEXT = "the river of the garden was quiet " * 8
ROW = list(range(1, 22))
Call = Callable[[api.Model, api.ChosenWindows], Any]


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> api.Model:
    return api.open_model(tiny_run)


@pytest.fixture(scope="module")
def windows(model: api.Model) -> api.ChosenWindows:
    return api.windows_from_texts(model, [TEXT], num_windows=3)


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns)


REFUSED: list[tuple[Call, str]] = [
    (lambda m, w: api.windows_from_tokens(m, [[0.9, *ROW[1:]]]), "token_ids[0][0] = 0.9: must be a whole number"),
    (lambda m, w: api.windows_from_tokens(m, [ROW, ["5", *ROW[1:]]]), "token_ids[1][0] = '5': must be a whole number"),
    (lambda m, w: api.windows_from_tokens(m, [[*ROW[:-1], True]]), "token_ids[0][20] = True: must be a whole number"),
    (lambda m, w: api.windows_from_tokens(m, np.array([ROW]) + 0.5), "token_ids: an array of float64: must hold whole"),
    (lambda m, w: api.windows_from_tokens(m, np.ones((1, 21), dtype=bool)), "token_ids: an array of bool: must hold"),
    (lambda m, w: api.windows_from_tokens(m, [[10**30, *ROW[1:]]]), "token_ids: token IDs must lie between 0 and 319"),
    (lambda m, w: api.windows_from_tokens(m, None), "token_ids = None: must be a list or ndarray"),  # type: ignore[arg-type]
    (lambda m, w: api.windows_from_tokens(m, [ROW], doc_ids=5), "doc_ids = 5: must be a list or None"),  # type: ignore[arg-type]
    (lambda m, w: api.losses(m, w, [[0.9]]), "visible[0][0] = 0.9: must be a whole number"),  # type: ignore[list-item]
    (lambda m, w: api.losses(m, w, frame(window_id=[0.5], positions=[[1]])), "visible.window_id[0] = 0.5: must be"),
    (lambda m, w: api.losses(m, w, frame(window_id=[0], positions=[[0.9]])), "visible.positions[0][0] = 0.9: must be"),
    (lambda m, w: api.losses(m, w, frame(window=[0])), "visible: has no column window_id; its columns are window"),
    (lambda m, w: api.windows_from_table(m, frame(x=[1])), "table: has no column token_ids; its columns are x"),
    (lambda m, w: api.window_at(m, TEXT, at=200.7), "at = 200.7: must be a whole number"),  # type: ignore[arg-type]
    (lambda m, w: api.window_at(m, TEXT, at=True), "at = True: must be a whole number"),
    (lambda m, w: api.scores(m, w, max_k=1.5), "max_k = 1.5: must be a whole number"),  # type: ignore[arg-type]
    (lambda m, w: api.measure(m, w, k=[1.5]), "k[0] = 1.5: must be a whole number"),  # type: ignore[list-item]
    (lambda m, w: api.measure(m, w, k=3), "k = 3: must be a list or None"),  # type: ignore[arg-type]
    (lambda m, w: api.measure(m, w, seed=1.5), "seed = 1.5: must be a whole number or None"),  # type: ignore[arg-type]
    (lambda m, w: api.measure(m, w, selectors="kl"), "selectors = 'kl': must be a list"),
    (lambda m, w: api.measure(m, w, selectors={"kl": 1}), "selectors = {'kl': 1}: must be a list or None"),  # type: ignore[arg-type]
    (lambda m, w: api.measure("runs/tiny", w), "model = 'runs/tiny': must be Model"),  # type: ignore[arg-type]
    (lambda m, w: api.measure(m, w.frame), "must be ChosenWindows"),  # type: ignore[arg-type]
    (lambda m, w: api.windows_from_texts(m, TEXT), "must be a list; a single text is written [texts]"),
    (lambda m, w: api.windows_from_texts(m, frame(text=[TEXT])), "texts = "),  # type: ignore[arg-type]
    (lambda m, w: api.windows_from_texts(m, [TEXT, b"x"]), "texts[1] = b'x': must be text"),  # type: ignore[list-item]
    (lambda m, w: api.windows_from_texts(m, [TEXT], num_windows=2.5), "num_windows = 2.5: must be a whole"),  # type: ignore[arg-type]
    (lambda m, w: api.open_model("m", full_len="16"), "full_len = '16': must be a whole number or None"),  # type: ignore[arg-type]
    (lambda m, w: api.open_model(5), "model = 5: must be a path, a name, or (model, tokenizer)"),
    (lambda m, w: api.read_results(None), "folder = None: must be text or Path"),  # type: ignore[arg-type]
    (lambda m, w: api.figure4(5), "results = 5: must be text or Results or Path"),  # type: ignore[arg-type]
    (lambda m, w: api.windows_from_texts(m, [TEXT, "a\ud800"]), "texts[1] = 'a\\ud800': holds half a surrogate pair"),
    (
        lambda m, w: api.windows_from_texts(m, [TEXT], source="\udfff"),
        "source = '\\udfff': holds half a surrogate pair",
    ),
    (lambda m, w: api.windows_from_tokens(m, [ROW], doc_ids=["\ud800"]), "doc_ids[0] = '\\ud800': holds half a"),
    (lambda m, w: api.window_at(m, TEXT + "\ud83d", at=200), "...: holds half a surrogate pair"),
    (lambda m, w: api.explore(m, TEXT + "\ud83d"), "...: holds half a surrogate pair"),
    (lambda m, w: api.windows_from_texts(m, ["\x1b[31m"], seed="\x1b[31m"), "seed = '\\x1b[31m': must be"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize(("call", "said"), REFUSED, ids=[said.split(":")[0][:30] for _, said in REFUSED])
def test_another_type_is_refused_by_name_and_value(
    call: Call, said: str, model: api.Model, windows: api.ChosenWindows
) -> None:
    with pytest.raises(UserError, match=re.escape(said)) as error:
        call(model, windows)
    assert "\n" not in str(error.value)


def test_of_a_long_value_the_first_60_characters_are_shown(model: api.Model, windows: api.ChosenWindows) -> None:
    with pytest.raises(UserError, match=f"k = '{'x' * 59}\\.\\.\\.: must be"):
        api.measure(model, windows, k="x" * 100)  # type: ignore[arg-type]


def test_numbers_and_columns_of_other_libraries_are_taken(model: api.Model, windows: api.ChosenWindows) -> None:
    expected = api.windows_from_tokens(model, [ROW, ROW[::-1]]).frame["token_ids"]
    for rows in (
        np.array([ROW, ROW[::-1]], dtype=np.uint16),
        [np.array(ROW), np.array(ROW[::-1])],
        torch.tensor([ROW, ROW[::-1]]),
        pd.Series([ROW, np.array(ROW[::-1])]),
        (range(1, 22), range(21, 0, -1)),
    ):
        made = api.windows_from_tokens(model, rows).frame["token_ids"]  # type: ignore[arg-type]
        assert [row.tolist() for row in made] == [row.tolist() for row in expected]
    named = api.scores(model, windows, selectors=np.array(["kl"]), max_k=np.int32(2), seed=np.uint8(1))  # type: ignore[arg-type]
    pd.testing.assert_frame_equal(named, api.scores(model, windows, selectors=["kl"], max_k=2, seed=1))
    at = api.window_at(model, TEXT, at=np.int64(200))  # type: ignore[arg-type]
    assert at.windows.sha256 == api.window_at(model, TEXT, at=200).windows.sha256


def test_a_summary_is_of_the_frames_as_they_are(tiny_tables: Path) -> None:
    """Not of the folder that they were read from."""

    def long_gain(results: api.Results) -> float:
        return float(results.summary().set_index("quantity").loc["long_gain_nats", "value"])

    whole = api.read_results(tiny_tables)
    weights, gains = whole.windows["weight"].to_numpy(), whole.windows["gain_long_nats"].to_numpy(np.float64)
    assert long_gain(whole) == pytest.approx(np.average(gains, weights=weights), abs=1e-6)
    some = dataclasses.replace(whole, windows=whole.windows.iloc[10:30])
    assert long_gain(some) == pytest.approx(np.average(gains[10:30], weights=weights[10:30]), abs=1e-6)
    whole.windows["gain_long_nats"] += np.float32(1)
    assert long_gain(whole) == pytest.approx(np.average(gains, weights=weights) + 1, abs=1e-6)
    for change, said in (
        (whole.windows.drop(columns="weight"), "windows: .*weight"),
        (whole.windows.assign(weight="heavy"), "windows: not the values of this table"),
        (whole.windows.assign(weight=-1.0), "windows: column weight holds a number below 0$"),
        (whole.windows.iloc[:0], "there are no windows"),
    ):
        with pytest.raises(UserError, match=said):
            dataclasses.replace(whole, windows=change).summary()


def test_some_windows_of_a_measurement_are_not_saved_as_one(tiny_tables: Path, tmp_path: Path) -> None:
    whole = api.read_results(tiny_tables)
    with pytest.raises(UserError, match="windows: 20 rows, and 60 windows were measured; only all of them are saved"):
        dataclasses.replace(whole, windows=whole.windows.head(20)).save(tmp_path / "some")
    assert not (tmp_path / "some").exists()
