"""Pretrained models whose training row is stated: what is measured beyond it, what is said of it, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import transformers
from conftest import Messages
from made_up import MODEL
from tiny_pretrained import loss_after, save_llama

from olmo_sparsity.config import Config, PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.setup.opened_model import _warn_of_longer, open_model
from olmo_sparsity.records.measured import ModelRecord
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.tables.reading import read_table

LOCAL, ROW, POSITIONS, FULL, M = 8, 12, 16, 20, 12


def with_settings(config: Config, **changes: object) -> Config:
    return dataclasses.replace(config, influence=dataclasses.replace(config.influence, **changes))  # type: ignore[arg-type]


def rows_of(tables: Path, table: str) -> list[dict]:
    return read_table(tables, table).to_pylist()


@pytest.fixture(scope="module")
def model(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama with a BOS and fewer positions than a window has tokens."""
    texts = [json.loads(line)["text"] for line in corpus_file.open()]
    return save_llama(tmp_path_factory.mktemp("models") / "llama", texts, max_position=POSITIONS)


@pytest.fixture(scope="module")
def config(tiny_config: Config, model: Path) -> Config:
    few = with_settings(tiny_config, num_windows=10, selectors=["random"], resampled_draws=0, k=[1, 4])
    return dataclasses.replace(few, pretrained=PretrainedConfig(str(model), train_len=ROW))


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("runs") / "llama"


@pytest.fixture(scope="module")
def tables(config: Config, results: Path) -> Path:
    return measure(config, results)


def scaled(config: Config, method: str) -> Config:
    pretrained = dataclasses.replace(config.pretrained, rope_scaling=method, rope_factor=2.0)  # type: ignore[arg-type]
    return dataclasses.replace(config, pretrained=pretrained)


def test_losses_beyond_the_row_and_the_positions_are_those_of_transformers(tables: Path, model: Path) -> None:
    raw = transformers.LlamaForCausalLM.from_pretrained(str(model)).eval()
    bos = read_json(tables / "manifest.json")["anchor"]["id"]
    for window in rows_of(tables, "windows")[:3]:

        def loss(number: int, window: dict = window) -> float:
            """Return the loss with the last tokens visible, directly behind the BOS."""
            tokens = [bos, *window["token_ids"][FULL - number :]]
            return loss_after(raw, tokens, list(range(number + 1)), window["target_id"])

        assert window["loss_long_nats"] == pytest.approx(loss(FULL), abs=1e-5)
        assert window["last_n"] == [2, 3, 4, 6, LOCAL, ROW, POSITIONS, FULL]
        assert window["loss_last_nats"] == pytest.approx([loss(n) for n in window["last_n"]], abs=1e-5)
        assert window["gain_beyond_nats"] == pytest.approx(loss(ROW) - loss(FULL), abs=2e-5)


def test_the_row_is_said_to_be_stated(tables: Path) -> None:
    manifest = read_json(tables / "manifest.json")
    assert manifest["context"] == {
        "local_len": LOCAL, "full_len": FULL, "train_len": ROW, "max_position": POSITIONS, "train_len_is_stated": True,
        "num_long_range": M,
    }  # fmt: skip
    assert manifest["model"]["max_position"] == POSITIONS


def test_a_row_may_be_shorter_than_the_local_tokens(config: Config, model: Path, tmp_path: Path) -> None:
    short = dataclasses.replace(config, pretrained=dataclasses.replace(config.pretrained, train_len=LOCAL - 3))
    folder = measure(with_settings(short, num_windows=3), tmp_path / "run")
    raw = transformers.LlamaForCausalLM.from_pretrained(str(model)).eval()
    bos = read_json(folder / "manifest.json")["anchor"]["id"]
    for row in rows_of(folder, "windows"):
        tokens = [bos, *row["token_ids"][3 - LOCAL :]]
        loss = loss_after(raw, tokens, list(range(len(tokens))), row["target_id"])
        assert row["loss_last_nats"][row["last_n"].index(LOCAL - 3)] == pytest.approx(loss, abs=1e-5)
        assert row["gain_beyond_nats"] == pytest.approx(loss - row["loss_long_nats"], abs=2e-5)


def test_a_warning_names_the_row_and_the_positions(
    config: Config, results: Path, tables: Path, messages: Messages
) -> None:
    open_model(config, results)
    (warning,) = [line for line in messages if "go beyond" in line]
    assert f"rows of up to {FULL + 1} tokens go beyond its stated training row and its positions" in warning
    assert (
        f"the row has {ROW} tokens (pretrained.train_len)" in warning and f"the model {POSITIONS} positions" in warning
    )
    messages.clear()
    open_model(with_settings(config, local_len=4, full_len=11), results)  # and the BOS
    assert not [line for line in messages if "go beyond" in line]


@pytest.mark.parametrize(
    ("train_len", "max_position", "beyond"),
    [
        (13, 13, None),
        (12, 13, "its stated training row"),
        (13, 12, "its positions"),
        (12, 12, "its stated training row and its positions"),
    ],
)
def test_rows_go_beyond_what_has_fewer_tokens(
    train_len: int, max_position: int, beyond: str | None, messages: Messages
) -> None:
    _warn_of_longer(ModelRecord(**{**MODEL, "max_position": max_position}), train_len, longest=13)
    assert [line.split("rows of up to 13 tokens go beyond ")[1].split(":")[0] for line in messages] == (
        [] if beyond is None else [beyond]
    )


def test_without_a_stated_row_longer_windows_are_refused(config: Config, model: Path, tmp_path: Path) -> None:
    unstated = dataclasses.replace(config, pretrained=PretrainedConfig(str(model)))
    with pytest.raises(UserError, match=rf"^[^\n]*trained on {POSITIONS} positions[^\n]*pretrained.train_len[^\n]*$"):
        measure(unstated, tmp_path / "run")
    alone = dataclasses.replace(config, pretrained=PretrainedConfig(None, train_len=ROW))
    with pytest.raises(UserError, match="are about a pretrained model, and none is named"):
        measure(alone, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_row_that_is_longer_than_the_window_leaves_nothing_beyond_it(config: Config, tmp_path: Path) -> None:
    long = dataclasses.replace(config, pretrained=dataclasses.replace(config.pretrained, train_len=2048))
    folder = measure(with_settings(long, num_windows=3), tmp_path / "run")
    assert {row["gain_beyond_nats"] for row in rows_of(folder, "windows")} == {0.0}


def test_scaled_positions_are_another_measurement_of_the_same_targets(
    config: Config, results: Path, tables: Path, tmp_path: Path
) -> None:
    of_scaled = scaled(config, "yarn")
    assert of_scaled.pretrained.folder_name == f"{config.pretrained.folder_name}-yarn2"
    with pytest.raises(UserError, match=r"with pretrained.rope_scaling = none, not yarn:2; choose another folder"):
        measure(of_scaled, results)
    folder = measure(of_scaled, tmp_path / "scaled")
    ours, theirs = (read_json(one / "manifest.json") for one in (folder, tables))
    assert (ours["model"]["rope_scaling"], theirs["model"]["rope_scaling"]) == ("yarn:2", None)
    assert ours["windows_sha256"] == theirs["windows_sha256"] and ours["run_id"] != theirs["run_id"]
    rows = [{row["window_id"]: row for row in rows_of(one, "windows")} for one in (folder, tables)]
    assert max(abs(rows[0][window]["loss_long_nats"] - rows[1][window]["loss_long_nats"]) for window in rows[0]) > 1e-3
