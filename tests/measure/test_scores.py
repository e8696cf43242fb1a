"""What selectors may ask about a batch of windows: sums, shared passes and texts. ``reference`` holds what the numbers are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from defined import FULL, M
from scored import GROUPS, TOKENIZER, TOKENS, W, scores_of, text_store
from transformers_models import BOS

from olmo_sparsity.measure.scores import Scores, UndeclaredTargetError
from olmo_sparsity.progress import listening

spanned = pytest.mark.parametrize("spans", [TOKENS, GROUPS], ids=["tokens", "groups"])
visible = pytest.mark.parametrize("visibility", ["hidden", "contextual"])
CLOSE = 2e-5


def positions(shown_NI: np.ndarray, spans: Any) -> torch.Tensor:
    """The long-range positions of sets of candidates, [N, M]."""
    return torch.from_numpy(np.repeat(shown_NI, [end - first for first, end in spans], axis=1))


@spanned
@visible
def test_estimates_of_candidates_are_sums_over_their_tokens(spans: Any, visibility: str) -> None:
    asked = {
        name: scores_of(spans=of, visibility=visibility).for_label(1)
        for name, of in (("of", spans), ("tokens", TOKENS))
    }

    def sums(values_WM: np.ndarray) -> np.ndarray:
        return np.stack([values_WM[:, first:end].sum(axis=1) for first, end in spans], axis=1)

    assert asked["of"].gradient == pytest.approx(sums(asked["tokens"].gradient), rel=1e-4, abs=1e-4)
    assert asked["of"].attention == pytest.approx(sums(asked["tokens"].attention), abs=1e-5)
    if visibility == "contextual":
        shown_WI = np.zeros((W, len(spans)), dtype=bool)
        shown_WI[:, 1] = True
        shown_WM = positions(shown_WI, spans).numpy()
        per_token = asked["tokens"].patching_beside(shown_WM)
        assert asked["of"].patching_beside(shown_WI) == pytest.approx(sums(per_token), rel=1e-4, abs=1e-4)


def test_what_has_no_value_is_left_out_of_a_sum() -> None:
    values_WM = np.ones((1, M))
    values_WM[0, [0, 1]] = np.nan
    assert scores_of(spans=GROUPS).per_candidate(values_WM)[0].tolist() == pytest.approx(
        [np.nan, 2, 2, 5, 5], nan_ok=True
    )


ASKED: dict[str, Callable[[Scores], Any]] = {
    "loss_short": lambda s: s.loss_short,
    "loss_long": lambda s: s.loss_long,
    "loss_single": lambda s: s.loss_single,
    "loss_without": lambda s: s.loss_without,
    "lasso_losses": lambda s: s.lasso_losses,
    "gradient": lambda s: s.gradient,
    "targets": lambda s: s.targets,
}


@pytest.mark.parametrize("name", ASKED)
def test_labels_share_passes_and_a_blind_selector_is_refused(name: str) -> None:
    scores, ran = scores_of(), []
    with pytest.raises(UndeclaredTargetError, match="for selectors with sees_target=True"):
        ASKED[name](scores.for_label(None))
    first = np.array(ASKED[name](scores.for_label(0)))
    with listening(ran.append):
        second = ASKED[name](scores.for_label(1))
        again = ASKED[name](scores.for_label(0))
    assert ran == [] and (again == first).all() and (second != first).any()


def test_a_blind_selector_has_divergences_of_any_sets_and_no_losses() -> None:
    losses_WN, kl_WN = scores_of().for_label(None).evaluate(np.eye(M, dtype=bool)[None].repeat(W, axis=0))
    assert np.isnan(losses_WN).all() and (kl_WN > 0).all()


def test_everything_visible_is_not_run_again() -> None:
    scores, ran = scores_of(), []
    assert scores.kl_short.min() > 0 and (scores.losses_long_WA > 0).all()
    with listening(ran.append):
        found = scores.read(np.arange(W), np.ones((W, M), dtype=bool))
    assert ran == [] and (found.kl == 0).all() and (found.losses == scores.losses_long_WA).all()
    assert found.kl_from_short == pytest.approx(scores.kl_short_to_long)


def test_attention_is_read_beside_the_full_prediction_where_it_is_needed() -> None:
    needed, ran = scores_of(needs=["attention"]), []
    assert needed.log_p_long_WV == pytest.approx(scores_of().log_p_long_WV, abs=CLOSE)
    with listening(ran.append):
        attention_WM = needed.attention
    assert ran == [] and attention_WM == pytest.approx(scores_of().attention, abs=1e-6)
    assert (attention_WM > 0).all() and (attention_WM.sum(axis=1) < 1).all()


def test_one_pass_serves_all_that_is_needed_of_layers_and_heads() -> None:
    scores, ran = scores_of(needs=["keys", "queries", "observed_attention"]), []
    assert scores.observed("keys").shape == (W, 2, 2, M, 8)
    with listening(ran.append):
        queries, attention = scores.observed("queries"), scores.observed("observed_attention")
    assert (queries.shape, attention.shape, ran) == ((W, 2, 4, 8), (W, 2, 4, M), [])
    one = scores.observed("attention_of_heads")  # was not said to be needed: another pass
    assert one.mean(axis=(1, 2)) == pytest.approx(scores.attention, abs=1e-6)


def test_the_text_of_the_windows() -> None:
    ids = TOKENIZER.encode("No. It is so. Why").ids
    tokens_WT = torch.tensor([[*ids, *TOKENIZER.encode(" now?").ids][:FULL]])
    assert tokens_WT.shape == (1, FULL)
    for anchor_id, first in ((None, 0), (BOS, 1)):
        scores = scores_of(tokens_WT=tokens_WT, labels_WA=tokens_WT[:, :1], spans=GROUPS, anchor_id=anchor_id)
        assert "".join(scores.texts[0]) == "No. It is so. Why now?" and len(scores.texts[0]) == FULL
        assert scores.token_ids.tolist() == tokens_WT.tolist()
        assert scores.first_positions.tolist() == [first + begin for begin, _ in GROUPS]
        starts = np.flatnonzero(scores.sentence_starts[0])
        assert ["".join(scores.texts[0][i : i + 3]).strip() for i in starts] == ["It", "Why"]
        text = "".join(text.decode(document) for text, document in ((TOKENIZER, of) for of in documents()))
        assert scores.frequencies[0].tolist() == [text.count(letter) for letter in scores.texts[0]]


def documents() -> list[list[int]]:
    store = text_store()
    pairs = zip(store.begins_G.tolist(), store.ends_G.tolist(), strict=True)
    return [store.tokens[begin : end - 1].tolist() for begin, end in pairs]


def test_random_numbers_are_a_function_of_seed_purpose_window_and_context() -> None:
    def draws(purpose: int = 3, **of: Any) -> list[float]:
        return [generator.random() for generator in scores_of(**of).generators(purpose)]

    first = draws(window_ids=[7, 8, 9])
    assert draws(window_ids=[9, 7, 8], visibility="contextual") == [first[2], first[0], first[1]]
    others = [draws(window_ids=[7, 8, 9], **of) for of in ({"seed": 1}, {"context": "null"}, {"purpose": 4})]
    assert len({*first, *others[0], *others[1], *others[2]}) == 12
