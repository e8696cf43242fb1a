"""The model against OLMo, against transformers, and against a float64 implementation (``reference.py``)."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import torch
from olmo.model import OLMo
from tiny_models import KINDS, NORMED, PLAIN, VOCAB, build, converted, last_logits

from olmo_sparsity.config import Config, ContextConfig, ModelConfig
from olmo_sparsity.model.olmo import build_model, olmo_model_config
from olmo_sparsity.train.positions import pose_positions


def rows(num_rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.integers(1, VOCAB, (num_rows, length)))
    return tokens, torch.from_numpy(
        pose_positions(rng, num_rows, row_len=length, max_position=24, num_chunks=min(4, length))
    )


@KINDS
def test_with_positions_in_order_it_equals_olmo_bit_for_bit(kind: ModelConfig) -> None:
    model = build(kind)
    stock = OLMo(model.config)
    assert list(stock.state_dict()) == list(model.state_dict())
    stock.load_state_dict(model.state_dict())
    tokens, _ = rows(4, 20)
    positions = torch.arange(20).expand(4, -1)
    ours, theirs = model(tokens, positions), stock(tokens).logits
    assert torch.equal(ours, theirs)
    ours.square().mean().backward()
    theirs.square().mean().backward()
    gradients = dict(stock.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, gradients[name].grad), name


def test_with_pose_positions_it_equals_olmo_of_transformers() -> None:
    model = build(PLAIN).eval()
    theirs = converted(model)
    tokens, positions = rows(8, 16)
    assert (positions != torch.arange(16)).any()
    with torch.no_grad():
        ours, other = model(tokens, positions)[..., :VOCAB], theirs(input_ids=tokens, position_ids=positions).logits
    assert torch.allclose(ours, other, atol=1e-5, rtol=0)
    assert not torch.allclose(model(tokens, torch.arange(16).expand(8, -1))[..., :VOCAB], other, atol=1e-2)


@KINDS
def test_it_equals_the_reference_in_float64(kind: ModelConfig) -> None:
    model = build(kind).eval()
    tokens, positions = rows(3, 10)
    with torch.no_grad():
        log_q = last_logits(model, tokens, positions).log_softmax(-1)
    for row in range(3):
        expected = reference.target_loss(model, tokens[row].tolist(), positions[row].tolist(), set(range(10)), 7)
        assert -float(log_q[row, 7]) == pytest.approx(expected, abs=1e-5)


def test_a_row_does_not_depend_on_the_others_of_its_batch() -> None:
    model = build(NORMED).eval()
    tokens, positions = rows(6, 12)
    with torch.no_grad():
        together = last_logits(model, tokens, positions)
        alone = torch.cat([last_logits(model, tokens[i : i + 1], positions[i : i + 1]) for i in range(6)])
    assert torch.allclose(together, alone, atol=1e-5, rtol=0)


@KINDS
def test_the_compiled_model_follows_its_positions(kind: ModelConfig) -> None:
    model = build(kind).eval()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    with torch.no_grad():
        tokens, positions = rows(4, 12)
        for chosen in (positions, torch.arange(12).expand(4, -1)):
            assert torch.allclose(compiled(tokens, chosen), model(tokens, chosen), atol=1e-6)


def test_weights_depend_on_the_seed_alone() -> None:
    torch.manual_seed(123)
    before = torch.get_rng_state()
    a = build_model(build(PLAIN).config, 5)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(456)
    b, c = build_model(a.config, 5), build_model(a.config, 6)
    assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(a.transformer.wte.weight, c.transformer.wte.weight)


@pytest.mark.parametrize("is_tied", [False, True])
def test_every_key_of_the_model_reaches_the_weights(is_tied: bool) -> None:
    """No two numbers are alike."""
    kind = ModelConfig(
        d_model=48, n_heads=3, n_layers=2, mlp_ratio=10, attention_layer_norm=True, layer_norm_type="rms",
        layer_norm_with_affine=is_tied, rope_theta=500, weight_tying=is_tied, init_std=0.05,
    )  # fmt: skip
    config = Config(model=kind, context=ContextConfig(local_len=8, full_len=30))
    model = build_model(olmo_model_config(config, vocab_size=130, eos_id=7), 0)
    shapes = {name: tuple(weight.shape) for name, weight in model.state_dict().items()}
    of_layer = {
        "att_proj": (3 * 48, 48), "attn_out": (48, 48), "ff_proj": (480, 48), "ff_out": (48, 240),
        **({"attn_norm": (48,), "ff_norm": (48,), "q_norm": (48,), "k_norm": (48,)} if is_tied else {}),
    }  # fmt: skip
    ends = {"ln_f": (48,)} if is_tied else {"ff_out": (256, 48)}
    assert shapes == {
        "transformer.wte.weight": (256, 48),  # a multiple of 128
        **{f"transformer.{name}.weight": shape for name, shape in ends.items()},
        **{f"transformer.blocks.{i}.{name}.weight": shape for i in range(2) for name, shape in of_layer.items()},
    }
    assert float(model.transformer.wte.weight.detach().std()) == pytest.approx(0.05, rel=0.05)
    assert (model.vocab_size, model.config.eos_token_id, model.config.pad_token_id) == (130, 7, 7)
    assert model.max_position == 30
    turned = 29 * 500.0 ** (-torch.arange(0, 16, 2).double() / 16)
    torch.testing.assert_close(model._cos[29].double(), turned.cos().repeat(2), atol=1e-5, rtol=0)
    torch.testing.assert_close(model._sin[29].double(), turned.sin().repeat(2), atol=1e-5, rtol=0)
    normed = model.transformer.ln_f(torch.tensor([3.0, 5.0]).repeat(24))
    torch.testing.assert_close(normed[:2], torch.tensor([3.0, 5.0]) / 17**0.5, atol=1e-4, rtol=0)  # the mean stays
