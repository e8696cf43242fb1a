"""A measurement in memory: its numbers are those of its folder, its pictures are drawn, and nothing is written over."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from olmo_sparsity import api
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, write_manifest
from olmo_sparsity.statistics.quantities import pick, read_estimates
from olmo_sparsity.view.summary import answers


@pytest.fixture(scope="module")
def results(tiny_tables: Path) -> api.Results:
    return api.read_results(tiny_tables)


def test_numbers_and_answers_are_those_of_the_folder(results: api.Results, tiny_tables: Path, tmp_path: Path) -> None:
    of_folder = read_estimates(tiny_tables)
    frame, by_class = results.summary(), results.summary(by="target_class")
    pd.testing.assert_frame_equal(frame, of_folder[of_folder["group"].isna()].reset_index(drop=True))
    assert set(by_class["group"].dropna()) == set(results.windows["target_class"])
    asked = results.headline()
    assert asked["question"].str.endswith("?").all() and len(asked) == 4
    assert asked["verdict"].tolist() == [answer.verdict for answer in answers(of_folder)]
    read = api.read_results(results.save(tmp_path / "saved"))
    pd.testing.assert_frame_equal(read.windows, results.windows)
    pd.testing.assert_frame_equal(read.selections, results.selections)
    pd.testing.assert_frame_equal(read.summary(), frame)
    needed = read.spectrum().query("selector == 'kl' and context == 'real' and tolerance_nats == 0.5")
    share = pick(frame, "spectrum_share", selector="kl", context="real", k=2, x=0.5)
    assert share is not None and share["value"] == pytest.approx(np.average(needed["k"] <= 2, weights=needed["weight"]))


def test_numbers_are_those_of_the_rows_that_are_left(results: api.Results) -> None:
    def long_gain(of: api.Results) -> float:
        found = pick(of.summary(), "long_gain_nats")
        assert found is not None
        return float(found["value"])

    weights, gains = results.windows["weight"].to_numpy(), results.windows["gain_long_nats"].to_numpy(np.float64)
    some = dataclasses.replace(results, windows=results.windows.iloc[10:30])
    assert long_gain(some) == pytest.approx(np.average(gains[10:30], weights=weights[10:30]), abs=1e-6)
    changed = results.windows.assign(gain_long_nats=results.windows["gain_long_nats"] + np.float32(1))
    raised = dataclasses.replace(results, windows=changed)
    assert long_gain(raised) == pytest.approx(np.average(gains, weights=weights) + 1, abs=1e-6)
    alone = dataclasses.replace(results, selections=results.selections.query("selector in ('kl', 'random')"))
    whole = results.summary().query("selector in ('kl', 'random')").reset_index(drop=True)
    pd.testing.assert_frame_equal(alone.summary().dropna(subset="selector").reset_index(drop=True), whole)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"windows": lambda of: of.drop(columns="weight")}, "windows: .*weight"),
        ({"windows": lambda of: of.assign(weight="heavy")}, "windows: not the values of this table"),
        ({"windows": lambda of: of.iloc[:0]}, "there are no windows"),
        ({"selections": lambda of: of.query("context == 'real'")}, "selections: must hold each selector"),
        ({"selections": lambda of: of.query("window_id < 9")}, "selections: must hold each selector"),
        ({"selections": lambda of: of.query("selector == 'none'")}, "selections: must hold each selector"),
        (
            {"selections": lambda of: of.query("context != 'resampled' or draw < 1 or window_id < 9")},
            "selections: must",
        ),
    ],
)
def test_frames_that_lack_something_are_refused(results: api.Results, change: dict, said: str) -> None:  # type: ignore[type-arg]
    ((name, of),) = change.items()
    with pytest.raises(UserError, match=said) as error:
        dataclasses.replace(results, **{name: of(getattr(results, name))}).summary()
    assert "\n" not in str(error.value)


def test_pictures_are_those_of_the_commands(results: api.Results) -> None:
    assert "How few tokens give the gain back?" in [text.get_text() for text in results.plot().texts]
    assert len(results.plot("figure4", selector="unmask-one").axes) == 3  # k = 1 and 2 of 12 tokens, not 8; the colours
    with pytest.raises(UserError, match="lasso"):
        results.plot("figure4", selector="lasso")
    with pytest.raises(UserError, match="figure5, first_picture"):
        results.plot("figure6")


def test_a_folder_gets_what_it_lacks_and_loses_nothing(results: api.Results, tiny_tables: Path, tmp_path: Path) -> None:
    begun = Path(shutil.copytree(tiny_tables, tmp_path / "begun"))
    write_manifest(begun, {**read_json(begun / "manifest.json"), "status": "running"})
    (begun / "windows" / "part-00001.parquet").unlink()  # parts of 25 windows
    pd.testing.assert_frame_equal(api.read_results(results.save(begun)).windows, results.windows)
    before = {path: path.read_bytes() for path in begun.rglob("*.*")}
    results.save(begun)
    changed = dataclasses.replace(results, windows=results.windows.assign(loss_short_nats=np.float32(9)))
    other = dataclasses.replace(results, manifest={**results.manifest, "run_id": "0123456789ab"})
    some = dataclasses.replace(results, windows=results.windows.head(20))
    for of, said in (
        (changed, "other values of this measurement"),
        (other, "other settings"),
        (some, "only all of them are saved"),
    ):
        with pytest.raises(UserError, match=said):
            of.save(begun)
    assert {path: path.read_bytes() for path in begun.rglob("*.*")} == before
    assert api.read_results(changed.save(begun, overwrite=True)).windows["loss_short_nats"][0] == 9
    (tmp_path / "papers").mkdir()
    (tmp_path / "papers" / "draft.md").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UserError, match="papers: this folder exists and is no influence folder"):
            results.save(tmp_path / "papers", overwrite=overwrite)
    assert (tmp_path / "papers" / "draft.md").read_text() == "mine"


def test_folders_may_lie_in_the_home_folder(
    results: api.Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert results.save("~/mine") == tmp_path / "mine"
    again = api.read_results("~/mine")
    assert repr(again) == repr(results) and again != results  # as objects, like tables
