"""The memory that training needs at least, compared with what there is before anything is allocated."""

from __future__ import annotations

import torch

from olmo_sparsity.config import Config
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.devices import available_bytes
from olmo_sparsity.torchrun import ProcessInfo
from olmo_sparsity.training.data import DataSource

BYTES_OF_PARAMETER = 16  # fp32: the weight, its gradient, and the two moments of AdamW
BYTES_OF_TOKEN = 24  # int64: token, position ID, target


def least_bytes(config: Config, process: ProcessInfo, *, source: DataSource) -> dict[str, int]:
    """Return what training needs at least, in bytes for each process: by the keys of the configuration that it depends on.

    Activations are left out, so training that is refused for these numbers could not have begun.
    """
    model, training = config.model, config.training
    vocab_size, row_len = source.least_vocab_size(config), source.row_len(config)
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
        "training.micro_batch_rows or training.batch_rows": rows_per_pass * row_len * vocab_size * 4,  # logits
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
