"""Visible sets as compact rows or as an attention mask. Both must give the same loss (see ``losses``).

A visible set S is a set of long-range positions, a subset of {0 .. M-1}. The local tokens, M .. full_len-1, are always
visible. A batch holds sets of one size.
"""

from __future__ import annotations

import torch


def visible_positions(visible_RS: torch.Tensor, full_len: int, *, local_len: int) -> torch.Tensor:
    """Return the position IDs of all visible tokens, in order.

    Position IDs never move: hidden tokens leave gaps.

    Args:
        visible_RS: int64, the visible long-range positions of each row, in any order, each once.
        full_len: T, tokens of a window.
        local_len: L, local tokens of a window.

    Returns:
        int64 [R, Y], rising, with Y = S + L.
    """
    local_L = torch.arange(full_len - local_len, full_len, device=visible_RS.device)
    return torch.cat([visible_RS.sort(dim=1).values, local_L.expand(len(visible_RS), -1)], dim=1)


def compact_rows(
    tokens_RT: torch.Tensor, visible_RS: torch.Tensor, *, local_len: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (tokens, position IDs) of the visible tokens only, in order; int64 [R, Y] each, with Y = S + L."""
    positions_RY = visible_positions(visible_RS, tokens_RT.shape[1], local_len=local_len)
    return tokens_RT.gather(1, positions_RY), positions_RY


def visible_mask(visible_RS: torch.Tensor, full_len: int, *, local_len: int) -> torch.Tensor:
    """Return bool [R, T], True where a token may be attended to."""
    mask_RT = torch.zeros(len(visible_RS), full_len, dtype=torch.bool, device=visible_RS.device)
    return mask_RT.scatter_(1, visible_positions(visible_RS, full_len, local_len=local_len), True)
