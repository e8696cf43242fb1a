"""Attention scores that grow with the logarithm of the number of keys (``model.attention_scale: log_keys``).

``reference.py`` has the formula. ``LOG_SCALED`` is one of the ``KINDS`` that paths and selectors are compared with it for.
"""

from __future__ import annotations

import dataclasses
import math
import re
from pathlib import Path

import pytest
import torch
import yaml
from olmo.exceptions import OLMoConfigurationError
from olmo.model import OLMo
from tiny_models import LOG_SCALED, PLAIN, VOCAB, build

from olmo_sparsity.config import Config, ContextConfig, ModelConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.export.conversion import to_transformers
from olmo_sparsity.model.checkpoint import CheckpointInfo, CheckpointState, load_model, save_checkpoint
from olmo_sparsity.model.olmo import OLMoWithPositions, olmo_model_config

ROW = 8  # tokens of a training row of ``build``
CPU = torch.device("cpu")


def last_logits(model: OLMoWithPositions, length: int) -> torch.Tensor:
    tokens = torch.arange(1, 1 + length)[None] % VOCAB
    with torch.no_grad():
        return model.last_logits(tokens, torch.arange(length)[None])


def test_behind_as_many_tokens_as_a_training_row_has_it_is_ordinary_attention() -> None:
    plain, scaled = (build(dataclasses.replace(kind, n_layers=1)).eval() for kind in (PLAIN, LOG_SCALED))
    differences = {
        length: float((last_logits(plain, length) - last_logits(scaled, length)).abs().max()) for length in (6, 8, 12)
    }
    assert differences[ROW] < 1e-5 < 1e-2 < min(differences[6], differences[12])


@pytest.mark.parametrize(("bos", "train_len"), [(False, None), (True, None), (True, 10)])
def test_a_training_row_counts_its_bos(bos: bool, train_len: int | None) -> None:
    config = Config(model=LOG_SCALED, context=ContextConfig(local_len=8, full_len=24, train_len=train_len, bos=bos))
    of_model = olmo_model_config(config, vocab_size=VOCAB, eos_id=0)
    assert of_model.log_scale_keys == (train_len or 8) + bos  # type: ignore[attr-defined]


def test_the_scores_of_a_query_are_multiplied_by_log_n_over_log_N() -> None:
    """In a model of one layer, as much is done by the query projection of the last token."""
    scaled, plain = (build(dataclasses.replace(kind, n_layers=1)).eval() for kind in (LOG_SCALED, PLAIN))
    length = 13
    with torch.no_grad():
        plain.transformer.blocks[0].att_proj.weight[: PLAIN.d_model] *= math.log(length) / math.log(ROW)
    torch.testing.assert_close(last_logits(scaled, length), last_logits(plain, length), atol=1e-5, rtol=0)


def saved(kind: ModelConfig, folder: Path) -> tuple[OLMoWithPositions, Path]:
    model = build(kind).eval()
    info = CheckpointInfo(step=1, tokens=0, seconds=0.0, run_id="0123")
    state = CheckpointState(weights=model.state_dict(), optimizer={})
    return model, save_checkpoint(folder, info, config=model.config, state=state, keep=1)


def test_a_checkpoint_carries_it_and_olmo_refuses_it(tmp_path: Path) -> None:
    model, checkpoint = saved(LOG_SCALED, tmp_path)
    loaded = load_model(checkpoint, CPU, max_position=40)  # other positions, the same N
    assert torch.equal(last_logits(loaded, 20), last_logits(model, 20))
    with pytest.raises(OLMoConfigurationError, match="log_scale_keys"):
        OLMo.from_checkpoint(str(checkpoint))


def test_a_checkpoint_with_a_constant_scale_does_not_name_it(tmp_path: Path) -> None:
    _, checkpoint = saved(PLAIN, tmp_path)
    assert "log_scale_keys" not in yaml.safe_load((checkpoint / "config.yaml").read_text())["model"]


def test_it_is_not_exported() -> None:
    with pytest.raises(UserError, match=re.escape("model.attention_scale = log_keys: transformers has no model")):
        to_transformers(build(LOG_SCALED))


def test_it_needs_rotary_positions() -> None:
    with pytest.raises(UserError, match=r"model\.attention_scale = log_keys: needs model\.position_embedding = rope"):
        dataclasses.replace(LOG_SCALED, position_embedding="absolute")
