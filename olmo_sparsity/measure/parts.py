"""Runs a measurement: a folder of part files, each of a fixed range of windows. Nothing here needs a model or torch.

A part is written atomically, and a rerun measures the missing parts only. Several processes, on one machine or on machines
that share a file system, may measure into the same folder, each its own share of the parts. They never wait for one
another here: the first one writes the manifest, each records in a file of its own where it runs, and the one that finds all
parts marks the measurement as complete.
"""

from __future__ import annotations

import dataclasses
import functools
import glob
import logging
import os
import re
import time
import uuid
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from olmo_sparsity.config import Config, InfluenceConfig, fingerprint, to_dict, to_yaml
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import (
    clear_folder,
    environment,
    folder_name,
    make_folder,
    manifest_of_kind,
    need,
    read_manifest_of,
    write_json,
    write_manifest,
    write_text,
)
from olmo_sparsity.progress import listening, progress_bar
from olmo_sparsity.selectors import sources_of
from olmo_sparsity.tables import KINDS, OF_TABLES, SCHEMA_VERSION, check_begun, finalize, missing_parts, write_part
from olmo_sparsity.torchrun import current_process

if TYPE_CHECKING:
    import pyarrow as pa
    from tokenizers import Tokenizer

    from olmo_sparsity.model.pretrained import ModelRecord

logger = logging.getLogger(__name__)

Sources = Sequence[tuple[str, Optional[str]]]  # names of a user's selectors, and the hashes of their sources
WriteTables = Callable[["dict[str, pa.Table]"], None]  # takes the tables of a part by their names


@dataclass(frozen=True)
class Share:
    """The parts of one of ``count`` processes: their numbers leave ``index`` when divided by ``count``.

    Shares are not ranges of parts: the missing parts of a folder that one process began are at its end, and each of several
    processes that continue it still gets as many.
    """

    index: int = 0
    count: int = 1
    is_leader: bool = True  # False: another process of the same terminal prints messages and results


WHOLE = Share()  # all parts, measured by one process


def share_of_process(shard: Optional[str], *, overwrite: bool, variables: Mapping[str, str] = os.environ) -> Share:
    """The share of this process: ``--shard I/N`` (None: all), split further among the processes of torchrun."""
    match = re.fullmatch(r"([0-9]{1,9})/([0-9]{1,9})", "0/1" if shard is None else shard)
    if match is None or int(match[1]) >= int(match[2]):
        raise UserError(
            f"--shard {shard}: must be I/N, with I from 0 to N - 1; for example, 0/2 and 1/2 for two processes"
        )
    process, (index, count) = current_process(variables), map(int, match.groups())
    share = Share(index * process.world_size + process.rank, count * process.world_size, is_leader=process.is_leader)
    if overwrite and share.count > 1:
        raise UserError(
            f"--overwrite: with {share.count} processes, each would delete what the others measure; delete the folder, or "
            "choose another with --out DIR"
        )
    return share


def request_of(config: Config) -> dict[str, Any]:
    """What was requested, and when, before anything was read: an entry of the manifest by which ``finished`` finds it."""
    sources = [*sources_of(config.influence.selectors)]
    return {"sha256": fingerprint(SCHEMA_VERSION, to_dict(config), sources), "time": time.time()}


def finished(config: Config, run: Path, out: Optional[Path]) -> Optional[Path]:
    """The folder of a finished measurement of the same request, found from manifests alone; None: look closer.

    A file of the model or of the text that changed after the measurement had begun (its ctime, which no program sets) asks for
    a closer look, which hashes it.
    """
    sha256 = request_of(config)["sha256"]
    for path in [out / "manifest.json"] if out else sorted((run / "influence").glob("*/manifest.json")):
        try:
            manifest = read_manifest_of(path.parent, *OF_TABLES)
        except UserError:  # missing, or damaged, which is reported where it is opened
            continue
        request = manifest.get("request") or {}
        if (
            request.get("sha256") == sha256
            and not _changed_since(request["time"], config, run)
            and is_complete(path.parent, manifest)
        ):
            return path.parent
    return None


def _changed_since(start: float, config: Config, run: Path) -> bool:
    model, text = config.pretrained.model, config.influence.data
    roots = [run / "manifest.json", run / "tokenizer.json", run / "checkpoints"]
    if model is not None:
        roots, text = [Path(model).expanduser()], text or config.data.source
    if text is not None:
        source = Path(text).expanduser()
        roots += [source] if source.exists() else map(Path, glob.glob(str(source), recursive=True))
    paths = (path for root in roots if os.path.lexists(root) for path in (root, *root.rglob("*")))
    try:
        return any(path.stat().st_ctime > start for path in paths)
    except OSError:  # a broken link
        return True


def is_complete(folder: Path, manifest: Optional[dict[str, Any]]) -> bool:
    """Whether a measurement is finished and has all its parts; None: it was not begun."""
    if manifest is None or manifest.get("status") != "complete" or missing_parts(folder, manifest):
        return False
    logger.info(f"{folder}: already measured ({manifest['num_windows']:,} windows); nothing to do")
    return True


def begun(folder: Path, *, run_id: str, sources: Sources = ()) -> Optional[dict[str, Any]]:
    """The manifest of a measurement that was begun; None: it was not. The tables of another one are refused.

    ``sources``: of the user's selectors that it must have been begun with.
    """
    manifest = manifest_of_kind(folder, "influence")
    if manifest is None:
        return None
    need(manifest, "num_windows", where=folder / "manifest.json")
    own = manifest.get("own_selectors", {})
    reason = "these tables were measured with other settings, another model or other text"
    if changed := [name for name, sha256 in sources if name in own and own[name].get("sha256") != sha256]:
        reason = f"the source of the selector {', '.join(changed)} has changed since these tables were begun"
    if manifest.get("run_id") != run_id:
        raise UserError(f"{folder}: {reason}; choose another folder with --out DIR, or replace them with --overwrite")
    if unknown := [name for name, sha256 in sources if sha256 is None]:
        raise UserError(
            f"{folder}: nobody knows whether these tables are of the same {', '.join(unknown)}, whose source is unknown; choose "
            "another folder, or put the selector into a file"
        )
    return manifest


def begin_pretrained(config: Config, run: Path, *, record: ModelRecord, tokenizer: Tokenizer) -> None:
    """Create the folder of a pretrained model with its manifest, configuration and tokenizer, unless it exists.

    The configuration has the model, the text and the lengths; each measurement in the folder records its own settings.
    """
    make_folder(run)
    manifest = {"kind": "pretrained", "status": "complete", "model": dataclasses.asdict(record)}
    write_manifest(run, manifest, once=True)  # first, because it marks the folder as ours
    check_same_model(run, record)
    pretrained = dataclasses.replace(config.pretrained, train_len=None)
    kept = dataclasses.replace(config, name=folder_name(run), pretrained=pretrained, influence=InfluenceConfig())
    for name, content in (("config.yaml", to_yaml(kept)), ("tokenizer.json", tokenizer.to_str())):
        if not (run / name).is_file():
            write_text(run / name, content)


def check_same_model(run: Path, record: ModelRecord) -> None:
    """Check that the folder of results, where it exists, is that of this model."""
    model = read_manifest_of(run, "model")["model"]
    scaling, reason = model.get("rope_scaling"), None
    if scaling != record.rope_scaling:
        reason = f"pretrained.rope_scaling = {scaling or 'null'}, not {record.rope_scaling or 'null'}"
    elif (model["weights_sha256"], model["tokenizer_sha256"]) != (record.weights_sha256, record.tokenizer_sha256):
        reason = "other weights or another tokenizer"
    if reason is not None:
        raise UserError(
            f"{run}: this folder holds the results of {model['name']} with {reason}; choose another folder with --run DIR"
        )


def missing(
    folder: Path,
    manifest: dict[str, Any],
    *,
    part_size: int,
    tokens_per_window: int = 0,
    overwrite: bool = False,
    share: Share = WHOLE,
    activity: str = "influence",
) -> Generator[tuple[np.ndarray, WriteTables], None, None]:
    """Begin a measurement or continue it: ``for window_ids, write in missing(...): write(tables)``; at its end, close it.

    Yields the windows of each missing part of a share, with a bar. ``manifest`` describes the measurement: ``run_id``,
    ``num_windows``, ``context`` and more. One that was begun before keeps its size of parts. ``tokens_per_window``, about how
    many tokens the model runs for one, moves the bar within a part.
    """
    manifest = _begin(folder, manifest, part_size=part_size, overwrite=overwrite)
    part_size, num_windows = manifest.get("windows_per_part", part_size), manifest["num_windows"]
    own = range(share.index, manifest["num_parts"], share.count)
    windows = {part: np.arange(part * part_size, min((part + 1) * part_size, num_windows)) for part in own}
    left = sorted(set(own) & set(missing_parts(folder, manifest)))
    if left:
        if manifest["status"] == "complete":
            lost = f"{len(left)} of {manifest['num_parts']} parts"
            logger.info(f"{folder}: this measurement was finished, but {lost} are gone; measuring them again")
        _write_session(folder, share, device=manifest.get("device"))
    total, num_left = (sum(len(windows[part]) for part in some) for some in (own, left))
    with progress_bar(activity, " windows", total=total, initial=total - num_left) as bar:
        ran = 0

        def move(num_tokens: int) -> None:
            nonlocal ran
            ran += num_tokens
            if tokens_per_window:  # the end of a part is reached when it is written
                done = min(ran / tokens_per_window, len(windows[part]) - 0.1)
                bar.n = max(bar.n, int(begin + done) if len(windows[part]) >= 100 else round(begin + done, 1))
                bar.update(0)

        for part in left:
            begin, ran = bar.n, 0
            with listening(move):
                yield windows[part], functools.partial(_write_tables, folder, manifest, part)
            tokens_per_window = ran // len(windows[part]) or tokens_per_window
            bar.n = begin + len(windows[part])
            bar.update(0)
    finalize(folder)


def _begin(folder: Path, manifest: dict[str, Any], *, part_size: int, overwrite: bool) -> dict[str, Any]:
    """Write the manifest unless another process has written it, and return the one on disk."""
    run_id, num_parts = manifest["run_id"], -(-manifest["num_windows"] // part_size)
    own = {**manifest, "status": "running", "num_parts": num_parts, "windows_per_part": part_size}
    if overwrite and manifest_of_kind(folder, "influence") is not None:
        logger.info(f"{folder}: deleting its tables (--overwrite)")
        clear_folder(folder)
        write_manifest(folder, own)
    make_folder(folder)
    write_manifest(folder, own, once=True)
    on_disk = begun(folder, run_id=run_id)
    assert on_disk is not None
    check_begun(folder, on_disk)
    return on_disk


def _write_tables(folder: Path, manifest: dict[str, Any], part: int, tables: dict[str, pa.Table]) -> None:
    lengths = {name: str(value) for name, value in manifest["context"].items() if value is not None}
    for table in reversed(KINDS["influence"].tables):  # the first one last: its part vouches for the others
        write_part(folder, table, part=part, content=tables[table], metadata={"run_id": manifest["run_id"], **lengths})


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
