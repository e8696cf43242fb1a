"""Which runs are one model, and which of their measurements belong together."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from guard_commands import DATA

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import read_json, write_json, write_manifest
from olmo_sparsity.statistics.seeds import is_pretrained, matching_tables, same_model, trained_models

GUARD = [DATA / "runs" / f"seed{seed}" for seed in range(3)]


def a_run(folder: Path, *, seed: int, **keys: dict[str, Any]) -> Path:
    """Write a run with this seed and other values of some keys, by section."""
    manifest = read_json(GUARD[0] / "manifest.json")
    for section, values in {**keys, "training": {**keys.get("training", {}), "seed": seed}}.items():
        manifest["config"][section] |= values
    folder.mkdir()
    write_manifest(folder, manifest)
    return folder


@pytest.fixture
def runs(tmp_path: Path) -> dict[str, Path]:
    """Three seeds of a model, two of a larger one, a repeated seed, and a pretrained model."""
    larger = {"d_model": 64}
    seeds = {"a0": 0, "b1": 1, "a2": 2, "b0": 0, "a1": 1, "again": 2}
    found = {
        name: a_run(tmp_path / name, seed=seed, model=larger if name[0] == "b" else {}) for name, seed in seeds.items()
    }
    (tmp_path / "pretrained").mkdir()
    write_json(tmp_path / "pretrained" / "manifest.json", {"kind": "pretrained", "status": "complete"})
    return {**found, "pretrained": tmp_path / "pretrained"}


def test_runs_are_grouped_by_their_configuration(runs: dict[str, Path]) -> None:
    found = [([run.name for run in model.runs], list(model.seeds)) for model in trained_models(list(runs.values()))]
    assert found[:2] == [(["a0", "a2", "a1"], [0, 2, 1]), (["b1", "b0"], [1, 0])]
    assert found[2:] == [(["again"], [2]), (["pretrained"], [None])]
    assert [name for name, run in runs.items() if is_pretrained(run)] == ["pretrained"]
    assert [len(model.runs) for model in trained_models([runs["pretrained"], runs["a0"], runs["a2"]])] == [1, 2]


def test_what_no_number_depends_on_makes_no_other_model(runs: dict[str, Path], tmp_path: Path) -> None:
    same = a_run(tmp_path / "same", seed=3, training={"threads": 3}, data={"text_field": "body"})
    other = a_run(tmp_path / "other", seed=3, training={"learning_rate": 1e-5})
    assert same_model([same, runs["a0"]]).seeds == (3, 0)
    assert [model.runs for model in trained_models([runs["a0"], other, same])] == [(runs["a0"], same), (other,)]


@pytest.mark.parametrize(
    ("names", "said"),
    [
        (["a0", "b1"], r"a0 and .*b1 differ in model\.d_model \(32, 64\)"),
        (["a0", "a2", "again"], r"a2 and .*again have the same training\.seed = 2"),
        (["a0", "pretrained"], "pretrained: a pretrained model has no seeds"),
        (["a0", "nowhere"], "nowhere: there is no training run here"),
    ],
)
def test_what_is_not_one_model_is_refused_in_one_line(runs: dict[str, Path], names: list[str], said: str) -> None:
    with pytest.raises(UserError, match=said) as caught:
        same_model([runs.get(name, Path("nowhere")) for name in names])
    assert "\n" not in str(caught.value)


@pytest.fixture
def measured(tmp_path: Path) -> list[Path]:
    """Two seeds that were measured alike."""
    return [Path(shutil.copytree(run, tmp_path / run.name)) for run in GUARD[1:]]


def measure_again(run: Path, name: str, **changes: Any) -> Path:
    """Copy a measurement, with other entries of its manifest; keys of the section ``influence`` are merged."""
    folder = Path(shutil.copytree(run / "influence" / "measured", run / "influence" / name))
    manifest = read_json(folder / "manifest.json")
    influence = {**manifest["influence"], **changes.pop("influence", {})}
    write_manifest(folder, {**manifest, **changes, "influence": influence, "finished": f"2999 {name}"})
    return folder


def test_the_newest_measurement_that_all_seeds_have_is_read(measured: list[Path]) -> None:
    first = [run / "influence" / "measured" for run in measured]
    assert matching_tables(measured) == first
    measure_again(measured[0], "elsewhere", windows_sha256="0")
    assert matching_tables(measured) == first
    newer = [measure_again(run, "newer", influence={"k": [1, 2], "batch_tokens": i}) for i, run in enumerate(measured)]
    assert matching_tables(measured) == newer
    measure_again(measured[1], "newest", influence={"k": [1]})
    assert matching_tables(measured) == newer
    shutil.rmtree(measured[0] / "influence")
    with pytest.raises(UserError, match="seed1: nothing of this kind is measured"):
        matching_tables(measured)


@pytest.mark.parametrize(
    "changes",
    [
        {"windows_sha256": "0"}, {"tokens_sha256": "0"}, {"visibility": "contextual"}, {"anchor": None},
        {"influence": {"null_context": "shuffled"}}, {"checkpoint": {"step": 200, "model_sha256": "0"}},
    ],
)  # fmt: skip
def test_other_text_settings_or_steps_are_no_match(measured: list[Path], changes: dict[str, Any]) -> None:
    measure_again(measured[1], "other", **changes)
    shutil.rmtree(measured[1] / "influence" / "measured")
    with pytest.raises(UserError, match=r"seed2: these runs have no measurement with the same windows and settings"):
        matching_tables(measured)
