"""Evaluates a trained run on its synthetic task, by length and sparsity, and writes the table ``answers``.

The model generates the response of each prompt greedily, token by token. A response is right if every token is. Where the model
predicts position IDs, they are generated with the tokens, and a response with a wrong ID is wrong.
"""

from __future__ import annotations

import itertools
import logging
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from olmo_sparsity import files, tables
from olmo_sparsity.config import Config, fingerprint
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.checkpoint import check_checkpoint_of_run, trained_checkpoint
from olmo_sparsity.model.devices import device_name, pick_device
from olmo_sparsity.model.olmo import OLMoWithPositions, load_model
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.synthetic import tasks
from olmo_sparsity.synthetic.tasks import Sequences, open_background

logger = logging.getLogger(__name__)

PASS_TOKENS = 2**16  # of one forward pass, at most
# Keys of ``synthetic`` that the manifest records.
SETTINGS = (
    "task", "scratchpad", "positions", "max_sparsity", "modulus", "background", "train_lengths", "test_row_len",
)  # fmt: skip


@torch.no_grad()
def respond(model: OLMoWithPositions, sequences: Sequences, *, predict_ids: bool) -> tuple[np.ndarray, np.ndarray]:
    """Generated tokens and their position IDs (predicted or as given), int64 [W, K].

    The sequences have one length and one sparsity; of a response the model is given the position IDs, unless it predicts them.
    """
    begin, end = int(sequences.prompt_len_B[0]), int((sequences.prompt_len_B + sequences.response_len_B)[0])
    rows_per_pass = max(1, PASS_TOKENS // end)
    parts = []
    for first in range(0, len(sequences.tokens_BT), rows_per_pass):
        rows = slice(first, first + rows_per_pass)
        tokens_WT = torch.from_numpy(sequences.tokens_BT[rows, :begin].copy()).to(model.device)
        ids_WT = torch.from_numpy(sequences.ids_BT[rows, : begin if predict_ids else end].copy()).to(model.device)
        for length in range(begin, end):
            if predict_ids:
                logits_W1V, logits_W1I = model.logits_and_position_logits(tokens_WT, ids_WT, last_only=True)
                ids_WT = torch.cat([ids_WT, logits_W1I[:, 0].argmax(dim=-1, keepdim=True)], dim=1)
            else:
                logits_W1V = model(tokens_WT, ids_WT[:, :length], last_logits_only=True)
            token_W1 = logits_W1V[:, 0, : model.vocab_size].argmax(dim=-1, keepdim=True)
            tokens_WT = torch.cat([tokens_WT, token_W1], dim=1)
        parts.append([part_WT[:, begin:].cpu().numpy() for part_WT in (tokens_WT, ids_WT)])
    tokens_WK, ids_WK = map(np.concatenate, zip(*parts, strict=True))
    return tokens_WK, ids_WK


def evaluate_task(config: Config, run: Path, *, out: Optional[Path] = None, overwrite: bool = False) -> Path:
    """Let a trained run answer the evaluated sequences of its task, and return the folder of the table.

    Each length, sparsity and place of the planted tokens is one part; parts that are there are kept, unless ``overwrite``.
    """
    tasks.check_task(config)
    settings = config.synthetic
    latest = trained_checkpoint(run, command="olmo-sparsity synth train")
    trained = files.read_manifest_of(run, "num_parameters", "tokens_sha256")
    if "synthetic_task" not in trained:
        raise UserError(f"{run}: this run was trained on text, not on a synthetic task; choose another with --run DIR")
    checkpoint = check_checkpoint_of_run(latest, trained).record
    if trained["tokens_sha256"] != tasks.generated_sha256(settings, open_background(config, "train")):
        raise UserError(f"{run}: data.source = {config.data.source} has changed since this run was trained; restore it")
    background = open_background(config, "validation")
    evaluated = (
        settings.test_lengths,
        settings.test_sparsity,
        settings.test_rows,
        tasks.TEST_SEED,
        settings.test_row_len,
    )
    versions = (tables.SCHEMA_VERSION, tasks.GENERATOR_VERSION)
    run_id = fingerprint(*versions, checkpoint["model_sha256"], *evaluated, background.text_sha256)
    folder = out or run / "synthetic" / f"to{settings.test_lengths[-1]}-{run_id[:6]}"
    begun = files.manifest_of_kind(folder, "synthetic")
    if begun is not None and overwrite:
        files.clear_folder(folder)
    elif begun is not None and begun["run_id"] != run_id:
        raise UserError(
            f"{folder}: these answers are to other prompts, or of another model; choose another folder with --out DIR, or "
            "replace them with --overwrite"
        )
    lengths_and_ks = itertools.product(settings.test_lengths, settings.test_sparsity)
    cells = [(length, k, place) for length, k in lengths_and_ks for place in settings.places(length)]
    device = pick_device(config.training.device)
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    context = {"max_position": config.max_position, "num_long_range": settings.test_lengths[-1]}
    manifest: dict[str, Any] = {
        "kind": "synthetic",
        "run_id": run_id,
        "run": files.folder_name(run),
        **{name: getattr(settings, name) for name in SETTINGS},
        "position_embedding": config.model.position_embedding,
        "num_chunks": config.pose.num_chunks,
        "training_seed": config.training.seed,
        "num_windows": len(cells) * settings.test_rows,
        **{name: trained.get(name) for name in ("num_parameters", "validation_loss_nats", "ended_by")},
        "training_seconds": trained.get("seconds"),
        "checkpoint": checkpoint,
        "context": context,
        "device": device_name(device),
        "environment": files.environment(),
        "status": "running",
        "num_parts": len(cells),
        "windows_per_part": settings.test_rows,
    }
    files.make_folder(folder)
    files.write_manifest(folder, manifest, once=not overwrite)
    if not (missing := tables.missing_parts(folder, manifest)):
        logger.info(f"{folder}: already evaluated; nothing to do (--overwrite evaluates again)")
        return folder
    model, schema = load_model(latest, device), tables.schemas_of(manifest)["answers"]
    metadata = {"run_id": run_id, **{name: str(value) for name, value in context.items()}}
    with progress_bar("synthetic", " prompts", total=len(missing) * settings.test_rows) as bar:
        for part in missing:
            length, k, place = cells[part]
            sequences = tasks.evaluated_sequences(config, length, k, place=place, background=background)
            answers = _answers(model, sequences, predict_ids=settings.positions == "predicted")
            window_ids = part * settings.test_rows + answers.index
            answers = answers.assign(window_id=window_ids, length_tokens=length, sparsity=k, place=place)
            table = pa.Table.from_pandas(answers, schema=schema, preserve_index=False)
            tables.write_part(folder, "answers", part=part, content=table, metadata=metadata)
            bar.update(settings.test_rows)
    tables.finalize(folder)
    return folder


def _answers(model: OLMoWithPositions, sequences: Sequences, *, predict_ids: bool) -> pd.DataFrame:
    """Columns of the table ``answers`` that depend on the response."""
    tokens_WK, ids_WK = respond(model, sequences, predict_ids=predict_ids)
    response = slice(-tokens_WK.shape[1], None)
    true_WK, true_ids_WK = sequences.tokens_BT[:, response], sequences.ids_BT[:, response]
    tokens_right, ids_right = (tokens_WK == true_WK).all(axis=1), (ids_WK == true_ids_WK).all(axis=1)
    arrays = {
        "response_ids": tokens_WK,
        "true_ids": true_WK,
        "response_positions": ids_WK,
        "true_positions": true_ids_WK,
    }
    right = {"tokens_right": tokens_right, "right": tokens_right & ids_right}
    columns = {name: array.tolist() for name, array in arrays.items()}
    return pd.DataFrame({**columns, **right, "positions_right": ids_right if predict_ids else None})
