"""Measurements in memory with known gains, for tests of statistics that read no tables."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from made_up import LENGTHS

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.measurement import Measurement, SelectorInfo

SELECTORS = {"unmask-one": True, "kl": False, "random": False}


def made_up(
    num_documents: int,
    long_gain: float,
    seed: int = 0,
    optimism: float = 0.3,
    signal: float = 0.2,
    gap_cost: float = 0.01,
) -> Measurement:
    """Return windows with known gains: sparse gain = optimism * k (+ signal under the real context), each with noise.

    `random` gains nothing in the real context and loses 0.05 in the null one; `kl` gains only the signal. Windows weigh 1 to 3.
    ``gap_cost``: what the gap in front of the recent tokens costs; mean, in nats.
    """
    rng = np.random.default_rng(seed)
    document = np.repeat(np.arange(num_documents), rng.integers(1, 4, num_documents))
    num = len(document)
    shift = rng.normal(0, 0.3, num_documents)[document]  # windows of one document are alike
    gain = long_gain + shift + rng.normal(0, 0.5, num)
    windows = pd.DataFrame({"window_id": np.arange(num), "doc_id": [f"{d:016x}" for d in document]})
    windows["target_class"] = windows["null_target_class"] = "other"
    windows["weight"] = rng.integers(1, 4, num).astype(float)
    windows["train_overlap"] = rng.random(num) < 0.2
    windows["loss_short_nats"] = 4.0 + shift
    windows["loss_long_nats"] = windows["loss_short_nats"] - gain
    windows["gain_long_nats"] = gain
    windows["null_gain_long_nats"] = -0.1 + rng.normal(0, 0.5, num)
    cost = np.random.default_rng([seed, 1]).normal(gap_cost, 0.02, num)
    windows["loss_short_no_gap_nats"] = windows["loss_short_nats"] - cost
    windows["loss_train_len_nats"] = windows["loss_long_nats"] + gain / 2 + rng.normal(0, 0.2, num)
    windows["loss_train_len_no_gap_nats"] = windows["loss_train_len_nats"] - cost
    windows["kl_short_nats"], windows["null_kl_short_nats"] = rng.gamma(2, 0.1, num), rng.gamma(2, 0.15, num)
    gains = {}
    for selector, sees_target in SELECTORS.items():
        for context in ("real", "null"):
            for k in (1, 4):
                mean = optimism * k * sees_target
                if selector == "random":
                    mean -= 0.05 * (context == "null")
                else:
                    mean += signal * (context == "real")
                gains[selector, context, k] = mean + shift + rng.normal(0, 0.1, num)
    frame = pd.DataFrame(gains)
    rng.normal(0, 0.1, (2, num))  # drawn and not used: all other numbers stay the same
    frame.columns.names = ["selector", "context", "k"]
    divergences = pd.DataFrame(rng.gamma(1, 0.05, (num, frame.shape[1] + 2))[:, :-2], columns=frame.columns)
    optimisms = {
        (selector, context, k): optimism * k * (selector == "unmask-one") + shift + rng.normal(0, 0.1, num)
        for context in ("real", "null")
        for selector in ("unmask-one", "random")
        for k in (1, 4)
    }
    windows["entropy_short_nats"] = windows["loss_short_nats"] + 0.1 + rng.normal(0, 0.1, num)
    windows["optimism_all_nats"] = rng.normal(0, 0.2, num)
    optimism_frame = pd.DataFrame(optimisms)
    optimism_frame.columns.names = frame.columns.names
    manifest: dict[str, Any] = {"context": LENGTHS, "source": "s", "split": "validation", "run": "r", "run_id": "0"}
    manifest["influence"] = {}
    selectors = {name: SelectorInfo(sees, num_evaluations=7) for name, sees in SELECTORS.items()}
    return Measurement(windows, frame, divergences, optimism_frame, selectors, manifest)


def width(estimate: Estimate | None) -> float:
    """Return the width of an interval that must exist."""
    assert estimate is not None and estimate.bounds is not None
    low, high = estimate.bounds
    return high - low


def mean(estimate: Estimate | None) -> float:
    """Return the mean of an estimate that must exist."""
    assert estimate is not None
    return estimate.mean
