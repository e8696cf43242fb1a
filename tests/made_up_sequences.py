"""Made-up tables of synthetic tasks, for tests that need no model."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pyarrow as pa

from olmo_sparsity.statistics.synthetic import Setting
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.parts import write_part
from olmo_sparsity.tables.schemas import schemas_of

SETTING = Setting(
    "parity", False, "pose", 3, (4, 9), 32, modulus=4, background="text", num_chunks=3,
)  # fmt: skip


def written_answers(folder: Path, rows: list[dict[str, Any]], *, seed: int = 5) -> Path:
    """Write the answers of a run of ``SETTING``."""
    manifest: dict[str, Any] = {
        "kind": "synthetic", "status": "complete", "run_id": "0", "run": "made-up", "training_seed": seed, "num_parts": 1,
        "num_windows": len({row["window_id"] for row in rows}),
        "context": {"max_position": SETTING.max_position, "num_long_range": 16},
        **{name: value for name, value in dataclasses.asdict(SETTING).items() if name != "max_position"},
    }  # fmt: skip
    content = pa.Table.from_pylist(rows, schema=schemas_of(manifest)["answers"])
    write_part(folder, "answers", part=0, content=content, metadata={"run_id": "0"})
    write_manifest(folder, manifest)
    return folder
