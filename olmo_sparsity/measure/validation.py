"""Measures whether the selectors find planted needles, and writes tables of what each of them ranks first.

Whether they find tokens that matter only together is asked by the bridge of a trained parity model (``measure.bridge``).
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa
import torch
from tokenizers import Tokenizer

from olmo_sparsity.config import Config, InfluenceConfig, ValidationConfig, fingerprint, to_dict
from olmo_sparsity.config.keys import counted
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.measurement import MeasurementPlan, PreparedMeasurement, run_measurement
from olmo_sparsity.measure.planted import (
    LEAST_NEEDLE_TOKENS,
    MAX_NEEDLE_TOKENS,
    NEEDLES,
    PlantedWindows,
    needle_windows,
)
from olmo_sparsity.measure.selection.predictions import Predictions
from olmo_sparsity.measure.selection.scores import WindowScores
from olmo_sparsity.measure.selection.window_influence import loss_of_recent_tokens
from olmo_sparsity.measure.setup.fit import fit_entries
from olmo_sparsity.measure.setup.opened_model import OpenedModel, identity, open_model, settings_identity
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.losses import mask_losses, short_log_probs
from olmo_sparsity.measure.visible.window_batch import WindowBatch
from olmo_sparsity.measure.work import WHOLE, Share, part_size, tokens_of_influence
from olmo_sparsity.records.measured import MeasuredLengths
from olmo_sparsity.records.selectors import SELECTORS, any_asks_for_divergences, any_needs_attention, rank
from olmo_sparsity.synthetic.planted import GENERATOR_VERSION
from olmo_sparsity.tables.schemas import SCHEMA_VERSION, schemas
from olmo_sparsity.text.vocabulary import token_texts
from olmo_sparsity.text.windows import Windows

logger = logging.getLogger(__name__)

# The keys of `influence` that the natural windows and the scores depend on.
WINDOW_KEYS = ("seed", "targets", "sampling", "max_windows_per_document", "lasso_masks", "path", "min_preceding")


@dataclass(frozen=True)
class PlantedFindings:
    """What was measured on W planted windows; losses in nats, fp32."""

    loss_short_W: np.ndarray  # with only the local tokens visible
    loss_short_no_gap_W: np.ndarray  # with these directly behind the anchor
    loss_long_W: np.ndarray  # with all tokens visible
    loss_planted_W: np.ndarray  # with the local and the planted tokens visible
    ranked_WM: dict[str, np.ndarray]  # of each selector: long-range positions, most influential first, int64


def check_room(settings: ValidationConfig, lengths: MeasuredLengths) -> None:
    """Check that windows have as many long-range tokens as ``validation.k`` asks for, and room for needles.

    Raises:
        UserError: they do not.
    """
    long_range, copies = counted(lengths.num_long_range, "long-range token"), max(settings.needle_copies)
    if max(settings.k) > lengths.num_long_range:
        raise UserError(f"validation.k = {list(settings.k)}: the planted windows have only {long_range}")
    if copies * LEAST_NEEDLE_TOKENS > lengths.num_long_range:
        raise UserError(
            f"validation.needle_copies = {list(settings.needle_copies)}: a needle takes at least {LEAST_NEEDLE_TOKENS} tokens, "
            f"and the windows have only {long_range}"
        )
    if lengths.local_len < LEAST_NEEDLE_TOKENS:
        raise UserError(
            f"local_len = {lengths.local_len}: a needle takes at least {LEAST_NEEDLE_TOKENS} tokens, and the local ones must "
            f"have room for it; use --local-len {LEAST_NEEDLE_TOKENS} or more"
        )


def validate(
    config: Config,
    run: Path,
    *,
    out: Optional[Path] = None,
    overwrite: bool = False,
    share: Share = WHOLE,
) -> Path:
    """Plant needles, let every selector search for them, and return the folder of the tables of what they found.

    Args:
        config: ``config.validation``, the lengths, and the model where it is not the run's.
        run: folder of the trained run, or of the results of a pretrained model.
        out: folder of the tables; None: one inside the run.
        overwrite: delete finished tables and measure again.
        share: which of the parts this process measures.

    Raises:
        UserError: the text, the model, the run or the folder is not usable, or there is no room to plant.
    """
    settings = config.validation
    check_room(settings, config.measured_lengths)
    opened = open_model(config, run)
    run_id = fingerprint(
        SCHEMA_VERSION,
        GENERATOR_VERSION,
        to_dict(settings),
        identity(opened),
        opened.text.store.tokens_sha256,
        list(settings_identity(config.influence, WINDOW_KEYS).values()),
    )
    folder = out or run / "validation" / f"planted-n{settings.num_windows}-{run_id[:6]}"
    plan = MeasurementPlan(
        kind="validation",
        run_id=run_id,
        folder=folder,
        config=config,
        opened=opened,
        prepare=lambda begun: _prepare(settings, config.influence, opened, folder=folder, begun=begun),
    )
    return run_measurement(plan, overwrite=overwrite, share=share)


def _prepare(
    settings: ValidationConfig,
    influence: InfluenceConfig,
    opened: OpenedModel,
    *,
    folder: Path,
    begun: Optional[dict[str, Any]],
) -> PreparedMeasurement:
    lengths, num_windows = opened.lengths, settings.num_windows
    # The windows that needles are planted into, fewer if the text has fewer.
    num_natural = num_windows * len(_needle_kinds(settings))
    natural = opened.windows(dataclasses.replace(influence, num_windows=num_natural))
    # Before the first tokens are compared, which may take minutes: it may find no room.
    suites = _needle_suites(settings, opened, natural)
    entries = fit_entries(opened, natural, drawn=influence, begun=begun)
    # One evaluator, not one a suite: on a GPU each one searches for what its memory holds.
    evaluator = opened.evaluator(influence)
    logger.info(f"{folder}: {num_windows:,} windows of each of {len(suites)} suites, {', '.join(settings.selectors)}")

    def measure_part(window_ids_W: np.ndarray) -> dict[str, pa.Table]:
        planted_rows, found_rows = [], []
        suite_W = window_ids_W // num_windows
        for number in np.unique(suite_W).tolist():
            window_ids_w = window_ids_W[suite_W == number]
            windows = suites[number].subset(window_ids_w - number * num_windows)
            findings = find_planted(
                evaluator,
                windows,
                window_ids_W=window_ids_w,
                settings=settings,
                num_lasso_masks=influence.lasso_masks,
                device=opened.device,
            )
            planted_rows += _planted_rows(windows, window_ids_w, findings=findings, tokenizer=opened.tokenizer)
            found_rows += _found_rows(window_ids_w, findings)
        schema_of = schemas(lengths.num_long_range)
        return {
            "planted": pa.Table.from_pylist(planted_rows, schema=schema_of["planted"]),
            "found": pa.Table.from_pylist(found_rows, schema=schema_of["found"]),
        }

    of_validation = dataclasses.replace(
        influence, selectors=settings.selectors, k=settings.k, screen=None, resampled_draws=0, pairs_windows=0
    )
    tokens_per_window = tokens_of_influence(of_validation, lengths)
    return PreparedMeasurement(
        num_windows=num_windows * len(suites),
        part_size=part_size(influence.windows_per_part, tokens_per_window),
        measure_part=measure_part,
        tokens_per_window=tokens_per_window,
        manifest_entries={
            "validation": to_dict(settings),
            "suites": [_suite_entry(suite) for suite in suites],
            **entries,
        },
    )


def _needle_kinds(settings: ValidationConfig) -> list[tuple[str, int]]:
    """Return (suite, copies of the needle) of every suite of needles."""
    return [(suite, copies) for suite in NEEDLES for copies in settings.needle_copies]


def _needle_suites(settings: ValidationConfig, opened: OpenedModel, natural: Windows) -> list[PlantedWindows]:
    """Plant each kind of needle, each number of times, into windows of its own; used repeatedly if there are too few."""
    kinds = _needle_kinds(settings)
    num_windows = settings.num_windows * len(kinds)
    if len(natural) < num_windows:
        logger.info(
            f"the text has only {len(natural):,} windows, and the needles need {num_windows:,}; windows are used repeatedly"
        )
    chosen_W = np.arange(num_windows) % len(natural)
    rows_WT, doc_ids = natural.tokens(chosen_W), natural.doc_ids(chosen_W)
    suites = []
    for i, (suite, copies) in enumerate(kinds):
        own = slice(i * settings.num_windows, (i + 1) * settings.num_windows)
        suites.append(
            needle_windows(
                suite,
                copies,
                rows_WT=rows_WT[own],
                doc_ids=doc_ids[own],
                num_long_range=opened.lengths.num_long_range,
                tokenizer=opened.tokenizer,
                seed=settings.seed,
            )
        )
    return suites


def find_planted(
    evaluator: Evaluator,
    planted: PlantedWindows,
    *,
    window_ids_W: np.ndarray,
    settings: ValidationConfig,
    num_lasso_masks: int,
    device: torch.device,
) -> PlantedFindings:
    """Return the losses of planted windows, and how every selector ranks their long-range positions.

    Args:
        evaluator: the model.
        planted: the windows.
        window_ids_W: int64, their numbers in the tables.
        settings: the selectors, and which k.
        num_lasso_masks: ``influence.lasso_masks``.
        device: where the model is.
    """
    max_planted = planted.num_planted * MAX_NEEDLE_TOKENS
    rows_WT = torch.from_numpy(planted.rows_WT).to(device)
    tokens_WT, targets_W = rows_WT[:, :-1].contiguous(), rows_WT[:, -1].contiguous()
    predictions = Predictions(
        evaluator,
        WindowBatch(tokens_WT, targets_W, window_ids_W=window_ids_W, context="real", seed=settings.seed),
        log_p_short_WV=short_log_probs(evaluator, tokens_WT),
        num_lasso_masks=num_lasso_masks,
        with_kl=any_asks_for_divergences(settings.selectors),
        with_attention=any_needs_attention(settings.selectors),
    )
    # At least as many as were planted: otherwise greedy would stop before it can find them all.
    scores = WindowScores(predictions, max_k=min(planted.num_long_range, max(*settings.k, max_planted)))
    truth_WNM = torch.from_numpy(planted.truth_WM).to(device)[:, None, :]
    loss_planted_WNA = mask_losses(evaluator, tokens_WT, labels_WA=targets_W[:, None], visible_WNM=truth_WNM)
    return PlantedFindings(
        loss_short_W=scores.loss_short_W,
        loss_short_no_gap_W=loss_of_recent_tokens(scores, evaluator.local_len, in_place=False),
        loss_long_W=scores.loss_long_W,
        loss_planted_W=loss_planted_WNA[:, 0, 0].cpu().numpy(),
        ranked_WM={name: rank(SELECTORS[name].score(scores)) for name in settings.selectors},
    )


def _suite_entry(planted: PlantedWindows) -> dict[str, Any]:
    """Return what the manifest records of a suite."""
    return {
        "suite": planted.suite,
        "num_planted": planted.num_planted,
        "full_len": planted.full_len,
        "local_len": planted.full_len - planted.num_long_range,
    }


def _planted_rows(
    planted: PlantedWindows, window_ids_W: np.ndarray, *, findings: PlantedFindings, tokenizer: Tokenizer
) -> list[dict[str, Any]]:
    """Return the rows of the table ``planted``."""
    rows = []
    for w, window_id in enumerate(window_ids_W.tolist()):
        positions = np.flatnonzero(planted.truth_WM[w])
        texts = token_texts(tokenizer, planted.rows_WT[w])
        rows.append(
            {
                "window_id": window_id,
                "suite": planted.suite,
                "doc_id": planted.doc_ids[w],
                "num_planted": planted.num_planted,
                "planted_positions": positions,
                "planted_distance_tokens": float((planted.full_len - positions).mean()),
                "token_texts": texts[:-1],
                "target_text": texts[-1],
                "loss_short_nats": findings.loss_short_W[w],
                "loss_short_no_gap_nats": findings.loss_short_no_gap_W[w],
                "loss_long_nats": findings.loss_long_W[w],
                "loss_planted_nats": findings.loss_planted_W[w],
            }
        )
    return rows


def _found_rows(window_ids_W: np.ndarray, findings: PlantedFindings) -> list[dict[str, Any]]:
    """Return the rows of the table ``found``."""
    return [
        {"window_id": window_id, "selector": name, "ranked_positions": ranked_WM[w]}
        for w, window_id in enumerate(window_ids_W.tolist())
        for name, ranked_WM in findings.ranked_WM.items()
    ]
