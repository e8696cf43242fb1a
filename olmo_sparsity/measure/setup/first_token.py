"""Compares both choices of the first token, a BOS in front of every window and none: with which one are the losses lower?

A wrong choice that raises the loss with the local tokens alone passes for a long gain, so the losses are compared with the local
tokens alone and with all tokens. A few windows seldom decide; so more are compared, twice as many at each look, until they do.
"""

from __future__ import annotations

import logging
import math
from itertools import pairwise
from typing import Optional

import numpy as np
import torch
from scipy.special import stdtrit  # scipy.stats takes half a second to import

from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import short_log_probs, surprisal
from olmo_sparsity.measure.visible.visibility import PositionIDs
from olmo_sparsity.model.causal_model import CausalModel
from olmo_sparsity.progress import listening, progress_bar
from olmo_sparsity.records.measured import Anchor, AnchorCheck, AnchorChoice, ComparedLength

logger = logging.getLogger(__name__)

# The probability that anything is decided where the choices do not differ. Every t test, of two means at each look, gets an equal
# share of it (Bonferroni), so that looking again does not raise it: with 3 looks a test decides at 2.7 standard errors. Looks and
# means depend on one another, so the probability is lower, 0.02 to 0.04 in simulations with symmetric differences.
FALSE_DECISIONS = 0.05


@torch.no_grad()
def compare_first_tokens(
    model: CausalModel,
    tokens_WT: torch.Tensor,
    document_W: np.ndarray,
    *,
    bos: Anchor,
    chosen: Optional[int],
    local_len: int,
    first_look: int,
    name: str,
    batch_tokens: int = 4096,
    positions: PositionIDs = "kept",
) -> AnchorCheck:
    """Return the mean losses with and without a BOS, on so many of the windows as decide which are lower, or on all.

    Args:
        model: the model.
        tokens_WT: windows with their targets, on the model's device, in random order.
        document_W: the document of each window, any integers; windows of one document are not independent.
        bos: the token to compare with none.
        chosen: the token with which the model is measured, or None.
        local_len: L, local tokens of a window.
        first_look: windows that are compared before anything is decided.
        name: of the model, for messages.
        batch_tokens: largest number of tokens in one forward pass.
        positions: of the local tokens where they are alone.
    """
    lengths: dict[ComparedLength, int] = {"short": local_len, "long": tokens_WT.shape[1] - 1}
    anchor_ids: dict[AnchorChoice, Optional[int]] = {"bos": bos.id, "none": None}
    losses = {length: {choice: np.zeros(0) for choice in anchor_ids} for length in lengths}
    looks = looks_at(len(tokens_WT), first_look)
    if len(np.unique(document_W)) < 2:
        looks = looks[:1]  # windows of one document decide nothing, however many
    level = FALSE_DECISIONS / (len(lengths) * len(looks))
    evaluators = {
        (length, choice): Evaluator(
            model, local, path="plain", batch_tokens=batch_tokens, anchor_id=anchor_id, positions=positions
        )
        for length, local in lengths.items()
        for choice, anchor_id in anchor_ids.items()
    }
    tokens_a_window = sum(evaluator.row_len(tokens_WT.shape[1] - 1, 0) for evaluator in evaluators.values())
    for begin, end in pairwise([0, *looks]):
        total = (end - begin) * tokens_a_window
        with (
            progress_bar("first tokens", " tokens", total=total, unit_scale=True, leave=False, delay=1) as bar,
            listening(bar.update),
        ):
            for (length, choice), evaluator in evaluators.items():
                log_q_WV = short_log_probs(evaluator, tokens_WT[begin:end, :-1])
                further_W = surprisal(log_q_WV, tokens_WT[begin:end, -1]).double().cpu().numpy()
                losses[length][choice] = np.concatenate([losses[length][choice], further_W])
        difference = {length: losses_of["bos"] - losses_of["none"] for length, losses_of in losses.items()}
        error = {length: standard_error(values_W, document_W[:end]) for length, values_W in difference.items()}
        num_documents = len(np.unique(document_W[:end]))
        check = AnchorCheck(
            chosen="none" if chosen is None else "bos",
            text=bos.text,
            num_windows=end,
            loss_short_nats={choice: float(losses_W.mean()) for choice, losses_W in losses["short"].items()},
            loss_long_nats={choice: float(losses_W.mean()) for choice, losses_W in losses["long"].items()},
            standard_error_short_nats=error["short"],
            standard_error_nats=error["long"],
            lower_with={
                length: lower_choice(float(values_W.mean()), error[length], num_documents=num_documents, level=level)
                for length, values_W in difference.items()
            },
        )
        if check.is_settled:
            break
        if end < looks[-1]:
            logger.info(
                f"{name}: {end:,} windows do not decide whether its losses are lower with {bos.text} in front or without; "
                f"comparing on {min(2 * end, looks[-1]):,}"
            )
    return check


def looks_at(num_windows: int, first_look: int) -> list[int]:
    """Return the numbers of windows after which it is asked whether the losses differ, rising to all of them."""
    looks = [min(first_look, num_windows)]
    while looks[-1] < num_windows:
        looks.append(min(2 * looks[-1], num_windows))
    return looks


def standard_error(values_W: np.ndarray, document_W: np.ndarray) -> Optional[float]:
    """Return the standard error of a mean over windows, from the spread between documents; None: there is one document."""
    _, which_W = np.unique(document_W, return_inverse=True)
    sums_G = np.bincount(which_W, weights=values_W - values_W.mean())
    if len(sums_G) < 2:
        return None
    return math.sqrt(len(sums_G) / (len(sums_G) - 1) * float((sums_G**2).sum())) / len(values_W)


def lower_choice(
    difference: float, error: Optional[float], *, num_documents: int, level: float
) -> Optional[AnchorChoice]:
    """Return the choice whose loss is lower; None: a t test at this level does not tell.

    Args:
        difference: mean loss with a BOS minus that without.
        error: its standard error.
        num_documents: that the windows come from.
        level: probability of telling a difference where there is none.
    """
    if error is None or abs(difference) <= -error * stdtrit(num_documents - 1, level / 2):
        return None
    return "bos" if difference < 0 else "none"
