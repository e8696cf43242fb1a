"""Measures the influence of long-range tokens on a model, and writes the tables."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
from pathlib import Path
from typing import Any, Optional

import numpy as np

from olmo_sparsity.config import Config, InfluenceConfig, Lengths, fingerprint, to_dict
from olmo_sparsity.files import exclusive_lock, folder_name, make_folder, read_json, sha256_text, write_json
from olmo_sparsity.measure import parts
from olmo_sparsity.measure.evaluate import Measurement
from olmo_sparsity.measure.opening import MeasuredText, OpenedModel, open_model, open_text
from olmo_sparsity.measure.parts import WHOLE, Share, begin_pretrained
from olmo_sparsity.model.devices import device_name
from olmo_sparsity.selectors import NULL_DRAWS, SELECTORS, own_entries, sources_of
from olmo_sparsity.tables import SCHEMA_VERSION
from olmo_sparsity.text.nulls import NullContexts, draw_null_contexts
from olmo_sparsity.text.overlap import NGRAM, windows_in_training
from olmo_sparsity.text.store import TokenStore
from olmo_sparsity.text.units import WORD
from olmo_sparsity.text.windows import Windows, few_documents, sample_windows

logger = logging.getLogger(__name__)

MANY_K = 16  # more of them would make a folder's name too long; its end, the fingerprint, tells them apart
TOKENS_PER_PART = 2**19  # minutes on a CPU for a model of 100M parameters; less than a second on a large GPU
# Keys of ``influence`` that are resolved when the model is opened; ``OpenedModel.identity`` has what they become.
RESOLVED = ("local_len", "full_len", "anchor", "precision")


def measure(
    config: Config, run: Path, *, out: Path | None = None, overwrite: bool = False, share: Share = WHOLE
) -> Path:
    """Measure the influence of long-range tokens on a model, and return the folder of the tables.

    A finished measurement is left as it is, unless it is to be overwritten; of an interrupted one the missing parts are
    measured. ``out``: folder of the tables; None: one inside the run, named after what is measured.
    """
    request, config = parts.request_of(config), config.with_measured_k()
    settings, lengths = config.influence, config.measured_lengths
    opened = open_model(config, run)
    text = open_text(opened)
    run_id = influence_run_id(settings, opened, text.store)
    # The folder's name stays when the source of a user's selector changes: a resume with another source is then refused.
    name_id = influence_run_id(settings, opened, text.store, with_sources=False)
    folder = out or run / "influence" / default_name(settings, opened, text.source, text.split, run_id=name_id)
    if not overwrite:
        sources = sources_of(settings.selectors)
        if parts.is_complete(folder, parts.begun(folder, run_id=run_id, sources=sources)):
            return folder
    null_contexts, overlap_W = draw_contexts(opened, text)
    windows = null_contexts.windows
    fit = shared_fit(opened, windows, share)
    measurement = Measurement(
        opened.engine(settings), null_contexts, settings, lengths, opened.tokenizer, text.split, overlap_W
    )
    measurement.try_selectors()
    manifest = manifest_of(opened, measurement, source=text.source, run_id=run_id, fit=fit) | {"request": request}
    logger.info(
        f"{folder}: {len(windows):,} windows of {windows.num_documents:,} documents, {', '.join(settings.selectors)}, "
        f"k = {settings.ks}"
    )
    missing = parts.missing(
        folder, manifest, part_size=part_size(settings, lengths), tokens_per_window=tokens_per_window(settings, lengths),
        overwrite=overwrite, share=share,
    )  # fmt: skip
    with contextlib.closing(missing):
        for window_ids, write in missing:
            write(measurement.tables_of(window_ids))
    return folder


def draw_contexts(opened: OpenedModel, text: MeasuredText) -> tuple[NullContexts, Optional[np.ndarray]]:
    """Windows with their null contexts, and which windows share text with training (bool; None: not known)."""
    settings, lengths = opened.config.influence, opened.lengths
    options = {"exclude_ids": text.excluded_ids_G, "target_table_V": opened.target_table_V}
    windows = sample_windows(text.store, lengths.full_len, settings, **options)
    if len(windows) < settings.num_windows:
        logger.info(
            f"the text has only {len(windows):,} windows, from {windows.num_documents:,} documents, not the "
            f"{settings.num_windows:,} requested; a larger influence.max_windows_per_document allows more of each document"
        )
    percent = opened.config.data.validation_percent if text.split == "validation" else None
    if few := few_documents(windows.store.doc_ids_G[windows.eligible_g], percent, windows):
        logger.warning(few)
    null_contexts = draw_null_contexts(windows, lengths.num_long_range, kind=settings.null_context, seed=settings.seed)
    if null_contexts.kind != settings.null_context:
        logger.info(
            f"influence.null_context = {settings.null_context}: all text is one document, so its tokens are shuffled instead"
        )
    # A window with its target may be too short to hold the n-grams.
    if text.training_store is None or lengths.full_len + 1 < NGRAM:
        return null_contexts, None
    return null_contexts, windows_in_training(windows, text.training_store)


def influence_run_id(
    settings: InfluenceConfig, opened: OpenedModel, store: TokenStore, *, with_sources: bool = True
) -> str:
    """The fingerprint of everything that the tables depend on; ``with_sources``: also of the sources of users' selectors."""
    return fingerprint(
        SCHEMA_VERSION,
        {**to_dict(settings), **dict.fromkeys(RESOLVED)},
        opened.identity(),
        store.tokens_sha256,
        store.split,
        *([WORD.pattern] if settings.unit == "word" else []),  # by another rule, other candidates
        *(sources_of(settings.selectors) if with_sources else ()),
    )


def default_name(settings: InfluenceConfig, opened: OpenedModel, source: str, split: str, *, run_id: str) -> str:
    """A folder name that says what is measured, and ends with a part of the fingerprint.

    Lengths, unit, visibility and anchor are in it where they are not those of the run, or the default.
    """
    lengths, trained, ks = opened.lengths, opened.config.context, settings.ks
    words = [re.sub(r"[^A-Za-z0-9]+", "-", Path(source).name).strip("-")[:40] or "text", split]
    if opened.record is not None or (lengths.local_len, lengths.full_len) != (trained.local_len, trained.full_len):
        words.append(f"{lengths.local_len}of{lengths.full_len}")
    if settings.unit != "token":
        words.append(settings.unit.replace(":", ""))
    if settings.visibility != "hidden":
        words.append(settings.visibility)
    if opened.anchor is not None:
        words.append("bos")
    names = "-".join(map(str, ks)) if len(ks) <= MANY_K else f"{ks[0]}to{ks[-1]}of{len(ks)}"
    return "-".join([*words, f"n{settings.num_windows}", f"k{names}", f"seed{settings.seed}", run_id[:6]])


def shared_fit(opened: OpenedModel, windows: Windows, share: Share) -> dict[str, Any]:
    """The manifest's entry about a pretrained model's checks, which take minutes; the first process makes them for all.

    The folder of its results begins here.
    """
    if opened.record is None:
        return {}
    run, key = opened.folder, fingerprint(opened.identity(), windows.sha256)
    path = run / "checks" / f"{key[:16]}.json"
    with exclusive_lock(run.parent / f".{run.name}.checks.lock") if share.count > 1 else contextlib.nullcontext():
        fit = None if path.is_file() else opened.fit(windows)["fit"]
        begin_pretrained(opened.config, run, record=opened.record, tokenizer=opened.tokenizer)
        if fit is not None:
            make_folder(path.parent)
            write_json(path, fit)
        return {"fit": read_json(path)}


def manifest_of(
    opened: OpenedModel, measurement: Measurement, *, source: str, run_id: str, fit: dict[str, Any]
) -> dict[str, Any]:
    """The manifest of a measurement before it begins; ``source``: of the text."""
    windows, settings, lengths = measurement.null_contexts.windows, measurement.settings, opened.lengths
    pose = None if opened.record is not None else opened.config.pose
    context: dict[str, Any] = {name: getattr(lengths, name) for name in ("local_len", "full_len", "train_len")}
    context["max_position"] = opened.max_position
    if pose is not None:
        context |= {"pose_method": pose.method, "num_chunks": pose.num_chunks, "pose_contents": pose.contents}
    elif lengths.train_len is not None:
        context["train_len_is_stated"] = True
    entries: dict[str, Optional[Any]] = {
        "kind": "influence",
        "run_id": run_id,
        "run": folder_name(opened.folder),
        "model": opened.record and dataclasses.asdict(opened.record),
        "source": source,
        "split": measurement.split,
        "influence": {**to_dict(settings), "null_context": measurement.null_contexts.kind},
        "own_selectors": own_entries(settings.selectors) or None,
        "context": {**context, "num_long_range": lengths.num_long_range},
        "visibility": opened.visibility,
        "num_windows": len(windows),
        "num_documents": windows.num_documents,
        "pose": pose and to_dict(pose),
        "num_parameters": opened.num_parameters,
        "tokenizer_sha256": sha256_text(opened.tokenizer.to_str()),
        "checkpoint": opened.checkpoint,
        "tokens_sha256": windows.store.tokens_sha256,
        "windows_sha256": windows.sha256,
        "device": device_name(opened.model.device),
        "precision": opened.precision,
        **fit,
    }
    present = {key: value for key, value in entries.items() if value is not None}
    return {**present, "anchor": opened.anchor and dataclasses.asdict(opened.anchor)}


def part_size(settings: InfluenceConfig, lengths: Lengths) -> int:
    """Windows of one part."""
    return max(1, min(settings.windows_per_part, TOKENS_PER_PART // tokens_per_window(settings, lengths)))


def tokens_per_window(settings: InfluenceConfig, lengths: Lengths) -> int:
    """About how many tokens the model runs for a window: the size of parts, and the pace of the bar within one."""
    contexts, draws = 2, settings.resampled_draws + min(NULL_DRAWS, settings.resampled_draws)
    labels = {name: contexts + (draws if SELECTORS[name].sees_target else 0) for name in settings.selectors}
    rows = sum(number * len(settings.ks) for number in labels.values())
    rows += contexts * sum(SELECTORS[name].num_evaluations(lengths.num_long_range, settings) for name in labels)
    return contexts * lengths.full_len + sum(lengths.last_n) + rows * (lengths.local_len + 1)
