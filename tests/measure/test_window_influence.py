"""What is measured of windows under one context, by sets written down in loops."""

from __future__ import annotations

import dataclasses
import functools
from typing import Optional

import numpy as np
import pytest
import torch
from brute_force import kl
from scored_windows import make_scores
from tiny_models import NORMED, VOCAB, build
from tiny_windows import M

from olmo_sparsity.config import InfluenceConfig
from olmo_sparsity.measure.selection.predictions import Predictions, SetReadings
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.selection.window_influence import (
    measure_context,
    run_selectors,
)
from olmo_sparsity.measure.visible.losses import log_probs
from olmo_sparsity.measure.visible.window_batch import TokenGroups
from olmo_sparsity.records.selectors import SELECTORS, rank

IDS, SEED = np.array([4, 11, 7]), 3
SEEING, SELECTED = ["unmask-one", "gradient"], ["unmask-one", "kl", "gradient", "random", "nearest"]
UNEQUAL = TokenGroups(np.stack([np.arange(M), np.repeat(np.arange(4), 4), np.repeat([0, 1, 2], [9, 1, 6])]))


def scores_with_labels(groups: Optional[TokenGroups], *, context: str = "real") -> WindowScores:
    """Return the scores of three windows with two drawn labels each."""
    scores = make_scores(build(NORMED).eval(), groups=groups, window_ids_W=IDS, seed=SEED, context=context)
    labels_WA = torch.from_numpy(np.random.default_rng(1).integers(1, VOCAB, (3, 2)))
    changed = dataclasses.replace(scores.predictions, drawn_labels_WA=labels_WA)
    return dataclasses.replace(scores, predictions=changed)


@pytest.mark.parametrize("context", ["real", "null"])
@pytest.mark.parametrize("groups", [None, UNEQUAL], ids=["tokens", "unequal groups"])
def test_every_number_of_a_choice(groups: Optional[TokenGroups], context: str) -> None:
    """Each set of each label is run by itself. Windows have fewer groups than the largest k."""
    ks = [1, 2, 5, M]
    scores = scores_with_labels(groups, context=context)
    settings = InfluenceConfig(k=ks, selectors=SELECTED)
    measured = measure_context(scores, settings)
    members = [np.arange(M)] * 3 if groups is None else list(groups.groups_WM)
    labels_WA = scores.predictions.labels_WA.numpy()
    assert list(measured.outcomes) == SELECTED and len(measured.resampled) == 2
    assert all(sorted(drawn.outcomes) == sorted([*SEEING, "random"]) for drawn in measured.resampled)

    @functools.cache
    def log_q_of(w: int, chosen: tuple[int, ...]) -> np.ndarray:
        visible = [j for i in chosen for j in np.flatnonzero(members[w] == i).tolist()]
        tokens_1T, visible_1S = scores.windows.tokens_WT[w : w + 1], torch.tensor([visible], dtype=torch.int64)
        return log_probs(scores.evaluator, tokens_1T, visible_WS=visible_1S)[0].double().numpy()

    def prediction(w: int, chosen: list[int]) -> np.ndarray:
        return log_q_of(w, tuple(sorted(chosen)))

    for label, outcomes in enumerate([measured.outcomes, *(drawn.outcomes for drawn in measured.resampled)]):
        of_label = scores.of_label(label)
        for name, outcome in outcomes.items():
            np.testing.assert_array_equal(
                outcome.scores_WI, SELECTORS[name].score(of_label if name != "random" else scores)
            )
            order_WI = rank(outcome.scores_WI)
            for w, num_groups in enumerate(members[w][-1] + 1 for w in range(3)):
                chosen = order_WI[w, : min(max(ks), num_groups)].tolist()
                assert outcome.groups_WS[w].tolist() == chosen + [-1] * (max(ks) - len(chosen))
                short, everything = prediction(w, []), prediction(w, list(range(num_groups)))
                for i, k in enumerate(ks):
                    log_q = prediction(w, chosen[:k])
                    assert outcome.loss_sparse_WK[w, i] == pytest.approx(-log_q[labels_WA[w, label]], abs=1e-5)
                    if label == 0:
                        assert outcome.kl_sparse_WK is not None and outcome.kl_short_to_sparse_WK is None
                        assert outcome.kl_sparse_WK[w, i] == pytest.approx(kl(everything, log_q), abs=1e-5)
                    else:
                        assert outcome.kl_sparse_WK is None and outcome.kl_short_to_sparse_WK is not None
                        assert outcome.kl_short_to_sparse_WK[w, i] == pytest.approx(kl(short, log_q), abs=1e-5)
                    if label == 0 and name == "unmask-one":
                        one = [float(-prediction(w, [j])[labels_WA[w, 0]]) for j in chosen]
                        assert scores.loss_single_WI[w, chosen].tolist() == pytest.approx(one, abs=1e-5)
    for drawn, labels_W in zip(measured.resampled, labels_WA.T[1:], strict=True):
        assert drawn.label_ids_W.tolist() == labels_W.tolist()
        for w in range(3):
            short, everything = (prediction(w, chosen)[labels_W[w]] for chosen in ([], list(range(members[w][-1] + 1))))
            assert (drawn.loss_short_W[w], drawn.loss_long_W[w]) == pytest.approx((-short, -everything), abs=1e-5)


def test_what_is_kept_where_it_is_asked_for() -> None:
    scores = scores_with_labels(None)
    alone = dataclasses.replace(scores, predictions=dataclasses.replace(scores.predictions, drawn_labels_WA=None))
    assert measure_context(alone, InfluenceConfig(k=[1], selectors=["random"])).resampled == []
    assert run_selectors(scores, InfluenceConfig(k=[2]), selectors=[], with_kl=True) == {}
    found = run_selectors(
        scores, InfluenceConfig(k=[2], selectors=["kl"]), selectors=["nearest", "random"], with_kl=False
    )
    assert list(found) == ["nearest", "random"] and found["nearest"].kl_sparse_WK is None
    assert found["nearest"].groups_WS.tolist() == [[M - 1, M - 2]] * 3
    assert measure_context(scores, InfluenceConfig(k=[2], selectors=["nearest"])).resampled[1].outcomes == {}


@pytest.mark.parametrize("with_labels", [True, False])
@pytest.mark.parametrize("with_kl", [True, False])
def test_what_is_read_of_sets_is_what_was_asked_for(with_kl: bool, with_labels: bool) -> None:
    """Losses of every label always; a divergence where it is asked for, and is NaN elsewhere; of all tokens it is exactly 0."""
    scores = scores_with_labels(UNEQUAL)
    evaluator, tokens_WT = scores.evaluator, scores.windows.tokens_WT
    predictions = dataclasses.replace(
        scores.predictions,
        drawn_labels_WA=scores.predictions.drawn_labels_WA if with_labels else None,
    )
    log_p_all_WV = log_probs(evaluator, tokens_WT, visible_WS=torch.arange(M).expand(3, -1))
    sets = [  # windows in disorder and twice; of some all groups are visible
        (np.array([2, 0, 2]), np.array([[0, 1, 2], [5, 1, -1], [1, -1, -1]])),
        (np.array([1, 2, 0, 1]), np.array([[3, 1, 0, 2], [2, 0, 1, -1], [15, 7, 2, 3], [2, -1, -1, -1]])),
    ]
    found = predictions.read_groups(sets, with_kl=with_kl)
    expected = [
        [(w, np.flatnonzero(np.isin(UNEQUAL.groups_WM[w], groups))) for w, groups in zip(*of, strict=True)]
        for of in sets
    ]
    assert [len(readings.losses_RA) for readings in found] == [len(rows) for rows in expected]
    for readings, rows in zip(found, expected, strict=True):
        for r, (w, visible) in enumerate(rows):
            _check_readings(predictions, readings, r, int(w), visible, log_p_all_WV[w], with_kl)


def _check_readings(
    predictions: Predictions,
    readings: SetReadings,
    r: int,
    w: int,
    visible: np.ndarray,
    log_p_all: torch.Tensor,
    with_kl: bool,
) -> None:
    """Check row r, of window w with these positions visible, against a pass of its own."""
    log_q = log_p_all
    if len(visible) < M:
        visible_1S = torch.from_numpy(visible)[None]
        log_q = log_probs(predictions.evaluator, predictions.windows.tokens_WT[[w]], visible_WS=visible_1S)[0]
    labels = [int(predictions.windows.targets_W[w])]
    if predictions.drawn_labels_WA is not None:
        labels += predictions.drawn_labels_WA[w].tolist()
    assert readings.losses_RA[r] == pytest.approx((-log_q[labels]).numpy(), abs=1e-5)
    if with_kl:
        assert readings.kl_R[r] == pytest.approx(kl(log_p_all.double().numpy(), log_q.double().numpy()), abs=1e-5)
        assert (readings.kl_R[r] == 0) == (len(visible) == M)
    else:
        assert np.isnan(readings.kl_R[r])
    if predictions.drawn_labels_WA is None:
        assert np.isnan(readings.kl_from_short_R[r])
    else:
        short = predictions.log_p_short_WV[w].double().numpy()
        assert readings.kl_from_short_R[r] == pytest.approx(kl(short, log_q.double().numpy()), abs=1e-5)


@pytest.mark.parametrize("with_kl", [True, False])
def test_rows_of_every_size(with_kl: bool) -> None:
    """Also of all positions, which are known, and of all but one, which are not."""
    scores = make_scores(build(NORMED).eval())
    rng, windows_R = np.random.default_rng(0), np.array([2, 0, 1, 2])
    rows = [
        np.column_stack([windows_R, [np.sort(rng.permutation(M)[:size]) for _ in range(4)]]) for size in (1, M - 1, M)
    ]
    found = scores.evaluate_rows(rows, with_kl=with_kl)
    tokens_RT, labels_R = scores.windows.tokens_WT[windows_R], scores.windows.targets_W[windows_R]
    everything_RS = torch.arange(M).expand(4, -1)
    p_all_RV = log_probs(scores.evaluator, tokens_RT, visible_WS=everything_RS)
    for rows_RS, (losses_R, divergences_R) in zip(rows, found, strict=True):
        visible_RS = torch.from_numpy(rows_RS[:, 1:].astype(np.int64))
        log_q_RV = log_probs(scores.evaluator, tokens_RT, visible_WS=visible_RS)
        assert losses_R == pytest.approx(-log_q_RV.gather(1, labels_R[:, None])[:, 0].numpy(), abs=1e-5)
        if with_kl:
            expected = [kl(p.double().numpy(), q.double().numpy()) for p, q in zip(p_all_RV, log_q_RV, strict=True)]
            assert divergences_R == pytest.approx(np.array(expected), abs=1e-5)
        else:
            assert np.isnan(divergences_R).all()
