"""What selectors ask about windows, for one label and one reference. The forward passes are cached and shared."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from functools import cached_property
from typing import Literal, Optional

import numpy as np
import torch
import torch.nn.functional as F

from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.hierarchy import Rows, block_sizes, order_by_blocks
from olmo_sparsity.measure.losses import divergence, gate_gradients, read_groups, target_losses
from olmo_sparsity.measure.passes import RowGroup
from olmo_sparsity.measure.predictions import Predictions, SharedSingles
from olmo_sparsity.measure.screening import ScreeningSettings, in_vocabulary
from olmo_sparsity.measure.window_batch import WindowBatch
from olmo_sparsity.model.gates import Estimate

Criterion = Literal["loss", "kl"]  # what candidates are ranked by: loss of the label, or divergence from the reference


@dataclass(frozen=True)
class SingleUnmaskings:
    """What the model predicts under each visible set {j}; NaN where {j} was not evaluated."""

    loss_WM: np.ndarray  # loss({j}), nats, fp32
    kl_WM: np.ndarray  # KL(p_all, p_{j}), nats, fp32; all NaN without ``Predictions.with_kl``


@dataclass(frozen=True)
class WindowScores:
    """What selectors ask about W windows under one context; losses and divergences are in nats.

    Attributes:
        predictions: of the model about the windows.
        max_k: the largest k that will be asked for.
        screening: unmask only some candidates one by one; None: all of them.
        label: which of the labels the losses are of; 0: the target.
        reference: which of the references the divergences are from; 0: the full-context prediction p_all.
    """

    predictions: Predictions
    _: KW_ONLY
    max_k: int
    screening: Optional[ScreeningSettings] = None
    label: int = 0
    reference: int = 0
    _screened_singles: dict[Criterion, SingleUnmaskings] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

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
    def all_positions_WM(self) -> torch.Tensor:
        """All long-range positions, int64 [W, M]."""
        return self.predictions.all_positions_WM

    @property
    def labels_W(self) -> torch.Tensor:
        """The tokens that the losses are of, int64 [W]."""
        return self.predictions.labels_WA[:, self.label]

    @property
    def reference_WV(self) -> torch.Tensor:
        """The prediction p_all that the divergences are from: log-probabilities, fp32 [W, V]."""
        return self.predictions.references[self.reference]

    def losses(self, visible_WNS: torch.Tensor) -> np.ndarray:
        """Return loss(S) of N visible sets per window, fp32 [W, N]."""
        windows = self.windows
        losses_WN, _ = target_losses(
            self.evaluator, windows.tokens_WT, targets_W=self.labels_W, visible_WNS=visible_WNS
        )
        return losses_WN.cpu().numpy()

    def divergences(self, visible_WNS: torch.Tensor) -> np.ndarray:
        """Return KL(p_all, p_S) of N visible sets per window, fp32 [W, N]."""
        _, divergences_WN = target_losses(
            self.evaluator,
            self.windows.tokens_WT,
            targets_W=self.labels_W,
            visible_WNS=visible_WNS,
            reference_WV=self.reference_WV,
        )
        assert divergences_WN is not None
        return divergences_WN.cpu().numpy()

    def evaluate_rows(
        self, rows: Sequence[np.ndarray], *, with_kl: bool, evaluator: Optional[Evaluator] = None
    ) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return loss(S) and KL(p_all, p_S) of visible sets of any windows.

        Args:
            rows: int64 [R, 1 + S] for each size S: in each row the index of a window, then its visible long-range positions.
            with_kl: compute the divergences, too.
            evaluator: the model that evaluates them; None: the one whose losses are reported.

        Returns:
            For each size, (losses, fp32 [R]; divergences, fp32 [R], all NaN without ``with_kl``).
        """
        tensors = [torch.from_numpy(rows_RS).to(self.windows.device) for rows_RS in rows]
        evaluator = evaluator or self.evaluator
        readouts = read_groups(
            evaluator,
            self.windows.tokens_WT,
            labels_WA=self.labels_W[:, None],
            groups=[RowGroup(rows_RS[:, 0], rows_RS[:, 1:]) for rows_RS in tensors],
            reference_WV=in_vocabulary(self.reference_WV, evaluator.model.vocab_size) if with_kl else None,
        )
        found = []
        for readout in readouts:
            losses_R, divergences_R = readout.losses_RA[:, 0], readout.divergences_R
            if divergences_R is None:
                divergences_R = torch.full_like(losses_R, torch.nan)
            found.append((losses_R.cpu().numpy(), divergences_R.cpu().numpy()))
        return found

    def without_screening(self, chosen_w: np.ndarray) -> WindowScores:
        """Return some of the windows (int64 indices) and their targets, with an empty cache and nothing screened."""
        return WindowScores(self.predictions.subset(chosen_w), max_k=self.max_k)

    def of_label(self, label: int) -> WindowScores:
        """Return the scores of the same windows for another label. They share the predictions."""
        return dataclasses.replace(self, label=label)

    def imitating(self) -> WindowScores:
        """Return the scores of the same windows with ``Predictions.imitated_WV`` as the reference."""
        return dataclasses.replace(self, reference=1)

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
        return divergence(self.reference_WV, self.predictions.log_p_short_WV).cpu().numpy()

    @cached_property
    def gradient_WM(self) -> np.ndarray:
        """Minus the derivative of the loss with respect to a gate on j, at gate 0, fp32 [W, M]."""
        return -self._gate_gradients(self.evaluator, "loss")

    @property
    def loss_all_but_one_WM(self) -> np.ndarray:
        """loss(all but j), fp32 [W, M]."""
        return self.predictions.losses_all_but_one_WMA[:, :, self.label]

    @property
    def lasso_loss_WN(self) -> np.ndarray:
        """The losses under the random visible sets ``Predictions.lasso_masks_WNM``, fp32 [W, N]."""
        return self.predictions.lasso_losses_WNA[:, :, self.label]

    @property
    def loss_single_WM(self) -> np.ndarray:
        """loss({j}), fp32 [W, M]; NaN where screening left it out."""
        return self._single_unmaskings("loss").loss_WM

    @property
    def kl_single_WM(self) -> np.ndarray:
        """KL(p_all, p_{j}), fp32 [W, M]; NaN where screening left it out."""
        assert self.predictions.with_kl, "with_kl must be set where `kl` is among the selectors"
        return self._single_unmaskings("kl").kl_WM

    @property
    def known_singles(self) -> SingleUnmaskings:
        """The single unmaskings that have been evaluated so far, NaN elsewhere. Evaluates nothing."""
        shared = self.predictions.known_singles
        if self.screening is None and shared is not None:
            return self._of_shared(shared)
        known_WM = np.full(self.all_positions_WM.shape, np.nan, dtype=np.float32)
        known = SingleUnmaskings(known_WM, known_WM)
        criteria: tuple[Criterion, ...] = ("loss", "kl")
        for criterion in criteria:
            if criterion in self._screened_singles:
                singles = self._screened_singles[criterion]
                is_unknown_WM = np.isnan(known.loss_WM)
                known = SingleUnmaskings(
                    np.where(is_unknown_WM, singles.loss_WM, known.loss_WM),
                    np.where(is_unknown_WM, singles.kl_WM, known.kl_WM),
                )
        return known

    def _single_unmaskings(self, criterion: Criterion) -> SingleUnmaskings:
        """Return the single unmaskings of all candidates, or of those that screening by ``criterion`` chooses."""
        if self.screening is None:
            return self._of_shared(self.predictions.singles(self.evaluator))
        if criterion not in self._screened_singles:
            self._screened_singles[criterion] = self._screened(self.screening, criterion)
        return self._screened_singles[criterion]

    def _of_shared(self, singles: SharedSingles) -> SingleUnmaskings:
        """Return the single unmaskings of this label and reference."""
        return _singles_of(singles, label=self.label, reference=self.reference)

    def _screened(self, screening: ScreeningSettings, criterion: Criterion) -> SingleUnmaskings:
        """Unmask one by one the candidates with the lowest estimated loss, or divergence."""
        best_WJ = rank(-self._estimates(screening, criterion))[:, : screening.num_candidates].copy()
        singles = self.predictions.unmask(
            self.evaluator,
            torch.from_numpy(best_WJ).to(self.windows.device),
            labels_WA=self.labels_W[:, None],
            references=(self.reference_WV,) if self.predictions.with_kl else (),
        )
        return _singles_of(singles, label=0, reference=0)

    def _estimates(self, screening: ScreeningSettings, criterion: Criterion) -> np.ndarray:
        """Return what ranks the candidates as the loss does, or the divergence: lower is better; [W, M]."""
        ranker = screening.ranker or self.evaluator
        if screening.ranking == "proxy":
            singles = self._of_shared(self.predictions.singles(ranker))
            return singles.loss_WM if criterion == "loss" else singles.kl_WM
        if screening.ranking == "hierarchy":
            return self._order_by_blocks(ranker, criterion, num_found=screening.num_candidates)
        if screening.ranker is None and criterion == "loss" and screening.ranking == "gradient":
            return -self.gradient_WM
        return self._gate_gradients(ranker, criterion, "patching" if screening.ranking == "patching" else "gate")

    def _order_by_blocks(self, ranker: Evaluator, criterion: Criterion, *, num_found: int) -> np.ndarray:
        num_candidates_W = [self.num_long_range] * len(self.windows)

        def evaluate(rows: Sequence[Rows]) -> list[np.ndarray]:
            found = self.evaluate_rows(
                [np.column_stack([windows_R, sets_RS]) for windows_R, sets_RS in rows],
                with_kl=criterion == "kl",
                evaluator=ranker,
            )
            return [losses_R if criterion == "loss" else divergences_R for losses_R, divergences_R in found]

        sizes = block_sizes(self.num_long_range, num_found)
        return order_by_blocks(evaluate, num_candidates_W, num_found=num_found, sizes=sizes)

    def _gate_gradients(self, evaluator: Evaluator, criterion: Criterion, estimate: Estimate = "gate") -> np.ndarray:
        reference_WV = in_vocabulary(self.reference_WV, evaluator.model.vocab_size)

        def loss_function(rows: slice, logits_wV: torch.Tensor) -> torch.Tensor:
            # KL(p_all, q) and the cross-entropy of q under p_all differ by a constant.
            labels_w = self.labels_W[rows] if criterion == "loss" else reference_WV[rows].exp()
            return F.cross_entropy(logits_wV, labels_w, reduction="sum")

        tokens_WT = self.windows.tokens_WT
        return gate_gradients(evaluator, tokens_WT, loss_function=loss_function, estimate=estimate).cpu().numpy()


def _singles_of(singles: SharedSingles, *, label: int, reference: int) -> SingleUnmaskings:
    loss_WM = singles.losses_WMA[:, :, label]
    return SingleUnmaskings(
        loss_WM, singles.divergences[reference] if singles.divergences else np.full_like(loss_WM, np.nan)
    )


def rank(scores_WM: np.ndarray) -> np.ndarray:
    """Return the positions of each window by falling score, int64 [W, M].

    Of equal scores the nearer position (the larger) comes first. NaN comes last.
    """
    num_long_range = scores_WM.shape[1]
    return num_long_range - 1 - np.argsort(-scores_WM[:, ::-1], axis=1, kind="stable")
