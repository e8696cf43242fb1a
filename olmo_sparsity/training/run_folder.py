"""The folder of a training run: whose it is, whether it is finished, and how it begins."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any, Optional

from olmo_sparsity.config import Config, to_dict
from olmo_sparsity.config.files import to_yaml
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.checkpoint import is_intact, newest_intact_checkpoint
from olmo_sparsity.storage.files import read_json, write_json, write_text
from olmo_sparsity.storage.folders import clear_folder, is_folder_of_kind, make_folder

logger = logging.getLogger(__name__)

TRAINED_SECTIONS = ("data", "context", "pose", "model", "training")
# Keys that may differ from those of the run in the folder: to go on training, and to measure what was trained.
FREE_TO_TRAIN = frozenset(
    {
        ("data", "cache_dir"),
        ("data", "processes"),
        ("data", "token_dtype"),
        ("training", "parallel"),
        ("training", "micro_batch_rows"),
        ("training", "checkpoint_every"),
        ("training", "keep_checkpoints"),
        ("training", "keep_every"),
        ("training", "trackers"),
    }
)
FREE_TO_MEASURE = FREE_TO_TRAIN | {
    ("data", "on_error"),
    ("data", "text_field"),
    ("training", "device"),
    ("training", "threads"),
}


def check_same_experiment(run: Path, config: Config, free: frozenset[tuple[str, str]] = FREE_TO_TRAIN) -> None:
    """Is the run in this folder that of ``config``, in every key that training depends on but the ``free`` ones.

    Raises:
        UserError: it is another's.
    """
    stored = read_json(run / "manifest.json")["config"]
    asked, defaults = to_dict(config), to_dict(Config())
    for section in TRAINED_SECTIONS:
        # A key that is younger than the run had its default then.
        before = {**defaults[section], **stored.get(section, {})}
        for key in sorted(before.keys() | asked[section].keys()):
            there, here = before.get(key), asked[section].get(key)
            if there != here and (section, key) not in free:
                raise UserError(
                    f"{run}: this run was made with {section}.{key} = {there!r}, not {here!r}; choose another folder "
                    "with --run DIR, or replace it with `olmo-sparsity train --overwrite`"
                )


def is_trained(run: Path, verified: bool = False) -> bool:
    """Has this folder a finished training run, its last checkpoint included; ``verified``: is that what was written."""
    if not is_folder_of_kind(run, "run"):
        return False
    manifest = read_json(run / "manifest.json")
    if manifest.get("status") != "complete":
        return False
    last = run / "checkpoints" / f"step{manifest['steps']}"
    return last.is_dir() and (not verified or is_intact(last))


def begin_run(
    config: Config, run: Path, tokenizer: Path, manifest: dict[str, Any], overwrite: bool
) -> tuple[dict[str, Any], Optional[Path]]:
    """Makes the folder of a run, or finds it; (its manifest, the checkpoint to go on from)."""
    there = is_folder_of_kind(run, "run")
    if there and overwrite:  # only now that the new run is known to be possible
        logger.info(f"deleting {run}, as --overwrite asks")
        clear_folder(run)
    latest = newest_intact_checkpoint(run / "checkpoints")
    make_folder(run)
    if there and not overwrite:
        manifest = {**manifest, "run_id": read_json(run / "manifest.json").get("run_id", manifest["run_id"])}
    else:
        write_json(run / "manifest.json", manifest)  # first: it makes the folder ours
    for name, content in (
        ("config.yaml", to_yaml(config)),
        ("tokenizer.json", tokenizer.read_text(encoding="utf-8")),
    ):
        if not (run / name).is_file():
            write_text(run / name, content)
    return manifest, latest
