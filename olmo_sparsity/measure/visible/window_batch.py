"""Windows under one context, and the groups of their long-range tokens: what a selector scores.

A group is what is unmasked, ranked and counted (``influence.unit``). Windows have different numbers of groups. Arrays over groups
are as wide as the window with the most, and hold NaN, or group -1, where a window has no more. Where every token is a group,
group j is position j.

Shape letters: W windows, M long-range positions, I groups, S groups of a set, R rows.
"""

from __future__ import annotations

import dataclasses
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from typing import Optional

import numpy as np
import torch
from tokenizers import Tokenizer

from olmo_sparsity.records.selectors import NO_GROUP
from olmo_sparsity.text.store import TokenStore

CONTEXTS = ("real", "null")  # the window's own long-range tokens; those of its null context


@dataclass(frozen=True, eq=False)
class TokenGroups:
    """The groups of W windows: consecutive long-range positions; every position is in one.

    Attributes:
        groups_WM: int64, the number of each position's group; from 0 on, rising by 0 or 1.
    """

    groups_WM: np.ndarray

    @cached_property
    def num_groups_W(self) -> np.ndarray:
        """The number of groups of each window, int64."""
        return self.groups_WM[:, -1] + 1

    @property
    def num_groups(self) -> int:
        """I, the number of groups of the window with the most."""
        return int(self.num_groups_W.max(initial=0))

    @cached_property
    def is_single(self) -> bool:
        """True if every token is a group."""
        return bool((self.num_groups_W == self.groups_WM.shape[1]).all())

    @cached_property
    def sizes_WI(self) -> np.ndarray:
        """The number of tokens of each group, int64; 0 where a window has no more."""
        num_windows, width = len(self.groups_WM), self.num_groups
        index_WM = self.groups_WM + width * np.arange(num_windows)[:, None]
        return np.bincount(index_WM.ravel(), minlength=num_windows * width).reshape(num_windows, width)

    @cached_property
    def first_WI(self) -> np.ndarray:
        """The first position of each group, int64; M where a window has no more."""
        return np.cumsum(self.sizes_WI, axis=1) - self.sizes_WI

    @cached_property
    def exists_WI(self) -> np.ndarray:
        """Which of the I groups a window has, bool."""
        return np.arange(self.num_groups) < self.num_groups_W[:, None]

    def with_missing(self, values_WI: np.ndarray) -> np.ndarray:
        """Return values of groups with NaN where a window has no such group."""
        return values_WI if self.exists_WI.all() else np.where(self.exists_WI, values_WI, np.nan)

    def sums(self, values_WM: np.ndarray) -> np.ndarray:
        """Return the sum of the positions' values in each group, [W, I] of the same dtype.

        NaN is no value: a group has the sum of its others, and NaN where it has none or where there is no group.
        """
        if self.is_single:
            return values_WM
        has_value_WM = ~np.isnan(values_WM)
        places = np.nonzero(has_value_WM)[0], self.groups_WM[has_value_WM]  # window and group of each value
        sums_WI = np.full((len(values_WM), self.num_groups), np.nan, dtype=values_WM.dtype)
        sums_WI[places] = 0
        np.add.at(sums_WI, places, values_WM[has_value_WM])
        return sums_WI

    def chosen(self, ranked_WI: np.ndarray, number: int) -> np.ndarray:
        """Return the first groups of a ranking (``records.selectors.rank``), int64 [W, number]; -1 where a window has no more."""
        is_none_WI = ranked_WI >= self.num_groups_W[:, None]  # both these and groups without a score have NaN
        order_WS = np.argsort(is_none_WI, axis=1, kind="stable")[:, :number]
        chosen_WS = np.take_along_axis(np.where(is_none_WI, NO_GROUP, ranked_WI), order_WS, axis=1)
        missing = number - chosen_WS.shape[1]
        return np.pad(chosen_WS, ((0, 0), (0, missing)), constant_values=NO_GROUP) if missing > 0 else chosen_WS

    def num_tokens(self, windows_R: np.ndarray, groups_RS: np.ndarray) -> np.ndarray:
        """Return the number of tokens of each group of rows, int64 [R, S]; 0 for group -1."""
        return np.where(groups_RS == NO_GROUP, 0, self.sizes_WI[windows_R[:, None], groups_RS])

    def rows_by_size(self, windows_R: np.ndarray, groups_RS: np.ndarray) -> list[tuple[np.ndarray, np.ndarray]]:
        """Return the positions of sets of groups, the sets of one size together.

        Args:
            windows_R: int64, the window of each set.
            groups_RS: int64, the groups of each set; -1: none.

        Returns:
            For each number of positions, rising, (int64 [r], which of the sets; int64 [r, positions], group by group).
        """
        if self.is_single and (groups_RS != NO_GROUP).all():
            return [(np.arange(len(groups_RS)), groups_RS)]
        totals_R = self.num_tokens(windows_R, groups_RS).sum(axis=1)
        by_size = []
        for total in np.unique(totals_R).tolist():
            rows_r = np.flatnonzero(totals_R == total)
            by_size.append((rows_r, self.positions(windows_R[rows_r], groups_RS[rows_r]).reshape(len(rows_r), total)))
        return by_size

    def positions(self, windows_R: np.ndarray, groups_RS: np.ndarray) -> np.ndarray:
        """Return the positions of all sets of groups, int64 [P], set by set and group by group; group -1 has none."""
        tokens_G = self.num_tokens(windows_R, groups_RS).ravel()
        first_G = self.first_WI[windows_R[:, None], groups_RS].ravel()
        return np.arange(tokens_G.sum()) + np.repeat(first_G - (tokens_G.cumsum() - tokens_G), tokens_G)

    def subset(self, chosen_w: np.ndarray) -> TokenGroups:
        """Return the groups of some of the windows (int64 indices)."""
        return TokenGroups(self.groups_WM[chosen_w])


def single_tokens(num_windows: int, num_long_range: int) -> TokenGroups:
    """Return the groups of windows where every token is one."""
    return TokenGroups(np.broadcast_to(np.arange(num_long_range), (num_windows, num_long_range)))


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
        tokenizer: of the windows; None: no selector asks for their text.
        store: the text that they are from; None: no selector asks how often its tokens occur.
    """

    tokens_WT: torch.Tensor
    targets_W: torch.Tensor
    _: KW_ONLY
    window_ids_W: np.ndarray
    context: str
    seed: int
    groups: Optional[TokenGroups] = None
    tokenizer: Optional[Tokenizer] = None
    store: Optional[TokenStore] = None

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
