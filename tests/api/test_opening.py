"""What ``open_model`` hands on, and how windows of one text are measured; nothing is measured here."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers_models import build_raw, byte_tokenizer, save

from olmo_sparsity import api
from olmo_sparsity.api.opening import settings_of_text
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json


def test_a_model_says_what_it_is(tiny_run: Path) -> None:
    model = api.open_model(tiny_run, local_len=7)
    number = f"{read_json(tiny_run / 'manifest.json')['num_parameters'] / 1e6:.3g}"
    assert repr(model) == (
        f"Model('tiny', {number}M parameters, fp32 on cpu, local_len 7, full_len 20, hidden, no anchor)"
    )
    assert 0.01 < float(number) < 0.1
    gridded = api.open_model(tiny_run, overrides=["influence.k_grid=geometric", "influence.unit=block:2"])
    assert (gridded.config.influence.k, gridded.config.influence.k_grid) == ([1, 2, 4, 6], None)


def test_windows_of_one_text_are_measured_exactly_with_the_control_beside(tiny_run: Path) -> None:
    """All else is as the configuration says."""
    keys = {"seed": 7, "k": "[1, 2, 5]", "lasso_masks": 77}
    model = api.open_model(tiny_run, overrides=[f"influence.{key}={value}" for key, value in keys.items()])
    plain: dict[str, Any] = {"k": None, "seed": None, "unit": None, "resampled_draws": 6}
    expected = dataclasses.replace(
        model.config.influence,
        selectors=["greedy", "kl", "random"],
        k=[1, 2, 5],
        resampled_draws=6,
    )
    assert settings_of_text(model, ["greedy", "kl", "greedy"], **plain) == expected
    assert settings_of_text(model, ["random", "kl"], **plain).selectors == ["random", "kl"]
    named = settings_of_text(model, ["greedy", "kl"], k=(2, 4), seed=0, unit="word", resampled_draws=0)
    assert named == dataclasses.replace(expected, k=[2, 4], seed=0, unit="word", resampled_draws=0)
    of_blocks = api.open_model(tiny_run, overrides=["influence.unit=block:5", "influence.k=[1, 2, 3]"])
    found = settings_of_text(of_blocks, ["kl"], **plain)
    assert (found.unit, found.k) == ("block:5", [1, 2])  # of three blocks


@pytest.mark.parametrize(
    ("configured", "unit", "expected"),
    [
        ("[1, 2, 12]", None, [1, 2]),
        ("[3, 11]", None, [3, 11]),
        ("[12]", None, [1]),
        ("[1, 2, 3]", "block:5", [1, 2]),  # three blocks, the last of two tokens
        ("[1, 2, 3]", "block:3", [1, 2, 3]),  # four
        ("[3]", "block:6", [1]),
        ("[8, 12]", "word", [8]),
    ],
)
def test_by_default_some_long_range_tokens_are_left_out(
    configured: str, unit: str | None, expected: list[int], tiny_run: Path
) -> None:
    model = api.open_model(tiny_run, overrides=[f"influence.k={configured}"])
    assert settings_of_text(model, ["kl"], k=None, seed=None, unit=unit, resampled_draws=0).k == expected


# A model in memory.

LENGTHS: dict[str, Any] = {"local_len": 8, "full_len": 20, "device": "cpu"}
TEXTS = [
    "The ship lay still in the dark, and no wind came. " * 2,
    "We ate bread, and the old dog slept by the fire. " * 2,
]


@pytest.mark.parametrize("kind", ["llama", "gpt-2"])
def test_a_model_in_memory_gives_what_its_folder_gives(kind: str, tmp_path: Path) -> None:
    raw = save(tmp_path / "model", kind)
    numbers = []
    for given in ((raw, byte_tokenizer()), tmp_path / "model"):
        model = api.open_model(given, **LENGTHS)
        windows = api.windows_from_texts(model, TEXTS, num_windows=6)
        results = api.measure(model, windows, selectors=["kl", "attention"], k=[1, 2], resampled_draws=0)
        numbers.append(
            (results.windows["loss_long_nats"], results.selections["loss_sparse_nats"].explode(), results.manifest)
        )
    for ours, theirs in zip(numbers[0][:2], numbers[1][:2], strict=True):
        np.testing.assert_allclose(ours.astype(float), theirs.astype(float), atol=1e-5)
    record, of_folder = (manifest["model"] for *_, manifest in numbers)
    assert record["architecture"] == of_folder["architecture"] == type(raw).__name__ == record["name"]
    assert (record["num_parameters"], record["max_position"]) == (of_folder["num_parameters"], 64)
    assert [check["name"] for check in numbers[0][2]["fit"]["checks"]] == [
        check["name"] for check in numbers[1][2]["fit"]["checks"]
    ]
    assert not Path("runs").exists()  # nothing is written


def test_a_model_in_memory_stays_as_it_is_and_is_known_by_its_weights() -> None:
    raw = build_raw("llama").to(torch.bfloat16)
    model = api.open_model((raw, byte_tokenizer(adds_bos=True)), **LENGTHS)
    assert model.engine.model.raw is raw and raw.dtype == torch.bfloat16
    assert repr(model).endswith("bf16 on cpu, local_len 8, full_len 20, hidden, anchor '<s>')")
    again, other = (
        api.open_model((of, byte_tokenizer()), **LENGTHS).opened
        for of in (build_raw("llama"), build_raw("llama", initializer_range=0.1))
    )
    assert again.weights_sha256 != model.opened.weights_sha256  # in bf16
    with torch.no_grad():
        other.model.raw.lm_head.weight[0, 0] += 1
    changed = api.open_model((other.model.raw, byte_tokenizer()), **LENGTHS).opened
    assert changed.weights_sha256 != again.weights_sha256 == other.weights_sha256


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (5, r"^model = 5: must be a path, a name, or \(model, tokenizer\)$"),
        ((build_raw("mamba"), byte_tokenizer()), "takes no position IDs"),
        ((build_raw("llama", vocab_size=200), byte_tokenizer()), "its tokenizer has more entries than the model"),
    ],
    ids=["number", "mamba", "vocabulary"],
)
def test_mistakes_of_what_is_given(given: Any, said: str) -> None:
    with pytest.raises(UserError, match=said) as error:
        api.open_model(given, **LENGTHS)
    assert "\n" not in str(error.value)


def test_a_model_in_memory_that_does_not_fit_is_refused_when_it_is_measured() -> None:
    model = api.open_model((build_raw("falcon with ALiBi"), byte_tokenizer()), **LENGTHS)
    windows = api.windows_from_texts(model, TEXTS, num_windows=3)
    with pytest.raises(UserError, match=r"^FalconForCausalLM cannot be measured: it ignores position IDs"):
        api.measure(model, windows, selectors=["kl"])
