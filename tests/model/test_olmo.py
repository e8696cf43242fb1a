"""The model that is trained: against OLMo, against transformers (``test_convert.py``, too), and what its position IDs do."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F
import transformers
from olmo.model import OLMo
from tiny_models import NO_POSITIONS, NORMED, OF_OLMO, PLAIN, VOCAB, build, converted, last_logits, rows

from olmo_sparsity.config import Config, ContextConfig, ModelConfig
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, olmo_model_config

ABSOLUTE = {
    "absolute": dataclasses.replace(PLAIN, position_embedding="absolute"),
    "absolute, qk-norm": dataclasses.replace(NORMED, position_embedding="absolute"),
}
kinds = pytest.mark.parametrize("kind", (OF_OLMO | ABSOLUTE).values(), ids=OF_OLMO | ABSOLUTE)


def in_order(tokens: torch.Tensor) -> torch.Tensor:
    return torch.arange(tokens.shape[1]).expand_as(tokens)


@kinds
def test_with_positions_in_order_it_equals_olmo_bit_for_bit(kind: ModelConfig) -> None:
    model = build(kind)
    stock = OLMo(model.config)
    assert list(stock.state_dict()) == list(model.state_dict())
    stock.load_state_dict(model.state_dict())
    tokens, _ = rows(4, 20)
    ours, theirs = model(tokens, in_order(tokens)), stock(tokens).logits
    assert torch.equal(ours, theirs)
    ours.square().mean().backward()
    theirs.square().mean().backward()
    gradients = dict(stock.named_parameters())
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, gradients[name].grad), name


@torch.no_grad()
def test_without_positions_it_equals_a_model_of_transformers() -> None:
    """SmolLM3 is a Llama that may leave out rotary positions."""
    llama_like = dataclasses.replace(PLAIN, n_heads=4, layer_norm_type="rms")
    model = build(dataclasses.replace(llama_like, position_embedding="none")).eval()
    same_weights = build(llama_like)
    same_weights.load_state_dict(model.state_dict())
    llama = converted(same_weights)
    keys = {key: value for key, value in llama.config.to_dict().items() if key not in ("model_type", "architectures")}
    no_rope = [0] * llama.config.num_hidden_layers
    config = transformers.SmolLM3Config(**keys, no_rope_layers=no_rope, attn_implementation="eager")
    theirs = transformers.SmolLM3ForCausalLM(config).eval()
    theirs.load_state_dict(llama.state_dict())
    tokens, positions = rows(3, 12)
    expected = theirs(input_ids=tokens, use_cache=False).logits
    torch.testing.assert_close(model(tokens, positions)[..., :VOCAB], expected, atol=1e-5, rtol=0)
    assert (llama(input_ids=tokens).logits - expected).abs().max() > 1e-2


@torch.no_grad()
@pytest.mark.parametrize("kind", [NO_POSITIONS, ABSOLUTE["absolute"]], ids=["none", "absolute"])
def test_nothing_but_the_ids_tells_the_order_of_tokens(kind: ModelConfig) -> None:
    """The last token sees the others as a set in a layer of one, each at its ID; without positions IDs change nothing."""
    model = build(dataclasses.replace(kind, n_layers=1)).eval()
    tokens, positions = rows(3, 12)
    order = torch.cat([torch.randperm(11, generator=torch.Generator().manual_seed(0)), torch.tensor([11])])
    expected = last_logits(model, tokens, positions)
    shuffled = last_logits(model, tokens[:, order], positions[:, order])
    torch.testing.assert_close(shuffled, expected, rtol=1e-4, atol=1e-5)
    elsewhere = last_logits(model, tokens, in_order(tokens))
    assert torch.equal(elsewhere, expected) == (kind is NO_POSITIONS)


@torch.no_grad()
@kinds
def test_logits_of_chosen_tokens_are_those_of_the_whole_row(kind: ModelConfig) -> None:
    model = build(kind).eval()
    tokens, positions = rows(6, 12)
    chosen = torch.rand(tokens.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    whole = model(tokens, positions)
    torch.testing.assert_close(model.logits_at(tokens, positions, chosen), whole[chosen], atol=1e-5, rtol=0)
    torch.testing.assert_close(last_logits(model, tokens, positions), whole[:, -1, :VOCAB], atol=1e-5, rtol=0)
    alone = torch.cat([model(tokens[i : i + 1], positions[i : i + 1]) for i in range(6)])
    torch.testing.assert_close(alone, whole, atol=1e-5, rtol=0)


@torch.no_grad()
@pytest.mark.parametrize("kind", ABSOLUTE.values(), ids=ABSOLUTE)
def test_position_logits_are_the_last_state_times_the_embedding_of_positions(kind: ModelConfig) -> None:
    model = build(kind).eval()
    tokens, positions = rows(3, 12)
    logits, of_positions = model.logits_and_position_logits(tokens, positions)
    assert torch.equal(logits, model(tokens, positions)) and of_positions.shape == (
        3,
        12,
        model.config.max_sequence_length,
    )
    states = OLMo.forward(model, tokens, output_hidden_states=True).hidden_states[-1]
    assert torch.equal(of_positions, F.linear(states, model.transformer.wpe.weight))
    last = model.logits_and_position_logits(tokens, positions, last_only=True)
    torch.testing.assert_close(last[1][:, 0], of_positions[:, -1], rtol=1e-4, atol=1e-5)


@torch.no_grad()
@pytest.mark.parametrize("kind", [PLAIN, NO_POSITIONS, ABSOLUTE["absolute"]], ids=["rope", "none", "absolute"])
def test_the_compiled_model_follows_its_positions(kind: ModelConfig) -> None:
    model = build(dataclasses.replace(kind, n_layers=1)).eval()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    tokens, positions = rows(4, 12)
    for chosen in (positions, in_order(tokens)):
        assert torch.allclose(compiled(tokens, chosen), model(tokens, chosen), atol=1e-6)


@pytest.mark.parametrize("is_tied", [False, True])
def test_every_key_of_the_model_reaches_the_weights(is_tied: bool) -> None:
    """No two numbers are alike."""
    kind = ModelConfig(
        d_model=48, n_heads=3, n_layers=2, mlp_ratio=10, attention_layer_norm=True,
        layer_norm_type="rms" if is_tied else "default", weight_tying=is_tied, init_std=0.05,
    )  # fmt: skip
    config = Config(model=kind, context=ContextConfig(local_len=8, full_len=30))
    model: OLMoWithPositions = build_model(olmo_model_config(config, vocab_size=130, eos_id=7), 0)
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
    assert (model.config.max_sequence_length, model.config.rope_theta) == (30, 10000)
    normed = model.transformer.ln_f(torch.tensor([3.0, 5.0]).repeat(24))
    expected = [3 / 17**0.5, 5 / 17**0.5] if is_tied else [-1.0, 1.0]  # of an RMS norm the mean stays
    torch.testing.assert_close(normed[:2], torch.tensor(expected), atol=1e-4, rtol=0)
