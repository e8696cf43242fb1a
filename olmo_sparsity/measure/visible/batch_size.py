"""The size of a forward pass: as many tokens as the device computes fast and its memory holds."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Optional

import torch

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import single_losses
from olmo_sparsity.model.causal_model import CausalModel

# Per forward pass. More tokens do not fit the cache, fewer make the matrix products small (see `make bench`).
CPU_TOKENS_PER_THREAD = 1024
GPU_TOKENS = 2**20  # per forward pass: the search for what fits in memory starts here


def largest_that_fits(trial: Callable[[int], object], largest: int) -> int:
    """Return half of the largest size with which ``trial`` does not run out of memory.

    Half, because other data must fit in memory too. The sizes tried are ``largest``, ``largest / 2``, and so on.
    """
    size = largest
    while size > 1:
        try:
            trial(size)
            break
        except torch.OutOfMemoryError:
            size //= 2
    return max(1, size // 2)


def _find_batch_tokens(evaluator: Evaluator, full_len: int) -> int:
    """Return the number of tokens of one forward pass; on a GPU, half of what its memory holds, found by trying."""
    device = evaluator.model.device
    if device.type == "cpu":
        return CPU_TOKENS_PER_THREAD * torch.get_num_threads()
    local_len = evaluator.local_len

    def trial(batch_tokens: int) -> None:
        tried = dataclasses.replace(evaluator, path="compact", batch_tokens=batch_tokens)
        num_windows = -(-tried.rows_per_pass(local_len) // (full_len - local_len))
        tokens_WT = torch.zeros(num_windows, full_len, dtype=torch.int64, device=device)
        candidates_WM = torch.arange(full_len - local_len, device=device).expand(num_windows, -1)
        log_p_WV = torch.zeros(num_windows, tried.model.vocab_size, device=device)
        single_losses(tried, tokens_WT, targets_W=tokens_WT[:, 0], candidates_WJ=candidates_WM, reference_WV=log_p_WV)

    return largest_that_fits(trial, GPU_TOKENS)


def make_evaluator(
    model: CausalModel,
    settings: InfluenceConfig,
    *,
    full_len: int,
    local_len: int,
    precision: str = "fp32",
    anchor_id: Optional[int] = None,
) -> Evaluator:
    """Return an evaluator that runs a model as ``settings`` specifies.

    Args:
        model: the model.
        settings: the definition of visible, the path, and the size of a forward pass where it is given.
        full_len: tokens of the longest window that will be measured.
        local_len: L, the number of local tokens.
        precision: of the weights, ``fp32`` or ``bf16``.
        anchor_id: token ID of the anchor in front of every window; None: there is none.
    """
    evaluator = Evaluator(
        model.in_dtype(torch.bfloat16 if precision == "bf16" else torch.float32),
        local_len,
        path=settings.path,
        visibility=settings.visibility,
        anchor_id=anchor_id,
    )
    return dataclasses.replace(evaluator, batch_tokens=settings.batch_tokens or _find_batch_tokens(evaluator, full_len))
