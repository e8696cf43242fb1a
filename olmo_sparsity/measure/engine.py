"""Runs windows under visible sets, as many rows at once as a pass holds.

Three paths give the same log-probabilities within 1e-5 nats in fp32:

- ``masked`` runs all tokens under a mask. It is the definition.
- ``plain`` runs only the visible tokens, at their position IDs. Under ``contextual`` visibility the visible long-range tokens are
  entries of a prefix, which is computed once for a window, and every set is one gather from it.
- ``compact`` does the same without computing anything twice, where the layers are known (``olmo_sparsity.model.compact``).

Letters of shapes: W windows, T tokens of a window (with the anchor), M long-range positions, R rows, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Optional

import torch

from olmo_sparsity.config import Visibility
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.visible_sets import all_visible, attention_mask, gate_bias, places_of, with_anchor
from olmo_sparsity.model.causal_lm import CausalLM
from olmo_sparsity.model.compact import Compact
from olmo_sparsity.model.devices import attention_elements
from olmo_sparsity.model.taps import Attribution, KeysValues, Observer, derivatives, first_order
from olmo_sparsity.progress import tokens_ran

CPU_TOKENS_PER_THREAD = 1024  # of a pass; more do not fit the cache, fewer make the matrix products small
GPU_TOKENS = 2**20  # of a pass; halved as often as memory runs out
LOGIT_ELEMENTS = 2**26  # logits of a pass; 256 MiB in fp32
PREFIX_SHARE = 4  # the prefixes of a block of windows take this part of a pass's tokens
LOG_GATE = (
    -23.0
)  # of the gate that stands for 0: small enough for the derivative at 0, large enough for fp32; exact in bf16
BACKWARD_MEMORY = 16  # a differentiated pass keeps so many times more
GRADIENT_TOKENS = 2048  # of a differentiated pass; every machine holds so many
GRADIENT_MEMORY = 4  # forward passes whose memory the local tokens take, run forward and backward
BACKWARD_PASSES = 2  # forward passes that a backward pass takes the time of, roughly
FAR_TOKENS = 256  # long-range tokens that run at once, each alone
LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (windows int64 [w], logits_wV) -> sums, [] or [L]


@dataclass
class Engine:
    """A model, and how it is run on windows. ``tokens_WT`` below are windows without their targets and without the anchor."""

    model: CausalLM
    local_len: int  # L, tokens that are always visible
    visibility: Visibility = "hidden"
    anchor_id: Optional[int] = None
    path: str = "compact"
    batch_tokens: int = 0  # largest number of tokens of a pass; 0: what the device computes fast
    # Prefixes of the latest windows.
    _kept: list[tuple[torch.Tensor, KeysValues]] = field(default_factory=list, repr=False)

    def __post_init__(self) -> None:
        if not self.batch_tokens:
            is_cpu = self.model.device.type == "cpu"
            self.batch_tokens = CPU_TOKENS_PER_THREAD * torch.get_num_threads() if is_cpu else GPU_TOKENS

    @property
    def num_anchors(self) -> int:
        """The number of tokens in front of a window: 1 or 0."""
        return 0 if self.anchor_id is None else 1

    @property
    def has_prefix(self) -> bool:
        """Whether visible long-range tokens are entries of a prefix."""
        return self.visibility == "contextual" and self.path != "masked"

    @functools.cached_property
    def compact(self) -> Optional[Compact]:
        """The layers run piece by piece; None: the plain path."""
        return Compact(self.model) if self.path == "compact" and Compact.supports(self.model) else None

    @property
    def _logits(self) -> Callable[[torch.Tensor, torch.Tensor], torch.Tensor]:
        return self.model.logits if self.compact is None else self.compact.logits

    def rows_per_pass(self, row_len: int) -> int:
        """Rows of so many tokens in one pass."""
        return max(1, min(self.batch_tokens // row_len, LOGIT_ELEMENTS // self.model.vocab_size))

    def windows_per_batch(self, full_len: int) -> int:
        """Windows whose prefixes one pass keeps."""
        return max(1, self.batch_tokens // PREFIX_SHARE // (full_len - self.local_len + self.num_anchors))

    def _passes(
        self, rows_R: torch.Tensor, row_len: int, run: Callable[[torch.Tensor], torch.Tensor]
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yield (rows, what ``run`` returns of them) of each pass; where memory runs out, passes are halved from then on."""
        begin = 0
        while begin < len(rows_R):
            rows = rows_R[begin : begin + self.rows_per_pass(row_len)]
            try:
                found = run(rows)
            except torch.OutOfMemoryError:
                if len(rows) == 1:
                    raise
                self.batch_tokens = row_len * (len(rows) // 2)
                continue
            yield rows, found
            begin += len(rows)

    @torch.inference_mode()
    def log_probs(
        self, tokens_WT: torch.Tensor, windows_R: torch.Tensor, shown_RM: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Run rows: windows under visible sets of any sizes.

        Args:
            tokens_WT: int64.
            windows_R: int64, the window of each row.
            shown_RM: bool, its visible long-range positions.

        Yields:
            (rows, int64 [r]; their log-probabilities of the next token, nats, fp32 [r, V]) of each pass.
        """
        sizes_R = shown_RM.sum(dim=1)
        for size in sizes_R.unique().tolist():  # rows of one size make a pass without padding
            rows_r = (sizes_R == size).nonzero()[:, 0]
            if self.has_prefix and size > 0:
                yield from self._after_prefixes(tokens_WT, windows_R, shown_RM, rows_r)
                continue
            length = tokens_WT.shape[1] if self.path == "masked" else self.local_len + size

            def run(rows: torch.Tensor) -> torch.Tensor:
                return self._run_rows(tokens_WT[windows_R[rows]], shown_RM[rows])

            yield from self._passes(rows_r, length + self.num_anchors, run)

    def _run_rows(self, tokens_RT: torch.Tensor, shown_RM: torch.Tensor) -> torch.Tensor:
        tokens_RT, positions_RT = with_anchor(tokens_RT, self.anchor_id)
        shown_RT = all_visible(shown_RM, local_len=self.local_len, has_anchor=self.anchor_id is not None)
        if self.path == "masked":
            tokens_ran(tokens_RT.numel())
            mask_RTT = attention_mask(shown_RT, local_len=self.local_len, visibility=self.visibility)
            return _normalized(self.model.logits(tokens_RT, positions_RT, mask_RTT))
        places_RY = places_of(shown_RT)
        tokens_ran(places_RY.numel())
        return _normalized(self._logits(tokens_RT.gather(1, places_RY), places_RY))

    def _after_prefixes(
        self, tokens_WT: torch.Tensor, windows_R: torch.Tensor, shown_RM: torch.Tensor, rows_r: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Like ``log_probs``; the prefix of a window is computed once, and rows see some of its entries."""
        used_W = windows_R[rows_r].unique()
        row_len = self.local_len + int(shown_RM[rows_r[0]].sum()) + self.num_anchors
        for some_w in used_W.split(self.windows_per_batch(tokens_WT.shape[1])):
            prefix = self.prefix(tokens_WT, some_w)
            tokens_wT, positions_wT = with_anchor(tokens_WT[some_w], self.anchor_id)
            local = slice(tokens_wT.shape[1] - self.local_len, None)

            def run(rows: torch.Tensor) -> torch.Tensor:
                place_r = torch.searchsorted(some_w, windows_R[rows])  # noqa: B023
                seen_RP = places_of(torch.nn.functional.pad(shown_RM[rows], (self.num_anchors, 0), value=True))
                tokens_ran(len(rows) * self.local_len)
                logits_RV = self.model.logits_after(
                    tokens_wT[place_r, local],  # noqa: B023
                    positions_wT[place_r, local],  # noqa: B023
                    entries_of(prefix, place_r, seen_RP),  # noqa: B023
                    seen_RP,
                )
                return _normalized(logits_RV)

            yield from self._passes(rows_r[torch.isin(windows_R[rows_r], some_w)], row_len, run)

    @torch.inference_mode()
    def log_probs_of_singles(
        self, tokens_WT: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor, torch.Tensor]]:
        """Run every set of a single long-range position, as ``log_probs`` does.

        Yields:
            (windows int64 [r], positions int64 [r], log-probabilities fp32 [r, V]) of each pass.
        """
        (num_windows, full_len), device = tokens_WT.shape, tokens_WT.device
        num_far = full_len - self.local_len
        if self.compact is None or self.visibility == "contextual":
            windows_R = torch.arange(num_windows, device=device).repeat_interleave(num_far)
            positions_R = torch.arange(num_far, device=device).repeat(num_windows)
            shown_RM = positions_R[:, None] == torch.arange(num_far, device=device)
            for rows, log_p_rV in self.log_probs(tokens_WT, windows_R, shown_RM):
                yield windows_R[rows], positions_R[rows], log_p_rV
            return
        rows_per_pass = self.rows_per_pass(self.local_len + 1)
        for some_w in torch.arange(num_windows, device=device).split(max(1, rows_per_pass // num_far)):
            tokens_wT, _ = with_anchor(tokens_WT[some_w], self.anchor_id)
            passes = self.compact.singles(
                tokens_wT, local_len=self.local_len, num_anchors=self.num_anchors, rows_per_pass=rows_per_pass
            )
            for places_j, logits_wjV in passes:
                tokens_ran(len(some_w) * len(places_j) * (self.local_len + 1))
                yield (
                    some_w.repeat_interleave(len(places_j)),
                    (places_j - self.num_anchors).repeat(len(some_w)),
                    _normalized(logits_wjV.flatten(0, 1)),
                )

    @torch.inference_mode()
    def log_probs_of_all_but(
        self, tokens_WT: torch.Tensor, spans: list[tuple[int, int]]
    ) -> Iterator[tuple[torch.Tensor, int, torch.Tensor]]:
        """Run every window with all long-range positions but those of a span (first, end).

        Yields:
            (windows int64 [w], number of the span, log-probabilities fp32 [w, V]).
        """
        (num_windows, full_len), device = tokens_WT.shape, tokens_WT.device
        num_far = full_len - self.local_len
        if self.visibility == "contextual" or self.path == "masked":
            hidden_IM = torch.zeros(len(spans), num_far, dtype=torch.bool, device=device)
            for number, (first, end) in enumerate(spans):
                hidden_IM[number, first:end] = True
            windows_R = torch.arange(num_windows, device=device).repeat_interleave(len(spans))
            spans_R = torch.arange(len(spans), device=device).repeat(num_windows)
            for rows, log_p_rV in self.log_probs(tokens_WT, windows_R, ~hidden_IM[spans_R]):
                for row, log_p_V in zip(rows.tolist(), log_p_rV, strict=True):
                    yield windows_R[row : row + 1], int(spans_R[row]), log_p_V[None]
            return
        # What precedes a span is computed once for a window.
        for some_w in torch.arange(num_windows, device=device).split(self.rows_per_pass(full_len + self.num_anchors)):
            tokens_wT, positions_wT = with_anchor(tokens_WT[some_w], self.anchor_id)
            cut = tokens_wT.shape[1] - self.local_len
            tokens_ran(len(some_w) * cut)
            prefix = self.model.prefix(tokens_wT[:, :cut], positions_wT[:, :cut])
            for number, (first, end) in enumerate(spans):
                before, after = self.num_anchors + first, self.num_anchors + end
                tokens_ran(len(some_w) * (tokens_wT.shape[1] - after))
                rest = tokens_wT[:, after:], positions_wT[:, after:]
                seen = [(k[:, :, :before], v[:, :, :before]) for k, v in prefix] if before else None
                if self.compact is not None:
                    logits_wV = self.compact.logits(*rest, seen)
                elif seen is None:
                    logits_wV = self.model.logits(*rest)
                else:
                    logits_wV = self.model.logits_after(*rest, seen, positions_wT[:, :before])
                yield some_w, number, _normalized(logits_wV)

    @torch.inference_mode()
    def last(self, tokens_WT: torch.Tensor, num: int) -> torch.Tensor:
        """Log-probabilities with the last ``num`` tokens alone, directly behind the anchor, as a training row begins; [W, V]."""
        tokens_Wn, positions_Wn = with_anchor(tokens_WT[:, tokens_WT.shape[1] - num :], self.anchor_id)

        def run(rows: torch.Tensor) -> torch.Tensor:
            tokens_ran(tokens_Wn[rows].numel())
            return _normalized(self._logits(tokens_Wn[rows], positions_Wn[rows]))

        all_rows = torch.arange(len(tokens_WT), device=tokens_WT.device)
        return torch.cat([log_p for _, log_p in self._passes(all_rows, tokens_Wn.shape[1], run)])

    def short(self, tokens_WT: torch.Tensor) -> torch.Tensor:
        """Log-probabilities with the local tokens alone, at their positions behind the gap, fp32 [W, V]."""
        nothing_WM = torch.zeros(len(tokens_WT), tokens_WT.shape[1] - self.local_len, dtype=torch.bool)
        windows = torch.arange(len(tokens_WT), device=tokens_WT.device)
        return torch.cat([log_p for _, log_p in self.log_probs(tokens_WT, windows, nothing_WM.to(tokens_WT.device))])

    @torch.inference_mode()
    def long_and_attention(self, tokens_WT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities with everything visible, [W, V], and attention of the last token to long-range ones, [W, M]."""
        full_len, first = tokens_WT.shape[1], self.num_anchors
        found = []
        for some_w in torch.arange(len(tokens_WT), device=tokens_WT.device).split(self._windows_of_pass(full_len)):
            tokens_wT, positions_wT = with_anchor(tokens_WT[some_w], self.anchor_id)
            cut = tokens_wT.shape[1] - self.local_len if self.has_prefix else 0
            prefix = self.prefix(tokens_WT, some_w) if self.has_prefix else None
            tokens_ran(tokens_wT[:, cut:].numel())
            logits_wV, attention_wT = self.model.logits_and_attention(
                tokens_wT[:, cut:], positions_wT[:, cut:], prefix, positions_wT[:, :cut]
            )
            found.append((_normalized(logits_wV), attention_wT[:, first : first + full_len - self.local_len]))
        log_p, attention = zip(*found, strict=True)
        return torch.cat(log_p), torch.cat(attention)

    def _windows_of_pass(self, full_len: int) -> int:
        if self.has_prefix:
            return self.windows_per_batch(full_len)
        return self.rows_per_pass(full_len + self.num_anchors)

    @torch.inference_mode()
    def observed(self, tokens_WT: torch.Tensor, needs: frozenset[str]) -> dict[str, Any]:
        """What is needed of layers and heads under full context, fp32 [W, layers, ...] as NumPy arrays.

        Raises:
            UserError: the attention cannot be read.
        """
        full_len, first = tokens_WT.shape[1], self.num_anchors
        parts = []
        for some_w in torch.arange(len(tokens_WT), device=tokens_WT.device).split(self.rows_per_pass(full_len + first)):
            observer = Observer(needs, slice(first, first + full_len - self.local_len), self.local_len)
            tokens_wT, positions_wT = with_anchor(tokens_WT[some_w], self.anchor_id)
            tokens_ran(tokens_wT.numel())
            self.model.observe(tokens_wT, positions_wT, observer)
            parts.append(observer.result())
        return {name: torch.cat([part[name] for part in parts]).numpy() for name in needs}

    def prefix(self, tokens_WT: torch.Tensor, some_w: torch.Tensor) -> KeysValues:
        """Keys and values of the anchor and all long-range tokens of some windows (rising), under causal attention.

        Where all windows fit a batch they are kept for the next questions about the same two sets of windows.
        """
        if len(tokens_WT) > self.windows_per_batch(tokens_WT.shape[1]):
            return self._prefix(tokens_WT[some_w])
        kept = next((prefix for known, prefix in self._kept if known is tokens_WT), None)
        if kept is None:
            kept = self._prefix(tokens_WT)
            self._kept = [*self._kept[-1:], (tokens_WT, kept)]
        if len(some_w) == len(tokens_WT):
            return kept
        return [(k[some_w.to(k.device)], v[some_w.to(v.device)]) for k, v in kept]

    def _prefix(self, tokens_WT: torch.Tensor) -> KeysValues:
        tokens_WT, positions_WT = with_anchor(tokens_WT, self.anchor_id)
        cut = tokens_WT.shape[1] - self.local_len
        tokens_ran(len(tokens_WT) * cut)
        return self.model.prefix(tokens_WT[:, :cut], positions_WT[:, :cut])

    def gradients(self, tokens_WT: torch.Tensor, loss_function: LossFunction) -> torch.Tensor:
        """The derivative of a loss by a gate on each long-range position, at gate 0; fp32 [W, M], of L losses [L, W, M].

        The gate multiplies the weight, before normalisation, with which those attend to a token that it would be hidden from. At
        gate 0 only the local tokens run forward and backward; of long-range tokens keys and values are enough
        (``olmo_sparsity.model.taps.first_order``). On the masked path, and where attention cannot be read, all tokens run under
        gates, which is the definition.
        """
        if self.path != "masked":
            nothing = torch.zeros(len(tokens_WT), tokens_WT.shape[1] - self.local_len, dtype=torch.bool)
            found = self._first_order(tokens_WT, nothing.to(tokens_WT.device), loss_function, "gradient")
            if found is not None:
                return found
        batch_tokens = max(self.batch_tokens // BACKWARD_MEMORY, min(self.batch_tokens, GRADIENT_TOKENS))
        per_pass = max(1, batch_tokens // (tokens_WT.shape[1] + self.num_anchors))
        windows = torch.arange(len(tokens_WT), device=tokens_WT.device)
        return torch.cat(
            [self._under_gates(tokens_WT, some_w, loss_function) for some_w in windows.split(per_pass)], dim=-2
        )

    def patching(self, tokens_WT: torch.Tensor, shown_WM: torch.Tensor, loss_function: LossFunction) -> torch.Tensor:
        """Estimate by attribution patching what unmasking each position beside the shown ones does to a loss; fp32 [W, M].

        Raises:
            UserError: the attention cannot be read.
        """
        assert self.visibility == "contextual", "under hidden visibility the visible tokens would read what is unmasked"
        found = self._first_order(tokens_WT, shown_WM, loss_function, "patching")
        if found is None:
            raise UserError(
                "estimates by attribution patching need the attention of every layer, which cannot be read of this model; leave "
                "out the selectors that are made of them"
            )
        return found

    def _first_order(
        self, tokens_WT: torch.Tensor, shown_WM: torch.Tensor, loss_function: LossFunction, attribution: Attribution
    ) -> Optional[torch.Tensor]:
        sizes_W = shown_WM.sum(dim=1)
        result: Optional[torch.Tensor] = None
        for size in sizes_W.unique().tolist():
            of_size_w = (sizes_W == size).nonzero()[:, 0]
            for some_w in of_size_w.split(self.rows_per_pass(GRADIENT_MEMORY * (self.local_len + self.num_anchors))):
                found = self._first_order_of_pass(tokens_WT, some_w, shown_WM[some_w], loss_function, attribution)
                if found is None:
                    return None
                if result is None:
                    result = torch.empty(*found.shape[:-2], *shown_WM.shape, device=found.device)
                result[..., some_w, :] = found
        return result

    @torch.no_grad()
    def _first_order_of_pass(
        self, tokens_WT: torch.Tensor, some_w: torch.Tensor, shown_wM: torch.Tensor, loss_function: LossFunction,
        attribution: Attribution,
    ) -> Optional[torch.Tensor]:  # fmt: skip
        tokens_wT, positions_wT = with_anchor(tokens_WT[some_w], self.anchor_id)
        cut, num_anchors = tokens_wT.shape[1] - self.local_len, self.num_anchors
        prefix = self.prefix(tokens_WT, some_w) if self.visibility == "contextual" else None
        seen_wP, seen = places_of(torch.nn.functional.pad(shown_wM, (num_anchors, 0), value=True)), None
        if seen_wP.shape[1] > 0:
            whole = prefix or self.model.prefix(tokens_wT[:, :1], positions_wT[:, :1])
            seen = entries_of(whole, torch.arange(len(some_w), device=some_w.device), seen_wP)
        loss = functools.partial(loss_function, some_w)
        states = self.model.attention_states(tokens_wT[:, cut:], positions_wT[:, cut:], seen, loss)
        if states is None:
            return None
        num_losses = states[0].gradient_BHNE.shape[:-4].numel()
        tokens_ran((1 + num_losses * BACKWARD_PASSES) * len(tokens_wT) * self.local_len)
        step = FAR_TOKENS
        if prefix is not None:  # they need not run; what is held is the attention to them
            step = max(1, attention_elements(self.model.device) // states[0].gradient_BHNE[..., 0].numel())
        parts = []
        for begin in range(num_anchors, cut, step):
            block = slice(begin, min(begin + step, cut))
            far = self._alone(tokens_wT, positions_wT, block)
            if prefix is not None:
                far = [(k[:, :, block], v[:, :, block]) for k, v in prefix]
            parts.append(first_order(states, far, attribution=attribution))
        return torch.cat(parts, dim=-1)

    def _alone(self, tokens_wT: torch.Tensor, positions_wT: torch.Tensor, block: slice) -> KeysValues:
        """Keys and values of tokens each of which sees itself and the anchor only."""
        if self.visibility == "contextual":
            return []
        first = self.num_anchors
        tokens_wP, positions_wP = (torch.cat([of[:, :first], of[:, block]], dim=1) for of in (tokens_wT, positions_wT))
        tokens_ran(tokens_wP.numel())
        mask_PP = torch.eye(tokens_wP.shape[1], dtype=torch.bool, device=tokens_wP.device)
        mask_PP[:, :first] = True
        found = self.model.prefix(tokens_wP, positions_wP, mask_PP.expand(len(tokens_wT), -1, -1))
        return [(k[:, :, first:], v[:, :, first:]) for k, v in found]

    def _under_gates(self, tokens_WT: torch.Tensor, some_w: torch.Tensor, loss_function: LossFunction) -> torch.Tensor:
        tokens_wT, positions_wT = with_anchor(tokens_WT[some_w], self.anchor_id)
        far = slice(self.num_anchors, tokens_wT.shape[1] - self.local_len)
        log_gate_wT = torch.zeros(tokens_wT.shape, device=tokens_wT.device)
        log_gate_wT[:, far] = LOG_GATE
        with torch.enable_grad():
            log_gate_wT.requires_grad_()
            bias_wTT = gate_bias(log_gate_wT, local_len=self.local_len, visibility=self.visibility)
            logits_wV = self.model.logits(tokens_wT, positions_wT, bias_wTT)
            (gradient_wT,) = derivatives(loss_function(some_w, logits_wV.float()), [log_gate_wT])
        tokens_ran((1 + gradient_wT.shape[:-2].numel() * BACKWARD_PASSES) * tokens_wT.numel())
        return gradient_wT[..., far] / math.exp(LOG_GATE)  # d/d gate = (d/d log gate) / gate


def _normalized(logits_RV: torch.Tensor) -> torch.Tensor:
    return logits_RV.float().log_softmax(dim=-1)


def entries_of(prefix: KeysValues, windows_R: torch.Tensor, seen_RP: torch.Tensor) -> KeysValues:
    """The entries that rows see of the prefixes of their windows, [R, H, P, E] in each layer, on its device."""
    found = []
    for k_WHPE, v_WHPE in prefix:
        rows_R1, seen = windows_R[:, None].to(k_WHPE.device), seen_RP.to(k_WHPE.device)
        found.append((k_WHPE[rows_R1, :, seen].transpose(1, 2), v_WHPE[rows_R1, :, seen].transpose(1, 2)))
    return found
