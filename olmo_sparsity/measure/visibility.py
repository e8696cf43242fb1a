"""Visible sets -> compact rows, or an attention mask. The two must give one loss (see ``losses``).

A visible set S is a set of long-range positions, in {0 .. M-1}; the local tokens, M .. full_len-1, are always visible.
A batch holds sets of one size. Legend: W windows, T tokens of a window (``full_len``), S size of the sets, M long-range
tokens, L local tokens.
"""

from __future__ import annotations

import torch


def visible_positions(visible_WS: torch.Tensor, full_len: int, local_len: int) -> torch.Tensor:
    """Position IDs of all visible tokens, in order.

    Args:
        visible_WS: int64, the visible long-range positions of each window, in any order, each once.
        full_len: T.
        local_len: L.

    Returns:
        int64 [W, S + L], rising: position IDs never move, hidden tokens leave gaps.
    """
    local = torch.arange(full_len - local_len, full_len, device=visible_WS.device)
    return torch.cat([visible_WS.sort(dim=1).values, local.expand(len(visible_WS), -1)], dim=1)


def compact_rows(
    tokens_WT: torch.Tensor, visible_WS: torch.Tensor, local_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """The visible tokens alone, in order, and their position IDs: (int64 [W, S + L], int64 [W, S + L])."""
    positions = visible_positions(visible_WS, tokens_WT.shape[1], local_len)
    return tokens_WT.gather(1, positions), positions


def visible_mask(visible_WS: torch.Tensor, full_len: int, local_len: int) -> torch.Tensor:
    """bool [W, T]: may this token be attended to."""
    mask = torch.zeros(len(visible_WS), full_len, dtype=torch.bool, device=visible_WS.device)
    return mask.scatter_(1, visible_positions(visible_WS, full_len, local_len), True)
