"""What selectors ask about windows, for one label. The forward passes are cached and shared.

What is scored are groups of long-range tokens (``olmo_sparsity.measure.visible.window_batch``), I of them in the window with the
most; {j} is the visible set of group j. By default each token is a group, and a group's number is its position.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from functools import cached_property

import numpy as np
import torch
import torch.nn.functional as F

from olmo_sparsity.measure.selection.predictions import GroupSets, Predictions
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import (
    LossFunction,
    divergence,
    estimates_beside,
    read_sets,
)
from olmo_sparsity.measure.visible.passes import Rows, VisibleSets
from olmo_sparsity.measure.visible.window_batch import TokenGroups, WindowBatch
from olmo_sparsity.records.window_input import WindowInput


@dataclass(frozen=True)
class WindowScores:
    """What selectors ask about W windows under one context; losses and divergences are in nats.

    Attributes:
        predictions: of the model about the windows.
        max_k: the largest k that will be asked for.
        label: which of the labels the losses are of; 0: the target.
    """

    predictions: Predictions
    _: KW_ONLY
    max_k: int
    label: int = 0

    @property
    def evaluator(self) -> Evaluator:
        """The model."""
        return self.predictions.evaluator

    @property
    def windows(self) -> WindowBatch:
        """The windows. Their targets are not the labels if ``label`` is above 0."""
        return self.predictions.windows

    @property
    def num_long_range(self) -> int:
        """M, the number of long-range positions."""
        return self.predictions.num_long_range

    @property
    def groups(self) -> TokenGroups:
        """What is scored and unmasked."""
        return self.predictions.groups

    @property
    def labels_W(self) -> torch.Tensor:
        """The tokens that the losses are of, int64 [W]."""
        return self.predictions.labels_WA[:, self.label]

    def evaluate_rows(self, rows: Sequence[np.ndarray], *, with_kl: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return loss(S) and KL(p_all, p_S) of visible sets of any windows. The set of all positions is not run again.

        Args:
            rows: int64 [R, 1 + S] for each size S: in each row the index of a window, then its visible long-range positions.
            with_kl: compute the divergences, too.

        Returns:
            For each size, (losses, fp32 [R]; divergences, fp32 [R], all NaN without ``with_kl``).
        """
        is_known = [rows_RS.shape[1] == 1 + self.num_long_range for rows_RS in rows]
        asked = [rows_RS for rows_RS, known in zip(rows, is_known, strict=True) if not known]
        run = iter(self._run_rows(asked, with_kl=with_kl))
        return [
            self._everything_visible(rows_RS[:, 0], with_kl=with_kl) if known else next(run)
            for rows_RS, known in zip(rows, is_known, strict=True)
        ]

    def _everything_visible(self, windows_R: np.ndarray, *, with_kl: bool) -> tuple[np.ndarray, np.ndarray]:
        """Return loss(all), fp32 [R], and KL(p_all, p_all) = 0, or NaN without ``with_kl``."""
        return self.loss_long_W[windows_R], np.full(len(windows_R), 0 if with_kl else np.nan, dtype=np.float32)

    def _run_rows(self, rows: Sequence[np.ndarray], *, with_kl: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        """Do what ``evaluate_rows`` does, in forward passes."""
        tensors = [torch.from_numpy(rows_RS).to(self.windows.device) for rows_RS in rows]
        readouts = read_sets(
            self.evaluator,
            self.windows.tokens_WT,
            labels_WA=self.labels_W[:, None],
            sets=[VisibleSets(rows_RS[:, 0], rows_RS[:, 1:]) for rows_RS in tensors],
            references=(self.predictions.log_p_long_WV,) if with_kl else (),
        )
        found = []
        for readout in readouts:
            losses_R = readout.losses_RA[:, 0]
            divergences_R = readout.divergences[0] if with_kl else torch.full_like(losses_R, torch.nan)
            found.append((losses_R.cpu().numpy(), divergences_R.cpu().numpy()))
        return found

    def evaluate_groups(self, sets: Sequence[GroupSets], *, with_kl: bool) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return loss(S) and KL(p_all, p_S) of visible sets of groups of any windows.

        Args:
            sets: of any sizes.
            with_kl: compute the divergences, too.

        Returns:
            For each entry, (losses, fp32 [R]; divergences, fp32 [R], all NaN without ``with_kl``).
        """
        by_size = [self.groups.rows_by_size(windows_R, groups_RS) for windows_R, groups_RS in sets]
        rows = [
            np.column_stack([windows_R[rows_r], visible_rS])
            for (windows_R, _), of_entry in zip(sets, by_size, strict=True)
            for rows_r, visible_rS in of_entry
        ]
        evaluated = iter(self.evaluate_rows(rows, with_kl=with_kl))
        found = []
        for (windows_R, _), of_entry in zip(sets, by_size, strict=True):
            losses_R, divergences_R = np.empty((2, len(windows_R)), dtype=np.float32)
            for rows_r, _ in of_entry:
                losses_R[rows_r], divergences_R[rows_r] = next(evaluated)
            found.append((losses_R, divergences_R))
        return found

    def inputs(self, needs: Iterable[str], *, with_label: bool = False) -> Iterable[WindowInput]:
        """Yield what is needed of each window; ``with_label``: the label of the losses, too, as ``target``."""
        return self.predictions.inputs(needs, labels_W=self.labels_W if with_label else None)

    def subset(self, chosen_w: np.ndarray) -> WindowScores:
        """Return some of the windows (int64 indices) and their targets, with an empty cache."""
        return WindowScores(self.predictions.subset(chosen_w), max_k=self.max_k)

    def of_label(self, label: int) -> WindowScores:
        """Return the scores of the same windows for another label. They share the predictions."""
        return dataclasses.replace(self, label=label)

    @property
    def loss_short_W(self) -> np.ndarray:
        """loss({}), fp32 [W]."""
        return self.predictions.loss_short_WA[:, self.label]

    @property
    def loss_long_W(self) -> np.ndarray:
        """loss(all), fp32 [W]."""
        return self.predictions.loss_long_WA[:, self.label]

    @cached_property
    def kl_short_W(self) -> np.ndarray:
        """KL(p_all, p_{}), fp32 [W]."""
        return divergence(self.predictions.log_p_long_WV, self.predictions.log_p_short_WV).cpu().numpy()

    @cached_property
    def gradient_WI(self) -> np.ndarray:
        """Minus the derivative of the loss with respect to gates on the tokens of group j, at gate 0; their sum, fp32 [W, I]."""
        return -self.groups.sums(self.predictions.gradients_AWM[self.label])

    @property
    def loss_all_but_one_WI(self) -> np.ndarray:
        """loss(all but j), fp32 [W, I]."""
        return self.predictions.losses_all_but_one_WIA[:, :, self.label]

    @property
    def lasso_loss_WN(self) -> np.ndarray:
        """The losses under the random visible sets ``Predictions.lasso_masks_WNI``, fp32 [W, N]."""
        return self.predictions.lasso_losses_WNA[:, :, self.label]

    @property
    def loss_single_WI(self) -> np.ndarray:
        """loss({j}), fp32 [W, I]; NaN where a window has no more groups."""
        return self.predictions.singles.losses_WIA[:, :, self.label]

    @property
    def kl_single_WI(self) -> np.ndarray:
        """KL(p_all, p_{j}), fp32 [W, I]; NaN where a window has no more groups."""
        assert self.predictions.with_kl, "with_kl must be set where a selector asks for divergences"
        kl_WI = self.predictions.singles.kl_WI
        assert kl_WI is not None, "the predictions keep divergences"
        return kl_WI

    def patching_beside(self, groups_WS: np.ndarray) -> np.ndarray:
        """Return what unmasking each group beside some others would do to KL(p_all, p), by attribution patching; fp32 [W, I].

        NaN where a window has no such group. What it is for the others themselves means nothing.

        Args:
            groups_WS: int64, the groups that are visible already; -1: none.
        """
        windows_W, loss_function = np.arange(len(self.windows)), _cross_entropy(self.predictions.log_p_long_WV.exp())
        estimates_WM = np.empty((len(windows_W), self.num_long_range), dtype=np.float32)
        for of_size_w, visible_wS in self.groups.rows_by_size(windows_W, groups_WS):
            sets = VisibleSets(*(torch.from_numpy(x).to(self.windows.device) for x in (of_size_w, visible_wS)))
            estimates_wM = estimates_beside(self.evaluator, self.windows.tokens_WT, sets, loss_function=loss_function)
            estimates_WM[of_size_w] = estimates_wM.cpu()
        return self.groups.sums(estimates_WM)


def _cross_entropy(labels: torch.Tensor) -> LossFunction:
    """Return the sum of the cross-entropies of some windows, as a function; labels: token IDs [W], or probabilities [W, V].

    KL(p_all, q) and the cross-entropy of q under p_all differ by a constant.
    """

    def loss(windows: Rows, logits_wV: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(logits_wV, labels[windows], reduction="sum")

    return loss
