"""Pretrained models whose training row is stated: what is measured beyond it, what is said of it, and what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest
import transformers
from conftest import Messages
from made_up import MODEL
from tiny_pretrained import loss_after, save_llama

from olmo_sparsity.config import Config, ContextCurveConfig, PretrainedConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.context_curve import measure_context_curve
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.setup.opened_model import _warn_of_longer, open_model
from olmo_sparsity.records.measured import ModelRecord
from olmo_sparsity.statistics.several.curve_comparison import compare_curves
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.summary import summarize
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.wording.gates import beyond_gate_words
from olmo_sparsity.wording.setup import length_words, setup_words

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

        def loss(number: int, begin: int, window: dict = window) -> float:
            """Return the loss with the last tokens visible, the first of them at a position."""
            tokens = [bos, *window["token_ids"][FULL - number :]]
            return loss_after(raw, tokens, [0, *range(begin, begin + number)], window["target_id"])

        assert window["loss_long_nats"] == pytest.approx(loss(FULL, 1), abs=1e-5)
        in_place, no_gap = loss(ROW, FULL - ROW + 1), loss(ROW, 1)
        assert window["loss_train_len_nats"] == pytest.approx(in_place, abs=1e-5)
        assert window["loss_train_len_no_gap_nats"] == pytest.approx(no_gap, abs=1e-5)
        assert window["gain_beyond_nats"] == pytest.approx(no_gap - loss(FULL, 1), abs=2e-5)
        assert abs(in_place - no_gap) > 1e-4


def test_the_row_is_said_to_be_stated(tables: Path, results: Path) -> None:
    manifest = read_json(tables / "manifest.json")
    assert manifest["context"] == {
        "local_len": LOCAL, "full_len": FULL, "train_len": ROW, "max_position": POSITIONS, "train_len_is_stated": True,
        "num_long_range": M,
    }  # fmt: skip
    assert manifest["model"]["max_position"] == POSITIONS
    summary = summarize(load(tables))
    assert summary.beyond_gate == "not-assessed" and summary.gain_beyond_nats is not None  # too few documents
    words = length_words(summary.lengths)
    assert f"stated training row of {ROW} tokens, {POSITIONS} positions" in words and "PoSE" not in words
    assert "8 of the 20 tokens lie beyond it" in words
    gain = dataclasses.replace(summary.gain_beyond_nats, low=-1.0, high=1.0)
    many = dataclasses.replace(summary, beyond_gate="failed", gain_beyond_nats=gain)
    assert "from more tokens than the stated training row has, 12" in beyond_gate_words(many)


@pytest.mark.parametrize("longest", [LOCAL - 2, LOCAL])
def test_a_curve_that_ends_at_the_local_tokens_or_before(
    config: Config, model: Path, tmp_path: Path, longest: int
) -> None:
    """A stated row may be shorter than the local tokens."""
    short = dataclasses.replace(
        config,
        pretrained=dataclasses.replace(config.pretrained, train_len=LOCAL - 2),
        context_curve=ContextCurveConfig(max_visible=longest),
    )
    curve = measure_context_curve(short, tmp_path / "run")
    manifest = read_json(curve / "manifest.json")
    assert len(manifest["fit"]["checks"]) > 5 and manifest["fit"]["anchor"]["loss_short_nats"]["bos"] > 0
    raw, bos = transformers.LlamaForCausalLM.from_pretrained(str(model)).eval(), manifest["anchor"]["id"]
    windows = open_model(short, tmp_path / "run").windows(short.influence, full_len=longest)
    for row, tokens in zip(rows_of(curve, "curve"), windows.tokens(np.arange(len(windows))).tolist(), strict=True):
        assert row["num_visible_tokens"][-1] == longest
        expected = loss_after(raw, [bos, *tokens[:-1]], list(range(longest + 1)), tokens[-1])
        assert row["loss_nats"][-1] == pytest.approx(expected, abs=1e-5)


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
    summary = summarize(load(folder))
    assert summary.beyond_gate == "not-applicable"
    assert "the stated training row has 2048 tokens, more than the 20 of a window" in beyond_gate_words(summary)
    assert "A row is longer than the full context: nothing lies beyond it." in length_words(summary.lengths)
    assert {row["gain_beyond_nats"] for row in rows_of(folder, "windows")} == {0.0}


def test_the_context_curve_goes_beyond_the_positions_and_has_a_gain(
    config: Config, results: Path, tables: Path
) -> None:
    measure_context_curve(with_settings(config, num_windows=60), results)
    compared = compare_curves([results])
    (only,) = compared.models
    assert (compared.row_len, compared.full_len, compared.reference_len) == (ROW, FULL, ROW)
    assert only.curve.points[-1].num_visible_tokens == 2 * FULL > POSITIONS
    losses = {point.num_visible_tokens: point.loss_nats.mean for point in only.curve.points}
    assert only.gain_beyond_nats is not None and not only.is_ceiling
    assert only.gain_beyond_nats.mean == pytest.approx(losses[ROW] - losses[FULL], abs=1e-9)


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
    assert "RoPE scaling yarn:2" in setup_words("run", load(folder).setup)
    rows = [{row["window_id"]: row for row in rows_of(one, "windows")} for one in (folder, tables)]
    assert max(abs(rows[0][window]["loss_long_nats"] - rows[1][window]["loss_long_nats"]) for window in rows[0]) > 1e-3
    assert np.isfinite([row["loss_train_len_nats"] for row in rows[0].values()]).all()
