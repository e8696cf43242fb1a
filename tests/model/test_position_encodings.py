"""Models without positions: against transformers and OLMo, what their position IDs do, checkpoints, refusals.

``reference.py`` has the formula.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import transformers
from olmo.model import OLMo
from tiny_models import NO_POSITIONS, PLAIN, VOCAB, build, converted, last_logits

from olmo_sparsity.config import Config, PoseConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.model.checkpoint import CheckpointInfo, CheckpointState, load_model, save_checkpoint

CPU = torch.device("cpu")
LENGTH = 12
LLAMA_LIKE = dataclasses.replace(PLAIN, n_heads=4, layer_norm_type="rms", layer_norm_with_affine=True)


def tokens() -> torch.Tensor:
    return torch.randint(1, VOCAB, (3, LENGTH), generator=torch.Generator().manual_seed(5))


def in_order() -> torch.Tensor:
    return torch.arange(LENGTH).expand(3, -1)


@torch.no_grad()
def test_logits_are_those_of_transformers() -> None:
    """SmolLM3 is a Llama that may leave out rotary positions."""
    model = build(dataclasses.replace(LLAMA_LIKE, position_embedding="none")).eval()
    same_weights = build(LLAMA_LIKE)
    same_weights.load_state_dict(model.state_dict())
    llama = converted(same_weights)
    config = transformers.SmolLM3Config(
        **{key: value for key, value in llama.config.to_dict().items() if key not in ("model_type", "architectures")},
        no_rope_layers=[0] * llama.config.num_hidden_layers,
        attn_implementation="eager",
    )
    theirs = transformers.SmolLM3ForCausalLM(config).eval()
    theirs.load_state_dict(llama.state_dict())
    expected = theirs(input_ids=tokens(), use_cache=False).logits
    torch.testing.assert_close(model(tokens(), in_order())[..., :VOCAB], expected, atol=1e-5, rtol=0)
    assert (llama(input_ids=tokens()).logits - expected).abs().max() > 1e-2


@torch.no_grad()
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


def test_the_logits_of_chosen_tokens_are_those_of_the_whole_row() -> None:
    model = build(NO_POSITIONS).eval()
    gaps = in_order() + 9 * (in_order() >= 5)
    chosen = torch.rand(3, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.5
    with torch.no_grad():
        whole, of_chosen = model(tokens(), gaps), model.logits_at(tokens(), gaps, chosen)
    torch.testing.assert_close(of_chosen, whole[chosen], atol=1e-5, rtol=0)


@torch.no_grad()
def test_olmo_runs_the_checkpoint_as_its_own(tmp_path: Path) -> None:
    model = build(NO_POSITIONS).eval()
    info = CheckpointInfo(step=1, tokens=0, seconds=0.0, run_id="0123")
    state = CheckpointState(weights=model.state_dict(), optimizer={})
    checkpoint = save_checkpoint(tmp_path, info, config=model.config, state=state, keep=1)
    loaded = load_model(checkpoint, CPU)
    assert torch.equal(last_logits(loaded, tokens(), in_order()), last_logits(model, tokens(), in_order()))
    stock = OLMo.from_checkpoint(str(checkpoint)).eval()
    with torch.no_grad():
        assert torch.equal(stock(tokens()).logits, model(tokens(), in_order()))


@pytest.mark.parametrize("positions", ["none", "absolute"])
def test_positions_that_are_not_rotary_are_not_exported(positions: str) -> None:
    with pytest.raises(UserError, match=r"^model\.position_embedding: transformers has no model [^\n]*$"):
        converted(build(dataclasses.replace(PLAIN, position_embedding=positions)))  # type: ignore[arg-type]


@pytest.mark.parametrize("pose", [PoseConfig(), PoseConfig(method="randpos", num_chunks=2)], ids=["pose", "randpos"])
def test_a_model_without_positions_has_no_pose(pose: PoseConfig) -> None:
    with pytest.raises(UserError, match=r"^model\.position_embedding = none: [^\n]* set pose\.num_chunks=1[^\n]*$"):
        Config(model=NO_POSITIONS, pose=pose)
