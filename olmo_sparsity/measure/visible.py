"""Visible sets as masks and as gates on attention. Rows of tokens, masks and gates give the same loss.

A visible set is a bool row over the M long-range positions. The local tokens behind them are always visible. Position IDs never
move: hidden tokens leave gaps.

- ``hidden``: no other token attends to a hidden one.
- ``contextual``: no local token attends to a hidden one; long-range tokens attend to one another, whatever is hidden.

An *anchor* is a token in front of the window, at position ID 0, that all tokens attend to, always. T counts it.
"""

from __future__ import annotations

from typing import Optional

import torch
import torch.nn.functional as F

from olmo_sparsity.config import Visibility


def with_anchor(tokens_RT: torch.Tensor, anchor_id: Optional[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens and position IDs of windows with the anchor in front, if there is one; int64 [R, T] each."""
    if anchor_id is not None:
        tokens_RT = F.pad(tokens_RT, (1, 0), value=anchor_id)
    return tokens_RT, torch.arange(tokens_RT.shape[1], device=tokens_RT.device).expand_as(tokens_RT)


def places_of(shown_RT: torch.Tensor) -> torch.Tensor:
    """The indices of the visible tokens, rising, int64 [R, Y]; all rows have equally many."""
    return shown_RT.nonzero()[:, 1].view(len(shown_RT), -1)


def attention_mask(shown_RT: torch.Tensor, *, local_len: int, visibility: Visibility) -> torch.Tensor:
    """Bool [R, T, T], True where the first token may attend to the second."""
    length, device = shown_RT.shape[1], shown_RT.device
    causal_TT = torch.ones(length, length, dtype=torch.bool, device=device).tril()
    return causal_TT & (shown_RT[:, None, :] | ~_hideable(length, local_len, visibility, device))


def gate_bias(log_gate_RT: torch.Tensor, *, local_len: int, visibility: Visibility) -> torch.Tensor:
    """A term of attention scores that applies gates to tokens, float [R, T, T]; differentiable by the gates.

    Where visibility decides whether one token attends to another, the weight of that attention is multiplied by exp(log gate)
    before the softmax normalises it. Gates 0 and 1 hide and show.
    """
    length, device = log_gate_RT.shape[1], log_gate_RT.device
    later_TT = torch.ones(length, length, dtype=torch.bool, device=device).triu(1)
    hideable_TT = _hideable(length, local_len, visibility, device)
    return log_gate_RT[:, None, :].masked_fill(~hideable_TT, 0.0).masked_fill(later_TT, torch.finfo(torch.float).min)


def _hideable(length: int, local_len: int, visibility: Visibility, device: torch.device) -> torch.Tensor:
    """Bool [T, T], True where the second token, if it is hidden, is hidden from the first.

    A token always attends to itself: torch lets a token that may attend to nothing attend to everything.
    """
    others_TT = ~torch.eye(length, dtype=torch.bool, device=device)
    if visibility == "contextual":
        others_TT[: length - local_len] = False
    return others_TT
