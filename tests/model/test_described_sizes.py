"""The size that a configuration describes, against that of its files, at the border and one beyond it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from olmo_sparsity.errors import UserError
from olmo_sparsity.model.described_sizes import check_sizes

WHERE = Path("config.json")
# As the configurations of these name them: LLaMA, GPT-NeoX and OLMo's on the hub; others on the hub; OLMo; GPT-2; GGUF.
LAYERS = ("num_hidden_layers", "num_layers", "n_layers", "n_layer", "block_count")
WIDTHS = ("hidden_size", "d_model", "n_embd", "embedding_length")
# Those, OLMo's padded vocabulary, LLaMA, OPT, GPT-2, GGUF.
OTHER_WIDTHS = ("vocab_size", "embedding_size", "intermediate_size", "ffn_dim", "n_inner", "feed_forward_length")


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("section", [False, True])
def test_every_layer_has_a_tensor_at_least(name: str, section: bool) -> None:
    def check(layers: Any) -> None:
        config = {name: layers, "architectures": ["A"]}
        check_sizes(WHERE, {"text": config} if section else config, num_tensors=12, num_bytes=10**6)

    for fits in (12, 1, True, "13", None, 13.0):  # what is no whole number is no size
        check(fits)
    with pytest.raises(UserError, match=f"config.json: {name} = 13: more layers than the 12 tensors"):
        check(13)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("other", OTHER_WIDTHS)
def test_a_matrix_has_eight_weights_in_a_byte_at_most(width: str, other: str) -> None:
    def check(*sizes: int) -> None:
        check_sizes(WHERE, {width: sizes[0], other: sizes[1], "n_layer": 1}, num_tensors=1, num_bytes=3)

    check(6, 4)
    check(1, 24)
    check(10**9, 0)
    with pytest.raises(
        UserError, match=f"{width} = 5, {other} = 5: a matrix of this size does not fit into the 3 bytes"
    ):
        check(5, 5)
    with pytest.raises(UserError, match=f"{width} = 25, {other} = 1: "):
        check(25, 1)
