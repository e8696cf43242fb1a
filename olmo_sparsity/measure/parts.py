"""Runs a measurement: a folder of part files, each of a fixed range of windows.

A part is written atomically, and a rerun measures the missing parts only. Several processes, on one machine or on machines
that share a file system, may measure into the same folder, each its own share of the parts. They never wait for one
another: the first one writes the manifest, each records in a file of its own where it ran, and whichever finds that all
parts exist marks the measurement as complete.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa
from tokenizers import Tokenizer
from tqdm import tqdm

from olmo_sparsity.config import Config, InfluenceConfig, to_yaml
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import (
    clear_folder,
    environment,
    folder_name,
    make_folder,
    manifest_of_kind,
    read_manifest_of,
    write_json,
    write_manifest,
    write_text,
)
from olmo_sparsity.measure.opening import OpenedModel, check_same_model, lengths_record
from olmo_sparsity.measure.work import WHOLE, Share
from olmo_sparsity.model.devices import device_name
from olmo_sparsity.model.pretrained import ModelRecord
from olmo_sparsity.progress import listening, progress_bar
from olmo_sparsity.selectors import sources_of
from olmo_sparsity.tables import KINDS, check_begun, finalize, missing_parts, write_part

logger = logging.getLogger(__name__)

Sources = Sequence[tuple[str, Optional[str]]]  # names of selectors of one's own, and the hashes of their sources
MeasurePart = Callable[[np.ndarray], dict[str, pa.Table]]  # numbers of windows, int64 [W] -> each table by its name

# The keys that describe a measurement in its manifest, in the order in which they are written.
MANIFEST_KEYS = (
    "kind",
    "run_id",
    "run",
    "model",
    "source",
    "split",
    "influence",
    "own_selectors",
    "context",
    "visibility",
    "anchor",
    "num_windows",
    "num_documents",
    "pose",
    "num_parameters",
    "tokenizer_sha256",
    "checkpoint",
    "tokens_sha256",
    "windows_sha256",
    "device",
    "precision",
    "fit",
)


@dataclass(frozen=True)
class PreparedMeasurement:
    """What is known about a measurement once its windows are chosen.

    Attributes:
        num_windows: windows to measure.
        part_size: windows of one part file.
        measure_part: measures the windows of one part.
        tokens_per_window: about how many tokens the model runs for a window; it moves the bar within a part.
        manifest_entries: what the manifest holds beyond the entries that all kinds share.
    """

    num_windows: int
    part_size: int
    measure_part: MeasurePart
    tokens_per_window: int
    manifest_entries: dict[str, Any]


@dataclass(frozen=True)
class MeasurementPlan:
    """A measurement that ``run_measurement`` does.

    Attributes:
        kind: of its tables, as ``influence``.
        run_id: fingerprint of everything that the tables depend on.
        folder: where the tables go.
        config: the experiment; the folder of a pretrained model records it.
        opened: the model that is measured, and its text.
        prepare: chooses the windows and sets up the model. It is called only if something is left to measure, and before
            anything is deleted.
    """

    kind: str
    run_id: str
    folder: Path
    config: Config
    opened: OpenedModel
    prepare: Callable[[], PreparedMeasurement]


def run_measurement(plan: MeasurementPlan, *, overwrite: bool = False, share: Share = WHOLE) -> Path:
    """Measure what is missing of a measurement, and return its folder.

    Args:
        plan: the measurement.
        overwrite: delete finished tables and measure again; never with several processes.
        share: which of the parts this process measures.

    Raises:
        UserError: the folder holds another measurement, or something else.
    """
    if manifest_of_kind(plan.folder, plan.kind) and not overwrite:
        sources = sources_of(plan.config.influence.selectors)
        if is_measured(plan.folder, plan.kind, run_id=plan.run_id, sources=sources):
            return plan.folder
    prepared = plan.prepare()
    opened = plan.opened
    if opened.record is not None:
        begin_pretrained(plan.config, opened.folder, record=opened.record, tokenizer=opened.tokenizer)
    measure_parts(
        plan.folder,
        manifest_of(opened, prepared, kind=plan.kind, run_id=plan.run_id),
        part_size=prepared.part_size,
        measure_part=prepared.measure_part,
        tokens_per_window=prepared.tokens_per_window,
        overwrite=overwrite,
        share=share,
    )
    return plan.folder


def begin_pretrained(config: Config, run: Path, *, record: ModelRecord, tokenizer: Tokenizer) -> None:
    """Create the folder of a pretrained model with its manifest, configuration and tokenizer, unless it exists.

    The configuration tells the model, the text and the lengths; each measurement in the folder records its own settings and
    states the training row anew.

    Raises:
        UserError: another process has begun it with another model.
    """
    make_folder(run)
    manifest = {"kind": "pretrained", "status": "complete", "model": dataclasses.asdict(record)}
    write_manifest(run, manifest, once=True)  # first, because it marks the folder as ours
    check_same_model(run, record)
    kept = dataclasses.replace(
        config,
        name=folder_name(run),
        pretrained=dataclasses.replace(config.pretrained, train_len=None),
        influence=InfluenceConfig(),
    )
    for name, content in (("config.yaml", to_yaml(kept)), ("tokenizer.json", tokenizer.to_str())):
        if not (run / name).is_file():
            write_text(run / name, content)


def manifest_of(opened: OpenedModel, prepared: PreparedMeasurement, *, kind: str, run_id: str) -> dict[str, Any]:
    """Return what the manifest says about a measurement before it begins."""
    entries = {
        "kind": kind,
        "run_id": run_id,
        "run": opened.name,
        "source": opened.text.source,
        "split": opened.text.split,
        "context": lengths_record(opened),
        "visibility": opened.visibility,
        "anchor": None if opened.anchor is None else dataclasses.asdict(opened.anchor),
        "num_windows": prepared.num_windows,
        "num_parameters": opened.num_parameters,
        "tokenizer_sha256": opened.tokenizer_sha256,
        "tokens_sha256": opened.text.store.tokens_sha256,
        "device": device_name(opened.model.device),
        "precision": opened.precision,
        **prepared.manifest_entries,
    }
    if opened.record is not None:
        entries["model"] = dataclasses.asdict(opened.record)
    if opened.checkpoint is not None:
        entries["checkpoint"] = opened.checkpoint.record
    assert set(entries) <= set(MANIFEST_KEYS)
    return {key: entries[key] for key in MANIFEST_KEYS if key in entries}


def is_measured(folder: Path, kind: str, *, run_id: str, sources: Sources = ()) -> bool:
    """Return True if the folder holds the finished measurement with this fingerprint, with all its parts.

    ``sources`` are those of the selectors of one's own.

    Raises:
        UserError: the folder holds another measurement, or something else.
    """
    if not manifest_of_kind(folder, kind):
        return False
    manifest = read_manifest_of(folder, "num_windows")
    _check_run_id(folder, manifest, run_id=run_id, sources=sources)
    _check_told(folder, sources)
    if manifest.get("status") != "complete":
        return False
    if missing := missing_parts(folder, manifest):
        logger.info(
            f"{folder}: this measurement was finished, but {len(missing)} of {manifest['num_parts']} parts are gone; "
            "measuring them again"
        )
        return False
    logger.info(f"{folder}: already measured ({manifest['num_windows']:,} windows); nothing to do")
    return True


def _check_run_id(folder: Path, manifest: dict[str, Any], *, run_id: str, sources: Sources) -> None:
    if manifest.get("run_id") != run_id:
        begun = manifest.get("own_selectors", {})
        changed = [name for name, sha256 in sources if name in begun and begun[name].get("sha256") != sha256]
        if changed:
            raise UserError(
                f"{folder}: the source of the selector {', '.join(changed)} has changed since these tables were begun; choose "
                "another folder with --out DIR, or replace them with --overwrite"
            )
        raise UserError(
            f"{folder}: these tables were measured with other settings, another model or other text; choose another "
            "folder with --out DIR, or replace them with --overwrite"
        )


def _check_told(folder: Path, sources: Sources) -> None:
    """Check that tables that were begun are of these selectors of one's own, and not only of their names.

    Raises:
        UserError: it cannot be told.
    """
    if unknown := [name for name, sha256 in sources if sha256 is None]:
        raise UserError(
            f"{folder}: it cannot be told whether these tables are of the same {', '.join(unknown)}, whose source is not known; "
            "choose another folder, or put the selector into a file"
        )


def measure_parts(
    folder: Path,
    manifest: dict[str, Any],
    *,
    part_size: int,
    measure_part: MeasurePart,
    tokens_per_window: Optional[int] = None,
    overwrite: bool = False,
    share: Share = WHOLE,
    activity: Optional[str] = None,
) -> None:
    """Measure the missing parts of a share, write each when it is done, and close the measurement if it is complete.

    Args:
        folder: of the tables.
        manifest: describes the measurement: ``kind``, ``run_id``, ``num_windows``, ``context`` and more.
        part_size: windows of one part; a measurement that was begun before keeps its own.
        measure_part: measures the windows of one part.
        tokens_per_window: moves the bar within a part; None: it moves from part to part.
        overwrite: delete the folder's tables first; never with several processes.
        share: which of the parts this process measures.
        activity: what the bar says is done; None: the kind.

    Raises:
        UserError: the folder holds another measurement, or something else.
    """
    assert not (overwrite and share.count > 1)
    begun = _begin(folder, manifest, part_size=part_size, overwrite=overwrite)
    part_size = begun.get("windows_per_part", part_size)
    kind, num_windows = manifest["kind"], manifest["num_windows"]
    lengths = {name: str(value) for name, value in manifest["context"].items() if value is not None}
    metadata = {"run_id": manifest["run_id"], **lengths}

    def windows_of(part: int) -> np.ndarray:
        return np.arange(part * part_size, min((part + 1) * part_size, num_windows))

    own_parts = range(share.index, begun["num_parts"], share.count)
    missing = sorted(set(own_parts) & set(missing_parts(folder, begun)))
    if missing:
        _write_session(folder, share, device=manifest.get("device"))
    total = sum(len(windows_of(part)) for part in own_parts)
    left = sum(len(windows_of(part)) for part in missing)
    with progress_bar(activity or kind, " windows", total=total, initial=total - left) as bar:
        for part in missing:
            within = WithinPart(bar, len(windows_of(part)), tokens_per_window)
            with listening(within.tokens_ran):
                tables = measure_part(windows_of(part))
            tokens_per_window = within.tokens_per_window
            for table in reversed(KINDS[kind].tables):  # the first table last: its part vouches for the others
                if table in tables:
                    write_part(folder, table, part=part, content=tables[table], metadata=metadata)
            within.finish()
    finalize(folder)


class WithinPart:
    """Moves a bar of windows while a part is measured, by the tokens that the model has run so far.

    Attributes:
        tokens_per_window: about how many tokens a window takes; when the part is done, how many it took. None: not known.
    """

    def __init__(self, bar: tqdm[Any], num_windows: int, tokens_per_window: Optional[int]):
        """Begin a part of so many windows."""
        self._bar, self._num_windows, self._begin = bar, num_windows, bar.n
        self._ran = 0
        self.tokens_per_window = tokens_per_window

    def tokens_ran(self, num_tokens: int) -> None:
        """Move the bar; it reaches the end of the part only when the part is written."""
        self._ran += num_tokens
        if not self.tokens_per_window:
            return
        digits = 0 if self._num_windows >= 100 else 1 if self._num_windows >= 10 else 2
        step: float = 10**-digits
        windows = min(self._ran / self.tokens_per_window, self._num_windows - step)
        done = self._begin + round(math.floor(windows / step) * step, digits)
        if done > self._bar.n:
            self._bar.update(done - self._bar.n)

    def finish(self) -> None:
        """Move the bar to the end of the part."""
        end = self._begin + self._num_windows
        self._bar.update(end - self._bar.n)
        self._bar.n = end  # a sum of fractions may be off in its last digit
        if self._ran and self.tokens_per_window:
            self.tokens_per_window = max(1, self._ran // self._num_windows)


def _begin(folder: Path, manifest: dict[str, Any], *, part_size: int, overwrite: bool) -> dict[str, Any]:
    """Write the manifest unless another process has written it, and return the one on disk."""
    begun = {
        **manifest,
        "status": "running",
        "num_parts": -(-manifest["num_windows"] // part_size),
        "windows_per_part": part_size,
    }
    exists = manifest_of_kind(folder, manifest["kind"])
    sources = [(name, entry["sha256"]) for name, entry in manifest.get("own_selectors", {}).items()]
    if exists and not overwrite:
        _check_told(folder, sources)
    if exists and overwrite:
        logger.info(f"{folder}: deleting its tables (--overwrite)")
        clear_folder(folder)
        write_manifest(folder, begun)
    make_folder(folder)
    write_manifest(folder, begun, once=True)
    on_disk = read_manifest_of(folder)
    _check_run_id(folder, on_disk, run_id=manifest["run_id"], sources=sources)
    check_begun(folder, on_disk)
    return on_disk


def _write_session(folder: Path, share: Share, *, device: object) -> None:
    """Record where this process runs: parts of one measurement may come from several machines."""
    make_folder(folder / "sessions")
    session = {
        "share": f"{share.index}/{share.count}",
        "started": datetime.now(timezone.utc).isoformat(timespec="microseconds"),
        "device": device,
        "environment": environment(),
    }
    write_json(folder / "sessions" / f"{uuid.uuid4().hex}.json", session)
