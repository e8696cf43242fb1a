"""The compact path of an OLMo at the machine's limit: only the visible tokens, and nothing twice.

Plain compact rows (``OLMoWithPositions.last_logits``) leave three things to save, all exact:

- In the last layer only the last token's query, attention output and MLP reach its logits.
- A token with no visible token before it attends to itself alone, so that the keys and values it adds to every layer
  depend on its id and position only; in a row {j} + local tokens that is j.
- In the first layer queries, keys and values depend on id and position only, so that the rows {j} + local of one window
  share those of the local tokens, and their attention among themselves; j adds one term to each softmax.

Legend: W windows, J candidates of a window, M long-range tokens, L local tokens, R rows, N tokens of a row that are computed,
P tokens of its prefix (known keys and values before them), Q of the N tokens those that query (N, or 1 in the last layer),
D width, H heads, E width of a head, V vocabulary. Numbers are in the dtype of the weights; softmax sums in fp32.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Optional

import torch
import torch.nn.functional as F

from olmo_sparsity.model.olmo import OLMoWithPositions

KeysValues = tuple[torch.Tensor, torch.Tensor]  # of one layer, each [R, P, H, E], keys rotated
Tables = tuple[torch.Tensor, torch.Tensor]  # sines and cosines, fp32 [..., 1, E / 2]


def _tables(model: OLMoWithPositions, positions: torch.Tensor) -> Tables:
    # The two halves of a head turn by the same angles, so that half of each table says all.
    half = model._sin.shape[-1] // 2
    return model._sin[positions, None, :half], model._cos[positions, None, :half]


def _rotated(x: torch.Tensor, tables: Tables, num_heads: int) -> torch.Tensor:
    """[..., N, D] -> [..., N, H, E], turned by its positions in fp32."""
    a, b = x.unflatten(-1, (num_heads, -1)).float().chunk(2, dim=-1)
    sin, cos = tables
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1).type_as(x)


def _queries_keys_values(
    block: Any, x_RND: torch.Tensor, tables: Tables, num_queries: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """q [R, Q, H, E] of the last ``num_queries`` tokens, k and v [R, N, H, E] of all; rotated."""
    num_tokens, width = x_RND.shape[-2:]
    heads = block.config.n_heads
    normal = block.attn_norm(x_RND)
    if num_queries == num_tokens:
        q, k, v = block.att_proj(normal).split(width, dim=-1)
    else:
        weight = block.att_proj.weight
        q = F.linear(normal[..., -num_queries:, :], weight[:width])
        k, v = F.linear(normal, weight[width:]).split(width, dim=-1)
    if block.q_norm is not None:
        q, k = block.q_norm(q).type_as(v), block.k_norm(k).type_as(v)
    sin, cos = tables
    of_queries = (sin[..., -num_queries:, :, :], cos[..., -num_queries:, :, :])
    return _rotated(q, of_queries, heads), _rotated(k, tables, heads), v.unflatten(-1, (heads, -1))


def _attend(q_RQHE: torch.Tensor, k_RNHE: torch.Tensor, v_RNHE: torch.Tensor) -> torch.Tensor:
    """Causal attention of the last Q of N tokens, [R, Q, D]: to all before them, and themselves."""
    q, k, v = (x.transpose(1, 2) for x in (q_RQHE, k_RNHE, v_RNHE))
    num_queries, num_keys = q.shape[2], k.shape[2]
    if num_queries == 1 and q.device.type == "cpu":
        # One query a row: too little work for the fused kernel.
        scores = (k @ q.transpose(2, 3))[..., 0] / math.sqrt(q.shape[-1])
        out = scores.float().softmax(dim=-1).type_as(v)[:, :, None] @ v
    elif num_queries in (1, num_keys):
        out = F.scaled_dot_product_attention(q, k, v, is_causal=num_queries > 1)
    else:
        seen = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q.device).tril(num_keys - num_queries)
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=seen)
    return out.transpose(1, 2).flatten(2)


def _mlp(block: Any, x: torch.Tensor) -> torch.Tensor:
    return block.ff_out(block.act(block.ff_proj(block.ff_norm(x))))


def _last_hidden(
    model: OLMoWithPositions,
    x_RND: torch.Tensor,
    tables: Tables,
    prefix: Optional[list[KeysValues]] = None,
    from_layer: int = 0,
) -> torch.Tensor:
    """The last token's state after the last layer and its norm, [R, D], from the states ``x_RND`` before ``from_layer``."""
    blocks = model.transformer.blocks
    for layer in range(from_layer, len(blocks)):
        block = blocks[layer]
        num_queries = 1 if layer == len(blocks) - 1 else x_RND.shape[1]
        q, k, v = _queries_keys_values(block, x_RND, tables, num_queries)
        if prefix is not None:
            k, v = torch.cat([prefix[layer][0], k], dim=1), torch.cat([prefix[layer][1], v], dim=1)
        x_RND = x_RND[:, -num_queries:] + block.attn_out(_attend(q, k, v))
        x_RND = x_RND + _mlp(block, x_RND)
    return model.transformer.ln_f(x_RND[:, -1])


def _logits(model: OLMoWithPositions, x: torch.Tensor) -> torch.Tensor:
    weight = model.transformer.wte.weight if model.config.weight_tying else model.transformer.ff_out.weight
    return F.linear(x, weight)[..., : model.config.vocab_size].float()


def last_logits(model: OLMoWithPositions, tokens_RN: torch.Tensor, positions_RN: torch.Tensor) -> torch.Tensor:
    """Logits after the last token of each row under plain causal attention, fp32 [R, V]."""
    x_RND = model.transformer.wte(tokens_RN)
    return _logits(model, _last_hidden(model, x_RND, _tables(model, positions_RN)))


def _alone(model: OLMoWithPositions, tokens: torch.Tensor, positions: torch.Tensor) -> list[KeysValues]:
    """Keys and values in every layer of tokens that attend to themselves alone, int64 [R, P] -> [R, P, H, E] each."""
    x, tables = model.transformer.wte(tokens), _tables(model, positions)
    found = []
    for block in model.transformer.blocks:
        _, k, v = _queries_keys_values(block, x, tables, x.shape[-2])
        found.append((k, v))
        x = x + block.attn_out(v.flatten(-2))
        x = x + _mlp(block, x)
    return found


def _scores(q_WQHE: torch.Tensor, k_WNHE: torch.Tensor) -> torch.Tensor:
    """Attention before the softmax, fp32 [W, H, Q, N]."""
    q, k = q_WQHE.transpose(1, 2), k_WNHE.transpose(1, 2)
    return (q @ k.transpose(2, 3)).float() / math.sqrt(q.shape[-1])


def _attend_with_sums(
    q_WQHE: torch.Tensor, k_WNHE: torch.Tensor, v_WNHE: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Causal attention of the last Q of N tokens, [W, Q, H, E], and the log of each softmax's sum, fp32 [W, H, Q]."""
    num_queries, num_keys = q_WQHE.shape[1], k_WNHE.shape[1]
    later = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q_WQHE.device).triu(num_keys - num_queries + 1)
    scores_WHQN = _scores(q_WQHE, k_WNHE).masked_fill(later, -math.inf)
    log_sum_WHQ = scores_WHQN.logsumexp(dim=-1)
    weights_WHQN = (scores_WHQN - log_sum_WHQ[..., None]).exp().type_as(v_WNHE)
    return (weights_WHQN @ v_WNHE.transpose(1, 2)).transpose(1, 2), log_sum_WHQ


def single_logits(
    model: OLMoWithPositions,
    tokens_WT: torch.Tensor,
    candidates_WJ: torch.Tensor,
    local_len: int,
    rows_at_once: int,
) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Logits of the rows {j} + local tokens, for J candidates of each window.

    Args:
        model: the model.
        tokens_WT: int64, the windows, without their targets.
        candidates_WJ: int64, long-range positions.
        local_len: L.
        rows_at_once: rows of one pass.

    Yields:
        (windows, candidates, their logits, fp32 [w, j, V]) of each pass.
    """
    num_windows, num_candidates = candidates_WJ.shape
    windows_at_once = max(1, rows_at_once // num_candidates)
    local = torch.arange(tokens_WT.shape[1] - local_len, tokens_WT.shape[1], device=tokens_WT.device)
    tables = _tables(model, local)
    block = model.transformer.blocks[0]
    for begin in range(0, num_windows, windows_at_once):
        windows = slice(begin, begin + windows_at_once)
        tokens_wT, candidates_wJ = tokens_WT[windows], candidates_WJ[windows]
        alone = _alone(model, tokens_wT.gather(1, candidates_wJ), candidates_wJ)
        x_wLD = model.transformer.wte(tokens_wT[:, -local_len:])
        q, k, v = _queries_keys_values(block, x_wLD, tables, local_len)
        among_wLHE, log_sum_wHL = _attend_with_sums(q, k, v)
        # The candidate's share of each softmax: exp(s) / (exp(s) + exp(log_sum)).
        share_wHLJ = torch.sigmoid(_scores(q, alone[0][0]) - log_sum_wHL[..., None]).type_as(v)
        share_wJLH = share_wHLJ.permute(0, 3, 2, 1)
        for first in range(0, num_candidates, rows_at_once):
            some = slice(first, first + rows_at_once)
            value_wj1HE = alone[0][1][:, some, None]
            attended = torch.lerp(among_wLHE[:, None], value_wj1HE, share_wJLH[:, some, :, :, None])
            x = (x_wLD[:, None] + block.attn_out(attended.flatten(-2))).flatten(0, 1)
            x = x + _mlp(block, x)
            prefix = [(k[:, some].flatten(0, 1)[:, None], v[:, some].flatten(0, 1)[:, None]) for k, v in alone]
            hidden_RD = _last_hidden(model, x, tables, prefix, from_layer=1)
            yield windows, some, _logits(model, hidden_RD.view(len(tokens_wT), -1, hidden_RD.shape[-1]))


def all_but_one_logits(model: OLMoWithPositions, tokens_WT: torch.Tensor, num_long_range: int) -> torch.Tensor:
    """Logits with every token visible but one long-range position, fp32 [W, M, V]; what stands before the hidden one is
    computed once."""
    sin, cos = _tables(model, torch.arange(tokens_WT.shape[1], device=tokens_WT.device))
    embedded_WTD = model.transformer.wte(tokens_WT)
    x_WMD, known = embedded_WTD[:, :num_long_range], []
    for block in model.transformer.blocks:
        tables = (sin[:num_long_range], cos[:num_long_range])
        q, k, v = _queries_keys_values(block, x_WMD, tables, num_long_range)
        known.append((k, v))
        x_WMD = x_WMD + block.attn_out(_attend(q, k, v))
        x_WMD = x_WMD + _mlp(block, x_WMD)
    hidden = [
        _last_hidden(
            model, embedded_WTD[:, j + 1 :], (sin[j + 1 :], cos[j + 1 :]), [(k[:, :j], v[:, :j]) for k, v in known]
        )
        for j in range(num_long_range)
    ]
    return _logits(model, torch.stack(hidden, dim=1))


@torch.no_grad()
def gate_gradients(
    model: OLMoWithPositions,
    tokens_WT: torch.Tensor,
    local_len: int,
    loss_of: Callable[[torch.Tensor], torch.Tensor],
) -> torch.Tensor:
    """Derivative of a loss with respect to a gate on each long-range position, at gate 0; fp32 [W, M].

    The gate g of position j multiplies the weight, before normalisation, with which other tokens attend to j, in every
    layer and head. At gate 0 no local token sees a long-range one, so that the derivative follows from the local row: with
    a the weight that a query would give j (its softmax's sum being the local tokens'), v the value of j alone, o the
    query's attention output and G the loss's derivative with respect to it, the query adds a (G v - G o).

    Args:
        model: the model.
        tokens_WT: int64, the windows, without their targets.
        local_len: L.
        loss_of: logits fp32 [W, V] with only the local tokens visible -> the sum of the windows' losses.
    """
    num_long_range = tokens_WT.shape[1] - local_len
    far, near = torch.arange(tokens_WT.shape[1], device=tokens_WT.device).split([num_long_range, local_len])
    tables = _tables(model, near)
    probes, states = [], []
    x = model.transformer.wte(tokens_WT[:, num_long_range:])
    blocks = model.transformer.blocks
    with torch.enable_grad():
        for block in blocks:
            num_queries = 1 if block is blocks[-1] else local_len
            q, k, v = _queries_keys_values(block, x, tables, num_queries)
            out_WQHE, log_sum = _attend_with_sums(q, k, v)
            probe = torch.zeros_like(out_WQHE, requires_grad=True)  # the derivative by it is G
            probes.append(probe)
            states.append((q.detach(), out_WQHE.detach(), log_sum.detach()))
            x = x[:, -num_queries:] + block.attn_out((out_WQHE + probe).flatten(-2))
            x = x + _mlp(block, x)
        loss = loss_of(_logits(model, model.transformer.ln_f(x[:, -1])))
        gradients = torch.autograd.grad(loss, probes)
    total = torch.zeros(len(tokens_WT), num_long_range, device=tokens_WT.device)
    alone = _alone(model, tokens_WT[:, :num_long_range], far.expand(len(tokens_WT), -1))
    for (q, out, log_sum), gradient, (k_WMHE, v_WMHE) in zip(states, gradients, alone, strict=True):
        weight_WHQM = (_scores(q, k_WMHE) - log_sum[..., None]).exp()
        through_WHQM = (gradient.transpose(1, 2) @ v_WMHE.permute(0, 2, 3, 1)).float()
        lost_WHQ = (gradient.float() * out.float()).sum(dim=-1).transpose(1, 2)
        total += (weight_WHQM * (through_WHQM - lost_WHQ[..., None])).sum(dim=(1, 2))
    return total
