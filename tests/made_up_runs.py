"""Folders of invented runs and their measurements, for tests that need no model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

from made_up import KS, made_up_tables

from olmo_sparsity.config import Config, ContextConfig, InfluenceConfig, PoseConfig, TrainingConfig, to_dict
from olmo_sparsity.files import read_json, write_manifest

ROW, FULL = 8, 24
POSE = PoseConfig(max_position=32)


def made_up_run(run: Path, *, seed: int = 0, pose: PoseConfig = POSE, row_len: int = ROW, **sections: Any) -> Path:
    """Write the folder of a run that was trained with this seed; ``sections`` are sections of the configuration."""
    config = Config(
        context=ContextConfig(local_len=ROW, full_len=FULL, train_len=row_len),
        pose=pose,
        training=TrainingConfig(seed=seed),
    )
    run.mkdir(parents=True, exist_ok=True)
    write_manifest(
        run,
        {"kind": "run", "status": "complete", "config": to_dict(dataclasses.replace(config, **sections))},
    )
    return run


def made_up_measurement(run: Path, long_gain: float, **settings: Any) -> Path:
    """Write a measurement of a run, and return its folder; runs with other long gains have the same windows and documents.

    ``settings`` are keys of the section ``influence`` of the manifest, or ``windows_sha256`` and the like, or ``num_documents``.
    """
    name, num_documents = settings.pop("name", "made-up"), settings.pop("num_documents", 80)
    folder = made_up_tables(
        run / "influence" / name,
        num_documents=num_documents,
        long_gain=long_gain,
        seed=3,
        selectors=InfluenceConfig().selectors,
    )
    manifest = read_json(folder / "manifest.json")
    of_manifest = {"tokens_sha256": "t", "windows_sha256": "w", "num_parameters": 1_000_000, "pose": to_dict(POSE)}
    of_manifest |= {key: settings.pop(key) for key in list(settings) if key in of_manifest}
    influence = {"k": KS, "selectors": InfluenceConfig().selectors, "seed": 0, "windows_per_part": 256, **settings}
    checkpoint = {"step": 100, "model_sha256": run.name}
    write_manifest(
        folder,
        {
            **manifest,
            **of_manifest,
            "run": run.name,
            "influence": influence,
            "checkpoint": checkpoint,
            "finished": name,
        },
    )
    return folder
