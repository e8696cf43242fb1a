"""Selectors that estimate: gradients, attention, patching in rounds, a sparse linear model; and the controls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from scored import W, planted_windows, reader, scores_of

from olmo_sparsity.selectors import CONTROLS, SELECTORS, rank


@pytest.mark.parametrize("name", ["gradient", "attention", "lasso", "greedy-patching"])
def test_a_planted_token_is_found(name: str) -> None:
    tokens_WT, labels_WA, places_W = planted_windows()
    of = scores_of(reader(), tokens_WT=tokens_WT, labels_WA=labels_WA, visibility="contextual")
    assert rank(SELECTORS[name].score(of.of_label(0)))[:, 0].tolist() == places_W.tolist()


def test_a_gradient_has_the_sign_of_the_gain() -> None:
    """A token that raises the loss of its label has a score below 0."""
    tokens_WT, labels_WA, places_W = planted_windows()
    other_WA = (labels_WA - 9) % 4 + 10  # the answer of another planted token
    of = scores_of(reader(), tokens_WT=tokens_WT, labels_WA=torch.cat([labels_WA, other_WA], dim=1))
    of_place = [SELECTORS["gradient"].score(of.of_label(label))[np.arange(len(places_W)), places_W] for label in (0, 1)]
    assert (of_place[0] > 0).all() and (of_place[1] < 0).all()


def patching(effects: Any, *, num_candidates: int, max_k: int) -> tuple[np.ndarray, list[list[int]]]:
    """The scores of ``greedy-patching`` where effects are given, and the candidates beside which it asked."""
    asked: list[list[int]] = []

    def beside(shown_WI: np.ndarray) -> np.ndarray:
        asked.append(np.flatnonzero(shown_WI[0]).tolist())
        return np.array([effects(asked[-1])], dtype=float)

    s = SimpleNamespace(patching_beside=beside, num_windows=1, num_candidates=num_candidates, max_k=max_k)
    found: np.ndarray = SELECTORS["greedy-patching"].score(s)  # type: ignore[arg-type]
    return found, asked


def test_patching_takes_1_1_2_and_4_candidates_in_rounds() -> None:
    scores, asked = patching(lambda shown: np.arange(9) - 4.0, num_candidates=9, max_k=8)
    assert asked == [[], [0], [0, 1], [0, 1, 2, 3]]
    assert scores.tolist() == [[8, 7, 6, 5, 4, 3, 2, 1, 0]]  # what lowers the divergence most comes first
    scores, asked = patching(lambda shown: np.arange(5.0), num_candidates=5, max_k=8)
    assert scores.tolist() == [[8, 7, 6, 5, 4]] and asked == [[], [0], [0, 1], [0, 1, 2, 3]]


def test_patching_asks_again_beside_what_was_taken() -> None:
    scores, _ = patching(lambda shown: [-3, -2.9, -1] if not shown else [0, 1, -1], num_candidates=3, max_k=2)
    assert rank(scores)[0, :2].tolist() == [0, 2]  # 1 says the same as 0


def test_lasso_fits_weights_of_a_linear_loss() -> None:
    """Against the weights that the losses were made of, shrunk a little; those of no weight are 0."""
    rng = np.random.default_rng(0)
    sets_WNI, weights_I = rng.random((W, 400, 6)) < 0.5, np.array([2.0, 0, -1, 0, 0, 0.5])
    losses_WN = 7 - sets_WNI @ weights_I
    s: Any = SimpleNamespace(lasso_sets=sets_WNI, lasso_losses=losses_WN, num_windows=W, num_candidates=6)
    scores = SELECTORS["lasso"].score(s)
    assert scores == pytest.approx(np.tile(weights_I, (W, 1)), abs=0.05)
    assert (np.abs(scores[:, [1, 3, 4]]) < 1e-9).all()


def test_controls_choose_without_looking() -> None:
    assert set(CONTROLS) == {"random", "nearest"}
    of = scores_of()
    assert rank(SELECTORS["nearest"].score(of)).tolist() == [list(range(15, -1, -1))] * W
    drawn = SELECTORS["random"].score(of)
    assert (SELECTORS["random"].score(scores_of(visibility="contextual")) == drawn).all()
    assert (SELECTORS["random"].score(scores_of(seed=1)) != drawn).all()
    assert len(np.unique(drawn)) == drawn.size and drawn.min() >= 0 and drawn.max() < 1
    first = [rank(SELECTORS["random"].score(scores_of(seed=seed)))[0, 0] for seed in range(40)]
    assert len(set(first)) > 8
