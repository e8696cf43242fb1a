"""Forward selection by attribution patching: estimates by their definition, rounds by hand, and a measurement."""

from __future__ import annotations

import dataclasses
from typing import Optional

import numpy as np
import pytest
import torch
import transformers_models
from attention_outputs import OutputsOfAttention
from tiny_models import NORMED, PLAIN, VOCAB, build
from tiny_windows import FULL, LOCAL, M, windows

from olmo_sparsity.config import InfluenceConfig, ModelConfig
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import log_probs, short_log_probs
from olmo_sparsity.measure.visible.window_batch import NO_GROUP, TokenGroups, WindowBatch
from olmo_sparsity.measure.work import num_evaluations
from olmo_sparsity.progress import listening
from olmo_sparsity.records.measured import MeasuredLengths
from olmo_sparsity.records.selectors import SELECTORS, rank

NAME, ANCHOR = "greedy-patching", 9


def scores_of(
    evaluator: Evaluator, *, chosen: slice = slice(0, 3), max_k: int = 4, groups: Optional[TokenGroups] = None
) -> WindowScores:
    tokens_WT, targets_W = (x[chosen] for x in windows(3))
    batch = WindowBatch(tokens_WT, targets_W, window_ids_W=np.arange(3)[chosen], context="real", seed=0)
    predictions = Predictions(
        evaluator, batch, log_p_short_WV=short_log_probs(evaluator, tokens_WT), with_kl=True, with_attention=True
    )
    if groups is not None:
        predictions = dataclasses.replace(predictions)
        predictions.__dict__["groups"] = groups
    return WindowScores(predictions, max_k=max_k)


def contextual(kind: ModelConfig = NORMED, anchor_id: Optional[int] = ANCHOR, **options: object) -> Evaluator:
    return Evaluator(build(kind).eval(), LOCAL, visibility="contextual", anchor_id=anchor_id, **options)  # type: ignore[arg-type]


@pytest.mark.parametrize("anchor_id", [None, ANCHOR], ids=["no anchor", "anchor"])
@pytest.mark.parametrize("kind", [PLAIN, NORMED], ids=["olmo1", "qk-norm"])
def test_estimates_are_derivatives_along_what_a_token_moves_beside_the_visible_ones(
    kind: ModelConfig, anchor_id: Optional[int]
) -> None:
    evaluator = contextual(dataclasses.replace(kind, n_layers=1), anchor_id)
    visible_W3 = np.array([[1, 4, 12], [0, 7, 8], [3, 9, 15]])
    found_WM = scores_of(evaluator).patching_beside(visible_W3)
    evaluator.model.double()  # type: ignore[attr-defined]
    masked, (tokens_WT, _) = dataclasses.replace(evaluator, path="masked"), windows(3)
    for w, visible in enumerate(visible_W3.tolist()):

        def predicted(sets: list[int], tokens_1T: torch.Tensor = tokens_WT[[w]]) -> torch.Tensor:
            return log_probs(masked, tokens_1T, visible_WS=torch.tensor([sorted(sets)]))[0]

        projection = evaluator.model.transformer.blocks[0].attn_out  # type: ignore[attr-defined]
        attention = OutputsOfAttention(projection, predicted, log_p_all_V=predicted(list(range(M))))
        asked = [j for j in range(M) if j not in visible]
        expected = [attention.slope(visible, [*visible, j]) for j in asked]
        assert found_WM[w, asked] == pytest.approx(expected, rel=2e-3, abs=2e-5)
        assert np.ptp(expected) > 1e-3


GROUPS = TokenGroups(np.array([[0, 0, 1, 2, 2, 2] + [3] * 10, [0] * 5 + [1] * 11, list(range(16))]))
SEVERAL_SIZES = np.array([[1, 2], [0, NO_GROUP], [3, 5]])


def test_windows_whose_groups_have_other_sizes_go_on_from_the_same_prefix() -> None:
    scores = scores_of(contextual(), groups=GROUPS)
    scores.patching_beside(np.empty((3, 0), dtype=np.int64))
    ran: list[int] = []
    with listening(ran.append):
        scores.patching_beside(SEVERAL_SIZES)
    assert sum(ran) == 3 * 3 * LOCAL


@pytest.mark.parametrize("batch_tokens", [16, 4096], ids=["a window at a time", "all at once"])
def test_estimates_of_groups_are_sums_beside_groups_of_several_sizes(batch_tokens: int) -> None:
    evaluator = contextual(batch_tokens=batch_tokens)
    found_WI = scores_of(evaluator, groups=GROUPS).patching_beside(SEVERAL_SIZES)
    assert found_WI.shape == (3, 16)
    positions = [[2, 3, 4, 5], [0, 1, 2, 3, 4], [3, 5]]
    for w in range(3):
        alone = scores_of(contextual(), chosen=slice(w, w + 1))
        of_tokens_M = alone.patching_beside(np.array([positions[w]]))[0]
        for group in range(16):
            members = np.flatnonzero(GROUPS.groups_WM[w] == group)
            expected = of_tokens_M[members].sum() if len(members) else np.nan
            assert found_WI[w, group] == pytest.approx(expected, rel=1e-4, abs=1e-6, nan_ok=True)


@dataclasses.dataclass
class Planted:
    """Windows whose estimates are known: each round adds to a base, group by group, what was planted for its number."""

    base_WI: np.ndarray
    groups: TokenGroups
    max_k: int

    def __post_init__(self) -> None:
        self.windows, self.asked = range(len(self.base_WI)), []  # type: ignore[var-annotated]

    def patching_beside(self, groups_WS: np.ndarray) -> np.ndarray:
        self.asked.append(groups_WS.tolist())
        turned = np.roll(self.base_WI, len(self.asked) - 1, axis=1)
        return self.groups.with_missing(turned).astype(np.float32)


def test_rounds_double_and_each_is_ranked_beside_those_before() -> None:
    base = np.array([[0, -9, 3, -8, -7, 2, -6, 1, -5, -4, 4.0]])
    cache = Planted(base, TokenGroups(np.arange(11)[None]), max_k=9)
    found = SELECTORS[NAME].score(cache)  # type: ignore[arg-type]
    expected: list[int] = []
    for number, size in enumerate([1, 1, 2, 4, 1]):
        assert cache.asked[number] == [expected]
        of_round = np.roll(base[0], number)
        expected = expected + sorted(set(range(11)) - set(expected), key=lambda j: of_round[j])[:size]
    assert expected[:4] == [1, 2, 3, 5]  # -9, which moves by a place each time, and -8 beside it
    assert rank(found)[0, :9].tolist() == expected
    assert sorted(found[0].tolist(), reverse=True) == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0, 0]
    assert len(cache.asked) == 5


def test_smaller_sets_are_those_of_larger_ones() -> None:
    scores = scores_of(contextual(), max_k=8)
    nested = rank(SELECTORS[NAME].score(scores))
    for max_k in (1, 2, 3, 5):
        assert (
            rank(SELECTORS[NAME].score(dataclasses.replace(scores, max_k=max_k)))[:, :max_k] == nested[:, :max_k]
        ).all()
    assert (nested[:, :8] != rank(-scores.patching_beside(np.empty((3, 0), dtype=np.int64)))[:, :8]).any()


def test_windows_of_few_groups_are_taken_whole() -> None:
    groups = TokenGroups(np.array([[0] * 8 + [1] * 4 + [2] * 4, list(range(16)), [0] * 16]))
    found_WI = SELECTORS[NAME].score(scores_of(contextual(), max_k=6, groups=groups))
    assert np.isnan(found_WI[0, 3:]).all() and np.isnan(found_WI[2, 1:]).all()
    assert sorted(found_WI[0, :3].tolist()) == [4, 5, 6] and found_WI[2, 0] == 6
    assert sorted(found_WI[1].tolist())[-7:] == [0, 1, 2, 3, 4, 5, 6]


def test_the_choice_follows_the_full_context_prediction_and_not_the_target() -> None:
    evaluator = contextual()
    scores = scores_of(evaluator)
    other = dataclasses.replace(scores.windows, targets_W=(scores.windows.targets_W + 1) % VOCAB)
    same = dataclasses.replace(scores, predictions=dataclasses.replace(scores.predictions, windows=other))
    found = SELECTORS[NAME].score(scores)
    assert np.array_equal(SELECTORS[NAME].score(same), found)
    reversed_WV = scores.predictions.log_p_long_WV.flip(-1)
    of_other = dataclasses.replace(scores.predictions)
    vars(of_other)["log_p_long_WV"] = reversed_WV  # there cached_property keeps it
    assert not np.array_equal(SELECTORS[NAME].score(dataclasses.replace(scores, predictions=of_other)), found)


def test_what_it_costs() -> None:
    settings = lambda k: InfluenceConfig(visibility="contextual", selectors=[NAME], k=[k])  # noqa: E731
    rounds = {1: 1, 2: 2, 3: 3, 4: 3, 5: 4, 8: 4, 9: 5, 16: 5, 17: 6, 32: 6}
    lengths = MeasuredLengths(64, 128, train_len=None, max_position=128, num_long_range=64)
    for k, number in rounds.items():
        assert SELECTORS[NAME].num_tokens(settings(k), lengths) == number * 3 * 64
        assert num_evaluations(NAME, 64, settings=settings(k)) == 3 * number + 1
    assert num_evaluations(NAME, 5, settings=settings(32)) == 3 * 4 + 1  # of 5 groups: 1, 1, 2 and the last


def test_the_tokens_that_run_are_those_that_are_announced() -> None:
    scores = scores_of(contextual(), max_k=8)
    _ = scores.predictions.log_p_long_WV
    scores.patching_beside(np.empty((3, 0), dtype=np.int64))  # keeps the prefix
    ran: list[int] = []
    with listening(ran.append):
        SELECTORS[NAME].score(scores)
    settings = InfluenceConfig(visibility="contextual", selectors=[NAME], k=[8])
    assert sum(ran) == 3 * SELECTORS[NAME].num_tokens(
        settings, MeasuredLengths(LOCAL, FULL, train_len=None, max_position=FULL, num_long_range=M)
    )


def test_where_it_cannot_choose() -> None:
    with pytest.raises(UserError, match=r"influence\.selectors: greedy-patching: chooses entries of a key-value cache"):
        InfluenceConfig(selectors=["kl", NAME])
    soft_capped = Evaluator(transformers_models.build("gemma-2"), LOCAL, visibility="contextual")
    with pytest.raises(UserError, match="estimates by attribution patching need the attention of every layer"):
        SELECTORS[NAME].score(scores_of(soft_capped))
