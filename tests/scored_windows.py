"""Tiny windows with what selectors ask of them."""

from __future__ import annotations

import numpy as np
import torch
from tiny_windows import LOCAL, windows

from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.losses import log_probs
from olmo_sparsity.measure.scores import WindowScores
from olmo_sparsity.model.olmo import OLMoWithPositions

W, MAX_K, MASKS = 3, 4, 40


def scored(model: OLMoWithPositions, path: str = "compact", num: int = W, **changes: object) -> WindowScores:
    tokens, targets = windows(num)
    evaluator = Evaluator(model, LOCAL, path)
    short = log_probs(evaluator, tokens, torch.zeros(num, 0, dtype=torch.int64))
    fields = {"window_ids": np.arange(num), "context": "real", "seed": 0, "max_k": MAX_K, "lasso_masks": MASKS}
    return WindowScores(evaluator, tokens, targets, short, **{"with_kl": True, **fields, **changes})  # type: ignore[arg-type]
