"""Made-up runs that were evaluated inside a row and beyond it, with chosen accuracies, for tests that need no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa
from made_up_runs import made_up_run

from olmo_sparsity.config import PoseConfig, SyntheticConfig
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.parts import write_part
from olmo_sparsity.tables.schemas import schemas_of

ROW, LENGTH, NUM = 6, 12, 80
# Accuracies (inside, beyond) by k; (in one row) is that inside.
Accuracies = Mapping[int, tuple[float, float]]


def made_up_answers(
    run: Path,
    accuracies: Accuracies,
    *,
    seed: int = 0,
    num_chunks: int = 2,
    longest: int = ROW,
    test_row_len: Optional[int] = ROW,
    truth_seed: int = 0,
    lengths: Sequence[int] = (ROW, LENGTH),
    num: int = NUM,
) -> Path:
    """Write a run and its evaluation; return the run. Which answers are right depends on the seed, what was asked does not."""
    settings = SyntheticConfig(modulus=4, max_sparsity=2, train_lengths=[3, longest], test_lengths=[ROW, LENGTH])
    made_up_run(run, seed=seed, pose=PoseConfig(num_chunks=num_chunks), synthetic=settings)
    rng, truth = np.random.default_rng([seed, num_chunks, longest]), np.random.default_rng(truth_seed)
    cells = [
        (length, k, place)
        for length in lengths
        for k in accuracies
        for place in (("inside", "beyond") if length > ROW else ("inside",))
    ]
    manifest: dict[str, Any] = {
        "kind": "synthetic", "status": "complete", "run_id": "0", "run": run.name, "task": "parity", "scratchpad": False,
        "positions": "pose", "position_embedding": "rope", "max_sparsity": 2, "modulus": 4, "background": "text",
        "num_chunks": num_chunks, "test_row_len": test_row_len, "train_lengths": [3, longest], "training_seed": seed,
        "num_windows": len(cells) * num, "num_parts": len(cells), "context": {"max_position": 14, "num_long_range": LENGTH},
    }  # fmt: skip
    folder = run / "synthetic" / "made-up"
    schema = schemas_of(manifest)["answers"]
    for part, (length, k, place) in enumerate(cells):
        accuracy = accuracies[k][place == "beyond"]
        right_W = rng.permutation(num) < round(accuracy * num)
        rows = [
            {
                "window_id": part * num + i, "length_tokens": length, "sparsity": k, "place": place,
                "response_ids": [2 + (true if right else true + 1) % 4], "true_ids": [2 + true],
                "response_positions": [length + 1], "true_positions": [length + 1],
                "tokens_right": bool(right), "positions_right": None, "right": bool(right),
            }
            for i, (right, true) in enumerate(zip(right_W, truth.integers(0, 4, num).tolist(), strict=True))
        ]  # fmt: skip
        write_part(
            folder, "answers", part=part, content=pa.Table.from_pylist(rows, schema=schema), metadata={"run_id": "0"}
        )
    write_manifest(folder, manifest)
    return run
