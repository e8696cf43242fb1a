"""Folders of invented runs, with context curves of known losses, for tests that need no model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa
from made_up import KS, MODEL, PRETRAINED, made_up_tables

from olmo_sparsity.config import Config, ContextConfig, PoseConfig, TrainingConfig, to_dict
from olmo_sparsity.records.selectors import MAIN_SELECTORS
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.parts import write_part
from olmo_sparsity.tables.schemas import schemas

ROW, FULL = 8, 24
VISIBLE = [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48]
POSE = PoseConfig(max_position=32)
# The gain from 8 to 24 visible tokens of each kind of the four-way run, in nats, and its training rows.
FOUR_WAY = {
    "pose": (0.030, POSE, ROW),
    "no-pose": (-0.300, PoseConfig(num_chunks=1, max_position=32), ROW),
    "randpos": (0.010, PoseConfig(method="randpos", max_position=32), ROW),
    "ceiling": (0.050, PoseConfig(num_chunks=1, max_position=32), FULL),
}


def made_up_run(run: Path, *, seed: int = 0, pose: PoseConfig = POSE, row_len: int = ROW, **sections: Any) -> Path:
    """Write the folder of a run that was trained with this seed; ``sections`` are sections of the configuration."""
    config = Config(
        context=ContextConfig(local_len=ROW, full_len=FULL, train_len=row_len),
        pose=pose,
        training=TrainingConfig(seed=seed),
    )
    run.mkdir(parents=True, exist_ok=True)
    write_manifest(
        run,
        {"kind": "run", "status": "complete", "config": to_dict(dataclasses.replace(config, **sections))},
    )
    return run


def made_up_measurement(run: Path, long_gain: float, **settings: Any) -> Path:
    """Write a measurement of a run, and return its folder; runs with other long gains have the same windows and documents.

    ``settings`` are keys of the section ``influence`` of the manifest, or ``windows_sha256`` and the like, or ``num_documents``.
    """
    name, num_documents = settings.pop("name", "made-up"), settings.pop("num_documents", 80)
    folder = made_up_tables(
        run / "influence" / name, num_documents=num_documents, long_gain=long_gain, seed=3, selectors=MAIN_SELECTORS
    )
    manifest = read_json(folder / "manifest.json")
    of_manifest = {"tokens_sha256": "t", "windows_sha256": "w", "num_parameters": 1_000_000, "pose": to_dict(POSE)}
    of_manifest |= {key: settings.pop(key) for key in list(settings) if key in of_manifest}
    influence = {"k": KS, "selectors": list(MAIN_SELECTORS), "seed": 0, "windows_per_part": 256, **settings}
    checkpoint = {"step": 100, "model_sha256": run.name}
    write_manifest(
        folder,
        {
            **manifest,
            **of_manifest,
            "run": run.name,
            "influence": influence,
            "checkpoint": checkpoint,
            "finished": name,
        },
    )
    return folder


def made_up_curve(
    run: Path,
    losses_WN: np.ndarray,
    *,
    doc_ids: list[str],
    pose: PoseConfig = POSE,
    row_len: int = ROW,
    windows_sha256: str = "w",
    visible: Optional[list[int]] = None,
    setup: Optional[dict[str, Any]] = None,
) -> Path:
    """Write the context curve of a run, in two parts, and return its folder. Windows weigh 1, 2, 3, 1, 2, 3 ...

    ``setup``: entries of the manifest about a pretrained model, of which no training row is known.
    """
    folder, visible = run / "context-curve" / "made-up", visible or VISIBLE
    num = len(losses_WN)
    for part, rows in enumerate(np.array_split(np.arange(num), 2)):
        columns = {
            "window_id": rows,
            "doc_id": [doc_ids[i] for i in rows],
            "weight": 1.0 + rows % 3,
            "num_visible_tokens": [visible] * len(rows),
            "loss_nats": list(losses_WN[rows].astype(np.float32)),
        }
        write_part(
            folder,
            "curve",
            part=part,
            content=pa.table(columns, schema=schemas(FULL - ROW)["curve"]),
            metadata={"run_id": "0"},
        )
    context: dict[str, Any] = {
        "local_len": ROW, "full_len": FULL, "train_len": row_len, "max_position": 32, "pose_method": pose.method,
        "num_chunks": pose.num_chunks, "pose_contents": pose.contents, "num_long_range": FULL - ROW,
    }  # fmt: skip
    if setup is not None:
        context = {name: context[name] for name in ("local_len", "full_len", "num_long_range")} | {"train_len": None}
    manifest: dict[str, Any] = {
        "kind": "context-curve",
        "status": "complete",
        "run_id": "0",
        "run": run.name,
        "source": "made up",
    }
    manifest |= {"split": "validation", "num_parts": 2, "num_windows": num, "num_documents": len(set(doc_ids))}
    hashes = {"windows_sha256": windows_sha256, "tokens_sha256": "t"}
    manifest |= {**hashes, "num_visible_tokens": visible, "context": context, **(setup or {})}
    write_manifest(folder, manifest)
    return folder


def pretrained_curve(
    folder: Path,
    gain: float,
    *,
    name: str = "someone/Made-Up-2M",
    of_model: dict[str, Any] = PRETRAINED,
    row_len: Optional[int] = None,
) -> Path:
    """Write the folder of a pretrained model whose context curve gains this much from ``ROW`` to ``FULL`` visible tokens.

    ``of_model``: entries of the curve's manifest about the model. ``row_len``: its training row, as stated.
    """
    folder.mkdir(parents=True)
    write_manifest(folder, {"kind": "pretrained", "status": "complete"})
    losses_WN, doc_ids = made_up_losses(gain)
    setup = {**of_model, "run": folder.name, "model": {**MODEL, "name": name}}
    curve = made_up_curve(folder, losses_WN, doc_ids=doc_ids, setup=setup)
    if row_len is not None:
        state_row(curve, row_len)
    return folder


def state_row(tables: Path, row_len: int) -> None:
    """State the training row of the pretrained model that some tables are of."""
    manifest = read_json(tables / "manifest.json")
    manifest["context"] |= {"train_len": row_len, "train_len_is_stated": True, "max_position": 2048}
    write_manifest(tables, manifest)


def made_up_losses(
    gain: float, *, num_documents: int = 120, per_document: int = 2, noise: float = 0.03, seed: int = 0
) -> tuple[np.ndarray, list[str]]:
    """Return losses float64 [W, N] and the documents of the windows.

    The loss falls by 0.05 nats with each doubling up to ``ROW`` tokens, and from there to ``FULL`` by ``gain`` in all, as the
    logarithm of the length. What a document adds to the loss, and to the gain, is the same for every ``seed``; the noise of
    the windows depends on it.
    """
    of_documents, of_windows = np.random.default_rng(1000), np.random.default_rng([1001, seed])
    document_W = np.repeat(np.arange(num_documents), per_document)
    loss_W = (4.6 + of_documents.normal(0, 0.3, num_documents))[document_W]
    gain_W = (gain + of_documents.normal(0, 0.05, num_documents))[document_W]
    gain_W = gain_W - gain_W.mean() + gain + of_windows.normal(0, noise, len(document_W))
    visible_N = np.array(VISIBLE)
    inside_N = np.log2(np.minimum(visible_N, ROW) / ROW)
    beyond_N = np.log(np.maximum(visible_N, ROW) / ROW) / np.log(FULL / ROW)
    losses_WN = loss_W[:, None] - 0.05 * inside_N - beyond_N * gain_W[:, None]
    return losses_WN, [f"{document:016x}" for document in document_W]


def four_way_runs(folder: Path, seeds: tuple[int, ...] = (0,)) -> dict[str, list[Path]]:
    """Write the runs of ``FOUR_WAY`` with context curves, each with these seeds; kind -> folders."""
    runs: dict[str, list[Path]] = {}
    for number, (kind, (gain, pose, row_len)) in enumerate(FOUR_WAY.items()):
        for seed in seeds:
            run = folder / (kind if seed == 0 else f"{kind}-seed{seed}")
            of_seed = gain + 0.004 * (seed - np.mean(seeds))
            losses_WN, doc_ids = made_up_losses(of_seed, seed=10 * number + seed)
            made_up_run(run, seed=seed, pose=pose, row_len=row_len)
            made_up_curve(run, losses_WN, doc_ids=doc_ids, pose=pose, row_len=row_len)
            runs.setdefault(kind, []).append(run)
    return runs
