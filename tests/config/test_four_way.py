"""The four configurations of the four-way run differ in nothing but what they are compared for."""

from __future__ import annotations

import dataclasses

import pytest

from olmo_sparsity.config import Config, PoseConfig
from olmo_sparsity.config.files import config_folder, load_config

TWINS = ("demo-no-pose", "demo-randpos", "demo-ceiling")


def shipped(name: str) -> Config:
    return load_config(config_folder() / f"{name}.yaml")


@pytest.mark.parametrize("name", TWINS)
def test_twins_share_text_model_seed_steps_and_measurement(name: str) -> None:
    demo, twin = shipped("demo"), shipped(name)
    same_rows = dataclasses.replace(twin.training, batch_rows=demo.training.batch_rows)
    assert (twin.data, twin.model, same_rows) == (demo.data, demo.model, demo.training)
    assert (twin.influence, twin.max_position) == (demo.influence, demo.max_position)
    assert twin.name == name


@pytest.mark.parametrize("name", TWINS)
def test_a_step_has_as_many_tokens(name: str) -> None:
    """Up to half a row, since a step has a whole number of rows."""
    demo, twin = shipped("demo"), shipped(name)
    tokens, wanted = (config.training.batch_rows * config.context.row_len for config in (twin, demo))
    assert abs(tokens - wanted) <= twin.context.row_len / 2


def test_twins_have_the_lengths_of_the_demo_and_the_ceiling_rows_of_the_full_context() -> None:
    demo = shipped("demo").context
    assert shipped("demo-no-pose").context == shipped("demo-randpos").context == demo
    ceiling = shipped("demo-ceiling").context
    assert (ceiling.local_len, ceiling.full_len, ceiling.row_len) == (demo.local_len, demo.full_len, demo.full_len)


def test_positions_are_what_the_twins_differ_in() -> None:
    demo = shipped("demo").pose
    assert demo.method == "pose" and demo.num_chunks > 1
    for name in ("demo-no-pose", "demo-ceiling"):
        assert shipped(name).pose == dataclasses.replace(demo, num_chunks=1, vary_chunks=False)
    assert shipped("demo-randpos").pose == PoseConfig(method="randpos", max_position=demo.max_position)
