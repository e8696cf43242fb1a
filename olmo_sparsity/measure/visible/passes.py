"""Forward passes: the predictions of windows under visible sets, as many rows at once as a pass holds.

Under ``contextual`` visibility, what precedes the local tokens is the same in all rows of a window: the keys and values of the
anchor and of all long-range tokens, of which a row sees some. They are computed once for a block of windows, and the rows of
these windows, of whatever size, go on from them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Union

import torch

from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.visibility import (
    attention_mask,
    compact_rows,
    prefix_positions,
    visible_mask,
    with_anchor,
)
from olmo_sparsity.model import compact
from olmo_sparsity.model.causal_model import KeysValues
from olmo_sparsity.progress import tokens_ran

PREFIX_SHARE = 4  # the prefixes of a block of windows take this part of a forward pass's tokens; its rows take the rest
Rows = Union[slice, torch.Tensor]  # which rows: a slice, or int64 indices


@dataclass(frozen=True)
class VisibleSets:
    """Visible sets of one size; each row is a window under one of them.

    Attributes:
        windows_R: int64, the window of each row.
        visible_RS: int64, the visible long-range positions of each row, each once; S may be 0.
    """

    windows_R: torch.Tensor
    visible_RS: torch.Tensor

    @property
    def size(self) -> int:
        """S, the number of visible entries."""
        return self.visible_RS.shape[-1]


def one_row_each(visible_WS: torch.Tensor) -> VisibleSets:
    """Return one row for each window: its visible set, int64 [W, S]."""
    return VisibleSets(torch.arange(len(visible_WS), device=visible_WS.device), visible_WS)


def _log_probs_of_pass(evaluator: Evaluator, tokens_RT: torch.Tensor, *, visible_RS: torch.Tensor) -> torch.Tensor:
    """Return log-probabilities of the next token, nats, fp32 [R, V], in one forward pass over rows of their own."""
    local_len, anchor_id = evaluator.local_len, evaluator.anchor_id
    tokens_ran(len(tokens_RT) * evaluator.row_len(tokens_RT.shape[1], visible_RS.shape[1]))
    if evaluator.path == "masked":
        visible_RT = visible_mask(visible_RS, tokens_RT.shape[1], local_len=local_len, has_anchor=anchor_id is not None)
        allowed_RTT = attention_mask(visible_RT, local_len=local_len, visibility=evaluator.visibility)
        tokens_RT, positions_RT = with_anchor(tokens_RT, anchor_id)
        logits_RV = evaluator.model.last_logits(tokens_RT, positions_RT, bias_BTT=allowed_RTT)
    else:
        tokens_RY, positions_RY = compact_rows(tokens_RT, visible_RS, local_len=local_len, anchor_id=anchor_id)
        olmo = evaluator.compact_olmo
        if olmo is None:
            logits_RV = evaluator.model.last_logits(tokens_RY, positions_RY)
        else:
            logits_RV = compact.last_logits(olmo, tokens_RY, positions_RY=positions_RY)
    return logits_RV.float().log_softmax(dim=-1)


@dataclass(frozen=True)
class _Block:
    """Some windows, and the keys and values of everything in front of their local tokens."""

    evaluator: Evaluator
    tokens_WL: torch.Tensor  # int64, the local tokens
    positions_WL: torch.Tensor
    prefix: KeysValues

    def log_probs(self, rows: VisibleSets) -> torch.Tensor:
        """Return log-probabilities of the next token in each row, nats, fp32 [R, V], in one forward pass."""
        windows_R = rows.windows_R
        tokens_ran(len(windows_R) * self.evaluator.local_len)
        seen = prefix_positions(rows.visible_RS, has_anchor=self.evaluator.anchor_id is not None)
        logits_RV = self.evaluator.model.last_logits_after(
            self.tokens_WL[windows_R],
            self.positions_WL[windows_R],
            prefix=entries_of(self.prefix, windows_R, seen_RP=seen),
            prefix_positions_BP=seen,
        )
        return logits_RV.float().log_softmax(dim=-1)

    def log_probs_and_attention(self, windows: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what ``log_probs_and_attention`` returns, of some windows, in one forward pass."""
        tokens_wL, positions_wL = self.tokens_WL[windows], self.positions_WL[windows]
        tokens_ran(tokens_wL.numel())
        prefix = [(k_WHPE[windows], v_WHPE[windows]) for k_WHPE, v_WHPE in self.prefix]
        positions_P = torch.arange(prefix[0][0].shape[2], device=tokens_wL.device)
        logits_wV, attention_wT = self.evaluator.model.last_logits_and_attention(
            tokens_wL, positions_wL, prefix=prefix, prefix_positions_BP=positions_P.expand(len(tokens_wL), -1)
        )
        return logits_wV.float().log_softmax(dim=-1), attention_wT


def entries_of(prefix: KeysValues, windows_R: torch.Tensor, *, seen_RP: torch.Tensor) -> KeysValues:
    """Return the keys and values that rows see of the prefixes of their windows, [R, H, P, E] in each layer, on its device."""
    found = []
    for k_WHPE, v_WHPE in prefix:
        rows_R1, seen = windows_R[:, None].to(k_WHPE.device), seen_RP.to(k_WHPE.device)
        found.append((k_WHPE[rows_R1, :, seen].transpose(1, 2), v_WHPE[rows_R1, :, seen].transpose(1, 2)))
    return found


def prefix_of_windows(evaluator: Evaluator, tokens_WT: torch.Tensor) -> KeysValues:
    """Return the keys and values of the anchor and of all long-range tokens under causal attention; they are not kept."""
    cut = evaluator.window_len(tokens_WT.shape[1]) - evaluator.local_len
    tokens_WT, positions_WT = with_anchor(tokens_WT, evaluator.anchor_id)
    tokens_ran(len(tokens_WT) * cut)
    return evaluator.model.keys_values(tokens_WT[:, :cut], positions_WT[:, :cut])


def _kept_prefix(evaluator: Evaluator, tokens_WT: torch.Tensor) -> KeysValues:
    """Like ``prefix_of_windows``; the prefix is kept until two others have been asked for."""
    for kept_WT, prefix in evaluator.kept_prefixes:
        if kept_WT is tokens_WT:
            return prefix
    prefix = prefix_of_windows(evaluator, tokens_WT)
    evaluator.kept_prefixes.append((tokens_WT, prefix))
    return prefix


def prefix_of_some(evaluator: Evaluator, tokens_WT: torch.Tensor, *, windows: Rows) -> KeysValues:
    """Return the prefix of some windows. Where a block holds all of them, it is computed once for all questions."""
    if len(tokens_WT) > windows_per_block(evaluator, tokens_WT.shape[1]):
        return prefix_of_windows(evaluator, tokens_WT[windows])
    prefix = _kept_prefix(evaluator, tokens_WT)
    if isinstance(windows, torch.Tensor):
        if len(windows) == len(tokens_WT):  # sorted, each once: all of them
            return prefix
        return [(k_WHPE[windows.to(k_WHPE.device)], v_WHPE[windows.to(v_WHPE.device)]) for k_WHPE, v_WHPE in prefix]
    return [(k_WHPE[windows], v_WHPE[windows]) for k_WHPE, v_WHPE in prefix]


def _block(evaluator: Evaluator, tokens_WT: torch.Tensor, *, windows: Rows) -> _Block:
    """Return what precedes the local tokens of some windows: a slice, or int64 indices, rising."""
    prefix = prefix_of_some(evaluator, tokens_WT, windows=windows)
    tokens_wT, positions_wT = with_anchor(tokens_WT[windows], evaluator.anchor_id)
    cut = tokens_wT.shape[1] - evaluator.local_len
    return _Block(evaluator, tokens_wT[:, cut:], positions_wT[:, cut:], prefix)


def windows_per_block(evaluator: Evaluator, full_len: int) -> int:
    """Return the number of windows whose prefixes a forward pass keeps."""
    return max(1, evaluator.batch_tokens // PREFIX_SHARE // evaluator.window_len(full_len - evaluator.local_len))


def _without_prefixes(evaluator: Evaluator) -> Evaluator:
    """Return the evaluator with forward passes smaller by the share of the prefixes."""
    return dataclasses.replace(evaluator, batch_tokens=evaluator.batch_tokens - evaluator.batch_tokens // PREFIX_SHARE)


def _log_probs_after_prefixes(
    evaluator: Evaluator, tokens_WT: torch.Tensor, *, sets: dict[int, VisibleSets]
) -> Iterator[tuple[int, Rows, torch.Tensor]]:
    """Like ``log_probs_of_sets``; the prefix of a window is computed once for all its rows."""
    full_len, rest = tokens_WT.shape[1], _without_prefixes(evaluator)
    used_W = torch.cat([of_size.windows_R for of_size in sets.values()]).unique()
    per_block = windows_per_block(evaluator, full_len)
    places = {number: torch.searchsorted(used_W, of_size.windows_R.contiguous()) for number, of_size in sets.items()}
    for begin in range(0, len(used_W), per_block):
        block = _block(evaluator, tokens_WT, windows=used_W[begin : begin + per_block])
        for number, of_size in sets.items():
            place_R = places[number] - begin
            rows_r = ((place_R >= 0) & (place_R < per_block)).nonzero()[:, 0]
            for batch in rest.batches(len(rows_r), evaluator.row_len(full_len, of_size.size)):
                rows = rows_r[batch]
                yield number, rows, block.log_probs(VisibleSets(place_R[rows], of_size.visible_RS[rows]))


def log_probs_of_sets(
    evaluator: Evaluator, tokens_WT: torch.Tensor, *, sets: Sequence[VisibleSets]
) -> Iterator[tuple[int, Rows, torch.Tensor]]:
    """Run windows under visible sets.

    Args:
        evaluator: the model.
        tokens_WT: int64, the windows, without their targets.
        sets: by their size. Those given together share what their windows have in common.

    Yields:
        (index into ``sets``, the rows of it, their log-probabilities of the next token, nats, fp32 [r, V]) of each forward pass.
    """
    full_len = tokens_WT.shape[1]
    prefixed = {}
    for number, of_size in enumerate(sets):
        if evaluator.needs_prefix(of_size.size):
            prefixed[number] = of_size
            continue
        for rows in evaluator.batches(len(of_size.visible_RS), evaluator.row_len(full_len, of_size.size)):
            tokens_rT = tokens_WT[of_size.windows_R[rows]]
            yield number, rows, _log_probs_of_pass(evaluator, tokens_rT, visible_RS=of_size.visible_RS[rows])
    if prefixed:
        yield from _log_probs_after_prefixes(evaluator, tokens_WT, sets=prefixed)


def log_probs_and_attention(evaluator: Evaluator, tokens_WT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return log-probabilities of the next token with everything visible, and the attention of the last token, in one pass.

    The log-probabilities are in nats, fp32 [W, V]; the attention is to the anchor and all tokens, fp32 [W, T].
    """
    num_windows, full_len = tokens_WT.shape
    found = []
    if evaluator.goes_on_from_prefix:
        per_block, rest = windows_per_block(evaluator, full_len), _without_prefixes(evaluator)
        for begin in range(0, num_windows, per_block):
            block = _block(evaluator, tokens_WT, windows=slice(begin, begin + per_block))
            batches = rest.batches(len(block.tokens_WL), evaluator.window_len(full_len))
            found += [block.log_probs_and_attention(windows) for windows in batches]
    else:
        for windows in evaluator.batches(num_windows, evaluator.window_len(full_len)):
            tokens_wT, positions_wT = with_anchor(tokens_WT[windows], evaluator.anchor_id)
            tokens_ran(tokens_wT.numel())
            logits_wV, attention_wT = evaluator.model.last_logits_and_attention(tokens_wT, positions_wT)
            found.append((logits_wV.float().log_softmax(dim=-1), attention_wT))
    log_p, attention = zip(*found, strict=True)
    return torch.cat(log_p), torch.cat(attention)


def log_probs_of_singles(
    evaluator: Evaluator, tokens_WT: torch.Tensor, *, candidates_WJ: torch.Tensor
) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Yield (windows, candidates, log-probabilities under their visible sets {j}, fp32 [w, j, V]) of each forward pass.

    The candidates of the same windows come one after the other.
    """
    (num_windows, full_len), num_candidates = tokens_WT.shape, candidates_WJ.shape[1]
    olmo = evaluator.shared_olmo
    if olmo is not None:
        for windows, candidates, logits_wjV in compact.single_logits(
            olmo,
            tokens_WT,
            candidates_WJ=candidates_WJ,
            local_len=evaluator.local_len,
            rows_per_pass=evaluator.rows_per_pass(evaluator.local_len),
        ):
            tokens_ran(logits_wjV.shape[0] * logits_wjV.shape[1] * (evaluator.local_len + 1))
            yield windows, candidates, logits_wjV.log_softmax(dim=-1)
        return
    needs_prefix = evaluator.needs_prefix(1)
    of_rows = _without_prefixes(evaluator) if needs_prefix else evaluator
    rows_per_pass = of_rows.rows_per_pass(evaluator.row_len(full_len, 1))
    windows_per_pass = max(1, rows_per_pass // num_candidates)
    if needs_prefix:
        windows_per_pass = min(windows_per_pass, windows_per_block(evaluator, full_len))
    for begin in range(0, num_windows, windows_per_pass):
        windows = slice(begin, begin + windows_per_pass)
        tokens_wT = tokens_WT[windows]
        block = _block(evaluator, tokens_WT, windows=windows) if needs_prefix else None
        for first in range(0, num_candidates, rows_per_pass):
            candidates = slice(first, first + rows_per_pass)
            candidates_wj = candidates_WJ[windows, candidates]
            windows_R = torch.arange(len(tokens_wT), device=tokens_wT.device)
            windows_R = windows_R.repeat_interleave(candidates_wj.shape[1])
            visible_R1 = candidates_wj.reshape(-1, 1)
            if block is not None:
                log_q_RV = block.log_probs(VisibleSets(windows_R, visible_R1))
            else:
                log_q_RV = _log_probs_of_pass(evaluator, tokens_wT[windows_R], visible_RS=visible_R1)
            yield windows, candidates, log_q_RV.view(*candidates_wj.shape, -1)


def log_probs_of_all_but_one(
    evaluator: Evaluator, tokens_WT: torch.Tensor
) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Yield (windows, positions j, log-probabilities with everything visible but j, fp32 [w, j, V]) of each forward pass.

    Under ``hidden`` what precedes the hidden token is computed once for a window, where the path allows it; under
    ``contextual``, all long-range tokens.
    """
    num_windows, full_len = tokens_WT.shape
    num_long_range = full_len - evaluator.local_len
    shares_prefix = evaluator.path == "compact" and evaluator.visibility == "hidden"
    if not shares_prefix:
        yield from _log_probs_of_rows_but_one(evaluator, tokens_WT)
        return
    for windows in evaluator.batches(num_windows, evaluator.window_len(full_len)):
        tokens_wT = tokens_WT[windows]
        olmo = evaluator.shared_olmo
        if olmo is None:
            parts = _logits_after_prefixes(evaluator, tokens_wT, spans=[(j, j + 1) for j in range(num_long_range)])
        else:
            parts = compact.all_but_one_logits(olmo, tokens_wT, num_long_range=num_long_range)
        for j, logits_wV in enumerate(parts):
            tokens_ran(len(logits_wV) * (full_len - j - 1))
            yield windows, slice(j, j + 1), logits_wV.float().log_softmax(dim=-1)[:, None]


def log_probs_of_all_but_spans(
    evaluator: Evaluator, tokens_wT: torch.Tensor, *, spans: Sequence[tuple[int, int]]
) -> Iterator[torch.Tensor]:
    """Yield log-probabilities with everything visible but the long-range positions first .. end-1, fp32 [w, V], a span at a time.

    Only under ``hidden``, and not on the masked path: what precedes a span is computed once for a window.
    """
    full_len = tokens_wT.shape[1]
    for (_, end), logits_wV in zip(spans, _logits_after_prefixes(evaluator, tokens_wT, spans=spans), strict=True):
        tokens_ran(len(logits_wV) * (full_len - end))
        yield logits_wV.float().log_softmax(dim=-1)


def _logits_after_prefixes(
    evaluator: Evaluator, tokens_wT: torch.Tensor, *, spans: Sequence[tuple[int, int]]
) -> Iterator[torch.Tensor]:
    """Yield the logits with everything visible but the long-range positions first .. end-1, [w, V], of each span."""
    tokens_wT, positions_wT = with_anchor(tokens_wT, evaluator.anchor_id)
    cut, num_anchors = tokens_wT.shape[1] - evaluator.local_len, evaluator.num_anchors
    tokens_ran(len(tokens_wT) * cut)
    prefix = evaluator.model.keys_values(tokens_wT[:, :cut], positions_wT[:, :cut])
    for first, end in spans:
        before, after = num_anchors + first, num_anchors + end
        rest = (tokens_wT[:, after:], positions_wT[:, after:])
        if before == 0:
            yield evaluator.model.last_logits(*rest)
        else:
            seen = [(k_wHPE[:, :, :before], v_wHPE[:, :, :before]) for k_wHPE, v_wHPE in prefix]
            yield evaluator.model.last_logits_after(*rest, prefix=seen, prefix_positions_BP=positions_wT[:, :before])


def _log_probs_of_rows_but_one(
    evaluator: Evaluator, tokens_WT: torch.Tensor
) -> Iterator[tuple[slice, slice, torch.Tensor]]:
    """Like ``log_probs_of_all_but_one``, in rows of their own."""
    num_windows, full_len = tokens_WT.shape
    num_long_range, device = full_len - evaluator.local_len, tokens_WT.device
    rest_S = torch.arange(num_long_range - 1, device=device)
    needs_prefix = evaluator.needs_prefix(num_long_range - 1)
    of_rows = _without_prefixes(evaluator) if needs_prefix else evaluator
    for w in range(num_windows):
        tokens_1T = tokens_WT[w : w + 1]
        block = _block(evaluator, tokens_WT, windows=slice(w, w + 1)) if needs_prefix else None
        for positions in of_rows.batches(num_long_range, evaluator.row_len(full_len, num_long_range - 1)):
            hidden_j1 = torch.arange(num_long_range, device=device)[positions, None]
            visible_jS = rest_S + (rest_S >= hidden_j1)  # a row a hidden position: all the others
            if block is not None:
                windows_j = torch.zeros(len(visible_jS), dtype=torch.int64, device=device)
                log_q_jV = block.log_probs(VisibleSets(windows_j, visible_jS))
            else:
                log_q_jV = _log_probs_of_pass(evaluator, tokens_1T.expand(len(visible_jS), -1), visible_RS=visible_jS)
            yield slice(w, w + 1), positions, log_q_jV[None]
