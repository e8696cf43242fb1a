"""What ``open_model`` hands on, and how windows of one text are measured; nothing is measured here."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest

from olmo_sparsity import api
from olmo_sparsity.api.opening import settings_of_text


def test_a_model_says_what_it_is(tiny_run: Path) -> None:
    model = api.open_model(tiny_run, local_len=7)
    number = f"{sum(one.numel() for one in model.evaluator.model.parameters()) / 1e6:.3g}"  # type: ignore[attr-defined]
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
