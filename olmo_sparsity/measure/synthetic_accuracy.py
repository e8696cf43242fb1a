"""Measures the accuracy of a trained run on its synthetic task, by length and sparsity, and writes a table."""

from __future__ import annotations

import functools
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa
import torch

from olmo_sparsity.config import Config, SyntheticConfig, fingerprint
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.measurement import is_measured, measure_parts
from olmo_sparsity.measure.work import WHOLE, Share
from olmo_sparsity.model.checkpoint import CheckpointInfo, check_checkpoint_of_run, latest_checkpoint, load_model
from olmo_sparsity.model.devices import device_name, pick_device, take_own_gpu
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.storage.folders import folder_name, is_folder_of_kind
from olmo_sparsity.storage.manifests import read_manifest_of
from olmo_sparsity.synthetic.data import check_synthetic, evaluated_sequences
from olmo_sparsity.synthetic.evaluation import Responses, respond
from olmo_sparsity.synthetic.planted import GENERATOR_VERSION
from olmo_sparsity.tables.schemas import SCHEMA_VERSION, schemas

logger = logging.getLogger(__name__)

# Keys of ``synthetic`` that the evaluated sequences depend on.
EVALUATED_KEYS = ("test_lengths", "test_sparsity", "test_rows", "test_seed")


@dataclass(frozen=True)
class SyntheticRun:
    """A trained run of a synthetic task.

    Attributes:
        model: in evaluation mode.
        device: where the model is.
        checkpoint: which checkpoint the weights come from.
        manifest: of the run.
    """

    model: OLMoWithPositions
    device: torch.device
    checkpoint: CheckpointInfo
    manifest: dict[str, Any]


@dataclass(frozen=True)
class Cell:
    """Evaluated sequences of one length and one sparsity; sequence i of them is window ``first + i``."""

    length: int
    k: int
    first: int


def open_synthetic_run(config: Config, run: Path) -> SyntheticRun:
    """Open the newest checkpoint of a run that was trained on a synthetic task.

    Raises:
        UserError: the run has no checkpoint, or was trained on text.
    """
    check_synthetic(config)
    latest = latest_checkpoint(run / "checkpoints")
    if latest is None:
        raise UserError(
            f"{run}: this run has no checkpoint; train it first with `olmo-sparsity synth train --run {run}`"
        )
    manifest = read_manifest_of(run, "num_parameters")
    if "synthetic_task" not in manifest:
        raise UserError(f"{run}: this run was trained on text, not on a synthetic task; choose another with --run DIR")
    checkpoint = check_checkpoint_of_run(latest, manifest)
    take_own_gpu(config.training.device)
    device = pick_device(config.training.device)
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    return SyntheticRun(load_model(latest, device), device, checkpoint, manifest)


def cells_of(settings: SyntheticConfig) -> list[Cell]:
    """Return the evaluated lengths and sparsities, in the order of the windows."""
    pairs = [(length, k) for length in settings.test_lengths for k in settings.test_sparsity]
    return [Cell(length, k, i * settings.test_rows) for i, (length, k) in enumerate(pairs)]


def cells_within(settings: SyntheticConfig, window_ids_W: np.ndarray) -> list[tuple[Cell, np.ndarray]]:
    """Return the cells that these windows belong to, each with the windows' rows in it, int64 [w]."""
    cell_W = window_ids_W // settings.test_rows
    cells = cells_of(settings)
    return [(cells[i], window_ids_W[cell_W == i] - cells[i].first) for i in np.unique(cell_W).tolist()]


def synthetic_manifest(
    config: Config, run: Path, *, opened: SyntheticRun, kind: str, run_id: str, num_windows: int
) -> dict[str, Any]:
    """Return what the manifest of a measurement of a synthetic run says before it begins."""
    settings = config.synthetic
    return {
        "kind": kind,
        "run_id": run_id,
        "run": folder_name(run),
        "task": settings.task,
        "scratchpad": settings.scratchpad,
        "positions": settings.positions,
        "max_sparsity": settings.max_sparsity,
        "hide_tokens": settings.hide_tokens,
        "train_lengths": list(settings.train_lengths),
        "training_seed": config.training.seed,
        "num_windows": num_windows,
        "num_parameters": opened.manifest["num_parameters"],
        "training_seconds": opened.manifest.get("seconds"),
        "checkpoint": opened.checkpoint.record,
        "context": {"max_position": config.max_position, "num_long_range": settings.test_lengths[-1]},
        "device": device_name(opened.device),
    }


def evaluate_synthetic(
    config: Config, run: Path, *, out: Optional[Path] = None, overwrite: bool = False, share: Share = WHOLE
) -> Path:
    """Let a trained run answer the evaluated sequences of its task, and return the folder of the table.

    Args:
        config: ``config.synthetic``.
        run: folder of the trained run.
        out: folder of the table; None: one inside the run.
        overwrite: delete a finished table and measure again.
        share: which of the parts this process measures.

    Raises:
        UserError: the run or the folder is not usable.
    """
    opened = open_synthetic_run(config, run)
    settings = config.synthetic
    run_id = fingerprint(
        SCHEMA_VERSION,
        GENERATOR_VERSION,
        opened.checkpoint.model_sha256,
        [getattr(settings, name) for name in EVALUATED_KEYS],
    )
    folder = out or run / "synthetic" / f"to{settings.test_lengths[-1]}-{run_id[:6]}"
    if is_folder_of_kind(folder, "synthetic") and not overwrite and is_measured(folder, "synthetic", run_id=run_id):
        return folder
    num_windows = len(cells_of(settings)) * settings.test_rows
    logger.info(
        f"{folder}: {num_windows} sequences, lengths {settings.test_lengths}, k {settings.test_sparsity}, "
        f"{settings.test_rows} of each"
    )
    schema = schemas(settings.test_lengths[-1])["answers"]
    # A part is a cell, unless the folder was begun with parts of another size.
    answers = functools.lru_cache(maxsize=1)(lambda length, k: _answers(config, opened, length=length, k=k))

    def measure_part(window_ids_W: np.ndarray) -> dict[str, pa.Table]:
        rows: list[dict[str, Any]] = []
        for cell, rows_w in cells_within(settings, window_ids_W):
            rows += _answer_rows(
                cell, rows_w, answers(cell.length, cell.k), predicted=settings.positions == "predicted"
            )
        return {"answers": pa.Table.from_pylist(rows, schema=schema)}

    measure_parts(
        folder,
        synthetic_manifest(config, run, opened=opened, kind="synthetic", run_id=run_id, num_windows=num_windows),
        part_size=settings.test_rows,
        measure_part=measure_part,
        overwrite=overwrite,
        share=share,
    )
    return folder


def _answers(config: Config, opened: SyntheticRun, *, length: int, k: int) -> Responses:
    placed = evaluated_sequences(config, length, k)
    return respond(opened.model, placed, predict_ids=config.synthetic.positions == "predicted")


def _answer_rows(cell: Cell, rows_w: np.ndarray, responses: Responses, *, predicted: bool) -> list[dict[str, Any]]:
    """Return the rows of the table ``answers``."""
    return [
        {
            "window_id": cell.first + row,
            "length_tokens": cell.length,
            "sparsity": cell.k,
            "response_ids": responses.tokens_WK[row],
            "true_ids": responses.true_tokens_WK[row],
            "response_positions": responses.ids_WK[row],
            "true_positions": responses.true_ids_WK[row],
            "tokens_right": bool(responses.tokens_right_W[row]),
            "positions_right": bool(responses.ids_right_W[row]) if predicted else None,
            "right": bool(responses.right_W[row]),
        }
        for row in rows_w.tolist()
    ]
