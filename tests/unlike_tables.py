"""Tables no two of whose numbers are alike, and their rows as Python objects, for tests of statistics."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa

from olmo_sparsity.config import Lengths
from olmo_sparsity.files import read_json, write_manifest
from olmo_sparsity.tables import DAMPING, lengths_of, schemas_of, write_part

Rows = dict[str, list[dict[str, Any]]]  # of the tables ``windows`` and ``selections``
SEES_TARGET = {"kl": False, "unmask-one": True, "random": False, "nearest": False}
ALL = ("unmask-one", "kl", "gradient", "attention", "random", "nearest", "mask-one", "greedy", "lasso", "greedy-kl")
BLIND = ("kl", "attention", "random", "nearest", "greedy-kl")
CLASSES = ("repeat", "other", "name")
LOCAL, ROW, FULL, M = 8, 14, 20, 12
KS = (1, 3, 5)
# Entries of the manifest of a pretrained model, and of one whose windows would have a lower loss with another first token.
MODEL = {
    "name": "someone/Made-Up-2M", "revision": "main-commit", "weights_sha256": "0123456789abcdef" * 4,
    "architecture": "LlamaForCausalLM", "num_parameters": 2_345_678, "dtype": "bfloat16", "max_position": 2048,
    "tokenizer_sha256": "9" * 64,
}  # fmt: skip
PRETRAINED: dict[str, Any] = {"run": "someone--made-up-2m", "model": MODEL, "visibility": "hidden", "anchor": None}
ANCHOR_CHECK = {
    "chosen": "bos", "text": "<bos>", "num_windows": 64, "loss_short_nats": {"bos": 3.865, "none": 3.2},
    "loss_long_nats": {"bos": 3.2912, "none": 2.5493}, "standard_error_short_nats": 0.2345, "standard_error_nats": 0.1234,
    "lower_with": {"short": "none", "long": "none"},
}  # fmt: skip
CONTEXTUAL: dict[str, Any] = {
    **PRETRAINED, "visibility": "contextual", "anchor": {"id": 7, "text": "<bos>"}, "fit": {"checks": [], "anchor": ANCHOR_CHECK},
}  # fmt: skip


def unlike_manifest(*, train_len: Optional[int] = ROW, unit: str = "token", **others: Any) -> dict[str, Any]:
    context = {"local_len": LOCAL, "full_len": FULL, "num_long_range": M, "train_len": train_len}
    return {
        "kind": "influence", "status": "complete", "run_id": "r", "run": "unlike", "source": "text", "split": "validation",
        "context": context, "influence": {"unit": unit}, **others,
    }  # fmt: skip


def unlike_rows(
    manifest: dict[str, Any],
    *,
    num_documents: int = 60,
    long_gain: float = 0.6,
    gap_cost: float = 0.01,
    ks: Sequence[int] = KS,
    draws: int = 2,
    seed: int = 0,
    selectors: Mapping[str, bool] = SEES_TARGET,
) -> Rows:
    """Rows of one to three windows a document, all numbers drawn on their own.

    One target in four needs no long-range token. ``draws``: drawn labels of selectors that see the target, and of `random`;
    one under the null context.
    """
    rng = np.random.default_rng(seed)
    lengths = lengths_of(manifest)
    last_n = Lengths(LOCAL, FULL, M, lengths.train_len).last_n
    has_groups = manifest["influence"]["unit"] != "token"
    rows: Rows = {"windows": [], "selections": []}
    documents = [document for document in range(num_documents) for _ in range(1 + document % 3)]
    for window_id, document in enumerate(documents):
        short, drawn = rng.normal(4, 0.5), rng.normal(3, 0.5, draws)
        gain = {"real": rng.normal(long_gain + 0.2 * np.sin(document), 0.3), "null": rng.normal(-0.1, 0.3)}
        kl = {context: rng.gamma(1.0, 0.18) for context in gain}
        last = rng.normal(short - 0.3, 0.2, len(last_n))
        last[last_n.index(LOCAL)], last[last_n.index(FULL)] = short - rng.normal(gap_cost, 0.01), short - gain["real"]
        groups = {
            context: [0, *sorted(rng.choice(np.arange(1, M), rng.integers(2, 7), replace=False).tolist())]
            for context in gain
        }
        is_row_known = lengths.train_len is not None
        window = {
            "window_id": window_id, "doc_id": f"{document * 7919 % 65536:016x}", "weight": 0.5 + window_id * 7 % 11 / 10,
            "source": "text", "split": "validation", "train_overlap": bool(rng.random() < 0.2) if is_row_known else None,
            "start_token": 3, "token_ids": list(range(FULL)), "token_texts": [f" t{i}" for i in range(FULL)], "target_id": 1,
            "target_text": " end", "target_class": str(rng.choice(CLASSES, p=[0.6, 0.3, 0.1])), "null_doc_id": "f" * 16,
            "null_token_ids": list(range(M)), "loss_short_nats": short, "loss_short_no_gap_nats": last[last_n.index(LOCAL)],
            "loss_long_nats": short - gain["real"], "gain_long_nats": gain["real"],
            "null_loss_long_nats": short - gain["null"], "null_gain_long_nats": gain["null"], "null_target_class": "other",
            "last_n": last_n, "loss_last_nats": last.tolist(),
            "gain_beyond_nats": last[last_n.index(min(lengths.train_len, FULL))] - short + gain["real"] if is_row_known else None,
            "kl_short_nats": kl["real"], "null_kl_short_nats": kl["null"],
            "resampled_target_ids": list(range(draws)), "resampled_loss_short_nats": drawn.tolist(),
            "resampled_loss_long_nats": (drawn + rng.normal(0.2, 0.1, draws)).tolist(),
            "kl_short_to_long_nats": rng.gamma(2.0, 0.1), "entropy_short_nats": short + rng.normal(0.05, 0.1),
            **({"group_first": groups["real"], "null_group_first": groups["null"]} if has_groups else {}),
        }  # fmt: skip
        for prefix, context in (("", "real"), ("null_", "null")):
            w = np.array(DAMPING)
            noise = rng.normal(0, 0.02, (2, len(w)))
            window[f"{prefix}loss_damped_nats"] = (short - gain[context] * w * (2.2 - w) + noise[0]).tolist()
            window[f"{prefix}kl_damped_nats"] = (kl[context] * (1 - w) ** 2 * np.exp(noise[1])).tolist()
        rows["windows"].append(window)
        for selector, sees_target in selectors.items():
            contexts = [("real", 0), ("null", 0)]
            if draws and (sees_target or selector == "random"):
                contexts += [*(("resampled", draw) for draw in range(draws)), ("null-resampled", 0)]
            for context, draw in contexts:
                is_drawn = context.endswith("resampled")
                of = "null" if context.startswith("null") else "real"
                order = rng.permutation(len(groups[of]) if has_groups else M)[: ks[-1]].tolist()
                ends = [*groups[of][1:], M]
                chosen = [list(range(groups[of][g], ends[g])) for g in order] if has_groups else [[g] for g in order]
                positions = [position for group in chosen for position in group]
                sparse = rng.normal(0.3 * gain[of], 0.2, len(ks)) + 0.1 * sees_target
                row = {
                    "window_id": window_id, "doc_id": window["doc_id"], "selector": selector, "context": context, "draw": draw,
                    "sees_target": sees_target, "num_evaluations": 3 * len(selector), "positions": positions,
                    "distance_tokens": [FULL - position for position in positions],
                    "scores": rng.random(len(groups[of]) if has_groups else M).tolist(), "k": list(ks),
                    "loss_sparse_nats": ((drawn[draw] if is_drawn else short) - sparse).tolist(),
                    "gain_sparse_nats": sparse.tolist(),
                    "kl_sparse_nats": None if is_drawn else (kl[of] * rng.uniform(0.05, 1.1, len(ks))).tolist(),
                    "kl_short_to_sparse_nats": rng.gamma(1.0, 0.05, len(ks)).tolist() if is_drawn else None,
                }  # fmt: skip
                if has_groups:
                    row["group_first"] = [groups[of][g] for g in order]
                    row["group_last"] = [ends[g] - 1 for g in order]
                    row["num_tokens"] = [sum(map(len, chosen[:k])) for k in ks]
                rows["selections"].append(row)
    return rows


def write_rows(folder: Path, manifest: dict[str, Any], rows: Rows, *, parts: Sequence[Sequence[int]] = ()) -> Path:
    """Write an influence folder, and return it; ``parts``: the windows of each part, in their order."""
    parts = parts or np.array_split(np.arange(len(rows["windows"])), 3)
    manifest = {**manifest, "num_windows": len(rows["windows"]), "num_parts": len(parts)}
    schemas = schemas_of(manifest)
    for number, window_ids in enumerate(parts):
        rank = {int(window_id): at for at, window_id in enumerate(window_ids)}
        for table in ("selections", "windows"):
            of_part = [row for row in rows[table] if row["window_id"] in rank]
            of_part.sort(key=lambda row: rank[row["window_id"]])
            content = pa.Table.from_pylist(of_part, schema=schemas[table])
            write_part(folder, table, part=number, content=content, metadata={"run_id": manifest["run_id"]})
    write_manifest(folder, manifest)
    return folder


def copied_with_rows(run: Path, copy: Path, train_len: int = 16) -> Path:
    """Copy a run whose training rows then have this length; it is a ceiling if they are as long as the full context, 16."""
    shutil.copytree(run, copy)
    manifest = read_json(copy / "manifest.json")
    manifest["config"]["context"]["train_len"] = train_len
    write_manifest(copy, manifest)
    return copy


def made_up_tables(
    folder: Path,
    *,
    selectors: Sequence[str] = ALL,
    texts: Sequence[str] = (),
    setup: Optional[dict[str, Any]] = None,
    **options: Any,
) -> Path:
    """Write an influence folder with k = 1, 2 and 8, and return it.

    ``texts``: of the first tokens of window 0. ``setup``: entries of the manifest; one that names a model has no training row.
    """
    setup = {"run": "made-up", **(setup or {})}
    manifest = unlike_manifest(train_len=None if "model" in setup else ROW, **setup)
    rows = unlike_rows(manifest, ks=(1, 2, 8), selectors={name: name not in BLIND for name in selectors}, **options)
    rows["windows"][0]["token_texts"][: len(texts)] = texts
    manifest["influence"] |= {"k": [1, 2, 8], "selectors": list(selectors), "resampled_draws": 2}
    return write_rows(folder, manifest, rows)
