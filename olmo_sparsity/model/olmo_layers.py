"""The steps of an OLMo layer, so that a caller may leave out what it does not need.

Numbers have the dtype of the weights; the sums of a softmax are fp32. Rotary tables hold half a head: ``e`` is E / 2.

Queries and keys know their positions, so that nothing else needs them: the score of two tokens is always q k / sqrt(their width).
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, Optional

import torch
import torch.nn.functional as F

LayerKeysValues = tuple[torch.Tensor, torch.Tensor]  # of one layer, each [R, P, H, E]; keys know their positions


class PositionTables(NamedTuple):
    """What layers need to know of the positions of tokens.

    Attributes:
        sin_Y1e: sines of the rotary angles, fp32 [..., Y, 1, e].
        cos_Y1e: cosines.
    """

    sin_Y1e: torch.Tensor
    cos_Y1e: torch.Tensor

    def last(self, num: int) -> PositionTables:
        """Return the tables of the last ``num`` tokens; there is one at least."""
        return PositionTables(*(table[..., -num:, :, :] for table in self))


def _rotate(x_RYD: torch.Tensor, tables: PositionTables, *, num_heads: int) -> torch.Tensor:
    """Split [..., Y, D] into heads and rotate them by their positions in fp32; return [..., Y, H, E]."""
    first_RYHe, second_RYHe = x_RYD.unflatten(-1, (num_heads, -1)).float().chunk(2, dim=-1)
    sin_RY1e, cos_RY1e = tables
    return torch.cat(
        [first_RYHe * cos_RY1e - second_RYHe * sin_RY1e, second_RYHe * cos_RY1e + first_RYHe * sin_RY1e], dim=-1
    ).type_as(x_RYD)


def queries_keys_values(
    block: Any,
    x_RYD: torch.Tensor,
    *,
    tables: PositionTables,
    num_queries: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return (q [R, Q, H, E] of the last ``num_queries`` tokens, k and v [R, Y, H, E] of all); q and k know their positions.

    Args:
        block: the layer.
        x_RYD: states before it.
        tables: of the tokens.
        num_queries: Q.
    """
    num_tokens, width = x_RYD.shape[-2:]
    num_heads = block.config.n_heads
    normed_RYD = block.attn_norm(x_RYD)
    if num_queries == num_tokens:
        q_RQD, k_RYD, v_RYD = block.att_proj(normed_RYD).split(width, dim=-1)
    else:
        weight = block.att_proj.weight
        q_RQD = F.linear(normed_RYD[..., -num_queries:, :], weight[:width])
        k_RYD, v_RYD = F.linear(normed_RYD, weight[width:]).split(width, dim=-1)
    if block.q_norm is not None:
        q_RQD, k_RYD = block.q_norm(q_RQD).type_as(v_RYD), block.k_norm(k_RYD).type_as(v_RYD)
    q_RQHE = _rotate(q_RQD, tables.last(num_queries), num_heads=num_heads)
    k_RYHE = _rotate(k_RYD, tables, num_heads=num_heads)
    return q_RQHE, k_RYHE, v_RYD.unflatten(-1, (num_heads, -1))


def attend(
    q_RQHE: torch.Tensor,
    k_RYHE: torch.Tensor,
    *,
    v_RYHE: torch.Tensor,
    allowed_RQY: Optional[torch.Tensor] = None,
) -> torch.Tensor:
    """Return attention of the last Q of Y tokens, [R, Q, D], causal or to what is allowed (bool)."""
    q_RHQE, k_RHYE, v_RHYE = (x.transpose(1, 2) for x in (q_RQHE, k_RYHE, v_RYHE))
    num_queries, num_keys = q_RHQE.shape[2], k_RHYE.shape[2]
    if allowed_RQY is not None:
        out_RHQE = F.scaled_dot_product_attention(q_RHQE, k_RHYE, v_RHYE, attn_mask=allowed_RQY[:, None])
    elif num_queries == 1 and q_RHQE.device.type == "cpu":
        # One query per row is too little work for the fused kernel.
        scores_RHY = (k_RHYE @ q_RHQE.transpose(2, 3))[..., 0] / math.sqrt(q_RHQE.shape[-1])
        out_RHQE = scores_RHY.float().softmax(dim=-1).type_as(v_RHYE)[:, :, None] @ v_RHYE
    elif num_queries in (1, num_keys):
        out_RHQE = F.scaled_dot_product_attention(q_RHQE, k_RHYE, v_RHYE, is_causal=num_queries > 1)
    else:
        ones_QY = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q_RHQE.device)
        allowed_QY = ones_QY.tril(num_keys - num_queries)
        out_RHQE = F.scaled_dot_product_attention(q_RHQE, k_RHYE, v_RHYE, attn_mask=allowed_QY)
    return out_RHQE.transpose(1, 2).flatten(2)


def attention_of_last(q_RHQE: torch.Tensor, k_RHYE: torch.Tensor) -> torch.Tensor:
    """Return the attention of the last query to all keys, the mean of heads, fp32 [R, Y]."""
    scores_RHY = (k_RHYE.float() @ q_RHQE[:, :, -1, :, None].float())[..., 0] / math.sqrt(q_RHQE.shape[-1])
    return scores_RHY.softmax(dim=-1).mean(dim=1)


def mlp(block: Any, x_RYD: torch.Tensor) -> torch.Tensor:
    return block.ff_out(block.act(block.ff_proj(block.ff_norm(x_RYD))))
