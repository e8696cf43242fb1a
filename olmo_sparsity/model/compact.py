"""The compact path of an OLMo, as fast as the machine allows: only the visible tokens, and nothing twice.

Plain compact rows (``OLMoWithPositions.last_logits``) leave three savings, all of them exact:

- In the last layer only the last token's query, attention output and MLP reach its logits.
- A token with no visible token before it attends only to itself, so the keys and values it adds to every layer depend
  only on its id and position. In a row {j} + local tokens, j is such a token.
- In the first layer queries, keys and values depend only on id and position. So the rows {j} + local of one window share
  those of the local tokens, and the attention among them; j adds one term to each softmax.

Numbers have the dtype of the weights; the sums of a softmax are fp32. Rotary tables hold half a head: ``e`` is E / 2.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch

from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.model.olmo_layers import LayerKeysValues, mlp, queries_keys_values


def last_logits(model: OLMoWithPositions, tokens_RY: torch.Tensor, *, positions_RY: torch.Tensor) -> torch.Tensor:
    """Return logits after the last token of each row under plain causal attention, fp32 [R, V]."""
    x_RYD = model.embed(tokens_RY, positions_RY)
    return model.logits_of(model.last_hidden(x_RYD, tables=model.position_tables(positions_RY)))


def _keys_values_alone(
    model: OLMoWithPositions, tokens_RP: torch.Tensor, *, positions_RP: torch.Tensor
) -> list[LayerKeysValues]:
    """Return the keys and values in every layer of tokens that attend only to themselves; [R, P, H, E] each."""
    x_RPD, tables = model.embed(tokens_RP, positions_RP), model.position_tables(positions_RP)
    keys_values = []
    for block in model.transformer.blocks:
        _, k_RPHE, v_RPHE = queries_keys_values(block, x_RPD, tables=tables, num_queries=x_RPD.shape[-2])
        keys_values.append((k_RPHE, v_RPHE))
        x_RPD = x_RPD + block.attn_out(v_RPHE.flatten(-2))
        x_RPD = x_RPD + mlp(block, x_RPD)
    return keys_values


def _attention_scores(q_WQHE: torch.Tensor, k_WYHE: torch.Tensor) -> torch.Tensor:
    """Return attention scores before the softmax, fp32 [W, H, Q, Y]."""
    q_WHQE, k_WHYE = q_WQHE.transpose(1, 2), k_WYHE.transpose(1, 2)
    return (q_WHQE @ k_WHYE.transpose(2, 3)).float() / math.sqrt(q_WHQE.shape[-1])


def _attend_with_sums(
    q_WQHE: torch.Tensor, k_WYHE: torch.Tensor, *, v_WYHE: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return (causal attention of the last Q of Y tokens, [W, Q, H, E]; the log of each softmax's sum, fp32 [W, H, Q])."""
    num_queries, num_keys = q_WQHE.shape[1], k_WYHE.shape[1]
    ones_QY = torch.ones(num_queries, num_keys, dtype=torch.bool, device=q_WQHE.device)
    later_QY = ones_QY.triu(num_keys - num_queries + 1)
    scores_WHQY = _attention_scores(q_WQHE, k_WYHE).masked_fill(later_QY, -math.inf)
    log_sum_WHQ = scores_WHQY.logsumexp(dim=-1)
    weights_WHQY = (scores_WHQY - log_sum_WHQ[..., None]).exp().type_as(v_WYHE)
    return (weights_WHQY @ v_WYHE.transpose(1, 2)).transpose(1, 2), log_sum_WHQ


def single_logits(
    model: OLMoWithPositions,
    tokens_WT: torch.Tensor,
    *,
    candidates_WJ: torch.Tensor,
    local_len: int,
    rows_per_pass: int,
) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Compute the logits of the rows {j} + local tokens, for J candidates of each window.

    Args:
        model: the model.
        tokens_WT: int64, the windows, without their targets.
        candidates_WJ: int64, long-range positions.
        local_len: L.
        rows_per_pass: rows of one forward pass.

    Yields:
        (windows, candidates, their logits, fp32 [w, j, V]) of each pass.
    """
    num_windows, num_candidates = candidates_WJ.shape
    windows_per_pass = max(1, rows_per_pass // num_candidates)
    local_L = torch.arange(tokens_WT.shape[1] - local_len, tokens_WT.shape[1], device=tokens_WT.device)
    tables = model.position_tables(local_L)
    block = model.transformer.blocks[0]
    for begin in range(0, num_windows, windows_per_pass):
        windows = slice(begin, begin + windows_per_pass)
        tokens_wT, candidates_wJ = tokens_WT[windows], candidates_WJ[windows]
        x_wLD = model.embed(tokens_wT[:, -local_len:], local_L)
        q_wLHE, k_wLHE, v_wLHE = queries_keys_values(block, x_wLD, tables=tables, num_queries=local_len)
        among_wLHE, log_sum_wHL = _attend_with_sums(q_wLHE, k_wLHE, v_WYHE=v_wLHE)
        for first in range(0, num_candidates, rows_per_pass):
            candidates = slice(first, first + rows_per_pass)
            candidates_wj = candidates_wJ[:, candidates]
            alone = _keys_values_alone(model, tokens_wT.gather(1, candidates_wj), positions_RP=candidates_wj)
            k_wjHE, v_wjHE = alone[0]
            # The candidate's share of each softmax: exp(s) / (exp(s) + exp(log_sum)).
            share_wHLj = torch.sigmoid(_attention_scores(q_wLHE, k_wjHE) - log_sum_wHL[..., None]).type_as(v_wLHE)
            share_wjLH = share_wHLj.permute(0, 3, 2, 1)
            attended_wjLHE = torch.lerp(among_wLHE[:, None], v_wjHE[:, :, None], share_wjLH[..., None])
            x_rLD = (x_wLD[:, None] + block.attn_out(attended_wjLHE.flatten(-2))).flatten(0, 1)
            x_rLD = x_rLD + mlp(block, x_rLD)
            prefix = [(k_wjHE.flatten(0, 1)[:, None], v_wjHE.flatten(0, 1)[:, None]) for k_wjHE, v_wjHE in alone]
            hidden_rD = model.last_hidden(x_rLD, tables=tables, prefix=prefix, from_layer=1)
            yield windows, candidates, model.logits_of(hidden_rD.view(len(tokens_wT), -1, hidden_rD.shape[-1]))


def all_but_one_logits(
    model: OLMoWithPositions, tokens_WT: torch.Tensor, *, num_long_range: int
) -> Iterator[torch.Tensor]:
    """Yield the logits with every token visible but one, fp32 [W, V], for each long-range position.

    What precedes the hidden token is computed once.
    """
    positions_T = torch.arange(tokens_WT.shape[1], device=tokens_WT.device)
    tables = model.position_tables(positions_T)
    embedded_WTD = model.embed(tokens_WT, positions_T)
    keys_values = model.all_keys_values(tokens_WT[:, :num_long_range], positions_RP=positions_T[:num_long_range])
    for j in range(num_long_range):
        hidden_WD = model.last_hidden(
            embedded_WTD[:, j + 1 :],
            tables=tables.last(len(positions_T) - j - 1),
            prefix=[(k_WMHE[:, :j], v_WMHE[:, :j]) for k_WMHE, v_WMHE in keys_values],
        )
        yield model.logits_of(hidden_WD)
