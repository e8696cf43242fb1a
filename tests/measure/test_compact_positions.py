"""Compact positions from a pretrained model to the tables: losses by transformers itself, what is recorded, what is refused."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch
import transformers
from tiny_pretrained import loss_after, save_llama

from olmo_sparsity.config import Config, PretrainedConfig
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.visible.visibility import masked_positions
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.summary import summarize
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.tables.reading import read_table
from olmo_sparsity.wording.gates import gap_words

FULL, M = 20, 12


@pytest.fixture(scope="module")
def model(corpus_file: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    texts = [json.loads(line)["text"] for line in corpus_file.open()]
    return save_llama(tmp_path_factory.mktemp("models") / "llama", texts)


@pytest.fixture(scope="module")
def config(tiny_config: Config, model: Path) -> Config:
    influence = dataclasses.replace(
        tiny_config.influence,
        num_windows=6,
        selectors=["kl", "mask-one", "random"],
        resampled_draws=0,
        k=[1, 4],
        positions="compact",
    )
    return dataclasses.replace(tiny_config, influence=influence, pretrained=PretrainedConfig(str(model)))


@pytest.fixture(scope="module")
def tables(config: Config, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return measure(config, tmp_path_factory.mktemp("runs") / "llama")


def test_losses_are_those_of_the_visible_tokens_as_ordinary_text(tables: Path, model: Path) -> None:
    raw = transformers.LlamaForCausalLM.from_pretrained(str(model)).eval()
    bos = read_json(tables / "manifest.json")["anchor"]["id"]
    selections = [row for row in read_table(tables, "selections").to_pylist() if row["context"] == "real"]
    for window in read_table(tables, "windows").to_pylist()[:3]:

        def loss(visible: list[int], window: dict = window) -> float:
            tokens = [bos, *(window["token_ids"][i] for i in [*sorted(visible), *range(M, FULL)])]
            return loss_after(raw, tokens, list(range(len(tokens))), window["target_id"])

        assert window["loss_short_nats"] == pytest.approx(loss([]), abs=1e-5)
        assert window["loss_short_no_gap_nats"] == pytest.approx(window["loss_short_nats"], abs=1e-6)
        assert window["loss_long_nats"] == pytest.approx(loss(list(range(M))), abs=1e-5)
        rows = [row for row in selections if row["window_id"] == window["window_id"]]
        assert {row["selector"] for row in rows} == {"kl", "mask-one", "random"}
        for row in rows:
            for k, value in zip(row["k"], row["loss_sparse_nats"], strict=True):
                assert value == pytest.approx(loss(row["positions"][:k]), abs=1e-5)
        (mask_one,) = [row for row in rows if row["selector"] == "mask-one"]
        everything = set(range(M))
        for j in (0, 5, M - 1):
            expected = loss(sorted(everything - {j})) - loss(sorted(everything))
            assert mask_one["scores"][j] == pytest.approx(expected, abs=2e-5)


def test_hidden_tokens_have_a_position_that_the_model_has() -> None:
    """Nobody sees it, but a table of absolute positions is read at it: it is that of the visible token before, or the first."""
    visible_RT = torch.tensor([[False, False, True, False, True, True], [True, False, False, True, True, True]])
    assert masked_positions(visible_RT, "compact").tolist() == [[0, 0, 0, 0, 1, 2], [0, 0, 0, 1, 2, 3]]
    assert masked_positions(visible_RT, "kept").tolist() == [list(range(6))] * 2


def test_they_are_recorded_and_named(tables: Path) -> None:
    manifest = read_json(tables / "manifest.json")
    assert manifest["positions"] == manifest["influence"]["positions"] == "compact"
    assert "8of20-compact-positions-bos-n6" in tables.name
    summary = summarize(load(tables))
    assert summary.setup.positions == "compact"
    assert summary.gap_cost_nats is not None and abs(summary.gap_cost_nats.mean) < 1e-6
    assert gap_words(summary) == ""  # there is no gap
