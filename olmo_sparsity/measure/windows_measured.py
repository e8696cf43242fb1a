"""Measures windows: which long-range tokens are influential, and how much loss comes back when they are unmasked; two tables.

A selector that sees the target gains even where the long-range tokens hold nothing: among many candidates it picks those that
happened to raise the probability of this target. How much its gain overstates its choice, its *optimism*, is measured on labels
drawn from the short prediction: the gain of a choice on the label that it was made for, minus its mean gain on another one.

Letters of shapes: W windows, I candidates, S chosen ones, K numbers of unmasked candidates, V vocabulary.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer

from olmo_sparsity.config import InfluenceConfig, Lengths
from olmo_sparsity.measure.engine import Engine
from olmo_sparsity.measure.scores import CONTEXTS, Batch, Readings, Scores, divergence, surprisals
from olmo_sparsity.selectors import NULL_DRAWS, SELECTORS, rank
from olmo_sparsity.tables import DAMPING, RESAMPLED, schemas
from olmo_sparsity.text.classes import target_class
from olmo_sparsity.text.nulls import NullContexts
from olmo_sparsity.text.tokenizer import token_texts
from olmo_sparsity.text.units import group_numbers

RESAMPLED_LABELS = 6  # purpose of a random generator; a change would change the tables
RESAMPLED_CONTROL = "random"  # chooses without the label, so its optimism must be 0


@dataclass(frozen=True)
class Choice:
    """What one selector chose in all windows of a batch, for one of the labels."""

    selector: str
    label: int  # 0: the target
    scores_WI: np.ndarray
    order_WS: np.ndarray  # the candidates, the most influential first; at most max k


@dataclass(frozen=True)
class WindowsToMeasure:
    """All windows of a measurement, and how they are measured."""

    engine: Engine
    null_contexts: NullContexts
    settings: InfluenceConfig
    lengths: Lengths
    tokenizer: Tokenizer
    split: str
    train_overlap_W: Optional[np.ndarray] = None  # bool; windows that share text with training; None: not known

    def tables_of(self, window_ids_W: np.ndarray) -> dict[str, pa.Table]:
        """The tables ``windows`` and ``selections`` of the windows with these numbers."""
        size = len(window_ids_W)
        if self.settings.unit in ("word", "sentence"):
            size = 1  # each has candidates of its own
        elif self.engine.has_prefix or needs_of(self.settings.selectors):
            size = self.engine.windows_per_batch(self.lengths.full_len)  # prefixes and readings of a batch are kept
        parts = [self._of_batch(window_ids_W[begin : begin + size]) for begin in range(0, len(window_ids_W), size)]
        return {name: pa.concat_tables([part[name] for part in parts]) for name in parts[0]}

    def try_selectors(self) -> None:
        """Run the selectors that can fail on a model or in a user's code on the first window, before anything long.

        Raises:
            UserError: the model cannot give what one needs, or a selector of one's own fails.
        """
        tried = [name for name in self.settings.selectors if SELECTORS[name].source or SELECTORS[name].needs]
        if tried and len(self.null_contexts.windows):
            scores = self.scores(np.array([0]))["real"]
            for name in tried:
                self._choice(name, scores, 0)

    def scores(self, window_ids_W: np.ndarray) -> dict[str, Scores]:
        """What the model says of windows under each context, with the drawn labels."""
        windows, settings, device = self.null_contexts.windows, self.settings, self.engine.model.device
        rows_WT = torch.from_numpy(windows.tokens(window_ids_W)).to(device)  # the target last
        null_WT = torch.from_numpy(self.null_contexts.window_tokens(window_ids_W)).to(device)
        log_p_short_WV = self.engine.short(rows_WT[:, :-1])
        drawn_WA = draw_labels(log_p_short_WV, window_ids_W, seed=settings.seed, num_draws=settings.resampled_draws)
        found = {}
        for context, tokens_WT, draws in zip(
            CONTEXTS, (rows_WT, null_WT), (settings.resampled_draws, NULL_DRAWS), strict=True
        ):
            tokens_WT = tokens_WT[:, :-1].contiguous()
            batch = Batch(
                tokens_WT=tokens_WT,
                labels_WA=torch.cat([rows_WT[:, -1:], drawn_WA[:, :draws]], dim=1),
                window_ids_W=window_ids_W,
                context=context,
                seed=settings.seed,
                spans=self._spans(tokens_WT),
                tokenizer=self.tokenizer,
                store=windows.store,
            )
            found[context] = Scores(
                self.engine, batch, log_p_short_WV,
                max_k=max(settings.k), lasso_masks=settings.lasso_masks, needs=needs_of(settings.selectors),
            )  # fmt: skip
        return found

    def _spans(self, tokens_WT: torch.Tensor) -> list[tuple[int, int]]:
        """The candidates, which are the same in all windows of a batch."""
        numbers_M = group_numbers(
            self.tokenizer,
            tokens_WT[:1].cpu().numpy(),
            num_long_range=self.lengths.num_long_range,
            unit=self.settings.unit,
        )[0]
        first = np.flatnonzero(np.diff(numbers_M, prepend=-1)).tolist()
        return list(zip(first, [*first[1:], len(numbers_M)], strict=True))

    def _of_batch(self, window_ids_W: np.ndarray) -> dict[str, pa.Table]:
        scores = self.scores(window_ids_W)
        tables = schemas(self.lengths.num_long_range, self.settings.unit)
        choices, rows = [], {}
        for context, of_context in scores.items():
            rows[context] = self._choices(of_context)
        columns = self._text_columns(window_ids_W) | self._loss_columns(scores)
        for name in self.settings.selectors:
            for resampled in (False, True):
                for context, of_context in scores.items():
                    known = RESAMPLED[context] if resampled else context
                    for choice, readings in rows[context]:
                        if choice.selector == name and bool(choice.label) == resampled:
                            found = self._columns_of_choice(choice, readings, of_context, known)
                            schema = tables["selections"]
                            choices.append(pa.table({key: found[key] for key in schema.names}, schema=schema))
        order_WC = (
            np.arange(len(choices) * len(window_ids_W)).reshape(len(choices), -1).T
        )  # a window's rows stand together
        selections = pa.concat_tables(choices).combine_chunks().take(order_WC.ravel()).combine_chunks()
        windows = pa.table({key: columns[key] for key in tables["windows"].names}, schema=tables["windows"])
        return {"windows": windows, "selections": selections}

    def _choices(self, scores: Scores) -> list[tuple[Choice, list[Readings]]]:
        """What every selector chose for every label, with the readings of J_k at each k; those that see it choose again."""
        choices = []
        for label in range(scores.batch.labels_WA.shape[1]):
            for name in self.settings.selectors:
                if label == 0 or SELECTORS[name].sees_target:
                    choices.append(self._choice(name, scores, label))
                elif name == RESAMPLED_CONTROL:
                    choices.append(dataclasses.replace(next(of for of in choices if of.selector == name), label=label))
        return list(zip(choices, self._read_choices(choices, scores), strict=True))

    def _choice(self, name: str, scores: Scores, label: int) -> Choice:
        selector = SELECTORS[name]
        scores_WI = selector.score(scores.of_label(label if selector.sees_target else None))
        return Choice(name, label, scores_WI, rank(scores_WI)[:, : max(self.settings.k)])

    def _read_choices(self, choices: Sequence[Choice], scores: Scores) -> list[list[Readings]]:
        """Run the sets J_k of all choices, each set of a window once; return the readings of each choice and k."""
        num_windows, num_candidates = scores.num_windows, scores.num_candidates
        shown = np.zeros((len(choices), len(self.settings.k), num_windows, num_candidates), dtype=bool)
        for place, choice in enumerate(choices):
            for i, k in enumerate(self.settings.k):
                np.put_along_axis(shown[place, i], choice.order_WS[:, :k], True, axis=1)
        windows_R = np.tile(np.arange(num_windows), len(choices) * len(self.settings.k))
        keys = np.column_stack([windows_R, np.packbits(shown.reshape(-1, num_candidates), axis=1)])
        _, first_r, index_R = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        windows_r, shown_rI = windows_R[first_r], shown.reshape(-1, num_candidates)[first_r]
        is_known_r = (shown_rI.sum(axis=1) == 1) & scores.are_singles_known
        found = scores._empty(len(first_r))
        rest = scores.read(windows_r[~is_known_r], shown_rI[~is_known_r])
        for name in ("losses", "kl", "kl_from_short"):
            getattr(found, name)[~is_known_r] = getattr(rest, name)
            if is_known_r.any():
                at = windows_r[is_known_r], shown_rI[is_known_r].argmax(axis=1)
                getattr(found, name)[is_known_r] = getattr(scores.singles, name)[at]
        index = index_R.reshape(len(choices), len(self.settings.k), num_windows)
        return [
            [Readings(found.losses[rows], found.kl[rows], found.kl_from_short[rows]) for rows in of_choice]
            for of_choice in index
        ]

    def _columns_of_choice(
        self, choice: Choice, readings: list[Readings], scores: Scores, context: str
    ) -> dict[str, Any]:
        """The columns of ``selections`` for one choice, a row for each window."""
        num_windows, name = scores.num_windows, choice.selector
        first_I, end_I = (np.array(of) for of in zip(*scores.batch.spans, strict=True))
        chosen = [
            np.concatenate([np.arange(first_I[i], end_I[i]) for i in order_S]) for order_S in choice.order_WS.tolist()
        ]
        tokens_WS = (end_I - first_I)[choice.order_WS].cumsum(axis=1)
        sizes_WK = tokens_WS[:, np.minimum(self.settings.k, tokens_WS.shape[1]) - 1]
        losses_WK = np.stack([of.losses[:, choice.label] for of in readings], axis=1)
        is_drawn = choice.label > 0
        kl, from_short = (np.stack([getattr(of, key) for of in readings], axis=1) for key in ("kl", "kl_from_short"))
        return {
            "window_id": scores.batch.window_ids_W,
            "doc_id": self.null_contexts.windows.doc_ids(scores.batch.window_ids_W),
            "selector": [name] * num_windows,
            "context": [context] * num_windows,
            "draw": [max(0, choice.label - 1)] * num_windows,
            "sees_target": [SELECTORS[name].sees_target] * num_windows,
            "num_evaluations": [SELECTORS[name].num_evaluations(scores.num_candidates, self.settings)] * num_windows,
            "positions": chosen,
            "distance_tokens": [self.lengths.full_len - positions for positions in chosen],
            "scores": [pa.array(of.astype(np.float32), mask=np.isnan(of)) for of in choice.scores_WI],
            "k": [self.settings.k] * num_windows,
            "group_first": list(first_I[choice.order_WS]),
            "group_last": list(end_I[choice.order_WS] - 1),
            "num_tokens": list(sizes_WK),
            "loss_sparse_nats": list(losses_WK),
            "gain_sparse_nats": list(scores.losses_short_WA[:, choice.label, None] - losses_WK),
            "kl_sparse_nats": [None] * num_windows if is_drawn else list(kl),
            "kl_short_to_sparse_nats": list(from_short) if is_drawn else [None] * num_windows,
        }

    def _text_columns(self, window_ids_W: np.ndarray) -> dict[str, Any]:
        """The columns of ``windows`` that say which text the windows hold."""
        windows, store, num_far = (
            self.null_contexts.windows,
            self.null_contexts.windows.store,
            self.lengths.num_long_range,
        )
        tokens_WT, null_WT = windows.tokens(window_ids_W), self.null_contexts.window_tokens(window_ids_W)
        texts = [token_texts(self.tokenizer, tokens_T) for tokens_T in tokens_WT]  # the target last
        null_texts = [
            token_texts(self.tokenizer, null_T[:num_far]) + words[num_far:]
            for null_T, words in zip(null_WT, texts, strict=True)
        ]
        document_W, overlap = windows.document_W[window_ids_W], self.train_overlap_W
        return {
            "window_id": window_ids_W,
            "doc_id": windows.doc_ids(window_ids_W),
            "weight": windows.weight_W[window_ids_W],
            "source": store.source_of(document_W),
            "split": [self.split] * len(window_ids_W),
            "train_overlap": [None] * len(window_ids_W) if overlap is None else overlap[window_ids_W],
            "start_token": windows.start_W[window_ids_W] - store.begins_G[document_W],
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

    def _loss_columns(self, scores: dict[str, Scores]) -> dict[str, Any]:
        """The columns of ``windows`` that hold losses and divergences."""
        real, null = scores["real"], scores["null"]
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
            "resampled_target_ids": list(real.batch.labels_WA[:, 1:].cpu().numpy()),
            "resampled_loss_short_nats": list(real.losses_short_WA[:, 1:]),
            "resampled_loss_long_nats": list(real.losses_long_WA[:, 1:]),
            "group_first": [[first for first, _ in real.batch.spans]] * len(short_W),
            "null_group_first": [[first for first, _ in null.batch.spans]] * len(short_W),
        }
        for prefix, of_context in (("", real), ("null_", null)):
            loss_WB, kl_WB = damped(
                of_context.log_p_long_WV, of_context.log_p_short_WV, of_context.batch.labels_WA[:, :1]
            )
            columns |= {f"{prefix}loss_damped_nats": list(loss_WB), f"{prefix}kl_damped_nats": list(kl_WB)}
        return columns

    def _loss_last(self, scores: Scores, n: int) -> np.ndarray:
        """Loss of the target with the last n tokens directly behind the anchor; all tokens leave no gap, and have run."""
        if n == self.lengths.full_len:
            return scores.losses_long_WA[:, 0]
        log_p_WV = self.engine.last(scores.batch.tokens_WT, n)
        return surprisals(log_p_WV, scores.batch.labels_WA[:, :1])[:, 0].cpu().numpy()


def needs_of(selectors: Sequence[str]) -> frozenset[str]:
    """What these selectors ask of layers and heads."""
    return frozenset().union(*(SELECTORS[name].needs for name in selectors))


@torch.inference_mode()
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
