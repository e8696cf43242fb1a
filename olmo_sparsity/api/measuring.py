"""Measures chosen windows: scores, losses under given visible sets, and whole measurements.

Positions are those of the tables: 0 is the oldest token of the window, and the long-range tokens are 0 .. M-1, with
M = ``full_len`` - ``local_len``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Optional, Union

import numpy as np
import pandas as pd
import pyarrow as pa
import torch

from olmo_sparsity.api.chosen_windows import SPLIT, ChosenWindows
from olmo_sparsity.api.opened_model import Model, with_settings
from olmo_sparsity.api.results import Results
from olmo_sparsity.config import Config, fingerprint, to_dict
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.influence import tables_of_windows
from olmo_sparsity.measure.influence_tables import InfluenceTables
from olmo_sparsity.measure.losses import row_losses, short_log_probs
from olmo_sparsity.measure.opened_run import lengths_record
from olmo_sparsity.measure.predictions import Predictions
from olmo_sparsity.measure.scores import WindowScores
from olmo_sparsity.measure.selectors import SCORERS
from olmo_sparsity.measure.window_batch import WindowBatch
from olmo_sparsity.model.devices import device_name
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.tables.schemas import SCHEMA_VERSION

VisibleSets = Union[Sequence[Sequence[int]], pd.DataFrame]


def measure(
    model: Model,
    windows: ChosenWindows,
    *,
    selectors: Optional[Sequence[str]] = None,
    k: Optional[Sequence[int]] = None,
    seed: int = 0,
    resampled_draws: int = 2,
) -> Results:
    """Measure windows as ``olmo-sparsity influence`` does: L_short, L_long, and of every selector J_k and its losses, under the
    real and the null context and on resampled targets.

    Args:
        model: the model.
        windows: the windows.
        selectors: names of selectors; None: those of the model's configuration.
        k: numbers of influential tokens, rising; None: those of the configuration.
        seed: of `random`, of the lasso's visible sets and of the resampled targets.
        resampled_draws: resampled targets of each window.

    Returns:
        The tables ``windows`` and ``selections`` as DataFrames; losses, gains and divergences are in nats.

    Raises:
        UserError: a selector is unknown, or k is larger than the number of long-range tokens.
    """
    config = _configured(model, windows, selectors=selectors, k=k, seed=seed, resampled_draws=resampled_draws)
    frames = {name: table.to_pandas() for name, table in measured_tables(model, windows, config=config).items()}
    return Results(frames["windows"], frames["selections"], _manifest(model, windows, config=config))


def measured_tables(model: Model, windows: ChosenWindows, *, config: Config) -> dict[str, pa.Table]:
    """Measure windows as a configuration says, and return the tables ``windows`` and ``selections``."""
    settings, train_len = config.influence, config.measured_lengths.train_len
    assert train_len is not None
    tables = InfluenceTables(windows.null_contexts, settings, model.tokenizer, SPLIT)
    parts = [
        tables_of_windows(model.evaluator, tables, window_ids_W=window_ids_W, train_len=train_len)
        for window_ids_W in _batches(windows, settings.windows_per_part)
    ]
    return {name: pa.concat_tables([part[name] for part in parts]) for name in ("windows", "selections")}


def scores(
    model: Model,
    windows: ChosenWindows,
    *,
    selectors: Sequence[str] = ("kl",),
    max_k: int = 8,
    seed: int = 0,
) -> pd.DataFrame:
    """Return the score of every long-range token; the highest are the most influential.

    Args:
        model: the model.
        windows: the windows.
        selectors: names of selectors.
        max_k: how many tokens ``greedy`` and ``greedy-kl`` take; other selectors do not depend on it.
        seed: of `random` and of the lasso's visible sets.

    Returns:
        One row for each window, selector and long-range position; columns ``window_id``, ``selector``, ``position``,
        ``distance_tokens`` (to the target), ``token_text`` and ``score``.

    Raises:
        UserError: a selector is unknown, or ``max_k`` is larger than the number of long-range tokens.
    """
    config = _configured(model, windows, selectors=selectors, k=[max_k], seed=seed, resampled_draws=0)
    full_len, num_long_range = config.measured_lengths.full_len, config.measured_lengths.num_long_range
    frames = []
    for window_ids_W in _batches(windows, config.influence.windows_per_part):
        of_windows = _window_scores(model, windows, window_ids_W=window_ids_W, config=config)
        for name in config.influence.selectors:
            scores_WM = SCORERS[name].score(of_windows)
            frames.append(
                pd.DataFrame(
                    {
                        "window_id": np.repeat(window_ids_W, num_long_range),
                        "selector": name,
                        "position": np.tile(np.arange(num_long_range), len(window_ids_W)),
                        "distance_tokens": np.tile(full_len - np.arange(num_long_range), len(window_ids_W)),
                        "token_text": [text for w in window_ids_W for text in windows.texts[w][:num_long_range]],
                        "score": scores_WM.astype(np.float32).ravel(),
                    }
                )
            )
    return pd.concat(frames, ignore_index=True)


def losses(model: Model, windows: ChosenWindows, visible: VisibleSets) -> pd.DataFrame:
    """Return loss(S), the loss of the target when the model sees the local tokens and S, for given visible sets S.

    Args:
        model: the model.
        windows: the windows.
        visible: sets of long-range positions, each of which is measured in every window; or a DataFrame with the columns
            ``window_id`` and ``positions``, such as some rows of a table ``selections``, each of which is one set in one window.

    Returns:
        One row for each window and set; columns ``window_id``, ``positions``, ``loss_nats`` and ``kl_nats``, the divergence
        KL(p_all, p_S) of the prediction from that with all tokens visible.

    Raises:
        UserError: there is no such window, or a set holds a position twice or one that is no long-range position.
    """
    _check_lengths(model, windows)
    window_R, sets = _visible_rows(windows, visible)
    loss_R, kl_R = np.empty((2, len(sets)), dtype=np.float32)
    for window_ids_W in _batches(windows, model.config.influence.windows_per_part):
        batch = _real_batch(model, windows, window_ids_W=window_ids_W, seed=0)
        predictions = Predictions(
            model.evaluator, batch, log_p_short_WV=short_log_probs(model.evaluator, batch.tokens_WT)
        )
        first = int(window_ids_W[0])
        rows_of_size: dict[int, list[int]] = {}
        for row in np.flatnonzero((window_R >= first) & (window_R <= window_ids_W[-1])).tolist():
            rows_of_size.setdefault(len(sets[row]), []).append(row)
        for size, rows in rows_of_size.items():  # rows of one size make a batch without padding
            visible_RS = torch.tensor([sets[row] for row in rows], dtype=torch.int64).view(len(rows), size)
            losses_r, divergences_r = row_losses(
                model.evaluator,
                batch.tokens_WT,
                targets_W=batch.targets_W,
                windows_R=torch.from_numpy(window_R[rows] - first).to(model.device),
                visible_RS=visible_RS.to(model.device),
                reference_WV=predictions.log_p_long_WV,
            )
            assert divergences_r is not None
            loss_R[rows], kl_R[rows] = losses_r.cpu().numpy(), divergences_r.cpu().numpy()
    return pd.DataFrame({"window_id": window_R, "positions": sets, "loss_nats": loss_R, "kl_nats": kl_R})


def _configured(
    model: Model,
    windows: ChosenWindows,
    *,
    selectors: Optional[Sequence[str]],
    k: Optional[Sequence[int]],
    seed: int,
    resampled_draws: int,
) -> Config:
    _check_lengths(model, windows)
    settings = model.config.influence
    return with_settings(
        model,
        selectors=list(settings.selectors if selectors is None else selectors),
        k=list(settings.k if k is None else k),
        seed=seed,
        resampled_draws=resampled_draws,
    )


def _check_lengths(model: Model, windows: ChosenWindows) -> None:
    made, asked = windows.windows.full_len, model.lengths.full_len
    if (made, windows.null_contexts.num_long_range) != (asked, model.lengths.num_long_range):
        raise UserError(
            f"windows: made for full_len {made} with {windows.null_contexts.num_long_range} long-range tokens, and the model has "
            f"full_len {asked} with {model.lengths.num_long_range}; make them with this model"
        )


def _batches(windows: ChosenWindows, size: int) -> Iterator[np.ndarray]:
    """Yield the numbers of the windows in batches, int64, and show the progress."""
    with progress_bar("windows", " windows", total=len(windows)) as bar:
        for begin in range(0, len(windows), size):
            window_ids_W = np.arange(begin, min(begin + size, len(windows)))
            yield window_ids_W
            bar.update(len(window_ids_W))


def _real_batch(model: Model, windows: ChosenWindows, *, window_ids_W: np.ndarray, seed: int) -> WindowBatch:
    """Return windows under the real context."""
    rows_WT = torch.from_numpy(windows.windows.tokens(window_ids_W)).to(model.device)
    return WindowBatch(
        rows_WT[:, :-1].contiguous(),
        rows_WT[:, -1].contiguous(),
        window_ids_W=window_ids_W,
        context="real",
        seed=seed,
    )


def _window_scores(model: Model, windows: ChosenWindows, *, window_ids_W: np.ndarray, config: Config) -> WindowScores:
    settings = config.influence
    batch = _real_batch(model, windows, window_ids_W=window_ids_W, seed=settings.seed)
    predictions = Predictions(
        model.evaluator,
        batch,
        log_p_short_WV=short_log_probs(model.evaluator, batch.tokens_WT),
        num_lasso_masks=settings.lasso_masks,
        with_kl="kl" in settings.selectors,
    )
    return WindowScores(predictions, max_k=max(settings.k))


def _visible_rows(windows: ChosenWindows, visible: VisibleSets) -> tuple[np.ndarray, list[list[int]]]:
    """Return the window (int64) and the positions of each visible set."""
    num_windows, num_long_range = len(windows), windows.null_contexts.num_long_range
    if isinstance(visible, pd.DataFrame):
        window_R = visible["window_id"].to_numpy(np.int64)
        sets = [[int(j) for j in positions] for positions in visible["positions"]]
    else:
        window_R = np.repeat(np.arange(num_windows), len(visible))
        sets = [[int(j) for j in positions] for positions in visible] * num_windows
    for window, positions in zip(window_R.tolist(), sets, strict=True):
        if not 0 <= window < num_windows:
            raise UserError(f"visible: there is no window {window}; they are numbered 0 to {num_windows - 1}")
        if len(set(positions)) < len(positions) or not all(0 <= j < num_long_range for j in positions):
            raise UserError(
                f"visible: {positions} must hold long-range positions, 0 to {num_long_range - 1}, each at most once"
            )
    return window_R, sets


def _manifest(model: Model, windows: ChosenWindows, *, config: Config) -> dict[str, Any]:
    """Return what ``olmo-sparsity influence`` would write about this measurement."""
    store, null_counts = windows.windows.store, windows.null_contexts.counts()
    settings = to_dict(config.influence)
    if len(null_counts) == 1:
        (settings["null_context"],) = null_counts
    return {
        "kind": "influence",
        "run_id": fingerprint(
            SCHEMA_VERSION, settings, to_dict(config.context), model.checkpoint.model_sha256, windows.windows.sha256,
            store.tokens_sha256,
        ),
        "run": model.name,
        "source": windows.source,
        "split": SPLIT,
        "influence": settings,
        "context": lengths_record(config),
        "num_windows": len(windows),
        "num_documents": windows.windows.num_documents,
        "null_contexts": null_counts,
        "pose": to_dict(config.pose),
        "num_parameters": model.num_parameters,
        "checkpoint": {"step": model.checkpoint.step, "model_sha256": model.checkpoint.model_sha256},
        "tokens_sha256": store.tokens_sha256,
        "windows_sha256": windows.windows.sha256,
        "device": device_name(model.device),
        "precision": model.precision,
    }  # fmt: skip
