"""Tiny models of several kinds, built in memory."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import torch

from olmo_sparsity.config import Config, ContextConfig, ModelConfig, PoseConfig
from olmo_sparsity.model.convert import to_transformers
from olmo_sparsity.model.olmo import OLMoWithPositions, build_model, olmo_model_config
from olmo_sparsity.train.positions import pose_positions

VOCAB, EOS = 100, 0
PLAIN = ModelConfig(d_model=32, n_heads=2, n_layers=3, mlp_ratio=8, init_std=0.2)
NORMED = dataclasses.replace(PLAIN, attention_layer_norm=True, layer_norm_type="rms", weight_tying=False)
NO_POSITIONS = dataclasses.replace(PLAIN, position_embedding="none")
OF_OLMO = {"olmo1": PLAIN, "qk-norm": NORMED, "no-positions": NO_POSITIONS}


def build(kind: ModelConfig, seed: int = 0, *, positions: int = 24, vocab_size: int = VOCAB) -> OLMoWithPositions:
    pose = PoseConfig(num_chunks=1 if kind.position_embedding == "none" else 2)
    config = Config(model=kind, context=ContextConfig(local_len=8, full_len=positions), pose=pose)
    model = build_model(olmo_model_config(config, vocab_size=vocab_size, eos_id=EOS), seed)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight") or name.endswith("ln_f.weight"):
            # With ones, a missing norm would not be noticed.
            torch.nn.init.uniform_(parameter, 0.5, 1.5, generator=generator)
    return model


def rows(num_rows: int, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Random tokens, and position IDs with gaps, below 24."""
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.integers(1, VOCAB, (num_rows, length)))
    positions = pose_positions(rng, num_rows, row_len=length, max_position=24, num_chunks=min(4, length))
    return tokens, torch.from_numpy(positions)


def last_logits(model: OLMoWithPositions, tokens_BT: torch.Tensor, positions_BT: torch.Tensor) -> torch.Tensor:
    """Logits of the next token without the padding of the vocabulary, [B, V]."""
    return model(tokens_BT, positions_BT, last_logits_only=True)[:, 0, : model.vocab_size]


def converted(model: OLMoWithPositions, **named: Any) -> Any:
    """Return the model as one of transformers."""
    return to_transformers(dataclasses.asdict(model.config), model.state_dict(), **named)
