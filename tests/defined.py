"""Predictions under visible sets by definition: transformers runs whole windows under masks that are written out by entry."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np
import torch
from transformers_models import VOCAB

LOCAL, FULL, M = 6, 22, 16
PATHS = ("compact", "plain", "masked")


def windows(num: int, *, seed: int = 3) -> tuple[torch.Tensor, torch.Tensor]:
    """Random windows, int64 [num, FULL], and their targets, [num]."""
    drawn = torch.from_numpy(np.random.default_rng(seed).integers(3, VOCAB, (num, FULL + 1)))
    return drawn[:, :-1].contiguous(), drawn[:, -1].contiguous()


def random_sets(num: int, *, seed: int = 0) -> torch.Tensor:
    """Random visible sets of all sizes, bool [num, M]; the first two are nothing and everything."""
    rng = np.random.default_rng(seed)
    sets = rng.random((num, M)) < rng.random((num, 1))
    sets[0], sets[1] = False, True
    return torch.from_numpy(sets)


@torch.no_grad()
def log_probs(
    raw: Any,
    tokens_RT: torch.Tensor,
    gates_RM: torch.Tensor,
    *,
    visibility: str = "hidden",
    anchor_id: Optional[int] = None,
) -> torch.Tensor:
    """Log-probabilities of the next token [R, V].

    A gate multiplies the weight of attention to a long-range token before the softmax: 0 and False hide it, 1 and True show it.
    """
    front, num_far = int(anchor_id is not None), gates_RM.shape[1]
    if anchor_id is not None:
        tokens_RT = torch.cat([torch.full_like(tokens_RT[:, :1], anchor_id), tokens_RT], dim=1)
    length, lowest = tokens_RT.shape[1], torch.finfo(raw.dtype).min
    log_gates_RM = gates_RM.to(raw.dtype).log().clamp(min=lowest)
    bias_RTT = torch.full((len(tokens_RT), length, length), lowest, dtype=raw.dtype)
    for reader in range(length):
        for read in range(reader + 1):
            is_far = front <= read < front + num_far
            is_gated = is_far and read != reader and (visibility == "hidden" or reader >= front + num_far)
            bias_RTT[:, reader, read] = log_gates_RM[:, read - front] if is_gated else 0.0
    config, mask = raw.config, bias_RTT[:, None]
    window = getattr(config, "sliding_window", None)
    if window is not None and any(
        kind == "sliding_attention" for kind in getattr(config, "layer_types", None) or ["sliding_attention"]
    ):
        places = torch.arange(length)
        near = mask.masked_fill(places[:, None] - places >= window, lowest)
        mask = near if raw.config.model_type == "mistral" else {"full_attention": mask, "sliding_attention": near}
    positions = torch.arange(length).expand_as(tokens_RT)
    logits: torch.Tensor = raw(input_ids=tokens_RT, position_ids=positions, attention_mask=mask, use_cache=False).logits
    return logits[:, -1].log_softmax(dim=-1)


def kl(log_p: torch.Tensor, log_q: torch.Tensor) -> np.ndarray:
    """KL(p, q) over the last dimension."""
    log_p, log_q = log_p.double(), log_q.double()
    found: np.ndarray = (log_p.exp() * (log_p - log_q)).sum(dim=-1).numpy()
    return found
