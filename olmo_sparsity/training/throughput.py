"""Floating-point operations of training, and the measured peak of the device."""

from __future__ import annotations

import functools
import time

import torch

from olmo_sparsity.model.olmo import OLMoWithPositions

MATRIX_SIZE = {"cpu": 1024, "cuda": 8192}  # rows and columns of the matrices whose product is timed
PEAK_REPEATS = 8
PEAK_SECONDS = 1.0  # after which the second product or a later one is the last: bf16 is emulated on many CPUs, and slow


def training_flops_per_token(model: OLMoWithPositions, row_len: int, *, num_bos: int = 0) -> float:
    """Return the floating-point operations that training needs per token of a row, for its ``num_bos`` first tokens, too.

    The forward pass needs 2 for each weight, plus causal attention to (T + 1) / 2 tokens on average; training needs three
    times as much (Kaplan et al. 2020, arXiv 2001.08361, section 2.1). Norms and other elementwise work is not counted.
    """
    config = model.config
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() > 1)
    if not config.weight_tying:  # the embedding is looked up, not multiplied
        weights -= model.transformer.wte.weight.numel()
    attention = 2 * config.n_layers * config.d_model * (num_bos + row_len + 1)
    return 3.0 * (2 * weights + attention) * (num_bos + row_len) / row_len


@functools.cache
def measured_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of the fastest of several products of square matrices, with torch's threads."""
    size = MATRIX_SIZE[device.type]
    # Random numbers, because GPUs multiply constants faster (they draw less power).
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    seconds = []
    for _ in range(PEAK_REPEATS):
        start = time.perf_counter()
        matrix @ matrix
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)
        if len(seconds) > 1 and sum(seconds) > PEAK_SECONDS:  # the first may include the start of a library
            break
    return 2 * size**3 / min(seconds)
