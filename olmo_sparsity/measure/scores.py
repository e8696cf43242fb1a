"""What the model says about a batch of windows under one context: what selectors may ask, computed when asked, then kept.

A *candidate* is what is unmasked at once: a long-range token, or a word, sentence or block of them. All windows of a batch have
the same candidates, so arrays have no padding: tokens and blocks share a batch, windows with words or sentences are batches of
one.

A *label* is a token whose loss is asked for: the target, or one drawn in its place. A pass serves all labels.

Letters of shapes: W windows, I candidates, M long-range positions, T tokens of a window, A labels, V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Optional, TypeVar

import numpy as np
import torch
import torch.nn.functional as F
from tokenizers import Tokenizer

from olmo_sparsity.measure.engine import Engine
from olmo_sparsity.text.store import TokenStore, token_counts
from olmo_sparsity.text.tokenizer import token_texts
from olmo_sparsity.text.units import group_numbers

CONTEXTS = ("real", "null")  # the window's own long-range tokens; those of its null context
LASSO_MASKS = 4  # purpose of a random generator; a change would change the tables
T = TypeVar("T")


class UndeclaredTargetError(Exception):
    """A selector that has not said that it sees the target asks for a loss."""


@dataclass(frozen=True, eq=False)
class Batch:
    """W windows under one context, on the device of the model."""

    tokens_WT: torch.Tensor  # int64, without the targets
    labels_WA: torch.Tensor  # int64; the targets first
    window_ids_W: np.ndarray  # int64, their numbers in the table
    context: str
    seed: int
    spans: list[
        tuple[int, int]
    ]  # first position of each candidate, and the one behind its last; all M positions in order
    tokenizer: Optional[Tokenizer] = None
    store: Optional[TokenStore] = None  # the text that they are from


def kept(function: Callable[[Scores], T]) -> Any:
    """A property that is computed once for all labels of a batch."""

    def get(self: Scores) -> T:
        if function.__name__ not in self._kept:
            self._kept[function.__name__] = function(self)
        found: T = self._kept[function.__name__]
        return found

    return property(get, doc=function.__doc__)


class Scores:
    """What selectors ask about W windows, for one label; arrays are fp32, losses and divergences in nats."""

    def __init__(
        self,
        engine: Engine,
        batch: Batch,
        log_p_short_WV: torch.Tensor,
        *,
        max_k: int,
        lasso_masks: int = 64,
        needs: frozenset[str] = frozenset(),
    ):
        """Take a batch.

        Args:
            engine: runs the model.
            batch: the windows.
            log_p_short_WV: log-probabilities with the local tokens alone, the same under every context.
            max_k: the largest k that will be asked for.
            lasso_masks: random visible sets of ``lasso``.
            needs: what will be asked of layers and heads (``observed``), so that one pass serves all selectors.
        """
        self.engine, self.batch, self.log_p_short_WV = engine, batch, log_p_short_WV
        self.max_k, self.lasso_masks, self.needs = max_k, lasso_masks, needs
        self._kept: dict[str, Any] = {}
        self._label: Optional[int] = None

    def of_label(self, label: Optional[int]) -> Scores:
        """The same windows for another label; None: for a selector that does not see one."""
        other = copy.copy(self)
        other._label = label
        return other

    @property
    def num_windows(self) -> int:
        """W."""
        return len(self.batch.window_ids_W)

    @property
    def num_candidates(self) -> int:
        """I."""
        return len(self.batch.spans)

    @property
    def num_long_range(self) -> int:
        """M."""
        return self.batch.tokens_WT.shape[1] - self.engine.local_len

    @property
    def label(self) -> int:
        """The number of the label.

        Raises:
            UndeclaredTargetError: the selector has not said that it sees one.
        """
        if self._label is None:
            raise UndeclaredTargetError("losses and the target are for selectors with sees_target=True")
        return self._label

    # Predictions.

    @kept
    def log_p_long_WV(self) -> torch.Tensor:
        """Log-probabilities of the next token with everything visible, fp32 [W, V]."""
        if "attention" in self.needs:
            return self._long_and_attention[0]
        everything = torch.ones(self.num_windows, self.num_long_range, dtype=torch.bool, device=self._device)
        return self._in_order(everything)

    @kept
    def _long_and_attention(self) -> tuple[torch.Tensor, torch.Tensor]:
        return self.engine.long_and_attention(self.batch.tokens_WT)

    def _in_order(self, shown_WM: torch.Tensor) -> torch.Tensor:
        windows = torch.arange(self.num_windows, device=self._device)
        found = torch.empty_like(self.log_p_short_WV)
        for rows, log_p_rV in self.engine.log_probs(self.batch.tokens_WT, windows, shown_WM):
            found[rows] = log_p_rV
        return found

    @property
    def _device(self) -> torch.device:
        return self.batch.tokens_WT.device

    @kept
    def kl_short(self) -> np.ndarray:
        """KL(p_all, p_{}), [W]."""
        return divergence(self.log_p_long_WV, self.log_p_short_WV).cpu().numpy()

    @kept
    def kl_short_to_long(self) -> np.ndarray:
        """KL(p_{}, p_all), [W]."""
        return divergence(self.log_p_short_WV, self.log_p_long_WV).cpu().numpy()

    @kept
    def losses_short_WA(self) -> np.ndarray:
        """loss({}) of each label."""
        return surprisals(self.log_p_short_WV, self.batch.labels_WA).cpu().numpy()

    @kept
    def losses_long_WA(self) -> np.ndarray:
        """loss(all) of each label."""
        return surprisals(self.log_p_long_WV, self.batch.labels_WA).cpu().numpy()

    @property
    def loss_short(self) -> np.ndarray:
        """loss({}), [W]."""
        return self.losses_short_WA[:, self.label]

    @property
    def loss_long(self) -> np.ndarray:
        """loss(all), [W]."""
        return self.losses_long_WA[:, self.label]

    # One candidate, all but one, any sets.

    @kept
    def singles(self) -> Readings:
        """What the model predicts with each candidate alone; [W, I] and [W, I, A]."""
        if all(end - first == 1 for first, end in self.batch.spans):
            found = self._empty(self.num_windows * self.num_candidates)
            for windows_r, positions_r, log_p_rV in self.engine.log_probs_of_singles(self.batch.tokens_WT):
                self._read(found, windows_r * self.num_candidates + positions_r, windows_r, log_p_rV)
        else:
            alone_II = np.eye(self.num_candidates, dtype=bool)
            windows_R = np.repeat(np.arange(self.num_windows), self.num_candidates)
            found = self.read(windows_R, np.tile(alone_II, (self.num_windows, 1)))
        return found.reshaped(self.num_windows, self.num_candidates)

    @property
    def are_singles_known(self) -> bool:
        """Whether ``singles`` has been asked for."""
        return "singles" in self._kept

    @property
    def loss_single(self) -> np.ndarray:
        """loss({i}) of each candidate, [W, I]."""
        return self.singles.losses[:, :, self.label]

    @property
    def kl_single(self) -> np.ndarray:
        """KL(p_all, p_{i}) of each candidate, [W, I]."""
        return self.singles.kl

    @kept
    def _losses_without_WIA(self) -> np.ndarray:
        found = np.empty((self.num_windows, self.num_candidates, self.batch.labels_WA.shape[1]), dtype=np.float32)
        for some_w, number, log_p_wV in self.engine.log_probs_of_all_but(self.batch.tokens_WT, self.batch.spans):
            found[some_w.cpu().numpy(), number] = surprisals(log_p_wV, self.batch.labels_WA[some_w]).cpu().numpy()
        return found

    @property
    def loss_without(self) -> np.ndarray:
        """loss(all but i) of each candidate, [W, I]."""
        return self._losses_without_WIA[:, :, self.label]

    def read(self, windows_R: np.ndarray, shown_RI: np.ndarray) -> Readings:
        """Run windows under visible sets of candidates, of any sizes: losses of all labels [R, A], divergences [R].

        Everything visible is not run again.
        """
        shown_RM = self._positions(shown_RI)
        found, is_all_R = self._empty(len(windows_R)), shown_RM.all(axis=1)
        everything = windows_R[is_all_R]
        found.losses[is_all_R], found.kl[is_all_R] = self.losses_long_WA[everything], 0.0
        found.kl_from_short[is_all_R] = self.kl_short_to_long[everything]
        rest_r = torch.from_numpy(np.flatnonzero(~is_all_R)).to(self._device)
        windows_r = torch.from_numpy(windows_R).to(self._device)[rest_r]
        shown_rM = torch.from_numpy(shown_RM).to(self._device)[rest_r]
        for rows, log_p_rV in self.engine.log_probs(self.batch.tokens_WT, windows_r, shown_rM):
            self._read(found, rest_r[rows], windows_r[rows], log_p_rV)
        return found

    def evaluate(self, shown_WNI: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Losses and divergences KL(p_all, p_S) of N visible sets of candidates for each window, bool -> [W, N] each.

        Without a label the losses are NaN.
        """
        num_windows, number, _ = shown_WNI.shape
        found = self.read(np.repeat(np.arange(num_windows), number), shown_WNI.reshape(-1, self.num_candidates))
        kl = found.kl.reshape(num_windows, number)
        losses = np.full_like(kl, np.nan) if self._label is None else found.losses[:, self._label].reshape(kl.shape)
        return losses, kl

    @kept
    def lasso_sets(self) -> np.ndarray:
        """Random visible sets, each candidate with probability 1/2, bool [W, N, I]."""
        size = (self.lasso_masks, self.num_candidates)
        return np.stack([generator.random(size) < 0.5 for generator in self.generators(LASSO_MASKS)])

    @kept
    def _lasso_readings(self) -> Readings:
        number = self.lasso_sets.shape[1]
        windows_R = np.repeat(np.arange(self.num_windows), number)
        return self.read(windows_R, self.lasso_sets.reshape(-1, self.num_candidates)).reshaped(self.num_windows, number)

    @property
    def lasso_losses(self) -> np.ndarray:
        """The losses under ``lasso_sets``, [W, N]."""
        return self._lasso_readings.losses[:, :, self.label]

    def _empty(self, number: int) -> Readings:
        return Readings(
            np.full((number, self.batch.labels_WA.shape[1]), np.nan, dtype=np.float32),
            *np.full((2, number), np.nan, dtype=np.float32),
        )

    @kept
    def _p_long_WV(self) -> torch.Tensor:
        return self.log_p_long_WV.exp()

    @kept
    def _p_short_WV(self) -> torch.Tensor:
        return self.log_p_short_WV.exp()

    def _read(self, into: Readings, rows: torch.Tensor, windows_r: torch.Tensor, log_p_rV: torch.Tensor) -> None:
        rows_r = rows.cpu().numpy()
        into.losses[rows_r] = surprisals(log_p_rV, self.batch.labels_WA[windows_r]).cpu().numpy()
        long = divergence(self.log_p_long_WV[windows_r], log_p_rV, self._p_long_WV[windows_r])
        into.kl[rows_r] = long.cpu().numpy()
        if self.batch.labels_WA.shape[1] > 1:  # optimism needs it
            short = divergence(self.log_p_short_WV[windows_r], log_p_rV, self._p_short_WV[windows_r])
            into.kl_from_short[rows_r] = short.cpu().numpy()

    def _positions(self, shown_RI: np.ndarray) -> np.ndarray:
        return np.repeat(shown_RI, [end - first for first, end in self.batch.spans], axis=1)

    def per_candidate(self, values_WM: np.ndarray) -> np.ndarray:
        """Sums over the tokens of each candidate, [W, I]; NaN is no value, and a candidate without values is NaN."""
        first_I = [first for first, _ in self.batch.spans]
        has_value = np.add.reduceat(~np.isnan(values_WM), first_I, axis=1, dtype=np.int64) > 0
        return np.where(has_value, np.add.reduceat(np.nan_to_num(values_WM), first_I, axis=1), np.nan)

    # First-order estimates and attention.

    @kept
    def _gradients_AWM(self) -> np.ndarray:
        def losses(windows: torch.Tensor, logits_wV: torch.Tensor) -> torch.Tensor:
            labels = self.batch.labels_WA[windows].unbind(1)
            return torch.stack([F.cross_entropy(logits_wV, of_label, reduction="sum") for of_label in labels])

        return self.engine.gradients(self.batch.tokens_WT, losses).cpu().numpy()

    @property
    def gradient(self) -> np.ndarray:
        """Minus the derivative of the loss by a gate on each candidate, at gate 0, [W, I]."""
        return self.per_candidate(-self._gradients_AWM[self.label])

    def patching_beside(self, shown_WI: np.ndarray) -> np.ndarray:
        """What unmasking each candidate beside the shown ones does to KL(p_all, p), by attribution patching, [W, I]."""
        p_long_WV = self._p_long_WV  # a pass of its own, which must not run while attention is read

        def cross_entropy(windows: torch.Tensor, logits_wV: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(logits_wV, p_long_WV[windows], reduction="sum")

        shown_WM = torch.from_numpy(self._positions(shown_WI)).to(self._device)
        return self.per_candidate(self.engine.patching(self.batch.tokens_WT, shown_WM, cross_entropy).cpu().numpy())

    @property
    def attention(self) -> np.ndarray:
        """Attention of the last token to each candidate under full context, mean over heads and layers, [W, I]."""
        return self.per_candidate(self._long_and_attention[1].cpu().numpy())

    def observed(self, name: str) -> np.ndarray:
        """What one pass under full context gives of layers and heads, [W, layers, heads, ...].

        ``attention_of_heads``, ``accumulated_attention`` and ``observed_attention`` [.., M] are the attention of the last
        token, of all tokens, and of the last 32 local ones; ``queries`` [.., E] of the last token; ``keys`` and ``values`` [..,
        M, E].

        Raises:
            UserError: the attention cannot be read.
        """
        if name not in self._observed:
            of_pass = (self.needs | {name}) - {"attention"}
            self._observed.update(
                self.engine.observed(self.batch.tokens_WT, frozenset(of_pass - self._observed.keys()))
            )
        found: np.ndarray = self._observed[name]
        return found

    @kept
    def _observed(self) -> dict[str, np.ndarray]:
        return {}

    # The text.

    @kept
    def token_ids(self) -> np.ndarray:
        """The tokens without the anchor, int64 [W, T]; the long-range ones are the first M."""
        return self.batch.tokens_WT.cpu().numpy()

    @property
    def first_positions(self) -> np.ndarray:
        """The position ID of the first token of each candidate under full context, int64 [I]."""
        return self.engine.num_anchors + np.array([first for first, _ in self.batch.spans])

    @kept
    def texts(self) -> list[list[str]]:
        """The text of each token, T of each window."""
        assert self.batch.tokenizer is not None
        return [token_texts(self.batch.tokenizer, tokens_T) for tokens_T in self.token_ids]

    @kept
    def sentence_starts(self) -> np.ndarray:
        """Which tokens begin a sentence, bool [W, T]; what begins before the window has no beginning here."""
        assert self.batch.tokenizer is not None
        tokens_WT = self.token_ids
        numbers_WT = group_numbers(self.batch.tokenizer, tokens_WT, num_long_range=tokens_WT.shape[1], unit="sentence")
        return np.diff(numbers_WT, axis=1, prepend=numbers_WT[:, :1]) != 0

    @kept
    def frequencies(self) -> np.ndarray:
        """How often each token occurs in the measured text, int64 [W, T]."""
        assert self.batch.store is not None
        counts_V, tokens_WT = token_counts(self.batch.store), self.token_ids
        return np.where(tokens_WT < len(counts_V), counts_V[tokens_WT.clip(max=len(counts_V) - 1)], 0)

    @property
    def targets(self) -> np.ndarray:
        """The label of each window, int64 [W]."""
        return self.batch.labels_WA[:, self.label].cpu().numpy()

    def generators(self, purpose: int) -> list[np.random.Generator]:
        """A random generator for each window, a function of seed, purpose, window and context alone."""
        context = CONTEXTS.index(self.batch.context)
        return [np.random.default_rng([self.batch.seed, purpose, int(i), context]) for i in self.batch.window_ids_W]


@dataclass(frozen=True)
class Readings:
    """What the model predicts under visible sets; nats, fp32."""

    losses: np.ndarray  # of each label, [..., A]
    kl: np.ndarray  # KL(p_all, p_S), [...]
    kl_from_short: np.ndarray  # KL(p_{}, p_S), [...]; NaN without drawn labels

    def reshaped(self, *shape: int) -> Readings:
        """The same readings in another shape."""
        return Readings(
            self.losses.reshape(*shape, self.losses.shape[-1]),
            self.kl.reshape(shape),
            self.kl_from_short.reshape(shape),
        )


def surprisals(log_p: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """-log p(label) in nats: fp32 [R, V] and int64 [R, A] -> fp32 [R, A]."""
    return -log_p.gather(-1, labels)


def divergence(log_p: torch.Tensor, log_q: torch.Tensor, p: Optional[torch.Tensor] = None) -> torch.Tensor:
    """KL(p, q) in nats over the last dimension; ``p`` saves computing exp(log_p)."""
    return ((log_p.exp() if p is None else p) * (log_p - log_q)).sum(dim=-1)
