"""Groups of tokens against brute force: the losses of all subsets of a window's groups, on the masked path."""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Optional

import numpy as np
import pytest
import torch
from tiny_models import NORMED, VOCAB, build
from tiny_windows import FULL, LOCAL, PATHS, M, windows

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.selection.window_influence import measure_context
from olmo_sparsity.measure.visible import group_losses
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import (
    gate_gradients,
    log_probs,
    long_log_probs_and_attention,
    short_log_probs,
)
from olmo_sparsity.measure.visible.visibility import Visibility
from olmo_sparsity.measure.visible.window_batch import TokenGroups, WindowBatch, single_tokens
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.records.selectors import ALL_SELECTORS, LASSO_ALPHA, SELECTORS, rank

SIZES = ([1, 3, 2, 5, 5], [16], [2, 2, 3, 2, 5, 2], [7, 9])  # tokens of the groups of each window, M in all
W, KS, MASKS, ANCHOR = len(SIZES), [1, 2, 4], 24, 1
SETTINGS = InfluenceConfig(selectors=list(ALL_SELECTORS), k=KS)
DEFINITIONS = pytest.mark.parametrize(
    ("visibility", "anchor_id"), list(itertools.product(("hidden", "contextual"), (None, ANCHOR)))
)


def positions_of(w: int, groups: tuple[int, ...]) -> list[int]:
    """Return the positions of some groups of a window, written from the list of sizes."""
    begins = [sum(SIZES[w][:i]) for i in range(len(SIZES[w]))]
    return [begins[i] + j for i in groups for j in range(SIZES[w][i])]


GROUPS = TokenGroups(np.array([[i for i, size in enumerate(sizes) for _ in range(size)] for sizes in SIZES]))


class AllSubsets:
    """Log-probabilities of the next token of each window under every set of its groups, on the masked path."""

    def __init__(self, evaluator: Evaluator):
        self.evaluator = evaluator
        self.tokens_WT, targets_W = windows(W)
        self.targets = targets_W.tolist()
        self.log_p: dict[tuple[int, tuple[int, ...]], np.ndarray] = {}
        for w, sizes in enumerate(SIZES):
            subsets = [s for size in range(len(sizes) + 1) for s in itertools.combinations(range(len(sizes)), size)]
            for groups in subsets:
                visible_1S = torch.tensor(positions_of(w, groups), dtype=torch.int64)[None]
                log_p_1V = log_probs(evaluator, self.tokens_WT[[w]], visible_WS=visible_1S)
                self.log_p[w, groups] = log_p_1V[0].double().numpy()

    def cost(self, w: int, groups: set[int]) -> float:
        """Return KL(p_{}, p_S), what showing groups costs on a label drawn from the short-context prediction."""
        log_short = self.log_p[w, ()]
        return float((np.exp(log_short) * (log_short - self.log_p[w, tuple(sorted(groups))])).sum())

    def loss(self, w: int, groups: set[int], label: Optional[int] = None) -> float:
        return -float(self.log_p[w, tuple(sorted(groups))][self.targets[w] if label is None else label])

    def kl(self, w: int, groups: set[int]) -> float:
        log_p = self.log_p[w, tuple(range(len(SIZES[w])))]
        return float((np.exp(log_p) * (log_p - self.log_p[w, tuple(sorted(groups))])).sum())


@functools.cache
def all_subsets(model: OLMoWithPositions, visibility: str, anchor_id: Optional[int]) -> AllSubsets:
    return AllSubsets(make_evaluator(model, visibility, anchor_id, "masked"))


def make_evaluator(model: OLMoWithPositions, visibility: str, anchor_id: Optional[int], path: str) -> Evaluator:
    return Evaluator(model, LOCAL, path=path, batch_tokens=200, visibility=visibility, anchor_id=anchor_id)  # type: ignore[arg-type]


def scores_of(evaluator: Evaluator, groups: Optional[TokenGroups] = GROUPS) -> WindowScores:
    tokens_WT, targets_W = windows(W)
    drawn_W1 = (targets_W[:, None] + 7) % VOCAB
    predictions = Predictions(
        evaluator,
        WindowBatch(tokens_WT, targets_W, window_ids_W=np.arange(W), context="real", seed=0, groups=groups),
        log_p_short_WV=short_log_probs(evaluator, tokens_WT),
        drawn_labels_WA=drawn_W1,
        num_lasso_masks=MASKS,
        with_kl=True,
    )
    return WindowScores(predictions, max_k=max(KS))


@pytest.fixture(scope="module")
def model() -> OLMoWithPositions:
    return build(NORMED).eval()


def test_groups_are_what_their_numbers_say() -> None:
    assert GROUPS.num_groups_W.tolist() == [5, 1, 6, 2]
    assert not GROUPS.is_single
    assert single_tokens(2, M).is_single
    for w, sizes in enumerate(SIZES):
        assert GROUPS.sizes_WI[w].tolist() == sizes + [0] * (6 - len(sizes))
        for number in range(1, len(sizes) + 1):
            for chosen in itertools.permutations(range(len(sizes)), number) if number < 4 else [range(number)]:
                assert GROUPS.positions(np.array([w]), np.array([[*chosen, -1]])).tolist() == positions_of(
                    w, tuple(chosen)
                )
    values_WM = np.random.default_rng(0).normal(size=(W, M)).astype(np.float32)
    sums_WI = GROUPS.sums(values_WM)
    for w, i in itertools.product(range(W), range(6)):
        expected = values_WM[w, positions_of(w, (i,))].sum() if i < len(SIZES[w]) else np.nan
        assert sums_WI[w, i] == pytest.approx(expected, abs=1e-6, nan_ok=True)
    ranked_WI = np.tile(np.arange(6)[::-1], (W, 1))
    assert GROUPS.chosen(np.sort(ranked_WI, axis=1), 3).tolist() == [[0, 1, 2], [0, -1, -1], [0, 1, 2], [0, 1, -1]]
    assert GROUPS.chosen(np.sort(ranked_WI, axis=1), 7)[2].tolist() == [*range(6), -1]
    of_tokens = single_tokens(2, M).rows_by_size(np.array([1, 0, 1]), np.array([[4, 2], [3, -1], [0, 9]]))
    assert [(rows.tolist(), positions.tolist()) for rows, positions in of_tokens] == [
        ([1], [[3]]),
        ([0, 2], [[4, 2], [0, 9]]),
    ]


def test_each_seed_purpose_window_and_context_has_draws_of_its_own() -> None:
    """Whatever other windows are in the batch, and in a part of it."""
    (tokens_WT, targets_W), ids_W = windows(W), np.array([9, 4, 7, 5])
    drawn = set()
    for seed, purpose, context in itertools.product((0, 1), (2, 3), ("real", "null")):
        batch = WindowBatch(tokens_WT, targets_W, window_ids_W=ids_W, context=context, seed=seed, groups=GROUPS)
        of_batch = [generator.random() for generator in batch.generators(purpose)]
        some = batch.subset(np.array([2, 0]))
        assert [generator.random() for generator in some.generators(purpose)] == [of_batch[2], of_batch[0]]
        drawn |= set(of_batch)
    assert len(drawn) == 8 * W
    assert some.groups is not None and (some.groups.groups_WM == GROUPS.groups_WM[[2, 0]]).all()
    assert (some.window_ids_W.tolist(), some.targets_W.tolist()) == ([7, 9], targets_W[[2, 0]].tolist())
    assert torch.equal(some.tokens_WT, tokens_WT[[2, 0]]) and len(some) == 2


@DEFINITIONS
@pytest.mark.parametrize("path", PATHS)
def test_every_selector_is_its_definition(
    model: OLMoWithPositions, path: str, visibility: str, anchor_id: Optional[int]
) -> None:
    one = scores_of(make_evaluator(model, visibility, anchor_id, path))
    truth = all_subsets(model, visibility, anchor_id)
    scores = {name: SELECTORS[name].score(one) for name in ALL_SELECTORS}
    gradient_WM = -gate_gradients(
        truth.evaluator,
        truth.tokens_WT,
        loss_function=lambda rows, logits_wV: torch.nn.functional.cross_entropy(
            logits_wV, one.labels_W[rows], reduction="sum"
        ),
    )
    _, attention_WM = long_log_probs_and_attention(truth.evaluator, truth.tokens_WT)
    for w, sizes in enumerate(SIZES):
        everything = set(range(len(sizes)))
        for name, scores_WI in scores.items():
            assert np.isfinite(scores_WI[w]).tolist() == [True] * len(sizes) + [False] * (6 - len(sizes)), name
        for i in everything:
            of = {name: float(scores_WI[w, i]) for name, scores_WI in scores.items()}
            assert of["unmask-one"] == pytest.approx(truth.loss(w, set()) - truth.loss(w, {i}), abs=2e-5)
            assert of["mask-one"] == pytest.approx(
                truth.loss(w, everything - {i}) - truth.loss(w, everything), abs=2e-5
            )
            assert of["kl"] == pytest.approx(truth.kl(w, set()) - truth.kl(w, {i}), abs=2e-5)
            positions = positions_of(w, (i,))
            assert of["gradient"] == pytest.approx(float(gradient_WM[w, positions].sum()), rel=2e-3, abs=1e-4)
            assert of["attention"] == pytest.approx(float(attention_WM[w, positions].sum()), abs=1e-5)
            assert of["nearest"] == i
        for name, value in (("greedy", truth.loss), ("greedy-kl", truth.kl)):
            taken: list[int] = []
            while len(taken) < min(max(KS), len(sizes)):
                taken.append(min(everything - set(taken), key=lambda i: value(w, {*taken, i})))
            assert rank(scores[name])[w, : len(taken)].tolist() == taken
        masks_NI = one.predictions.lasso_masks_WNI[w]
        assert not masks_NI[:, len(sizes) :].any()
        losses = [truth.loss(w, set(np.flatnonzero(mask_I).tolist())) for mask_I in masks_NI]
        assert one.lasso_loss_WN[w] == pytest.approx(losses, abs=1e-5)
    assert np.nanmax(np.abs(scores["gradient"])) > 0.02


def test_lasso_minimises_its_objective_over_the_groups_of_each_window(model: OLMoWithPositions) -> None:
    one = scores_of(make_evaluator(model, "hidden", None, "compact"))
    scores = SELECTORS["lasso"].score(one)
    for w, sizes in enumerate(SIZES):
        keep = one.predictions.lasso_masks_WNI[w][:, : len(sizes)].astype(float)
        spread = keep.std(axis=0)
        x, y = (keep - keep.mean(axis=0)) / spread, one.lasso_loss_WN[w] - one.lasso_loss_WN[w].mean()
        beta = np.zeros(len(sizes))
        for _ in range(2000):
            for i in range(len(sizes)):
                partial = x[:, i] @ (y - x @ beta + x[:, i] * beta[i]) / MASKS
                beta[i] = np.sign(partial) * max(abs(partial) - LASSO_ALPHA, 0.0)
        assert scores[w, : len(sizes)] == pytest.approx(-beta / spread, abs=2e-3)


def test_random_is_uniform_over_the_groups_of_a_window(model: OLMoWithPositions) -> None:
    num = 2000
    tokens_WT, targets_W = windows(num)
    evaluator = make_evaluator(model, "hidden", None, "compact")
    batch = WindowBatch(
        tokens_WT,
        targets_W,
        window_ids_W=np.arange(num),
        context="real",
        seed=0,
        groups=TokenGroups(np.repeat(GROUPS.groups_WM[[0]], num, axis=0)),
    )
    one = WindowScores(Predictions(evaluator, batch, log_p_short_WV=torch.zeros(num, VOCAB)), max_k=1)
    first_W = rank(SELECTORS["random"].score(one))[:, 0]
    assert np.bincount(first_W, minlength=5) == pytest.approx(np.full(5, num / 5), abs=5 * np.sqrt(num / 5))


@DEFINITIONS
@pytest.mark.parametrize("path", ["compact", "plain"])
def test_losses_of_chosen_groups_are_those_of_their_tokens(
    model: OLMoWithPositions, path: str, visibility: str, anchor_id: Optional[int]
) -> None:
    one = scores_of(make_evaluator(model, visibility, anchor_id, path))
    truth = all_subsets(model, visibility, anchor_id)
    measured = measure_context(one, SETTINGS)
    for w, sizes in enumerate(SIZES):
        everything = set(range(len(sizes)))
        assert measured.loss_long_W[w] == pytest.approx(truth.loss(w, everything), abs=1e-5)
        for outcome in measured.outcomes.values():
            chosen = outcome.groups_WS[w].tolist()
            expected = rank(outcome.scores_WI)[w].tolist()[: min(len(sizes), max(KS))]
            assert chosen == expected + [-1] * (max(KS) - len(expected))
            assert outcome.kl_sparse_WK is not None
            for n, k in enumerate(KS):
                visible = set(chosen[:k]) - {-1}
                assert len(visible) == min(k, len(sizes))  # a window with fewer than k groups shows all of them
                assert outcome.loss_sparse_WK[w, n] == pytest.approx(truth.loss(w, visible), abs=2e-5)
                assert outcome.kl_sparse_WK[w, n] == pytest.approx(truth.kl(w, visible), abs=2e-5)
    for w, sizes in enumerate(SIZES):
        expected_losses = [truth.loss(w, {i}) for i in range(len(sizes))] + [np.nan] * (6 - len(sizes))
        assert one.loss_single_WI[w].tolist() == pytest.approx(expected_losses, abs=2e-5, nan_ok=True)


@pytest.mark.parametrize("windows_at_once", [1, 3])
def test_losses_without_a_group_do_not_depend_on_how_many_windows_are_held_at_once(
    model: OLMoWithPositions, windows_at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_losses, "POSITIONS_AT_ONCE", windows_at_once * 6 * M)  # six groups at most
    (tokens_WT, targets_W), truth = windows(W), all_subsets(model, "hidden", None)
    found_WIA = group_losses.all_but_one_group_losses(
        make_evaluator(model, "hidden", None, "plain"), tokens_WT, groups=GROUPS, labels_WA=targets_W[:, None]
    )
    for w, sizes in enumerate(SIZES):
        expected = [truth.loss(w, set(range(len(sizes))) - {i}) for i in range(len(sizes))]
        assert found_WIA[w, :, 0].tolist() == pytest.approx(
            expected + [np.nan] * (6 - len(sizes)), abs=2e-5, nan_ok=True
        )


@pytest.mark.parametrize("anchor_id", [None, ANCHOR])
@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
def test_what_precedes_a_group_is_shared_where_a_pass_holds_one_row(
    model: OLMoWithPositions, visibility: Visibility, anchor_id: Optional[int]
) -> None:
    """Entries have read it, if they may."""
    tokens_WT, targets_W = windows(W)
    found, expected = (
        group_losses.all_but_one_group_losses(
            Evaluator(
                model, LOCAL, path=path, batch_tokens=1, visibility=visibility, anchor_id=anchor_id
            ),
            tokens_WT, groups=GROUPS, labels_WA=torch.stack([targets_W, targets_W - 1], dim=1),
        )
        for path in ("compact", "masked")
    )  # fmt: skip
    torch.testing.assert_close(found, expected, atol=2e-5, rtol=0, equal_nan=True)


@DEFINITIONS
@pytest.mark.parametrize("path", PATHS)
def test_what_single_groups_cost_on_labels_of_the_local_tokens(
    model: OLMoWithPositions, path: str, visibility: str, anchor_id: Optional[int]
) -> None:
    one = scores_of(make_evaluator(model, visibility, anchor_id, path))
    truth = all_subsets(model, visibility, anchor_id)
    singles = one.predictions.singles
    assert singles.kl_from_short_WI is not None
    for w, sizes in enumerate(SIZES):
        costs = [truth.cost(w, {i}) for i in range(len(sizes))] + [np.nan] * (6 - len(sizes))
        assert singles.kl_from_short_WI[w].tolist() == pytest.approx(costs, abs=2e-5, nan_ok=True)


@DEFINITIONS
def test_a_drawn_label_has_its_own_choice_losses_and_costs(
    model: OLMoWithPositions, visibility: str, anchor_id: Optional[int]
) -> None:
    one = scores_of(make_evaluator(model, visibility, anchor_id, "compact"))
    truth, drawn = all_subsets(model, visibility, anchor_id), one.of_label(1)
    measured = measure_context(one, SETTINGS)
    (resampled,) = measured.resampled
    assert resampled.label_ids_W.tolist() == drawn.labels_W.tolist()
    assert set(resampled.outcomes) == {name for name in SELECTORS if SELECTORS[name].sees_target} | {"random"}
    for (w, sizes), (name, outcome) in itertools.product(enumerate(SIZES), resampled.outcomes.items()):
        label = int(drawn.labels_W[w])
        assert outcome.kl_sparse_WK is None and outcome.kl_short_to_sparse_WK is not None
        for n, k in enumerate(KS):
            visible = set(outcome.groups_WS[w, :k].tolist()) - {-1}
            assert outcome.loss_sparse_WK[w, n] == pytest.approx(truth.loss(w, visible, label), abs=2e-5), name
            assert outcome.kl_short_to_sparse_WK[w, n] == pytest.approx(truth.cost(w, visible), abs=2e-5), name
        best = min(range(len(sizes)), key=lambda i: truth.loss(w, {i}, label))
        assert name not in ("unmask-one", "greedy") or outcome.groups_WS[w, 0] == best
    of_target = measured.outcomes["random"]
    assert np.array_equal(of_target.groups_WS, resampled.outcomes["random"].groups_WS)
    assert of_target.kl_short_to_sparse_WK is None


@pytest.mark.parametrize("path", PATHS)
def test_groups_of_one_token_are_tokens_bit_for_bit(model: OLMoWithPositions, path: str) -> None:
    evaluator = make_evaluator(model, "hidden", None, path)
    whole = [measure_context(scores_of(evaluator, groups), SETTINGS) for groups in (None, single_tokens(W, M))]
    tokens, blocks = whole
    for name, outcome in tokens.outcomes.items():
        for field in dataclasses.fields(outcome):
            assert np.array_equal(getattr(outcome, field.name), getattr(blocks.outcomes[name], field.name)), name


def test_full_length_is_what_groups_and_local_tokens_add_up_to() -> None:
    assert all(sum(sizes) == M == FULL - LOCAL for sizes in SIZES)
