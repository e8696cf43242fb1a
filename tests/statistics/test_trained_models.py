"""Runs that differ in the seed of training only are one model."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_up_runs import made_up_run

from olmo_sparsity.config import DataConfig, ModelConfig, TrainingConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.several.trained_models import is_pretrained, same_model, trained_models
from olmo_sparsity.storage.files import write_json


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    """Three seeds of a model, two of a larger one, and a repetition of a seed."""
    larger = ModelConfig(d_model=256)
    return {
        "a0": made_up_run(tmp_path / "a0"),
        "b1": made_up_run(tmp_path / "b1", seed=1, model=larger),
        "a2": made_up_run(tmp_path / "a2", seed=2),
        "b0": made_up_run(tmp_path / "b0", model=larger),
        "a1": made_up_run(tmp_path / "a1", seed=1),
        "again": made_up_run(tmp_path / "again", seed=2),
    }


def test_runs_are_grouped_by_their_configuration(runs: dict[str, Path]) -> None:
    found = [([run.name for run in model.runs], list(model.seeds)) for model in trained_models(list(runs.values()))]
    assert found == [(["a0", "a2", "a1"], [0, 2, 1]), (["b1", "b0"], [1, 0]), (["again"], [2])]


def test_runs_of_one_model(runs: dict[str, Path]) -> None:
    model = same_model([runs["a2"], runs["a0"]])
    assert (model.runs, model.seeds) == ((runs["a2"], runs["a0"]), (2, 0))


def test_what_no_number_depends_on_makes_no_other_model(runs: dict[str, Path], tmp_path: Path) -> None:
    """Threads, and the text's options that only matter while it is read; a learning rate does."""
    data = DataConfig(text_field="body", on_error="skip")
    same = made_up_run(tmp_path / "same", training=TrainingConfig(seed=3, threads=3), data=data)
    other = made_up_run(tmp_path / "other", training=TrainingConfig(seed=3, learning_rate=1e-5))
    assert same_model([runs["a0"], same]).seeds == (0, 3)
    assert [model.runs for model in trained_models([runs["a0"], other, same])] == [(runs["a0"], same), (other,)]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (("a0", "b1"), "a0 and .*b1 differ in model.d_model .128, 256., not in the seed of training only; .*compare"),
        (("a0", "a2", "again"), "a2 and .*again have the same training.seed = 2; name each seed once"),
    ],
)
def test_runs_of_several_models_are_refused_in_one_line(
    runs: dict[str, Path], names: tuple[str, ...], said: str
) -> None:
    with pytest.raises(UserError, match=said) as caught:
        same_model([runs[name] for name in names])
    assert "\n" not in str(caught.value)


def test_a_pretrained_model_stands_for_itself(runs: dict[str, Path], tmp_path: Path) -> None:
    """It has no seed, is grouped with no run and with no other model, and has no table over seeds."""
    models = [tmp_path / name for name in ("model", "other")]
    for model in models:
        model.mkdir()
        write_json(model / "manifest.json", {"kind": "pretrained", "status": "complete"})
    found = trained_models([models[0], runs["a0"], models[1], runs["a1"]])
    assert [model.runs for model in found] == [(models[0],), (runs["a0"], runs["a1"]), (models[1],)]
    assert [model.seeds for model in found] == [(None,), (0, 1), (None,)]
    with pytest.raises(UserError, match=r"model: a pretrained model has no seeds of training; .*compare"):
        same_model([runs["a0"], models[0]])


def test_a_folder_without_a_run_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere: there is no training run here"):
        trained_models([tmp_path / "nowhere"])
    write_json(tmp_path / "manifest.json", {"kind": "notes"})  # of something else
    assert not is_pretrained(tmp_path)
