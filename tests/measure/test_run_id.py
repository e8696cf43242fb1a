"""The fingerprint of a measurement: another one for everything that the tables depend on, the same for everything else."""

from __future__ import annotations

import dataclasses
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import write_corpus

from olmo_sparsity.config import (
    Config,
    ContextConfig,
    InfluenceConfig,
)
from olmo_sparsity.measure.influence import default_name, influence_run_id
from olmo_sparsity.measure.setup.opened_model import open_model


def changed(config: Config, section: str, **values: Any) -> Config:
    return dataclasses.replace(config, **{section: dataclasses.replace(getattr(config, section), **values)})


@pytest.fixture(scope="module")
def earlier(tiny_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same run some steps before its end: another model of the same name, text and size."""
    run = tmp_path_factory.mktemp("earlier") / tiny_run.name
    shutil.copytree(tiny_run, run, symlinks=True)
    shutil.rmtree(run / "checkpoints" / "step12")
    return run


def run_id(config: Config, run: Path) -> str:
    opened = open_model(config, run)
    return influence_run_id(config.influence, opened)


def test_tables_of_other_models_text_or_settings_have_another_fingerprint(
    tiny_config: Config, tiny_run: Path, earlier: Path, tmp_path: Path
) -> None:
    other_text = write_corpus(tmp_path / "other.jsonl", 30, seed=5)
    measurements = {
        "as it is": (tiny_config, tiny_run),
        "weights": (tiny_config, earlier),
        "text": (changed(tiny_config, "influence", data=str(other_text)), tiny_run),
        "training rows": (changed(tiny_config, "context", train_len=14), tiny_run),
    }
    settings: dict[str, Any] = {
        "local_len": 6, "full_len": 19, "precision": "bf16", "visibility": "contextual", "seed": 1, "num_windows": 61, "k": [1],
        "selectors": ["kl"], "max_windows_per_document": 3, "targets": "word-start",
        "null_context": "shuffled", "resampled_draws": 1, "lasso_masks": 7,
        "min_preceding": 20, "train_overlap": False,
    }  # fmt: skip
    for key, value in settings.items():
        measurements[key] = (changed(tiny_config, "influence", **{key: value}), tiny_run)
    shorter = changed(tiny_config, "influence", full_len=19)  # leaves a position for the anchor
    measurements["anchor"] = (changed(shorter, "influence", anchor="bos"), tiny_run)
    names: dict[str, str] = {}
    for name, (config, run) in measurements.items():
        assert names.setdefault(run_id(config, run), name) == name


def test_other_text_in_the_same_file_has_another_fingerprint(
    tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    config = changed(tiny_config, "influence", data=str(tmp_path / "text.jsonl"))
    found = set()
    for seed in (5, 6):
        write_corpus(tmp_path / "text.jsonl", 30, seed=seed)
        found.add(run_id(config, tiny_run))
    assert len(found) == 2


def test_the_same_model_under_another_name_has_the_same_fingerprint(
    tiny_config: Config, tiny_run: Path, tmp_path: Path
) -> None:
    shutil.copytree(tiny_run, tmp_path / "renamed", symlinks=True)
    same = changed(tiny_config, "influence", local_len=8, full_len=20, precision="fp32", anchor="none")
    assert run_id(same, tmp_path / "renamed") == run_id(tiny_config, tiny_run)


@pytest.mark.parametrize(
    ("settings", "fields", "trained", "expected"),
    [
        ({}, {}, (8, 20), "c4-en-val-n5-k1-4-seed3-012345"),
        ({}, {}, (8, 21), "c4-en-val-8of20-n5-k1-4-seed3-012345"),
        ({}, {}, (7, 20), "c4-en-val-8of20-n5-k1-4-seed3-012345"),
        ({}, {"record": "a model"}, (8, 20), "c4-en-val-8of20-n5-k1-4-seed3-012345"),
        ({"unit": "block:4"}, {}, (8, 20), "c4-en-val-block4-n5-k1-4-seed3-012345"),
        ({"unit": "word", "visibility": "contextual"}, {}, (8, 20), "c4-en-val-word-contextual-n5-k1-4-seed3-012345"),
        ({}, {"anchor": "bos"}, (8, 20), "c4-en-val-bos-n5-k1-4-seed3-012345"),
        ({}, {"text": SimpleNamespace(source="/a/__.b/--", split="val")}, (8, 20), "text-val-n5-k1-4-seed3-012345"),
        ({}, {"text": SimpleNamespace(source="x" * 50, split="val")}, (8, 20), "x" * 40 + "-val-n5-k1-4-seed3-012345"),
    ],
)
def test_the_name_of_a_folder_tells_what_differs(
    settings: dict[str, Any], fields: dict[str, Any], trained: tuple[int, int], expected: str
) -> None:
    text = SimpleNamespace(source="/data/c4.en", split="val")
    opened: Any = SimpleNamespace(
        **(
            {"lengths": SimpleNamespace(local_len=8, full_len=20), "text": text, "record": None, "anchor": None}
            | fields
        )
    )
    named = InfluenceConfig(**({"num_windows": 5, "k": [1, 4], "seed": 3} | settings))
    of_run = ContextConfig(local_len=trained[0], full_len=trained[1])
    assert default_name(named, opened, trained=of_run, run_id="0123456789ab") == expected
