"""Checks on the first windows of a measurement that a pretrained model can be measured; the manifest keeps what was found."""

from __future__ import annotations

import dataclasses
import logging
from typing import Any, Optional

import numpy as np
import torch

from olmo_sparsity.config import Config
from olmo_sparsity.measure.first_token import Bos, compare_first_tokens
from olmo_sparsity.measure.fit import CHECKED_WINDOWS, check_fit, check_longest_row
from olmo_sparsity.measure.opened_model import OpenedModel
from olmo_sparsity.statistics.model_setup import AnchorCheck
from olmo_sparsity.text.windows import Windows

logger = logging.getLogger(__name__)

# The first tokens are first compared on as many windows as hold FIRST_TOKENS, within these limits, and on as many as hold
# MOST_TOKENS where fewer do not decide. Every token runs three to four times. With 135M parameters that takes a few minutes on a
# CPU, and seconds with a million.
FIRST_TOKENS, FIRST_WINDOWS, MOST_TOKENS = 16_384, (8, 64), 32_768
LONGEST_CHECKED = 8_192  # tokens of a row that is compared with a mask, which has as many elements as the square


def num_compared_windows(full_len: int) -> tuple[int, int]:
    """Return on how many windows of ``full_len`` tokens the first tokens are first compared, and on how many at most."""
    least, most = FIRST_WINDOWS
    first = min(most, max(least, FIRST_TOKENS // full_len))
    return first, max(first, MOST_TOKENS // full_len)


def fit_entries(config: Config, opened: OpenedModel, windows: Windows, *, given: bool = False) -> dict[str, Any]:
    """Check on a few windows that a pretrained model fits, and return the manifest's entry about it; of a run, none.

    Args:
        config: the lengths, and how windows are drawn.
        opened: the model.
        windows: the windows to measure. Where they are longer than the full context, as those of a context curve may be, their
            last tokens are the windows that are checked, and the model must attend to all tokens of the long ones, too.
        given: they were not drawn from the opened text, so the first tokens are compared on these windows alone. Otherwise more
            are drawn where it takes more; the first of them are those to measure.

    Raises:
        UserError: the model does not do what the measurement takes for granted.
    """
    if opened.record is None:
        return {}
    lengths = config.measured_lengths
    rows_WT = _tokens(opened, windows, CHECKED_WINDOWS)
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
    checks = check_fit(opened.model, tokens_WT, **options)
    if rows_WT.shape[1] - 1 > LONGEST_CHECKED:
        logger.warning(
            f"{opened.record.name}: rows are checked up to {LONGEST_CHECKED:,} tokens; a sliding window longer than that would "
            "not be seen"
        )
        rows_WT = rows_WT[:, -1 - LONGEST_CHECKED :]
    if rows_WT.shape[1] > tokens_WT.shape[1]:
        checks.append(check_longest_row(opened.model, rows_WT, **options))
    _, most = num_compared_windows(lengths.full_len)
    if not given and len(windows) < most:
        more = dataclasses.replace(config, influence=dataclasses.replace(config.influence, num_windows=most))
        windows = opened.windows(more, windows.full_len)
    return {
        "fit": {"checks": [dataclasses.asdict(check) for check in checks], "anchor": _compared(config, opened, windows)}
    }


def refreshed_fit_entries(
    config: Config, opened: OpenedModel, windows: Windows, *, known: dict[str, Any]
) -> dict[str, Any]:
    """Return entries of ``fit_entries`` as they are, or where these windows are more, with the first tokens compared on them.

    A few windows tell too little about which first token is the better one; what was checked of the model stays true.
    """
    compared = known["fit"]["anchor"]
    _, most = num_compared_windows(config.measured_lengths.full_len)
    if compared is None or AnchorCheck(**compared).is_settled or min(most, len(windows)) <= compared["num_windows"]:
        return known
    return {"fit": {**known["fit"], "anchor": _compared(config, opened, windows)}}


def _compared(config: Config, opened: OpenedModel, windows: Windows) -> Optional[dict[str, Any]]:
    """Compare the first tokens on so many of the windows as it takes; None: a BOS does not fit in front of a window."""
    lengths = config.measured_lengths
    if lengths.full_len + 1 > opened.model.max_position:
        return None
    first, most = num_compared_windows(lengths.full_len)
    tokens_WT = _tokens(opened, windows, most)[:, -1 - lengths.full_len :]
    check = compare_first_tokens(
        opened.model,
        tokens_WT,
        windows.store.doc_ids_G[windows.document_W[: len(tokens_WT)]],
        bos=Bos(opened.bos.id, opened.bos.text),
        chosen=opened.anchor_id,
        local_len=lengths.local_len,
        first_look=first,
        name=opened.name if opened.record is None else opened.record.name,
    )
    return dataclasses.asdict(check)


def _tokens(opened: OpenedModel, windows: Windows, number: int) -> torch.Tensor:
    """Return the tokens of the first windows, on the model's device; int64 [W, T]."""
    tokens_WT = windows.tokens(np.arange(min(number, len(windows))))
    return torch.from_numpy(np.ascontiguousarray(tokens_WT)).to(opened.device)
