"""What the model predicts for a batch of windows under one context: everything selectors may ask, computed on demand, then kept.

A *candidate* is unmasked as a whole: a long-range token, or a word, sentence or block of them. All windows of a batch have the
same candidates, so arrays have no padding: tokens and blocks share a batch, windows with words or sentences are batches of
one.

A *label* is a token whose loss is computed: the target, or one drawn in its place. A pass serves all labels.

Letters of shapes: W windows, I candidates, M long-range positions, T tokens of a window, A labels, R rows, V vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property
from typing import NamedTuple, Optional

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from olmo_sparsity.measure.engine import LOWEST, Engine
from olmo_sparsity.text.store import TokenStore, token_counts
from olmo_sparsity.text.tokenizer import token_texts
from olmo_sparsity.text.units import group_numbers

CONTEXTS = ("real", "null")  # the window's own long-range tokens, or those of its null context
LASSO_MASKS = 4  # purpose of a random generator; a change would change the tables


class UndeclaredTargetError(Exception):
    """A selector without ``sees_target`` asks for a loss."""


class Readings(NamedTuple):
    """Predictions of rows; nats, fp32."""

    losses: np.ndarray  # of each label, [..., A]
    kl: np.ndarray  # KL(p_all, p_S), [...]
    kl_from_short: np.ndarray  # KL(p_{}, p_S), [...]; NaN without drawn labels

    def reshaped(self, *shape: int) -> Readings:
        """The same rows in another shape."""
        return Readings(*(of.reshape(*shape, *of.shape[1:]) for of in self))


@dataclass(eq=False)
class Scores:
    """What selectors ask about W windows, for one label; arrays are fp32, losses and divergences in nats."""

    engine: Engine
    tokens_WT: torch.Tensor  # int64, without the targets
    labels_WA: torch.Tensor  # int64; the targets first
    window_ids_W: np.ndarray  # int64, their numbers in the table
    spans: list[tuple[int, int]]  # of each candidate: first position, and the one behind its last; M in all, in order
    log_p_short_WV: torch.Tensor  # with the local tokens alone, the same under every context
    context: str = "real"
    seed: int = 0
    max_k: int = 1  # the largest k of the measurement
    lasso_masks: int = 64  # random visible sets of ``lasso``
    needs: frozenset[str] = frozenset()  # of layers and heads (``observed``), so that one pass serves all selectors
    tokenizer: Optional[Tokenizer] = None
    store: Optional[TokenStore] = None  # the measured text
    _label: Optional[int] = None
    _observed: dict[str, np.ndarray] = field(default_factory=dict, repr=False)

    def for_label(self, label: Optional[int]) -> Scores:
        """Answer for another label from now on, and return self; None: for a selector that does not see it."""
        self._label = label
        return self

    @property
    def num_windows(self) -> int:
        return len(self.window_ids_W)

    @property
    def num_candidates(self) -> int:
        return len(self.spans)

    @property
    def num_long_range(self) -> int:
        return self.spans[-1][1]

    @property
    def label(self) -> int:
        """The number of the label, for selectors that have declared to see it."""
        if self._label is None:
            raise UndeclaredTargetError("losses and the target are for selectors with sees_target=True")
        return self._label

    # Predictions with nothing and with everything visible.

    @cached_property
    def log_p_long_WV(self) -> torch.Tensor:
        """Log-probabilities of the next token with everything visible, fp32 [W, V]."""
        if "attention" in self.needs:
            return self._long_and_attention[0]
        everything_WM = self.tokens_WT.new_ones(self.num_windows, self.num_long_range, dtype=torch.bool)
        return self.engine.predictions(self.tokens_WT, everything_WM)

    @cached_property
    def _long_and_attention(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.engine.long_and_attention(self.tokens_WT)

    @cached_property
    def _probabilities(self) -> tuple[torch.Tensor, torch.Tensor]:
        """With everything visible and with nothing, fp32 [W, V] each."""
        return self.log_p_long_WV.exp(), self.log_p_short_WV.exp()

    @cached_property
    def kl_short(self) -> np.ndarray:
        """KL(p_all, p_{}), [W]."""
        return divergence(self.log_p_long_WV, self.log_p_short_WV).cpu().numpy()

    @cached_property
    def kl_short_to_long(self) -> np.ndarray:
        """KL(p_{}, p_all), [W]."""
        return divergence(self.log_p_short_WV, self.log_p_long_WV).cpu().numpy()

    @cached_property
    def losses_short_WA(self) -> np.ndarray:
        """loss({}) of each label."""
        return surprisals(self.log_p_short_WV, self.labels_WA).cpu().numpy()

    @cached_property
    def losses_long_WA(self) -> np.ndarray:
        """loss(all) of each label."""
        return surprisals(self.log_p_long_WV, self.labels_WA).cpu().numpy()

    @property
    def loss_short(self) -> np.ndarray:
        """loss({}), [W]."""
        return self.losses_short_WA[:, self.label]

    @property
    def loss_long(self) -> np.ndarray:
        """loss(all), [W]."""
        return self.losses_long_WA[:, self.label]

    # Predictions under visible sets: one candidate, all but one, any.

    @cached_property
    def singles(self) -> Readings:
        """Predictions with each candidate alone; [W, I] and [W, I, A]."""
        windows_R = np.repeat(np.arange(self.num_windows), self.num_candidates)
        shown_RM = self._positions(np.tile(np.eye(self.num_candidates, dtype=bool), (self.num_windows, 1)))
        readings = self._empty(len(windows_R))
        for rows, log_p_rV in self.engine.log_probs(self.tokens_WT, windows_R, shown_RM):
            self._fill(readings, rows.cpu().numpy(), windows_R, log_p_rV)
        return readings.reshaped(self.num_windows, -1)

    @property
    def loss_single(self) -> np.ndarray:
        """loss({i}) of each candidate, [W, I]."""
        return self.singles.losses[:, :, self.label]

    @property
    def kl_single(self) -> np.ndarray:
        """KL(p_all, p_{i}) of each candidate, [W, I]."""
        return self.singles.kl

    @cached_property
    def _all_but_one(self) -> Readings:
        return self._of_windows(np.tile(~np.eye(self.num_candidates, dtype=bool), (self.num_windows, 1, 1)))

    @property
    def loss_without(self) -> np.ndarray:
        """loss(all but i) of each candidate, [W, I]."""
        return self._all_but_one.losses[:, :, self.label]

    @cached_property
    def lasso_sets(self) -> np.ndarray:
        """Random visible sets, each candidate with probability 1/2, bool [W, N, I]."""
        size = (self.lasso_masks, self.num_candidates)
        return np.stack([generator.random(size) < 0.5 for generator in self.generators(LASSO_MASKS)])

    @cached_property
    def _lasso_losses_WNA(self) -> np.ndarray:
        return self._of_windows(self.lasso_sets).losses

    @property
    def lasso_losses(self) -> np.ndarray:
        """The losses under ``lasso_sets``, [W, N]."""
        return self._lasso_losses_WNA[:, :, self.label]

    def evaluate(self, shown_WNI: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses and divergences KL(p_all, p_S) of N visible sets of candidates for each window, bool -> [W, N] each.

        Without a label the losses are NaN.
        """
        readings = self._of_windows(shown_WNI)
        losses = np.full_like(readings.kl, np.nan) if self._label is None else readings.losses[:, :, self._label]
        return losses, readings.kl

    def _of_windows(self, shown_WNI: np.ndarray) -> Readings:
        windows_R = np.repeat(np.arange(self.num_windows), shown_WNI.shape[1])
        return self.read(windows_R, shown_WNI.reshape(-1, self.num_candidates)).reshaped(self.num_windows, -1)

    def read(self, windows_R: np.ndarray, shown_RI: np.ndarray) -> Readings:
        """Predictions of rows: windows under visible sets of candidates, of any sizes.

        Equal rows run once; everything visible, and single candidates once ``singles`` are known, do not run again.
        """
        keys = np.column_stack([windows_R, np.packbits(shown_RI, axis=1)])
        _, first_r, places_R = np.unique(keys, axis=0, return_index=True, return_inverse=True)
        windows_r, shown_rI = windows_R[first_r], shown_RI[first_r]
        is_all_r = shown_rI.all(axis=1)
        is_single_r = (shown_rI.sum(axis=1) == 1) & ~is_all_r & ("singles" in vars(self))
        readings = self._empty(len(first_r))
        long = self.losses_long_WA, np.zeros(self.num_windows, dtype=np.float32), self.kl_short_to_long
        for values, of_long in zip(readings, long, strict=True):
            values[is_all_r] = of_long[windows_r[is_all_r]]
        if is_single_r.any():
            at = windows_r[is_single_r], shown_rI[is_single_r].argmax(axis=1)
            for values, of_singles in zip(readings, self.singles, strict=True):
                values[is_single_r] = of_singles[at]
        rest = np.flatnonzero(~is_all_r & ~is_single_r)
        for rows, log_p_rV in self.engine.log_probs(self.tokens_WT, windows_r[rest], self._positions(shown_rI[rest])):
            self._fill(readings, rest[rows.cpu().numpy()], windows_r, log_p_rV)
        return Readings(*(values[places_R.ravel()] for values in readings))

    def _positions(self, shown_RI: np.ndarray) -> np.ndarray:
        """Sets of candidates as sets of long-range positions, bool [R, M]."""
        return np.repeat(shown_RI, [end - first for first, end in self.spans], axis=1)

    def _fill(self, readings: Readings, at: np.ndarray, windows_R: np.ndarray, log_p_rV: torch.Tensor) -> None:
        """Enter the predictions of some rows."""
        windows_r, (p_long_WV, p_short_WV) = windows_R[at], self._probabilities
        readings.losses[at] = surprisals(log_p_rV, self.labels_WA[windows_r]).cpu().numpy()
        kl_r = divergence(self.log_p_long_WV[windows_r], log_p_rV, p_long_WV[windows_r])
        readings.kl[at] = kl_r.cpu().numpy()
        if self.labels_WA.shape[1] > 1:  # optimism needs it
            kl_r = divergence(self.log_p_short_WV[windows_r], log_p_rV, p_short_WV[windows_r])
            readings.kl_from_short[at] = kl_r.cpu().numpy()

    def _empty(self, number: int) -> Readings:
        losses = np.full((number, self.labels_WA.shape[1]), np.nan, dtype=np.float32)
        return Readings(losses, *np.full((2, number), np.nan, dtype=np.float32))

    def per_candidate(self, values_WM: np.ndarray) -> np.ndarray:
        """Sums over the tokens of each candidate, [W, I]; NaN is no value, and a candidate without values is NaN."""
        first_I = [first for first, _ in self.spans]
        has_value = np.add.reduceat(~np.isnan(values_WM), first_I, axis=1, dtype=np.int64) > 0
        return np.where(has_value, np.add.reduceat(np.nan_to_num(values_WM), first_I, axis=1), np.nan)

    # First-order estimates and attention.

    @cached_property
    def _gradients_AWM(self) -> np.ndarray:
        def losses(windows: torch.Tensor, logits_wV: torch.Tensor) -> torch.Tensor:
            labels = self.labels_WA[windows].unbind(1)
            return torch.stack([F.cross_entropy(logits_wV, of_label, reduction="sum") for of_label in labels])

        return self.engine.gradients(self.tokens_WT, losses).cpu().numpy()

    @property
    def gradient(self) -> np.ndarray:
        """Minus the derivative of the loss by a gate on each candidate, at gate 0, [W, I]."""
        return self.per_candidate(-self._gradients_AWM[self.label])

    def patching_beside(self, shown_WI: np.ndarray) -> np.ndarray:
        """The effect of unmasking each candidate beside the visible ones on KL(p_all, p), by attribution patching, [W, I]."""
        p_long_WV, _ = self._probabilities  # a pass of its own, which must not run while attention is read

        def cross_entropy(windows: torch.Tensor, logits_wV: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(logits_wV.clamp(min=LOWEST), p_long_WV[windows], reduction="sum")

        shown_WM = torch.from_numpy(self._positions(shown_WI)).to(self.tokens_WT.device)
        return self.per_candidate(self.engine.patching(self.tokens_WT, shown_WM, cross_entropy).cpu().numpy())

    @property
    def attention(self) -> np.ndarray:
        """Attention of the last token to each candidate under full context, mean over heads and layers, [W, I]."""
        return self.per_candidate(self._long_and_attention[1].cpu().numpy())

    def observed(self, name: str) -> np.ndarray:
        """Values of layers and heads in one pass under full context, [W, layers, heads, ...].

        ``attention_of_heads``, ``accumulated_attention`` and ``observed_attention`` [.., M] are the attention of the last
        token, of all tokens, and of the last 32 local ones; ``queries`` [.., E] of the last token; ``keys`` and ``values`` [..,
        M, E].
        """
        if name not in self._observed:
            of_pass = (self.needs | {name}) - {"attention"}
            self._observed.update(self.engine.observed(self.tokens_WT, frozenset(of_pass - self._observed.keys())))
        values: np.ndarray = self._observed[name]
        return values

    # The text.

    @cached_property
    def token_ids(self) -> np.ndarray:
        """The tokens without the anchor, int64 [W, T]; the long-range ones are the first M."""
        return self.tokens_WT.cpu().numpy()

    @property
    def first_positions(self) -> np.ndarray:
        """The position ID of the first token of each candidate under full context, int64 [I]."""
        return self.engine.num_anchors + np.array([first for first, _ in self.spans])

    @cached_property
    def texts(self) -> list[list[str]]:
        """The text of each token, T of each window."""
        assert self.tokenizer is not None
        return [token_texts(self.tokenizer, tokens_T) for tokens_T in self.token_ids]

    @cached_property
    def sentence_starts(self) -> np.ndarray:
        """Which tokens begin a sentence, bool [W, T]; the one that began before the window has no beginning here."""
        assert self.tokenizer is not None
        tokens_WT = self.token_ids
        numbers_WT = group_numbers(self.tokenizer, tokens_WT, num_long_range=tokens_WT.shape[1], unit="sentence")
        return np.diff(numbers_WT, axis=1, prepend=numbers_WT[:, :1]) != 0

    @cached_property
    def frequencies(self) -> np.ndarray:
        """How often each token occurs in the measured text, int64 [W, T]."""
        assert self.store is not None
        counts_V, tokens_WT = token_counts(self.store), self.token_ids
        return np.where(tokens_WT < len(counts_V), counts_V[tokens_WT.clip(max=len(counts_V) - 1)], 0)

    @property
    def targets(self) -> np.ndarray:
        """The label of each window, int64 [W]."""
        return self.labels_WA[:, self.label].cpu().numpy()

    def generators(self, purpose: int) -> list[np.random.Generator]:
        """A random generator for each window, a function of seed, purpose, window and context alone."""
        context = CONTEXTS.index(self.context)
        return [np.random.default_rng([self.seed, purpose, int(i), context]) for i in self.window_ids_W]


def surprisals(log_p: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """-log p(label) in nats: fp32 [R, V] and int64 [R, A] -> fp32 [R, A]."""
    return -log_p.gather(-1, labels)


def divergence(log_p: torch.Tensor, log_q: torch.Tensor, p: Optional[torch.Tensor] = None) -> torch.Tensor:
    """KL(p, q) in nats over the last dimension; ``p`` saves computing exp(log_p)."""
    return ((log_p.exp() if p is None else p) * (log_p - log_q)).sum(dim=-1)
