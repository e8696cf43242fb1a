"""Window scores of tiny models."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from tiny_models import VOCAB
from tiny_stores import tiny_store
from tiny_windows import LOCAL, windows
from tokenizers import Tokenizer, models

from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import short_log_probs
from olmo_sparsity.measure.visible.visibility import Visibility
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.model.olmo import OLMoWithPositions

W, MAX_K, MASKS = 3, 4, 40
# Token 7 ends a sentence; token i is a word W<i> otherwise.
WORDS = {f" W{token}" if token != 7 else " end.": token for token in range(VOCAB)}
TOKENIZER = Tokenizer(models.WordLevel(WORDS, unk_token=" W0"))
STORE = dataclasses.replace(
    tiny_store([[token] * (token % 9) for token in range(1, VOCAB)]), tokens_sha256="of scored windows"
)


def make_scores(
    model: OLMoWithPositions,
    path: str = "compact",
    *,
    num: int = W,
    with_kl: bool = True,
    visibility: Visibility = "hidden",
    batch_tokens: int = 65_536,
    **batch: Any,
) -> WindowScores:
    """Return the scores of ``num`` tiny windows; ``batch`` overrides fields of their ``WindowBatch``."""
    tokens_WT, targets_W = windows(num)
    evaluator = Evaluator(model, LOCAL, path=path, visibility=visibility, batch_tokens=batch_tokens)
    of_text = {"tokenizer": TOKENIZER, "store": STORE}
    fields = {"window_ids_W": np.arange(num), "context": "real", "seed": 0, **of_text, **batch}
    predictions = Predictions(
        evaluator,
        WindowBatch(tokens_WT, targets_W, **fields),
        log_p_short_WV=short_log_probs(evaluator, tokens_WT),
        num_lasso_masks=MASKS,
        with_kl=with_kl,
    )
    return WindowScores(predictions, max_k=MAX_K)


def with_other_targets(scores: WindowScores, num_entries: int) -> WindowScores:
    """Return scores of the same windows with other targets, and nothing computed yet."""
    windows = dataclasses.replace(scores.windows, targets_W=(scores.windows.targets_W + 1) % num_entries)
    return dataclasses.replace(scores, predictions=dataclasses.replace(scores.predictions, windows=windows))
