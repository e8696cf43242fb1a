"""Models of transformers: every path against the masked definition, attention and biases against plain computations."""

from __future__ import annotations

from typing import Optional

import pytest
import torch
from transformers_models import BOS, FITTING, VOCAB, WINDOWED, build, build_raw, build_unaware

from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.visible.visibility import (
    Visibility,
    attention_mask,
    compact_rows,
    gate_bias,
    visible_mask,
    with_anchor,
)
from olmo_sparsity.model import transformers_model
from olmo_sparsity.model.transformers_model import TransformersModel

LOCAL, FULL, M = 8, 20, 12
# Of logits with a standard deviation of 2 to 4: bf16 has 8 bits.
TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 0.15}


def windows(num: int = 3) -> torch.Tensor:
    return torch.randint(3, VOCAB, (num, FULL), generator=torch.Generator().manual_seed(1))


VISIBLE = torch.tensor([[2, 7, 11], [0, 1, 5], [3, 4, 9]])


def masked(model: TransformersModel, visibility: Visibility, anchor_id: Optional[int]) -> torch.Tensor:
    tokens, positions = with_anchor(windows(), anchor_id)
    visible = visible_mask(VISIBLE, FULL, local_len=LOCAL, has_anchor=anchor_id is not None)
    return model.last_logits(
        tokens, positions, bias_BTT=attention_mask(visible, local_len=LOCAL, visibility=visibility)
    )


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])
@pytest.mark.parametrize("anchor_id", [None, BOS], ids=["no anchor", "anchor"])
@pytest.mark.parametrize("kind", FITTING)
@torch.no_grad()
def test_rows_of_visible_tokens_are_the_masked_definition(
    kind: str, anchor_id: Optional[int], dtype: torch.dtype
) -> None:
    model = build(kind).in_dtype(dtype)
    rows, positions = compact_rows(windows(), VISIBLE, local_len=LOCAL, anchor_id=anchor_id)
    expected = masked(model, "hidden", anchor_id)
    assert (model.last_logits(rows, positions) - expected).abs().max() < TOLERANCE[dtype]
    closed = torch.arange(rows.shape[1]).expand_as(rows)
    assert (model.last_logits(rows, closed) - expected).abs().max() > 1


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=["fp32", "bf16"])
@pytest.mark.parametrize("anchor_id", [None, BOS], ids=["no anchor", "anchor"])
@pytest.mark.parametrize("kind", FITTING)
@torch.no_grad()
def test_chosen_keys_and_values_are_the_contextual_definition(
    kind: str, anchor_id: Optional[int], dtype: torch.dtype
) -> None:
    model = build(kind).in_dtype(dtype)
    tokens, positions = with_anchor(windows(), anchor_id)
    keys_values = model.keys_values(tokens[:, :-LOCAL], positions[:, :-LOCAL])
    assert len(keys_values) == 2
    kept = VISIBLE if anchor_id is None else torch.nn.functional.pad(VISIBLE + 1, (1, 0))
    rows = torch.arange(3)[:, None]
    prefix = [(k[rows, :, kept].transpose(1, 2), v[rows, :, kept].transpose(1, 2)) for k, v in keys_values]
    logits = model.last_logits_after(tokens[:, -LOCAL:], positions[:, -LOCAL:], prefix=prefix)
    expected = masked(model, "contextual", anchor_id)
    assert (logits - expected).abs().max() < TOLERANCE[dtype]
    assert (masked(model, "hidden", anchor_id) - expected).abs().max() > 1.5 * TOLERANCE[dtype]


@pytest.mark.parametrize("kind", [*FITTING, *WINDOWED])
@torch.no_grad()
def test_without_a_bias_attention_is_causal_and_logits_are_of_the_last_token(kind: str) -> None:
    model, raw = build(kind), build_raw(kind).eval()
    tokens, positions = with_anchor(windows(), None)
    logits = model.last_logits(tokens, positions)
    assert logits.shape == (3, model.vocab_size) == (3, VOCAB)
    torch.testing.assert_close(logits, raw(tokens).logits[:, -1], atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", FITTING)
@torch.no_grad()
def test_attention_of_the_last_token_is_that_of_the_plain_implementation(kind: str) -> None:
    tokens, _ = with_anchor(windows(), None)
    positions = torch.arange(FULL).expand_as(tokens) * 2  # gaps, too
    raw = build_raw(kind).eval()
    raw.set_attn_implementation("eager")
    output = raw(
        tokens, position_ids=positions, attention_mask=torch.ones_like(tokens), output_attentions=True, use_cache=False
    )
    expected = torch.stack(output.attentions).mean(dim=(0, 2))[:, -1]
    model = build(kind)
    before = model.last_logits(tokens, positions)
    logits, attention = model.last_logits_and_attention(tokens, positions)
    torch.testing.assert_close(logits, before, atol=1e-5, rtol=0)
    torch.testing.assert_close(attention, expected, atol=1e-6, rtol=0)
    assert attention.dtype == torch.float32 and attention.max() > 1.5 / FULL
    prefix = model.keys_values(tokens[:, :5], positions[:, :5])
    after, rest = model.last_logits_and_attention(tokens[:, 5:], positions[:, 5:], prefix=prefix)
    torch.testing.assert_close(after, before, atol=1e-5, rtol=0)
    torch.testing.assert_close(rest, expected, atol=1e-6, rtol=0)
    assert bool(attention.sum(dim=1).min() < 0.9999) == (kind == "gpt-oss")  # a sink takes the rest
    assert torch.equal(model.last_logits(tokens, positions), before)


@pytest.mark.parametrize("kind", FITTING)
@torch.no_grad()
def test_the_plain_implementation_runs_a_few_rows_at_a_time(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It keeps the attention of every token. How many rows it runs at once changes nothing."""
    tokens, positions = with_anchor(windows(), None)
    model, seen = build(kind), []
    run_after = model._run_after
    prefix = model.keys_values(tokens[:, :5], positions[:, :5])
    rest = (tokens[:, 5:], positions[:, 5:])
    whole = model._run_plain_implementation(*rest, prefix=prefix)
    monkeypatch.setattr(model, "_run_after", lambda *given, **options: seen.append(1) or run_after(*given, **options))
    layers, heads = model.raw.config.num_hidden_layers, model.raw.config.num_attention_heads
    monkeypatch.setattr(transformers_model, "PLAIN_ELEMENTS", 2 * layers * heads * (FULL - 5) * FULL)
    logits, attention = model._run_plain_implementation(*rest, prefix=prefix)
    assert len(seen) == 2  # of three rows
    torch.testing.assert_close(logits, whole[0], atol=1e-5, rtol=0)
    torch.testing.assert_close(torch.stack(attention), torch.stack(whole[1]), atol=1e-6, rtol=0)


def llama_by_hand(raw: torch.nn.Module, tokens_T: torch.Tensor, bias_TT: torch.Tensor) -> torch.Tensor:
    """Return the logits of the last token of a Llama, written out in fp64; positions are 0 .. T-1."""

    def norm(x: torch.Tensor, layer: torch.nn.Module) -> torch.Tensor:
        return x / (x.square().mean(dim=-1, keepdim=True) + layer.variance_epsilon).sqrt() * layer.weight.double()

    def linear(x: torch.Tensor, layer: torch.nn.Module) -> torch.Tensor:
        return x @ layer.weight.double().T

    head_dim, theta = 8, 10000.0
    angles_TE = torch.outer(
        torch.arange(len(tokens_T)).double(), theta ** (-torch.arange(0, head_dim, 2).double() / head_dim)
    ).repeat(1, 2)

    def rotate(x_HTE: torch.Tensor) -> torch.Tensor:
        first, second = x_HTE.chunk(2, dim=-1)
        return x_HTE * angles_TE.cos() + torch.cat([-second, first], dim=-1) * angles_TE.sin()

    x_TD = raw.model.embed_tokens.weight.double()[tokens_T]
    for layer in raw.model.layers:
        normed = norm(x_TD, layer.input_layernorm)
        q, k, v = (
            linear(normed, getattr(layer.self_attn, f"{name}_proj")).unflatten(-1, (-1, head_dim)).transpose(0, 1)
            for name in "qkv"
        )
        k, v = k.repeat_interleave(2, dim=0), v.repeat_interleave(2, dim=0)  # two heads share keys and values
        scores_HTT = rotate(q) @ rotate(k).transpose(1, 2) / head_dim**0.5 + bias_TT
        weights_HTT = scores_HTT.exp() / scores_HTT.exp().sum(dim=-1, keepdim=True)
        x_TD = x_TD + linear((weights_HTT @ v).transpose(0, 1).flatten(1), layer.self_attn.o_proj)
        normed, mlp = norm(x_TD, layer.post_attention_layernorm), layer.mlp
        gate = linear(normed, mlp.gate_proj)
        x_TD = x_TD + linear(gate * gate.sigmoid() * linear(normed, mlp.up_proj), mlp.down_proj)
    return linear(norm(x_TD, raw.model.norm), raw.lm_head)[-1]


@torch.no_grad()
def test_a_bias_is_added_to_the_scores() -> None:
    tokens, positions = with_anchor(windows(1), None)
    generator = torch.Generator().manual_seed(2)
    bias = torch.randn(1, FULL, FULL, generator=generator) * 3
    bias = bias.masked_fill(torch.ones(FULL, FULL, dtype=torch.bool).triu(1), torch.finfo(torch.float32).min)
    raw = build_raw("llama")
    logits = TransformersModel(raw).last_logits(tokens, positions, bias_BTT=bias)
    torch.testing.assert_close(logits[0], llama_by_hand(raw, tokens[0], bias[0].double()).float(), atol=2e-5, rtol=0)


@pytest.mark.parametrize("kind", ["llama", "gpt-2", "gemma-3", "gemma-2"])
@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
def test_the_derivative_by_a_gate_is_the_numerical_one(kind: str, visibility: Visibility) -> None:
    model = TransformersModel(build_raw(kind).double())
    tokens, positions = with_anchor(windows(2), BOS)
    direction = torch.zeros(2, FULL + 1, dtype=torch.float64)
    direction[:, 1 : M + 1] = torch.randn(2, M, generator=torch.Generator().manual_seed(3), dtype=torch.float64)

    def probability(log_gate: torch.Tensor) -> torch.Tensor:
        bias = gate_bias(log_gate, local_len=LOCAL, visibility=visibility)
        return model.last_logits(tokens, positions, bias_BTT=bias).log_softmax(dim=-1)[:, 7].sum()

    at = torch.full((2, FULL + 1), -1.0, dtype=torch.float64, requires_grad=True)
    (gradient,) = torch.autograd.grad(probability(at), at)
    step = 3e-3  # some norms and softmaxes compute in fp32, whatever the weights
    with torch.no_grad():
        numerical = (probability(at + step * direction) - probability(at - step * direction)) / (2 * step)
    assert numerical.abs() > 1e-3
    torch.testing.assert_close((gradient * direction).sum(), numerical, atol=0, rtol=1e-3)


def test_weights_have_no_gradients_and_a_gradient_passes_in_fp32() -> None:
    model = build("qwen-3")
    tokens, positions = with_anchor(windows(), None)
    log_gate = torch.zeros(3, FULL, requires_grad=True)
    bias = gate_bias(log_gate, local_len=LOCAL, visibility="hidden")
    (gradient,) = torch.autograd.grad(model.last_logits(tokens, positions, bias_BTT=bias)[:, 5].sum(), log_gate)
    assert gradient.isfinite().all() and gradient.abs().max() > 0
    assert not model.last_logits(tokens, positions).requires_grad


@pytest.mark.parametrize("kind", ["bloom", "mamba"])
def test_a_model_without_position_ids_is_refused(kind: str) -> None:
    with pytest.raises(UserError, match=r"^(Bloom|Mamba)ForCausalLM: .* it takes no position IDs [^\n]*$"):
        build(kind)


@torch.no_grad()
def test_what_a_layer_keeps_must_be_keys_and_values() -> None:
    tokens, positions = with_anchor(windows(), None)
    said = "layer 0 keeps no keys and values of its own, but a recurrent state or those of another layer$"
    with pytest.raises(UserError, match=said):
        build("qwen 3 next").keys_values(tokens, positions)
    short = r"the keys of the last 9 of 20 tokens only \(a sliding window\); choose a shorter influence\.full_len$"
    with pytest.raises(UserError, match=f"layer 0 keeps {short}"):
        build_unaware("mistral, window of 10").keys_values(tokens, positions)


@torch.no_grad()
def test_in_dtype_casts_weights_but_no_rotary_tables() -> None:
    model = build("llama")
    assert model.in_dtype(torch.float32) is model
    cast = model.in_dtype(torch.bfloat16)
    assert cast.dtype == torch.bfloat16 and model.dtype == torch.float32
    tables = [buffer.dtype for name, buffer in cast._model.named_buffers() if "inv_freq" in name]
    assert tables and set(tables) == {torch.float32}


def test_another_dtype_leaves_the_positions_that_rows_may_have() -> None:
    """They may be more than those of the configuration, 64."""
    raw = build_raw("llama")
    for number in (None, 200):
        model = TransformersModel(raw, max_position=number)
        for other in (model, model.in_dtype(torch.bfloat16)):
            assert other.max_position == (number or 64)


@pytest.mark.parametrize("own", [None, 0])
def test_a_model_that_does_not_say_how_many_positions_it_has_is_refused(own: Optional[int]) -> None:
    raw = build_raw("llama")
    raw.config.__dict__["max_position_embeddings"] = own
    with pytest.raises(
        UserError, match=r"^LlamaForCausalLM: .* how many positions it has \(max_position_embeddings\)$"
    ):
        TransformersModel(raw, max_position=200)


@pytest.mark.parametrize("kind", FITTING)
@torch.no_grad()
def test_the_output_embedding_gets_rows_that_matrix_kernels_take(kind: str) -> None:
    raw = build_raw(kind)
    model, head, seen = TransformersModel(raw), raw.get_output_embeddings(), []
    tokens, positions = with_anchor(windows(), None)
    head.register_forward_hook(lambda module, inputs, output: seen.append(inputs[0]))
    model.last_logits(tokens, positions)
    raw(input_ids=tokens, position_ids=positions, logits_to_keep=1)
    assert [states.is_contiguous() for states in seen] == [True, False]
    assert torch.equal(seen[0], seen[1])
