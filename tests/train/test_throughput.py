from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from olmo_sparsity.config import Config
from olmo_sparsity.model.olmo import build_model, olmo_model_config
from olmo_sparsity.train.batches import IGNORE_INDEX
from olmo_sparsity.train.resources import measured_peak, training_flops_per_token
from olmo_sparsity.train.step import SummedLoss


@pytest.mark.parametrize("weight_tying", [True, False])
def test_operations_equal_those_that_torch_counts(tiny_config: Config, weight_tying: bool) -> None:
    config = dataclasses.replace(tiny_config, model=dataclasses.replace(tiny_config.model, weight_tying=weight_tying))
    model = build_model(olmo_model_config(config, vocab_size=320, eos_id=0), 0)
    num_rows, row_len = 3, 8
    tokens = torch.zeros(num_rows, row_len, dtype=torch.int64)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        SummedLoss(model, "fp32")(tokens, torch.arange(row_len).expand(num_rows, -1), tokens)[0].backward()
    layers, width = config.model.n_layers, config.model.d_model
    # Without a fused kernel, attention to masked tokens is computed, too, and discarded.
    everywhere, causal = 4 * layers * width * row_len, 2 * layers * width * (row_len + 1)
    counted = counter.get_total_flops() / (num_rows * row_len)
    assert training_flops_per_token(model, row_len) == counted - 3 * (everywhere - causal)


@pytest.mark.parametrize("weight_tying", [True, False])
@pytest.mark.parametrize(("few_targets", "predicts"), [(True, False), (False, True), (False, False)])
def test_embeddings_that_are_looked_up_and_logits_that_are_left_out_take_no_operations(
    tiny_config: Config, weight_tying: bool, few_targets: bool, predicts: bool
) -> None:
    """Of learned positions, which are multiplied only where they are predicted; the last layer is computed for all tokens."""
    settings = dataclasses.replace(tiny_config.model, weight_tying=weight_tying, position_embedding="absolute")
    model = build_model(
        olmo_model_config(dataclasses.replace(tiny_config, model=settings), vocab_size=320, eos_id=0), 0
    )
    tokens = torch.arange(24).reshape(3, 8)
    targets = torch.where(tokens % 8 > 5, tokens, IGNORE_INDEX)
    batch = (tokens, tokens % 8, targets, *([tokens % 7] if predicts else []))
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        SummedLoss(model, "fp32", few_targets=few_targets)(*batch)[0].backward()
    layers, width = settings.n_layers, settings.d_model
    everywhere, causal = 4 * layers * width * 8, 2 * layers * width * 9
    found = training_flops_per_token(
        model, 8, share_with_logits=0.25 if few_targets else 1.0, predicts_positions=predicts
    )
    assert found == counter.get_total_flops() / 24 - 3 * (everywhere - causal)


@pytest.mark.parametrize("num_bos", [0, 1, 3])
def test_tokens_in_front_of_a_row_are_paid_by_those_behind(tiny_config: Config, num_bos: int) -> None:
    """A row with tokens in front costs as much as a longer one, and has fewer tokens to share it."""
    model = build_model(olmo_model_config(tiny_config, vocab_size=320, eos_id=0), 0)
    row_len = 8
    whole = training_flops_per_token(model, row_len + num_bos) * (row_len + num_bos)
    assert training_flops_per_token(model, row_len, num_bos=num_bos) * row_len == pytest.approx(whole, rel=1e-12)


def test_the_peak_is_measured_once() -> None:
    cpu = torch.device("cpu")
    assert measured_peak(cpu, torch.float32) == measured_peak(cpu, torch.float32) > 1e8
