"""Which runs are the same model: those whose configurations differ in the seed of training only.

A pretrained model stands for itself: it has one folder and no seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from olmo_sparsity.config.trained import FREE_TO_MEASURE, DifferentKey, different_keys
from olmo_sparsity.errors import UserError
from olmo_sparsity.storage.folders import manifest_of_kind
from olmo_sparsity.storage.manifests import read_config_of, read_manifest_of

SEED_KEY = ("training", "seed")
BESIDE = "`olmo-sparsity compare` shows such runs side by side"


@dataclass(frozen=True)
class TrainedModel:
    """The runs of one configuration, each with another seed of training; or a pretrained model.

    Attributes:
        runs: their folders.
        seeds: their seeds, in the same order; None of a pretrained model.
    """

    runs: tuple[Path, ...]
    seeds: tuple[Optional[int], ...]


def is_pretrained(run: Path) -> bool:
    """Return True if a folder holds the measurements of a pretrained model, and no training."""
    return (run / "manifest.json").is_file() and bool(read_manifest_of(run).get("kind") == "pretrained")


def _stored_config(run: Path) -> dict[str, Any]:
    """Return the configuration that a run was made with, as its manifest holds it.

    Raises:
        UserError: there is no run.
    """
    manifest = manifest_of_kind(run, "run")
    if manifest is None:
        raise UserError(f"{run}: there is no training run here; name the folder of one")
    config: dict[str, Any] = manifest["config"]
    return config


def _difference(first: dict[str, Any], second: dict[str, Any]) -> Optional[DifferentKey]:
    """Return a key other than the seed in which two configurations differ; None if there is none."""
    return next(different_keys(first, second, free=FREE_TO_MEASURE | {SEED_KEY}), None)


def trained_models(runs: Sequence[Path]) -> list[TrainedModel]:
    """Group runs into models, in the order in which the first run of each is named.

    Two runs of the same configuration and the same seed are no two draws of the seed; the second begins another model.

    Raises:
        UserError: a folder holds no run.
    """
    models: list[TrainedModel] = []
    for run in runs:
        if is_pretrained(run):
            models.append(TrainedModel((run,), (None,)))
            continue
        config = _stored_config(run)
        seed = read_config_of(run).training.seed
        for i, model in enumerate(models):
            is_new_seed = not {seed, None}.intersection(model.seeds)
            if is_new_seed and _difference(_stored_config(model.runs[0]), config) is None:
                models[i] = TrainedModel((*model.runs, run), (*model.seeds, seed))
                break
        else:
            models.append(TrainedModel((run,), (seed,)))
    return models


def same_model(runs: Sequence[Path], *, advice: str = BESIDE) -> TrainedModel:
    """Return the model that all these runs are of.

    Args:
        runs: their folders.
        advice: what is done with runs that are not of one model.

    Raises:
        UserError: they differ in more than the seed of training, two have the same seed, or one is a pretrained model.
    """
    for run in runs:
        if is_pretrained(run):
            raise UserError(
                f"{run}: a pretrained model has no seeds of training; `olmo-sparsity compare` shows models side by side"
            )
    configs = [_stored_config(run) for run in runs]
    for run, config in zip(runs[1:], configs[1:], strict=True):
        difference = _difference(configs[0], config)
        if difference is not None:
            raise UserError(
                f"{runs[0]} and {run} differ in {difference.dotted} ({difference.first!r}, {difference.second!r}), not in the "
                f"seed of training only; {advice}"
            )
    seeds = tuple(read_config_of(run).training.seed for run in runs)
    for i, seed in enumerate(seeds):
        if seed in seeds[:i]:
            raise UserError(
                f"{runs[seeds.index(seed)]} and {runs[i]} have the same training.seed = {seed}; name each seed once"
            )
    return TrainedModel(tuple(runs), seeds)
