"""What training takes of a device: memory, checked before any is allocated, and operations, as a share of the measured peak."""

from __future__ import annotations

import functools
import time

import torch

from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.devices import available_bytes
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.torchrun import ProcessInfo
from olmo_sparsity.train.data import DataSource

BYTES_OF_PARAMETER = 16  # fp32: the weight, its gradient, and the two moments of AdamW
BYTES_OF_TOKEN = 24  # int64: token, position ID, target
MATRIX_SIZE = {"cpu": 1024, "cuda": 8192}  # rows and columns of the matrices whose product is timed
PEAK_REPEATS = 8
PEAK_SECONDS = 1.0  # after which the second product or a later one is the last: bf16 is emulated on many CPUs, and slow


def least_bytes(config: Config, process: ProcessInfo, *, source: DataSource) -> dict[str, int]:
    """Return what training needs at least, in bytes for each process: by the keys of the configuration that it depends on.

    Activations are left out, so training that is refused for these numbers could not have begun.
    """
    model, training = config.model, config.training
    vocab_size, row_len = source.least_vocab_size(config), source.row_len(config)
    num_logits = source.least_logits(config)
    width = model.d_model
    # Per layer: query, key, value and output matrices; the MLP's first matrix, and its second behind SwiGLU's half.
    num_parameters = model.n_layers * (4 + 3 * model.mlp_ratio / 2) * width**2
    num_parameters += vocab_size * width * (1 if model.weight_tying else 2)
    holders = process.world_size if training.parallel == "fsdp" else 1
    rows, eval_rows = (-(-number // process.world_size) for number in (training.batch_rows, training.eval_rows))
    rows_per_pass = min(rows, training.micro_batch_rows or rows)
    return {
        "model.d_model, model.n_layers and model.mlp_ratio": int(num_parameters * BYTES_OF_PARAMETER / holders),
        "pose.max_position or context.full_len": config.num_positions * (width // model.n_heads) * 2 * 4,
        "training.batch_rows": rows * row_len * BYTES_OF_TOKEN,
        "training.micro_batch_rows or training.batch_rows": rows_per_pass * num_logits * vocab_size * 4,  # logits
        "training.eval_rows": eval_rows * row_len * BYTES_OF_TOKEN,
    }


def check_memory(config: Config, process: ProcessInfo, *, source: DataSource, device: torch.device) -> None:
    """Check that the memory of the device holds at least the model, its optimizer, and one batch.

    Raises:
        UserError: it does not; the message names the keys that need most.
    """
    available = available_bytes(device)
    needed = least_bytes(config, process, source=source)
    total = sum(needed.values())
    if available is not None and total > available:
        keys = max(needed, key=lambda name: needed[name])
        raise UserError(
            f"{keys}: training needs at least {total / 1e9:,.1f} GB, and {device} has {available / 1e9:,.1f} GB free; "
            "use smaller values"
        )


def training_flops_per_token(
    model: OLMoWithPositions,
    row_len: int,
    *,
    num_bos: int = 0,
    share_with_logits: float = 1.0,
    predicts_positions: bool = False,
) -> float:
    """Return the floating-point operations that training needs per token of a row, for its ``num_bos`` first tokens, too.

    The forward pass needs 2 for each weight that a token is multiplied by, plus causal attention to (T + 1) / 2 tokens on
    average; training needs three times as much (Kaplan et al. 2020, arXiv 2001.08361, section 2.1). Norms and other elementwise
    work is not counted.

    Args:
        model: the model.
        row_len: T.
        num_bos: tokens in front of every row.
        share_with_logits: the fraction of the tokens behind which logits are computed.
        predicts_positions: the learned embedding of positions is multiplied, too, by every token.
    """
    config, output = model.config, model.output_weight.numel()
    weights = sum(parameter.numel() for parameter in model.parameters() if parameter.dim() > 1)
    weights -= model.transformer.wte.weight.numel()  # embeddings are looked up, not multiplied
    if "wpe" in model.transformer and not predicts_positions:
        weights -= model.transformer.wpe.weight.numel()
    if not config.weight_tying:
        weights -= output
    attention = 2 * config.n_layers * config.d_model * (num_bos + row_len + 1)
    per_token = 2 * (weights + share_with_logits * output) + attention
    return 3.0 * per_token * (num_bos + row_len) / row_len


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
