"""Tiny models of two kinds, built in memory."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from olmo_sparsity.config import Config, ContextConfig, ModelConfig
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, olmo_model_config

PLAIN = ModelConfig(d_model=32, n_heads=2, n_layers=3, mlp_ratio=8, init_std=0.2)


NORMED = dataclasses.replace(
    PLAIN, attention_layer_norm=True, layer_norm_type="rms", layer_norm_with_affine=True, weight_tying=False
)


LOG_SCALED = dataclasses.replace(PLAIN, attention_scale="log_keys")


VOCAB, EOS = 100, 0


OLMO_KINDS = pytest.mark.parametrize("kind", [PLAIN, NORMED], ids=["olmo1", "qk-norm"])
KINDS = pytest.mark.parametrize("kind", [PLAIN, NORMED, LOG_SCALED], ids=["olmo1", "qk-norm", "log-keys"])


def build(kind: ModelConfig, seed: int = 0, *, positions: int = 24, vocab_size: int = VOCAB) -> OLMoWithPositions:
    config = Config(model=kind, context=ContextConfig(local_len=8, full_len=positions))
    model = build_model(olmo_model_config(config, vocab_size=vocab_size, eos_id=EOS), seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight") or name.endswith("ln_f.weight"):
            torch.nn.init.uniform_(
                parameter, 0.5, 1.5, generator=generator
            )  # with ones, a missing norm would not be noticed
    return model
