"""Measurements in memory at several lengths, whose D(k) rises linearly in log k and reaches 50% at a known k."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Optional

import numpy as np
import pandas as pd
from made_up import MODEL

from olmo_sparsity.statistics.several.same_targets import MeasuredLength
from olmo_sparsity.statistics.single.measurement import Measurement, SelectorInfo

LOCAL = 64


class LineKey(NamedTuple):
    """A selector under a context, ``real`` or ``null``."""

    selector: str
    context: str


SLOPE_OF_D = 0.15  # of D(k) in log k
ATTENTION, NULL, RANDOM = LineKey("attention", "real"), LineKey("attention", "null"), LineKey("random", "real")
HALVES = {ATTENTION: 4.0, NULL: 6.0, RANDOM: 12.0}  # the k that reaches 50% at a full context of 128 tokens
GROWTHS = {ATTENTION: 0.4, NULL: 0.2, RANDOM: 1.0}  # the exponent of the full context with which it grows


def k_of_share(line: LineKey, share: float, full_len: int) -> float:
    """Return the k at which D(k) reaches a share, by construction."""
    half = HALVES[line] * (full_len / 128) ** GROWTHS[line]
    return float(half * np.exp((share - 0.5) / SLOPE_OF_D))


def planted_length(
    full_len: int,
    *,
    num_documents: int = 1000,
    spread: float = 0.0,
    ks: Optional[Sequence[int]] = None,
    model: Optional[Mapping[str, Any]] = None,
    long_gain: float = 0.5,
    **changes: Any,
) -> MeasuredLength:
    """Return a measurement of two windows of each document.

    Args:
        full_len: length of the full context.
        num_documents: number of documents.
        spread: standard deviation of what a document adds to log k of every share, alike at every length.
        ks: the measured k; None: the powers of two up to M, and M.
        model: entries of the manifest's ``model``.
        long_gain: mean long gain.
        changes: entries of the manifest.
    """
    num_long_range = full_len - LOCAL
    if ks is None:
        ks = [*(2**i for i in range(num_long_range.bit_length()) if 2**i < num_long_range), num_long_range]
    rng = np.random.default_rng(0)
    document_W = np.repeat(np.arange(num_documents), 2)
    added_W = rng.normal(0, spread, num_documents)[document_W] if spread else np.zeros(len(document_W))
    windows = pd.DataFrame({"window_id": np.arange(len(document_W)), "doc_id": [f"{d:016x}" for d in document_W]})
    windows["weight"] = 1.0 + document_W % 3
    windows["gain_long_nats"] = long_gain + rng.normal(0, 0.1, len(windows))
    windows["loss_short_nats"], windows["loss_short_no_gap_nats"] = 4.0, 4.0
    windows["kl_short_nats"], windows["null_kl_short_nats"] = 0.3, 0.7
    divergences = {}
    for line in (ATTENTION, NULL, RANDOM, LineKey("random", "null")):
        shape = RANDOM if line.selector == "random" else line
        short_W = windows["kl_short_nats" if line.context == "real" else "null_kl_short_nats"]
        for k in ks:
            recovered_W = 0.5 + SLOPE_OF_D * (np.log(k / k_of_share(shape, 0.5, full_len)) - added_W)
            divergences[(*line, k)] = short_W * (1 - recovered_W)
    return _measured(full_len, windows, divergences=divergences, model=model, **changes)


def planted_needs(
    full_len: int,
    needs: Mapping[LineKey, Sequence[float]],
    *,
    ks: Sequence[int],
    document_W: Optional[np.ndarray] = None,
    **changes: Any,
) -> MeasuredLength:
    """Return a measurement of targets whose prediction is the full-context one from a known number of tokens on, and not before.

    Args:
        full_len: length of the full context.
        needs: the number of each target, by selector and context; infinity: more than all measured k.
        ks: the measured k.
        document_W: the document of each target; None: one of its own.
        changes: entries of the manifest.
    """
    num_windows = len(next(iter(needs.values())))
    document_W = np.arange(num_windows) if document_W is None else document_W
    windows = pd.DataFrame({"window_id": np.arange(num_windows), "doc_id": [f"{d:016x}" for d in document_W]})
    windows["weight"], windows["gain_long_nats"] = 1.0 + document_W % 3, 0.5
    windows["loss_short_nats"], windows["loss_short_no_gap_nats"] = 4.0, 4.0
    for context, column in (("real", "kl_short_nats"), ("null", "null_kl_short_nats")):
        windows[column] = 0.9 * (np.asarray(needs[LineKey("attention", context)]) > 0)
    divergences = {(*line, k): 0.9 * (np.asarray(needed) > k) for line, needed in needs.items() for k in ks}
    return _measured(full_len, windows, divergences=divergences, **changes)


def _measured(
    full_len: int,
    windows: pd.DataFrame,
    *,
    divergences: Mapping[Any, Any],
    model: Optional[Mapping[str, Any]] = None,
    **changes: Any,
) -> MeasuredLength:
    """Return a measurement with these windows and KL(p_all, p_{J_k}); gains of J_k are of no account."""
    num_long_range = full_len - LOCAL
    frame = pd.DataFrame(divergences)
    frame.columns.names = ["selector", "context", "k"]
    manifest: dict[str, Any] = {
        "run": "planted", "source": "planted text", "split": "measured", "visibility": "contextual", "anchor": None,
        "precision": "fp32", "model": {**MODEL, **(model or {})},
        "influence": {"null_context": "document"},
        "context": {"local_len": LOCAL, "full_len": full_len, "num_long_range": num_long_range, "train_len": None},
    }  # fmt: skip
    selectors = {name: SelectorInfo(False, 1) for name in dict.fromkeys(frame.columns.get_level_values("selector"))}
    measurement = Measurement(windows, frame, frame, pd.DataFrame(), selectors, {**manifest, **changes})
    targets = windows[["window_id", "doc_id", "weight"]].assign(target=4096, target_id=7, null_doc_id="0")
    return MeasuredLength(measurement, targets)
