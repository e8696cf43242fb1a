"""Measures whether a model generalizes in length: the loss of the target against the number of visible recent tokens.

The targets are the same at every length, so the points are paired. Hidden tokens are not run: the row of a point begins with its
oldest visible token, at position 0 or directly behind the anchor, as rows of training begin. Lengths go past ``full_len``:
rotary embeddings have no weights, so the model of a run can be run at lengths that it was never trained on, and so can a
pretrained model whose training row is stated. Others are measured up to the positions that they were trained on.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Optional

import numpy as np
import pyarrow as pa
import torch

from olmo_sparsity.config import Config, InfluenceConfig, fingerprint
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.measurement import MeasurementPlan, PreparedMeasurement, run_measurement
from olmo_sparsity.measure.setup.fit import fit_entries
from olmo_sparsity.measure.setup.opened_model import OpenedModel, identity, open_model
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import recent_losses
from olmo_sparsity.measure.work import WHOLE, Share, part_size
from olmo_sparsity.records.measured import MeasuredLengths
from olmo_sparsity.tables.schemas import SCHEMA_VERSION, schemas

logger = logging.getLogger(__name__)

WINDOWS_PER_PART = 500
# Keys of ``influence`` that the windows depend on.
WINDOW_KEYS = ("num_windows", "max_windows_per_document", "seed", "targets", "min_preceding")


def visible_lengths(lengths: MeasuredLengths, max_visible: Optional[int], *, limit: Optional[int] = None) -> list[int]:
    """Return the numbers of visible tokens to measure at, rising.

    They are the powers of two, one and a half times each, and the lengths of the experiment.

    Args:
        lengths: of the experiment.
        max_visible: the largest (``context_curve.max_visible``); None: twice ``full_len``.
        limit: none is larger; None: there is no limit.

    Raises:
        UserError: ``max_visible`` is less than a training row, or where none is known, not more than the local tokens.
    """
    longest = max_visible or 2 * lengths.full_len
    longest = longest if limit is None else min(longest, limit)
    if lengths.train_len is not None and longest < lengths.train_len and max_visible is None:
        raise UserError(
            f"the curve ends at {longest} tokens where context_curve.max_visible is not given, and a training row has "
            f"{lengths.train_len}, which it is compared with; give context_curve.max_visible={lengths.train_len} or more"
        )
    if lengths.train_len is not None and longest < lengths.train_len:
        raise UserError(
            f"context_curve.max_visible = {longest}: must be at least the length of a training row, {lengths.train_len} "
            "tokens, which the curve is compared with"
        )
    if lengths.train_len is None and longest <= lengths.local_len:
        raise UserError(
            f"context_curve.max_visible = {longest}: must be more than the {lengths.local_len} local tokens, which the curve is "
            "compared with"
        )
    powers = {2**i for i in range(longest.bit_length())}
    numbers = powers | {p * 3 // 2 for p in powers if p > 1} | {lengths.local_len, lengths.full_len, lengths.train_len}
    return sorted({n for n in numbers if n is not None and n <= longest} | {longest})


def losses_by_length(evaluator: Evaluator, rows_WT: torch.Tensor, *, lengths: list[int]) -> np.ndarray:
    """Return the loss of the last token of each row with only the n tokens before it visible, for each n of ``lengths``.

    The visible tokens have position IDs 0 .. n-1, or behind an anchor, which has 0, 1 .. n. In a window the local tokens keep
    theirs at its end. Rotary attention depends on relative positions only, so without an anchor the loss of ``local_len`` visible
    tokens is L_short all the same; with an anchor, which here is next to them, or with learned positions it is not.

    Args:
        evaluator: the model; each length replaces its ``local_len``.
        rows_WT: int64, the windows and, last, their targets; T is larger than the longest length.
        lengths: numbers of visible tokens.

    Returns:
        nats, fp32 [W, number of lengths].
    """
    tokens_WT, targets_W = rows_WT[:, :-1], rows_WT[:, -1]
    losses = [
        recent_losses(evaluator, tokens_WT, targets_W=targets_W, num_visible=length, in_place=False)
        for length in lengths
    ]
    return torch.stack(losses, dim=1).cpu().numpy()


def measure_context_curve(
    config: Config,
    run: Path,
    *,
    out: Optional[Path] = None,
    overwrite: bool = False,
    share: Share = WHOLE,
) -> Path:
    """Measure the context curve of a model, and return the folder of its table.

    Args:
        config: ``config.context_curve``, the windows (``config.influence``: how many, of which text), and the model where it is
            not the run's.
        run: folder of the trained run, or of the results of a pretrained model.
        out: folder of the table; None: one inside the run.
        overwrite: delete a finished table and measure again.
        share: which of the parts this process measures.

    Raises:
        UserError: the text, the model, the run or the folder is not usable.
    """
    settings, max_visible = config.influence, config.context_curve.max_visible
    longest = visible_lengths(config.measured_lengths, max_visible)[-1]
    is_asked_for = config.pretrained.model is None or max_visible is not None or config.pretrained.train_len is not None
    opened = open_model(config, run, longest=longest if is_asked_for else None)
    # Hidden tokens are not run, so no definition of visible but this one is measured, whatever `influence` says.
    opened = dataclasses.replace(opened, visibility="hidden")
    lengths = visible_lengths(opened.lengths, max_visible, limit=opened.most_visible)
    run_id = fingerprint(
        SCHEMA_VERSION,
        lengths,
        identity(opened),
        opened.text.store.tokens_sha256,
        [getattr(settings, key) for key in WINDOW_KEYS],
    )
    anchored = "" if opened.anchor is None else "bos-"
    folder = out or run / "context-curve" / f"{opened.text.split}-{anchored}to{lengths[-1]}-{run_id[:6]}"
    plan = MeasurementPlan(
        kind="context-curve",
        run_id=run_id,
        folder=folder,
        config=config,
        opened=opened,
        prepare=lambda: _prepare(settings, opened, lengths=lengths, folder=folder),
    )
    return run_measurement(plan, overwrite=overwrite, share=share)


def _prepare(
    settings: InfluenceConfig,
    opened: OpenedModel,
    *,
    lengths: list[int],
    folder: Path,
) -> PreparedMeasurement:
    windows = opened.windows(settings, full_len=lengths[-1])
    num_documents = windows.num_documents
    fit = fit_entries(opened, windows)
    evaluator = opened.evaluator(settings, full_len=lengths[-1])
    schema = schemas(opened.lengths.num_long_range)["curve"]
    logger.info(
        f"{folder}: {len(windows):,} windows of {num_documents:,} documents, {lengths[0]} to {lengths[-1]} visible tokens"
    )

    def measure_part(window_ids_W: np.ndarray) -> dict[str, pa.Table]:
        rows_WT = torch.from_numpy(windows.tokens(window_ids_W)).to(opened.device)
        columns = {
            "window_id": window_ids_W,
            "doc_id": windows.doc_ids(window_ids_W),
            "weight": windows.weight_W[window_ids_W],
            "num_visible_tokens": [lengths] * len(window_ids_W),
            "loss_nats": list(losses_by_length(evaluator, rows_WT, lengths=lengths)),
        }
        return {"curve": pa.table(columns, schema=schema)}

    return PreparedMeasurement(
        num_windows=len(windows),
        part_size=part_size(WINDOWS_PER_PART, sum(lengths)),
        measure_part=measure_part,
        tokens_per_window=sum(lengths),
        manifest_entries={
            "min_preceding": None if settings.min_preceding is None else windows.min_preceding,
            "num_visible_tokens": lengths,
            "num_documents": num_documents,
            "windows_sha256": windows.sha256,
            **fit,
        },
    )
