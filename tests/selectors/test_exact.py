"""Selectors that evaluate visible sets exactly, and forward selection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from scored import by_hand, planted_windows, reader, scores_of

from olmo_sparsity.selectors import SELECTORS, num_evaluations, rank


def test_scores_are_differences_of_losses_and_divergences() -> None:
    s = by_hand(
        loss_short=np.array([3.0, 2.0]),
        loss_long=np.array([1.0, 1.5]),
        loss_single=np.array([[2.0, 4.0], [2.0, 1.0]]),
        loss_without=np.array([[1.0, 3.0], [1.0, 1.5]]),
        kl_short=np.array([5.0, 1.0]),
        kl_single=np.array([[0.5, 6.0], [1.0, 0.0]]),
    )
    assert SELECTORS["unmask-one"].score(s).tolist() == [[1, -1], [0, 1]]
    assert SELECTORS["mask-one"].score(s).tolist() == [[0, 2], [-0.5, 0]]
    assert SELECTORS["kl"].score(s).tolist() == [[4.5, -1], [0, 1]]


def of_values(values: Any, *, num_windows: int = 1, num_candidates: int = 4, max_k: int = 3) -> Any:
    """Scores of windows where a function of the window and the visible set gives (loss, divergence)."""

    def evaluate(shown_WNI: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        found = np.array(
            [[values(w, set(np.flatnonzero(shown))) for shown in of] for w, of in enumerate(shown_WNI)], dtype=float
        )
        return found[..., 0], found[..., 1]

    return SimpleNamespace(evaluate=evaluate, num_windows=num_windows, num_candidates=num_candidates, max_k=max_k)


def test_forward_selection_takes_what_helps_most_beside_what_was_taken() -> None:
    """0 and 1 say the same; 2 says something else, and less. By divergence another candidate helps most."""

    def values(w: int, shown: set[int]) -> tuple[float, float]:
        loss = 9 - 5 * bool(shown & {0, 1}) - 3 * (2 in shown) - 1 * (3 in shown)
        return loss, 9 - 5 * (3 in shown) - 2 * (2 in shown) - 1 * (w in shown)

    s = of_values(values, num_windows=2)
    assert SELECTORS["greedy"].score(s).tolist() == [[0, 3, 2, 1]] * 2  # of equal ones the nearer
    assert SELECTORS["greedy-kl"].score(s).tolist() == [[1, 0, 2, 3], [0, 1, 2, 3]]


def test_forward_selection_keeps_its_steps_where_gains_rise() -> None:
    """Two candidates that help together only: the second step gains more than the first, and is still second."""
    s = of_values(lambda w, shown: (9 - 0.1 * (1 in shown) - 8 * (shown >= {1, 2}), 0.0), num_candidates=3, max_k=2)
    assert rank(SELECTORS["greedy"].score(s))[0, :2].tolist() == [1, 2]


def test_forward_selection_ends_with_the_candidates() -> None:
    s = of_values(lambda w, shown: (-sum(shown), 0.0), num_candidates=2, max_k=5)
    assert SELECTORS["greedy"].score(s).tolist() == [[4, 5]]


@pytest.mark.parametrize("name", ["unmask-one", "mask-one", "kl", "greedy", "greedy-kl"])
@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
def test_a_planted_token_is_found(name: str, visibility: str) -> None:
    tokens_WT, labels_WA, places_W = planted_windows()
    scores = scores_of(reader(), tokens_WT=tokens_WT, labels_WA=labels_WA, visibility=visibility).of_label(0)
    assert (scores.loss_short - scores.loss_long).min() > 1  # it is worth finding
    assert rank(SELECTORS[name].score(scores))[:, 0].tolist() == places_W.tolist()


def test_what_each_selector_costs() -> None:
    """In passes over one row, of 9 candidates at k up to 4."""
    settings, steps = SimpleNamespace(k=[1, 4], lasso_masks=12), 9 + 8 + 7 + 6
    expected = {
        **{"unmask-one": 9 + 1, "kl": 9 + 2, "mask-one": 9 + 1, "greedy": steps, "greedy-kl": steps + 1},
        **{"gradient": 3, "attention": 1, "greedy-patching": 3 * 3 + 1, "lasso": 12},
        **dict.fromkeys(["h2o", "snapkv", "key-norm", "quest"], 1),
        **dict.fromkeys(["random", "nearest", "streaming-llm", "same-token", "rarest", "bm25", "sentence-start"], 0),
    }
    found = {name: num_evaluations(name, 9, settings=settings) for name, one in SELECTORS.items() if one.source is None}
    assert found == expected
    few = SimpleNamespace(k=[1, 5], lasso_masks=12)
    assert [num_evaluations("greedy", num, settings=few) for num in (3, 5)] == [3 + 2 + 1, 5 + 4 + 3 + 2 + 1]


def test_of_equal_scores_the_nearer_comes_first_and_of_none_last() -> None:
    assert rank(np.array([[1.0, 3.0, 3.0, np.nan, 2.0]])).tolist() == [[2, 1, 4, 0, 3]]
    assert rank(np.zeros((2, 3))).tolist() == [[2, 1, 0]] * 2
