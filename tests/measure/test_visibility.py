"""Both definitions of visible, with and without an anchor, against the float64 reference: losses, selectors, gates, batches."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from dataclasses import dataclass
from typing import Any, Optional

import numpy as np
import pytest
import reference
import torch
from tiny_models import KINDS, NORMED, VOCAB, build

from olmo_sparsity.config import InfluenceConfig, ModelConfig
from olmo_sparsity.measure.context_curve import losses_by_length
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
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
    attention_mask,
    compact_rows,
    gate_bias,
    visible_mask,
    with_anchor,
)
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.records.selectors import ALL_SELECTORS, SELECTORS, rank

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


def scores_of(evaluator: Evaluator, **fields: Any) -> WindowScores:
    tokens_WT, targets_W = windows()
    predictions = Predictions(
        evaluator,
        WindowBatch(tokens_WT, targets_W, window_ids_W=np.arange(W), context="real", seed=0),
        log_p_short_WV=short_log_probs(evaluator, tokens_WT),
        num_lasso_masks=10,
        with_kl=True,
    )
    return WindowScores(predictions, max_k=MAX_K, **fields)


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


def test_the_choices_differ_where_they_should(model: OLMoWithPositions) -> None:
    """Otherwise the tests against the reference would pass with one in place of another."""
    some, everything = {1, 4, 5}, set(range(M))
    for one, other in itertools.combinations(ALL_DEFINITIONS, 2):
        assert abs(one.loss(model, 0, some) - other.loss(model, 0, some)) > 1e-3
        same_anchor = one.anchor_id == other.anchor_id
        for both in (set(), everything):
            difference = abs(one.loss(model, 0, both) - other.loss(model, 0, both))
            assert difference < 1e-9 if same_anchor else difference > 1e-3


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
def test_rows_and_masks_are_their_definition(definition: Definition) -> None:
    tokens_WT, _ = windows()
    has_anchor = definition.anchor_id is not None
    front, visible_WS = int(has_anchor), subsets(W, 3)
    rows, positions = compact_rows(tokens_WT, visible_WS, local_len=LOCAL, anchor_id=definition.anchor_id)
    mask = attention_mask(
        visible_mask(visible_WS, FULL, local_len=LOCAL, has_anchor=has_anchor),
        local_len=LOCAL,
        visibility=definition.visibility,
    )
    anchored, all_positions = with_anchor(tokens_WT, definition.anchor_id)
    for w in range(W):
        whole = ([ANCHOR] if has_anchor else []) + tokens_WT[w].tolist()
        assert anchored[w].tolist() == whole
        assert all_positions[w].tolist() == list(range(front + FULL))
        seen = [i for i in range(front + FULL) if i < front or i >= front + M or i - front in visible_WS[w].tolist()]
        assert positions[w].tolist() == seen
        assert rows[w].tolist() == [whole[i] for i in seen]
        for i, j in itertools.product(range(front + FULL), repeat=2):
            among_long_range = definition.visibility == "contextual" and i < front + M
            assert bool(mask[w, i, j]) is (j <= i and (j == i or j in seen or among_long_range))


@DEFINITIONS
@pytest.mark.parametrize("path", PATHS)
def test_gates_of_0_and_1_hide_and_show(model: OLMoWithPositions, definition: Definition, path: str) -> None:
    tokens_WT, _ = windows()
    visible_WS = subsets(W, 3)
    shown_WT = visible_mask(visible_WS, FULL, local_len=LOCAL, has_anchor=definition.anchor_id is not None)
    log_gate_WT = torch.zeros(shown_WT.shape).masked_fill(~shown_WT, -torch.inf)
    bias_WTT = gate_bias(log_gate_WT, local_len=LOCAL, visibility=definition.visibility)
    logits_WV = model.last_logits(*with_anchor(tokens_WT, definition.anchor_id), bias_BTT=bias_WTT)
    expected_WV = log_probs(definition.evaluator(model, path), tokens_WT, visible_WS=visible_WS)
    assert torch.allclose(logits_WV.log_softmax(-1), expected_WV, atol=1e-5)


@DEFINITIONS
@pytest.mark.parametrize("path", PATHS)
def test_selectors_are_their_definition(model: OLMoWithPositions, definition: Definition, path: str) -> None:
    one = scores_of(definition.evaluator(model, path))
    found = {name: SELECTORS[name].score(one) for name in ALL_SELECTORS}
    everything, step = set(range(M)), 1e-7
    targets_W = windows()[1]
    for w in range(W):

        def log_p(visible: set[int], gates: Optional[dict[int, float]] = None, w: int = w) -> np.ndarray:
            return definition.evaluate(model, w, visible, gates)[0]

        target = int(targets_W[w])
        long, short = log_p(everything), log_p(set())
        singles = [log_p({j}) for j in range(M)]
        assert found["unmask-one"][w] == pytest.approx([q[target] - short[target] for q in singles], abs=2e-5)
        assert found["kl"][w] == pytest.approx([(np.exp(long) * (q - short)).sum() for q in singles], abs=2e-5)
        without = [log_p(everything - {j})[target] for j in range(M)]
        assert found["mask-one"][w] == pytest.approx([long[target] - q for q in without], abs=2e-5)
        assert found["attention"][w] == pytest.approx(definition.evaluate(model, w, everything)[1][:M], abs=1e-5)
        for j in (0, M - 1):
            gated = [log_p(everything, {i: n * step * (i == j) for i in range(M)})[target] for n in range(3)]
            slope = (4 * gated[1] - gated[2] - 3 * gated[0]) / (2 * step)
            assert found["gradient"][w, j] == pytest.approx(slope, rel=2e-3, abs=1e-4)
        for name in ("greedy", "greedy-kl"):
            taken: set[int] = set()
            for position in rank(found[name])[w, :MAX_K].tolist():
                values = {
                    j: -log_p({*taken, j})[target] if name == "greedy" else -(np.exp(long) * log_p({*taken, j})).sum()
                    for j in everything - taken
                }
                assert position == min(values, key=lambda j: values[j])
                taken.add(position)
        masks = one.predictions.lasso_masks_WNI[w]
        expected = [-log_p(set(np.flatnonzero(mask).tolist()))[target] for mask in masks]
        assert one.lasso_loss_WN[w] == pytest.approx(expected, abs=1e-5)


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


def in_reverse(tokens_WT: torch.Tensor) -> torch.Tensor:
    """Return windows whose long-range tokens stand in reverse order."""
    return torch.cat([tokens_WT[:, :M].flip(1), tokens_WT[:, M:]], dim=1)


def measured(evaluator: Evaluator, *, train_len: Optional[int] = None, **changes: Any) -> PartInfluence:
    """Measure windows; the null context holds the same tokens in reverse order."""
    tokens_WT, targets_W = windows(6)
    null_WT = in_reverse(tokens_WT)
    batches = {
        context: WindowBatch(tokens, targets_W, window_ids_W=np.arange(6), context=context, seed=0)
        for context, tokens in (("real", tokens_WT), ("null", null_WT))
    }
    settings = InfluenceConfig(k=[1, 2, 4], selectors=["unmask-one", "kl", "gradient", "random"], **changes)
    return measure_windows(evaluator, batches, settings=settings, train_len=train_len)


@DEFINITIONS
def test_the_measurement_and_its_controls_agree_on_every_path(model: OLMoWithPositions, definition: Definition) -> None:
    compact, masked = (measured(definition.evaluator(model, path)) for path in ("compact", "masked"))
    assert compact.loss_train_len_W is None
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


@DEFINITIONS
def test_the_loss_of_a_training_row_of_any_length(model: OLMoWithPositions, definition: Definition) -> None:
    evaluator = definition.evaluator(model)
    for train_len in (2, LOCAL, LOCAL + 3, FULL, FULL + 5):
        found = measured(evaluator, train_len=train_len).loss_train_len_W
        assert found is not None
        for w in range(W):
            if train_len >= FULL:
                expected = definition.loss(model, w, set(range(M)))
            else:  # these tokens alone, also where a hidden token would reach the target by way of others
                tokens, target = windows(6)[0][w, -train_len:].tolist(), int(windows(6)[1][w])
                front = [] if definition.anchor_id is None else [ANCHOR]
                begin = FULL - train_len
                positions = [0] * len(front) + [len(front) + begin + i for i in range(train_len)]
                row = [*front, *tokens]
                expected = reference.target_loss(model, row, positions, set(range(len(row))), target)
            assert found[w] == pytest.approx(expected, abs=1e-5)


@DEFINITIONS
@pytest.mark.parametrize("path", ["compact", "plain", "masked"])
def test_the_losses_directly_behind_the_anchor(model: OLMoWithPositions, definition: Definition, path: str) -> None:
    """They are those of a row that holds the anchor and these tokens, at the positions of a training row, by a plain pass."""
    for train_len in (2, LOCAL, LOCAL + 3, FULL - 1, FULL, FULL + 5):
        part = measured(definition.evaluator(model, path), train_len=train_len)
        assert part.loss_train_len_no_gap_W is not None
        for found_W, num_visible in ((part.loss_short_no_gap_W, LOCAL), (part.loss_train_len_no_gap_W, train_len)):
            for w in range(W):
                tokens, target = windows(6)[0][w, -num_visible:].tolist(), int(windows(6)[1][w])
                row = [*([] if definition.anchor_id is None else [ANCHOR]), *tokens]
                expected = reference.target_loss(model, row, list(range(len(row))), set(range(len(row))), target)
                assert found_W[w] == pytest.approx(expected, abs=1e-5)
        if train_len == LOCAL:
            assert (part.loss_train_len_no_gap_W == part.loss_short_no_gap_W).all()
        if train_len >= FULL:
            assert (part.loss_train_len_no_gap_W == part.contexts["real"].loss_long_W).all()
        gap_cost = np.abs(part.loss_short_no_gap_W - part.loss_short_W).max()
        # Rotary attention sees relative positions only.
        assert (gap_cost > 1e-3) == (definition.anchor_id is not None)
    assert measured(definition.evaluator(model, path)).loss_train_len_no_gap_W is None


@DEFINITIONS
def test_the_context_curve_has_the_anchor_too(model: OLMoWithPositions, definition: Definition) -> None:
    tokens_WT, targets_W = windows()
    rows_WT = torch.cat([tokens_WT, targets_W[:, None]], dim=1)
    losses = losses_by_length(definition.evaluator(model), rows_WT, lengths=[1, 5, FULL])
    front = [] if definition.anchor_id is None else [ANCHOR]
    for w, (i, length) in itertools.product(range(W), enumerate([1, 5, FULL])):
        row = [*front, *tokens_WT[w, -length:].tolist()]
        expected = reference.target_loss(model, row, list(range(len(row))), set(range(len(row))), int(targets_W[w]))
        assert losses[w, i] == pytest.approx(expected, abs=1e-5)


def test_an_evaluator_takes_its_definition_from_the_settings(model: OLMoWithPositions) -> None:
    settings = InfluenceConfig(visibility="contextual", path="plain")
    evaluator = make_evaluator(model, settings, full_len=FULL, local_len=LOCAL, anchor_id=ANCHOR)
    assert evaluator == dataclasses.replace(
        Definition("contextual", ANCHOR).evaluator(model, "plain"), batch_tokens=evaluator.batch_tokens
    )
    assert evaluator.model is model
    low = make_evaluator(model, settings, full_len=FULL, local_len=LOCAL, precision="bf16").model
    assert low.in_dtype(torch.bfloat16) is low
