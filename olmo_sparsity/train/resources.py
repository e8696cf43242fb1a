"""What training takes of a device: memory, checked before any is allocated, and operations, as a share of the measured peak."""

from __future__ import annotations

import functools
import re
import time
from contextlib import suppress
from pathlib import Path
from typing import Optional

import torch

from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.train.batches import Batch, TrainingData
from olmo_sparsity.train.parallel import num_processes

BYTES_OF_PARAMETER = 16  # fp32: the weight, its gradient, and the two moments of AdamW
MATRIX_SIZE = {"cpu": 1024, "cuda": 8192}  # rows and columns of the matrices whose product is timed
PEAK_REPEATS, PEAK_SECONDS = 8, 1.0  # of products, at most, but two: bf16 is emulated on many CPUs, and slow


def check_memory(config: Config, data: TrainingData, device: torch.device) -> None:
    """Raise UserError if the device cannot hold the model, its optimizer and the logits of a pass: training could not begin."""
    model, training = config.model, config.training
    # Per layer: query, key, value and output matrices; the MLP's first matrix, and its second behind SwiGLU's half.
    num_parameters = model.n_layers * (4 + 3 * model.mlp_ratio / 2) * model.d_model**2
    num_parameters += data.vocab_size * model.d_model * (1 if model.weight_tying else 2)
    holders = num_processes() if training.parallel == "fsdp" else 1
    rows = training.batch_rows // num_processes()
    num_logits = (
        min(rows, training.micro_batch_rows or rows) * (1 if data.few_targets else data.row_len) * data.vocab_size
    )
    needed = {
        "model.d_model, model.n_layers and model.mlp_ratio": num_parameters * BYTES_OF_PARAMETER / holders,
        "pose.max_position or context.full_len": config.num_positions * (model.d_model // model.n_heads) * 2 * 4,
        "training.micro_batch_rows or training.batch_rows": num_logits * 4,
        "training.eval_rows": training.eval_rows // num_processes() * data.row_len * 24,  # three tensors, int64
    }
    available, total = _available_bytes(device), sum(needed.values())
    if available is not None and total > available:
        raise UserError(
            f"{max(needed, key=lambda keys: needed[keys])}: training needs at least {total / 1e9:,.1f} GB, and {device} has "
            f"{available / 1e9:,.1f} GB free; use smaller values"
        )


def _available_bytes(device: torch.device) -> Optional[int]:
    """Free memory of a device; on a CPU at most the limit of the control group. None: unknown."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    found = []
    for path, pattern in (("/proc/meminfo", r"MemAvailable:\s+(\d+) kB"), ("/sys/fs/cgroup/memory.max", r"(\d+)\s*")):
        with suppress(OSError):
            if match := re.search(pattern, Path(path).read_text()):
                found.append(int(match[1]) * (1024 if pattern.endswith("kB") else 1))
    return min(found, default=None)


def training_flops_per_token(model: OLMoWithPositions, data: TrainingData, batch: Batch) -> float:
    """Return the floating-point operations that training needs per token of a row, for its BOS, too.

    The forward pass needs 2 for each weight that a token is multiplied by, plus causal attention to (T + 1) / 2 tokens on
    average; training needs three times as much (Kaplan et al. 2020, arXiv 2001.08361, section 2.1).
    """
    config, output, row_len = model.config, float(model.output_weight.numel()), data.num_bos + data.row_len
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() > 1)
    weights -= model.transformer.wte.weight.numel()  # embeddings are looked up, not multiplied
    if "wpe" in model.transformer and batch.target_positions_BT is None:
        weights -= model.transformer.wpe.weight.numel()
    if not config.weight_tying:
        weights -= model.output_weight.numel()
    if data.few_targets:
        is_target_BT = batch.targets_BT >= 0
        output *= float(is_target_BT.float().mean())
    attention = 2 * config.n_layers * config.d_model * (row_len + 1)
    return 3.0 * (2 * (weights + output) + attention) * row_len / data.row_len


@functools.cache
def measured_peak(device: torch.device, dtype: torch.dtype) -> float:
    """Return the operations per second of the fastest of several products of square matrices, with torch's threads."""
    size = MATRIX_SIZE[device.type]
    # Random numbers, because GPUs multiply constants faster (they draw less power).
    matrix = torch.randn(size, size, generator=torch.Generator().manual_seed(0)).to(device, dtype)
    seconds: list[float] = []
    while len(seconds) < 2 or (len(seconds) < PEAK_REPEATS and sum(seconds) < PEAK_SECONDS):
        start = time.perf_counter()
        matrix @ matrix
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        seconds.append(time.perf_counter() - start)  # the first may include the start of a library
    return 2 * size**3 / min(seconds)
