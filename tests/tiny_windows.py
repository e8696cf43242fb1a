"""Windows of random tokens for tiny models."""

from __future__ import annotations

import numpy as np
import torch
from tiny_models import VOCAB

LOCAL, FULL, M = 6, 22, 16


PATHS = ("compact", "plain", "masked")


def windows(num: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(3)
    drawn = torch.from_numpy(rng.integers(1, VOCAB, (num, FULL + 1)))
    return drawn[:, :-1].contiguous(), drawn[:, -1].contiguous()
