"""Do the selectors find what was planted? Planted windows -> tables of what every selector found."""

from __future__ import annotations

import dataclasses
import logging
from pathlib import Path
from typing import Any, Optional

import numpy as np
import torch

from olmo_sparsity.config import Config, fingerprint, to_dict
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.batch_size import make_evaluator
from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.losses import log_probs, losses_of_masks
from olmo_sparsity.measure.measurement import is_measured, measure_parts
from olmo_sparsity.measure.opened_run import OpenedRun, lengths_record, open_run
from olmo_sparsity.measure.planted import (
    MAX_NEEDLE_TOKENS,
    NEEDLES,
    SOLVER_CONTEXT,
    TASKS,
    Planted,
    correlated_windows,
    needle_windows,
    solver_config,
    solver_tokenizer,
    write_solver_text,
)
from olmo_sparsity.measure.scores import WindowScores, rank
from olmo_sparsity.measure.selectors import SELECTORS
from olmo_sparsity.measure.shares import WHOLE, Share
from olmo_sparsity.model.checkpoint import latest_checkpoint, load_model
from olmo_sparsity.model.devices import device_name
from olmo_sparsity.model.olmo import OLMoWithPositions
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.folders import exclusive_lock
from olmo_sparsity.tables.schemas import SCHEMA_VERSION
from olmo_sparsity.text.vocabulary import token_texts
from olmo_sparsity.training.loop import train
from olmo_sparsity.training.run_folder import is_trained

logger = logging.getLogger(__name__)

# What else the natural windows and the scores depend on.
WINDOW_KEYS = ("seed", "targets", "max_windows_per_document", "lasso_masks", "path")


def find_planted(
    evaluator: Evaluator, planted: Planted, window_ids: np.ndarray, config: Config, device: torch.device
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """(losses without, with all and with the planted long-range tokens, under their names in the table, nats, fp32 [N];
    each selector's ranking of the long-range positions, int64 [N, M])."""
    settings = config.validation
    most = planted.num_planted * (MAX_NEEDLE_TOKENS if planted.suite in NEEDLES else 1)
    rows = torch.from_numpy(planted.rows).to(device)
    tokens, targets = rows[:, :-1].contiguous(), rows[:, -1].contiguous()
    nothing = torch.zeros(len(rows), 0, dtype=torch.int64, device=device)
    scored = WindowScores(
        evaluator=evaluator,
        tokens_WT=tokens,
        targets_W=targets,
        log_p_short_WV=log_probs(evaluator, tokens, nothing),
        window_ids=window_ids,
        context="real",
        seed=settings.seed,
        max_k=min(planted.truth.shape[1], max(*settings.k, most)),  # or greedy would stop before it can find them all
        lasso_masks=config.influence.lasso_masks,
        with_kl="kl" in settings.selectors,
    )
    truth = torch.from_numpy(planted.truth).to(device)
    losses = {
        "loss_short_nats": scored.loss_short,
        "loss_long_nats": scored.loss_long,
        "loss_planted_nats": losses_of_masks(evaluator, tokens, targets, truth[:, None, :])[:, 0].cpu().numpy(),
    }
    return losses, {name: rank(SELECTORS[name].score(scored)) for name in settings.selectors}


def _natural_windows(config: Config, held_out: OpenedRun, num_windows: int) -> tuple[np.ndarray, list[str]]:
    """``num_windows`` held-out windows with their targets, and their documents; each again where there are too few."""
    asked = dataclasses.replace(config, influence=dataclasses.replace(config.influence, num_windows=num_windows))
    windows = held_out.windows(asked, config.context.full_len)
    if len(windows) < num_windows:
        logger.info(
            f"the text holds {len(windows)} windows, not the {num_windows} that needles ask for, so each serves again"
        )
    chosen = np.arange(num_windows) % len(windows)
    return windows.tokens(chosen), windows.doc_ids(chosen)


def _solver(config: Config, folder: Path, device: torch.device) -> tuple[OLMoWithPositions, str]:
    """The model that solves the planted correlations, and its hash: trained, or found trained, in a folder of its seed and
    steps."""
    settings = config.validation
    trained = folder / f"seed{settings.seed}-steps{settings.solver_steps}"
    if not is_trained(trained):  # a run that was moved keeps its solver
        with exclusive_lock(folder / f"{trained.name}.lock"):
            if not is_trained(trained):  # by another process that was waited for
                text, tokenizer = write_solver_text(folder, settings.seed)
                experiment = solver_config(text, tokenizer, settings.solver_steps, config.training, settings.seed)
                try:
                    train(experiment, trained)
                except UserError:  # begun elsewhere or on another device; it is ours, and minutes of work
                    train(experiment, trained, overwrite=True)
    latest = latest_checkpoint(trained / "checkpoints")
    assert latest is not None
    return load_model(latest, device), read_json(latest / "train.json")["sha256"]["model.pt"]


def validate(
    config: Config,
    run: Path,
    out: Optional[Path] = None,
    overwrite: bool = False,
    share: Share = WHOLE,
) -> Path:
    """Plants, lets every selector search, and writes what it found; returns the folder of the tables.

    Needles are searched for with the run's own model; planted correlations with the solver, which is trained first where
    that is still to do, in ``RUN/solver``.

    Args:
        config: ``config.validation``, and the run's lengths.
        run: folder of the trained run.
        out: folder of the tables; None: one inside the run.
        overwrite: delete finished tables and measure again.
        share: which of the parts are measured here.

    Raises:
        UserError: the text, the run or the folder is not usable, or there is no room to plant.
    """
    settings, context = config.validation, config.context
    smallest = min(context.num_long_range, SOLVER_CONTEXT.num_long_range)
    if max(settings.k) > smallest:
        raise UserError(
            f"validation.k = {list(settings.k)}: the planted windows have only {smallest} long-range tokens"
        )
    held_out = open_run(config, run)
    model_sha256 = held_out.facts["sha256"]["model.pt"]
    key = fingerprint(
        SCHEMA_VERSION,
        to_dict(settings),
        to_dict(context),
        model_sha256,
        held_out.store.tokens_sha256,
        [getattr(config.influence, name) for name in WINDOW_KEYS],
    )
    folder = out if out is not None else run / "validation" / f"planted-n{settings.num_windows}-{key[:6]}"
    if is_measured(folder, "validation", key, overwrite):
        return folder

    num = settings.num_windows
    cells = [(suite, copies) for suite in NEEDLES for copies in settings.needle_copies]
    base, doc_ids = _natural_windows(config, held_out, num * len(cells))
    suites = [
        needle_windows(
            suite, copies, base[i * num :][:num], doc_ids[i * num :][:num], context.num_long_range,
            held_out.tokenizer, settings.seed,
        )
        for i, (suite, copies) in enumerate(cells)
    ]  # fmt: skip
    solver_model, solver_sha256 = _solver(config, run / "solver", held_out.device)
    suites += [correlated_windows(task, num, settings.seed) for task in TASKS]

    manifest: dict[str, Any] = {
        "kind": "validation",
        "run_id": key,
        "run": run.name,
        "source": held_out.source,
        "split": held_out.split,
        "validation": to_dict(settings),
        "context": lengths_record(config),
        "num_windows": num * len(suites),
        "suites": [{"suite": one.suite, "num_planted": one.num_planted, "full_len": one.rows.shape[1] - 1,
                    "local_len": one.rows.shape[1] - 1 - one.truth.shape[1]} for one in suites],
        "checkpoint": {"step": held_out.facts["step"], "model_sha256": model_sha256},
        "solver_sha256": solver_sha256,
        "tokens_sha256": held_out.store.tokens_sha256,
        "device": device_name(held_out.device),
    }  # fmt: skip
    logger.info(f"{folder}: {num} windows of each of {len(suites)} suites, {', '.join(settings.selectors)}")

    needle_evaluator, solver_evaluator = (  # once: on a GPU each searches for what its memory holds
        make_evaluator(model, config.influence, lengths.full_len, lengths.local_len)
        for model, lengths in ((held_out.model, context), (solver_model, SOLVER_CONTEXT))
    )

    def measure_suite(number: int, chosen: np.ndarray) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Rows of both tables, of some windows of one suite."""
        planted = suites[number].take(chosen - number * num)
        is_needle = planted.suite in NEEDLES
        evaluator = needle_evaluator if is_needle else solver_evaluator
        tokenizer = held_out.tokenizer if is_needle else solver_tokenizer()
        num_tokens = planted.rows.shape[1] - 1
        losses, ranked = find_planted(evaluator, planted, chosen, config, held_out.device)
        planted_rows, found_rows = [], []
        for i, window_id in enumerate(chosen.tolist()):
            positions, texts = np.flatnonzero(planted.truth[i]), token_texts(tokenizer, planted.rows[i])
            planted_rows.append(
                {
                    "window_id": window_id,
                    "suite": planted.suite,
                    "doc_id": planted.doc_ids[i],
                    "num_planted": planted.num_planted,
                    "planted_positions": positions,
                    "planted_distance_tokens": float((num_tokens - positions).mean()),
                    "token_texts": texts[:-1],
                    "target_text": texts[-1],
                    **{name: values[i] for name, values in losses.items()},
                }
            )
            found_rows += [
                {"window_id": window_id, "selector": name, "ranked_positions": ranked[name][i]} for name in ranked
            ]
        return planted_rows, found_rows

    def measure_part(chosen: np.ndarray) -> dict[str, dict[str, Any]]:
        rows: dict[str, list[dict[str, Any]]] = {"planted": [], "found": []}
        for number in np.unique(chosen // num).tolist():
            planted_rows, found_rows = measure_suite(number, chosen[chosen // num == number])
            rows["planted"] += planted_rows
            rows["found"] += found_rows
        return {name: {key: [row[key] for row in part] for key in part[0]} for name, part in rows.items()}

    measure_parts(folder, manifest, config.influence.windows_per_part, measure_part, overwrite, share)
    return folder
