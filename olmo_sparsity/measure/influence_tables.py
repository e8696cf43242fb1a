"""The rows of the influence tables, from what was measured."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from tokenizers import Tokenizer

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.measure.scores import CONTEXTS
from olmo_sparsity.measure.selectors import SCREENED, SELECTORS
from olmo_sparsity.measure.window_influence import Measured, Screening
from olmo_sparsity.tables.schemas import schemas
from olmo_sparsity.text.target_classes import target_class
from olmo_sparsity.text.vocabulary import token_texts
from olmo_sparsity.text.windows import Windows


def num_evaluations(name: str, num_long_range: int, settings: InfluenceConfig) -> int:
    """What a selector's scores cost in each window, in forward passes over one row."""
    cost = SELECTORS[name].num_evaluations
    rest = (max(settings.k), settings.lasso_masks)
    if settings.screen is None or name not in SCREENED:
        return cost(num_long_range, *rest)
    ranking = SELECTORS["gradient"].num_evaluations if settings.screen_by == "gradient" else cost
    return cost(settings.screen, *rest) + ranking(num_long_range, *rest)


def _scores_column(scores_WM: np.ndarray) -> list[Any]:
    """Missing is null, not NaN."""
    if not np.isnan(scores_WM).any():
        return list(scores_WM)
    return [[None if np.isnan(score) else score for score in row] for row in scores_WM.tolist()]


def part_columns(
    windows: Windows,
    chosen: np.ndarray,
    loss_short: np.ndarray,
    measured: dict[str, Measured],
    screening: dict[str, Screening],
    settings: InfluenceConfig,
    tokenizer: Tokenizer,
    split: str,
    local_len: int,
) -> dict[str, dict[str, Any]]:
    """The columns of every table for one part."""
    store, full_len = windows.store, windows.full_len
    num_long_range = full_len - local_len
    tokens = windows.tokens(chosen)
    document = windows.document_W[chosen]
    doc_ids = windows.doc_ids(chosen)
    null_document = store.document_of(windows.null_start_W[chosen])
    real, null = measured["real"], measured["null"]
    texts = [token_texts(tokenizer, row) for row in tokens]
    columns: dict[str, dict[str, Any]] = {}
    columns["windows"] = {
        "window_id": chosen,
        "doc_id": doc_ids,
        "source": store.source_of(document),
        "split": [split] * len(chosen),
        "start_token": windows.start_W[chosen] - store.begins_G[document],
        "token_ids": list(tokens[:, :-1]),
        "token_texts": [row[:-1] for row in texts],
        "target_id": tokens[:, -1],
        "target_text": [row[-1] for row in texts],
        "target_class": [
            target_class(
                row[:-1].tolist(),
                words[:-1],
                target_id=int(row[-1]),
                target_text=words[-1],
                num_long_range=num_long_range,
            )
            for row, words in zip(tokens, texts, strict=True)
        ],
        "null_doc_id": [f"{int(i):016x}" for i in store.doc_ids_G[null_document]],
        "null_token_ids": list(windows.null_tokens(chosen, num_long_range)),
        "loss_short_nats": loss_short,
        "loss_long_nats": real.loss_long,
        "gain_long_nats": loss_short - real.loss_long,
        "null_loss_long_nats": null.loss_long,
        "null_gain_long_nats": loss_short - null.loss_long,
    }
    rows: list[dict[str, Any]] = []
    scores = {(n, c): _scores_column(measured[c].scores[n]) for n in settings.selectors for c in CONTEXTS}
    for w, window_id in enumerate(chosen.tolist()):
        for name in settings.selectors:
            for context in CONTEXTS:
                one = measured[context]
                positions = one.positions[name][w]
                rows.append(
                    {
                        "window_id": window_id,
                        "doc_id": doc_ids[w],
                        "selector": name,
                        "context": context,
                        "sees_target": SELECTORS[name].sees_target,
                        "num_evaluations": num_evaluations(name, num_long_range, settings),
                        "positions": positions,
                        "distance_tokens": full_len - positions,
                        "scores": scores[name, context][w],
                        "k": settings.k,
                        "loss_sparse_nats": one.loss_sparse[name][w],
                        "gain_sparse_nats": loss_short[w] - one.loss_sparse[name][w],
                    }
                )
    columns["selections"] = {key: [row[key] for row in rows] for key in rows[0]}
    if settings.save_candidates:
        singles = [_scores_column(cast(np.ndarray, measured[context].loss_single)) for context in CONTEXTS]
        columns["candidates"] = {
            "window_id": np.repeat(chosen, len(CONTEXTS)),
            "context": list(CONTEXTS) * len(chosen),
            "loss_single_nats": [row for rows in zip(*singles, strict=True) for row in rows],
        }
    if settings.screen is not None:
        rows = [
            {
                "window_id": chosen[w],
                "doc_id": doc_ids[w],
                "selector": name,
                "context": context,
                "k": settings.k,
                "recall": one.recall[name][i],
                "gain_lost_nats": one.gain_lost[name][i],
            }
            for context, one in screening.items()
            for name in one.recall
            for i, w in enumerate(one.windows.tolist())
        ]
        names = schemas(num_long_range)["screening"].names
        columns["screening"] = {name: [row[name] for row in rows] for name in names}
    return columns
