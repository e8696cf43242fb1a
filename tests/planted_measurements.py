"""Tables of invented measurements in which no two things coincide, one for each way in which words and numbers are shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pyarrow as pa

from olmo_sparsity.config.units import block_size
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.storage.manifests import write_manifest
from olmo_sparsity.tables.parts import write_part
from olmo_sparsity.tables.schemas import RESAMPLED, schemas_of, tables_of
from olmo_sparsity.text.target_classes import CLASSES

TEXTS = [
    "The",
    " focus",
    "ed",
    " river",
    ".",
    "\n",
    "They",
    "",
    "\u2019",
    "ll",
    " [b]",
    " \x1b[1m",
    " 2016",
    " \u6f22",
    "<i>",
    " ",
]
MODEL = {
    "name": "someone/Invented-7M",
    "revision": "0123456789abcdef0123456789abcdef01234567",
    "weights_sha256": "fedcba9876543210" * 4,
    "architecture": "LlamaForCausalLM",
    "num_parameters": 7_654_321,
    "dtype": "bfloat16",
    "max_position": 4096,
    "tokenizer_sha256": "9" * 64,
}
ANCHOR = {"id": 5, "text": "<s>"}


def anchor_check(chosen: str, short: Optional[str], long: Optional[str]) -> dict[str, Any]:
    """Return a comparison of both choices of the first token; ``short``, ``long``: with which each mean is lower."""
    losses = {"loss_short_nats": {"bos": 3.8651, "none": 3.7214}, "loss_long_nats": {"bos": 3.2912, "none": 3.3543}}
    errors = {"standard_error_short_nats": 0.0234, "standard_error_nats": 0.0123}
    return {
        "chosen": chosen,
        "text": "<s>",
        "num_windows": 96,
        **losses,
        **errors,
        "lower_with": {"short": short, "long": long},
    }


@dataclass(frozen=True)
class Planted:
    """An invented measurement.

    Attributes:
        num_documents: documents; there are half as many windows more.
        selectors: share of the long gain that one token of each selector gives back.
        ks: the measured k.
        context: lengths and positions of the manifest.
        manifest: further entries of it.
        influence: settings of the measurement.
        long_gain: its mean, in nats.
        noise: standard deviation of the long gain of a window.
        gain_beyond: mean gain beyond a training row that is as long as neither the local nor the full context.
        gap_cost: mean cost of the gap, in nats.
        random_gain: what random choices gain, as a share of the long gain.
        draws: drawn labels of each window.
        optimism: of a selector that sees the target, at k = 1, in nats.
        overlap: share of windows that share text with training; None: not known.
        groups: how many groups a window has, at least and at most; None: every token is one.
        null_same_document: share of windows whose null context is of their own document.
        seed: of all numbers but the following.
        reactions: seed of noise in the divergences and the long gains, by which models differ on the same windows; None: no such.
    """

    num_documents: int
    selectors: Mapping[str, float]
    ks: Sequence[int]
    context: Mapping[str, Any]
    manifest: Mapping[str, Any] = field(default_factory=dict)
    influence: Mapping[str, Any] = field(default_factory=dict)
    long_gain: float = 0.5
    noise: float = 0.3
    gain_beyond: float = 0.0
    gap_cost: float = 0.02
    random_gain: float = 0.03
    draws: int = 2
    optimism: float = 0.11
    overlap: Optional[float] = None
    groups: Optional[tuple[int, int]] = None
    null_same_document: float = 0.0
    seed: int = 0
    reactions: Optional[int] = None


def write(folder: Path, of: Planted) -> Path:
    """Write the tables of an invented measurement in three parts, and return their folder."""
    manifest = {
        "kind": "influence", "status": "complete", "run_id": "r17", "run": "invented", "source": "a text", "split": "validation",
        "num_parts": 3, "windows_sha256": "w", "tokens_sha256": "t", 
        "finished": "2026-01-02T03:04:05+00:00", **of.manifest, "context": dict(of.context),
        "influence": {"k": list(of.ks), "selectors": list(of.selectors), "seed": 7, **of.influence},
    }  # fmt: skip
    rng = np.random.default_rng(of.seed)
    document_W = np.r_[np.arange(of.num_documents), rng.integers(0, of.num_documents, of.num_documents // 2)]
    rng.shuffle(document_W)
    windows = [_window(rng, of, w, document=int(document)) for w, document in enumerate(document_W)]
    rows: dict[str, list[dict[str, Any]]] = {"windows": windows, "selections": []}
    for window in windows:
        rows["selections"] += _selections(rng, of, window)
    manifest |= {"num_windows": len(windows), "num_documents": of.num_documents}
    schemas = schemas_of(manifest)
    for table in tables_of(manifest):
        for part in range(3):
            of_part = [
                {name: row.get(name) for name in schemas[table].names}
                for row in rows[table]
                if row["window_id"] % 3 == part
            ]
            content = pa.Table.from_pylist(of_part, schema=schemas[table])
            write_part(folder, table, part=part, content=content, metadata={"run_id": "r17"})
    write_manifest(folder, manifest)
    return folder


def _noise(of: Planted, w: int, *key: int) -> float:
    """Return the factor by which a number of one model differs from that of others."""
    return (
        1.0 if of.reactions is None else float(np.exp(np.random.default_rng([of.reactions, w, *key]).normal(0, 0.25)))
    )


def _window(rng: np.random.Generator, of: Planted, w: int, *, document: int) -> dict[str, Any]:
    local, full = of.context["local_len"], of.context["full_len"]
    short, gain, null_gain = rng.normal(4, 0.4), rng.normal(of.long_gain, of.noise), rng.normal(-0.08, 0.2)
    kind = str(rng.choice(list(CLASSES)))
    gain *= {"repeat": 1.6, "function-word": 0.5}.get(kind, 1.0)
    gain *= _noise(of, w)
    if w % 29 == 7:  # a large gain
        short, gain = short + 0.2, 2.6 + 0.1 * rng.random()
    if w % 31 == 9:
        null_gain = 2.3 + 0.1 * rng.random()
    texts = [TEXTS[i] for i in rng.integers(0, len(TEXTS), full)]
    no_gap = short - (0.0 if of.manifest.get("positions") == "compact" else rng.normal(of.gap_cost, 0.01))
    row_len, row_loss = of.context["train_len"], None
    if row_len is not None:
        row_loss = {local: short, full: short - gain}.get(row_len, short - gain + rng.normal(of.gain_beyond, 0.2))
    row_no_gap = {local: no_gap, full: short - gain}.get(row_len, None if row_loss is None else row_loss - 0.004)
    is_own = rng.random() < of.null_same_document
    window = {
        "window_id": w, "doc_id": f"{document:016x}", "weight": 0.5 + (w % 4), "source": "a text", "split": "validation",
        "train_overlap": None if of.overlap is None else bool(rng.random() < of.overlap), "start_token": 3 * w + 1,
        "token_ids": [TEXTS.index(text) for text in texts], "token_texts": texts, "target_id": 3, "target_text": " river",
        "target_class": kind, "null_doc_id": f"{document if is_own else document + 1:016x}",
        "null_token_ids": rng.integers(0, len(TEXTS) + 1, full - local).tolist(), "loss_short_nats": short,
        "loss_short_no_gap_nats": no_gap, "loss_long_nats": short - gain, "gain_long_nats": gain,
        "null_loss_long_nats": short - null_gain, "null_gain_long_nats": null_gain,
        "null_target_class": str(rng.choice(list(CLASSES))), "loss_train_len_nats": row_loss,
        "loss_train_len_no_gap_nats": row_no_gap, "gain_beyond_nats": None if row_no_gap is None else row_no_gap - (short - gain),
        "kl_short_nats": rng.gamma(2.0, 0.1) * _noise(of, w, 1),
        "null_kl_short_nats": rng.gamma(2.0, 0.14) * _noise(of, w, 2),
        "resampled_target_ids": list(range(of.draws)), "resampled_loss_short_nats": rng.normal(3, 0.5, of.draws),
        "entropy_short_nats": short + rng.normal(0.07, 0.2),
    }  # fmt: skip
    window["resampled_loss_long_nats"] = window["resampled_loss_short_nats"] + rng.normal(0.2, 0.2, of.draws)
    if of.draws:
        window["kl_short_to_long_nats"] = rng.gamma(9.0, 0.022)
        if "unmask-one" in of.selectors and of.influence.get("screen") is None:
            rng.normal(of.optimism, 0.02, 2)  # drawn and not used: all other numbers stay the same
    for name in ("group_first", "null_group_first"):
        window[name] = _groups(rng, of)
    return window


def _groups(rng: np.random.Generator, of: Planted) -> list[int]:
    """Return the first positions of the groups of a window."""
    num_long_range = of.context["num_long_range"]
    if of.groups is None:
        return list(range(num_long_range))
    if (size := block_size(of.influence["unit"])) is not None:
        return list(range(0, num_long_range, size))
    number = int(rng.integers(of.groups[0], of.groups[1] + 1))
    return [0, *sorted(rng.choice(np.arange(1, num_long_range), number - 1, replace=False).tolist())]


def _selections(rng: np.random.Generator, of: Planted, window: dict[str, Any]) -> list[dict[str, Any]]:
    rows = []
    for number, (name, share) in enumerate(of.selectors.items()):
        sees = SELECTORS[name].sees_target
        contexts = [("real", 0), ("null", 0)]
        if of.draws and (sees or name == "random"):
            contexts += [(RESAMPLED["real"], draw) for draw in range(of.draws)] + [(RESAMPLED["null"], 0)]
        for context, draw in contexts:
            rows.append(_selection(rng, of, window, name, share=share, context=context, draw=draw))
            rows[-1]["num_evaluations"] = 5 * number + 2
        if name in ("kl", "greedy-kl"):  # drawn and not used: all other numbers stay the same
            _selection(rng, of, window, name, share=share, context="null", draw=0)
    return rows


def _selection(
    rng: np.random.Generator, of: Planted, window: dict[str, Any], name: str, *, share: float, context: str, draw: int
) -> dict[str, Any]:
    """Return a row of ``selections``: of k tokens a share of the long gain that grows with k, and optimism."""
    sees, num_long_range, full = SELECTORS[name].sees_target, of.context["num_long_range"], of.context["full_len"]
    is_null = context in ("null", RESAMPLED["null"])
    firsts = window["null_group_first" if is_null else "group_first"]
    ends = [*firsts[1:], num_long_range]
    scores = rng.integers(-2, 9, len(firsts)) / 4
    order = np.argsort(-scores, kind="stable")[: of.ks[-1]].tolist()
    positions = [position for g in order for position in range(firsts[g], ends[g])]
    ks = np.array(of.ks)
    share_K = np.minimum(1.0, share * np.sqrt(ks))
    luck_K = of.optimism * np.sqrt(ks) * sees
    if context in RESAMPLED.values():
        cost_K = 0.04 * np.sqrt(ks)
        short, gain_K, kl_K = (
            window["resampled_loss_short_nats"][draw],
            luck_K - cost_K + rng.normal(0, 0.1, len(ks)),
            None,
        )
    else:
        cost_K, short, long = None, window["loss_short_nats"], window["gain_long_nats"]
        long = window["null_gain_long_nats"] if context == "null" else long
        gain_K = (
            of.random_gain * of.long_gain * np.sqrt(ks) if name == "random" and context == "real" else long * share_K
        ) + luck_K
        gain_K = gain_K + rng.normal(0, 0.08, len(ks))
        kl = window["null_kl_short_nats" if context == "null" else "kl_short_nats"]
        share_K = share_K * min(1.0, _noise(of, window["window_id"], 3, list(of.selectors).index(name)))
        kl_K = kl * (1 - share_K * (0.8 if context == "null" else 1.0)) * np.exp(rng.normal(0, 0.1, len(ks)))
    tokens_K = [sum(ends[g] - firsts[g] for g in order[:k]) for k in of.ks]
    return {
        "window_id": window["window_id"], "doc_id": window["doc_id"], "selector": name, "context": context, "draw": draw,
        "sees_target": sees, "positions": positions, "distance_tokens": [full - position for position in positions],
        "group_first": [firsts[g] for g in order], "group_last": [ends[g] - 1 for g in order], "scores": scores, "k": list(of.ks),
        "num_tokens": tokens_K, "loss_sparse_nats": short - gain_K, "gain_sparse_nats": gain_K, "kl_sparse_nats": kl_K,
        "kl_short_to_sparse_nats": cost_K,
    }  # fmt: skip


ROW = {"local_len": 11, "full_len": 27, "num_long_range": 16, "train_len": 14, "max_position": 31, "pose_method": "pose",
       "num_chunks": 3, "pose_contents": "matched"}  # fmt: skip
UNKNOWN = {"local_len": 11, "full_len": 51, "num_long_range": 40, "train_len": None}
PRETRAINED = {"model": MODEL, "run": "someone--invented-7m", "split": "measured"}

# One measurement for each way in which words and numbers are shown.
PLANTED = {
    # A run; both gates pass; intervals of D(k); every quantity.
    "run": Planted(
        310, {"unmask-one": 0.4, "kl": 0.3, "greedy": 0.45, "nearest": 0.1, "random": 0.05}, [1, 3, 4, 10], ROW,
        influence={"null_context": "document", "min_preceding": 40}, gain_beyond=0.21, overlap=0.13, seed=1,
    ),
    # A model from elsewhere, in bf16: no row is known; k counts words of entries; its null contexts are shuffled.
    "words": Planted(
        64, {"attention": 0.35, "random": 0.05, "gradient": 0.3}, [1, 2, 6], UNKNOWN, groups=(4, 11), null_same_document=0.3,
        manifest={**PRETRAINED, "visibility": "contextual", "anchor": ANCHOR,
                  "fit": {"checks": [], "anchor": anchor_check("bos", "none", None)},
                  "precision": "bf16"},
        influence={"unit": "word", "null_context": "shuffled"}, long_gain=0.11,
        noise=0.3, seed=2,
    ),
    # Too few documents for an interval; given windows; no selector blind to the target, no drawn label.
    "few": Planted(
        21, {"unmask-one": 0.4, "random": 0.05}, [2, 5], {**ROW, "train_len": 27, "num_chunks": 1}, draws=0,
        manifest={"split": "held-out"}, influence={"sampling": "given", "null_context": "shuffled"},
        seed=3,
    ),
    # The long gain is no more than the cost of the gap; rows as long as the local context, of random positions; blocks.
    "gap": Planted(
        59, {"unmask-one": 0.4, "kl": 0.3, "random": 0.05}, [1, 2, 4], {**ROW, "train_len": 11, "pose_method": "randpos"},
        groups=(5, 6), long_gain=0.075, gap_cost=0.14,
        influence={"unit": "block:3", "null_context": "document"},
        overlap=0.0, seed=4,
    ),
    # Cache policies, of a model whose row is stated; random choices do harm.
    "stated": Planted(
        70, {"h2o": 0.2, "random": 0.02}, [1, 2], random_gain=-0.4,
        context={**UNKNOWN, "train_len": 30, "train_len_is_stated": True, "max_position": 4096}, gain_beyond=0.004,
        manifest={**PRETRAINED, "model": {**MODEL, "revision": None, "name": "models/own/step70", "rope_scaling": "yarn:4",
                  "dtype": "float32"}, "visibility": "contextual",
                  "fit": {"checks": [], "anchor": anchor_check("none", None, None)}},
        seed=5,
    ),
    # The gates fail; the row is shorter than the local context.
    "failed": Planted(
        55, {"kl": 0.3, "unmask-one": 0.4}, [1, 4], {**ROW, "train_len": 9, "pose_contents": "contiguous"}, long_gain=-0.1,
        gain_beyond=-0.05,
        overlap=0.07, seed=6,
    ),
}  # fmt: skip
