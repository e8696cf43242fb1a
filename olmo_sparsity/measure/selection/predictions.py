"""What the model predicts about windows, computed when first asked for, then cached and shared.

One forward pass serves every label. A *label* is a token whose loss is asked for: the target, or a token drawn in its place
(``olmo_sparsity.measure.selection.window_influence``). p_all is the full-context prediction. A *group* is what is unmasked at
once: one long-range token or several (``olmo_sparsity.measure.visible.window_batch``); {j} is the visible set of group j.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Optional

import numpy as np
import torch
import torch.nn.functional as F

from olmo_sparsity.measure.selection.window_inputs import observed, text_inputs
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.group_losses import all_but_one_group_losses, read_single_groups
from olmo_sparsity.measure.visible.losses import (
    all_but_one_losses,
    divergence,
    gate_gradients,
    log_probs,
    long_log_probs_and_attention,
    mask_losses,
    read_sets,
    read_singles,
    surprisals,
)
from olmo_sparsity.measure.visible.passes import Rows, VisibleSets
from olmo_sparsity.measure.visible.window_batch import TokenGroups, WindowBatch, single_tokens
from olmo_sparsity.records.window_input import NEEDS, OF_PASS, WindowInput

LASSO_MASKS = 4  # purpose of a random generator; a change would change the tables


# Visible sets of groups, of one size: (window of each set, int64 [R]; its groups, int64 [R, S]; -1: none).
GroupSets = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class SharedSingles:
    """What the model predicts under each visible set {j}, for all groups; nats, fp32.

    Where a window has no more groups they are NaN.

    Attributes:
        losses_WIA: loss({j}) of each label.
        kl_WI: KL(p_all, p_{j}); None where it was not asked for.
        kl_from_short_WI: KL(p_{}, p_{j}); None where it was not asked for.
    """

    losses_WIA: np.ndarray
    kl_WI: Optional[np.ndarray] = None
    kl_from_short_WI: Optional[np.ndarray] = None


@dataclass(frozen=True)
class SetReadings:
    """What the model predicts about windows under R visible sets S; nats, fp32."""

    losses_RA: np.ndarray  # loss(S) of each label
    kl_R: np.ndarray  # KL(p_all, p_S); NaN where it was not asked for
    kl_from_short_R: np.ndarray  # KL(p_{}, p_S); NaN without drawn labels


@dataclass(frozen=True)
class Predictions:
    """What the model predicts about W windows under one context; losses and divergences are in nats.

    Attributes:
        evaluator: the model.
        windows: the windows.
        log_p_short_WV: log-probabilities of the next token with only the local tokens visible. They are the same under
            every context, so the caller computes them.
        drawn_labels_WA: int64, labels besides the target; None: none.
        num_lasso_masks: the number of random visible sets that ``lasso`` fits.
        with_kl: keep the divergences of the single-token unmaskings beside their losses.
        with_attention: the attention under full context will be asked for, so that on the compact path one pass gives both it
            and the full-context prediction.
        needs: what selectors will need of each window (``NEEDS``), so that one pass serves all of them.
    """

    evaluator: Evaluator
    windows: WindowBatch
    _: KW_ONLY
    log_p_short_WV: torch.Tensor
    drawn_labels_WA: Optional[torch.Tensor] = None
    num_lasso_masks: int = 64
    with_kl: bool = False
    with_attention: bool = False
    needs: frozenset[str] = frozenset()
    _observed: dict[str, np.ndarray] = field(default_factory=dict, init=False, repr=False, compare=False)

    def subset(self, chosen_w: np.ndarray) -> Predictions:
        """Return some of the windows (int64 indices), with the target as the only label and an empty cache."""
        rows_w = torch.from_numpy(chosen_w).to(self.windows.device)
        return dataclasses.replace(
            self,
            windows=self.windows.subset(chosen_w),
            log_p_short_WV=self.log_p_short_WV[rows_w],
            drawn_labels_WA=None,
            with_attention=False,
        )

    @property
    def with_short_kl(self) -> bool:
        """Whether divergences from the short-context prediction are kept: the optimism of choices needs them."""
        return self.drawn_labels_WA is not None

    @property
    def num_long_range(self) -> int:
        """M, the number of long-range positions."""
        return self.windows.tokens_WT.shape[1] - self.evaluator.local_len

    @cached_property
    def labels_WA(self) -> torch.Tensor:
        """The labels, the target first; int64 [W, A]."""
        targets_W1 = self.windows.targets_W[:, None]
        return targets_W1 if self.drawn_labels_WA is None else torch.cat([targets_W1, self.drawn_labels_WA], dim=1)

    @cached_property
    def groups(self) -> TokenGroups:
        """What is unmasked at once."""
        groups = self.windows.groups
        return single_tokens(len(self.windows), self.num_long_range) if groups is None else groups

    @cached_property
    def all_positions_WM(self) -> torch.Tensor:
        """All long-range positions, int64 [W, M]."""
        return torch.arange(self.num_long_range, device=self.windows.device).expand(len(self.windows), -1)

    @cached_property
    def log_p_long_WV(self) -> torch.Tensor:
        """Log-probabilities of the next token under full context, fp32 [W, V]."""
        if self._shares_full_context:
            return self._full_context[0]
        return log_probs(self.evaluator, self.windows.tokens_WT, visible_WS=self.all_positions_WM)

    @cached_property
    def attention_WM(self) -> torch.Tensor:
        """The attention of the last token to each long-range one under full context, fp32 [W, M]."""
        if self._shares_full_context:
            return self._full_context[1]
        return long_log_probs_and_attention(self.evaluator, self.windows.tokens_WT)[1]

    @property
    def _shares_full_context(self) -> bool:
        """Whether one pass gives both the full-context prediction and the attention."""
        return self.with_attention and self.evaluator.path == "compact"

    @cached_property
    def _full_context(self) -> tuple[torch.Tensor, torch.Tensor]:
        return long_log_probs_and_attention(self.evaluator, self.windows.tokens_WT)

    @cached_property
    def loss_short_WA(self) -> np.ndarray:
        """loss({}) of each label, fp32 [W, A]."""
        return surprisals(self.log_p_short_WV, self.labels_WA).cpu().numpy()

    @cached_property
    def loss_long_WA(self) -> np.ndarray:
        """loss(all) of each label, fp32 [W, A]."""
        return surprisals(self.log_p_long_WV, self.labels_WA).cpu().numpy()

    @cached_property
    def kl_short_to_long_W(self) -> np.ndarray:
        """KL(p_{}, p_all), fp32 [W]."""
        return divergence(self.log_p_short_WV, self.log_p_long_WV).cpu().numpy()

    @cached_property
    def entropy_short_W(self) -> np.ndarray:
        """The entropy of the short-context prediction, fp32 [W]."""
        return -(self.log_p_short_WV.exp() * self.log_p_short_WV).sum(dim=-1).cpu().numpy()

    @cached_property
    def losses_all_but_one_WIA(self) -> np.ndarray:
        """loss(all but group j) of each label, fp32 [W, I, A]; NaN where a window has no more groups."""
        if self.groups.is_single:
            losses_WIA = all_but_one_losses(self.evaluator, self.windows.tokens_WT, labels_WA=self.labels_WA)
        else:
            losses_WIA = all_but_one_group_losses(
                self.evaluator, self.windows.tokens_WT, groups=self.groups, labels_WA=self.labels_WA
            )
        return losses_WIA.cpu().numpy()

    @cached_property
    def gradients_AWM(self) -> np.ndarray:
        """The derivatives of the loss of each label by gates on all positions, at gate 0; fp32 [A, W, M]."""

        def losses(rows: Rows, logits_wV: torch.Tensor) -> torch.Tensor:
            labels_wA = self.labels_WA[rows]
            return torch.stack(
                [F.cross_entropy(logits_wV, labels_w, reduction="sum") for labels_w in labels_wA.unbind(1)]
            )

        return gate_gradients(self.evaluator, self.windows.tokens_WT, loss_function=losses).cpu().numpy()

    @cached_property
    def lasso_masks_WNI(self) -> np.ndarray:
        """The random visible sets of ``lasso``, bool [W, N, I]; each group is visible with probability 1/2."""
        masks_WNI = np.zeros((len(self.windows), self.num_lasso_masks, self.groups.num_groups), dtype=bool)
        generators = self.windows.generators(LASSO_MASKS)
        for w, (generator, num_groups) in enumerate(zip(generators, self.groups.num_groups_W.tolist(), strict=True)):
            masks_WNI[w, :, :num_groups] = generator.random((self.num_lasso_masks, num_groups)) < 0.5
        return masks_WNI

    @cached_property
    def lasso_losses_WNA(self) -> np.ndarray:
        """The losses of each label under the random visible sets of ``lasso``, fp32 [W, N, A]."""
        masks_WNM = np.take_along_axis(self.lasso_masks_WNI, self.groups.groups_WM[:, None, :], axis=2)
        visible_WNM = torch.from_numpy(masks_WNM).to(self.windows.device)
        losses_WNA = mask_losses(
            self.evaluator, self.windows.tokens_WT, labels_WA=self.labels_WA, visible_WNM=visible_WNM
        )
        return losses_WNA.cpu().numpy()

    def inputs(self, needs: Iterable[str], *, labels_W: Optional[torch.Tensor]) -> Iterator[WindowInput]:
        """Yield what a selector needs of each window; ``labels_W``: the label of each, int64, if it sees one.

        Raises:
            UserError: the attention of the model cannot be read.
        """
        wanted = [name for name in NEEDS if name in set(needs)]
        missing = set(wanted) & set(OF_PASS) - set(self._observed)
        if missing:
            asked = missing | (self.needs & set(OF_PASS)) - set(self._observed)
            self._observed.update(observed(self.evaluator, self.windows.tokens_WT, needs=asked))
        arrays = {name: self._observed[name] for name in wanted if name in OF_PASS}
        if "short_prediction" in wanted:
            arrays["short_prediction"] = self.log_p_short_WV.cpu().numpy()
        if "long_prediction" in wanted:
            arrays["long_prediction"] = self.log_p_long_WV.cpu().numpy()
        for w, given in enumerate(text_inputs(self.windows, self.evaluator, needs=wanted)):
            given |= {name: values[w] for name, values in arrays.items()}
            if labels_W is not None:
                given["target"] = int(labels_W[w])
            for name, value in given.items():
                if isinstance(value, np.ndarray):
                    given[name] = value.copy()  # torch.from_numpy writes through a view that cannot be written to
                    given[name].flags.writeable = False
            yield WindowInput(self.num_long_range, self.evaluator.local_len, given)

    @property
    def known_singles(self) -> Optional[SharedSingles]:
        """The unmaskings of every single group, if they have been computed."""
        return vars(self).get("singles")  # there cached_property keeps it

    @cached_property
    def singles(self) -> SharedSingles:
        """The unmaskings of every single group."""
        tokens_WT, log_p_short_WV = self.windows.tokens_WT, self.log_p_short_WV if self.with_short_kl else None
        labels_WA, reference_WV = self.labels_WA, self.log_p_long_WV if self.with_kl else None
        if self.groups.is_single:
            singles = read_singles(
                self.evaluator,
                tokens_WT,
                labels_WA=labels_WA,
                candidates_WJ=self.all_positions_WM,
                reference_WV=reference_WV,
                log_p_short_WV=log_p_short_WV,
            )
        else:
            singles = read_single_groups(
                self.evaluator,
                tokens_WT,
                groups=self.groups,
                labels_WA=labels_WA,
                reference_WV=reference_WV,
                log_p_short_WV=log_p_short_WV,
            )
        from_short_WI = singles.kl_from_short_WJ
        return SharedSingles(
            losses_WIA=singles.losses_WJA.cpu().numpy(),
            kl_WI=None if singles.kl_WJ is None else singles.kl_WJ.cpu().numpy(),
            kl_from_short_WI=None if from_short_WI is None else from_short_WI.cpu().numpy(),
        )

    def read_groups(self, sets: Sequence[GroupSets], *, with_kl: bool) -> list[SetReadings]:
        """Run windows under visible sets of groups, and read the losses of all labels and the divergences.

        Args:
            sets: any number of times (int64 [R], indices of windows; int64 [R, S], the groups of each set; -1: none).
            with_kl: measure ``kl_R``. The set of all positions is not run again.

        Returns:
            The readings of each entry of ``sets``.
        """
        device, groups = self.windows.device, self.groups
        num_labels = self.labels_WA.shape[1]
        found = [
            SetReadings(
                np.full((len(windows_R), num_labels), np.nan, dtype=np.float32),
                *np.full((2, len(windows_R)), np.nan, dtype=np.float32),
            )
            for windows_R, _ in sets
        ]
        places, asked = [], []
        for readings, (windows_R, groups_RS) in zip(found, sets, strict=True):
            for rows_r, visible_rS in groups.rows_by_size(windows_R, groups_RS):
                if visible_rS.shape[1] == self.num_long_range:
                    self._fill_with_everything(readings, rows_r, windows_r=windows_R[rows_r], with_kl=with_kl)
                    continue
                places.append((readings, rows_r))
                windows_r = torch.from_numpy(windows_R[rows_r]).to(device)
                asked.append(VisibleSets(windows_r, torch.from_numpy(visible_rS).to(device)))
        references = (self.log_p_long_WV,) if with_kl else ()
        readouts = read_sets(
            self.evaluator,
            self.windows.tokens_WT,
            labels_WA=self.labels_WA,
            sets=asked,
            references=(*references, *((self.log_p_short_WV,) if self.with_short_kl else ())),
        )
        for (readings, rows_r), readout in zip(places, readouts, strict=True):
            readings.losses_RA[rows_r] = readout.losses_RA.cpu().numpy()
            if with_kl:
                readings.kl_R[rows_r] = readout.divergences[0].cpu().numpy()
            if self.with_short_kl:
                readings.kl_from_short_R[rows_r] = readout.divergences[-1].cpu().numpy()
        return found

    def _fill_with_everything(
        self, readings: SetReadings, rows_r: np.ndarray, *, windows_r: np.ndarray, with_kl: bool
    ) -> None:
        """Fill in what is known of the set of all positions."""
        readings.losses_RA[rows_r] = self.loss_long_WA[windows_r]
        if with_kl:
            readings.kl_R[rows_r] = 0
        if self.with_short_kl:
            readings.kl_from_short_R[rows_r] = self.kl_short_to_long_W[windows_r]
