"""Runs windows under visible sets, as many rows at once as a pass holds.

Three paths give the same log-probabilities within 1e-5 nats in fp32:

- ``masked`` runs all tokens under a mask. It is the definition.
- ``plain`` runs only the visible tokens, at their position IDs. Visible tokens that see what they see in the whole window are
  entries of a prefix, which runs once for all rows of its window: under ``contextual`` visibility all long-range tokens, under
  ``hidden`` those before the first hidden one.
- ``compact`` does the same without computing anything twice, where the layers are known (``olmo_sparsity.model.compact``).

Letters of shapes: W windows, T tokens of a window, M long-range positions, R rows, P entries of a prefix, V vocabulary.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any, Optional, Union

import numpy as np
import torch
import torch.nn.functional as F

from olmo_sparsity.config import Visibility
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.visible import attention_mask, gate_bias, places_of, with_anchor
from olmo_sparsity.model.causal_lm import CausalLM
from olmo_sparsity.model.compact import Compact
from olmo_sparsity.model.devices import attention_elements
from olmo_sparsity.model.taps import Attribution, KeysValues, LossOfLogits, Observer, derivatives, first_order
from olmo_sparsity.progress import tokens_ran

CPU_TOKENS_PER_THREAD = 1024  # of a pass; more do not fit the cache, fewer make the matrix products small
GPU_TOKENS = 2**20  # of a pass; halved whenever memory runs out
LOGIT_ELEMENTS = 2**26  # logits of a pass; 256 MiB in fp32
PREFIX_MEMORY = 4  # an entry of a prefix, which stays in memory, counts as so many tokens of a pass
GRADIENT_MEMORY = 4  # a token of a differentiated pass counts as so many
BACKWARD_PASSES = 2  # forward passes that take as long as a backward pass, roughly
FEWEST_SHARED = 8  # tokens before the first hidden one that make a prefix worthwhile
FAR_TOKENS = 256  # long-range tokens that run at once, each alone
LOG_GATE = -23.0  # stands for gate 0: small enough for the derivative at 0, large enough for fp32; exact in bf16
LOWEST = -1e30  # log-probability of entries that are no tokens
LossFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]  # (windows int64 [w], logits_wV) -> sums, [] or [L]
Array = Union[np.ndarray, torch.Tensor]
Prefix = tuple[torch.Tensor, KeysValues]  # numbers of windows (rising), and the entries of all their long-range tokens


@dataclass
class Engine:
    """A model, and how it runs windows. ``tokens_WT`` below are windows without their targets and without the anchor."""

    model: CausalLM
    local_len: int  # L, tokens that are always visible
    visibility: Visibility = "hidden"
    anchor_id: Optional[int] = None
    path: str = "compact"
    batch_tokens: int = 0  # largest number of tokens of a pass; 0: what the device computes fast
    _kept: list[tuple[torch.Tensor, KeysValues]] = field(default_factory=list, repr=False)  # prefixes of latest windows

    def __post_init__(self) -> None:
        if not self.batch_tokens:
            is_cpu = self.model.device.type == "cpu"
            self.batch_tokens = CPU_TOKENS_PER_THREAD * torch.get_num_threads() if is_cpu else GPU_TOKENS

    @property
    def num_anchors(self) -> int:
        """Tokens in front of a window: 1 or 0."""
        return 0 if self.anchor_id is None else 1

    @property
    def has_prefix(self) -> bool:
        """Whether all visible long-range tokens are entries of a prefix."""
        return self.visibility == "contextual" and self.path != "masked"

    @functools.cached_property
    def compact(self) -> Optional[Compact]:
        """The layers run piece by piece; None: the plain path."""
        return Compact(self.model) if self.path == "compact" and Compact.supports(self.model) else None

    # Every pass of the model is one of ``passes``.

    def passes(self, items_R: torch.Tensor, item_tokens: int) -> Iterator[AbstractContextManager[torch.Tensor]]:
        """Passes over items, as many at once as fit: ``for one_pass in passes(...): with one_pass as items: ...``.

        Where memory runs out inside the ``with``, the same items come again, and passes are halved from then on.
        """
        begin = 0

        @contextmanager
        def one_pass() -> Iterator[torch.Tensor]:
            nonlocal begin
            items = items_R[begin : begin + self.rows_per_pass(item_tokens)]
            try:
                yield items
            except RuntimeError as error:
                if len(items) == 1 or not is_out_of_memory(error):
                    raise
                self.batch_tokens = item_tokens * (len(items) // 2)
            else:
                begin += len(items)

        while begin < len(items_R):
            yield one_pass()

    def rows_per_pass(self, row_tokens: int) -> int:
        """Rows of so many tokens in one pass, whose logits also take memory."""
        return max(1, min(self.batch_tokens // row_tokens, LOGIT_ELEMENTS // self.model.vocab_size))

    def windows_per_batch(self, full_len: int) -> int:
        """Windows whose prefixes one pass keeps."""
        return self.rows_per_pass(PREFIX_MEMORY * (full_len - self.local_len + self.num_anchors))

    def predictions(self, tokens_WT: torch.Tensor, shown_WM: torch.Tensor) -> torch.Tensor:
        """Log-probabilities of the next token of each window under its visible set, nats, fp32 [W, V].

        All tokens behind the M ones are local, so M = 0 runs short windows directly behind the anchor.
        """
        log_p_WV = torch.empty(len(tokens_WT), self.model.vocab_size, device=tokens_WT.device)
        for rows, log_p_rV in self.log_probs(tokens_WT, all_of(tokens_WT), shown_WM):
            log_p_WV[rows] = log_p_rV
        return log_p_WV

    @torch.inference_mode()
    def log_probs(
        self, tokens_WT: torch.Tensor, windows_R: Array, shown_RM: Array
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Run rows: windows (int64) under visible sets (bool) of any sizes.

        Yields (rows int64 [r], their log-probabilities of the next token, nats, fp32 [r, V]) of each pass.
        """
        windows_R, shown_RM = (torch.as_tensor(of, device=tokens_WT.device) for of in (windows_R, shown_RM))
        num_anchors, local_len = self.num_anchors, tokens_WT.shape[1] - shown_RM.shape[1]
        shown_RT = F.pad(F.pad(shown_RM, (0, local_len), value=True), (num_anchors, 0), value=True)
        entries_RT = self._entries(shown_RM, local_len)
        for rows_of_shape, row_tokens, prefix in self._groups(tokens_WT, windows_R, shown_RT, entries_RT):
            for one_pass in self.passes(rows_of_shape, row_tokens):
                with one_pass as rows:
                    windows_r, shown_rT = windows_R[rows], shown_RT[rows]
                    if self.compact is not None and prefix is None and row_tokens == num_anchors + 1 + local_len:
                        some_w, of_r = windows_r.unique(return_inverse=True)
                        tokens_wT, _ = with_anchor(tokens_WT[some_w], self.anchor_id)
                        places_r = places_of(shown_rT)[:, num_anchors]
                        tokens_ran(len(rows) * row_tokens)
                        logits_rV = self.compact.singles(tokens_wT, of_r, places_r, local_len, num_anchors)
                    else:
                        logits_rV = self._logits(tokens_WT, windows_r, shown_rT, entries_RT[rows], prefix)
                    logits_rV = normalized(logits_rV)  # by the same name, so that the logits are freed
                    yield rows, logits_rV

    def _logits(
        self, tokens_WT: torch.Tensor, windows_R: torch.Tensor, shown_RT: torch.Tensor, entries_RT: torch.Tensor,
        prefix: Optional[Prefix],
    ) -> torch.Tensor:  # fmt: skip
        """Logits of rows of one shape, [R, V]: under a mask, or of their visible tokens behind the entries of a prefix."""
        tokens_RT, positions_RT = with_anchor(tokens_WT[windows_R], self.anchor_id)
        if self.path == "masked":
            tokens_ran(tokens_RT.numel())
            mask_RTT = attention_mask(shown_RT, local_len=self.local_len, visibility=self.visibility)
            return self.model.logits(tokens_RT, positions_RT, mask_RTT)
        places_RY, places_RP = places_of(shown_RT & ~entries_RT), places_of(entries_RT)
        tokens_ran(places_RY.numel())
        tokens_RY, entries = tokens_RT.gather(1, places_RY), entries_of(prefix, windows_R, places_RP)
        if self.compact is not None:
            return self.compact.logits(tokens_RY, places_RY, entries)
        return self.model.logits_after(tokens_RY, places_RY, entries, places_RP)

    def _groups(
        self, tokens_WT: torch.Tensor, windows_R: torch.Tensor, shown_RT: torch.Tensor, entries_RT: torch.Tensor
    ) -> Iterator[tuple[torch.Tensor, int, Optional[Prefix]]]:
        """Yield rows of one shape, which make passes without padding; the tokens that each sees; and their prefixes.

        First come rows without entries, then those behind one pass of prefixes after another.
        """
        num_seen_R, num_tokens, has_prefix_R = shown_RT.sum(dim=1), shown_RT.shape[1], entries_RT.any(dim=1)
        if self.path == "masked":
            num_seen_R = torch.full_like(num_seen_R, num_tokens)
        shapes_R = num_seen_R * (num_tokens + 1) + entries_RT.sum(dim=1)  # both sizes as one number

        def of_one_shape(rows_r: torch.Tensor, prefix: Optional[Prefix]) -> Iterator[Any]:
            for same_r in equal(shapes_R[rows_r]):
                yield rows_r[same_r], int(num_seen_R[rows_r[same_r[0]]]), prefix

        yield from of_one_shape((~has_prefix_R).nonzero()[:, 0], None)
        prefix_tokens = PREFIX_MEMORY * (num_tokens - self.local_len)
        for one_pass in self.passes(windows_R[has_prefix_R].unique(), prefix_tokens):
            with one_pass as some_w:
                rows_r = (has_prefix_R & torch.isin(windows_R, some_w)).nonzero()[:, 0]
                yield from of_one_shape(rows_r, (some_w, self.prefix(tokens_WT, some_w)))

    def _entries(self, shown_RM: torch.Tensor, local_len: int) -> torch.Tensor:
        """Which visible tokens are entries of a prefix, bool [R, T]; with any long-range one, so is the anchor."""
        entries_RM = torch.zeros_like(shown_RM)
        if self.has_prefix:
            entries_RM = shown_RM
        elif self.path != "masked":
            leading_RM = shown_RM.cumprod(dim=1, dtype=torch.uint8).bool()
            number_R, size_R = leading_RM.sum(dim=1), shown_RM.sum(dim=1)
            shares_R = (number_R >= FEWEST_SHARED) & (4 * number_R >= size_R) & (number_R < shown_RM.shape[1])
            entries_RM = leading_RM & shares_R[:, None]
        anchors_RA = entries_RM.any(dim=1, keepdim=True).expand(-1, self.num_anchors)
        return torch.cat([anchors_RA, F.pad(entries_RM, (0, local_len))], dim=1)

    def prefix(self, tokens_WT: torch.Tensor, some_w: torch.Tensor) -> KeysValues:
        """Keys and values of the anchor and all long-range tokens of some windows (rising), under causal attention.

        Where all windows fit a batch, they are kept for the next calls with the same two sets of windows.
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

    @torch.inference_mode()
    def _prefix(self, tokens_WT: torch.Tensor) -> KeysValues:
        tokens_WT, positions_WT = with_anchor(tokens_WT, self.anchor_id)
        cut = tokens_WT.shape[1] - self.local_len
        tokens_ran(len(tokens_WT) * cut)
        return self.model.prefix(tokens_WT[:, :cut], positions_WT[:, :cut])

    # Passes under full context that read the attention.

    @torch.inference_mode()
    def long_and_attention(self, tokens_WT: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Log-probabilities with everything visible, [W, V], and attention of the last token to long-range ones, [W, M]."""
        full_len, first = tokens_WT.shape[1] + self.num_anchors, self.num_anchors
        cut, parts = full_len - self.local_len if self.has_prefix else 0, []
        for one_pass in self.passes(all_of(tokens_WT), PREFIX_MEMORY * cut or full_len):
            with one_pass as some_w:
                tokens_wT, positions_wT = with_anchor(tokens_WT[some_w], self.anchor_id)
                prefix = self.prefix(tokens_WT, some_w) if cut else None
                tokens_ran(tokens_wT[:, cut:].numel())
                logits_wV, attention_wT = self.model.logits_and_attention(
                    tokens_wT[:, cut:], positions_wT[:, cut:], prefix, positions_wT[:, :cut]
                )
                parts.append((normalized(logits_wV), attention_wT[:, first : full_len - self.local_len]))
        log_p, attention = zip(*parts, strict=True)
        return torch.cat(log_p), torch.cat(attention)

    @torch.inference_mode()
    def observed(self, tokens_WT: torch.Tensor, needs: frozenset[str]) -> dict[str, Any]:
        """Values of layers and heads under full context, by name, fp32 [W, layers, ...] as NumPy arrays."""
        full_len, first, parts = tokens_WT.shape[1] + self.num_anchors, self.num_anchors, []
        for one_pass in self.passes(all_of(tokens_WT), full_len):
            with one_pass as some_w:
                observer = Observer(needs, slice(first, full_len - self.local_len), self.local_len)
                tokens_wT, positions_wT = with_anchor(tokens_WT[some_w], self.anchor_id)
                tokens_ran(tokens_wT.numel())
                self.model.observe(tokens_wT, positions_wT, observer)
                parts.append(observer.result())
        return {name: torch.cat([part[name] for part in parts]).numpy() for name in needs}

    def gradients(self, tokens_WT: torch.Tensor, loss_function: LossFunction) -> torch.Tensor:
        """The derivative of a loss by a gate on each long-range position, at gate 0; fp32 [W, M], of L losses [L, W, M].

        The gate multiplies the weight, before normalisation, of attention to a token where it would be hidden. At gate 0 only the
        local tokens run forward and backward; of long-range tokens keys and values are enough
        (``olmo_sparsity.model.taps.first_order``). On the masked path, and where attention cannot be read, all tokens run under
        gates, which is the definition.
        """
        if self.path != "masked":
            nothing_WM = torch.zeros(len(tokens_WT), tokens_WT.shape[1] - self.local_len, dtype=torch.bool)
            gradients = self._first_order(tokens_WT, nothing_WM.to(tokens_WT.device), loss_function, "gradient")
            if gradients is not None:
                return gradients
        parts = []
        for one_pass in self.passes(all_of(tokens_WT), GRADIENT_MEMORY * (tokens_WT.shape[1] + self.num_anchors)):
            with one_pass as some_w:
                parts.append(self._under_gates(tokens_WT[some_w], functools.partial(loss_function, some_w)))
        return torch.cat(parts, dim=-2)

    def patching(self, tokens_WT: torch.Tensor, shown_WM: torch.Tensor, loss_function: LossFunction) -> torch.Tensor:
        """Estimate by attribution patching how unmasking each position beside the visible ones changes a loss; fp32 [W, M]."""
        assert self.visibility == "contextual", "under hidden visibility the visible tokens would read what is unmasked"
        estimates = self._first_order(tokens_WT, shown_WM, loss_function, "patching")
        if estimates is None:
            raise UserError(
                "estimates by attribution patching need the attention of every layer, which cannot be read of this model; leave "
                "out the selectors that use them"
            )
        return estimates

    def _first_order(
        self, tokens_WT: torch.Tensor, shown_WM: torch.Tensor, loss_function: LossFunction, attribution: Attribution
    ) -> Optional[torch.Tensor]:
        """First-order effects of each position on a loss; None where attention cannot be read."""
        effects = None
        for of_one_size in equal(shown_WM.sum(dim=1)):
            for one_pass in self.passes(of_one_size, GRADIENT_MEMORY * (self.local_len + self.num_anchors)):
                with one_pass as some_w:
                    part = self._first_order_of(tokens_WT, shown_WM, loss_function, attribution, some_w)
                    if part is None:
                        return None
                    if effects is None:
                        effects = torch.empty(*part.shape[:-2], *shown_WM.shape, device=part.device)
                    effects[..., some_w, :] = part
        return effects

    @torch.no_grad()
    def _first_order_of(
        self, tokens_WT: torch.Tensor, shown_WM: torch.Tensor, loss_function: LossFunction, attribution: Attribution,
        some_w: torch.Tensor,
    ) -> Optional[torch.Tensor]:  # fmt: skip
        tokens_wT, positions_wT = with_anchor(tokens_WT[some_w], self.anchor_id)
        cut, num_anchors = tokens_wT.shape[1] - self.local_len, self.num_anchors
        prefix = self.prefix(tokens_WT, some_w) if self.visibility == "contextual" else None
        seen_wP, seen = places_of(F.pad(shown_WM[some_w], (num_anchors, 0), value=True)), None
        if seen_wP.shape[1] > 0:
            whole = prefix or self.model.prefix(tokens_wT[:, :1], positions_wT[:, :1])
            seen = entries_of((some_w, whole), some_w, seen_wP)
        loss = functools.partial(loss_function, some_w)
        states = self.model.attention_states(tokens_wT[:, cut:], positions_wT[:, cut:], seen, loss)
        if states is None:
            return None
        num_losses = states[0].gradient_BHNE.shape[:-4].numel()
        tokens_ran((1 + num_losses * BACKWARD_PASSES) * len(tokens_wT) * self.local_len)
        step = FAR_TOKENS
        if prefix is not None:  # they need not run; what takes memory is the attention to them
            step = max(1, attention_elements(self.model.device) // states[0].gradient_BHNE[..., 0].numel())
        parts = []
        for begin in range(num_anchors, cut, step):
            block = slice(begin, min(begin + step, cut))
            if prefix is not None:
                far = [(k[:, :, block], v[:, :, block]) for k, v in prefix]
            else:
                far = self._alone(tokens_wT, positions_wT, block)
            parts.append(first_order(states, far, attribution=attribution))
        return torch.cat(parts, dim=-1)

    def _alone(self, tokens_wT: torch.Tensor, positions_wT: torch.Tensor, block: slice) -> KeysValues:
        """Keys and values of tokens each of which sees itself and the anchor only."""
        first = self.num_anchors
        tokens_wP, positions_wP = (torch.cat([of[:, :first], of[:, block]], dim=1) for of in (tokens_wT, positions_wT))
        tokens_ran(tokens_wP.numel())
        mask_PP = torch.eye(tokens_wP.shape[1], dtype=torch.bool, device=tokens_wP.device)
        mask_PP[:, :first] = True
        entries = self.model.prefix(tokens_wP, positions_wP, mask_PP.expand(len(tokens_wT), -1, -1))
        return [(k[:, :, first:], v[:, :, first:]) for k, v in entries]

    def _under_gates(self, tokens_wT: torch.Tensor, loss: LossOfLogits) -> torch.Tensor:
        tokens_wT, positions_wT = with_anchor(tokens_wT, self.anchor_id)
        far = slice(self.num_anchors, tokens_wT.shape[1] - self.local_len)
        log_gate_wT = torch.zeros(tokens_wT.shape, device=tokens_wT.device)
        log_gate_wT[:, far] = LOG_GATE
        with torch.enable_grad():
            log_gate_wT.requires_grad_()
            bias_wTT = gate_bias(log_gate_wT, local_len=self.local_len, visibility=self.visibility)
            logits_wV = self.model.logits(tokens_wT, positions_wT, bias_wTT)
            (gradient_wT,) = derivatives(loss(logits_wV.float()), [log_gate_wT])
        tokens_ran((1 + gradient_wT.shape[:-2].numel() * BACKWARD_PASSES) * tokens_wT.numel())
        return gradient_wT[..., far] / math.exp(LOG_GATE)  # d/d gate = (d/d log gate) / gate


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether a GPU or a CPU had too little memory."""
    return isinstance(error, torch.OutOfMemoryError) or "can't allocate memory" in str(error)


def normalized(logits_RV: torch.Tensor) -> torch.Tensor:
    """Log-probabilities, fp32; where a padded vocabulary has -inf, a finite number, so that 0 times it is 0."""
    return logits_RV.float().log_softmax(dim=-1).clamp(min=LOWEST)


def all_of(tokens_WT: torch.Tensor) -> torch.Tensor:
    """The numbers of all windows, int64 [W]."""
    return torch.arange(len(tokens_WT), device=tokens_WT.device)


def equal(keys_R: torch.Tensor) -> Iterator[torch.Tensor]:
    """The rows of each key, int64 [r]."""
    for key in keys_R.unique():
        yield (keys_R == key).nonzero()[:, 0]


def entries_of(prefix: Optional[Prefix], windows_R: torch.Tensor, places_RP: torch.Tensor) -> Optional[KeysValues]:
    """The entries of the prefixes of their windows that rows see, [R, H, P, E] in each layer, on its device."""
    if prefix is None:
        return None
    windows_w, keys_values = prefix
    of_R1, entries = torch.searchsorted(windows_w, windows_R)[:, None], []
    for k_WHPE, v_WHPE in keys_values:
        rows_R1, places = of_R1.to(k_WHPE.device), places_RP.to(k_WHPE.device)
        entries.append((k_WHPE[rows_R1, :, places].transpose(1, 2), v_WHPE[rows_R1, :, places].transpose(1, 2)))
    return entries
