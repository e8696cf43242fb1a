"""Made-up tables in which no two things coincide, for snapshots: weights, seeds, texts and groups of several tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from made_up import KS, M

from olmo_sparsity.storage.files import read_json
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.parts import write_parquet, write_part
from olmo_sparsity.tables.schemas import schemas_of, tables_of

WORDS = "when the river rose in spring we carried every chair up to loft and waited there for three days until it fell".split()  # noqa: SIM905


def vary(folder: Path, *, unit: str = "token", **manifest: Any) -> Path:
    """Change tables of ``made_up_tables`` and return their folder.

    Windows weigh 1, 2, 3, 1, 2, 3 ... and have words of their own; scores lie on both sides of 0. Tables that the settings
    ask for beside those of ``made_up_tables`` are empty.

    Args:
        folder: the tables.
        unit: what k counts; of words, windows have 3 to 10 groups of tokens, other ones under the null context.
        manifest: further entries of the manifest; ``influence`` is added to.
    """
    settings = {"seed": 7, "windows_seed": 5, "k": KS, "null_context": "document"}
    settings |= {"unit": unit} if unit != "token" else {}
    settings |= manifest.pop("influence", {})
    written = {**read_json(folder / "manifest.json"), **manifest, "influence": settings}
    write_manifest(folder, written)
    firsts: dict[tuple[int, str], list[int]] = {}
    for table in ("windows", "selections"):
        schema = schemas_of(written)[table]
        for path in sorted((folder / table).glob("*.parquet")):
            part = pq.read_table(path)
            rows = part.to_pylist()
            for row in rows:
                _vary_window(row, firsts) if table == "windows" else _vary_selection(row, firsts, unit=unit)
            content = [{name: row.get(name) for name in schema.names} for row in rows]
            write_parquet(pa.Table.from_pylist(content, schema=schema.with_metadata(part.schema.metadata)), path)
    for table in tables_of(written):
        if not (folder / table).is_dir():
            for number in range(written["num_parts"]):
                empty = schemas_of(written)[table].empty_table()
                write_part(folder, table, part=number, content=empty, metadata={"run_id": written["run_id"]})
    return folder


def _vary_window(row: dict[str, Any], firsts: dict[tuple[int, str], list[int]]) -> None:
    window_id = row["window_id"]
    rng = np.random.default_rng([17, window_id])
    ids = rng.permutation(len(WORDS))[:20]
    row["weight"], row["start_token"] = 1.0 + window_id % 3, 40 + window_id
    row["token_ids"], row["token_texts"] = ids.tolist(), [f" {WORDS[i]}" for i in ids]
    row["target_id"], row["target_text"] = 50 + window_id % 4, f" end{window_id % 4}"
    row["null_token_ids"] = rng.permutation(len(WORDS) + 2)[:M].tolist()
    for context, column in (("real", "group_first"), ("null", "null_group_first")):
        groups = [0, *sorted(rng.choice(np.arange(1, M), rng.integers(2, 10), replace=False).tolist())]
        row[column] = firsts[window_id, context] = groups


def _vary_selection(row: dict[str, Any], firsts: dict[tuple[int, str], list[int]], *, unit: str) -> None:
    row["scores"] = [score - 4 for score in row["scores"]]
    if unit == "token":
        return
    of_groups = firsts[row["window_id"], "null" if row["context"] in ("null", "null-resampled") else "real"]
    ends = [*of_groups[1:], M]
    row["scores"] = row["scores"][: len(of_groups)]
    order = np.argsort(-np.array(row["scores"]), kind="stable")[: KS[-1]].tolist()
    row["positions"] = [position for g in order for position in range(of_groups[g], ends[g])]
    row["distance_tokens"] = [20 - position for position in row["positions"]]
    row["group_first"], row["group_last"] = [of_groups[g] for g in order], [ends[g] - 1 for g in order]
    row["num_tokens"] = [sum(ends[g] - of_groups[g] for g in order[:k]) for k in KS]


def react_otherwise(folder: Path, seed: int) -> Path:
    """Change how far choices move predictions, window by window, so that two models rank targets otherwise; return the folder."""
    rng = np.random.default_rng(seed)
    for path in sorted((folder / "selections").glob("*.parquet")):
        part = pq.read_table(path)
        rows = part.to_pylist()
        for row in rows:
            if row["kl_sparse_nats"] is not None:
                row["kl_sparse_nats"] = [value * rng.uniform(0.4, 1.0) for value in row["kl_sparse_nats"]]
        write_parquet(pa.Table.from_pylist(rows, schema=part.schema), path)
    return folder
