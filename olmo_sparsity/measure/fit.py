"""Measures whether a model can be measured: whether it computes what the definitions ask for.

Nothing is taken from an architecture's name. Every check runs the model on a few windows, through the calls that the
measurement uses (``olmo_sparsity.measure.fit_checks``).
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal, Optional

import torch

from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.fit_checks import CheckedWindows, FitCheck, telling_windows
from olmo_sparsity.measure.losses import short_log_probs, surprisal
from olmo_sparsity.model.causal_model import CausalModel

logger = logging.getLogger(__name__)

CHECKED_WINDOWS = 4  # a model that does not fit differs on every window

# What rounding may cause, in the units of ``expected_difference``. Measured on SmolLM2-135M, 64 of 128 tokens, 8 windows of C4,
# with and without an anchor: compact and masked differ by 3e-6 in fp32 and by up to 0.07 in bf16. What must not pass is larger:
# halved distances 0.6 nats, 56 of the 64 long-range tokens missing 0.8 nats.
TOLERANCE_NATS = {torch.float32: 1e-4, torch.bfloat16: 0.15}

Explained = tuple[Callable[[CheckedWindows], FitCheck], Callable[[CheckedWindows], str]]

# In this order: a check that fails would make later ones fail, too, and their messages would mislead.
CHECKS: list[Explained] = [
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
            f"it attends to the last {windows.attended_tokens()} tokens only (a sliding window), fewer than the "
            f"{windows.tokens_WT.shape[1]} of a window; choose a shorter influence.full_len"
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


@dataclass(frozen=True)
class Bos:
    """The token with which a model's texts begin.

    Attributes:
        token_id: its ID.
        text: as the tokenizer writes it.
    """

    token_id: int
    text: str


@dataclass(frozen=True)
class AnchorCheck:
    """Mean losses of the same windows with a BOS in front and without.

    Attributes:
        chosen: with which the model is measured.
        text: the BOS, as the tokenizer writes it.
        num_windows: how many windows.
        loss_short_nats: with the local tokens alone, for ``bos`` and ``none``.
        loss_long_nats: with all tokens, for ``bos`` and ``none``.
        standard_error_nats: of the difference of the two means with all tokens, window by window; None: there is one window.
    """

    chosen: Literal["bos", "none"]
    text: str
    num_windows: int
    loss_short_nats: dict[str, float]
    loss_long_nats: dict[str, float]
    standard_error_nats: Optional[float]


@dataclass(frozen=True)
class FitRecord:
    """What was measured of a model that fits, for manifests. ``anchor`` is None where there was no BOS to compare with."""

    checks: list[FitCheck]
    anchor: Optional[AnchorCheck]


@torch.no_grad()
def check_fit(
    model: CausalModel,
    tokens_WT: torch.Tensor,
    *,
    name: str,
    local_len: int,
    dtype: torch.dtype,
    anchor_id: Optional[int],
    bos: Optional[Bos] = None,
    batch_tokens: int = 4096,
) -> FitRecord:
    """Check that a model can be measured, and compare its losses with and without a BOS.

    Args:
        model: the model.
        tokens_WT: windows with their targets, T = full_len + 1, on the model's device. The checks use the first few of them,
            the comparison all.
        name: of the model, for messages.
        local_len: L, local tokens of a window.
        dtype: of the weights.
        anchor_id: the token in front of the windows, or None.
        bos: the token to compare with none; None: nothing is compared.
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
    windows = _checked_windows(
        model, tokens_WT, local_len=local_len, dtype=dtype, anchor_id=anchor_id, batch_tokens=batch_tokens
    )
    checks = [positions]
    for measure, explanation in CHECKS:
        with _as_misfit(name, measure.__name__.replace("_", " ")):
            check = measure(windows)
        if not check.holds:
            raise UserError(
                f"{name} cannot be measured: {explanation(windows)} ({check.name}: {check.found:.3g}, must be at "
                f"{'least' if check.at_least else 'most'} {check.limit:.3g})"
            )
        checks.append(check)
    if bos is None or row_len > model.max_position:
        return FitRecord(checks, anchor=None)
    return FitRecord(
        checks,
        anchor=compare_anchors(
            model, tokens_WT, bos=bos, chosen=anchor_id, local_len=local_len, batch_tokens=batch_tokens
        ),
    )


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
    """Check that a model attends to all tokens of the longest row of a context curve, which is longer than a window.

    Nothing is hidden in such rows, so the other checks would tell nothing new. The arguments are those of ``check_fit``.

    Raises:
        UserError: the model does not; the message tells how many tokens it attends to.
    """
    rows = _checked_windows(
        model, tokens_WT, local_len=local_len, dtype=dtype, anchor_id=anchor_id, batch_tokens=batch_tokens
    )
    with _as_misfit(name, "longest row against a causal mask"):
        check = replace(rows.full_context_against_mask(), name="longest row against a causal mask, nats")
    if not check.holds:
        attended = rows.attended_tokens()
        raise UserError(
            f"{name} cannot be measured: it attends to the last {attended} tokens only (a sliding window), fewer than the "
            f"{rows.tokens_WT.shape[1]} of the longest row; use --max-visible {attended - (anchor_id is not None)} or less "
            f"({check.name}: {check.found:.3g}, must be at most {check.limit:.3g})"
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
        telling_windows(tokens_WT[:number, :-1], model.vocab_size),
        local_len=local_len,
        anchor_id=anchor_id,
        tolerance=TOLERANCE_NATS[dtype],
    )


@contextmanager
def _as_misfit(name: str, check: str) -> Iterator[None]:
    """Turn an error of a model that cannot be run in this way into one line. The traceback is logged at debug level."""
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


@torch.no_grad()
def compare_anchors(
    model: CausalModel,
    tokens_WT: torch.Tensor,
    *,
    bos: Bos,
    chosen: Optional[int],
    local_len: int,
    batch_tokens: int = 4096,
) -> AnchorCheck:
    """Return the mean losses with and without a BOS, with the local tokens alone and with all tokens.

    Args:
        model: the model.
        tokens_WT: windows with their targets, on the model's device.
        bos: the token to compare with none.
        chosen: the token with which the model is measured, or None.
        local_len: L, local tokens of a window.
        batch_tokens: largest number of tokens in one forward pass.
    """
    full_len = tokens_WT.shape[1] - 1
    short_W, long_W = (
        {
            choice: _losses(model, tokens_WT, length=length, anchor_id=anchor_id, batch_tokens=batch_tokens)
            for choice, anchor_id in (("bos", bos.token_id), ("none", None))
        }
        for length in (local_len, full_len)
    )
    difference_W = long_W["bos"] - long_W["none"]
    return AnchorCheck(
        chosen="none" if chosen is None else "bos",
        text=bos.text,
        num_windows=len(tokens_WT),
        loss_short_nats={choice: float(losses_W.mean()) for choice, losses_W in short_W.items()},
        loss_long_nats={choice: float(losses_W.mean()) for choice, losses_W in long_W.items()},
        standard_error_nats=float(difference_W.std()) / math.sqrt(len(difference_W)) if len(difference_W) > 1 else None,
    )


def _losses(
    model: CausalModel, tokens_WT: torch.Tensor, *, length: int, anchor_id: Optional[int], batch_tokens: int
) -> torch.Tensor:
    """Return the losses of the targets where the last ``length`` tokens before them are visible, and the anchor; fp64 [W]."""
    evaluator = Evaluator(model, length, path="plain", batch_tokens=batch_tokens, anchor_id=anchor_id)
    return surprisal(short_log_probs(evaluator, tokens_WT[:, :-1]), tokens_WT[:, -1]).double()
