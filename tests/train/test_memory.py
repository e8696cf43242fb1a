"""The memory that training needs at least: counted on real models, and refused before anything is allocated."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.devices import available_bytes
from olmo_sparsity.model.olmo import build_model, olmo_model_config
from olmo_sparsity.torchrun import SINGLE_PROCESS, ProcessInfo
from olmo_sparsity.train import resources
from olmo_sparsity.train.data import TEXT
from olmo_sparsity.train.loop import train
from olmo_sparsity.train.resources import check_memory, least_bytes

MODEL = "model.d_model, model.n_layers and model.mlp_ratio"


@pytest.mark.parametrize("weight_tying", [True, False])
def test_no_model_has_fewer_bytes_than_are_counted(tiny_config: Config, weight_tying: bool) -> None:
    config = replace(tiny_config, model=replace(tiny_config.model, d_model=64, weight_tying=weight_tying))
    model = build_model(olmo_model_config(config, vocab_size=320, eos_id=0), 0)
    actual = 16 * sum(parameter.numel() for parameter in model.parameters())
    assert 0.8 * actual < least_bytes(config, SINGLE_PROCESS, source=TEXT)[MODEL] <= actual


def test_processes_share_rows_and_under_fsdp_the_model(tiny_config: Config) -> None:
    fsdp = replace(tiny_config, training=replace(tiny_config.training, parallel="fsdp"))
    alone, four = (
        least_bytes(tiny_config, SINGLE_PROCESS, source=TEXT),
        least_bytes(tiny_config, ProcessInfo(0, 4), source=TEXT),
    )
    assert four["training.batch_rows"] * 4 == alone["training.batch_rows"] == 16 * 8 * 24
    assert four[MODEL] == alone[MODEL]
    assert least_bytes(fsdp, ProcessInfo(0, 4), source=TEXT)[MODEL] * 4 == pytest.approx(alone[MODEL], abs=4)


def test_each_key_has_the_bytes_that_follow_from_it(tiny_config: Config) -> None:
    """No two numbers are alike: rows of 10 tokens, position IDs below 40, heads of 16 entries, 3 processes."""
    config = replace(
        tiny_config,
        context=replace(tiny_config.context, train_len=10),
        pose=replace(tiny_config.pose, max_position=40),
        training=replace(tiny_config.training, batch_rows=24, micro_batch_rows=4, eval_rows=33),
    )
    of = least_bytes(config, ProcessInfo(0, 3), source=TEXT)
    assert of["pose.max_position or context.full_len"] == 40 * 16 * 4 * 2  # sines and cosines
    assert of["training.batch_rows"] == 8 * 10 * 3 * 8
    assert of["training.eval_rows"] == 11 * 10 * 3 * 8
    logits = "training.micro_batch_rows or training.batch_rows"
    assert of[logits] == 4 * 10 * 320 * 4
    whole = replace(config, training=replace(config.training, micro_batch_rows=None))
    assert least_bytes(whole, ProcessInfo(0, 3), source=TEXT)[logits] == 8 * 10 * 320 * 4
    # Rows that a process cannot divide are counted upwards; a pass takes no more rows than there are.
    uneven = least_bytes(config, ProcessInfo(0, 20), source=TEXT)
    assert uneven["training.batch_rows"] == uneven["training.eval_rows"] == 2 * 10 * 3 * 8
    assert uneven[logits] == 2 * 10 * 320 * 4


@pytest.mark.parametrize(("tokenizer", "entries"), [("bpe:4096", 4096), ("bpe:200000", 200_000), ("words.json", 257)])
def test_a_vocabulary_has_the_entries_that_its_name_tells(tokenizer: str, entries: int, tiny_config: Config) -> None:
    """Of a file no more is known than 256 bytes and the token that ends documents."""
    config = replace(tiny_config, data=replace(tiny_config.data, tokenizer=tokenizer))
    rows, row_len = tiny_config.training.batch_rows, tiny_config.context.row_len
    logits = least_bytes(config, SINGLE_PROCESS, source=TEXT)["training.micro_batch_rows or training.batch_rows"]
    assert tiny_config.training.micro_batch_rows is None and logits == rows * row_len * entries * 4


def test_this_machine_has_memory() -> None:
    available = available_bytes(torch.device("cpu"))
    assert available is None or 2**20 < available < 2**60


def test_training_is_refused_before_anything_is_written(
    tiny_config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed = sum(least_bytes(tiny_config, SINGLE_PROCESS, source=TEXT).values())
    monkeypatch.setattr(resources, "available_bytes", lambda device: needed)
    check_memory(tiny_config, SINGLE_PROCESS, source=TEXT, device=torch.device("cpu"))
    monkeypatch.setattr(resources, "available_bytes", lambda device: needed - 1)
    with pytest.raises(UserError, match=f"{MODEL}: training needs at least"):
        train(tiny_config, tmp_path / "run")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.setattr(resources, "available_bytes", lambda device: None)
    check_memory(tiny_config, SINGLE_PROCESS, source=TEXT, device=torch.device("cpu"))
