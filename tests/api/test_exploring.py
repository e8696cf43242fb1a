"""A whole document: the numbers of each window alone, the predictions by an independent way, and what is kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from conftest import made_up_text
from transformers_models import save

from olmo_sparsity import api
from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.files import read_json
from olmo_sparsity.text.places import encode_text
from olmo_sparsity.view.words import alone

LOCAL, FULL, KS = 8, 20, [1, 2, 4, 8]
TEXT = made_up_text(np.random.default_rng(11), 30) + " na\u00efve \U0001f30a\n</script><b>\u202e "


@pytest.fixture(scope="module")
def model(tiny_run: Path) -> api.Model:
    return api.open_model(tiny_run)


@pytest.fixture(scope="module")
def explored(model: api.Model) -> api.Exploration:
    return api.explore(model, TEXT, selectors=["kl", "unmask-one"], k=KS, source="a.txt")


def test_every_token_behind_a_full_window_is_a_target(model: api.Model, explored: api.Exploration) -> None:
    data, encoded = explored.data, encode_text(model.tokenizer, TEXT)
    assert "".join(data["texts"]).replace("\u2025", "") == printable(TEXT)
    assert (data["first"], data["local_len"], data["full_len"], data["ks"]) == (FULL, LOCAL, FULL, KS)
    assert len(explored.targets) == len(encoded) - FULL
    assert all(data["texts"]) and data["units"] == ["token", "tokens"]
    targets = [
        model.tokenizer.decode([token], skip_special_tokens=False) for token in encoded.token_ids[FULL:].tolist()
    ]
    likely = data["likely"]
    assert [likely["texts"][token] for token in likely["targets"]] == [alone(printable(text)) for text in targets]
    assert [(one["name"], one["sees_target"]) for one in data["selectors"]] == [("kl", False), ("unmask-one", True)]


@pytest.mark.parametrize("target", [0, 17, -1])
def test_the_numbers_are_those_of_the_window_alone(model: api.Model, explored: api.Exploration, target: int) -> None:
    row = explored.targets.iloc[target]
    window = api.window_at(model, TEXT, at=int(row["offset"]))
    measured = api.measure(model, window, selectors=["kl", "unmask-one"], k=KS)
    names = ["loss_short_nats", "loss_long_nats", "kl_short_nats"]
    assert row[names].tolist() == pytest.approx(measured.windows.iloc[0][names].tolist(), abs=2e-5)
    real = measured.selections.query("context == 'real'").set_index("selector")
    for one in explored.data["selectors"]:
        of_window = real.loc[one["name"]]
        assert one["loss"][target] == pytest.approx(of_window["loss_sparse_nats"], abs=2e-5)
        assert one["kl"][target] == pytest.approx(of_window["kl_sparse_nats"], abs=2e-5)
        scores = [np.array(of_window["scores"])[at] for at in (one["positions"][target], of_window["positions"])]
        assert scores[0] == pytest.approx(scores[1], abs=1e-5)


@pytest.mark.parametrize(("unit", "visibility"), [("token", "hidden"), ("word", "hidden"), ("token", "contextual")])
def test_a_likely_token_has_the_loss_that_its_share_says(
    tiny_run: Path, bos_run: Path, unit: str, visibility: str
) -> None:
    """Each of the five takes the place of the target, and is measured; no other token has more."""
    model = api.open_model(tiny_run if visibility == "hidden" else bos_run, visibility=visibility)
    text = made_up_text(np.random.default_rng(11), 11)
    exploration = api.explore(model, text, selectors=["kl"], k=[1, 4], unit=unit)
    likely, one, target = exploration.data["likely"], exploration.data["selectors"][0], 2
    (window,) = api.window_at(model, text, at=int(exploration.targets.iloc[target]["offset"])).frame.to_dict("records")
    texts = [model.tokenizer.decode([token], skip_special_tokens=False) for token in range(320)]
    ids = {alone(printable(text)): token for token, text in enumerate(texts)}
    ranks = one["ranks"][target] if one["ranks"] else range(1, 5)
    picked = {k: [j for j, rank in zip(one["positions"][target], ranks, strict=True) if rank <= k] for k in (1, 4)}
    for view, visible in enumerate([[], list(range(FULL - LOCAL)), picked[1], picked[4]]):
        tokens = [ids[likely["texts"][token]] for token in likely["tokens"][target][view]]
        others = [token for token in range(0, 320, 17) if token not in tokens]
        rows = [[*window["token_ids"], token] for token in (*tokens, *others)]
        losses = api.losses(model, api.windows_from_tokens(model, rows), [visible])["loss_nats"].to_numpy()
        shares = likely["shares"][target][view]
        assert shares == pytest.approx(np.exp(-losses[:5]), abs=2e-5) and shares == sorted(shares, reverse=True)
        assert np.exp(-losses[5:]).max() <= shares[-1] + 1e-6


def test_tables_are_kept_and_measured_once(model: api.Model, explored: api.Exploration, tmp_path: Path) -> None:
    settings: dict[str, Any] = {"k": KS, "source": "notes/my a (2).txt", "folder": tmp_path}
    first = api.explore(model, TEXT, selectors=["kl", "unmask-one"], **settings)
    assert first.data == explored.data
    (folder,) = tmp_path.iterdir()
    assert folder.name.startswith("my-a-2-") and len(api.read_results(folder).windows) == len(first.targets)
    assert set(api.read_results(folder).selections["context"]) == {"real", "null"}
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    assert api.explore(model, TEXT, selectors=["kl", "unmask-one"], **settings).data == first.data
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before
    api.explore(model, TEXT, selectors=["kl"], **{**settings, "k": [1]})
    assert len(list(tmp_path.iterdir())) == 2


def test_a_pretrained_model_has_a_folder_once_something_is_kept_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "llama", "llama")
    model = api.open_model("llama", local_len=LOCAL, full_len=FULL)
    for folder, is_kept in ((tmp_path / "elsewhere", False), (model.folder / "explore", True)):
        found = api.explore(model, TEXT[:60], selectors=["nearest"], k=[1], folder=folder)
        assert repr(found) == "Exploration(source='text')" and (model.folder / "manifest.json").exists() == is_kept
    assert read_json(model.folder / "manifest.json")["kind"] == "pretrained"
    assert [one["name"] for one in api.explore(model, TEXT[:60]).data["selectors"]] == ["attention", "nearest"]


def test_by_default_blind_selectors_at_a_k_that_leaves_something_out(tiny_run: Path) -> None:
    text = made_up_text(np.random.default_rng(11), 11)
    numbers: list[tuple[Any, str, list[int]]] = [([1, 2, 12], "token", [1, 2]), ([12], "token", [1])]
    numbers += [([1, 2, 3], "block:5", [1, 2]), ("geometric", "block:4", [1, 2, 3])]
    for k, unit, expected in numbers:
        found = api.explore(api.open_model(tiny_run, k=k, unit=unit), text).data
        assert (found["ks"], [one["name"] for one in found["selectors"]]) == (expected, ["kl", "attention"])


def test_a_function_is_a_selector_too(model: api.Model) -> None:
    def first(s: Any) -> Any:
        """The oldest tokens."""
        return -np.tile(np.arange(s.num_candidates), (s.num_windows, 1))

    (one,) = api.explore(model, TEXT, selectors=[first], k=[2]).data["selectors"]
    assert one["definition"] == "The oldest tokens." and all(positions == [0, 1] for positions in one["positions"])


def test_tables_of_a_selector_without_a_known_source_are_not_taken_for_its_own(
    model: api.Model, tmp_path: Path
) -> None:
    typed: dict[str, Any] = {}
    exec("def typed_in(s): return s.kl_single", typed)
    api.explore(model, TEXT, selectors=[typed["typed_in"]], k=[2], folder=tmp_path)
    with pytest.raises(UserError, match="nobody knows whether these tables are of the same typed_in"):
        api.explore(model, TEXT, selectors=[typed["typed_in"]], k=[2], folder=tmp_path)


def test_a_selector_that_fails_leaves_nothing_behind(model: api.Model, tmp_path: Path) -> None:
    def fails(s: Any) -> Any:
        """Nothing."""
        raise ZeroDivisionError

    with pytest.raises(UserError, match="fails"):
        api.explore(model, TEXT, selectors=[fails], k=[2], folder=tmp_path)
    assert not list(tmp_path.iterdir())
