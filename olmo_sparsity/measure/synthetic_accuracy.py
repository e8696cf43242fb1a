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

from olmo_sparsity.config import Config, Place, SyntheticConfig, fingerprint
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import folder_name, manifest_of_kind, need, read_manifest_of
from olmo_sparsity.measure.parts import is_measured, measure_parts
from olmo_sparsity.measure.work import WHOLE, Share
from olmo_sparsity.model.checkpoint import CheckpointInfo, check_checkpoint_of_run, load_model, trained_checkpoint
from olmo_sparsity.model.devices import device_name, pick_device, take_own_gpu
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.synthetic.background import Background, open_background
from olmo_sparsity.synthetic.data import check_synthetic, evaluated_sequences, generated_sha256
from olmo_sparsity.synthetic.evaluation import Responses, respond
from olmo_sparsity.synthetic.planted import GENERATOR_VERSION
from olmo_sparsity.tables import SCHEMA_VERSION, schemas_of

logger = logging.getLogger(__name__)

# Keys of ``synthetic`` that the evaluated sequences depend on.
EVALUATED_KEYS = ("test_lengths", "test_sparsity", "test_rows")


@dataclass(frozen=True)
class SyntheticRun:
    """A trained run of a synthetic task.

    Attributes:
        model: in evaluation mode.
        device: where the model is.
        checkpoint: which checkpoint the weights come from.
        manifest: of the run.
        background: of the evaluated sequences, held out where it is text.
    """

    model: OLMoWithPositions
    device: torch.device
    checkpoint: CheckpointInfo
    manifest: dict[str, Any]
    background: Background


@dataclass(frozen=True)
class Cell:
    """Evaluated sequences of one length, one sparsity, and one place of the planted tokens.

    Sequence i of them is window ``first + i``. Place None: anywhere.
    """

    length: int
    k: int
    place: Optional[Place]
    first: int


def open_synthetic_run(config: Config, run: Path) -> SyntheticRun:
    """Open the newest checkpoint of a run that was trained on a synthetic task.

    Raises:
        UserError: the run has no checkpoint, or was trained on text.
    """
    check_synthetic(config)
    latest = trained_checkpoint(run, command="olmo-sparsity synth train")
    manifest = read_manifest_of(run, "num_parameters")
    if "synthetic_task" not in manifest:
        raise UserError(f"{run}: this run was trained on text, not on a synthetic task; choose another with --run DIR")
    checkpoint = check_checkpoint_of_run(latest, manifest)
    take_own_gpu(config.training.device)
    device = pick_device(config.training.device)
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    background = _held_out_background(config, run, manifest=manifest)
    return SyntheticRun(load_model(latest, device), device, checkpoint, manifest, background)


def _held_out_background(config: Config, run: Path, *, manifest: dict[str, Any]) -> Background:
    """Return the background of evaluated sequences.

    Raises:
        UserError: it is text, and not that of the run.
    """
    trained_on = open_background(config, "train")
    if trained_on.text_sha256:
        need(manifest, "tokens_sha256", where=run / "manifest.json")
        if manifest["tokens_sha256"] != generated_sha256(config.synthetic, trained_on):
            raise UserError(
                f"{run}: data.source = {config.data.source} has changed since this run was trained on it, so it is unknown "
                "which documents the model has not seen; restore the text"
            )
    return open_background(config, "validation")


def cells_of(settings: SyntheticConfig) -> list[Cell]:
    """Return the evaluated lengths, sparsities and places, in the order of the windows."""
    cells = [
        (length, k, place)
        for length in settings.test_lengths
        for k in settings.test_sparsity
        for place in settings.places(length)
    ]
    return [Cell(*cell, first=i * settings.test_rows) for i, cell in enumerate(cells)]


def _cells_within(settings: SyntheticConfig, window_ids_W: np.ndarray) -> list[tuple[Cell, np.ndarray]]:
    """Return the cells that these windows belong to, each with the windows' rows in it, int64 [w]."""
    cell_W = window_ids_W // settings.test_rows
    cells = cells_of(settings)
    return [(cells[i], window_ids_W[cell_W == i] - cells[i].first) for i in np.unique(cell_W).tolist()]


def _manifest(config: Config, run: Path, *, opened: SyntheticRun, run_id: str, num_windows: int) -> dict[str, Any]:
    """Return what the manifest of a measurement of a synthetic run says before it begins."""
    settings = config.synthetic
    return {
        "kind": "synthetic",
        "run_id": run_id,
        "run": folder_name(run),
        "task": settings.task,
        "scratchpad": settings.scratchpad,
        "positions": settings.positions,
        "position_embedding": config.model.position_embedding,
        "max_sparsity": settings.max_sparsity,
        "modulus": settings.modulus,
        "background": settings.background,
        "num_chunks": config.pose.num_chunks,
        "train_lengths": list(settings.train_lengths),
        "training_seed": config.training.seed,
        "num_windows": num_windows,
        "num_parameters": opened.manifest["num_parameters"],
        "training_seconds": opened.manifest.get("seconds"),
        "validation_loss_nats": opened.manifest.get("validation_loss_nats"),
        "ended_by": opened.manifest.get("ended_by"),
        "locality": settings.locality,
        "spread": settings.spread,
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
        # Folders from before there were these have the ID that they were written with.
        *([settings.test_row_len] if settings.test_row_len else []),
        *([opened.background.text_sha256] if opened.background.text_sha256 else []),
    )
    folder = out or run / "synthetic" / f"to{settings.test_lengths[-1]}-{run_id[:6]}"
    if manifest_of_kind(folder, "synthetic") and not overwrite and is_measured(folder, "synthetic", run_id=run_id):
        return folder
    num_windows = len(cells_of(settings)) * settings.test_rows
    logger.info(
        f"{folder}: {num_windows} sequences, lengths {settings.test_lengths}, k {settings.test_sparsity}, "
        f"{settings.test_rows} of each"
    )
    manifest = _manifest(config, run, opened=opened, run_id=run_id, num_windows=num_windows)
    manifest["test_row_len"] = settings.test_row_len
    schema = schemas_of(manifest)["answers"]
    # A part is a cell, unless the folder was begun with parts of another size.
    answers = functools.lru_cache(maxsize=1)(lambda cell: _answers(config, opened, cell=cell))

    def measure_part(window_ids_W: np.ndarray) -> dict[str, pa.Table]:
        rows: list[dict[str, Any]] = []
        for cell, rows_w in _cells_within(settings, window_ids_W):
            rows += _answer_rows(cell, rows_w, answers(cell), predicted=settings.positions == "predicted")
        return {"answers": pa.Table.from_pylist(rows, schema=schema)}

    measure_parts(
        folder,
        manifest,
        part_size=settings.test_rows,
        measure_part=measure_part,
        overwrite=overwrite,
        share=share,
    )
    return folder


def _answers(config: Config, opened: SyntheticRun, *, cell: Cell) -> Responses:
    settings, model = config.synthetic, opened.model
    placed = evaluated_sequences(config, cell.length, cell.k, place=cell.place, background=opened.background)
    return respond(model, placed, predict_ids=settings.positions == "predicted")


def _answer_rows(cell: Cell, rows_w: np.ndarray, responses: Responses, *, predicted: bool) -> list[dict[str, Any]]:
    """Return the rows of the table ``answers``."""
    return [
        {
            "window_id": cell.first + row,
            "length_tokens": cell.length,
            "sparsity": cell.k,
            "place": cell.place,  # a column of tables with places only
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
