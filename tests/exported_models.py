"""Helpers of the tests of exported models."""

from __future__ import annotations

import numpy as np
import torch
from tiny_models import last_logits

from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.train.positions import pose_positions

TEXTS = [
    "The river's  bridge,   12.5 km\n\n\tlong; naïve e\u0301 日本語",
    " ends<|endoftext|>begins <|padding|> |||EMAIL_ADDRESS||| <|im_start|>",
    "a",
]


def rows(num_rows: int, length: int, vocab_size: int, last: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(0)
    tokens = torch.from_numpy(rng.integers(0, vocab_size, (num_rows, length)))
    return tokens, torch.from_numpy(
        pose_positions(rng, num_rows, row_len=length, max_position=last, num_chunks=min(4, length))
    )


def rollout(model: OLMoWithPositions, tokens_BT: torch.Tensor, num_new: int) -> torch.Tensor:
    """Append the most likely token ``num_new`` times. EOS ends a row and then pads it."""
    ended = torch.zeros(len(tokens_BT), dtype=torch.bool)
    for _ in range(num_new):
        positions = torch.arange(tokens_BT.shape[1]).expand(len(tokens_BT), -1)
        chosen = last_logits(model, tokens_BT, positions).argmax(-1).masked_fill(ended, model.config.eos_token_id)
        tokens_BT = torch.cat([tokens_BT, chosen[:, None]], dim=1)
        ended |= chosen == model.config.eos_token_id
        if ended.all():
            break
    return tokens_BT
