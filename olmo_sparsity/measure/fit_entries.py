"""Checks on the first windows of a measurement that a pretrained model can be measured; the manifest keeps what was found."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any

import numpy as np
import torch

from olmo_sparsity.config import Config
from olmo_sparsity.measure.fit import Bos, check_fit, check_longest_row, compare_anchors
from olmo_sparsity.measure.opened_model import OpenedModel
from olmo_sparsity.text.windows import Windows

logger = logging.getLogger(__name__)

# A pretrained model is checked on as many windows as hold so many tokens, within these limits: with long windows the check
# would otherwise take as long as the measurement.
FIT_TOKENS, FIT_WINDOWS = 16_384, (8, 64)
LONGEST_CHECKED = 8_192  # tokens of a row that is compared with a mask, which has as many elements as the square


def num_fit_windows(full_len: int) -> int:
    """Return the number of windows of ``full_len`` tokens on which a pretrained model is checked."""
    least, most = FIT_WINDOWS
    return min(most, max(least, FIT_TOKENS // full_len))


def fit_entries(config: Config, opened: OpenedModel, windows: Windows) -> dict[str, Any]:
    """Check on a few windows that a pretrained model fits, and return the manifest's entry about it; of a run, none.

    Args:
        config: the lengths.
        opened: the model.
        windows: the windows to measure. Where they are longer than the full context, as those of a context curve may be, their
            last tokens are the windows that are checked, and the model must attend to all tokens of the long ones, too.

    Raises:
        UserError: the model does not do what the measurement takes for granted.
    """
    if opened.record is None:
        return {}
    lengths = config.measured_lengths
    rows_WT = _first_windows(opened, windows, lengths.full_len)
    logger.info(
        f"{opened.record.name}: checking on {len(rows_WT)} windows of {lengths.full_len:,} tokens whether it can be measured"
    )
    options: dict[str, Any] = {
        "name": opened.record.name,
        "local_len": lengths.local_len,
        "dtype": torch.bfloat16 if opened.precision == "bf16" else torch.float32,
        "anchor_id": opened.anchor_id,
    }
    tokens_WT = rows_WT[:, -1 - lengths.full_len :]
    fit = check_fit(opened.model, tokens_WT, bos=Bos(opened.bos.id, opened.bos.text), **options)
    if rows_WT.shape[1] - 1 > LONGEST_CHECKED:
        logger.warning(
            f"{opened.record.name}: rows are checked up to {LONGEST_CHECKED:,} tokens; a sliding window longer than that would "
            "not be seen"
        )
        rows_WT = rows_WT[:, -1 - LONGEST_CHECKED :]
    if rows_WT.shape[1] > tokens_WT.shape[1]:
        fit = dataclasses.replace(fit, checks=[*fit.checks, check_longest_row(opened.model, rows_WT, **options)])
    return {"fit": dataclasses.asdict(fit)}


def refreshed_fit_entries(
    config: Config, opened: OpenedModel, windows: Windows, *, known: dict[str, Any]
) -> dict[str, Any]:
    """Return entries of ``fit_entries`` as they are, or where these windows are more, with the first tokens compared on them.

    A few windows tell too little about which first token is the better one; what was checked of the model stays true.
    """
    lengths, compared = config.measured_lengths, known["fit"]["anchor"]
    if compared is None or min(num_fit_windows(lengths.full_len), len(windows)) <= compared["num_windows"]:
        return known
    tokens_WT = _first_windows(opened, windows, lengths.full_len)[:, -1 - lengths.full_len :]
    logger.info(f"{opened.name}: comparing the losses with and without {opened.bos.text} on {len(tokens_WT)} windows")
    anchor = compare_anchors(
        opened.model,
        tokens_WT,
        bos=Bos(opened.bos.id, opened.bos.text),
        chosen=opened.anchor_id,
        local_len=lengths.local_len,
    )
    return {"fit": {**known["fit"], "anchor": dataclasses.asdict(anchor)}}


def _first_windows(opened: OpenedModel, windows: Windows, full_len: int) -> torch.Tensor:
    """Return as many windows of a measurement as a pretrained model is checked on, on its device; int64 [W, T]."""
    tokens_WT = windows.tokens(np.arange(min(num_fit_windows(full_len), len(windows))))
    return torch.from_numpy(np.ascontiguousarray(tokens_WT)).to(opened.device)
