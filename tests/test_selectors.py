from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from olmo_sparsity import config
from olmo_sparsity.selectors import SELECTORS, Scored, rank


@given(arrays(np.float64, (3, 9), elements=st.integers(-2, 2).map(float)))
def test_rank_is_by_score_and_then_by_nearness(scores: np.ndarray) -> None:
    for row, ranked in zip(scores, rank(scores), strict=True):
        assert ranked.tolist() == sorted(range(9), key=lambda j: (-row[j], -j))


def scored(context: str = "real", seed: int = 0, num: int = 50, m: int = 6) -> Scored:
    rng = np.random.default_rng(1)
    return Scored(
        window_ids=np.arange(num), num_long_range=m, context=context, seed=seed, loss_short=rng.random(num),
        loss_single=rng.random((num, m)), kl_short=rng.random(num), kl_single=rng.random((num, m)),
    )  # fmt: skip


def test_the_literal_dictionary_names_what_the_configuration_allows() -> None:
    assert tuple(SELECTORS) == config.SELECTORS


def test_scores_are_their_definitions() -> None:
    s = scored()
    assert s.loss_single is not None
    assert s.kl_short is not None
    assert s.kl_single is not None
    for w in range(3):
        for j in range(6):
            assert SELECTORS["unmask-one"].score(s)[w, j] == s.loss_short[w] - s.loss_single[w, j]
            assert SELECTORS["kl"].score(s)[w, j] == s.kl_short[w] - s.kl_single[w, j]
    assert rank(SELECTORS["nearest"].score(s))[0].tolist() == [5, 4, 3, 2, 1, 0]


def test_random_is_uniform_and_a_function_of_seed_window_and_context() -> None:
    score = SELECTORS["random"].score
    assert (score(scored()) == score(scored())).all()
    part = Scored(window_ids=np.arange(10, 20), num_long_range=6, context="real", seed=0, loss_short=np.zeros(10))
    assert (score(part) == score(scored())[10:20]).all()
    for other in (scored(context="null"), scored(seed=1)):
        assert (score(other) != score(scored())).all()
    first = rank(score(scored(num=6000)))[:, 0]
    assert np.bincount(first) == pytest.approx(np.full(6, 1000), abs=150)


def test_costs() -> None:
    costs = {name: selector.num_evaluations(64) for name, selector in SELECTORS.items()}
    assert costs == {"unmask-one": 65, "kl": 66, "random": 0, "nearest": 0}
    assert [name for name, selector in SELECTORS.items() if selector.sees_target] == ["unmask-one"]
