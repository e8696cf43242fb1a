"""Checks that a configuration describes no larger model than its files hold, before memory is allocated for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from olmo_sparsity.errors import UserError

# Names that configurations give to the number of layers, and to the widths of a matrix that every model has.
LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "block_count")
WIDTHS = ("hidden_size", "d_model", "n_embd", "embedding_length")
OTHER_WIDTHS = ("vocab_size", "embedding_size", "intermediate_size", "ffn_dim", "n_inner", "feed_forward_length")
WEIGHTS_PER_BYTE = 8  # no format packs more into a byte


def check_sizes(where: Path, config: dict[str, Any], *, num_tensors: int, num_bytes: int) -> None:
    """Check that a described model is not larger than its files can hold, before memory is allocated for it.

    Args:
        where: the file with the description.
        config: its keys; sections are looked through, too.
        num_tensors: tensors in the files with the weights; every layer has one at least.
        num_bytes: their size.

    Raises:
        UserError: it has more layers than there are tensors, or a matrix with more weights than the files have room for.
    """
    for section in config.values():
        if isinstance(section, dict):
            check_sizes(where, section, num_tensors=num_tensors, num_bytes=num_bytes)
    sizes = {name: size for name, size in config.items() if type(size) is int}
    for name in LAYERS:
        if sizes.get(name, 0) > num_tensors:
            raise UserError(
                f"{where}: {name} = {sizes[name]}: more layers than the {num_tensors:,} tensors of its weights; restore the file"
            )
    for width, other in ((width, other) for width in WIDTHS for other in OTHER_WIDTHS):
        if sizes.get(width, 0) * sizes.get(other, 0) > WEIGHTS_PER_BYTE * num_bytes:
            raise UserError(
                f"{where}: {width} = {sizes[width]}, {other} = {sizes[other]}: a matrix of this size does not fit into the "
                f"{num_bytes:,} bytes of its weights; restore the file"
            )
