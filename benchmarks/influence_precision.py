"""What screening and bf16 change in the numbers of a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch

from benchmarks.influence_methods import SCREEN
from olmo_sparsity.config import SCREEN_RANKINGS, InfluenceConfig
from olmo_sparsity.config.files import load_config
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import ScreeningSettings, WindowScores
from olmo_sparsity.measure.setup.opened_model import OpenedModel, open_model
from olmo_sparsity.measure.visible.batch_size import make_evaluator
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import short_log_probs
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.records.selectors import rank
from olmo_sparsity.text.windows import Windows

MAX_K = 8


def _singles(scores: WindowScores) -> dict[str, np.ndarray]:
    """Return loss({j}) and KL(p_all, p_{j}), [W, M] each."""
    return {"loss_single": scores.loss_single_WI, "kl_single": scores.kl_single_WI}


def open_run(run: Path, num_windows: int) -> tuple[InfluenceConfig, OpenedModel, Windows]:
    """Return how a run is measured, its model, and windows of its held-out text.

    Raises:
        UserError: the run is not usable.
    """
    config = load_config(run / "config.yaml", [f"influence.num_windows={num_windows}"])
    opened = open_model(config, run)
    return config.influence, opened, opened.windows(config.influence)


def compare_precisions(settings: InfluenceConfig, opened: OpenedModel, windows: Windows) -> dict[str, Any]:
    """Measure windows of a run in fp32, screened and in bf16, and return how the numbers differ.

    Args:
        settings: how the run is measured.
        opened: its model.
        windows: of its held-out text.
    """
    lengths = opened.lengths
    max_k = min(MAX_K, lengths.num_long_range)
    window_ids_W = np.arange(len(windows))
    rows_WT = torch.from_numpy(windows.tokens(window_ids_W)).to(opened.device)  # the target last
    tokens_WT, targets_W = rows_WT[:, :-1].contiguous(), rows_WT[:, -1].contiguous()
    batch = WindowBatch(tokens_WT, targets_W, window_ids_W=window_ids_W, context="real", seed=0)

    def evaluator_in(precision: str) -> Evaluator:
        return make_evaluator(
            opened.model,
            settings,
            full_len=lengths.full_len,
            local_len=lengths.local_len,
            precision=precision,
            anchor_id=opened.anchor_id,
        )

    def scores_of(evaluator: Evaluator, screening: Optional[ScreeningSettings] = None) -> WindowScores:
        predictions = Predictions(evaluator, batch, log_p_short_WV=short_log_probs(evaluator, tokens_WT), with_kl=True)
        return WindowScores(predictions, max_k=max_k, screening=screening)

    exact = evaluator_in("fp32")
    fine, coarse = scores_of(exact), scores_of(evaluator_in("bf16"))
    recall, screen = {}, min(SCREEN, max(1, fine.num_long_range * 2 // 3))  # of few tokens fewer: all would be found
    for ranking in SCREEN_RANKINGS:
        recall[ranking] = _recall(scores_of(exact, ScreeningSettings(screen, ranking)), fine)
    return {
        "run": opened.name,
        "num_windows": len(windows),
        "screen": screen,
        "recall_at_screen": recall,
        "bf16": _errors(coarse, fine),
    }


def _recall(screened: WindowScores, exact: WindowScores) -> dict[str, float]:
    """Return the share of the exact J_k that screening evaluates."""
    evaluated_WM, exact_WM = _singles(screened), _singles(exact)
    windows_W1 = np.arange(len(exact.windows))[:, None]
    return {
        f"{name} k={k}": float(np.isfinite(evaluated_WM[name])[windows_W1, rank(-exact_WM[name])[:, :k]].mean())
        for name in exact_WM
        for k in (1, exact.max_k)
    }


def _errors(coarse: WindowScores, fine: WindowScores) -> dict[str, float]:
    """Return how far numbers in bf16 are from those in fp32."""
    coarse_WM, fine_WM = _singles(coarse), _singles(fine)
    error_WM = coarse.loss_single_WI - fine.loss_single_WI
    overlap, k = {}, fine.max_k
    for name in fine_WM:
        pairs = zip(rank(-fine_WM[name])[:, :k], rank(-coarse_WM[name])[:, :k], strict=True)
        overlap[f"overlap of J_{k}, {name}"] = float(np.mean([len({*a} & {*b}) / k for a, b in pairs]))
    return {
        "loss_single mean error, nats": float(error_WM.mean()),
        "loss_single mean |error|, nats": float(np.abs(error_WM).mean()),
        "spread of loss_single over candidates, nats": float(fine.loss_single_WI.std(axis=1).mean()),
        "long gain, fp32": float((fine.loss_short_W - fine.loss_long_W).mean()),
        "long gain, bf16": float((coarse.loss_short_W - coarse.loss_long_W).mean()),
        **overlap,
    }
