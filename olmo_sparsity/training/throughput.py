"""How much work a training step is, and how much the machine can do."""

from __future__ import annotations

import functools
import time

import torch

from olmo_sparsity.model.olmo import OLMoWithPositions

PEAK_CUBE = {"cpu": 1024, "cuda": 8192}  # edge of the matrices whose product is timed
PEAK_REPEATS = 8


def training_flops_per_token(model: OLMoWithPositions, row_len: int) -> float:
    """Floating-point operations that training needs for one token of a row: 2 for each weight that it is multiplied
    with, and causal attention to (T + 1) / 2 tokens in the mean; three times as much as the forward pass alone (Kaplan et
    al. 2020, arXiv 2001.08361, section 2.1, counts so). Norms and other elementwise work is left out."""
    config = model.config
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() > 1)
    if not config.weight_tying:  # looking up a token's embedding multiplies nothing
        weights -= model.transformer.wte.weight.numel()
    attention = 2 * config.n_layers * config.d_model * (row_len + 1)
    return 3.0 * (2 * weights + attention)


@functools.cache
def measured_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Operations a second of the best of some products of two square matrices, with the threads that torch has now."""
    cube = PEAK_CUBE[device.type]
    # Not all the same: a GPU multiplies constants faster than numbers.
    matrix = torch.randn(cube, cube, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    seconds = []
    for _ in range(PEAK_REPEATS):
        began = time.perf_counter()
        matrix @ matrix
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - began)
    return 2 * cube**3 / min(seconds)
