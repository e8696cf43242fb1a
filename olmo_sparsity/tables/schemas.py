"""The schemas of all tables, and which tables each kind of folder holds."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

SCHEMA_VERSION = "2"
# The tables of each kind of folder; the first is written last, so that its part says that the others are there.
TABLES = {
    "influence": ("windows", "selections", "candidates", "screening"),
    "context-curve": ("curve",),
    "validation": ("planted", "found"),
}
COMMANDS = {"influence": "influence", "context-curve": "context-curve", "validation": "validate"}


def schemas(num_long_range: int) -> dict[str, pa.Schema]:
    """The columns of every table; ``olmo-sparsity``'s README explains them."""
    windows = [
        ("window_id", pa.int64()),
        ("doc_id", pa.string()),
        ("source", pa.string()),
        ("split", pa.string()),
        ("start_token", pa.int64()),  # of the window's first token, counted from the start of its document
        ("token_ids", pa.list_(pa.int32())),  # full_len of them, the M long-range tokens first
        ("token_texts", pa.list_(pa.string())),
        ("target_id", pa.int32()),
        ("target_text", pa.string()),
        ("target_class", pa.string()),  # which kind of dependency; the classes are those of ``classes.CLASSES``
        ("null_doc_id", pa.string()),
        ("null_token_ids", pa.list_(pa.int32())),  # the M long-range tokens of the null context
        ("loss_short_nats", pa.float32()),
        ("loss_long_nats", pa.float32()),
        ("gain_long_nats", pa.float32()),  # loss_short - loss_long
        ("null_loss_long_nats", pa.float32()),
        ("null_gain_long_nats", pa.float32()),
    ]
    selections = [
        ("window_id", pa.int64()),
        ("doc_id", pa.string()),
        ("selector", pa.string()),
        ("context", pa.string()),  # real | null
        ("sees_target", pa.bool_()),
        ("num_evaluations", pa.int32()),  # what the scores cost, in forward passes over one row
        ("positions", pa.list_(pa.int32())),  # J, most influential first; J_k are the first k
        ("distance_tokens", pa.list_(pa.int32())),  # from each of them to the target
        ("scores", pa.list_(pa.float32(), num_long_range)),  # one a long-range position, in order; null: screened out
        ("k", pa.list_(pa.int32())),
        ("loss_sparse_nats", pa.list_(pa.float32())),  # one a k
        ("gain_sparse_nats", pa.list_(pa.float32())),  # loss_short - loss_sparse, one a k
    ]
    candidates = [
        ("window_id", pa.int64()),
        ("context", pa.string()),
        ("loss_single_nats", pa.list_(pa.float32(), num_long_range)),  # loss({j}), one a long-range position
    ]
    screening = [
        ("window_id", pa.int64()),  # of the sampled windows only
        ("doc_id", pa.string()),
        ("selector", pa.string()),
        ("context", pa.string()),
        ("k", pa.list_(pa.int32())),
        ("recall", pa.list_(pa.float32())),  # share of the exact J_k among the chosen ones, one a k
        ("gain_lost_nats", pa.list_(pa.float32())),  # sparse gain of the exact J_k minus that of the chosen, one a k
    ]
    curve = [
        ("window_id", pa.int64()),
        ("doc_id", pa.string()),
        ("num_visible_tokens", pa.list_(pa.int32())),  # most recent ones, the others hidden
        ("loss_nats", pa.list_(pa.float32())),  # one each
    ]
    planted = [
        ("window_id", pa.int64()),
        ("suite", pa.string()),
        ("doc_id", pa.string()),
        ("num_planted", pa.int32()),  # copies of the needle, or tokens that the target depends on
        ("planted_positions", pa.list_(pa.int32())),  # all long-range positions that the truth holds
        ("planted_distance_tokens", pa.float32()),  # their mean distance to the target
        ("token_texts", pa.list_(pa.string())),
        ("target_text", pa.string()),
        ("loss_short_nats", pa.float32()),
        ("loss_long_nats", pa.float32()),
        ("loss_planted_nats", pa.float32()),  # with the local and the planted tokens visible
    ]
    found = [
        ("window_id", pa.int64()),
        ("selector", pa.string()),
        ("ranked_positions", pa.list_(pa.int32())),  # all long-range positions, most influential first
    ]
    columns = {
        "windows": windows,
        "selections": selections,
        "candidates": candidates,
        "screening": screening,
        "curve": curve,
        "planted": planted,
        "found": found,
    }
    return {name: pa.schema(fields) for name, fields in columns.items()}


def tables_of(manifest: dict[str, Any]) -> list[str]:
    """The tables that the folder of this manifest has when it is finished, in the order of ``TABLES``."""
    settings = manifest.get("influence", {})
    asked = {"candidates": settings.get("save_candidates", False), "screening": settings.get("screen") is not None}
    return [name for name in TABLES[manifest["kind"]] if asked.get(name, True)]
