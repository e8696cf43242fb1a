"""The two tables of windows: what must not change them, and what is not run twice. ``reference`` holds their definitions."""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import pytest
import torch
from defined import M
from scored import measurement
from transformers_models import build

from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.evaluate import Measurement, draw_labels
from olmo_sparsity.progress import listening
from olmo_sparsity.selectors import selector
from olmo_sparsity.selectors.own import names_of

ALL = np.arange(6)
CLOSE = 2e-5


def rows(measured: Measurement, window_ids_W: np.ndarray = ALL) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    tables = measured.tables_of(window_ids_W)
    return tables["windows"].to_pylist(), tables["selections"].to_pylist()


def test_random_keeps_its_choice_for_drawn_labels_and_those_that_see_the_target_choose_again() -> None:
    """Its optimism must be 0."""
    of = {
        (row["window_id"], row["selector"], row["context"], row["draw"]): row
        for row in rows(measurement(selectors=["unmask-one", "random"], resampled_draws=3))[1]
    }
    for window in range(6):
        assert of[window, "random", "resampled", 2]["positions"] == of[window, "random", "real", 0]["positions"]
        assert of[window, "random", "null-resampled", 0]["positions"] == of[window, "random", "null", 0]["positions"]
        again = [of[window, "unmask-one", context, 0]["scores"] for context in ("resampled", "real")]
        assert again[0] != again[1]


def test_optimism_is_above_0_for_those_that_see_the_label_and_0_for_random() -> None:
    """The gain on the label that the choice was made for, minus its mean over labels of the short prediction, -KL(p_{}, p_J)."""
    measured = measurement(selectors=["unmask-one", "random"], k=[1], resampled_draws=40, num_windows=12)
    drawn = [row for row in rows(measured, np.arange(12))[1] if row["context"] == "resampled"]
    share = {}  # of a standard error
    for name in ("unmask-one", "random"):
        of = [
            row["gain_sparse_nats"][0] + row["kl_short_to_sparse_nats"][0] for row in drawn if row["selector"] == name
        ]
        share[name] = np.mean(of) / np.std(of) * len(of) ** 0.5
    assert abs(share["random"]) < 4 and share["unmask-one"] > 10


def test_draws_are_functions_of_the_seed_and_the_window_alone() -> None:
    log_p_WV = torch.full((5, 100), 0.01).log()
    labels = functools.partial(draw_labels, log_p_WV[:3])
    first = labels(np.array([4, 8, 15]), seed=2, num_draws=3)
    assert labels(np.array([15, 4, 8]), seed=2, num_draws=2).tolist() == first[[2, 0, 1], :2].tolist()
    assert (labels(np.array([4, 8, 15]), seed=3, num_draws=3) != first).any() and len(first.unique()) == 9
    of_seeds = [rows(measurement(seed=seed, num_windows=4), np.arange(4)) for seed in (0, 1, 0)]
    assert of_seeds[0] == of_seeds[2] and of_seeds[0] != of_seeds[1]
    assert len({(window["doc_id"], window["start_token"]) for window in of_seeds[0][0]}) == 4


@pytest.mark.parametrize(
    ("visibility", "unit"),
    [("hidden", "token"), ("contextual", "token"), ("hidden", "word"), ("contextual", "block:4")],
)
def test_batch_size_and_the_order_of_parts_change_nothing(visibility: Any, unit: str) -> None:
    settings: dict[str, Any] = {
        "visibility": visibility,
        "unit": unit,
        "selectors": ["kl", "mask-one", "attention", "random"],
    }
    whole = rows(measurement(**settings, num_windows=4), np.arange(4))
    measured = measurement(**settings, num_windows=4, batch_tokens=90)
    parts = {first: rows(measured, np.arange(first, first + 2)) for first in (2, 0)}
    for table in (0, 1):
        for ours, theirs in zip([*parts[0][table], *parts[2][table]], whole[table], strict=True):
            for name, value in theirs.items():
                if isinstance(value, float) or (isinstance(value, list) and isinstance(value[0], float)):
                    assert ours[name] == pytest.approx(value, abs=CLOSE), name
                else:
                    assert ours[name] == value, name


def test_sets_that_are_known_are_not_run_again() -> None:
    """J_1 of any selector is among the single tokens where one has asked for them; equal sets run once."""
    ran: dict[tuple[str, ...], int] = {}
    found = {}
    for names in (["kl"], ["kl", "nearest"], ["nearest"], ["nearest", "streaming-llm"]):
        measured, counts = measurement(selectors=names, k=[1], visibility="contextual", resampled_draws=0), []
        with listening(counts.append):
            _, selections = rows(measured)
        ran[tuple(names)] = sum(counts)
        found[tuple(names)] = [row["loss_sparse_nats"] for row in selections if row["selector"] == "nearest"]
    assert ran["kl",] == ran["kl", "nearest"]
    assert found["kl", "nearest"] == [pytest.approx(losses, abs=CLOSE) for losses in found["nearest",]]
    same = measurement(selectors=["nearest"], k=[M], resampled_draws=0)
    everything = rows(same)
    for window, row in zip(everything[0], (row for row in everything[1] if row["context"] == "real"), strict=True):
        assert (row["loss_sparse_nats"], row["kl_sparse_nats"]) == ([window["loss_long_nats"]], [0.0])


def failing(scores: Any) -> Any:
    raise ValueError("nothing to\nsay")


def peeking(scores: Any) -> Any:
    return scores.loss_single


def test_selectors_that_fail_are_tried_before_anything_long() -> None:
    """On one window: what a model cannot give, and what a user's function does wrong. Others do not run."""
    refused = measurement(build("gemma-2"), visibility="contextual", selectors=["kl", "h2o"])
    with pytest.raises(UserError, match=r"leave out the selectors that need them$"):
        refused.try_selectors()
    with pytest.raises(UserError, match=r"ValueError: nothing to say, in the selector failing$"):
        measurement(selectors=names_of([failing])).try_selectors()
    blind = measurement(selectors=names_of([peeking]))
    for run in (blind.try_selectors, lambda: blind.tables_of(np.arange(1))):
        with pytest.raises(UserError, match=r"UndeclaredTargetError: .*, in the selector peeking$"):
            run()
    ran: list[int] = []
    with listening(ran.append):
        measurement(selectors=["kl", "greedy"]).try_selectors()
    assert ran == []
    seeing = selector("seeing", sees_target=True)(peeking)
    measurement(selectors=names_of([seeing]), num_windows=1, resampled_draws=0).try_selectors()
