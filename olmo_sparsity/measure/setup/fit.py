"""Checks that a model can be measured: that it computes what the definitions ask for. The manifest keeps what was found.

Nothing is taken from an architecture's name. Every check runs the model on a few windows, through the calls that the
measurement uses, and gives a number. Predictions are compared by the expected difference of the loss in nats: the mean of
|log p - log q| over tokens drawn from p, the largest of the windows.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Optional

import numpy as np
import torch

from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.setup.first_token import compare_first_tokens
from olmo_sparsity.measure.setup.opened_model import OpenedModel
from olmo_sparsity.measure.visible.visibility import (
    Visibility,
    attention_mask,
    compact_rows,
    gate_bias,
    visible_mask,
    with_anchor,
)
from olmo_sparsity.model.causal_model import CausalModel
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.text.windows import Windows

logger = logging.getLogger(__name__)

CHECKED_SET = 8  # visible long-range tokens, as far apart as the window allows
LEAST_EFFECT = 0.1  # of what rounding may cause; where position IDs are ignored, the effect is 0 exactly
FEWEST_TOKENS = 4  # different ones that a checked window must hold
CHECKED_WINDOWS = 4  # a model that does not fit differs on every window
# What rounding may cause, in the units of ``expected_difference``. Measured on SmolLM2-135M, 64 of 128 tokens, 8 windows of C4,
# with and without an anchor: compact and masked differ by 3e-6 in fp32 and by up to 0.07 in bf16. What must not pass is larger:
# halved distances 0.6 nats, 56 of the 64 long-range tokens missing 0.8 nats.
TOLERANCE_NATS = {torch.float32: 1e-4, torch.bfloat16: 0.15}
# The first tokens are compared on as many windows as hold COMPARED_TOKENS, within these limits.
COMPARED_TOKENS, LEAST_COMPARED, MOST_COMPARED = 16_384, 8, 64
# A mask has as many elements as the square of the tokens; derivatives by it take many times that. So visible sets are compared on
# the last LONGEST_MASKED tokens of a window, and rows with a causal mask up to LONGEST_CHECKED tokens.
LONGEST_MASKED, LONGEST_CHECKED = 2_048, 8_192


@dataclass(frozen=True)
class FitCheck:
    """One property of a model, as measured.

    Attributes:
        name: what was measured.
        found: the measured number.
        limit: what ``found`` is compared with.
        at_least: ``found`` must reach the limit; otherwise it must not exceed it.
    """

    name: str
    found: float
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """False also where ``found`` is not a number."""
        return self.found >= self.limit if self.at_least else self.found <= self.limit


def expected_difference(logits_WV: torch.Tensor, others_WV: torch.Tensor) -> float:
    """Return the expected absolute difference of the loss, nats, of the window where it is largest."""
    log_probs_WV, others_WV = logits_WV.float().log_softmax(dim=-1), others_WV.float().log_softmax(dim=-1)
    difference_W = (log_probs_WV.exp() * (log_probs_WV - others_WV).abs()).sum(dim=-1)
    return float(difference_W.max())  # torch's max keeps NaN


def varied_windows(tokens_WT: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Replace windows of too few different tokens by drawn tokens, always the same ones; int64 [W, T].

    Over equal tokens attention is a mean of equal values: no other position ID, hidden token or sliding window changes it. So a
    window must hold different tokens, and so must every second token of it, which are all that ``effect_of_positions`` runs.
    """
    is_varied_W = _has_different_tokens(tokens_WT) & _has_different_tokens(tokens_WT.flip(1)[:, ::2])
    shuffled_V = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(0))
    drawn_WT = shuffled_V[torch.arange(tokens_WT.numel()) % vocab_size].view(tokens_WT.shape)
    return torch.where(is_varied_W[:, None], tokens_WT, drawn_WT.to(tokens_WT.device))


def _has_different_tokens(tokens_WT: torch.Tensor) -> torch.Tensor:
    """Return bool [W], True where ``FEWEST_TOKENS`` tokens of a window differ, or all of a shorter one."""
    changes_W = (tokens_WT.sort(dim=1).values.diff(dim=1) != 0).sum(dim=1)
    return changes_W + 1 >= min(FEWEST_TOKENS, tokens_WT.shape[1])


class CheckedWindows:
    """A model and the windows on which its properties are measured."""

    def __init__(
        self,
        model: CausalModel,
        tokens_WT: torch.Tensor,
        *,
        local_len: int,
        anchor_id: Optional[int],
        tolerance: float,
    ):
        """Choose visible tokens.

        Args:
            model: the model.
            tokens_WT: windows, without targets.
            local_len: L, local tokens of a window.
            anchor_id: the token in front of the windows, or None.
            tolerance: the largest difference that rounding may cause, nats.
        """
        self.model, self.local_len, self.anchor_id, self.tolerance = model, local_len, anchor_id, tolerance
        num_windows, self.full_len = tokens_WT.shape
        num_long_range = self.full_len - local_len
        size = max(1, min(CHECKED_SET, num_long_range // 2))
        visible_S = torch.arange(size, device=tokens_WT.device) * num_long_range // size
        self.visible_WS = visible_S.expand(num_windows, -1)
        self.tokens_WT, self.positions_WT = with_anchor(tokens_WT, anchor_id)
        self.rows_WY, self.row_positions_WY = compact_rows(
            tokens_WT, self.visible_WS, local_len=local_len, anchor_id=anchor_id
        )
        self.visible_WT = visible_mask(
            self.visible_WS, self.full_len, local_len=local_len, has_anchor=anchor_id is not None
        )

    @cached_property
    def masked_WV(self) -> torch.Tensor:
        """Logits by the definition, where hidden tokens are hidden from everyone."""
        return self._masked(self.tokens_WT, "hidden")

    @cached_property
    def compact_WV(self) -> torch.Tensor:
        """Logits of rows that hold the visible tokens only, with gaps in their position IDs."""
        return self.model.last_logits(self.rows_WY, self.row_positions_WY)

    def _masked(self, tokens_WT: torch.Tensor, visibility: Visibility) -> torch.Tensor:
        allowed_WTT = attention_mask(self.visible_WT, local_len=self.local_len, visibility=visibility)
        return self.model.last_logits(tokens_WT, self.positions_WT, bias_BTT=allowed_WTT)

    def effect_of_positions(self) -> FitCheck:
        """Halve the distances in rows of every second token: the prediction must change."""
        num_tokens = self.tokens_WT.shape[1]
        if num_tokens < 3:  # the only distance there is cannot be halved
            near_WY, apart_WY, rows_WY = self.positions_WT, 2 * self.positions_WT, self.tokens_WT
        else:
            apart_WY = self.positions_WT[:, (num_tokens - 1) % 2 :: 2]
            near_WY, rows_WY = apart_WY // 2, self.tokens_WT.gather(1, apart_WY)
        found = expected_difference(self.model.last_logits(rows_WY, apart_WY), self.model.last_logits(rows_WY, near_WY))
        return FitCheck("effect of other position IDs, nats", found, LEAST_EFFECT * self.tolerance, at_least=True)

    def effect_of_hidden_tokens(self) -> FitCheck:
        """Replace the hidden tokens under the mask: the prediction must not change."""
        replaced_WT = torch.where(self.visible_WT, self.tokens_WT, self.tokens_WT.flip(1))
        found = expected_difference(self.masked_WV, self._masked(replaced_WT, "hidden"))
        return FitCheck("effect of hidden tokens, nats", found, self.tolerance)

    def full_context_against_mask(self) -> FitCheck:
        """Compare the model's own attention over whole windows with a causal mask, within the windows of its layers."""
        return FitCheck("full context against a causal mask, nats", self._own_against_causal(None), self.tolerance)

    def attended_tokens(self) -> int:
        """Return the number of most recent tokens over which the model's own attention is that of a causal mask."""
        agree, differ = 1, self.tokens_WT.shape[1]
        while differ - agree > 1:
            middle = (agree + differ) // 2
            if self._own_against_causal(middle) <= self.tolerance:
                agree = middle
            else:
                differ = middle
        return agree

    def _own_against_causal(self, num_tokens: Optional[int]) -> float:
        length = self.tokens_WT.shape[1] if num_tokens is None else num_tokens
        tokens_WT, positions_WT = self.tokens_WT[:, -length:], self.positions_WT[:, -length:]
        causal_TT = torch.ones(length, length, dtype=torch.bool, device=tokens_WT.device).tril()
        bias_WTT = causal_TT.expand(len(tokens_WT), -1, -1)
        return expected_difference(
            self.model.last_logits(tokens_WT, positions_WT, bias_BTT=bias_WTT),
            self.model.own_last_logits(tokens_WT, positions_WT),
        )

    def compact_against_masked(self) -> FitCheck:
        """Compare rows with gaps in their position IDs with the definition, hidden tokens hidden from everyone."""
        found = expected_difference(self.masked_WV, self.compact_WV)
        return FitCheck("compact against masked (hidden), nats", found, self.tolerance)

    def cached_against_masked(self) -> FitCheck:
        """Compare chosen keys and values of the long-range tokens with the definition, hidden from the local tokens."""
        num_before = self.tokens_WT.shape[1] - self.local_len
        before_WP, local_WL = self.tokens_WT.tensor_split((num_before,), dim=1)
        positions_WP, positions_WL = self.positions_WT.tensor_split((num_before,), dim=1)
        kept_P = self.visible_WT[0, :num_before].nonzero()[:, 0]
        prefix = [
            (k_WHPE[:, :, kept_P.to(k_WHPE.device)], v_WHPE[:, :, kept_P.to(v_WHPE.device)])
            for k_WHPE, v_WHPE in self.model.keys_values(before_WP, positions_WP)
        ]
        logits_WV = self.model.last_logits_after(
            local_WL, positions_WL, prefix=prefix, prefix_positions_BP=positions_WP[:, kept_P]
        )
        found = expected_difference(self._masked(self.tokens_WT, "contextual"), logits_WV)
        return FitCheck("compact against masked (contextual), nats", found, self.tolerance)

    def gates_against_masked(self) -> FitCheck:
        """Compare gates, which the gradient needs, with the mask of the definition: gate 0 must hide a token, 1 show it."""
        found = expected_difference(self.masked_WV, self._gated(self._closed_gates()))
        return FitCheck("gates against masked, nats", found, self.tolerance)

    def gradient_of_gates(self) -> FitCheck:
        """Differentiate the probability of the likeliest token by the gates: the gradient must be a number above 0."""
        log_gate_WT = torch.zeros_like(self._closed_gates())
        with torch.enable_grad():
            log_gate_WT.requires_grad_()
            likeliest_W = self._gated(log_gate_WT).float().log_softmax(dim=-1).max(dim=-1).values
            (gradient_WT,) = torch.autograd.grad(likeliest_W.sum(), log_gate_WT)
        found = float(gradient_WT.abs().max())
        return FitCheck("largest derivative by a gate", found, torch.finfo(torch.float32).tiny, at_least=True)

    def _closed_gates(self) -> torch.Tensor:
        return torch.zeros(self.visible_WT.shape, device=self.visible_WT.device).masked_fill(
            ~self.visible_WT, torch.finfo(torch.float32).min
        )

    def _gated(self, log_gate_WT: torch.Tensor) -> torch.Tensor:
        bias_WTT = gate_bias(log_gate_WT, local_len=self.local_len, visibility="hidden")
        return self.model.last_logits(self.tokens_WT, self.positions_WT, bias_BTT=bias_WTT)

    def sum_of_attention(self) -> FitCheck:
        """Add up the attention of the last token: at most 1 (less where a head may attend to nothing)."""
        _, attention_WT = self.model.last_logits_and_attention(self.tokens_WT, self.positions_WT)
        return FitCheck("attention of the last token, sum", float(attention_WT.sum(dim=1).max()), 1.01)


CheckAndReason = tuple[Callable[[CheckedWindows], FitCheck], Callable[[CheckedWindows], str]]

# In this order: a check that fails would make later ones fail, too, and their messages would mislead.
CHECKS: list[CheckAndReason] = [
    (
        CheckedWindows.effect_of_positions,
        lambda _: (
            "it ignores position IDs (as with ALiBi, or without positions), so hiding tokens would move the others"
        ),
    ),
    (
        CheckedWindows.effect_of_hidden_tokens,
        lambda _: (
            "hidden tokens change its prediction, so something besides attention carries them (a recurrent state)"
        ),
    ),
    (
        CheckedWindows.full_context_against_mask,
        lambda windows: (
            f"it attends to the last {windows.attended_tokens()} tokens only (a sliding window), fewer than a window has; "
            "choose a shorter influence.full_len"
        ),
    ),
    (
        CheckedWindows.compact_against_masked,
        lambda _: (
            "gaps in position IDs are not honoured: a row of the visible tokens alone gives another prediction than the "
            "window with the others hidden"
        ),
    ),
    (
        CheckedWindows.cached_against_masked,
        lambda _: (
            "its keys and values cannot be chosen from: local tokens behind a part of them predict something else than "
            "in the window with the others hidden"
        ),
    ),
    (
        CheckedWindows.gates_against_masked,
        lambda _: "weights between seen and hidden are not honoured in its attention",
    ),
    (CheckedWindows.gradient_of_gates, lambda _: "its attention has no derivative"),
    (CheckedWindows.sum_of_attention, lambda _: "the attention that it reports is not a distribution over its tokens"),
]


@torch.no_grad()
def check_fit(
    model: CausalModel,
    tokens_WT: torch.Tensor,
    *,
    name: str,
    local_len: int,
    dtype: torch.dtype,
    anchor_id: Optional[int],
    batch_tokens: int = 4096,
) -> list[FitCheck]:
    """Check that a model can be measured, and return what was found.

    Args:
        model: the model.
        tokens_WT: windows with their targets, T = full_len + 1, on the model's device. The last tokens of the first few of
            them are used.
        name: of the model, for messages.
        local_len: L, local tokens of a window.
        dtype: of the weights.
        anchor_id: the token in front of the windows, or None.
        batch_tokens: largest number of tokens in one forward pass.

    Raises:
        UserError: the model does not fit; the message tells what was found.
    """
    row_len = tokens_WT.shape[1]  # a window and its anchor
    positions = FitCheck("position IDs in use", row_len - (anchor_id is None), model.max_position)
    if not positions.holds:
        raise UserError(
            f"{name} cannot be measured: it has {model.max_position} positions, and a window takes {positions.found}; choose "
            "a shorter influence.full_len"
        )
    latest_WT = tokens_WT[:, -1 - LONGEST_MASKED :]
    windows = _checked_windows(
        model, latest_WT, local_len=local_len, dtype=dtype, anchor_id=anchor_id, batch_tokens=batch_tokens
    )
    checks = [positions]
    with progress_bar("fit", " checks", total=len(CHECKS), leave=False, delay=1) as bar:
        for measure, explanation in CHECKS:
            with _as_user_error(name, measure.__name__.replace("_", " ")):
                check = measure(windows)
            if not check.holds:
                raise UserError(
                    f"{name} cannot be measured: {explanation(windows)} ({check.name}: {check.found:.3g}, must be at "
                    f"{'least' if check.at_least else 'most'} {check.limit:.3g})"
                )
            checks.append(check)
            bar.update()
    return checks


@torch.no_grad()
def check_longest_row(
    model: CausalModel,
    tokens_WT: torch.Tensor,
    *,
    name: str,
    local_len: int,
    dtype: torch.dtype,
    anchor_id: Optional[int],
    batch_tokens: int = 4096,
) -> FitCheck:
    """Check that a model attends to all tokens of the longest row, which is longer than what ``check_fit`` uses.

    Nothing is hidden in it, so the other checks would tell nothing new. The arguments are those of ``check_fit``.

    Raises:
        UserError: the model does not; the message tells how many tokens it attends to.
    """
    rows = _checked_windows(
        model, tokens_WT, local_len=local_len, dtype=dtype, anchor_id=anchor_id, batch_tokens=batch_tokens
    )
    with _as_user_error(name, "longest row against a causal mask"):
        check = replace(rows.full_context_against_mask(), name="longest row against a causal mask, nats")
    if not check.holds:
        attended = rows.attended_tokens()
        raise UserError(
            f"{name} cannot be measured: it attends to the last {attended} tokens only (a sliding window), fewer than the "
            f"{rows.tokens_WT.shape[1]} of the longest row; use --full-len "
            f"{attended - (anchor_id is not None)} or less ({check.name}: {check.found:.3g}, must be at most {check.limit:.3g})"
        )
    return check


def _checked_windows(
    model: CausalModel,
    tokens_WT: torch.Tensor,
    *,
    local_len: int,
    dtype: torch.dtype,
    anchor_id: Optional[int],
    batch_tokens: int,
) -> CheckedWindows:
    """Return the first few windows, as many as one forward pass may hold, without their targets."""
    number = max(1, min(CHECKED_WINDOWS, batch_tokens // tokens_WT.shape[1]))
    return CheckedWindows(
        model,
        varied_windows(tokens_WT[:number, :-1], model.vocab_size),
        local_len=min(local_len, LONGEST_MASKED // 2),  # something must be hidden, also of the last tokens alone
        anchor_id=anchor_id,
        tolerance=TOLERANCE_NATS[dtype],
    )


@contextmanager
def _as_user_error(name: str, check: str) -> Iterator[None]:
    """Turn an error of the model into a ``UserError`` of one line; the traceback is logged at debug level."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except (TypeError, ValueError, RuntimeError, IndexError, NotImplementedError) as error:
        logger.debug(f"{name}: {check}", exc_info=True)
        first_line = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            f"{name} cannot be measured: it cannot be run to measure the {check} ({type(error).__name__}: {first_line[:160]})"
        ) from error


def num_compared_windows(full_len: int) -> int:
    """Return on how many windows of ``full_len`` tokens the first tokens are compared, at most."""
    return min(MOST_COMPARED, max(LEAST_COMPARED, COMPARED_TOKENS // full_len))


def fit_entries(
    opened: OpenedModel,
    windows: Windows,
    *,
    before_comparing: Callable[[], object] = lambda: None,
) -> dict[str, Any]:
    """Check on a few windows that a pretrained model fits, and return the manifest's entry about it; of a run, none.

    Args:
        opened: the model.
        windows: the windows to measure. Of those longer than ``LONGEST_MASKED`` the last tokens are checked, and the model must
            attend to all tokens, too.
        before_comparing: called once the model fits, before the first tokens are compared: what may fail soon; of a run at once.

    Raises:
        UserError: the model does not do what the measurement takes for granted.
    """
    if opened.record is None:
        before_comparing()
        return {}
    lengths = opened.lengths
    tokens_WT = _tokens(opened, windows, CHECKED_WINDOWS)
    logger.info(
        f"{opened.record.name}: checking on {len(tokens_WT)} windows of {lengths.full_len:,} tokens whether it can be measured"
    )
    options: dict[str, Any] = {
        "name": opened.record.name,
        "local_len": lengths.local_len,
        "dtype": torch.bfloat16 if opened.precision == "bf16" else torch.float32,
        "anchor_id": opened.anchor_id,
    }
    checks = check_fit(opened.model, tokens_WT, **options)
    if lengths.full_len > LONGEST_CHECKED:
        logger.warning(
            f"{opened.record.name}: rows are checked up to {LONGEST_CHECKED:,} tokens; a sliding window longer than that would "
            "not be seen"
        )
        tokens_WT = tokens_WT[:, -1 - LONGEST_CHECKED :]
    if lengths.full_len > LONGEST_MASKED:
        checks.append(check_longest_row(opened.model, tokens_WT, **options))
    before_comparing()
    return {
        "fit": {
            "checks": [dataclasses.asdict(check) for check in checks],
            "anchor": _compared(opened, windows),
        }
    }


def refreshed_fit_entries(opened: OpenedModel, windows: Windows, *, known: dict[str, Any]) -> dict[str, Any]:
    """Return entries of ``fit_entries`` as they are, or where these windows are more, with the first tokens compared on them.

    A few windows tell too little about which first token is the better one; what was checked of the model stays true.
    """
    compared = known["fit"]["anchor"]
    most = num_compared_windows(opened.lengths.full_len)
    if compared is None or min(most, len(windows)) <= compared["num_windows"]:
        return known
    return {"fit": {**known["fit"], "anchor": _compared(opened, windows)}}


def _compared(opened: OpenedModel, windows: Windows) -> Optional[dict[str, Any]]:
    """Compare the first tokens on the first windows; None: a BOS does not fit in front of a window."""
    lengths = opened.lengths
    if lengths.full_len + 1 > opened.model.max_position:
        return None
    tokens_WT = _tokens(opened, windows, num_compared_windows(lengths.full_len))
    check = compare_first_tokens(
        opened.model,
        tokens_WT,
        windows.store.doc_ids_G[windows.document_W[: len(tokens_WT)]],
        bos=opened.bos,
        chosen=opened.anchor_id,
        local_len=lengths.local_len,
    )
    return dataclasses.asdict(check)


def _tokens(opened: OpenedModel, windows: Windows, number: int) -> torch.Tensor:
    """Return the tokens of the first windows, on the model's device; int64 [W, T]."""
    tokens_WT = windows.tokens(np.arange(min(number, len(windows))))
    return torch.from_numpy(np.ascontiguousarray(tokens_WT)).to(opened.device)
