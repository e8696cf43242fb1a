"""Measures whether a model can be measured: whether it computes what the definitions ask for.

Nothing is taken from an architecture's name. Every check runs the model on a few windows, through the calls that the
measurement uses (``olmo_sparsity.measure.fit_checks``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Optional

import torch

from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.fit_checks import CheckedWindows, FitCheck, telling_windows
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
        tokens_WT: windows with their targets, T = full_len + 1, on the model's device. The first few of them are used.
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
