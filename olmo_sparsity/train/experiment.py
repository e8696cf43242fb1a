"""Which experiment a run belongs to. Nothing here imports torch or OLMo: measuring asks, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from olmo_sparsity.config import Config, different_keys, to_dict
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import manifest_of_kind, need

ANOTHER = "choose another folder with --run DIR, where a new run is trained"


def check_same_experiment(run: Path, stored: dict[str, Any], config: Config, *, remedy: str = ANOTHER) -> None:
    """Raise UserError if the run with this manifest was made with another value of a key that training depends on."""
    for key, made_with, wanted in different_keys(stored["config"], to_dict(config)):
        if key in ("context.local_len", "context.full_len"):
            remedy = f"measure it at another length with --{key[8:].replace('_', '-')} {wanted}, or {ANOTHER}"
        raise UserError(f"{run}: this run was made with {key} = {made_with!r}, not {wanted!r}; {remedy}")


def is_trained(run: Path, manifest: dict[str, Any]) -> bool:
    """Whether a run with this manifest is finished, and its last checkpoint is there."""
    if manifest.get("status") != "complete":
        return False
    need(manifest, "steps", where=run / "manifest.json")
    return (run / "checkpoints" / f"step{manifest['steps']}").is_dir()


def stored_manifest(run: Path, config: Config, is_synthetic: bool, *, overwrite: bool) -> Optional[dict[str, Any]]:
    """Manifest of the run that is to be resumed; None if a new one begins. UserError: the folder holds something else."""
    stored = manifest_of_kind(run, "run")
    if stored is None:
        return None
    need(stored, "status", "run_id", "config", "tokens_sha256", where=run / "manifest.json")
    if is_synthetic != ("synthetic_task" in stored):  # to overwrite it may be a slip: `train` for `synth train`
        name = stored["config"]["name"]
        trained_on, command = ("text", "train") if is_synthetic else ("a synthetic task", f"synth train {name}")
        raise UserError(
            f"{run}: this run is trained on {trained_on}; train it with `olmo-sparsity {command} --run {run}`"
        )
    if overwrite:
        return None
    check_same_experiment(run, stored, config)
    return stored
