"""Selectors on a model whose planted token they must find, and on answers by hand; ``reference`` defines all of their scores."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scored import GROUPS, TOKENS, W, planted_windows, reader, scores_of
from transformers_models import BOS

from olmo_sparsity.selectors import ALL_SELECTORS, CONTROLS, SELECTORS, rank

FINDING = ["unmask-one", "kl", "mask-one", "greedy", "greedy-kl", "gradient", "attention", "lasso"]
PLANTED = [(name, visibility) for name in FINDING for visibility in ("hidden", "contextual")]
SETTINGS = SimpleNamespace(k=[1, 4], lasso_masks=12)


def score(name: str, **answers: Any) -> list[float]:
    """The scores of one window whose answers are given, so that no model runs."""
    found: list[float] = SELECTORS[name].function(SimpleNamespace(num_windows=1, **answers))[0].tolist()  # type: ignore[arg-type]
    return found


@pytest.mark.parametrize(("name", "visibility"), [*PLANTED, ("greedy-patching", "contextual")])
def test_a_planted_token_is_found(name: str, visibility: str) -> None:
    tokens_WT, labels_WA, places_W = planted_windows()
    scores = scores_of(reader(), tokens_WT=tokens_WT, labels_WA=labels_WA, visibility=visibility).for_label(0)
    assert (scores.loss_short - scores.loss_long).min() > 1  # it is worth finding
    assert rank(SELECTORS[name].function(scores))[:, 0].tolist() == places_W.tolist()


def forward(name: str, values: Any, *, num_windows: int = 1, many: int = 4, max_k: int = 3) -> list[list[float]]:
    """The scores of a forward selection where a function of window and visible set gives (loss, divergence)."""

    def evaluate(shown_WNI: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        sets = [[set(np.flatnonzero(shown)) for shown in of] for of in shown_WNI]
        found = np.array([[values(w, shown) for shown in of] for w, of in enumerate(sets)], dtype=float)
        return found[..., 0], found[..., 1]

    s: Any = SimpleNamespace(evaluate=evaluate, num_windows=num_windows, num_candidates=many, max_k=max_k)
    found: list[list[float]] = SELECTORS[name].function(s).tolist()
    return found


def test_forward_selection_takes_what_helps_most_beside_what_was_taken() -> None:
    def values(w: int, shown: set[int]) -> tuple[float, float]:  # 0 and 1 say the same
        loss = 9 - 5 * bool(shown & {0, 1}) - 3 * (2 in shown) - 1 * (3 in shown)
        return loss, 9 - 5 * (3 in shown) - 2 * (2 in shown) - 1 * (w in shown)

    assert forward("greedy", values, num_windows=2) == [[0, 3, 2, 1]] * 2  # of equal ones the nearer
    assert forward("greedy-kl", values, num_windows=2) == [[1, 0, 2, 3], [0, 1, 2, 3]]


def test_forward_selection_keeps_the_order_of_its_steps_where_gains_rise() -> None:
    def together(w: int, shown: set[int]) -> tuple[float, float]:  # the second step gains more than the first
        return 9 - 0.1 * (1 in shown) - 8 * (shown >= {1, 2}), 0.0

    assert forward("greedy", together, many=3, max_k=2) == [[0, 2, 1]]
    assert forward("greedy", lambda w, shown: (-sum(shown), 0.0), many=2, max_k=5) == [
        [4, 5]
    ]  # ends with the candidates


@pytest.mark.parametrize(("many", "scores"), [(9, [8, 7, 6, 5, 4, 3, 2, 1, 0]), (5, [8, 7, 6, 5, 4])])
def test_patching_takes_1_1_2_and_4_candidates_in_rounds(many: int, scores: list[float]) -> None:
    asked: list[list[int]] = []

    def beside(shown_WI: np.ndarray) -> np.ndarray:
        asked.append(np.flatnonzero(shown_WI[0]).tolist())
        return np.arange(many, dtype=float)[None]

    assert score("greedy-patching", patching_beside=beside, num_candidates=many, max_k=8) == scores
    assert asked == [[], [0], [0, 1], [0, 1, 2, 3]]


def test_patching_estimates_again_beside_what_was_taken() -> None:
    def beside(shown_WI: np.ndarray) -> np.ndarray:  # 1 says the same as 0
        return np.array([[0.0, 1, -1] if shown_WI.any() else [-3, -2.9, -1]])

    assert score("greedy-patching", patching_beside=beside, num_candidates=3, max_k=2) == [2, 0, 1]


def test_a_gradient_has_the_sign_of_the_gain() -> None:
    tokens_WT, labels_WA, places_W = planted_windows()
    other_WA = (labels_WA - 9) % 4 + 10  # the answer of another planted token, which the planted one makes less likely
    of = scores_of(reader(), tokens_WT=tokens_WT, labels_WA=torch.cat([labels_WA, other_WA], dim=1))
    right, wrong = (SELECTORS["gradient"].function(of.for_label(label))[np.arange(8), places_W] for label in (0, 1))
    assert (right > 0).all() and (wrong < 0).all()


def test_lasso_fits_the_weights_of_a_linear_loss() -> None:
    rng = np.random.default_rng(0)
    sets_NI, weights_I = rng.random((400, 6)) < 0.5, np.array([2.0, 0, -1, 0, 0, 0.5])
    found = score("lasso", lasso_sets=sets_NI[None], lasso_losses=7 - sets_NI[None] @ weights_I, num_candidates=6)
    assert found == pytest.approx(weights_I, abs=0.05)
    assert np.abs(np.array(found)[[1, 3, 4]]).max() < 1e-9


def test_controls_choose_without_looking() -> None:
    drawn, nearest = (SELECTORS[name].function(scores_of()) for name in ("random", "nearest"))
    assert rank(nearest).tolist() == [list(range(15, -1, -1))] * W
    assert (SELECTORS["random"].function(scores_of(visibility="contextual")) == drawn).all()
    assert (SELECTORS["random"].function(scores_of(seed=1)) != drawn).all()
    first = [rank(SELECTORS["random"].function(scores_of(seed=seed)))[0, 0] for seed in range(40)]
    assert len(set(first)) > 8


@pytest.mark.parametrize(("anchor_id", "sinks"), [(None, 4), (BOS, 3)])
def test_streaming_llm_keeps_the_first_4_and_then_the_nearest(anchor_id: Any, sinks: int) -> None:
    order = rank(SELECTORS["streaming-llm"].function(scores_of(spans=TOKENS, anchor_id=anchor_id)))
    assert order.tolist() == [[*range(sinks), *range(15, sinks - 1, -1)]] * W
    order = rank(SELECTORS["streaming-llm"].function(scores_of(spans=GROUPS, anchor_id=anchor_id)))
    assert order[0].tolist() == [0, 1, 4, 3, 2]  # the groups that begin among the first 4 tokens


def test_costs_in_passes_over_one_row_for_9_candidates_and_4_of_them() -> None:
    steps = 9 + 8 + 7 + 6
    expected = {
        **{"unmask-one": 9 + 1, "kl": 9 + 2, "mask-one": 9 + 1, "greedy": steps, "greedy-kl": steps + 1},
        **{"gradient": 3, "attention": 1, "greedy-patching": 3 * 3 + 1, "lasso": 12},
        **dict.fromkeys(["h2o", "snapkv", "key-norm", "quest"], 1),
        **dict.fromkeys(["random", "nearest", "streaming-llm", "same-token", "rarest", "bm25", "sentence-start"], 0),
    }
    assert {name: one.num_evaluations(9, SETTINGS) for name, one in SELECTORS.items()} == expected
    assert SELECTORS["greedy"].num_evaluations(3, SETTINGS) == 3 + 2 + 1  # fewer candidates than k


def test_all_stands_for_the_selectors_that_fit_every_visibility() -> None:
    assert set(CONTROLS) == {"random", "nearest"} < set(ALL_SELECTORS)
    assert (
        {name for name in SELECTORS if SELECTORS[name].needs_entries}
        == {*("greedy-patching", "h2o", "snapkv", "streaming-llm", "key-norm", "quest")}
        <= set(SELECTORS) - set(ALL_SELECTORS)
    )


def test_among_equal_scores_the_nearer_comes_first_and_no_score_last() -> None:
    assert rank(np.array([[1.0, 3.0, 3.0, np.nan, 2.0]])).tolist() == [[2, 1, 4, 0, 3]]
    assert rank(np.zeros((2, 3))).tolist() == [[2, 1, 0]] * 2
