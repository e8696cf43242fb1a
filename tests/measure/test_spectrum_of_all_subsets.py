"""The dependency spectrum of a tiny model against all subsets of its ten long-range tokens; grids of every k."""

from __future__ import annotations

import dataclasses
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from brute_force import Definition, kl
from tiny_models import NORMED, build
from tiny_windows import LOCAL, windows

from olmo_sparsity.config import Config
from olmo_sparsity.measure.influence import default_name, measure
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.setup.opened_model import open_model
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import short_log_probs
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.records.selectors import SELECTORS, rank
from olmo_sparsity.statistics.single.spectrum import sufficient_k
from olmo_sparsity.storage.files import read_json

W, M = 5, 10
KS = range(1, M + 1)
FAMILIES = ("kl", "greedy-kl", "attention", "unmask-one", "nearest", "random")


@pytest.fixture(scope="module")
def model() -> OLMoWithPositions:
    return build(NORMED).eval()


@pytest.fixture(scope="module")
def least_divergences(model: OLMoWithPositions) -> np.ndarray:
    """The least KL(p_all, p_S) over all sets S of at most n tokens, float64 [W, M + 1], of n from 0 to M."""
    definition = Definition(model, LOCAL)
    sets = [chosen for size in range(M + 1) for chosen in combinations(range(M), size)]
    sizes_N = np.array([len(chosen) for chosen in sets])
    rows = []
    for tokens_T in windows(W)[0][:, -M - LOCAL :].tolist():
        log_q_NV = definition.log_q(tokens_T, sets)
        divergence_N = np.array([kl(log_q_NV[-1], log_q_V) for log_q_V in log_q_NV])  # the last set is all of them
        rows.append([divergence_N[sizes_N <= size].min() for size in range(M + 1)])
    return np.array(rows)


@pytest.fixture(scope="module")
def scores(model: OLMoWithPositions) -> WindowScores:
    tokens_WT, targets_W = windows(W)
    tokens_WT, evaluator = tokens_WT[:, -M - LOCAL :].contiguous(), Evaluator(model, LOCAL)
    predictions = Predictions(
        evaluator,
        WindowBatch(tokens_WT, targets_W, window_ids_W=np.arange(W), context="real", seed=0),
        log_p_short_WV=short_log_probs(evaluator, tokens_WT),
        num_lasso_masks=1,
        with_kl=True,
    )
    return WindowScores(predictions, max_k=M)


@pytest.fixture(scope="module")
def divergences(scores: WindowScores) -> dict[str, np.ndarray]:
    """KL(p_all, p_{J_k}) of each family at every k, behind that of no token, as the engine measures it, [W, 1 + K]."""
    found = {}
    for name in FAMILIES:
        ranked_WM = rank(SELECTORS[name].score(scores))
        rows = [np.column_stack([np.arange(W), np.sort(ranked_WM[:, :k], axis=1)]) for k in KS]
        of_ks = [of_k for _, of_k in scores.evaluate_rows(rows, with_kl=True)]
        found[name] = np.column_stack([scores.kl_short_W, *of_ks]).astype(np.float64)
    return found


def test_bounds_hold_the_smallest_number_that_any_choice_needs(
    divergences: dict[str, np.ndarray], least_divergences: np.ndarray
) -> None:
    """Every family needs as many or more. The fewest of all are exact up to 1, since `kl` takes the best token first."""
    seen, exact = set(), []
    for tolerance in (0.01, 0.05, 0.1, 0.2, 0.5):
        assert np.abs(least_divergences - tolerance).min() > 1e-5  # none is decided by rounding
        true_W = (least_divergences <= tolerance).argmax(axis=1)
        of_families = [sufficient_k(d[:, 1:], d[:, 0], ks=list(KS), tolerance=tolerance) for d in divergences.values()]
        for name, k_W in zip(divergences, of_families, strict=True):
            assert (k_W >= true_W).all() and ((k_W == 0) == (true_W == 0)).all(), (tolerance, name)
        fewest_W = np.min(of_families, axis=0)
        assert ((fewest_W <= 1) == (true_W <= 1)).all() and ((of_families[0] <= 1) == (true_W <= 1)).all()
        seen |= set(true_W.tolist())
        exact += (fewest_W == true_W).tolist()
    assert {0, 1, 2, 3, 4} <= seen
    assert 0.5 < np.mean(exact) < 1  # greedy choices are mostly, and not always, the best


def test_every_k_is_measured_and_recorded(tiny_config: Config, tiny_run: Path, tmp_path: Path) -> None:
    changes = {"num_windows": 2, "selectors": ["nearest", "random"], "k_grid": "all", "resampled_draws": 0}
    config = dataclasses.replace(tiny_config, influence=dataclasses.replace(tiny_config.influence, **changes))
    tables = measure(config, tiny_run, out=tmp_path / "tables")
    influence = read_json(tables / "manifest.json")["influence"]
    assert (influence["k"], influence["k_grid"]) == (list(range(1, 13)), None)


def test_a_folder_of_many_k_has_a_name_that_file_systems_take(tiny_config: Config, tiny_run: Path) -> None:
    opened, settings = open_model(tiny_config, tiny_run), dataclasses.replace(tiny_config.influence, k=[*range(1, 961)])
    name = default_name(settings, opened, trained=tiny_config.context, run_id="0123456789ab")
    assert "-k1to960of960-" in name and len(name) < 100
    for num, words in ((16, "-".join(map(str, range(1, 17)))), (17, "1to17of17")):
        few = dataclasses.replace(settings, k=[*range(1, num + 1)])
        assert f"-k{words}-" in default_name(few, opened, trained=tiny_config.context, run_id="0123456789ab")


def test_a_grid_ends_with_all_long_range_tokens_of_the_lengths(tiny_config: Config) -> None:
    for grid, ks in {"all": [*range(1, 13)], "geometric": [1, 2, 4, 8, 12]}.items():
        config = dataclasses.replace(tiny_config, influence=dataclasses.replace(tiny_config.influence, k_grid=grid))
        assert config.with_measured_k().influence == dataclasses.replace(tiny_config.influence, k=ks)
        blocks = dataclasses.replace(config, influence=dataclasses.replace(config.influence, unit="block:5"))
        assert blocks.with_measured_k().influence.k == [1, 2, 3]
