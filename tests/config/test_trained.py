"""The keys in which two configurations differ."""

from __future__ import annotations

import pytest

from olmo_sparsity.config import Config, DataConfig, TrainingConfig, to_dict
from olmo_sparsity.config.files import load_config
from olmo_sparsity.config.trained import FREE_TO_MEASURE, FREE_TO_TRAIN, DifferentKey, different_keys


def test_keys_that_training_depends_on_are_found_in_the_order_of_the_sections() -> None:
    first = to_dict(load_config(None, []))
    second = to_dict(load_config(None, ["training.seed=7", "context.full_len=40", "influence.seed=3", "name=other"]))
    found = list(different_keys(first, second, free=FREE_TO_TRAIN))
    assert [key.dotted for key in found] == ["context.full_len", "training.seed"]
    assert found[1] == DifferentKey("training.seed", 0, 7)
    assert not list(different_keys(first, second, free=frozenset({("context", "full_len"), ("training", "seed")})))


def test_a_key_of_another_version_is_one_that_differs() -> None:
    config = to_dict(Config())
    other = {**config, "training": {**config["training"], "of_old": 5}}
    assert list(different_keys(other, config, free=FREE_TO_TRAIN)) == [DifferentKey("training.of_old", 5, None)]
    assert list(different_keys(config, other, free=FREE_TO_TRAIN)) == [DifferentKey("training.of_old", None, 5)]


# How a run is trained and kept, where its text is cached, and what a synthetic task is evaluated on.
NO_WEIGHT_DEPENDS_ON = {
    *(
        "data.cache_dir",
        "data.processes",
        "training.parallel",
        "training.micro_batch_rows",
        "training.log_every",
        "training.checkpoint_every",
    ),
    *("training.keep_checkpoints", "training.keep_every", "training.trackers"),
    *("synthetic.test_lengths", "synthetic.test_sparsity", "synthetic.test_row_len"),
    *("synthetic.test_rows", "synthetic.test_seed", "synthetic.rope_scaling", "synthetic.rope_factor"),
}
# How the text is read and where a model runs: training goes on as it began, and a measurement is of its own.
FREE_BESIDE = {"data.on_error", "data.text_field", "data.token_dtype", "training.device", "training.threads"}


@pytest.mark.parametrize(
    ("free", "may_differ"),
    [(FREE_TO_TRAIN, NO_WEIGHT_DEPENDS_ON), (FREE_TO_MEASURE, NO_WEIGHT_DEPENDS_ON | FREE_BESIDE)],
)
def test_every_key_counts_but_those_that_no_weight_depends_on(
    free: frozenset[tuple[str, str]], may_differ: set[str]
) -> None:
    config = to_dict(Config())
    sections = ("data", "context", "pose", "model", "training", "synthetic")
    other = {section: dict.fromkeys(config[section], "another value") for section in sections}
    every = {f"{section}.{key}" for section in sections for key in config[section]}
    assert may_differ < every
    assert {key.dotted for key in different_keys(config, other, free=free)} == every - may_differ


@pytest.mark.parametrize(
    ("changed", "key"),
    [
        (Config(training=TrainingConfig(device="cpu")), "training.device"),
        (
            Config(data=DataConfig(token_dtype="uint32")),
            "data.token_dtype",
        ),  # other files than auto writes
    ],
)
def test_some_keys_are_free_when_a_run_is_measured_only(changed: Config, key: str) -> None:
    config, moved = to_dict(Config()), to_dict(changed)
    assert [different.dotted for different in different_keys(config, moved, free=FREE_TO_TRAIN)] == [key]
    assert not list(different_keys(config, moved, free=FREE_TO_MEASURE))
