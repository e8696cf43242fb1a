"""Evaluates a trained run on its synthetic task, by length and sparsity, and writes the table ``answers``.

The model generates the response of each prompt greedily, token by token. A response is right if every token is. Where the model
predicts position IDs, they are generated with the tokens, and a response with a wrong ID is wrong.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Optional

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from olmo_sparsity.config import Config, fingerprint
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import (
    clear_folder,
    environment,
    folder_name,
    make_folder,
    manifest_of_kind,
    read_manifest_of,
    write_manifest,
)
from olmo_sparsity.model.checkpoint import check_checkpoint_of_run, load_model, trained_checkpoint
from olmo_sparsity.model.devices import device_name, pick_device
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.synthetic.tasks import (
    GENERATOR_VERSION,
    TEST_SEED,
    Sequences,
    check_task,
    evaluated_sequences,
    generated_sha256,
    open_background,
)
from olmo_sparsity.tables import SCHEMA_VERSION, finalize, missing_parts, schemas_of, write_part

logger = logging.getLogger(__name__)

PASS_TOKENS = 2**16  # of one forward pass, at most
# Keys of ``synthetic`` that the manifest records.
SETTINGS = (
    *(
        "task",
        "scratchpad",
        "positions",
        "max_sparsity",
        "modulus",
        "background",
        "train_lengths",
        "locality",
        "spread",
    ),
    "test_row_len",
)


@torch.no_grad()
def respond(model: OLMoWithPositions, sequences: Sequences, *, predict_ids: bool) -> tuple[np.ndarray, np.ndarray]:
    """Return the generated tokens and their position IDs (predicted or as given), int64 [W, K].

    The sequences have one length and one sparsity; of a response the model is given the position IDs, unless it predicts them.
    """
    begin, end = int(sequences.prompt_len_B[0]), int((sequences.prompt_len_B + sequences.response_len_B)[0])
    rows_per_pass = max(1, PASS_TOKENS // end)
    tokens_parts, ids_parts = [], []
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
        tokens_parts.append(tokens_WT[:, begin:].cpu().numpy())
        ids_parts.append(ids_WT[:, begin:].cpu().numpy())
    return np.concatenate(tokens_parts), np.concatenate(ids_parts)


def evaluate_task(config: Config, run: Path, *, out: Optional[Path] = None, overwrite: bool = False) -> Path:
    """Let a trained run answer the evaluated sequences of its task, and return the folder of the table.

    Each length, sparsity and place of the planted tokens is one part; parts that are there are kept, unless ``overwrite``.

    Raises:
        UserError: the run has no checkpoint, was trained on something else, or the folder is not usable.
    """
    check_task(config)
    settings = config.synthetic
    latest = trained_checkpoint(run, command="olmo-sparsity synth train")
    trained = read_manifest_of(run, "num_parameters", "tokens_sha256")
    if "synthetic_task" not in trained:
        raise UserError(f"{run}: this run was trained on text, not on a synthetic task; choose another with --run DIR")
    checkpoint = check_checkpoint_of_run(latest, trained)
    if trained["tokens_sha256"] != generated_sha256(settings, open_background(config, "train")):
        raise UserError(f"{run}: data.source = {config.data.source} has changed since this run was trained; restore it")
    background = open_background(config, "validation")
    evaluated = [settings.test_lengths, settings.test_sparsity, settings.test_rows, TEST_SEED, settings.test_row_len]
    identity = (SCHEMA_VERSION, GENERATOR_VERSION, checkpoint.model_sha256, evaluated, background.text_sha256)
    run_id = fingerprint(*identity)
    folder = out or run / "synthetic" / f"to{settings.test_lengths[-1]}-{run_id[:6]}"
    begun = manifest_of_kind(folder, "synthetic")
    if begun is not None and not overwrite and begun["run_id"] != run_id:
        raise UserError(
            f"{folder}: these answers are to other prompts, or of another model; choose another folder with --out DIR, or "
            "replace them with --overwrite"
        )
    cells = [
        (length, k, place)
        for length in settings.test_lengths
        for k in settings.test_sparsity
        for place in settings.places(length)
    ]
    device = pick_device(config.training.device)
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    manifest = {
        "kind": "synthetic",
        "run_id": run_id,
        "run": folder_name(run),
        **{name: getattr(settings, name) for name in SETTINGS},
        "position_embedding": config.model.position_embedding,
        "num_chunks": config.pose.num_chunks,
        "training_seed": config.training.seed,
        "num_windows": len(cells) * settings.test_rows,
        "num_parameters": trained["num_parameters"],
        "training_seconds": trained.get("seconds"),
        "validation_loss_nats": trained.get("validation_loss_nats"),
        "ended_by": trained.get("ended_by"),
        "checkpoint": checkpoint.record,
        "context": {"max_position": config.max_position, "num_long_range": settings.test_lengths[-1]},
        "device": device_name(device),
        "environment": environment(),
        "status": "running",
        "num_parts": len(cells),
        "windows_per_part": settings.test_rows,
    }
    if begun is not None and overwrite:
        clear_folder(folder)
    make_folder(folder)
    write_manifest(folder, manifest, once=not overwrite)
    missing = missing_parts(folder, manifest)
    model = load_model(latest, device) if missing else None
    if begun is not None and not missing:
        logger.info(f"{folder}: already evaluated; nothing to do (--overwrite evaluates again)")
    with progress_bar("synthetic", " prompts", total=len(missing) * settings.test_rows) as bar:
        for part in missing:
            assert model is not None
            length, k, place = cells[part]
            sequences = evaluated_sequences(config, length, k, place=place, background=background)
            answers = _answers(model, sequences, predict_ids=settings.positions == "predicted")
            window_ids = part * settings.test_rows + answers.index
            answers = answers.assign(window_id=window_ids, length_tokens=length, sparsity=k, place=place)
            table = pa.Table.from_pandas(answers, schema=schemas_of(manifest)["answers"], preserve_index=False)
            write_part(folder, "answers", part=part, content=table, metadata={"run_id": run_id})
            bar.update(settings.test_rows)
    finalize(folder)
    return folder


def _answers(model: OLMoWithPositions, sequences: Sequences, *, predict_ids: bool) -> pd.DataFrame:
    """Return the columns of the table ``answers`` that depend on the response."""
    tokens_WK, ids_WK = respond(model, sequences, predict_ids=predict_ids)
    response = slice(-tokens_WK.shape[1], None)
    true_WK, true_ids_WK = sequences.tokens_BT[:, response], sequences.ids_BT[:, response]
    tokens_right, ids_right = (tokens_WK == true_WK).all(axis=1), (ids_WK == true_ids_WK).all(axis=1)
    return pd.DataFrame(
        {
            "response_ids": tokens_WK.tolist(),
            "true_ids": true_WK.tolist(),
            "response_positions": ids_WK.tolist(),
            "true_positions": true_ids_WK.tolist(),
            "tokens_right": tokens_right,
            "positions_right": ids_right if predict_ids else None,
            "right": tokens_right & ids_right,
        }
    )
