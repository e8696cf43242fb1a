"""The bridge between synthetic tasks and influence: does the engine find the planted bits of a trained parity model?

The window of a sequence is its prompt, of which the query is the only local token; the target is the answer. Each selector
chooses as many positions as bits are planted. The loss and the prediction under what it chose give R(k) and D(k), as in every
other measurement, and whether the answer with all tokens visible is right gives the accuracy on the same sequences.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa
import torch

from olmo_sparsity.config import Config, SyntheticConfig, fingerprint
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.measurement import is_measured, measure_parts
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.synthetic_accuracy import (
    Cell,
    cells_of,
    cells_within,
    open_synthetic_run,
    synthetic_manifest,
)
from olmo_sparsity.measure.visible.batch_size import make_evaluator
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import short_log_probs
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.measure.work import WHOLE, Share
from olmo_sparsity.records.selectors import SELECTORS, any_needs_attention, rank
from olmo_sparsity.storage.folders import is_folder_of_kind
from olmo_sparsity.synthetic.data import evaluated_sequences
from olmo_sparsity.synthetic.planted import GENERATOR_VERSION
from olmo_sparsity.synthetic.sequences import Sequences
from olmo_sparsity.tables.schemas import SCHEMA_VERSION, schemas

logger = logging.getLogger(__name__)

LOCAL_LEN = 1  # the query


def check_bridge(settings: SyntheticConfig) -> None:
    """Check that a task is one of which the bridge can be measured.

    Raises:
        UserError: it is not parity without a scratchpad, or its positions are to be scaled.
    """
    if settings.task != "parity" or settings.scratchpad or settings.positions != "pose":
        raise UserError(
            f"synth bridge: synthetic.task = {settings.task}, synthetic.scratchpad = {settings.scratchpad}, "
            f"synthetic.positions = {settings.positions}: the bridge is of parity without a scratchpad, with pose"
        )
    if settings.rope_scaling != "none":
        raise UserError(
            f"synth bridge: synthetic.rope_scaling = {settings.rope_scaling}: only `synth eval` scales positions; leave it out"
        )


def measure_bridge(
    config: Config, run: Path, *, out: Optional[Path] = None, overwrite: bool = False, share: Share = WHOLE
) -> Path:
    """Let the selectors search for the planted bits of a parity model's prompts, and return the folder of the table.

    Args:
        config: ``config.synthetic``; its lengths and sparsities are measured on ``bridge_rows`` sequences each.
        run: folder of the trained run.
        out: folder of the table; None: one inside the run.
        overwrite: delete a finished table and measure again.
        share: which of the parts this process measures.

    Raises:
        UserError: the run or the folder is not usable, or the task is not parity without a scratchpad.
    """
    settings = config.synthetic
    check_bridge(settings)
    settings = dataclasses.replace(settings, test_rows=settings.bridge_rows, test_row_len=None, test_placed=[])
    config = dataclasses.replace(config, synthetic=settings)
    opened = open_synthetic_run(config, run)
    run_id = fingerprint(
        SCHEMA_VERSION,
        GENERATOR_VERSION,
        opened.checkpoint.model_sha256,
        settings.test_lengths,
        settings.test_sparsity,
        settings.bridge_rows,
        settings.test_seed,
        settings.bridge_selectors,
        config.influence.lasso_masks,
        *([opened.background.text_sha256] if opened.background.text_sha256 else []),
    )
    folder = out or run / "bridge" / f"to{settings.test_lengths[-1]}-{run_id[:6]}"
    if is_folder_of_kind(folder, "bridge") and not overwrite and is_measured(folder, "bridge", run_id=run_id):
        return folder
    num_windows = len(cells_of(settings)) * settings.test_rows
    logger.info(f"{folder}: {num_windows} prompts, {', '.join(settings.bridge_selectors)}")
    schema = schemas(settings.test_lengths[-1])["parities"]
    if not settings.hide_tokens:
        logger.warning(
            "synthetic.hide_tokens = False: the model never met prompts that lack tokens, so what it does with them may be of "
            "that, not of what it needs"
        )
    hidden = dataclasses.replace(config.influence, visibility="hidden", positions="kept")

    def measure_part(window_ids_W: np.ndarray) -> dict[str, pa.Table]:
        rows: list[dict[str, Any]] = []
        for cell, rows_w in cells_within(settings, window_ids_W):
            evaluator = make_evaluator(opened.model, hidden, full_len=cell.length + LOCAL_LEN, local_len=LOCAL_LEN)
            sequences = evaluated_sequences(config, cell.length, cell.k, background=opened.background).sequences
            rows += bridge_rows(
                settings,
                evaluator,
                num_lasso_masks=config.influence.lasso_masks,
                device=opened.device,
                sequences=sequences,
                cell=cell,
                rows_w=rows_w,
            )
        return {"parities": pa.Table.from_pylist(rows, schema=schema)}

    manifest = synthetic_manifest(config, run, opened=opened, kind="bridge", run_id=run_id, num_windows=num_windows)
    measure_parts(
        folder,
        {**manifest, "selectors": list(settings.bridge_selectors)},
        part_size=settings.test_rows,
        measure_part=measure_part,
        overwrite=overwrite,
        share=share,
    )
    return folder


def bridge_rows(
    settings: SyntheticConfig,
    evaluator: Evaluator,
    *,
    num_lasso_masks: int,
    device: torch.device,
    sequences: Sequences,
    cell: Cell,
    rows_w: np.ndarray,
) -> list[dict[str, Any]]:
    """Return the rows of the table ``parities`` of some evaluated sequences of one length and sparsity.

    Args:
        settings: the selectors, and the seed.
        evaluator: the model.
        num_lasso_masks: ``influence.lasso_masks``.
        device: where the model is.
        sequences: of the cell.
        cell: length and sparsity of the sequences, and the number of the first in the table.
        rows_w: int64, which of the sequences.
    """
    length, k, first = cell.length, cell.k, cell.first
    tokens_wT = torch.from_numpy(sequences.tokens_BT[rows_w, : length + LOCAL_LEN].copy()).to(device)
    targets_w = torch.from_numpy(sequences.tokens_BT[rows_w, length + LOCAL_LEN].copy()).to(device)
    planted_wk = np.stack([np.flatnonzero(row_T) for row_T in sequences.planted_BT[rows_w]])
    predictions = Predictions(
        evaluator,
        WindowBatch(tokens_wT, targets_w, window_ids_W=first + rows_w, context="real", seed=settings.test_seed),
        log_p_short_WV=short_log_probs(evaluator, tokens_wT),
        num_lasso_masks=num_lasso_masks,
        with_kl=True,
        with_attention=any_needs_attention(settings.bridge_selectors),
    )
    scores = WindowScores(predictions, max_k=k)
    right_w = (predictions.log_p_long_WV.argmax(dim=-1) == targets_w).cpu().numpy()
    loss_planted_w = scores.losses(torch.from_numpy(planted_wk[:, None]).to(device))[:, 0]
    rows = []
    for name in settings.bridge_selectors:
        chosen_wk = rank(SELECTORS[name].score(scores))[:, :k]
        sets_wS = np.concatenate([np.arange(len(rows_w))[:, None], chosen_wk], axis=1)
        ((loss_w, kl_w),) = scores.evaluate_rows([sets_wS], with_kl=True)
        for w, row in enumerate(rows_w.tolist()):
            rows.append(
                {
                    "window_id": first + row,
                    "length_tokens": length,
                    "sparsity": k,
                    "selector": name,
                    "planted_positions": planted_wk[w],
                    "positions": chosen_wk[w],
                    "num_found": len(set(chosen_wk[w].tolist()) & set(planted_wk[w].tolist())),
                    "right": bool(right_w[w]),
                    "loss_short_nats": scores.loss_short_W[w],
                    "loss_long_nats": scores.loss_long_W[w],
                    "loss_sparse_nats": loss_w[w],
                    "loss_planted_nats": loss_planted_w[w],
                    "kl_short_nats": scores.kl_short_W[w],
                    "kl_sparse_nats": kl_w[w],
                }
            )
    return rows
