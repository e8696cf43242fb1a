"""Both definitions of visible, with and without an anchor, against the float64 reference: losses, selectors, gates, batches."""

from __future__ import annotations

import dataclasses
import functools
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import pytest
import reference
import torch
from tiny_models import KINDS, NORMED, VOCAB, build

from olmo_sparsity.config import InfluenceConfig, ModelConfig
from olmo_sparsity.measure.selection.window_influence import PartInfluence, measure_windows
from olmo_sparsity.measure.visible.batch_size import make_evaluator
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import (
    all_but_one_losses,
    log_probs,
    mask_losses,
    short_log_probs,
    single_losses,
    target_losses,
)
from olmo_sparsity.measure.visible.visibility import (
    Visibility,
)
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.model.olmo import OLMoWithPositions

LOCAL, M = 4, 7
FULL, W, MAX_K, ANCHOR = LOCAL + M, 2, 3, 9
PATHS = ("compact", "plain", "masked")


@dataclass(frozen=True)
class Definition:
    """One choice of the two definitions and an anchor, and its losses by the reference."""

    visibility: Visibility
    anchor_id: Optional[int]

    def evaluator(self, model: Any, path: str = "compact", *, batch_tokens: int = 4096) -> Evaluator:
        return Evaluator(
            model,
            LOCAL,
            path=path,
            batch_tokens=batch_tokens,
            visibility=self.visibility,
            anchor_id=self.anchor_id,
        )

    def evaluate(
        self, model: OLMoWithPositions, w: int, visible: set[int], gates: Optional[dict[int, float]] = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return (log-probabilities, attention of the last token to the tokens of the window) by the reference."""
        return evaluated(self, model, w, frozenset(visible), tuple((gates or {}).items()))

    def loss(self, model: OLMoWithPositions, w: int, visible: set[int]) -> float:
        return -float(self.evaluate(model, w, visible)[0][int(windows()[1][w])])


@functools.cache
def evaluated(
    definition: Definition,
    model: OLMoWithPositions,
    w: int,
    visible: frozenset[int],
    gates: tuple[tuple[int, float], ...],
) -> tuple[np.ndarray, np.ndarray]:
    """Return what ``Definition.evaluate`` returns."""
    tokens, front = windows()[0][w].tolist(), []
    if definition.anchor_id is not None:
        front = [definition.anchor_id]
    moved = len(front)
    log_p, attention = reference.evaluate(
        model,
        [*front, *tokens],
        list(range(moved + FULL)),
        {*range(moved), *(moved + j for j in visible), *range(moved + M, moved + FULL)},
        {moved + j: gate for j, gate in gates},
        first_reader=moved + M if definition.visibility == "contextual" else 0,
    )
    return log_p, attention[moved:]


ALL_DEFINITIONS = [Definition(v, anchor) for v in ("hidden", "contextual") for anchor in (None, ANCHOR)]


def name_of(definition: Definition) -> str:
    anchor = "none" if definition.anchor_id is None else "bos"
    return f"{definition.visibility}-{anchor}"


DEFINITIONS = pytest.mark.parametrize("definition", ALL_DEFINITIONS, ids=name_of)


def windows(num: int = W) -> tuple[torch.Tensor, torch.Tensor]:
    drawn = torch.from_numpy(np.random.default_rng(8).integers(1, VOCAB, (num, FULL + 1)))
    return drawn[:, :-1].contiguous(), drawn[:, -1].contiguous()


def subsets(num: int, size: int) -> torch.Tensor:
    rng = np.random.default_rng(4)
    drawn = [rng.permutation(M)[:size] for _ in range(num)]
    return torch.from_numpy(np.stack(drawn).astype(np.int64).reshape(num, size))


@pytest.fixture(scope="module")
def model() -> OLMoWithPositions:
    return build(NORMED).eval()


@KINDS
@DEFINITIONS
def test_losses_of_every_path_are_the_definition(kind: ModelConfig, definition: Definition) -> None:
    model = build(kind).eval()
    tokens_WT, targets_W = windows()
    for size in (0, 1, 3, M - 1, M):
        visible_WS = subsets(W, size)
        expected = [definition.loss(model, w, set(visible_WS[w].tolist())) for w in range(W)]
        for path in PATHS:
            losses, _ = target_losses(
                definition.evaluator(model, path), tokens_WT, targets_W=targets_W, visible_WNS=visible_WS[:, None]
            )
            assert losses[:, 0].tolist() == pytest.approx(expected, abs=1e-5), (size, path)


@pytest.mark.parametrize("anchor_id", [None, ANCHOR])
def test_both_ends_are_the_same_number_in_both_definitions(model: OLMoWithPositions, anchor_id: Optional[int]) -> None:
    tokens_WT, _ = windows()
    for size in (0, M):
        visible_WS = subsets(W, size)
        one, other = (
            log_probs(Definition(v, anchor_id).evaluator(model, "plain"), tokens_WT, visible_WS=visible_WS)
            for v in ("hidden", "contextual")
        )
        if size == 0:
            assert torch.equal(one, other)
        else:  # one of them goes on from the keys and values of the long-range tokens, and rounds otherwise
            torch.testing.assert_close(one, other, atol=1e-5, rtol=0)  # what all paths promise in fp32


@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
def test_nothing_visible_leaves_the_local_tokens_and_the_anchor_alone(
    model: OLMoWithPositions, visibility: Visibility
) -> None:
    tokens_WT, targets_W = windows()
    log_p_WV = short_log_probs(Definition(visibility, ANCHOR).evaluator(model), tokens_WT)
    for w in range(W):
        row, positions = [ANCHOR, *tokens_WT[w, M:].tolist()], [0, *range(M + 1, FULL + 1)]
        expected = reference.target_loss(model, row, positions, set(range(LOCAL + 1)), int(targets_W[w]))
        assert -float(log_p_WV[w, targets_W[w]]) == pytest.approx(expected, abs=1e-5)
        moved = [0, *range(M, FULL)]  # the local tokens one position nearer to the anchor
        assert abs(reference.target_loss(model, row, moved, set(range(LOCAL + 1)), int(targets_W[w])) - expected) > 1e-4


@DEFINITIONS
@pytest.mark.parametrize("batch_tokens", [1, 3 * FULL, 10**6])
def test_the_size_of_a_pass_changes_nothing(
    model: OLMoWithPositions, definition: Definition, batch_tokens: int
) -> None:
    tokens_WT, targets_W = windows(7)
    small, masked = definition.evaluator(model, batch_tokens=batch_tokens), definition.evaluator(model, "masked")
    candidates_WJ, labels_WA = subsets(7, 5), torch.stack([targets_W, targets_W - 1], dim=1)
    masks_WNM = torch.from_numpy(np.random.default_rng(1).random((7, 6, M)) < 0.5)
    reference_WV = log_probs(masked, tokens_WT, visible_WS=subsets(7, 2))
    found, expected = (
        [
            *single_losses(e, tokens_WT, targets_W=targets_W, candidates_WJ=candidates_WJ, reference_WV=reference_WV),
            mask_losses(e, tokens_WT, labels_WA=labels_WA, visible_WNM=masks_WNM),
            all_but_one_losses(e, tokens_WT, labels_WA=labels_WA),
        ]
        for e in (small, masked)
    )
    for a, b in zip(found, expected, strict=True):
        assert (a - b).abs().max() < 1e-5


class Counted:
    """A model that is no OLMo, and counts the tokens that it runs."""

    def __init__(self, model: OLMoWithPositions):
        self.model, self.tokens = model, {"last_logits": 0, "keys_values": 0, "last_logits_after": 0}

    def __getattr__(self, name: str) -> Any:
        def call(tokens: torch.Tensor, *rest: torch.Tensor, **named: Any) -> Any:
            self.tokens[name] += tokens.numel()
            return getattr(self.model, name)(tokens, *rest, **named)

        return call


@pytest.mark.parametrize("anchor_id", [None, ANCHOR])
def test_what_precedes_the_local_tokens_is_computed_once(model: OLMoWithPositions, anchor_id: Optional[int]) -> None:
    tokens_WT, targets_W = windows(5)
    everything_WM, front = torch.arange(M).expand(5, -1), 0 if anchor_id is None else 1
    masks_WNM = torch.from_numpy(np.random.default_rng(1).random((5, 6, M)) < 0.5)
    masks_WNM[:, :, 0], masks_WNM[:, :, 1] = True, False  # neither nothing nor everything is visible
    assert len(masks_WNM.sum(dim=-1).unique()) > 2
    for num_sets in (M, 6):
        counted = Counted(model)
        evaluator = Definition("contextual", anchor_id).evaluator(counted, batch_tokens=10**6)
        if num_sets == M:
            found = single_losses(evaluator, tokens_WT, targets_W=targets_W, candidates_WJ=everything_WM)[0]
        else:
            found = mask_losses(evaluator, tokens_WT, labels_WA=targets_W[:, None], visible_WNM=masks_WNM)
        assert found.isfinite().all()
        prefix = 5 * (front + M)
        assert counted.tokens == {"last_logits": 0, "keys_values": prefix, "last_logits_after": 5 * num_sets * LOCAL}


LAST_N = [1, LOCAL - 1, LOCAL, LOCAL + 2, FULL]


def in_reverse(tokens_WT: torch.Tensor) -> torch.Tensor:
    """Return windows whose long-range tokens stand in reverse order."""
    return torch.cat([tokens_WT[:, :M].flip(1), tokens_WT[:, M:]], dim=1)


def measured(evaluator: Evaluator, **changes: Any) -> PartInfluence:
    """Measure windows; the null context holds the same tokens in reverse order."""
    tokens_WT, targets_W = windows(6)
    null_WT = in_reverse(tokens_WT)
    batches = {
        context: WindowBatch(tokens, targets_W, window_ids_W=np.arange(6), context=context, seed=0)
        for context, tokens in (("real", tokens_WT), ("null", null_WT))
    }
    settings = InfluenceConfig(k=[1, 2, 4], selectors=["unmask-one", "kl", "gradient", "random"], **changes)
    return measure_windows(evaluator, batches, settings=settings, last_n=LAST_N)


@DEFINITIONS
def test_the_measurement_and_its_controls_agree_on_every_path(model: OLMoWithPositions, definition: Definition) -> None:
    compact, masked = (measured(definition.evaluator(model, path)) for path in ("compact", "masked"))
    for n in LAST_N:
        assert compact.loss_last_W[n] == pytest.approx(masked.loss_last_W[n], abs=1e-5)
    for context in ("real", "null"):
        for name in ("loss_damped_WB", "kl_damped_WB"):
            found, expected = (getattr(of.contexts[context], name) for of in (compact, masked))
            assert found == pytest.approx(expected, abs=1e-5)
    pairs = [(compact.contexts[c].outcomes, masked.contexts[c].outcomes) for c in ("real", "null")]
    for context in ("real", "null"):
        drawn = zip(compact.contexts[context].resampled, masked.contexts[context].resampled, strict=True)
        pairs += [(a.outcomes, b.outcomes) for a, b in drawn]
    assert sum(len(outcomes) for outcomes, _ in pairs) == 4 + 4 + 2 * 3 + 1 * 3
    for outcomes, expected in pairs:
        for name, outcome in outcomes.items():
            assert outcome.scores_WI == pytest.approx(expected[name].scores_WI, abs=2e-4, nan_ok=True)
            assert (outcome.groups_WS == expected[name].groups_WS).all()
            assert outcome.loss_sparse_WK == pytest.approx(expected[name].loss_sparse_WK, abs=1e-5)


def test_an_evaluator_takes_its_definition_from_the_settings(model: OLMoWithPositions) -> None:
    settings = InfluenceConfig(visibility="contextual", path="plain")
    evaluator = make_evaluator(model, settings, full_len=FULL, local_len=LOCAL, anchor_id=ANCHOR)
    assert evaluator == dataclasses.replace(
        Definition("contextual", ANCHOR).evaluator(model, "plain"), batch_tokens=evaluator.batch_tokens
    )
    assert evaluator.model is model
    low = make_evaluator(model, settings, full_len=FULL, local_len=LOCAL, precision="bf16").model
    assert low.in_dtype(torch.bfloat16) is low
