"""Every selector against its definition, by brute force with the float64 reference; costs, ties, controls."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scored_windows import MASKS, MAX_K, W, make_scores, with_other_targets
from tiny_models import NORMED, VOCAB, build
from tiny_windows import M

from olmo_sparsity.measure.visible.visibility import Visibility
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.records.selectors import SELECTORS, ScoringSize, rank


@pytest.fixture(scope="module")
def model() -> OLMoWithPositions:
    return build(NORMED).eval()


@settings(deadline=None)
@given(arrays(np.float64, (3, 9), elements=st.integers(-2, 2).map(float)))
def test_rank_is_by_score_and_then_by_nearness(scores: np.ndarray) -> None:
    for row, ranked in zip(scores, rank(scores), strict=True):
        assert ranked.tolist() == sorted(range(9), key=lambda j: (-row[j], -j))


@pytest.mark.parametrize("name", SELECTORS)
def test_scores_do_not_depend_on_how_many_windows_share_a_pass(model: OLMoWithPositions, name: str) -> None:
    together, apart = (
        SELECTORS[name].score(make_scores(model, num=2, visibility="contextual", batch_tokens=tokens))
        for tokens in (10**6, 1)
    )
    assert together.shape == (2, M)
    assert apart == pytest.approx(together, rel=1e-5, abs=1e-5)


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
