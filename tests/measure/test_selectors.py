"""Every selector against its definition, by brute force with the float64 reference; costs, ties, controls."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import reference
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scored_windows import MASKS, MAX_K, W, make_scores, with_other_targets
from tiny_models import KINDS, NORMED, VOCAB, build
from tiny_windows import FULL, LOCAL, PATHS, M, windows

from olmo_sparsity.config import ModelConfig
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import mask_losses, target_losses
from olmo_sparsity.measure.visible.visibility import Visibility, attention_mask, gate_bias
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.records.selectors import CONTROLS, SELECTORS, ScoringSize, in_legend_order, main_among, rank

LASSO_ALPHA = 0.01  # of ContextCite, on standardised masks


class Definition:
    """One window of a model, evaluated in float64, one visible set at a time."""

    def __init__(self, model: OLMoWithPositions, w: int):
        tokens, targets = windows(W)
        self.model, self.tokens, self.target = model, tokens[w].tolist(), int(targets[w])
        self.known: dict[frozenset[int], float] = {}

    def log_p(self, visible: set[int], gates: dict[int, float] | None = None) -> np.ndarray:
        seen = visible | set(range(M, FULL))
        return reference.evaluate(self.model, self.tokens, list(range(FULL)), seen, gates)[0]

    def loss(self, visible: set[int]) -> float:
        key = frozenset(visible)
        if key not in self.known:
            self.known[key] = -float(self.log_p(visible)[self.target])
        return self.known[key]


@pytest.fixture(scope="module")
def model() -> OLMoWithPositions:
    return build(NORMED).eval()


@settings(deadline=None)
@given(arrays(np.float64, (3, 9), elements=st.integers(-2, 2).map(float)))
def test_rank_is_by_score_and_then_by_nearness(scores: np.ndarray) -> None:
    for row, ranked in zip(scores, rank(scores), strict=True):
        assert ranked.tolist() == sorted(range(9), key=lambda j: (-row[j], -j))


def test_what_is_shared_is_its_definition(model: OLMoWithPositions) -> None:
    one = make_scores(model)
    for w in range(W):
        truth = Definition(model, w)
        p, short = truth.log_p(set(range(M))), truth.log_p(set())
        assert one.loss_short_W[w] == pytest.approx(truth.loss(set()), abs=1e-5)
        assert one.loss_long_W[w] == pytest.approx(truth.loss(set(range(M))), abs=1e-5)
        assert one.kl_short_W[w] == pytest.approx((np.exp(p) * (p - short)).sum(), abs=1e-5)


def test_unmask_one_mask_one_and_kl(model: OLMoWithPositions) -> None:
    one = make_scores(model)
    scores = {name: SELECTORS[name].score(one) for name in ("unmask-one", "mask-one", "kl")}
    everything = set(range(M))
    for w in range(W):
        truth = Definition(model, w)
        p, short = truth.log_p(everything), truth.log_p(set())
        for j in range(M):
            assert scores["unmask-one"][w, j] == pytest.approx(truth.loss(set()) - truth.loss({j}), abs=2e-5)
            assert scores["mask-one"][w, j] == pytest.approx(
                truth.loss(everything - {j}) - truth.loss(everything), abs=2e-5
            )
            moved = (np.exp(p) * (truth.log_p({j}) - short)).sum()
            assert scores["kl"][w, j] == pytest.approx(moved, abs=2e-5)


@KINDS
def test_gradient_is_the_derivative_at_gate_0(kind: ModelConfig) -> None:
    model = build(kind).eval()
    scores = SELECTORS["gradient"].score(make_scores(model))
    step = 1e-7
    for w, j in itertools.product(range(2), (0, 3, M - 1)):
        truth = Definition(model, w)
        gates = {i: 0.0 for i in range(M)}
        at_0 = truth.log_p(set(range(M)), gates)[truth.target]
        once = truth.log_p(set(range(M)), {**gates, j: step})[truth.target]
        twice = truth.log_p(set(range(M)), {**gates, j: 2 * step})[truth.target]
        slope = (4 * once - twice - 3 * at_0) / (2 * step)  # of the log-probability; exact to second order
        assert at_0 == pytest.approx(-truth.loss(set()), abs=1e-9)  # gate 0 hides
        assert scores[w, j] == pytest.approx(slope, rel=2e-3, abs=1e-4)
    assert np.abs(scores).max() > 0.05


@pytest.mark.parametrize("name", SELECTORS)
def test_scores_do_not_depend_on_how_many_windows_share_a_pass(model: OLMoWithPositions, name: str) -> None:
    together, apart = (
        SELECTORS[name].score(make_scores(model, num=2, visibility="contextual", batch_tokens=tokens))
        for tokens in (10**6, 1)
    )
    assert together.shape == (2, M)
    assert apart == pytest.approx(together, rel=1e-5, abs=1e-5)


@KINDS
def test_attention_is_the_mean_over_heads_and_layers(kind: ModelConfig) -> None:
    model = build(kind).eval()
    scores = SELECTORS["attention"].score(make_scores(model))
    tokens, _ = windows(W)
    positions = torch.arange(FULL).expand(W, -1)
    prefix = model.keys_values(tokens[:, :M], positions[:, :M])
    _, after = model.last_logits_and_attention(tokens[:, M:], positions[:, M:], prefix=prefix)
    for w in range(W):
        _, attention = reference.evaluate(model, tokens[w].tolist(), list(range(FULL)), set(range(FULL)))
        assert scores[w] == pytest.approx(attention[:M], abs=1e-5)
        assert after[w].detach().numpy() == pytest.approx(attention, abs=1e-5)
        assert attention.sum() == pytest.approx(1.0)


def test_greedy_takes_the_best_next_position_each_time(model: OLMoWithPositions) -> None:
    ranked = rank(SELECTORS["greedy"].score(make_scores(model)))[:, :MAX_K]
    for w in range(W):
        truth = Definition(model, w)
        taken: list[int] = []
        for _ in range(MAX_K):
            left = [j for j in range(M) if j not in taken]
            taken.append(min(left, key=lambda j: truth.loss({*taken, j})))
        assert ranked[w].tolist() == taken
    by_single = rank(SELECTORS["unmask-one"].score(make_scores(model)))[:, :MAX_K]
    assert (ranked[:, 0] == by_single[:, 0]).all()
    assert (ranked != by_single).any()  # otherwise this test would not distinguish greedy


def test_greedy_kl_is_forward_selection_on_the_divergence(model: OLMoWithPositions) -> None:
    ranked = rank(SELECTORS["greedy-kl"].score(make_scores(model)))[:, :MAX_K]
    for w in range(W):
        truth = Definition(model, w)
        log_p = truth.log_p(set(range(M)))
        taken: list[int] = []
        for _ in range(MAX_K):
            divergence_of = {
                j: (np.exp(log_p) * (log_p - truth.log_p({*taken, j}))).sum() for j in range(M) if j not in taken
            }
            taken.append(min(divergence_of, key=lambda j: divergence_of[j]))
        assert ranked[w].tolist() == taken
    by_single = rank(SELECTORS["kl"].score(make_scores(model)))[:, :MAX_K]
    assert (ranked[:, 0] == by_single[:, 0]).all()
    assert (ranked != by_single).any()  # or greedy-kl would show nothing here


def test_lasso_minimises_its_objective(model: OLMoWithPositions) -> None:
    """The losses come from the reference, the minimum from cyclic coordinate descent in numpy."""
    one = make_scores(model)
    keep = one.predictions.lasso_masks_WNI
    assert keep.shape == (W, MASKS, M)
    assert 0.4 < keep.mean() < 0.6
    scores = SELECTORS["lasso"].score(one)
    for w in range(2):
        truth = Definition(model, w)
        losses = np.array([truth.loss(set(np.flatnonzero(row).tolist())) for row in keep[w]])
        spread = keep[w].std(axis=0)
        x = (keep[w] - keep[w].mean(axis=0)) / spread
        y = losses - losses.mean()
        beta = np.zeros(M)
        for _ in range(3000):
            for j in range(M):
                partial = x[:, j] @ (y - x @ beta + x[:, j] * beta[j]) / MASKS
                beta[j] = np.sign(partial) * max(abs(partial) - LASSO_ALPHA, 0.0)
        assert scores[w] == pytest.approx(-beta / spread, abs=2e-3)
        assert np.abs(beta).max() > 0.02


@pytest.mark.parametrize("path", PATHS)
def test_mask_losses_are_those_of_the_sets(model: OLMoWithPositions, path: str) -> None:
    tokens, targets = windows(W)
    rng = np.random.default_rng(0)
    keep = rng.random((W, 9, M)) < rng.random((W, 9, 1))
    keep[0, 0], keep[1, 1] = False, True
    evaluator = Evaluator(model, LOCAL, path=path, batch_tokens=100)
    losses = mask_losses(evaluator, tokens, labels_WA=targets[:, None], visible_WNM=torch.from_numpy(keep))[:, :, 0]
    for w, n in itertools.product(range(W), range(9)):
        visible = torch.from_numpy(np.flatnonzero(keep[w, n]))[None, None]
        alone, _ = target_losses(evaluator, tokens[[w]], targets_W=targets[[w]], visible_WNS=visible)
        assert float(losses[w, n]) == pytest.approx(float(alone), abs=1e-5)


def test_gates_of_0_and_1_hide_and_show(model: OLMoWithPositions) -> None:
    tokens, _ = windows(5)
    positions = torch.arange(FULL).expand(5, -1)
    visible = torch.from_numpy(np.random.default_rng(0).random((5, FULL)) < 0.5)
    log_gate = torch.zeros(5, FULL).masked_fill(~visible, -torch.inf)
    gates = gate_bias(log_gate, local_len=LOCAL, visibility="hidden")
    mask = attention_mask(visible, local_len=LOCAL, visibility="hidden")
    gated, masked = (model.last_logits(tokens, positions, bias_BTT=bias) for bias in (gates, mask))
    assert torch.allclose(gated, masked, atol=1e-5)


def test_random_is_uniform_and_a_function_of_seed_window_and_context(model: OLMoWithPositions) -> None:
    score = SELECTORS["random"].score
    whole = score(make_scores(model, num=50))
    assert (whole == score(make_scores(model, num=50))).all()
    assert (score(make_scores(model, num=10, window_ids_W=np.arange(10, 20))) == whole[10:20]).all()
    for other in ({"context": "null"}, {"seed": 1}):
        assert (score(make_scores(model, num=50, **other)) != whole).all()
    first = rank(score(make_scores(model, num=3200)))[:, 0]
    assert np.bincount(first, minlength=M) == pytest.approx(np.full(M, 200), abs=75)


def test_masks_of_lasso_differ_between_windows_and_contexts(model: OLMoWithPositions) -> None:
    real, null, second = (
        make_scores(model, **batch).predictions.lasso_masks_WNI
        for batch in ({}, {"context": "null"}, {"num": 1, "window_ids_W": np.array([1])})
    )
    assert (real != null).any()
    assert (real[0] != real[1]).any()
    assert (second[0] == real[1]).all()


def test_nearest(model: OLMoWithPositions) -> None:
    assert rank(SELECTORS["nearest"].score(make_scores(model)))[0].tolist() == list(range(M))[::-1]


class Counted:
    """A model that counts the rows it runs."""

    def __init__(self, model: OLMoWithPositions):
        self.model, self.rows = model, 0

    def __getattr__(self, name: str) -> object:
        value = getattr(self.model, name)
        if not callable(value):
            return value

        def call(tokens: torch.Tensor, *rest: torch.Tensor, **named: torch.Tensor) -> torch.Tensor:
            bias = named.get("bias_BTT")
            is_differentiated = name == "attention_states" or (bias is not None and bias.requires_grad)
            if name != "keys_values":  # of the far tokens, each alone: no row
                self.rows += len(tokens) * (3 if is_differentiated else 1)  # the backward pass counts twice
            return value(tokens, *rest, **named)

        return call


def visibility_of(name: str) -> Visibility:
    """Return a definition of visible under which a selector can choose."""
    return "contextual" if SELECTORS[name].needs_entries else "hidden"


@pytest.mark.parametrize("name", SELECTORS)
def test_a_selector_costs_what_it_says(model: OLMoWithPositions, name: str) -> None:
    counted = Counted(model)
    one = make_scores(counted, "plain", with_kl=name == "kl", visibility=visibility_of(name))  # type: ignore[arg-type]
    SELECTORS[name].score(one)  # L_short was evaluated before, once per window
    includes_short = name in ("unmask-one", "kl")
    expected = SELECTORS[name].num_evaluations(ScoringSize(M, MAX_K, MASKS))
    assert counted.rows / W == expected + (0 if includes_short else 1)


def test_who_sees_the_target(model: OLMoWithPositions) -> None:
    """Another target changes the scores of the selectors that see it, and no others."""
    for name, selector in SELECTORS.items():
        one = make_scores(model, visibility=visibility_of(name))
        other = with_other_targets(one, VOCAB)
        same = np.array_equal(selector.score(one), selector.score(other))
        assert same is not selector.sees_target, name


def test_the_order_of_legends_and_who_is_shown_where_there_is_little_room() -> None:
    """Those that see the target, those that do not, controls; within each in the order of the tables."""
    names = ["random", "kl", "bm25", "nearest", "greedy", "unmask-one", "attention"]
    assert in_legend_order(names) == ["unmask-one", "greedy", "kl", "attention", "bm25", "random", "nearest"]
    assert set(CONTROLS) == {"random", "nearest"}
    assert main_among([*names, "nobody's"]) == ["random", "kl", "bm25", "unmask-one", "attention"]
