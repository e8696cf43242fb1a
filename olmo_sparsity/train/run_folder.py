"""The folder of a training run: which experiment it holds, whether it is finished, and how it is created."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Optional

from olmo_sparsity.config import (
    Config,
    different_keys,
    read_config_of,
    to_dict,
    to_yaml,
)
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import (
    clear_folder,
    exclusive_lock,
    make_folder,
    manifest_of_kind,
    need,
    read_manifest_of,
    write_json,
    write_text,
)
from olmo_sparsity.torchrun import ProcessInfo
from olmo_sparsity.train.processes import broadcast_from_leader

logger = logging.getLogger(__name__)

# What a manifest says of the device, and the key whose ``auto`` chooses it.
CHOSEN = {"precision": "precision", "compiled": "compile"}


def check_same_experiment(run: Path, config: Config, *, measured: bool = False, remedy: Optional[str] = None) -> None:
    """Check that the run in this folder was made with ``config``, in every key that training depends on.

    Args:
        run: the folder.
        config: the experiment.
        measured: the run is to be measured: more keys may differ than where its training resumes.
        remedy: what to do about a key that differs; None: what the command line offers.

    Raises:
        UserError: a key differs.
    """
    stored = read_manifest_of(run)["config"]
    for dotted, made_with, wanted in different_keys(stored, to_dict(config)):
        advice = "choose another folder with --run DIR, where a new run is trained"
        if measured:
            advice = f"name it with --run {run}, which reads its own configuration, or {advice}"
        if measured and dotted in ("context.local_len", "context.full_len"):
            option = dotted.partition(".")[2].replace("_", "-")
            advice = f"measure it at another length with --{option} {wanted}"
        raise UserError(f"{run}: this run was made with {dotted} = {made_with!r}, not {wanted!r}; {remedy or advice}")


def check_same_source(run: Path, *, is_synthetic: bool) -> None:
    """Check that the run in this folder is trained on text, or on a synthetic task, as it is to be now.

    Raises:
        UserError: it is trained on the other.
    """
    task = read_manifest_of(run).get("synthetic_task")
    if is_synthetic and task is None:
        raise UserError(f"{run}: this run is trained on text; train it with `olmo-sparsity train --run {run}`")
    if not is_synthetic and task is not None:
        name = read_config_of(run).name
        raise UserError(
            f"{run}: this run is trained on a synthetic task; train it with `olmo-sparsity synth train {name} --run {run}`"
        )


def check_same_text(run: Path, tokens_sha256: str) -> None:
    """Check that the run in this folder was trained on the text with this hash.

    Raises:
        UserError: the text has changed.
    """
    if read_manifest_of(run, "tokens_sha256")["tokens_sha256"] != tokens_sha256:
        raise UserError(f"{run}: its text has changed since training began; choose another folder with --run DIR")


def is_trained(run: Path) -> bool:
    """Return True if this folder holds a finished training run with its last checkpoint."""
    manifest = manifest_of_kind(run, "run")
    if manifest is None or manifest.get("status") != "complete":
        return False
    need(manifest, "steps", where=run / "manifest.json")
    return (run / "checkpoints" / f"step{manifest['steps']}").is_dir()


@contextmanager
def run_lock(run: Path, process: ProcessInfo) -> Iterator[None]:
    """Hold the lock of a run, which only one training can hold, on all its machines, for the duration of the context.

    All of them must call it; the leader locks. Where it cannot, none waits for it.

    Raises:
        UserError: another training holds it.
    """
    folder = run.resolve()
    busy = f"{run}: another process is training this run; wait for it, or choose another folder with --run DIR"
    lock = exclusive_lock(folder.with_name(f".{folder.name}.lock"), busy)
    with ExitStack() as stack:
        broadcast_from_leader(lambda: stack.enter_context(lock), process)
        yield


def begin_run(
    config: Config, run: Path, *, tokenizer_text: str, manifest: dict[str, Any], resumes: bool, overwrite: bool
) -> dict[str, Any]:
    """Create the folder of a run, or open an existing one to resume it, and return its manifest.

    Args:
        config: the experiment.
        run: the folder.
        tokenizer_text: the content of ``tokenizer.json``.
        manifest: of a new run; an existing one keeps its ``run_id``.
        resumes: from a checkpoint.
        overwrite: delete an existing run.
    """
    exists = manifest_of_kind(run, "run")
    if exists and overwrite:  # deleted no earlier than here, where nothing can stop the new run from starting
        logger.info(f"{run}: deleting the earlier run (--overwrite)")
        clear_folder(run)
    make_folder(run)
    if exists and not overwrite:
        stored = read_manifest_of(run)
        for key, chosen_by in CHOSEN.items():
            if resumes and stored[key] != manifest[key]:
                logger.warning(
                    f"{run}: training.{chosen_by} = auto: {key} is {manifest[key]!r} here and was {stored[key]!r} where this run "
                    "began, so it will end with other weights than there"
                )
        manifest = {**manifest, "run_id": stored["run_id"]}
    else:
        write_json(run / "manifest.json", manifest)  # first, because the manifest marks the folder as ours
    for name, content in (
        ("config.yaml", to_yaml(config)),
        ("tokenizer.json", tokenizer_text),
    ):
        if not (run / name).is_file():
            write_text(run / name, content)
    return manifest
