"""Measures windows: which long-range tokens are influential, and how much loss returns when they are unmasked; two tables.

A selector that sees the target gains even where the long-range tokens hold nothing: among many candidates it picks those that
happen to raise the probability of this target. This *optimism* of its gain is measured on labels drawn from the short
prediction: the gain of a choice on the label that it was made for, minus its mean gain on another one.

Letters of shapes: W windows, I candidates, S chosen ones, K numbers of unmasked candidates, A labels, V vocabulary.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer

from olmo_sparsity.config import InfluenceConfig, Lengths
from olmo_sparsity.measure.engine import LOGIT_ELEMENTS, Engine
from olmo_sparsity.measure.scores import CONTEXTS, Readings, Scores, divergence, surprisals
from olmo_sparsity.selectors import NULL_DRAWS, SELECTORS, rank
from olmo_sparsity.tables import DAMPING, RESAMPLED, schemas
from olmo_sparsity.text.classes import target_class
from olmo_sparsity.text.nulls import NullContexts
from olmo_sparsity.text.tokenizer import token_texts
from olmo_sparsity.text.units import group_numbers

RESAMPLED_LABELS = 6  # purpose of a random generator; a change would change the tables
RESAMPLED_CONTROL = "random"  # chooses without the label, so its optimism must be 0


@dataclass(frozen=True)
class Measurement:
    """All windows of a measurement, and how they are measured."""

    engine: Engine
    null_contexts: NullContexts
    settings: InfluenceConfig
    lengths: Lengths
    tokenizer: Tokenizer
    split: str
    train_overlap_W: Optional[np.ndarray] = None  # bool; windows that share text with training; None: not known

    @property
    def needs(self) -> frozenset[str]:
        """Values of layers and heads that the selectors read."""
        return frozenset().union(*(SELECTORS[name].needs for name in self.settings.selectors))

    def tables_of(self, window_ids_W: np.ndarray) -> dict[str, pa.Table]:
        """The tables ``windows`` and ``selections`` of the windows with these numbers."""
        windows, selections = [], []
        for ids_W in self._batches(window_ids_W):
            contexts, rows = self.scores(ids_W), dict[tuple[Any, ...], pa.Table]()
            for scores in contexts.values():
                choices: dict[tuple[str, int], np.ndarray] = {}  # by selector and label, [W, I]
                for label, name in itertools.product(range(scores.labels_WA.shape[1]), self.settings.selectors):
                    selector = SELECTORS[name]
                    if label == 0 or selector.sees_target:
                        asked = scores.for_label(label if selector.sees_target else None)
                        choices[name, label] = selector.function(asked)
                    elif name == RESAMPLED_CONTROL:
                        choices[name, label] = choices[name, 0]
                rows |= self._selections(scores, choices)
            tables = [rows[place] for place in sorted(rows)]
            by_window = np.arange(len(tables) * len(ids_W)).reshape(len(tables), -1).T.ravel()
            selections.append(pa.concat_tables(tables).combine_chunks().take(by_window).combine_chunks())
            windows.append(self._table("windows", self._text_columns(ids_W) | self._loss_columns(**contexts)))
        return {"windows": pa.concat_tables(windows), "selections": pa.concat_tables(selections)}

    def _batches(self, window_ids_W: np.ndarray) -> list[np.ndarray]:
        """Windows whose predictions are kept at once, and that have the same candidates."""
        size = max(1, LOGIT_ELEMENTS // self.engine.model.vocab_size)
        if self.settings.unit in ("word", "sentence"):
            size = 1  # each has candidates of its own
        elif self.engine.has_prefix or self.needs:
            size = self.engine.windows_per_batch(self.lengths.full_len)  # prefixes and readings of a batch are kept
        return [window_ids_W[begin : begin + size] for begin in range(0, len(window_ids_W), size)]

    def _table(self, name: str, columns: dict[str, Any]) -> pa.Table:
        schema = schemas(self.lengths.num_long_range, self.settings.unit)[name]
        return pa.table({name: columns[name] for name in schema.names}, schema=schema)

    def try_selectors(self) -> None:
        """Run selectors that can fail on a model or in a user's code on the first window, before anything long."""
        risky = [name for name in self.settings.selectors if SELECTORS[name].source or SELECTORS[name].needs]
        if risky and len(self.null_contexts.windows):
            scores = self.scores(np.array([0]))["real"]
            for name in risky:
                SELECTORS[name].function(scores.for_label(0 if SELECTORS[name].sees_target else None))

    def scores(self, window_ids_W: np.ndarray) -> dict[str, Scores]:
        """Predictions for windows under each context, with the drawn labels."""
        windows, settings, device = self.null_contexts.windows, self.settings, self.engine.model.device
        rows_WT = torch.from_numpy(windows.tokens(window_ids_W)).to(device)  # the target last
        null_WT = torch.from_numpy(self.null_contexts.window_tokens(window_ids_W)).to(device)
        nothing_WM = rows_WT.new_zeros(len(rows_WT), self.lengths.num_long_range, dtype=torch.bool)
        log_p_short_WV = self.engine.predictions(rows_WT[:, :-1], nothing_WM)
        drawn_WA = draw_labels(log_p_short_WV, window_ids_W, seed=settings.seed, num_draws=settings.resampled_draws)
        draws = {"real": settings.resampled_draws, "null": NULL_DRAWS}
        return {
            context: Scores(
                self.engine, with_target_WT[:, :-1].contiguous(),
                torch.cat([rows_WT[:, -1:], drawn_WA[:, : draws[context]]], dim=1),
                window_ids_W, self._spans(with_target_WT), log_p_short_WV, context, settings.seed, max(settings.ks),
                settings.lasso_masks, self.needs, self.tokenizer, windows.store,
            )
            for context, with_target_WT in zip(CONTEXTS, (rows_WT, null_WT), strict=True)
        }  # fmt: skip

    def _spans(self, with_target_WT: torch.Tensor) -> list[tuple[int, int]]:
        """The candidates, which are the same in all windows of a batch."""
        num_far, first_WT = self.lengths.num_long_range, with_target_WT[:1, :-1].cpu().numpy()
        numbers_M = group_numbers(self.tokenizer, first_WT, num_long_range=num_far, unit=self.settings.unit)[0]
        first = np.flatnonzero(np.diff(numbers_M, prepend=-1)).tolist()
        return list(zip(first, [*first[1:], num_far], strict=True))

    def _selections(
        self, scores: Scores, choices: dict[tuple[str, int], np.ndarray]
    ) -> dict[tuple[Any, ...], pa.Table]:
        """Rows for windows under one context: a table for each selector and label, by its place in the order of rows."""
        ks, num_windows = self.settings.ks, scores.num_windows
        orders = [rank(scores_WI)[:, : scores.max_k] for scores_WI in choices.values()]
        shown = np.zeros((len(choices), len(ks), num_windows, scores.num_candidates), dtype=bool)
        for of_choice, order_WS in zip(shown, orders, strict=True):
            for shown_WI, k in zip(of_choice, ks, strict=True):
                np.put_along_axis(shown_WI, order_WS[:, :k], True, axis=1)
        windows_R = np.tile(np.arange(num_windows), len(choices) * len(ks))
        readings = scores.read(windows_R, shown.reshape(len(windows_R), -1))
        by_choice = zip(*readings.reshaped(len(choices), len(ks), num_windows), strict=True)
        rows = {}
        for ((name, label), scores_WI), order_WS, of_choice in zip(choices.items(), orders, by_choice, strict=True):
            place = self.settings.selectors.index(name), label > 0, CONTEXTS.index(scores.context), label
            columns = self._columns(scores, name, label, scores_WI, order_WS, Readings(*of_choice))
            rows[place] = self._table("selections", columns)
        return rows

    def _columns(
        self, scores: Scores, name: str, label: int, scores_WI: np.ndarray, order_WS: np.ndarray, readings: Readings
    ) -> dict[str, Any]:
        num_windows, is_drawn, ks = scores.num_windows, label > 0, self.settings.ks
        first_I, end_I = (np.array(of) for of in zip(*scores.spans, strict=True))
        positions = [np.concatenate([np.arange(first_I[i], end_I[i]) for i in order_S]) for order_S in order_WS]
        tokens_WS = (end_I - first_I)[order_WS].cumsum(axis=1)
        losses_WK = readings.losses[:, :, label].T
        return {
            "window_id": scores.window_ids_W,
            "doc_id": self.null_contexts.windows.doc_ids(scores.window_ids_W),
            "selector": [name] * num_windows,
            "context": [RESAMPLED[scores.context] if is_drawn else scores.context] * num_windows,
            "draw": [max(0, label - 1)] * num_windows,
            "sees_target": [SELECTORS[name].sees_target] * num_windows,
            "num_evaluations": [SELECTORS[name].num_evaluations(scores.num_candidates, self.settings)] * num_windows,
            "positions": positions,
            "distance_tokens": [self.lengths.full_len - of_window for of_window in positions],
            "scores": [pa.array(of.astype(np.float32), mask=np.isnan(of)) for of in scores_WI],
            "k": [ks] * num_windows,
            "group_first": list(first_I[order_WS]),
            "group_last": list(end_I[order_WS] - 1),
            "num_tokens": list(tokens_WS[:, np.minimum(ks, tokens_WS.shape[1]) - 1]),
            "loss_sparse_nats": list(losses_WK),
            "gain_sparse_nats": list(scores.losses_short_WA[:, label, None] - losses_WK),
            "kl_sparse_nats": [None] * num_windows if is_drawn else list(readings.kl.T),
            "kl_short_to_sparse_nats": list(readings.kl_from_short.T) if is_drawn else [None] * num_windows,
        }

    def _text_columns(self, window_ids_W: np.ndarray) -> dict[str, Any]:
        windows, num_far, overlap_W = self.null_contexts.windows, self.lengths.num_long_range, self.train_overlap_W
        tokens_WT, null_WT = windows.tokens(window_ids_W), self.null_contexts.window_tokens(window_ids_W)
        texts, null_texts = (
            [token_texts(self.tokenizer, tokens_T) for tokens_T in of] for of in (tokens_WT, null_WT[:, :num_far])
        )  # the target last
        null_texts = [far + words[num_far:] for far, words in zip(null_texts, texts, strict=True)]
        document_W = windows.document_W[window_ids_W]
        return {
            "window_id": window_ids_W,
            "doc_id": windows.doc_ids(window_ids_W),
            "weight": windows.weight_W[window_ids_W],
            "source": windows.store.source_of(document_W),
            "split": [self.split] * len(window_ids_W),
            "train_overlap": [None] * len(window_ids_W) if overlap_W is None else overlap_W[window_ids_W],
            "start_token": windows.start_W[window_ids_W] - windows.store.begins_G[document_W],
            "token_ids": list(tokens_WT[:, :-1]),
            "token_texts": [words[:-1] for words in texts],
            "target_id": tokens_WT[:, -1],
            "target_text": [words[-1] for words in texts],
            "target_class": self._target_classes(tokens_WT, texts),
            "null_target_class": self._target_classes(null_WT, null_texts),
            "null_doc_id": self.null_contexts.doc_ids(window_ids_W),
            "null_token_ids": list(null_WT[:, :num_far]),
        }

    def _target_classes(self, tokens_WT: np.ndarray, texts: list[list[str]]) -> list[str]:
        return [
            target_class(
                tokens_T[:-1].tolist(), words[:-1], target_id=int(tokens_T[-1]), target_text=words[-1],
                num_long_range=self.lengths.num_long_range,
            )
            for tokens_T, words in zip(tokens_WT, texts, strict=True)
        ]  # fmt: skip

    def _loss_columns(self, real: Scores, null: Scores) -> dict[str, Any]:
        short_W, long_W, null_W = real.losses_short_WA[:, 0], real.losses_long_WA[:, 0], null.losses_long_WA[:, 0]
        last = {n: self._loss_last(real, n) for n in self.lengths.last_n}
        row_W = last.get(self.lengths.train_len or 0)
        columns = {
            "loss_short_nats": short_W,
            "loss_short_no_gap_nats": last[self.lengths.local_len],
            "loss_long_nats": long_W,
            "gain_long_nats": short_W - long_W,
            "null_loss_long_nats": null_W,
            "null_gain_long_nats": short_W - null_W,
            "gain_beyond_nats": [None] * len(short_W) if row_W is None else row_W - long_W,
            "last_n": [list(last)] * len(short_W),
            "loss_last_nats": list(np.stack([*last.values()], axis=1)),
            "kl_short_nats": real.kl_short,
            "null_kl_short_nats": null.kl_short,
            "kl_short_to_long_nats": real.kl_short_to_long,
            "entropy_short_nats": -(real.log_p_short_WV.exp() * real.log_p_short_WV).sum(dim=-1).cpu().numpy(),
            "resampled_target_ids": list(real.labels_WA[:, 1:].cpu().numpy()),
            "resampled_loss_short_nats": list(real.losses_short_WA[:, 1:]),
            "resampled_loss_long_nats": list(real.losses_long_WA[:, 1:]),
            "group_first": [[first for first, _ in real.spans]] * len(short_W),
            "null_group_first": [[first for first, _ in null.spans]] * len(short_W),
        }
        for prefix, of in (("", real), ("null_", null)):
            losses_WB, kl_WB = damped(of.log_p_long_WV, of.log_p_short_WV, of.labels_WA[:, :1])
            columns |= {f"{prefix}loss_damped_nats": list(losses_WB), f"{prefix}kl_damped_nats": list(kl_WB)}
        return columns

    def _loss_last(self, scores: Scores, n: int) -> np.ndarray:
        """Loss of the target with the last n tokens directly behind the anchor; all of them have run and leave no gap."""
        if n == self.lengths.full_len:
            return scores.losses_long_WA[:, 0]
        tokens_Wn = scores.tokens_WT[:, -n:]
        log_p_WV = self.engine.predictions(tokens_Wn, tokens_Wn.new_zeros(len(tokens_Wn), 0, dtype=torch.bool))
        return surprisals(log_p_WV, scores.labels_WA[:, :1])[:, 0].cpu().numpy()


def damped(
    log_p_long_WV: torch.Tensor, log_p_short_WV: torch.Tensor, targets_W1: torch.Tensor
) -> tuple[np.ndarray, np.ndarray]:
    """Loss of the target and KL(p_all, p_w) in nats, fp32 [W, B], for each weight w of ``DAMPING``.

    p_w = p_short^(1-w) p_all^w / Z_w weakens the reaction to the long context without choosing a token. Both numbers are blends
    of those at w = 0 and 1, plus log Z_w.
    """
    kl_W = divergence(log_p_long_WV, log_p_short_WV)
    short_W, long_W = (surprisals(of, targets_W1)[:, 0] for of in (log_p_short_WV, log_p_long_WV))
    losses, divergences = [], []
    for w in DAMPING:
        log_z_W = torch.lerp(log_p_short_WV, log_p_long_WV, w).logsumexp(dim=-1)
        losses.append(torch.lerp(short_W, long_W, w) + log_z_W)
        divergences.append((1 - w) * kl_W + log_z_W)
    return torch.stack(losses, dim=1).cpu().numpy(), torch.stack(divergences, dim=1).cpu().numpy()


def draw_labels(log_p_short_WV: torch.Tensor, window_ids_W: np.ndarray, *, seed: int, num_draws: int) -> torch.Tensor:
    """Draw labels from the short prediction of each window, int64 [W, A].

    A label is the winner of an exponential race: with E_v exponential and independent, argmin E_v / p_v has distribution p.
    Unlike a search in cumulative sums, the race hardly depends on rounding. Draw A of a window is a function of its prediction
    and (seed, number of the window, A) alone.
    """
    num_windows, vocab_size = log_p_short_WV.shape
    labels_WA = np.empty((num_windows, num_draws), dtype=np.int64)
    for w, window_id in enumerate(window_ids_W.tolist()):
        log_p_V = log_p_short_WV[w].cpu().numpy()
        for draw in range(num_draws):
            rng = np.random.default_rng([seed, RESAMPLED_LABELS, window_id, draw])
            labels_WA[w, draw] = np.argmax(log_p_V - np.log(rng.standard_exponential(vocab_size)))
    return torch.from_numpy(labels_WA).to(log_p_short_WV.device)
