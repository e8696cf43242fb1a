"""Models with ALiBi and without positions: against transformers and OLMo, what their position IDs do, checkpoints, refusals.

``reference.py`` has the formula. Both are among the ``KINDS`` that paths and selectors are compared with it for.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import transformers
from olmo.model import OLMo
from tiny_models import ALIBI, NO_POSITIONS, PLAIN, VOCAB, build
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from olmo_sparsity.config import Config, ContextConfig, InfluenceConfig, ModelConfig, PoseConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.export.conversion import to_transformers
from olmo_sparsity.measure.setup.opened_model import check_before_training
from olmo_sparsity.model.checkpoint import CheckpointInfo, CheckpointState, load_model, save_checkpoint
from olmo_sparsity.model.olmo import OLMoWithPositions

CPU = torch.device("cpu")
LENGTH = 12
LLAMA_LIKE = dataclasses.replace(PLAIN, n_heads=4, layer_norm_type="rms", layer_norm_with_affine=True)
BOTH = pytest.mark.parametrize("kind", [ALIBI, NO_POSITIONS], ids=["alibi", "no-positions"])


def tokens() -> torch.Tensor:
    return torch.randint(1, VOCAB, (3, LENGTH), generator=torch.Generator().manual_seed(5))


def in_order() -> torch.Tensor:
    return torch.arange(LENGTH).expand(3, -1)


@torch.no_grad()
def last_logits(model: OLMoWithPositions, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    return model.last_logits(token_ids, positions)


@pytest.mark.parametrize("positions", ["alibi", "none"])
@torch.no_grad()
def test_logits_are_those_of_transformers(positions: str) -> None:
    """SmolLM3 is a Llama that may leave out rotary positions; the biases of ALiBi are BLOOM's, which depend on the keys alone."""
    model = build(dataclasses.replace(LLAMA_LIKE, position_embedding=positions)).eval()  # type: ignore[arg-type]
    same_weights = build(LLAMA_LIKE)
    same_weights.load_state_dict(model.state_dict())
    llama = to_transformers(same_weights)
    config = transformers.SmolLM3Config(
        **{key: value for key, value in llama.config.to_dict().items() if key not in ("model_type", "architectures")},
        no_rope_layers=[0] * llama.config.num_hidden_layers,
        attn_implementation="eager",
    )
    theirs = transformers.SmolLM3ForCausalLM(config).eval()
    theirs.load_state_dict(llama.state_dict())
    scores = torch.zeros(1, 4, 1, LENGTH)
    if positions == "alibi":
        scores = build_alibi_tensor(torch.ones(1, LENGTH), 4, torch.float32).view(1, 4, 1, LENGTH)
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    mask = scores.expand(3, 4, LENGTH, LENGTH).masked_fill(later, torch.finfo(torch.float).min)
    expected = theirs(input_ids=tokens(), attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(model(tokens(), in_order())[..., :VOCAB], expected, atol=1e-5, rtol=0)
    assert (llama(input_ids=tokens()).logits - expected).abs().max() > 1e-2


def test_biases_of_alibi_follow_the_position_ids() -> None:
    model = build(ALIBI).eval()
    before = last_logits(model, tokens(), in_order())
    torch.testing.assert_close(last_logits(model, tokens(), in_order() + 9), before, atol=1e-5, rtol=0)
    behind_a_gap = in_order() + 9 * (in_order() >= 5)
    assert (last_logits(model, tokens(), behind_a_gap) - before).abs().max() > 1e-2


def test_a_model_without_positions_does_not_know_the_ids_nor_the_order() -> None:
    model = build(NO_POSITIONS).eval()
    gaps = torch.arange(LENGTH).mul(2).expand(3, -1)
    assert torch.equal(last_logits(model, tokens(), gaps), last_logits(model, tokens(), in_order()))
    one_layer = build(dataclasses.replace(NO_POSITIONS, n_layers=1)).eval()
    order = torch.cat(
        [torch.randperm(LENGTH - 1, generator=torch.Generator().manual_seed(0)), torch.tensor([LENGTH - 1])]
    )
    shuffled = last_logits(one_layer, tokens()[:, order], in_order())
    torch.testing.assert_close(shuffled, last_logits(one_layer, tokens(), in_order()), atol=1e-5, rtol=0)
    with_alibi = build(dataclasses.replace(ALIBI, n_layers=1)).eval()
    assert (
        last_logits(with_alibi, tokens()[:, order], in_order()) - last_logits(with_alibi, tokens(), in_order())
    ).abs().max() > 1e-2


@BOTH
def test_the_logits_of_chosen_tokens_are_those_of_the_whole_row(kind: ModelConfig) -> None:
    model = build(kind).eval()
    gaps = in_order() + 9 * (in_order() >= 5)
    chosen = torch.rand(3, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.5
    with torch.no_grad():
        whole, of_chosen = model(tokens(), gaps), model.logits_at(tokens(), gaps, chosen)
    torch.testing.assert_close(of_chosen, whole[chosen], atol=1e-5, rtol=0)


@BOTH
def test_olmo_runs_the_checkpoint_as_its_own(kind: ModelConfig, tmp_path: Path) -> None:
    model = build(kind).eval()
    info = CheckpointInfo(step=1, tokens=0, seconds=0.0, run_id="0123")
    state = CheckpointState(weights=model.state_dict(), optimizer={})
    checkpoint = save_checkpoint(tmp_path, info, config=model.config, state=state, keep=1)
    loaded = load_model(checkpoint, CPU, max_position=40)  # other positions, the same biases
    assert torch.equal(last_logits(loaded, tokens(), in_order()), last_logits(model, tokens(), in_order()))
    stock = OLMo.from_checkpoint(str(checkpoint)).eval()
    with torch.no_grad():
        assert torch.equal(stock(tokens()).logits, model(tokens(), in_order()))


@pytest.mark.parametrize("positions", ["alibi", "none", "absolute"])
def test_positions_that_are_not_rotary_are_not_exported(positions: str) -> None:
    with pytest.raises(UserError, match=r"^model\.position_embedding: transformers has no model [^\n]*$"):
        to_transformers(build(dataclasses.replace(PLAIN, position_embedding=positions)))  # type: ignore[arg-type]


@pytest.mark.parametrize("pose", [PoseConfig(), PoseConfig(method="randpos", num_chunks=2)], ids=["pose", "randpos"])
def test_a_model_without_positions_has_no_pose(pose: PoseConfig) -> None:
    with pytest.raises(UserError, match=r"^model\.position_embedding = none: [^\n]* set pose\.num_chunks=1[^\n]*$"):
        Config(model=NO_POSITIONS, pose=pose)


@pytest.mark.parametrize("positions", ["alibi", "none"])
def test_a_scale_that_depends_on_the_number_of_keys_needs_rotary_positions(positions: str) -> None:
    with pytest.raises(UserError, match=r"attention_scale = log_keys: needs model\.position_embedding = rope"):
        dataclasses.replace(PLAIN, attention_scale="log_keys", position_embedding=positions)  # type: ignore[arg-type]


def test_bf16_is_refused_before_training_where_keys_hold_biases() -> None:
    lengths = ContextConfig(local_len=8, full_len=24)
    config = Config(model=ALIBI, context=lengths, influence=InfluenceConfig(precision="bf16", k=[1]))
    with pytest.raises(UserError, match=r"^influence\.precision = bf16: [^\n]*$"):
        check_before_training(config)
    check_before_training(dataclasses.replace(config, model=PLAIN))
    with pytest.raises(UserError, match=r"takes influence\.precision=fp32"):
        build(ALIBI).in_dtype(torch.bfloat16)
    assert build(NO_POSITIONS).in_dtype(torch.bfloat16).transformer.wte.weight.dtype == torch.bfloat16
