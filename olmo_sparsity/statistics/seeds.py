"""Which runs are one model: their configurations differ in the seed of training alone. A pretrained model has no seed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from olmo_sparsity.config import different_keys, read_config_of
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import manifest_of_kind, read_manifest_of
from olmo_sparsity.tables import list_finished, newest_finished, read_manifest

SEED_KEY = "training.seed"
SAME_WINDOWS = ("tokens_sha256", "windows_sha256")  # keys of a manifest, equal where the windows are the same
EXECUTION_KEYS = ("path", "batch_tokens", "windows_per_part")  # of the section ``influence``: no number depends on them


@dataclass(frozen=True)
class TrainedModel:
    """The runs of one configuration, each with another seed, or one pretrained model."""

    runs: tuple[Path, ...]
    seeds: tuple[Optional[int], ...]  # None of a pretrained model


def is_pretrained(run: Path) -> bool:
    """True if a folder holds the measurements of a pretrained model."""
    return (run / "manifest.json").is_file() and bool(read_manifest_of(run).get("kind") == "pretrained")


def _stored_config(run: Path) -> dict[str, Any]:
    manifest = manifest_of_kind(run, "run")
    if manifest is None:
        raise UserError(f"{run}: there is no training run here; name the folder of one")
    config: dict[str, Any] = manifest["config"]
    return config


def _difference(run: Path, other: Path) -> Optional[tuple[str, Any, Any]]:
    """Return a key other than the seed in which two runs differ."""
    configs = _stored_config(run), _stored_config(other)
    return next((key for key in different_keys(*configs) if key[0] != SEED_KEY), None)


def trained_models(runs: Sequence[Path]) -> list[TrainedModel]:
    """Group runs into models, in the order of the first run of each. A second run of the same seed begins another model.

    Raises:
        UserError: a folder holds no run.
    """
    models: list[TrainedModel] = []
    for run in runs:
        if is_pretrained(run):
            models.append(TrainedModel((run,), (None,)))
            continue
        _stored_config(run)  # says that there is no run
        seed = read_config_of(run).training.seed
        for i, model in enumerate(models):
            is_new_seed = not {seed, None}.intersection(model.seeds)
            if is_new_seed and _difference(model.runs[0], run) is None:
                models[i] = TrainedModel((*model.runs, run), (*model.seeds, seed))
                break
        else:
            models.append(TrainedModel((run,), (seed,)))
    return models


def same_model(
    runs: Sequence[Path], *, advice: str = "`olmo-sparsity compare` shows two runs side by side"
) -> TrainedModel:
    """The model of all these runs; ``advice``: what to do with runs of several.

    Raises:
        UserError: they differ in more than the seed, two have the same seed, or one is a pretrained model.
    """
    seeds: dict[int, Path] = {}
    for run in runs:
        if is_pretrained(run):
            raise UserError(f"{run}: a pretrained model has no seeds of training; {advice}")
        difference = _difference(runs[0], run)
        if difference is not None:
            raise UserError(
                f"{runs[0]} and {run} differ in {difference[0]} ({difference[1]!r}, {difference[2]!r}), not only in "
                f"the seed of training; {advice}"
            )
        seed = read_config_of(run).training.seed
        if seed in seeds:
            raise UserError(f"{seeds[seed]} and {run} have the same training.seed = {seed}; name each seed once")
        seeds[seed] = run
    return TrainedModel(tuple(runs), tuple(seeds))


def matching_tables(runs: Sequence[Path]) -> list[Path]:
    """A measurement of each run: the newest of the first run whose windows and settings all runs have.

    Raises:
        UserError: there is none.
    """
    newest_finished(runs[0])  # says that nothing was measured
    for tables in reversed(list_finished(runs[0])):
        settings = _settings(tables)
        found = [
            next((folder for folder in reversed(list_finished(run)) if _settings(folder) == settings), None)
            for run in runs[1:]
        ]
        if None not in found:
            return [tables, *(folder for folder in found if folder is not None)]
    raise UserError(
        f"{', '.join(map(str, runs))}: these runs have no measurement with the same windows and settings; measure each with "
        "the same options of `olmo-sparsity influence`"
    )


def _settings(tables: Path) -> Any:
    """Return what measurements of several seeds must have in common: text, windows, settings, training steps."""
    manifest = read_manifest(tables)
    influence = {key: value for key, value in manifest["influence"].items() if key not in EXECUTION_KEYS}
    sources = {name: entry["sha256"] for name, entry in manifest.get("own_selectors", {}).items()}
    others = [manifest.get("visibility", "hidden"), manifest.get("anchor"), manifest["checkpoint"]["step"]]
    return influence, sources, others, [manifest[key] for key in (*SAME_WINDOWS, "context")]
