"""Visible sets as compact rows, as an attention mask and as gates. All must give the same loss (see ``losses``).

A visible set S is a set of long-range positions, a subset of {0 .. M-1}. The local tokens, M .. full_len-1, are always
visible. A batch holds sets of one size. Two definitions say what "hidden" means:

- ``hidden``: no other token attends to a hidden one.
- ``contextual``: no local token attends to a hidden one. The long-range tokens attend to one another, whatever is hidden.

Position IDs never move: hidden tokens leave gaps.

An *anchor* is a token in front of the window that everyone attends to, always. It is neither local nor long-range. With one, T
below counts it: it has index and position ID 0, and the window's tokens have 1 .. full_len instead of 0 .. full_len-1.
"""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F

from olmo_sparsity.records.measured import Visibility as Visibility


def with_anchor(tokens_RT: torch.Tensor, anchor_id: Optional[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (tokens, position IDs) of windows with the anchor in front, if there is one; int64 [R, T] each."""
    if anchor_id is not None:
        anchor_R1 = torch.full_like(tokens_RT[:, :1], anchor_id)
        tokens_RT = torch.cat([anchor_R1, tokens_RT], dim=1)
    return tokens_RT, torch.arange(tokens_RT.shape[1], device=tokens_RT.device).expand_as(tokens_RT)


def prefix_positions(visible_RS: torch.Tensor, *, has_anchor: bool) -> torch.Tensor:
    """Return the position IDs of the anchor, if there is one, and of the visible long-range tokens, in order.

    Args:
        visible_RS: int64, the visible long-range positions of each row, in any order, each once.
        has_anchor: a token stands in front of the window.
    """
    positions_RS = visible_RS.sort(dim=-1).values
    return F.pad(positions_RS + 1, (1, 0)) if has_anchor else positions_RS


def visible_positions(
    visible_RS: torch.Tensor, full_len: int, *, local_len: int, has_anchor: bool = False
) -> torch.Tensor:
    """Return the position IDs of all visible tokens, in order.

    Args:
        visible_RS: int64, the visible long-range positions of each row, in any order, each once.
        full_len: tokens of a window.
        local_len: L, local tokens of a window.
        has_anchor: a token stands in front of the window.

    Returns:
        int64 [R, Y], rising, with Y = S + L, and one more for the anchor.
    """
    end = full_len + has_anchor
    local_L = torch.arange(end - local_len, end, device=visible_RS.device)
    prefix_RS = prefix_positions(visible_RS, has_anchor=has_anchor)
    return torch.cat([prefix_RS, local_L.expand(len(visible_RS), -1)], dim=1)


def compact_rows(
    tokens_RT: torch.Tensor,
    visible_RS: torch.Tensor,
    *,
    local_len: int,
    anchor_id: Optional[int] = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (tokens, position IDs) of the visible tokens only, in order; int64 [R, Y] each.

    Y is S + L, and one more where there is an anchor.
    """
    has_anchor = anchor_id is not None
    positions_RY = visible_positions(visible_RS, tokens_RT.shape[1], local_len=local_len, has_anchor=has_anchor)
    if has_anchor:
        tokens_RT, _ = with_anchor(tokens_RT, anchor_id)
    return tokens_RT.gather(1, positions_RY), positions_RY


def visible_mask(visible_RS: torch.Tensor, full_len: int, *, local_len: int, has_anchor: bool = False) -> torch.Tensor:
    """Return bool [R, T], True for the visible tokens."""
    positions_RY = visible_positions(visible_RS, full_len, local_len=local_len, has_anchor=has_anchor)
    mask_RT = torch.zeros(len(visible_RS), full_len + has_anchor, dtype=torch.bool, device=visible_RS.device)
    return mask_RT.scatter_(1, positions_RY, True)


def _may_be_hidden(length: int, *, local_len: int, visibility: Visibility, device: torch.device) -> torch.Tensor:
    """Return bool [T, T], True where the second token, if it is hidden, is hidden from the first.

    A token always attends to itself: torch lets a token that may attend to nothing attend to everything. What a hidden token
    computes reaches no visible one.
    """
    others_TT = ~torch.eye(length, dtype=torch.bool, device=device)
    if visibility == "contextual":
        others_TT[: length - local_len] = False
    return others_TT


def attention_mask(visible_RT: torch.Tensor, *, local_len: int, visibility: Visibility) -> torch.Tensor:
    """Return bool [R, T, T], True where the first token may attend to the second.

    Args:
        visible_RT: bool, the visible tokens (``visible_mask``).
        local_len: L.
        visibility: what hidden means.
    """
    length, device = visible_RT.shape[1], visible_RT.device
    causal_TT = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    hideable_TT = _may_be_hidden(length, local_len=local_len, visibility=visibility, device=device)
    return causal_TT & (visible_RT[:, None, :] | ~hideable_TT)


def gate_bias(log_gate_RT: torch.Tensor, *, local_len: int, visibility: Visibility) -> torch.Tensor:
    """Return float [R, T, T], what is added to the attention scores where tokens have gates.

    Where visibility decides whether one token attends to another, the weight of that attention is multiplied by exp(log gate)
    before the softmax normalises it. Gates 0 and 1 hide and show.

    Args:
        log_gate_RT: float; the bias is differentiable with respect to it.
        local_len: L.
        visibility: what hidden means.
    """
    length, device = log_gate_RT.shape[1], log_gate_RT.device
    later_TT = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
    hideable_TT = _may_be_hidden(length, local_len=local_len, visibility=visibility, device=device)
    bias_RTT = log_gate_RT[:, None, :].masked_fill(~hideable_TT, 0.0)
    return bias_RTT.masked_fill(later_TT, torch.finfo(torch.float).min)
