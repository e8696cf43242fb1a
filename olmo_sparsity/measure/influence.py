"""Measures the influence of long-range tokens on a model, and writes the tables."""

from __future__ import annotations

import dataclasses
import logging
import re
from pathlib import Path
from typing import Any

from olmo_sparsity.config import Config, ContextConfig, InfluenceConfig, Lengths, fingerprint, to_dict
from olmo_sparsity.measure.opening import OpenedModel, identity, open_model
from olmo_sparsity.measure.parts import MeasurementPlan, PreparedMeasurement, run_measurement
from olmo_sparsity.measure.windows_measured import WindowsToMeasure
from olmo_sparsity.measure.work import WHOLE, Share
from olmo_sparsity.selectors import NULL_DRAWS, SELECTORS, own_entries, sources_of
from olmo_sparsity.tables import SCHEMA_VERSION
from olmo_sparsity.text.nulls import draw_null_contexts
from olmo_sparsity.text.overlap import NGRAM, windows_in_training
from olmo_sparsity.text.units import WORD
from olmo_sparsity.text.windows import few_documents

logger = logging.getLogger(__name__)

MANY_K = 16  # more of them would make a folder's name too long; its end, the fingerprint, tells them apart
TOKENS_PER_PART = 2**19  # minutes on a CPU for a model of 100M parameters; less than a second on a large GPU
# Keys of ``influence`` that are resolved when the model is opened; ``identity`` holds what they become.
RESOLVED = ("local_len", "full_len", "anchor", "precision")


def measure(
    config: Config, run: Path, *, out: Path | None = None, overwrite: bool = False, share: Share = WHOLE
) -> Path:
    """Measure the influence of long-range tokens on a model, and return the folder of the tables.

    A finished measurement is left as it is. Of an interrupted one the missing parts are measured.

    Args:
        config: what to measure (``config.influence``), the lengths, and the model where it is not the run's.
        run: folder of the trained run, or of the results of a pretrained model.
        out: folder of the tables; None: one inside the run, named after what is measured.
        overwrite: delete finished tables and measure again.
        share: which of the parts this process measures.

    Raises:
        UserError: the text, the model, the run or the folder is not usable.
    """
    settings = config.with_measured_k().influence
    opened = open_model(config, run)
    # The folder's name stays when the source of a selector of one's own changes: a resume with another source is then refused.
    name_id = influence_run_id(settings, opened, with_sources=False)
    folder = out or run / "influence" / default_name(settings, opened, trained=config.context, run_id=name_id)
    plan = MeasurementPlan(
        kind="influence",
        run_id=influence_run_id(settings, opened),
        folder=folder,
        config=config,
        opened=opened,
        prepare=lambda: _prepare(settings, opened, folder, config.data.validation_percent),
    )
    return run_measurement(plan, overwrite=overwrite, share=share)


def influence_run_id(settings: InfluenceConfig, opened: OpenedModel, *, with_sources: bool = True) -> str:
    """Return the fingerprint of everything that the tables of a measurement depend on.

    ``with_sources``: also of the sources of selectors of one's own.
    """
    store = opened.text.store
    return fingerprint(
        SCHEMA_VERSION,
        {**to_dict(settings), **dict.fromkeys(RESOLVED)},
        identity(opened),
        store.tokens_sha256,
        store.split,
        *([WORD.pattern] if settings.unit == "word" else []),  # by another rule, other candidates
        *(sources_of(settings.selectors) if with_sources else ()),
    )


def default_name(settings: InfluenceConfig, opened: OpenedModel, *, trained: ContextConfig, run_id: str) -> str:
    """Return a folder name that tells what is measured, and ends with a part of the fingerprint.

    Lengths, unit, visibility and anchor are told where they are not those of the run, or the default.
    """
    lengths, ks = opened.lengths, settings.k
    source = re.sub(r"[^A-Za-z0-9]+", "-", Path(opened.text.source).name).strip("-")[:40] or "text"
    parts = [source, opened.text.split]
    if opened.record is not None or (lengths.local_len, lengths.full_len) != (trained.local_len, trained.full_len):
        parts.append(f"{lengths.local_len}of{lengths.full_len}")
    if settings.unit != "token":
        parts.append(settings.unit.replace(":", ""))
    if settings.visibility != "hidden":
        parts.append(settings.visibility)
    if opened.anchor is not None:
        parts.append("bos")
    names = "-".join(map(str, ks)) if len(ks) <= MANY_K else f"{ks[0]}to{ks[-1]}of{len(ks)}"
    return "-".join([*parts, f"n{settings.num_windows}", f"k{names}", f"seed{settings.seed}", run_id[:6]])


def _prepare(settings: InfluenceConfig, opened: OpenedModel, folder: Path, percent: float) -> PreparedMeasurement:
    windows = opened.windows(settings)
    if len(windows) < settings.num_windows:
        logger.info(
            f"the text has only {len(windows):,} windows, from {windows.num_documents:,} documents, not the "
            f"{settings.num_windows:,} requested; a larger influence.max_windows_per_document allows more of each document"
        )
    if few := few_documents(
        windows.store.doc_ids_G[windows.eligible_g],
        percent if opened.text.split == "validation" else None,
        lambda number: opened.windows(dataclasses.replace(settings, num_windows=number)),
        settings.num_windows,
    ):
        logger.warning(few)
    null_contexts = draw_null_contexts(
        windows, opened.lengths.num_long_range, kind=settings.null_context, seed=settings.seed
    )
    if null_contexts.kind != settings.null_context:
        logger.info(
            f"influence.null_context = {settings.null_context}: all text is one document, so its tokens are shuffled instead"
        )
    training_store, train_overlap_W = opened.text.training_store, None
    # A window with its target may be too short to hold what is looked for.
    if training_store is not None and windows.full_len + 1 >= NGRAM:
        train_overlap_W = windows_in_training(windows, training_store)
    fit = opened.fit(windows)
    measured = WindowsToMeasure(
        opened.engine(settings), null_contexts, settings, opened.lengths, opened.tokenizer, opened.text.split,
        train_overlap_W,
    )  # fmt: skip
    measured.try_selectors()
    logger.info(
        f"{folder}: {len(windows):,} windows of {windows.num_documents:,} documents, {', '.join(settings.selectors)}, "
        f"k = {list(settings.k)}"
    )
    return prepared_windows(measured, opened, fit=fit)


def prepared_windows(measured: WindowsToMeasure, opened: OpenedModel, *, fit: dict[str, Any]) -> PreparedMeasurement:
    """Return the measurement of chosen windows; ``influence`` and the Python functions measure by it."""
    settings, windows = measured.settings, measured.null_contexts.windows
    tokens = tokens_per_window(settings, opened.lengths)
    return PreparedMeasurement(
        num_windows=len(windows),
        part_size=max(1, min(settings.windows_per_part, TOKENS_PER_PART // tokens)),
        measure_part=measured.tables_of,
        tokens_per_window=tokens,
        manifest_entries={
            "influence": {**to_dict(settings), "null_context": measured.null_contexts.kind},
            **({"own_selectors": own} if (own := own_entries(settings.selectors)) else {}),
            "num_documents": windows.num_documents,
            "windows_sha256": windows.sha256,
            **({} if opened.pose is None else {"pose": to_dict(opened.pose)}),
            **fit,
        },
    )


def tokens_per_window(settings: InfluenceConfig, lengths: Lengths) -> int:
    """Return about how many tokens the model runs for a window: the size of parts, and the pace of the bar within one."""
    contexts, draws = 2, settings.resampled_draws + min(NULL_DRAWS, settings.resampled_draws)
    labels = {name: contexts + (draws if SELECTORS[name].sees_target else 0) for name in settings.selectors}
    rows = sum(number * len(settings.k) for number in labels.values())
    rows += contexts * sum(SELECTORS[name].num_evaluations(lengths.num_long_range, settings) for name in labels)
    return contexts * lengths.full_len + sum(lengths.last_n) + rows * (lengths.local_len + 1)
