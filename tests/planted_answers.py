"""Made-up answers of runs of synthetic tasks, of which as many are right as a test says."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Optional

import pyarrow as pa

from olmo_sparsity.statistics.synthetic import Setting
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.parts import write_part
from olmo_sparsity.tables.schemas import schemas_of

ROWS = 20
LOCAL = Setting("parity", False, "pose", 2, (4, 8), 128, locality=4, spread=2)
Right = Callable[[int, int, Optional[str]], int]  # right responses of ROWS, by length, k and place


def write(folder: Path, kind: str, table: str, rows: list[dict[str, Any]], setting: Setting, **manifest: Any) -> Path:
    recorded = {name: value for name, value in dataclasses.asdict(setting).items() if name != "max_position"}
    manifest = {
        "kind": kind, "status": "complete", "run_id": "0", "run": folder.name, "training_seed": 5, "num_parts": 1,
        "num_windows": len(rows), "context": {"max_position": 128, "num_long_range": 80}, "num_parameters": 9000,
        "checkpoint": {"step": 70, "model_sha256": "0"}, **recorded, **manifest,
    }  # fmt: skip
    content = pa.Table.from_pylist(rows, schema=schemas_of(manifest)[table])
    write_part(folder, table, part=0, content=content, metadata={"run_id": "0"})
    write_manifest(folder, manifest)
    return folder


def answers(
    folder: Path,
    right: Right,
    *,
    setting: Setting = LOCAL,
    ks: Iterable[int] = (2, 3),
    places: tuple[Optional[str], ...] = (None,),
    lengths: Iterable[int] = (8, 16, 80),
    num_rows: int = ROWS,
    **manifest: Any,
) -> Path:
    """Write answers at each length and k, of which as many are right as ``right`` says; those of ``ROWS`` have no intervals."""
    cells = [(length, k, place) for length in lengths for k in ks for place in places]
    rows = [
        {
            "window_id": number * num_rows + w, "length_tokens": length, "sparsity": k, "place": place, "response_ids": [2],
            "true_ids": [2], "response_positions": [9], "true_positions": [9], "tokens_right": w < right(length, k, place),
            "positions_right": None, "right": w < right(length, k, place),
        }
        for number, (length, k, place) in enumerate(cells) for w in range(num_rows)
    ]  # fmt: skip
    test_row_len = 8 if any(places) else None
    return write(folder, "synthetic", "answers", rows, setting, test_row_len=test_row_len, **manifest)
