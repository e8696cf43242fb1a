"""The influence tables of one part, built from what was measured."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.measure.selectors import SCORERS, num_evaluations
from olmo_sparsity.measure.window_influence import PartInfluence
from olmo_sparsity.tables.schemas import schemas
from olmo_sparsity.text.target_classes import target_class
from olmo_sparsity.text.vocabulary import token_texts
from olmo_sparsity.text.windows import Windows


@dataclass(frozen=True)
class InfluenceTables:
    """Builds the tables of each part of one measurement.

    Attributes:
        windows: all windows of the measurement.
        settings: what is measured.
        tokenizer: of the windows.
        split: which split of the text the windows come from.
        num_long_range: M, the number of long-range tokens of a window.
    """

    windows: Windows
    settings: InfluenceConfig
    tokenizer: Tokenizer
    split: str
    num_long_range: int

    def of_part(self, window_ids_W: np.ndarray, part: PartInfluence) -> dict[str, pa.Table]:
        """Return every table of the windows with these numbers (int64), by its name."""
        tables = {
            "windows": self._windows(window_ids_W, part),
            "selections": self._selections(window_ids_W, part),
        }
        if self.settings.save_candidates:
            tables["candidates"] = self._candidates(window_ids_W, part)
        if self.settings.screen is not None:
            tables["screening"] = self._screening(window_ids_W, part)
        return tables

    def _windows(self, window_ids_W: np.ndarray, part: PartInfluence) -> pa.Table:
        windows, store = self.windows, self.windows.store
        tokens_WT = windows.tokens(window_ids_W)  # the target last
        texts = [token_texts(self.tokenizer, tokens_T) for tokens_T in tokens_WT]
        document_W = windows.document_W[window_ids_W]
        null_document_W = store.document_of(windows.null_start_W[window_ids_W])
        loss_short_W = part.loss_short_W
        loss_long_W, null_loss_long_W = part.contexts["real"].loss_long_W, part.contexts["null"].loss_long_W
        columns = {
            "window_id": window_ids_W,
            "doc_id": windows.doc_ids(window_ids_W),
            "source": store.source_of(document_W),
            "split": [self.split] * len(window_ids_W),
            "start_token": windows.start_W[window_ids_W] - store.begins_G[document_W],
            "token_ids": list(tokens_WT[:, :-1]),
            "token_texts": [row[:-1] for row in texts],
            "target_id": tokens_WT[:, -1],
            "target_text": [row[-1] for row in texts],
            "target_class": [
                target_class(
                    tokens_T[:-1].tolist(),
                    words[:-1],
                    target_id=int(tokens_T[-1]),
                    target_text=words[-1],
                    num_long_range=self.num_long_range,
                )
                for tokens_T, words in zip(tokens_WT, texts, strict=True)
            ],
            "null_doc_id": [f"{int(i):016x}" for i in store.doc_ids_G[null_document_W]],
            "null_token_ids": list(windows.null_tokens(window_ids_W, self.num_long_range)),
            "loss_short_nats": loss_short_W,
            "loss_long_nats": loss_long_W,
            "gain_long_nats": loss_short_W - loss_long_W,
            "null_loss_long_nats": null_loss_long_W,
            "null_gain_long_nats": loss_short_W - null_loss_long_W,
        }
        return pa.table(columns, schema=self._schema("windows"))

    def _selections(self, window_ids_W: np.ndarray, part: PartInfluence) -> pa.Table:
        doc_ids = self.windows.doc_ids(window_ids_W)
        scores = {
            (name, context): _with_nulls(outcome.scores_WM)
            for context, influence in part.contexts.items()
            for name, outcome in influence.outcomes.items()
        }
        rows = []
        for w, window_id in enumerate(window_ids_W.tolist()):
            for name in self.settings.selectors:
                for context, influence in part.contexts.items():
                    outcome = influence.outcomes[name]
                    positions_S = outcome.positions_WS[w]
                    loss_sparse_K = outcome.loss_sparse_WK[w]
                    rows.append(
                        {
                            "window_id": window_id,
                            "doc_id": doc_ids[w],
                            "selector": name,
                            "context": context,
                            "sees_target": SCORERS[name].sees_target,
                            "num_evaluations": num_evaluations(name, self.num_long_range, settings=self.settings),
                            "positions": positions_S,
                            "distance_tokens": self.windows.full_len - positions_S,
                            "scores": scores[name, context][w],
                            "k": self.settings.k,
                            "loss_sparse_nats": loss_sparse_K,
                            "gain_sparse_nats": part.loss_short_W[w] - loss_sparse_K,
                        }
                    )
        return pa.Table.from_pylist(rows, schema=self._schema("selections"))

    def _candidates(self, window_ids_W: np.ndarray, part: PartInfluence) -> pa.Table:
        losses = {}
        for context, influence in part.contexts.items():
            assert influence.loss_single_WM is not None, "measured where save_candidates is set"
            losses[context] = _with_nulls(influence.loss_single_WM)
        rows = [
            {"window_id": window_id, "context": context, "loss_single_nats": losses[context][w]}
            for w, window_id in enumerate(window_ids_W.tolist())
            for context in losses
        ]
        return pa.Table.from_pylist(rows, schema=self._schema("candidates"))

    def _screening(self, window_ids_W: np.ndarray, part: PartInfluence) -> pa.Table:
        doc_ids = self.windows.doc_ids(window_ids_W)
        rows = [
            {
                "window_id": window_ids_W[w],
                "doc_id": doc_ids[w],
                "selector": name,
                "context": context,
                "k": self.settings.k,
                "recall": cost.recall_wK[i],
                "gain_lost_nats": cost.gain_lost_wK[i],
            }
            for context, check in part.screening.items()
            for name, cost in check.costs.items()
            for i, w in enumerate(check.sample_w.tolist())
        ]
        return pa.Table.from_pylist(rows, schema=self._schema("screening"))

    def _schema(self, table: str) -> pa.Schema:
        return schemas(self.num_long_range)[table]


def _with_nulls(values_WM: np.ndarray) -> list[Any]:
    """Return the rows with None in place of NaN: a missing value is null in the tables."""
    if not np.isnan(values_WM).any():
        return list(values_WM)
    return [[None if np.isnan(value) else value for value in row] for row in values_WM.tolist()]
