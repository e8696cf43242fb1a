"""Screening: which candidates are unmasked, by which ranking, and what it costs."""

from __future__ import annotations

import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
import transformers_models
from scored_windows import make_scores, with_other_targets
from tiny_models import NORMED, VOCAB, build
from tiny_pretrained import save_llama
from tiny_windows import LOCAL, M, windows
from typer.testing import CliRunner

from olmo_sparsity.cli.app import app
from olmo_sparsity.config import SCREEN_RANKINGS, Config, InfluenceConfig, PretrainedConfig
from olmo_sparsity.config.measuring import Ranking
from olmo_sparsity.measure.influence import measure
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import Criterion, ScreeningSettings, WindowScores
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import (
    attribution_by_patching,
    gate_gradients,
    log_probs,
    short_log_probs,
    target_losses,
)
from olmo_sparsity.measure.visible.visibility import Visibility
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.measure.work import num_evaluations
from olmo_sparsity.model.transformers_model import TransformersModel
from olmo_sparsity.progress import listening
from olmo_sparsity.records.selectors import SELECTORS, rank
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.tables.reading import read_table


@pytest.mark.parametrize("ranking", SCREEN_RANKINGS)
def test_a_screen_that_leaves_nothing_out_is_exact(ranking: Ranking) -> None:
    model = build(NORMED).eval()
    exact, screened = make_scores(model), make_scores(model, screening=ScreeningSettings(M, ranking))
    assert screened.loss_single_WI == pytest.approx(exact.loss_single_WI, abs=1e-6)
    assert screened.kl_single_WI == pytest.approx(exact.kl_single_WI, abs=1e-6)


def screened_scores(
    evaluator: Evaluator,
    *,
    ranking: Ranking,
    num_candidates: int,
) -> WindowScores:
    tokens_WT, targets_W = windows(3)
    predictions = Predictions(
        evaluator,
        WindowBatch(tokens_WT, targets_W, window_ids_W=np.arange(3), context="real", seed=0),
        log_p_short_WV=short_log_probs(evaluator, tokens_WT),
        with_kl=True,
    )
    return WindowScores(predictions, max_k=4, screening=ScreeningSettings(num_candidates, ranking))


@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
@pytest.mark.parametrize("name", ["greedy", "greedy-kl"])
def test_forward_selection_takes_only_candidates_that_screening_leaves(name: str, visibility: Visibility) -> None:
    evaluator = Evaluator(build(NORMED).eval(), LOCAL, visibility=visibility, anchor_id=9)
    scores = screened_scores(evaluator, ranking="patching", num_candidates=6)
    found_WI = SELECTORS[name].score(scores)
    singles_WI = scores.loss_single_WI if name == "greedy" else scores.kl_single_WI
    assert (
        np.isfinite(found_WI) == np.isfinite(singles_WI)
    ).all()  # unmask-one and kl are screened by the same ranking
    tokens_WT, targets_W = windows(3)
    log_p_WV = log_probs(evaluator, tokens_WT, visible_WS=torch.arange(M).expand(3, -1))
    masked = dataclasses.replace(evaluator, path="masked")
    for w, candidates in enumerate(np.flatnonzero(np.isfinite(of_window)).tolist() for of_window in found_WI):
        assert len(candidates) == 6
        taken: list[int] = []
        for _ in range(4):
            left = [j for j in candidates if j not in taken]
            losses_1N, kl_1N = target_losses(
                masked, tokens_WT[[w]], targets_W=targets_W[[w]], reference_WV=log_p_WV[[w]],
                visible_WNS=torch.tensor([[sorted([*taken, j]) for j in left]]),
            )  # fmt: skip
            assert kl_1N is not None
            taken.append(left[int((losses_1N if name == "greedy" else kl_1N)[0].argmin())])
        assert rank(found_WI)[w, :4].tolist() == taken


def test_what_rankings_cost() -> None:
    def cost(ranking: Ranking) -> int:
        settings = InfluenceConfig(screen=64, screen_by=ranking)
        return num_evaluations("unmask-one", 1984, settings=settings)

    assert {ranking: cost(ranking) - 65 for ranking in SCREEN_RANKINGS} == {"attention": 1, "patching": 3}


@pytest.fixture(scope="module")
def config(corpus_file: Path, tiny_config: Config, tmp_path_factory: pytest.TempPathFactory) -> Config:
    """A tiny Llama, whose candidates are screened."""
    folder = tmp_path_factory.mktemp("model")
    save_llama(folder, [json.loads(line)["text"] for line in corpus_file.open()])
    settings = dataclasses.replace(
        tiny_config.influence, num_windows=8, k=[1, 4], selectors=["unmask-one", "kl"], resampled_draws=0, screen=5,
        screen_sample=1.0,
    )  # fmt: skip
    return dataclasses.replace(tiny_config, pretrained=PretrainedConfig(str(folder)), influence=settings)


def with_settings(config: Config, **changes: object) -> Config:
    return dataclasses.replace(config, influence=dataclasses.replace(config.influence, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("visibility", ["hidden", "contextual"])
def test_how_patching_ranks(visibility: Visibility) -> None:
    def ranked_by(kind: str, **settings: object) -> str:
        evaluator = Evaluator(transformers_models.build(kind, **settings), LOCAL, visibility=visibility, anchor_id=9)
        return attribution_by_patching(evaluator, LOCAL + M)

    assert ranked_by("llama") == ranked_by("mistral", sliding_window=LOCAL + M + 2) == "patching"
    assert ranked_by("gemma-2") == ranked_by("mistral", sliding_window=LOCAL) == "gradient"


def test_what_ranked_in_place_of_patching_is_recorded(
    config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(TransformersModel, "attention_states", lambda *args, **kwargs: None)
    folder = measure(config, tmp_path / "run")
    assert read_json(folder / "manifest.json")["influence"]["screen_by"] == "gradient"
    assert (
        "Screened to 5 candidates by gradient." in CliRunner().invoke(app, ["summary", "--tables", str(folder)]).output
    )


def test_a_ranking_that_is_not_named_is_recorded_and_what_named_it_is_found_again(
    config: Config, tmp_path: Path
) -> None:
    folder = measure(config, tmp_path / "run")
    manifest = (folder / "manifest.json").read_bytes()
    recorded = read_json(folder / "manifest.json")["influence"]["screen_by"]
    assert recorded in SCREEN_RANKINGS
    assert measure(with_settings(config, screen_by=recorded), tmp_path / "run") == folder
    assert (folder / "manifest.json").read_bytes() == manifest
    (other,) = (ranking for ranking in SCREEN_RANKINGS if ranking != recorded)
    assert measure(with_settings(config, screen_by=other), tmp_path / "run") != folder


def test_patching_ranks_by_the_loss_of_the_label_or_the_divergence() -> None:
    """By the estimates of ``gate_gradients``, which are tested elsewhere. A divergence has the derivatives of a cross-entropy."""
    of_target = make_scores(build(NORMED).eval())
    drawn_labels_WA = (of_target.labels_W[:, None] * 3 + 5) % 31
    predictions = dataclasses.replace(of_target.predictions, drawn_labels_WA=drawn_labels_WA)
    orders = set()
    for label, criterion in itertools.product((0, 1), ("loss", "kl")):
        scores = dataclasses.replace(of_target, predictions=predictions).of_label(label)
        labels = predictions.log_p_long_WV.exp() if criterion == "kl" else predictions.labels_WA[:, label]
        found = scores.ranking_values("patching", criterion)  # type: ignore[arg-type]
        expected = gate_gradients(
            scores.evaluator,
            scores.windows.tokens_WT,
            loss_function=lambda rows, logits_wV, of=labels: F.cross_entropy(logits_wV, of[rows], reduction="sum"),
            attribution="patching",
        )
        np.testing.assert_allclose(found, expected.numpy(), rtol=1e-4, atol=1e-6)
        orders.add(str(np.argsort(found, axis=1).tolist()))
    assert len(orders) == 3  # a divergence does not depend on the label


@pytest.mark.parametrize("criterion", ["loss", "kl"])
def test_attention_ranks_as_the_selector_of_this_name(criterion: Criterion) -> None:
    model = build(NORMED).eval()
    chosen_WI = rank(SELECTORS["attention"].score(make_scores(model, num=8)))[:, :5]
    scores = make_scores(model, num=8, screening=ScreeningSettings(5, "attention"))
    singles_WI = scores.loss_single_WI if criterion == "loss" else scores.kl_single_WI
    assert [np.flatnonzero(known).tolist() for known in np.isfinite(singles_WI)] == np.sort(chosen_WI).tolist()
    ran: list[int] = []
    with listening(ran.append):
        _ = scores.loss_single_WI, scores.kl_single_WI
    assert not ran  # the losses and the divergences are of the same unmaskings


def test_only_the_best_of_the_ranking_are_unmasked() -> None:
    """Those with the lowest estimates: of the loss for ``unmask-one``, of the divergence for ``kl``."""
    scores = make_scores(build(NORMED).eval(), num=8, screening=ScreeningSettings(5, "patching"))
    exact = make_scores(build(NORMED).eval(), num=8)
    for criterion, found_WI, exact_WI in (
        ("loss", scores.loss_single_WI, exact.loss_single_WI),
        ("kl", scores.kl_single_WI, exact.kl_single_WI),
    ):
        estimates_WI = exact.ranking_values("patching", criterion)  # type: ignore[arg-type]
        for w, of_window in enumerate(found_WI):
            known = np.flatnonzero(np.isfinite(of_window))
            assert known.tolist() == sorted(np.argsort(estimates_WI[w])[:5])
            assert of_window[known] == pytest.approx(exact_WI[w, known], abs=1e-5)
    assert (np.isnan(scores.kl_single_WI) != np.isnan(scores.loss_single_WI)).any()
    other = with_other_targets(scores, VOCAB)
    assert (np.isnan(other.kl_single_WI) == np.isnan(scores.kl_single_WI)).all()


def test_a_seed_draws_another_sample_of_windows(tiny_config: Config, tiny_run: Path, tmp_path: Path) -> None:
    """By the numbers of the windows."""
    sampled = []
    for number, seed in enumerate((0, 0, 1)):
        settings = dataclasses.replace(
            tiny_config.influence, num_windows=40, selectors=["unmask-one"], k=[1, 2], screen=5, screen_sample=0.5, seed=seed,
            resampled_draws=0,
        )  # fmt: skip
        config = dataclasses.replace(tiny_config, influence=settings)
        tables = measure(config, tiny_run, out=tmp_path / str(number))
        sampled.append(set(read_table(tables, "screening")["window_id"].to_pylist()))
    assert sampled[0] == sampled[1] != sampled[2]
    assert all(10 < len(sample) < 30 for sample in sampled)
