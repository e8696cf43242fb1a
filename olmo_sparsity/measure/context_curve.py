"""Does the model generalize in length at all? The loss of the target against the number of visible recent tokens.

The same targets at every length, so that the points are paired; hidden tokens are simply not run. Lengths go past
``full_len``: rotary positions have no weights, so that a model can be run at lengths that it was never trained on.
"""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch

from olmo_sparsity.config import Config, fingerprint, to_dict
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.batch_size import make_evaluator
from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.losses import log_probs, surprisal
from olmo_sparsity.measure.measurement import is_measured, measure_parts
from olmo_sparsity.measure.opened_run import lengths_record, open_run
from olmo_sparsity.measure.shares import WHOLE, Share
from olmo_sparsity.model.devices import device_name
from olmo_sparsity.tables.schemas import SCHEMA_VERSION

logger = logging.getLogger(__name__)

WINDOWS_PER_PART = 500


def visible_lengths(config: Config) -> list[int]:
    """The numbers of visible tokens, rising: powers of two and one and a half times as many, and the lengths of the
    experiment, up to ``context_curve.max_visible`` (null: twice ``full_len``).

    Raises:
        UserError: that is shorter than a training row.
    """
    context = config.context
    longest = config.context_curve.max_visible or 2 * context.full_len
    if longest < context.row_len:
        raise UserError(
            f"context_curve.max_visible = {longest}: must be at least the length of a training row, {context.row_len} tokens, "
            "which the curve is compared with"
        )
    powers = {2**i for i in range(longest.bit_length())}
    lengths = powers | {p * 3 // 2 for p in powers if p > 1} | {context.local_len, context.row_len, context.full_len}
    return sorted({n for n in lengths if n <= longest} | {longest})


def losses_by_length(evaluator: Evaluator, rows: torch.Tensor, lengths: list[int]) -> np.ndarray:
    """Loss of the last token of each row given only the ``n`` tokens before it, for each n of ``lengths``.

    The visible tokens carry position IDs 0 .. n-1: rotary attention knows relative positions alone.

    Args:
        evaluator: the model; each length takes the place of its ``local_len``.
        rows: int64 [W, tokens + 1], the target last; at least as many tokens as the longest length.
        lengths: numbers of visible tokens.

    Returns:
        nats, fp32 [W, lengths].
    """
    losses = []
    for length in lengths:
        tokens, targets = rows[:, -1 - length : -1], rows[:, -1]
        nothing = torch.zeros(len(rows), 0, dtype=torch.int64, device=rows.device)
        of_length = dataclasses.replace(evaluator, local_len=length)
        losses.append(surprisal(log_probs(of_length, tokens, nothing), targets))
    return torch.stack(losses, dim=1).cpu().numpy()


def measure_context_curve(
    config: Config,
    run: Path,
    out: Optional[Path] = None,
    overwrite: bool = False,
    share: Share = WHOLE,
) -> Path:
    """Measures the context curve of a trained run's model; returns the folder of its table.

    Args:
        config: which windows (``config.influence`` says of which text), and ``config.context_curve``.
        run: folder of the trained run.
        out: folder of the table; None: one inside the run.
        overwrite: delete a finished table and measure again.
        share: which of the parts are measured here.

    Raises:
        UserError: the text, the run or the folder is not usable.
    """
    settings = config.influence
    lengths = visible_lengths(config)
    held_out = open_run(config, run, max_position=max(lengths[-1], config.max_position))
    model_sha256 = held_out.facts["sha256"]["model.pt"]
    windows_of = (settings.num_windows, settings.max_windows_per_document, settings.seed, settings.targets)
    key = fingerprint(
        SCHEMA_VERSION, lengths, to_dict(config.context), model_sha256, held_out.store.tokens_sha256, windows_of
    )
    folder = out if out is not None else run / "context-curve" / f"{held_out.split}-to{lengths[-1]}-{key[:6]}"
    if is_measured(folder, "context-curve", key, overwrite):
        return folder
    windows = held_out.windows(config, lengths[-1])
    num_documents = windows.num_documents
    manifest: dict[str, Any] = {
        "kind": "context-curve",
        "run_id": key,
        "run": run.name,
        "source": held_out.source,
        "split": held_out.split,
        "context": lengths_record(config),
        "num_visible_tokens": lengths,
        "num_windows": len(windows),
        "num_documents": num_documents,
        "checkpoint": {"step": held_out.facts["step"], "model_sha256": model_sha256},
        "tokens_sha256": held_out.store.tokens_sha256,
        "windows_sha256": windows.sha256,
        "device": device_name(held_out.device),
    }
    evaluator = make_evaluator(held_out.model, settings, lengths[-1], config.context.local_len)
    logger.info(
        f"{folder}: {len(windows)} windows of {num_documents} documents, {lengths[0]} to {lengths[-1]} visible tokens"
    )

    def measure_part(chosen: np.ndarray) -> dict[str, dict[str, Any]]:
        rows = torch.from_numpy(windows.tokens(chosen)).to(held_out.device)
        losses = losses_by_length(evaluator, rows, lengths)
        return {
            "curve": {
                "window_id": chosen,
                "doc_id": windows.doc_ids(chosen),
                "num_visible_tokens": [lengths] * len(chosen),
                "loss_nats": list(losses),
            }
        }

    measure_parts(folder, manifest, WINDOWS_PER_PART, measure_part, overwrite, share)
    return folder
