"""Checks by experiment that a model can be measured, and compares it with and without a first token.

Nothing is taken from an architecture's name. A few windows run through the calls that measuring uses. Predictions are compared
by the expected difference of the loss: the mean of |log p - log q| over tokens drawn from p, in nats, the largest of the windows.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Optional

import numpy as np
import torch
import torch.nn.functional as F

from olmo_sparsity.config import Visibility
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.engine import Engine, normalized
from olmo_sparsity.measure.scores import surprisals
from olmo_sparsity.measure.visible import with_anchor
from olmo_sparsity.model.causal_lm import CausalLM
from olmo_sparsity.model.taps import Observer
from olmo_sparsity.progress import progress_bar

logger = logging.getLogger(__name__)

CHECKED_WINDOWS = 4  # a model that does not fit differs on every window
CHECKED_SET = 8  # visible long-range tokens, as far apart as the window allows
FEWEST_TOKENS = 4  # different ones in a checked window
LONGEST_MASKED, LONGEST_CHECKED = 2_048, 8_192  # tokens of rows under a mask, and of rows with everything visible
# What rounding may cause. Measured on SmolLM2-135M, 64 of 128 tokens: paths differ by 3e-6 in fp32 and by up to 0.07 in bf16.
# What must not pass is larger: halved distances 0.6 nats, 56 of the 64 long-range tokens missing 0.8 nats.
TOLERANCE_NATS = {torch.float32: 1e-4, torch.bfloat16: 0.15}
LEAST_EFFECT = 0.1  # of what rounding may cause; where position IDs are ignored, the effect is 0 exactly
COMPARED_TOKENS, LEAST_COMPARED, MOST_COMPARED = 16_384, 8, 64  # windows on which first tokens are compared
CLEAR = 3.0  # standard errors of a difference that shows which loss is lower


@dataclass(frozen=True)
class Anchor:
    """The token in front of every window that every token sees, always; it is neither local nor long-range."""

    id: int
    text: str  # as the tokenizer writes it


@dataclass(frozen=True)
class Trial:
    """A model and a few windows without their targets. Its methods are the experiments; each returns a number."""

    model: CausalLM
    tokens_WT: torch.Tensor
    longest_1T: torch.Tensor  # one of them, of which more tokens run than a mask is made for
    local_len: int
    anchor_id: Optional[int]

    @property
    def rows(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The windows with the anchor, and their position IDs."""
        return with_anchor(self.tokens_WT, self.anchor_id)

    def shown_SM(self) -> torch.Tensor:
        """Visible sets: some positions far apart, one, and all but the latest, which the engine runs behind a prefix."""
        num_far = self.tokens_WT.shape[1] - self.local_len
        size = max(1, min(CHECKED_SET, num_far // 2))
        shown_SM = torch.zeros(3, num_far, dtype=torch.bool, device=self.tokens_WT.device)
        shown_SM[0, torch.arange(size, device=shown_SM.device) * num_far // size] = True
        shown_SM[1, num_far // 2] = True
        shown_SM[2, :-1] = True
        return shown_SM

    def engine(self, path: str, visibility: Visibility) -> Engine:
        return Engine(self.model, self.local_len, visibility, self.anchor_id, path)

    def sets(self, path: str, visibility: Visibility, num_sets: int = 3) -> torch.Tensor:
        """Log-probabilities of the first visible sets of each window on one path."""
        shown_SM = self.shown_SM()[:num_sets]
        tokens_RT = self.tokens_WT.repeat_interleave(len(shown_SM), dim=0)
        return self.engine(path, visibility).predictions(tokens_RT, shown_SM.repeat(len(self.tokens_WT), 1))

    def weights(self) -> float:
        return sum(float((~torch.isfinite(parameter)).sum()) for parameter in self.model.raw.parameters())

    def finite(self) -> float:
        """Logits that are no numbers; -inf is one, of entries of a padded vocabulary."""
        logits_WV = self.model.logits(*self.rows)
        return float((logits_WV.isnan() | logits_WV.isposinf()).sum() + (~logits_WV.isfinite()).all(dim=1).sum())

    def own_positions(self) -> float:
        """The plain call against explicit position IDs."""
        return expected_difference(self.model.own_logits(self.rows[0]), self.model.own_logits(*self.rows))

    def own_masks(self) -> float:
        """The model's own masks against those that its configuration describes."""
        return expected_difference(self.model.own_logits(*self.rows), self.model.logits(*self.rows))

    def causal(self) -> float:
        """The plain call on the beginning of a window against the same place of the whole window."""
        tokens_WT, _ = self.rows
        half = max(1, tokens_WT.shape[1] // 2)
        logits_WTV = self.model.raw(input_ids=tokens_WT).logits
        return expected_difference(logits_WTV[:, half - 1], self.model.own_logits(tokens_WT[:, :half]))

    def positions(self) -> float:
        """Rows of every second token, against halved distances."""
        tokens_WT, positions_WT = self.rows
        if tokens_WT.shape[1] < 3:  # the only distance there is cannot be halved
            near_WY, apart_WY, rows_WY = positions_WT, 2 * positions_WT, tokens_WT
        else:
            apart_WY = positions_WT[:, (tokens_WT.shape[1] - 1) % 2 :: 2]
            near_WY, rows_WY = apart_WY // 2, tokens_WT.gather(1, apart_WY)
        return expected_difference(self.model.logits(rows_WY, apart_WY), self.model.logits(rows_WY, near_WY))

    def hidden_tokens(self) -> float:
        """Windows under the mask, against other hidden tokens."""
        shown_T = F.pad(self.shown_SM()[0], (0, self.local_len), value=True)
        other = dataclasses.replace(self, tokens_WT=torch.where(shown_T, self.tokens_WT, self.tokens_WT.flip(1)))
        return expected_difference(self.sets("masked", "hidden", 1), other.sets("masked", "hidden", 1))

    def everything(self) -> float:
        """The model's own attention over the longest window, against a causal mask."""
        tokens_1T, positions_1T = with_anchor(self.longest_1T, self.anchor_id)
        causal_1TT = torch.ones(1, *2 * [tokens_1T.shape[1]], dtype=torch.bool, device=tokens_1T.device).tril()
        masked = self.model.logits(tokens_1T, positions_1T, causal_1TT)
        return expected_difference(masked, self.model.logits(tokens_1T, positions_1T))

    def between(self, *paths: str) -> float:
        """Two paths against each other."""
        of_both = (
            torch.cat([self.sets(path, visibility) for visibility in ("hidden", "contextual")]) for path in paths
        )
        return expected_difference(*of_both)

    def gates(self) -> float:
        """The largest derivative by a gate under a mask."""
        likeliest_W = self.sets("masked", "hidden", 1).argmax(dim=-1)

        def loss(windows: torch.Tensor, logits_wV: torch.Tensor) -> torch.Tensor:
            return F.cross_entropy(logits_wV, likeliest_W[windows], reduction="sum")

        return float(self.engine("masked", "hidden").gradients(self.tokens_WT, loss).abs().max())

    def tapped(self) -> float:
        """The pass that reads the attention of the last token against the ordinary one."""
        return expected_difference(self.model.logits_and_attention(*self.rows)[0], self.model.logits(*self.rows))

    def observed(self) -> float:
        """The pass that reads all layers against the ordinary one, where the attention can be read."""
        try:
            logits_WV = self.model.observe(*self.rows, Observer(frozenset({"keys"}), slice(None), self.local_len))
        except UserError:  # selectors that need it are refused when they are used
            return 0.0
        return expected_difference(logits_WV, self.model.logits(*self.rows))

    def attention(self) -> float:
        return float(self.model.logits_and_attention(*self.rows)[1].sum(dim=1).max())


class Check(NamedTuple):
    """One property of a model: an experiment, and the most that it may give, or the least."""

    name: str  # in the manifest
    experiment: Callable[[Trial], float]
    reason: str  # why a model that fails cannot be measured
    limit: Optional[float] = None  # None: what rounding may cause
    at_least: bool = False


# In this order: a check that fails would make later ones fail, too.
CHECKS = (
    Check("weights that are no numbers", Trial.weights, "its weights are not all numbers", 0.0),
    Check("logits that are no numbers", Trial.finite, "its logits are not all numbers", 0.0),
    Check(
        "explicit position IDs against the model's own, nats", Trial.own_positions,
        "position IDs from 0 are not its own (it counts them otherwise), so measuring would run another model",
    ),
    Check(
        "masks by the configuration against the model's own, nats", Trial.own_masks,
        "its layers see another window than its configuration says (sliding_window, layer_types)",
    ),
    Check("later tokens seen by earlier ones, nats", Trial.causal, "it is not causal"),
    Check(
        "effect of other position IDs, nats", Trial.positions,
        "it ignores position IDs (as with ALiBi, or without positions), so hiding tokens would move the others",
        at_least=True,
    ),
    Check(
        "effect of hidden tokens under a mask, nats", Trial.hidden_tokens,
        "hidden tokens change its prediction, so something besides attention carries them (a recurrent state)",
    ),
    Check(
        "full context against a causal mask, nats", Trial.everything,
        "its last token does not attend to a whole window; choose a shorter influence.full_len",
    ),
    Check(
        "rows with gaps against masked, nats", lambda trial: trial.between("masked", "plain"),
        "it does not honour gaps in position IDs: the visible tokens alone, or behind chosen keys and values, predict something "
        "else than the window with the others hidden",
    ),
    Check("shared against plain rows, nats", lambda trial: trial.between("plain", "compact"),
          "its layers are not those of its family; use influence.path=plain"),
    Check("largest derivative by a gate", Trial.gates, "its attention has no derivative", 1e-37, at_least=True),
    Check("attention read beside, nats", Trial.tapped, "its logits change where its attention is read"),
    Check("layers read beside, nats", Trial.observed, "its logits change where its layers are read"),
    Check(
        "attention of the last token, sum", Trial.attention,
        "the attention that it reports is not a distribution over its tokens", 1.01,
    ),
)  # fmt: skip


@torch.no_grad()
def check_fit(
    model: CausalLM, tokens_WT: torch.Tensor, *, name: str, local_len: int, anchor_id: Optional[int]
) -> list[dict[str, Any]]:
    """Check that a model can be measured, and return what the manifest says about each check.

    ``tokens_WT`` are windows with their targets, on the model's device; the last tokens of the first few are used.
    """
    row_len = tokens_WT.shape[1] - (anchor_id is None)  # a window and its anchor
    if row_len > model.max_position:
        raise UserError(
            f"{name} cannot be measured: it has {model.max_position} positions, and a window takes {row_len}; choose a shorter "
            "influence.full_len"
        )
    if tokens_WT.shape[1] > LONGEST_CHECKED:
        logger.warning(f"{name}: a sliding window longer than {LONGEST_CHECKED:,} tokens would not be noticed")
    few_WT = varied_windows(tokens_WT[:CHECKED_WINDOWS, -1 - LONGEST_MASKED : -1], model.vocab_size)
    longest_1T = varied_windows(tokens_WT[:1, -1 - LONGEST_CHECKED : -1], model.vocab_size)
    # Some tokens must be hidden, even of the latest alone.
    trial = Trial(model, few_WT, longest_1T, min(local_len, LONGEST_MASKED // 2), anchor_id)
    with progress_bar("fit", " checks", iterable=CHECKS, total=len(CHECKS), leave=False, delay=1) as bar:
        return [_result(check, trial, name) for check in bar]


def _result(check: Check, trial: Trial, name: str) -> dict[str, Any]:
    try:
        value = check.experiment(trial)
    except (torch.OutOfMemoryError, UserError):
        raise
    except Exception as error:  # models raise what they happen to raise
        logger.debug(f"{name}: {check.name}", exc_info=True)
        reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"
        raise UserError(f"{name} cannot be measured: it cannot be run to measure {check.name} ({reason})") from error
    limit = check.limit
    if limit is None:
        limit = TOLERANCE_NATS[trial.model.dtype] * (LEAST_EFFECT if check.at_least else 1)
    if not (value >= limit if check.at_least else value <= limit):  # so is NaN
        numbers = f"{check.name}: {value:.3g}, must be at {'least' if check.at_least else 'most'} {limit:.3g}"
        raise UserError(f"{name} cannot be measured: {check.reason} ({numbers})")
    return {"name": check.name, "found": value, "limit": limit, "at_least": check.at_least}


def expected_difference(logits_WV: torch.Tensor, others_WV: torch.Tensor) -> float:
    """The expected absolute difference of the loss, nats, of the window where it is largest; NaN stays."""
    log_p_WV = normalized(logits_WV)
    return float((log_p_WV.exp() * (log_p_WV - normalized(others_WV)).abs()).sum(dim=-1).max())


def varied_windows(tokens_WT: torch.Tensor, vocab_size: int) -> torch.Tensor:
    """Replace windows of too few different tokens by drawn ones, always the same: over equal tokens nothing changes attention.

    Every second token must vary, too: ``Trial.positions`` runs only these.
    """
    is_varied_W = _has_different_tokens(tokens_WT) & _has_different_tokens(tokens_WT.flip(1)[:, ::2])
    shuffled_V = torch.randperm(vocab_size, generator=torch.Generator().manual_seed(0))
    drawn_WT = shuffled_V[torch.arange(tokens_WT.numel()) % vocab_size].view(tokens_WT.shape)
    return torch.where(is_varied_W[:, None], tokens_WT, drawn_WT.to(tokens_WT.device))


def _has_different_tokens(tokens_WT: torch.Tensor) -> torch.Tensor:
    changes_W = (tokens_WT.sort(dim=1).values.diff(dim=1) != 0).sum(dim=1)
    return changes_W + 1 >= min(FEWEST_TOKENS, tokens_WT.shape[1])


def num_compared_windows(full_len: int) -> int:
    """Windows of ``full_len`` tokens on which first tokens are compared, at most."""
    return min(MOST_COMPARED, max(LEAST_COMPARED, COMPARED_TOKENS // full_len))


@torch.no_grad()
def compare_first_tokens(
    model: CausalLM, tokens_WT: torch.Tensor, document_W: np.ndarray, *, bos: Anchor, chosen: Optional[int], local_len: int
) -> dict[str, Any]:  # fmt: skip
    """Compare mean losses with a BOS in front of windows and without, as the manifest has it.

    A wrong choice that raises the loss with the local tokens alone passes for a long gain. ``tokens_WT`` have their targets;
    ``chosen`` is the token with which the model is measured, or None.
    """
    means, lower = {}, {}
    for length, number in {"short": local_len, "long": tokens_WT.shape[1] - 1}.items():
        losses = {}
        for choice, anchor_id in {"bos": bos.id, "none": None}.items():
            nothing_WM = tokens_WT.new_zeros(len(tokens_WT), tokens_WT.shape[1] - 1 - number, dtype=torch.bool)
            engine = Engine(model, number, anchor_id=anchor_id, path="plain")
            log_p_WV = engine.predictions(tokens_WT[:, :-1], nothing_WM)
            losses[choice] = surprisals(log_p_WV, tokens_WT[:, -1:])[:, 0].double().cpu().numpy()
        means[length] = {choice: float(of.mean()) for choice, of in losses.items()}
        lower[length] = lower_choice(losses["bos"] - losses["none"], document_W)
    return {
        "chosen": "none" if chosen is None else "bos", "text": bos.text, "num_windows": len(tokens_WT),
        "loss_short_nats": means["short"], "loss_long_nats": means["long"], "lower_with": lower,
    }  # fmt: skip


def lower_choice(difference_W: np.ndarray, document_W: np.ndarray) -> Optional[str]:
    """``bos`` or ``none``, whichever loss is lower by ``CLEAR`` standard errors; windows of a document are not independent."""
    mean = difference_W.mean()
    sums_G = np.bincount(np.unique(document_W, return_inverse=True)[1], weights=difference_W - mean)
    if len(sums_G) < 2:
        return None
    error = math.sqrt(len(sums_G) / (len(sums_G) - 1) * float((sums_G**2).sum())) / len(difference_W)
    return None if abs(mean) <= CLEAR * error else "bos" if mean < 0 else "none"
