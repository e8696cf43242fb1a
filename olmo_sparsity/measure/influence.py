"""Influence of long-range tokens: measures windows and writes the tables."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any, Optional

import numpy as np

from olmo_sparsity.config import Config, InfluenceConfig, fingerprint, to_dict
from olmo_sparsity.measure.batch_size import make_evaluator
from olmo_sparsity.measure.influence_tables import part_columns
from olmo_sparsity.measure.measurement import is_measured, measure_parts
from olmo_sparsity.measure.opened_run import lengths_record, open_run
from olmo_sparsity.measure.shares import WHOLE, Share
from olmo_sparsity.measure.window_influence import measure_windows
from olmo_sparsity.model.devices import device_name, supports_bf16
from olmo_sparsity.tables.schemas import SCHEMA_VERSION

logger = logging.getLogger(__name__)


def default_name(settings: InfluenceConfig, source: str, split: str, key: str) -> str:
    """A folder name that says what was measured, with a hash of all of it."""
    text = re.sub(r"[^A-Za-z0-9]+", "-", Path(source).name).strip("-")[:40] or "text"
    ks = "-".join(str(k) for k in settings.k)
    return f"{text}-{split}-n{settings.num_windows}-k{ks}-seed{settings.seed}-{key[:6]}"


def measure(
    config: Config,
    run: Path,
    out: Optional[Path] = None,
    overwrite: bool = False,
    share: Share = WHOLE,
) -> Path:
    """Measures a trained run's model; returns the folder of its tables.

    Finished, it is left as it is; interrupted, the missing parts are measured.

    Args:
        config: what to measure (``config.influence``), under which lengths.
        run: folder of the trained run.
        out: folder of the tables; None: one named after what is measured, inside the run.
        overwrite: delete finished tables and measure again.
        share: which of the parts are measured here.

    Raises:
        UserError: the text, the run or the folder is not usable.
    """
    settings, context = config.influence, config.context
    config.check_k()
    held_out = open_run(config, run)
    store, split = held_out.store, held_out.split
    model_sha256 = held_out.facts["sha256"]["model.pt"]
    key = fingerprint(
        SCHEMA_VERSION, to_dict(settings), to_dict(context), model_sha256, store.tokens_sha256, store.split
    )
    folder = out if out is not None else run / "influence" / default_name(settings, held_out.source, split, key)
    if is_measured(folder, "influence", key, overwrite):
        return folder

    windows = held_out.windows(config, context.full_len)
    num_documents = windows.num_documents
    if len(windows) < settings.num_windows:
        logger.info(
            f"the text holds {len(windows)} windows of {num_documents} documents, not the {settings.num_windows} asked "
            "for; influence.max_windows_per_document allows more of each"
        )
    manifest: dict[str, Any] = {
        "kind": "influence",
        "run_id": key,
        "run": run.name,
        "source": held_out.source,
        "split": split,
        "influence": to_dict(settings),
        "context": lengths_record(config),
        "num_windows": len(windows),
        "num_documents": num_documents,
        "pose": to_dict(config.pose),
        "num_parameters": held_out.manifest["num_parameters"],
        "checkpoint": {"step": held_out.facts["step"], "model_sha256": model_sha256},
        "tokens_sha256": store.tokens_sha256,
        "windows_sha256": windows.sha256,
        "device": device_name(held_out.device),
        "precision": settings.precision,
    }
    lengths = (context.full_len, context.local_len)
    evaluator = make_evaluator(held_out.model, settings, *lengths, settings.precision)
    screener = None
    if settings.screen is not None:
        low = (
            supports_bf16(held_out.device)
            if settings.screen_precision == "auto"
            else settings.screen_precision == "bf16"
        )
        precision = "bf16" if low else "fp32"
        if precision != settings.precision:
            screener = make_evaluator(held_out.model, settings, *lengths, precision)
    logger.info(
        f"{folder}: {len(windows)} windows of {num_documents} documents, {', '.join(settings.selectors)}, k = {list(settings.k)}"
    )

    def measure_part(chosen: np.ndarray) -> dict[str, dict[str, Any]]:
        numbers = measure_windows(evaluator, screener, windows, chosen, settings, held_out.device)
        return part_columns(windows, chosen, *numbers, settings, held_out.tokenizer, split, context.local_len)

    measure_parts(folder, manifest, settings.windows_per_part, measure_part, overwrite, share)
    return folder
