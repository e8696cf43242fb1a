"""Learned absolute positions: against OLMo's own, and their logits."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from olmo.model import OLMo
from tiny_models import NORMED, PLAIN, VOCAB, build

from olmo_sparsity.config import ModelConfig
from olmo_sparsity.model.olmo import OLMoWithPositions

ABSOLUTE = dataclasses.replace(PLAIN, position_embedding="absolute")


@pytest.fixture(params=[ABSOLUTE, dataclasses.replace(NORMED, position_embedding="absolute")], ids=["olmo1", "qk-norm"])
def model(request: pytest.FixtureRequest) -> OLMoWithPositions:
    kind: ModelConfig = request.param
    return build(kind).eval().requires_grad_(False)


def tokens(rows: int = 3, length: int = 12) -> torch.Tensor:
    return torch.randint(1, VOCAB, (rows, length), generator=torch.Generator().manual_seed(5))


def test_at_consecutive_positions_it_is_olmo(model: OLMoWithPositions) -> None:
    plain = OLMo(model.config)
    plain.load_state_dict(model.state_dict())
    positions = torch.arange(12).expand(3, -1)
    torch.testing.assert_close(model(tokens(), positions), plain(tokens()).logits, rtol=0, atol=0)


def test_a_position_id_decides_what_is_added_to_its_token(model: OLMoWithPositions) -> None:
    positions = torch.tensor([[3, 3, 0, 9, 20, 1, 1, 7, 2, 2, 5, 4]]).expand(3, -1)
    shuffled = torch.randperm(11, generator=torch.Generator().manual_seed(0))
    order = torch.cat([shuffled, torch.tensor([11])])
    before = model(tokens(), positions, last_logits_only=True)
    # Nothing but the IDs tells the order of the tokens that the last one sees, in the first layer.
    one_layer = build(dataclasses.replace(ABSOLUTE, n_layers=1)).eval()
    with torch.no_grad():
        expected = one_layer(tokens(), positions, last_logits_only=True)
        actual = one_layer(tokens()[:, order], positions[:, order], last_logits_only=True)
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(tokens(), positions.flip(1), last_logits_only=True), before, atol=1e-3)


def test_position_logits_are_the_last_state_times_the_embedding_of_positions(model: OLMoWithPositions) -> None:
    positions = torch.arange(12).expand(3, -1) + 4
    logits, of_positions = model.logits_and_position_logits(tokens(), positions)
    torch.testing.assert_close(logits, model(tokens(), positions), rtol=0, atol=0)
    assert of_positions.shape == (3, 12, model.max_position)
    out = OLMo.forward(model, tokens(), output_hidden_states=True)
    expected = F.linear(out.hidden_states[-1], model.transformer.wpe.weight)
    torch.testing.assert_close(of_positions, expected, rtol=0, atol=0)
    last = model.logits_and_position_logits(tokens(), positions, last_only=True)
    torch.testing.assert_close(last[1][:, 0], of_positions[:, -1], rtol=1e-4, atol=1e-5)


def test_the_name_of_the_parameter_is_olmos(tmp_path: Path) -> None:
    assert "transformer.wpe.weight" in build(ABSOLUTE).state_dict()
    assert "transformer.wpe.weight" not in build(PLAIN).state_dict()
