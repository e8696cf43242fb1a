"""Measures the influence of long-range tokens and writes the tables."""

from __future__ import annotations

import functools
import logging
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa

from olmo_sparsity.config import Config, ContextConfig, InfluenceConfig, fingerprint, to_dict
from olmo_sparsity.measure.influence_tables import InfluenceTables
from olmo_sparsity.measure.measurement import MeasurementPlan, PreparedMeasurement, run_measurement
from olmo_sparsity.measure.selection.window_influence import batches_of_contexts, measure_windows, try_selectors
from olmo_sparsity.measure.setup.fit import fit_entries
from olmo_sparsity.measure.setup.opened_model import (
    OpenedModel,
    identity,
    open_model,
)
from olmo_sparsity.measure.visible.evaluator import Evaluator
from olmo_sparsity.measure.visible.passes import windows_per_block
from olmo_sparsity.measure.work import WHOLE, Share, part_size, tokens_of_influence
from olmo_sparsity.records.own_selectors import own_entries, sources_of
from olmo_sparsity.records.selectors import needs_of
from olmo_sparsity.records.window_input import needs_pass
from olmo_sparsity.tables.schemas import SCHEMA_VERSION
from olmo_sparsity.text.null_contexts import NullContexts, draw_null_contexts
from olmo_sparsity.text.overlap import NGRAM, windows_in_training
from olmo_sparsity.text.units import WORD

logger = logging.getLogger(__name__)

MANY_K = 16  # more of them would make a folder's name too long; its end, the fingerprint, tells them apart
# Keys of ``influence`` that are resolved when the model is opened; ``identity`` holds what they become.
RESOLVED = ("local_len", "full_len", "anchor", "precision")


def measure(
    config: Config,
    run: Path,
    *,
    out: Optional[Path] = None,
    overwrite: bool = False,
    share: Share = WHOLE,
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
    run_id = influence_run_id(settings, opened)
    # The folder's name stays when the source of one's own selector changes: a resume with another source is then refused.
    name_id = influence_run_id(settings, opened, with_sources=False)
    folder = out or run / "influence" / default_name(settings, opened, trained=config.context, run_id=name_id)
    plan = MeasurementPlan(
        kind="influence",
        run_id=run_id,
        folder=folder,
        config=config,
        opened=opened,
        prepare=lambda: _prepare(settings, opened, folder=folder),
    )
    return run_measurement(plan, overwrite=overwrite, share=share)


def influence_run_id(settings: InfluenceConfig, opened: OpenedModel, *, with_sources: bool = True) -> str:
    """Return the fingerprint of everything that the tables of a measurement depend on.

    Args:
        settings: what is measured.
        opened: the model, and its text.
        with_sources: whether the sources of selectors of one's own are part of it.
    """
    store = opened.text.store
    resolved = {**to_dict(settings), **dict.fromkeys(RESOLVED)}
    return fingerprint(
        SCHEMA_VERSION,
        resolved,
        identity(opened),
        store.tokens_sha256,
        store.split,
        *([WORD.pattern] if settings.unit == "word" else []),  # by another rule, other groups
        *(sources_of(settings.selectors) if with_sources else ()),
    )


def default_name(settings: InfluenceConfig, opened: OpenedModel, *, trained: ContextConfig, run_id: str) -> str:
    """Return a folder name that tells what is measured, and ends with a part of the fingerprint.

    Lengths, unit, visibility and anchor are told where they are not those of the run, or the default.

    Args:
        settings: what is measured.
        opened: the model.
        trained: the lengths of the run.
        run_id: the fingerprint.
    """
    lengths = opened.lengths
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
    ks = settings.k
    names = "-".join(map(str, ks)) if len(ks) <= MANY_K else f"{ks[0]}to{ks[-1]}of{len(ks)}"
    return "-".join([*parts, f"n{settings.num_windows}", f"k{names}", f"seed{settings.seed}", run_id[:6]])


def _prepare(
    settings: InfluenceConfig,
    opened: OpenedModel,
    *,
    folder: Path,
) -> PreparedMeasurement:
    windows = opened.windows(settings)
    num_documents = windows.num_documents
    if len(windows) < settings.num_windows:
        logger.info(
            f"the text has only {len(windows):,} windows, from {num_documents:,} documents, not the {settings.num_windows:,} "
            "requested; a larger influence.max_windows_per_document allows more of each document"
        )
    null_contexts = draw_null_contexts(
        windows, opened.lengths.num_long_range, kind=settings.null_context, seed=settings.seed
    )
    evaluator_that_fits = functools.cache(lambda: opened.evaluator(settings))  # on a GPU making one runs the model
    fit = fit_entries(
        opened,
        windows,
        before_comparing=lambda: try_selectors(
            evaluator_that_fits(), null_contexts, settings=settings, tokenizer=opened.tokenizer
        ),
    )
    if null_contexts.kind != settings.null_context:
        logger.info(
            f"influence.null_context = {settings.null_context}: all text is one document, so its tokens are shuffled instead"
        )
    train_overlap_W = None
    # A window with its target may be too short to hold what is looked for.
    training_store = opened.text.training_store
    if settings.train_overlap and training_store is not None and windows.full_len + 1 >= NGRAM:
        train_overlap_W = windows_in_training(windows, training_store)
    logger.info(
        f"{folder}: {len(windows):,} windows of {num_documents:,} documents, {', '.join(settings.selectors)}, "
        f"k = {list(settings.k)}"
    )
    return prepare_windows(
        settings,
        opened,
        evaluator=evaluator_that_fits(),
        null_contexts=null_contexts,
        fit=fit,
        train_overlap_W=train_overlap_W,
    )


def prepare_windows(
    settings: InfluenceConfig,
    opened: OpenedModel,
    *,
    evaluator: Evaluator,
    null_contexts: NullContexts,
    fit: dict[str, Any],
    train_overlap_W: Optional[np.ndarray] = None,
) -> PreparedMeasurement:
    """Return the measurement of chosen windows; ``influence`` and the Python functions measure by it.

    Args:
        settings: what to measure.
        opened: the model, and the text of the windows.
        evaluator: of this model.
        null_contexts: the windows and their null contexts.
        fit: what ``fit_entries`` found of the model.
        train_overlap_W: bool; windows that share text with training. None: not known.
    """
    windows, lengths = null_contexts.windows, opened.lengths
    tokens_per_window = tokens_of_influence(settings, lengths)
    tables = InfluenceTables(
        null_contexts, settings, lengths, opened.tokenizer, opened.text.split, train_overlap_W=train_overlap_W
    )
    return PreparedMeasurement(
        num_windows=len(windows),
        part_size=part_size(settings.windows_per_part, tokens_per_window),
        measure_part=InfluenceParts(evaluator, tables).of_windows,
        tokens_per_window=tokens_per_window,
        manifest_entries={
            "influence": {**to_dict(settings), "null_context": null_contexts.kind},
            **({"own_selectors": own} if (own := own_entries(settings.selectors)) else {}),
            "num_documents": windows.num_documents,
            "windows_sha256": windows.sha256,
            **({} if opened.pose is None else {"pose": to_dict(opened.pose)}),
            **fit,
        },
    )


@dataclass(frozen=True)
class InfluenceParts:
    """Measures the windows of a part, and returns their tables.

    Attributes:
        evaluator: the model.
        tables: of the measurement; it knows the windows and the settings.
    """

    evaluator: Evaluator
    tables: InfluenceTables

    def of_windows(self, window_ids_W: np.ndarray) -> dict[str, pa.Table]:
        """Return every table of the windows with these numbers (int64), by its name."""
        per_block = len(window_ids_W)
        if self.evaluator.goes_on_from_prefix or needs_pass(needs_of(self.tables.settings.selectors)):
            # So that the keys and values of a window's prefix can be kept until all selectors are done with it.
            per_block = windows_per_block(self.evaluator, self.tables.windows.full_len)
        blocks = [
            self._of_block(window_ids_W[begin : begin + per_block]) for begin in range(0, len(window_ids_W), per_block)
        ]
        return {name: pa.concat_tables([block[name] for block in blocks]) for name in blocks[0]}

    def _of_block(self, window_ids_W: np.ndarray) -> dict[str, pa.Table]:
        settings = self.tables.settings
        batches = batches_of_contexts(
            self.tables.null_contexts,
            window_ids_W,
            seed=settings.seed,
            device=self.evaluator.model.device,
            unit=settings.unit,
            tokenizer=self.tables.tokenizer,
        )
        part = measure_windows(self.evaluator, batches, settings=settings, last_n=self.tables.lengths.last_n)
        return self.tables.of_part(window_ids_W, part)
