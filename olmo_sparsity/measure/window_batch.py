"""Windows under one context: what a selector scores."""

from __future__ import annotations

import dataclasses
from dataclasses import KW_ONLY, dataclass
from typing import Optional

import numpy as np
import torch

from olmo_sparsity.measure.token_groups import TokenGroups

CONTEXTS = ("real", "null")  # the window's own long-range tokens; those of its null context


@dataclass(frozen=True)
class WindowBatch:
    """W windows under one context.

    Attributes:
        tokens_WT: int64, the windows under this context, without their targets.
        targets_W: int64, the token that follows each window.
        window_ids_W: int64, the numbers of the windows in their table.
        context: ``real`` or ``null``.
        seed: of everything that is drawn at random for these windows.
        groups: what is unmasked at once; None: single tokens.
    """

    tokens_WT: torch.Tensor
    targets_W: torch.Tensor
    _: KW_ONLY
    window_ids_W: np.ndarray
    context: str
    seed: int
    groups: Optional[TokenGroups] = None

    def __len__(self) -> int:
        return len(self.window_ids_W)

    @property
    def device(self) -> torch.device:
        """Where the tokens are."""
        return self.tokens_WT.device

    def generators(self, purpose: int) -> list[np.random.Generator]:
        """Return one generator per window, a function of seed, purpose, window and context alone."""
        context = CONTEXTS.index(self.context)
        return [np.random.default_rng([self.seed, purpose, int(i), context]) for i in self.window_ids_W]

    def subset(self, chosen_w: np.ndarray) -> WindowBatch:
        """Return some of the windows (int64 indices)."""
        rows_w = torch.from_numpy(chosen_w).to(self.device)
        return dataclasses.replace(
            self,
            tokens_WT=self.tokens_WT[rows_w],
            targets_W=self.targets_W[rows_w],
            window_ids_W=self.window_ids_W[chosen_w],
            groups=None if self.groups is None else self.groups.subset(chosen_w),
        )
