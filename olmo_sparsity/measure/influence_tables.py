"""The influence tables of one part, built from what was measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.measure.selection.window_influence import PartInfluence, SelectorOutcome
from olmo_sparsity.measure.visible.window_batch import TokenGroups
from olmo_sparsity.measure.work import num_evaluations
from olmo_sparsity.records.measured import MeasuredLengths
from olmo_sparsity.records.selectors import NO_GROUP, SELECTORS
from olmo_sparsity.tables.schemas import RESAMPLED, schemas
from olmo_sparsity.text.null_contexts import NullContexts
from olmo_sparsity.text.target_classes import target_class
from olmo_sparsity.text.vocabulary import token_texts
from olmo_sparsity.text.windows import Windows


@dataclass(frozen=True)
class InfluenceTables:
    """Builds the tables of each part of one measurement.

    Attributes:
        null_contexts: all windows of the measurement, with their null contexts.
        settings: what is measured.
        lengths: of the windows, and of a training row.
        tokenizer: of the windows.
        split: which split of the text the windows come from.
        train_overlap_W: bool; windows that share a sequence of tokens with the training text. None: that is not known.
    """

    null_contexts: NullContexts
    settings: InfluenceConfig
    lengths: MeasuredLengths
    tokenizer: Tokenizer
    split: str
    train_overlap_W: Optional[np.ndarray] = None

    @property
    def windows(self) -> Windows:
        """All windows of the measurement."""
        return self.null_contexts.windows

    @property
    def num_long_range(self) -> int:
        """M, the number of long-range tokens of a window."""
        return self.null_contexts.num_long_range

    def of_part(self, window_ids_W: np.ndarray, part: PartInfluence) -> dict[str, pa.Table]:
        """Return every table of the windows with these numbers (int64), by its name."""
        tables = {
            "windows": self._windows(window_ids_W, part),
            "selections": self._selections(window_ids_W, part),
        }
        return tables

    def _windows(self, window_ids_W: np.ndarray, part: PartInfluence) -> pa.Table:
        columns = {**self._text_columns(window_ids_W), **_group_columns(part), **_loss_columns(part, self.lengths)}
        schema = self._schema("windows")
        return pa.table({name: columns[name] for name in schema.names}, schema=schema)

    def _text_columns(self, window_ids_W: np.ndarray) -> dict[str, Any]:
        """Return the columns of ``windows`` that say which text the windows hold."""
        windows, store = self.windows, self.windows.store
        tokens_WT = windows.tokens(window_ids_W)  # the target last
        null_WT = self.null_contexts.window_tokens(window_ids_W)
        texts = [token_texts(self.tokenizer, tokens_T) for tokens_T in tokens_WT]
        null_texts = [
            token_texts(self.tokenizer, null_T[: self.num_long_range]) + words[self.num_long_range :]
            for null_T, words in zip(null_WT, texts, strict=True)
        ]
        document_W = windows.document_W[window_ids_W]
        return {
            "window_id": window_ids_W,
            "doc_id": windows.doc_ids(window_ids_W),
            "weight": windows.weight_W[window_ids_W],
            "source": store.source_of(document_W),
            "split": [self.split] * len(window_ids_W),
            "train_overlap": [None] * len(window_ids_W)
            if self.train_overlap_W is None
            else self.train_overlap_W[window_ids_W],
            "start_token": windows.start_W[window_ids_W] - store.begins_G[document_W],
            "token_ids": list(tokens_WT[:, :-1]),
            "token_texts": [row[:-1] for row in texts],
            "target_id": tokens_WT[:, -1],
            "target_text": [row[-1] for row in texts],
            "target_class": self._target_classes(tokens_WT, texts),
            "null_target_class": self._target_classes(null_WT, null_texts),
            "null_doc_id": self.null_contexts.doc_ids(window_ids_W),
            "null_token_ids": list(null_WT[:, : self.num_long_range]),
        }

    def _target_classes(self, tokens_WT: np.ndarray, texts: list[list[str]]) -> list[str]:
        """Return the classes of the targets, the last tokens of the rows."""
        return [
            target_class(
                tokens_T[:-1].tolist(),
                words[:-1],
                target_id=int(tokens_T[-1]),
                target_text=words[-1],
                num_long_range=self.num_long_range,
            )
            for tokens_T, words in zip(tokens_WT, texts, strict=True)
        ]

    def _selections(self, window_ids_W: np.ndarray, part: PartInfluence) -> pa.Table:
        """Return a row for each window and choice; the rows of a window stand together."""
        choices = [choice for name in self.settings.selectors for choice in _choices(part, name)]
        schema = self._schema("selections")
        tables = []
        for choice in choices:
            columns = self._columns_of_choice(choice, window_ids_W)
            tables.append(pa.table({name: columns[name] for name in schema.names}, schema=schema))
        if not tables:
            return schema.empty_table()
        rows_WC = np.arange(len(choices) * len(window_ids_W)).reshape(len(choices), -1).T
        return pa.concat_tables(tables).combine_chunks().take(rows_WC.ravel()).combine_chunks()

    def _columns_of_choice(self, choice: _Choice, window_ids_W: np.ndarray) -> dict[str, Any]:
        """Return the columns of ``selections`` for one choice, a row for each window."""
        name, outcome, groups, settings = choice.selector, choice.outcome, choice.groups, self.settings
        num_windows, groups_WS = outcome.groups_WS.shape[0], outcome.groups_WS
        is_group_WS = groups_WS != NO_GROUP
        first_WS = np.take_along_axis(groups.first_WI, groups_WS, axis=1)
        tokens_WS = groups.num_tokens(np.arange(num_windows), groups_WS)
        positions_P, tokens_W = groups.positions(np.arange(num_windows), groups_WS), tokens_WS.sum(axis=1)
        num_groups_W = groups.num_groups_W
        num_visible_WK = tokens_WS.cumsum(axis=1)[:, np.asarray(settings.k) - 1]
        cost = {n: num_evaluations(name, n, settings=settings) for n in np.unique(num_groups_W).tolist()}

        def constant(value: Any) -> list[Any]:
            return [value] * num_windows

        return {
            "window_id": window_ids_W,
            "doc_id": self.windows.doc_ids(window_ids_W),
            "selector": constant(name),
            "context": constant(choice.context),
            "draw": constant(choice.draw),
            "sees_target": constant(SELECTORS[name].sees_target),
            "num_evaluations": [cost[n] for n in num_groups_W.tolist()],
            "positions": _lists(positions_P, tokens_W),
            "distance_tokens": _lists(self.windows.full_len - positions_P, tokens_W),
            "scores": _lists(outcome.scores_WI[groups.exists_WI], num_groups_W),
            "k": constant(settings.k),
            "group_first": _lists(first_WS[is_group_WS], is_group_WS.sum(axis=1)),
            "group_last": _lists((first_WS + tokens_WS - 1)[is_group_WS], is_group_WS.sum(axis=1)),
            "num_tokens": _lists_of_k(num_visible_WK),
            "loss_sparse_nats": _lists_of_k(outcome.loss_sparse_WK),
            "gain_sparse_nats": _lists_of_k(choice.loss_short_W[:, None] - outcome.loss_sparse_WK),
            "kl_sparse_nats": constant(None) if outcome.kl_sparse_WK is None else _lists_of_k(outcome.kl_sparse_WK),
            "kl_short_to_sparse_nats": constant(None)
            if outcome.kl_short_to_sparse_WK is None
            else _lists_of_k(outcome.kl_short_to_sparse_WK),
        }

    def _schema(self, table: str) -> pa.Schema:
        return schemas(self.num_long_range, self.settings.unit)[table]


@dataclass(frozen=True)
class _Choice:
    """What one selector chose in all windows of a part, under one context and for one label."""

    selector: str
    context: str
    draw: int
    loss_short_W: np.ndarray
    outcome: SelectorOutcome
    groups: TokenGroups  # that it chose among


def _group_columns(part: PartInfluence) -> dict[str, Any]:
    """Return the columns of ``windows`` that say which long-range tokens make a group."""
    return {
        name: [
            first_I[:num_groups]
            for first_I, num_groups in zip(groups.first_WI, groups.num_groups_W.tolist(), strict=True)
        ]
        for name, groups in (
            ("group_first", part.contexts["real"].groups),
            ("null_group_first", part.contexts["null"].groups),
        )
    }


def _loss_columns(part: PartInfluence, lengths: MeasuredLengths) -> dict[str, Any]:
    """Return the columns of ``windows`` that hold losses and divergences."""
    real, null = part.contexts["real"], part.contexts["null"]
    num_windows = len(part.loss_short_W)
    resampled, train_len = real.resampled, lengths.train_len
    row_W = None if train_len is None else part.loss_last_W[min(train_len, lengths.full_len)]
    return {
        "loss_short_nats": part.loss_short_W,
        "loss_long_nats": real.loss_long_W,
        "gain_long_nats": part.loss_short_W - real.loss_long_W,
        "null_loss_long_nats": null.loss_long_W,
        "null_gain_long_nats": part.loss_short_W - null.loss_long_W,
        "loss_short_no_gap_nats": part.loss_last_W[lengths.local_len],
        "last_n": [list(part.loss_last_W)] * num_windows,
        "loss_last_nats": _stacked([*part.loss_last_W.values()], num_windows),
        "gain_beyond_nats": [None] * num_windows if row_W is None else row_W - real.loss_long_W,
        "kl_short_nats": real.kl_short_W,
        "null_kl_short_nats": null.kl_short_W,
        "loss_damped_nats": list(real.loss_damped_WB),
        "kl_damped_nats": list(real.kl_damped_WB),
        "null_loss_damped_nats": list(null.loss_damped_WB),
        "null_kl_damped_nats": list(null.kl_damped_WB),
        "kl_short_to_long_nats": part.kl_short_to_long_W,
        "entropy_short_nats": part.entropy_short_W,
        "resampled_target_ids": _stacked([draw.label_ids_W for draw in resampled], num_windows),
        "resampled_loss_short_nats": _stacked([draw.loss_short_W for draw in resampled], num_windows),
        "resampled_loss_long_nats": _stacked([draw.loss_long_W for draw in resampled], num_windows),
    }


def _choices(part: PartInfluence, selector: str) -> list[_Choice]:
    """Return the choices of a selector, in the order of their rows."""
    choices = [
        _Choice(selector, context, 0, part.loss_short_W, influence.outcomes[selector], influence.groups)
        for context, influence in part.contexts.items()
    ]
    for context, influence in part.contexts.items():
        for draw, resampled in enumerate(influence.resampled):
            if selector in resampled.outcomes:
                outcome, name = resampled.outcomes[selector], RESAMPLED[context]
                choices.append(_Choice(selector, name, draw, resampled.loss_short_W, outcome, influence.groups))
    return choices


def _lists(values: np.ndarray, lengths_W: np.ndarray) -> pa.ListArray:
    """Return consecutive values as lists of these lengths, with null in place of NaN."""
    is_nan = np.isnan(values)
    offsets = np.concatenate([[0], np.cumsum(lengths_W)]).astype(np.int32)
    dtype = np.int32 if np.issubdtype(values.dtype, np.integer) else np.float32
    return pa.ListArray.from_arrays(offsets, pa.array(values.astype(dtype), mask=is_nan if is_nan.any() else None))


def _lists_of_k(values_WK: np.ndarray) -> pa.ListArray:
    """Return the values of each window at every k as a list."""
    return _lists(values_WK.ravel(), np.full(len(values_WK), values_WK.shape[1]))


def _stacked(values: Sequence[np.ndarray], num_windows: int) -> list[np.ndarray]:
    """Return for each window its entry of every array."""
    return list(np.stack(values, axis=1)) if values else [np.empty(0)] * num_windows
