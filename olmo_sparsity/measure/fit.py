"""Checks by experiment that a model can be measured, and compares it with and without a first token.

Nothing is taken from an architecture's name. A few windows run through the calls that measuring uses, and each check gives a
number. Predictions are compared by the expected difference of the loss: the mean of |log p - log q| over tokens drawn from p,
in nats, the largest of the windows.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Optional

import numpy as np
import torch
import torch.nn.functional as F

from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.engine import Engine
from olmo_sparsity.measure.scores import surprisals
from olmo_sparsity.measure.visible_sets import with_anchor
from olmo_sparsity.model.causal_lm import CausalLM
from olmo_sparsity.model.taps import Observer
from olmo_sparsity.progress import progress_bar

logger = logging.getLogger(__name__)

CHECKED_WINDOWS = 4  # a model that does not fit differs on every window
CHECKED_SET = 8  # visible long-range tokens, as far apart as the window allows
FEWEST_TOKENS = 4  # different ones that a checked window must hold
LONGEST_MASKED, LONGEST_CHECKED = 2_048, 8_192  # tokens of rows under a mask, and of rows that see everything
# What rounding may cause. Measured on SmolLM2-135M, 64 of 128 tokens: paths differ by 3e-6 in fp32 and by up to 0.07 in bf16.
# What must not pass is larger: halved distances 0.6 nats, 56 of the 64 long-range tokens missing 0.8 nats.
TOLERANCE_NATS = {torch.float32: 1e-4, torch.bfloat16: 0.15}
LEAST_EFFECT = 0.1  # of what rounding may cause; where position IDs are ignored, the effect is 0 exactly
COMPARED_TOKENS, LEAST_COMPARED, MOST_COMPARED = 16_384, 8, 64  # windows on which first tokens are compared
CLEAR = 3.0  # standard errors of a difference that tells which loss is lower


AnchorChoice = Literal["bos", "none"]
ComparedLength = Literal["short", "long"]  # the local tokens alone, or all tokens


@dataclass(frozen=True)
class Anchor:
    """The token in front of every window that every token sees, always; it is neither local nor long-range."""

    id: int
    text: str  # as the tokenizer writes it


@dataclass(frozen=True)
class AnchorCheck:
    """Mean losses of the same windows with a BOS in front and without."""

    chosen: AnchorChoice  # with which the model was measured
    text: str  # the BOS, as the tokenizer writes it
    num_windows: int
    loss_short_nats: dict[AnchorChoice, float]  # with the local tokens alone
    loss_long_nats: dict[AnchorChoice, float]  # with all tokens
    standard_error_short_nats: Optional[float]  # of the difference of the two means; None: not known
    standard_error_nats: Optional[float]
    lower_with: dict[ComparedLength, Optional[AnchorChoice]]  # the choice with which each mean is clearly lower


@dataclass(frozen=True)
class FitCheck:
    """One property of a model, as measured: ``found`` must not exceed ``limit``, or must reach it."""

    name: str
    found: float
    limit: float
    at_least: bool = False

    @property
    def holds(self) -> bool:
        """False also where ``found`` is not a number."""
        return self.found >= self.limit if self.at_least else self.found <= self.limit


@dataclass(frozen=True)
class CheckedModel:
    """A model, a few windows without their targets, and visible sets of them."""

    model: CausalLM
    tokens_WT: torch.Tensor
    local_len: int
    anchor_id: Optional[int]
    tolerance: float

    @property
    def shown_WM(self) -> torch.Tensor:
        """Some visible long-range positions of each window."""
        num_windows, num_far = self.tokens_WT.shape[0], self.tokens_WT.shape[1] - self.local_len
        size = max(1, min(CHECKED_SET, num_far // 2))
        shown_M = torch.zeros(num_far, dtype=torch.bool, device=self.tokens_WT.device)
        shown_M[torch.arange(size, device=shown_M.device) * num_far // size] = True
        return shown_M.expand(num_windows, -1)

    def engine(self, path: str, visibility: Any) -> Engine:
        """Runs the windows on one path."""
        return Engine(self.model, self.local_len, visibility, self.anchor_id, path)

    def sets(self, path: str, visibility: Any, *, shown_WM: Optional[torch.Tensor] = None) -> torch.Tensor:
        """Log-probabilities of the visible sets on one path, [W, V]."""
        windows = torch.arange(len(self.tokens_WT), device=self.tokens_WT.device)
        shown_WM = self.shown_WM if shown_WM is None else shown_WM
        passes = self.engine(path, visibility).log_probs(self.tokens_WT, windows, shown_WM)
        return torch.cat([log_p for _, log_p in passes])

    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The windows with the anchor, and their position IDs."""
        return with_anchor(self.tokens_WT, self.anchor_id)

    # Each check returns (found, whether it must reach its limit).

    def finite(self) -> float:
        logits = self.model.logits(*self.rows())
        return float((~torch.isfinite(logits)).sum())

    def own_positions(self) -> float:
        """The plain call against explicit position IDs and a mask of ones."""
        tokens_WT, positions_WT = self.rows()
        return expected_difference(self.model.own_logits(tokens_WT), self.model.logits(tokens_WT, positions_WT))

    def causal(self) -> float:
        """The plain call on the beginning of a window against the same place of the whole window."""
        tokens_WT, _ = self.rows()
        half = max(1, tokens_WT.shape[1] // 2)
        logits_WTV = self.model.raw(input_ids=tokens_WT).logits
        return expected_difference(logits_WTV[:, half - 1], self.model.own_logits(tokens_WT[:, :half]))

    def positions(self) -> float:
        """Rows of every second token with halved distances must give another prediction."""
        tokens_WT, positions_WT = self.rows()
        if tokens_WT.shape[1] < 3:  # the only distance there is cannot be halved
            near_WY, apart_WY, rows_WY = positions_WT, 2 * positions_WT, tokens_WT
        else:
            apart_WY = positions_WT[:, (tokens_WT.shape[1] - 1) % 2 :: 2]
            near_WY, rows_WY = apart_WY // 2, tokens_WT.gather(1, apart_WY)
        return expected_difference(self.model.logits(rows_WY, apart_WY), self.model.logits(rows_WY, near_WY))

    def hidden_tokens(self) -> float:
        """Other hidden tokens under the mask must give the same prediction."""
        shown_WT = F.pad(self.shown_WM, (0, self.local_len), value=True)
        replaced = torch.where(shown_WT, self.tokens_WT, self.tokens_WT.flip(1))
        other = dataclasses.replace(self, tokens_WT=replaced)
        return expected_difference(self.sets("masked", "hidden"), other.sets("masked", "hidden"))

    def everything(self, num_tokens: Optional[int] = None) -> float:
        """The model's own attention over whole windows, or their last tokens, against a causal mask."""
        tokens_WT, positions_WT = (of if num_tokens is None else of[:, -num_tokens:] for of in self.rows())
        length = tokens_WT.shape[1]
        causal_TT = torch.ones(length, length, dtype=torch.bool, device=tokens_WT.device).tril()
        ones = self.model.logits(tokens_WT, positions_WT)
        return expected_difference(
            self.model.logits(tokens_WT, positions_WT, causal_TT.expand(len(tokens_WT), -1, -1)), ones
        )

    def attended_tokens(self) -> int:
        """Over how many latest tokens the model's own attention is that of a causal mask."""
        agree, differ = 1, self.rows()[0].shape[1]
        while differ - agree > 1:
            middle = (agree + differ) // 2
            agree, differ = (middle, differ) if self.everything(middle) <= self.tolerance else (agree, middle)
        return agree

    def rows_with_gaps(self) -> float:
        return expected_difference(self.sets("masked", "hidden"), self.sets("plain", "hidden"))

    def compact_rows(self) -> float:
        return expected_difference(self.sets("plain", "hidden"), self.sets("compact", "hidden"))

    def chosen_entries(self) -> float:
        return expected_difference(self.sets("masked", "contextual"), self.sets("plain", "contextual"))

    def gates(self) -> float:
        """The derivative by gates under a mask must be a number above 0."""
        likeliest = self.engine("masked", "hidden").short(self.tokens_WT).argmax(dim=-1)

        def loss(windows: torch.Tensor, logits_wV: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(logits_wV, likeliest[windows], reduction="sum")

        return float(self.engine("masked", "hidden").gradients(self.tokens_WT, loss).abs().max())

    def tapped(self) -> float:
        """The pass that reads the attention of the last token against the ordinary one."""
        return expected_difference(self.model.logits_and_attention(*self.rows())[0], self.model.logits(*self.rows()))

    def observed(self) -> float:
        """The pass that reads all layers against the ordinary one, where the attention can be read."""
        first = 0 if self.anchor_id is None else 1
        far = slice(first, first + self.tokens_WT.shape[1] - self.local_len)
        try:
            logits = self.model.observe(*self.rows(), Observer(frozenset({"keys"}), far, self.local_len))
        except UserError:  # selectors that need it are refused when they are asked for
            return 0.0
        return expected_difference(logits, self.model.logits(*self.rows()))

    def attention(self) -> float:
        return float(self.model.logits_and_attention(*self.rows())[1].sum(dim=1).max())


AT_MOST, AT_LEAST = "at most", "at least"
# (check, its name in the manifest, which limit: None is the tolerance, what it says of a model that fails). In this order: a
# check that fails would make later ones fail, too.
CHECKS: tuple[tuple[Callable[[CheckedModel], float], str, Optional[tuple[str, float]], str], ...] = (
    (CheckedModel.finite, "logits that are no numbers", (AT_MOST, 0.0), "its logits are not all numbers"),
    (
        CheckedModel.own_positions, "explicit position IDs against the model's own, nats", None,
        "position IDs from 0 are not its own (it counts them otherwise), so measuring would run another model",
    ),
    (CheckedModel.causal, "later tokens seen by earlier ones, nats", None, "it is not causal"),
    (
        CheckedModel.positions, "effect of other position IDs, nats", (AT_LEAST, LEAST_EFFECT),
        "it ignores position IDs (as with ALiBi, or without positions), so hiding tokens would move the others",
    ),
    (
        CheckedModel.hidden_tokens, "effect of hidden tokens, nats", None,
        "hidden tokens change its prediction, so something besides attention carries them (a recurrent state)",
    ),
    (
        CheckedModel.everything, "full context against a causal mask, nats", None,
        "it attends to the last {attended} tokens only (a sliding window), fewer than a window has; choose a shorter "
        "influence.full_len",
    ),
    (
        CheckedModel.rows_with_gaps, "compact against masked (hidden), nats", None,
        "gaps in position IDs are not honoured: a row of the visible tokens alone gives another prediction than the window with "
        "the others hidden",
    ),
    (
        CheckedModel.compact_rows, "shared against plain rows, nats", None,
        "its layers are not those of its family; use influence.path=plain",
    ),
    (
        CheckedModel.chosen_entries, "compact against masked (contextual), nats", None,
        "its keys and values cannot be chosen from: local tokens behind a part of them predict something else than in the window "
        "with the others hidden",
    ),
    (
        CheckedModel.gates, "largest derivative by a gate", (AT_LEAST, torch.finfo(torch.float32).tiny),
        "its attention has no derivative",
    ),
    (CheckedModel.tapped, "attention read beside, nats", None, "its logits change where its attention is read"),
    (CheckedModel.observed, "layers read beside, nats", None, "its logits change where its layers are read"),
    (
        CheckedModel.attention, "attention of the last token, sum", (AT_MOST, 1.01),
        "the attention that it reports is not a distribution over its tokens",
    ),
)  # fmt: skip


@torch.no_grad()
def check_fit(
    model: CausalLM, tokens_WT: torch.Tensor, *, name: str, local_len: int, anchor_id: Optional[int]
) -> list[FitCheck]:
    """Check that a model can be measured, and return what was found.

    Args:
        model: the model.
        tokens_WT: windows with their targets, on the model's device; the last tokens of the first few are used.
        name: of the model, for messages.
        local_len: L.
        anchor_id: the token in front of the windows, or None.

    Raises:
        UserError: the model does not fit; the message says what was found.
    """
    row_len = tokens_WT.shape[1] - (anchor_id is None)  # a window and its anchor
    if row_len > model.max_position:
        raise UserError(
            f"{name} cannot be measured: it has {model.max_position} positions, and a window takes {row_len}; choose a shorter "
            "influence.full_len"
        )
    tolerance, latest_WT = TOLERANCE_NATS[model.dtype], tokens_WT[:CHECKED_WINDOWS, -1 - LONGEST_MASKED : -1]
    local_len = min(local_len, LONGEST_MASKED // 2)  # something must be hidden, also of the last tokens alone
    checked = CheckedModel(model, varied_windows(latest_WT, model.vocab_size), local_len, anchor_id, tolerance)
    found = [FitCheck("position IDs in use", row_len, model.max_position)]
    with progress_bar("fit", " checks", total=len(CHECKS), leave=False, delay=1) as bar:
        for measure, what, limit, reason in CHECKS:
            with _as_user_error(name, what):
                direction, number = limit or (AT_MOST, tolerance)
                factor = tolerance if (direction, number) == (AT_LEAST, LEAST_EFFECT) else 1.0
                check = FitCheck(what, measure(checked), number * factor, direction == AT_LEAST)
            if not check.holds:
                reason = reason.format(attended=checked.attended_tokens()) if "{attended}" in reason else reason
                numbers = f"{check.name}: {check.found:.3g}, must be {direction} {check.limit:.3g}"
                raise UserError(f"{name} cannot be measured: {reason} ({numbers})")
            found.append(check)
            bar.update()
    if tokens_WT.shape[1] - 1 > LONGEST_MASKED:
        found.append(
            _check_longest(dataclasses.replace(checked, tokens_WT=tokens_WT[:1, -1 - LONGEST_CHECKED : -1]), name)
        )
    return found


def _check_longest(rows: CheckedModel, name: str) -> FitCheck:
    """Check that a model attends to all tokens of rows that are longer than those under masks."""
    length = rows.tokens_WT.shape[1]
    if length >= LONGEST_CHECKED:
        logger.warning(
            f"{name}: rows are checked up to {LONGEST_CHECKED:,} tokens; a longer sliding window would not be seen"
        )
    with _as_user_error(name, "longest row"):
        check = FitCheck("longest row against a causal mask, nats", rows.everything(), rows.tolerance)
    if not check.holds:
        raise UserError(
            f"{name} cannot be measured: it attends to the last {rows.attended_tokens()} tokens only (a sliding window), fewer "
            f"than the {length} of the longest row; choose a shorter influence.full_len"
        )
    return check


def expected_difference(logits_WV: torch.Tensor, others_WV: torch.Tensor) -> float:
    """The expected absolute difference of the loss, nats, of the window where it is largest; NaN stays."""
    log_p_WV, others_WV = logits_WV.float().log_softmax(dim=-1), others_WV.float().log_softmax(dim=-1)
    return float((log_p_WV.exp() * (log_p_WV - others_WV).abs()).sum(dim=-1).max())


def varied_windows(tokens_WT: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Replace windows of too few different tokens by drawn ones, always the same: over equal tokens nothing changes attention.

    Every second token must vary, too: they are all that ``CheckedModel.positions`` runs.
    """
    is_varied_W = _has_different_tokens(tokens_WT) & _has_different_tokens(tokens_WT.flip(1)[:, ::2])
    shuffled_V = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(0))
    drawn_WT = shuffled_V[torch.arange(tokens_WT.numel()) % vocab_size].view(tokens_WT.shape)
    return torch.where(is_varied_W[:, None], tokens_WT, drawn_WT.to(tokens_WT.device))


def _has_different_tokens(tokens_WT: torch.Tensor) -> torch.Tensor:
    changes_W = (tokens_WT.sort(dim=1).values.diff(dim=1) != 0).sum(dim=1)
    return changes_W + 1 >= min(FEWEST_TOKENS, tokens_WT.shape[1])


@contextmanager
def _as_user_error(name: str, check: str) -> Iterator[None]:
    """Turn an error of the model into one line; the traceback is logged at debug level."""
    try:
        yield
    except (torch.OutOfMemoryError, UserError):
        raise
    except Exception as error:  # models raise what they happen to raise
        logger.debug(f"{name}: {check}", exc_info=True)
        first_line = (str(error).strip().splitlines() or [""])[0]
        raise UserError(
            f"{name} cannot be measured: it cannot be run to measure {check} ({type(error).__name__}: {first_line[:160]})"
        ) from error


def num_compared_windows(full_len: int) -> int:
    """On how many windows of ``full_len`` tokens the first tokens are compared, at most."""
    return min(MOST_COMPARED, max(LEAST_COMPARED, COMPARED_TOKENS // full_len))


@torch.no_grad()
def compare_first_tokens(
    model: CausalLM,
    tokens_WT: torch.Tensor,
    document_W: np.ndarray,
    *,
    bos: Anchor,
    chosen: Optional[int],
    local_len: int,
) -> AnchorCheck:
    """Compare mean losses with a BOS in front of windows and without: which are clearly lower?

    A wrong choice that raises the loss with the local tokens alone passes for a long gain.

    Args:
        model: the model.
        tokens_WT: windows with their targets, on the model's device.
        document_W: the document of each window; windows of one document are not independent.
        bos: the token to compare with none.
        chosen: the token with which the model is measured, or None.
        local_len: L.
    """
    lengths: dict[ComparedLength, int] = {"short": local_len, "long": tokens_WT.shape[1] - 1}
    anchor_ids: dict[AnchorChoice, Optional[int]] = {"bos": bos.id, "none": None}
    losses: dict[ComparedLength, dict[AnchorChoice, np.ndarray]] = {length: {} for length in lengths}
    for length, number in lengths.items():
        for choice, anchor_id in anchor_ids.items():
            log_p_WV = Engine(model, number, anchor_id=anchor_id, path="plain").short(tokens_WT[:, :-1])
            losses[length][choice] = surprisals(log_p_WV, tokens_WT[:, -1:])[:, 0].double().cpu().numpy()
    difference = {length: of["bos"] - of["none"] for length, of in losses.items()}
    error = {length: standard_error(values_W, document_W) for length, values_W in difference.items()}
    return AnchorCheck(
        chosen="none" if chosen is None else "bos",
        text=bos.text,
        num_windows=len(tokens_WT),
        loss_short_nats={choice: float(of.mean()) for choice, of in losses["short"].items()},
        loss_long_nats={choice: float(of.mean()) for choice, of in losses["long"].items()},
        standard_error_short_nats=error["short"],
        standard_error_nats=error["long"],
        lower_with={length: lower_choice(float(of.mean()), error[length]) for length, of in difference.items()},
    )


def standard_error(values_W: np.ndarray, document_W: np.ndarray) -> Optional[float]:
    """The standard error of a mean over windows, from the spread between documents; None: there is one document."""
    _, which_W = np.unique(document_W, return_inverse=True)
    sums_G = np.bincount(which_W, weights=values_W - values_W.mean())
    if len(sums_G) < 2:
        return None
    return math.sqrt(len(sums_G) / (len(sums_G) - 1) * float((sums_G**2).sum())) / len(values_W)


def lower_choice(difference: float, error: Optional[float]) -> Optional[AnchorChoice]:
    """The choice whose loss is lower, from the mean loss with a BOS minus that without; None: it is not clear."""
    if error is None or abs(difference) <= CLEAR * error:
        return None
    return "bos" if difference < 0 else "none"
