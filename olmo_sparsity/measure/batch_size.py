"""The size of a forward pass: as many tokens as a device computes fast, and its memory holds."""

from __future__ import annotations

from collections.abc import Callable

import torch

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.losses import single_losses
from olmo_sparsity.model.olmo import OLMoWithPositions, with_weights_in

CPU_TOKENS_A_THREAD = 1024  # of a pass: more no longer fit the cache, fewer make small matrix products (`make bench`)


GPU_TOKENS = 2**20  # of a pass: where the search for what fits begins


def largest_that_fits(trial: Callable[[int], object], largest: int) -> int:
    """Half of the largest power of two, from ``largest`` down, with which ``trial`` does not run out of memory: half, for
    what else must fit beside it."""
    size = largest
    while size > 1:
        try:
            trial(size)
            break
        except torch.OutOfMemoryError:
            size //= 2
    return max(1, size // 2)


def _find_batch_tokens(model: OLMoWithPositions, full_len: int, local_len: int) -> int:
    """Tokens of one forward pass: on a GPU half of what its memory holds, found by trying."""
    device = model.transformer.wte.weight.device
    if device.type == "cpu":
        return CPU_TOKENS_A_THREAD * torch.get_num_threads()

    def trial(batch_tokens: int) -> None:
        evaluator = Evaluator(model, local_len, "compact", batch_tokens)
        num_windows = -(-evaluator.rows_at_once(local_len) // (full_len - local_len))
        tokens_WT = torch.zeros(num_windows, full_len, dtype=torch.int64, device=device)
        candidates_WM = torch.arange(full_len - local_len, device=device).expand(num_windows, -1)
        log_p_WV = torch.zeros(num_windows, model.config.vocab_size, device=device)
        single_losses(evaluator, tokens_WT, tokens_WT[:, 0], candidates_WM, log_p_WV)

    return largest_that_fits(trial, GPU_TOKENS)


def make_evaluator(
    model: OLMoWithPositions, settings: InfluenceConfig, full_len: int, local_len: int, precision: str = "fp32"
) -> Evaluator:
    """How ``settings`` says that a model is run, with weights in ``precision`` (``fp32`` or ``bf16``)."""
    model = with_weights_in(model, torch.bfloat16 if precision == "bf16" else torch.float32)
    batch_tokens = settings.batch_tokens or _find_batch_tokens(model, full_len, local_len)
    return Evaluator(model, local_len, settings.path, batch_tokens)
