"""R(k), excess over the null context, bootstrap by document, the validity gate. Reads tables; imports no torch.

Every reported number is a ratio of sums over documents, with a 95% percentile bootstrap interval over documents: windows
of one document are not independent. All of them share the same resamples, so that differences and ratios are paired.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import numpy as np
import pandas as pd
from scipy.stats import bootstrap

from olmo_sparsity.tables import read_facts, read_table

CONFIDENCE = 0.95
NUM_RESAMPLES = 2000
SEED = 0
MIN_DOCUMENTS = 20  # below this a percentile interval is much too narrow, and the gate would pass by luck

Estimate = dict[str, Optional[float]]


@dataclass(frozen=True)
class Measurement:
    """What statistics and figures read of one influence folder: a row a window, and a row a selection and k.

    ``windows``: window_id, doc_id, loss and gain columns. ``selections``: window_id, selector, context, k,
    gain_sparse_nats, one row for each k. ``facts``: the manifest.
    """

    windows: pd.DataFrame
    selections: pd.DataFrame
    facts: dict[str, Any]


def load(folder: Path) -> Measurement:
    """Reads the numbers of a finished influence folder.

    Raises:
        UserError: the tables are missing, unfinished or of another schema.
    """
    facts = read_facts(folder)
    columns = ["window_id", "doc_id", "loss_short_nats", "loss_long_nats", "gain_long_nats", "null_gain_long_nats"]
    windows = read_table(folder, "windows", columns).to_pandas()
    selections = read_table(folder, "selections", ["window_id", "selector", "context", "k", "gain_sparse_nats"])
    long = selections.to_pandas().explode(["k", "gain_sparse_nats"], ignore_index=True)
    return Measurement(windows, long.astype({"k": int, "gain_sparse_nats": float}), facts)


def ratio_estimates(numerators: np.ndarray, denominators: np.ndarray) -> list[Estimate]:
    """Ratios of sums over documents with their 95% bootstrap intervals, all from the same resamples.

    Args:
        numerators: float [ratios, documents], sums of each document.
        denominators: float [ratios, documents], likewise.

    Returns:
        ``{mean, low, high}`` for each ratio; low and high are None with fewer than ``MIN_DOCUMENTS``.
    """
    num_ratios, num_documents = numerators.shape
    both = np.concatenate([numerators, denominators])

    def ratio(sums: np.ndarray, axis: int) -> np.ndarray:
        total = sums.sum(axis=axis)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(total[:num_ratios] / total[num_ratios:])

    means = ratio(both, -1)
    if num_documents < MIN_DOCUMENTS:
        return [{"mean": float(mean), "low": None, "high": None} for mean in means]
    result = bootstrap(
        (both,),
        ratio,
        axis=-1,
        n_resamples=NUM_RESAMPLES,
        batch=max(1, int(2e7 // both.size)),
        confidence_level=CONFIDENCE,
        method="percentile",
        rng=np.random.default_rng(SEED),
    ).confidence_interval
    return [
        {"mean": float(mean), "low": float(low), "high": float(high)}
        for mean, low, high in zip(means, result.low, result.high, strict=True)
    ]


def document_sums(values: np.ndarray, codes: np.ndarray, num_documents: int) -> np.ndarray:
    """Sum of ``values`` [windows] in each document, float64 [documents]."""
    return np.bincount(codes, weights=np.asarray(values, dtype=np.float64), minlength=num_documents)


def gate_of(long_gain: Estimate) -> str:
    """``passed`` where the 95% interval of the mean long gain lies above 0: the model uses the long context."""
    return "passed" if long_gain["low"] is not None and long_gain["low"] > 0 else "failed"


def summarize(measurement: Measurement) -> dict[str, Any]:
    """The numbers of one measurement, as ``olmo-sparsity summary --json`` prints them.

    ``selections`` has an entry for every selector, context and k. ``recovered_fraction`` is mean sparse gain over mean
    long gain of the real context, in both contexts; ``excess_*`` compares the real context's sparse gain with the null
    context's, window by window, and is given with the real context. Fractions are None where the gate failed.
    """
    windows = measurement.windows.sort_values("window_id")
    codes, documents = pd.factorize(windows["doc_id"])
    num_documents = len(documents)

    def sums(values: Any) -> np.ndarray:
        return document_sums(np.asarray(values), codes, num_documents)

    ones, long_gain = sums(np.ones(len(windows))), sums(windows["gain_long_nats"])
    losses = {
        "loss_short_nats": sums(windows["loss_short_nats"]),
        "loss_long_nats": sums(windows["loss_long_nats"]),
        "long_gain_nats": long_gain,
        "null_long_gain_nats": sums(windows["null_gain_long_nats"]),
        "content_gain_nats": long_gain - sums(windows["null_gain_long_nats"]),
    }
    gains = measurement.selections.pivot_table(
        index="window_id", columns=["selector", "context", "k"], values="gain_sparse_nats", sort=False
    ).reindex(windows["window_id"])
    per_selection = {key: sums(gains[key]) for key in gains.columns}

    numerators, denominators, names = [], [], []

    def ask(name: Any, numerator: np.ndarray, denominator: np.ndarray) -> None:
        names.append(name)
        numerators.append(numerator)
        denominators.append(denominator)

    for name, values in losses.items():
        ask(name, values, ones)
    for (selector, context, k), values in per_selection.items():
        ask((selector, context, k, "gain_sparse_nats"), values, ones)
        ask((selector, context, k, "recovered_fraction"), values, long_gain)
        if context == "real":
            excess = values - per_selection[selector, "null", k]
            ask((selector, context, k, "excess_gain_nats"), excess, ones)
            ask((selector, context, k, "excess_recovered_fraction"), excess, long_gain)
    estimates = dict(zip(names, ratio_estimates(np.stack(numerators), np.stack(denominators)), strict=True))

    gate = gate_of(estimates["long_gain_nats"])
    entries = []
    for selector, context, k in per_selection:
        entry: dict[str, Any] = {"selector": selector, "context": context, "k": int(k)}
        for quantity in ("gain_sparse_nats", "recovered_fraction", "excess_gain_nats", "excess_recovered_fraction"):
            value = estimates.get((selector, context, k, quantity))
            hidden = gate == "failed" and quantity.endswith("fraction")
            entry[quantity] = None if hidden else value
        entries.append(entry)
    facts = measurement.facts
    return {
        "gate": gate,
        "num_windows": len(windows),
        "num_documents": num_documents,
        **{name: estimates[name] for name in losses},
        **facts["context"],
        "source": facts["source"],
        "split": facts["split"],
        "run": facts["run"],
        "run_id": facts["run_id"],
        "selections": entries,
    }


def gate_words(summary: dict[str, Any]) -> str:
    """The validity gate in one sentence, for every table and figure."""
    gain = summary["long_gain_nats"]
    if gain["low"] is None:
        return f"GATE FAILED: fewer than {MIN_DOCUMENTS} documents are too few for an interval; no recovered fraction is shown."
    numbers = f"{gain['mean']:+.4f} nats, 95% interval [{gain['low']:+.4f}, {gain['high']:+.4f}]"
    if summary["gate"] == "passed":
        return f"Gate passed: the long context is worth {numbers}."
    return (
        f"GATE FAILED: the mean long gain ({numbers}) is not above 0. This model does not profit from the long context, "
        "so no recovered fraction is shown."
    )


def length_words(summary: dict[str, Any]) -> str:
    """How much of the full context lies beyond what a training row held."""
    positions = (
        f"PoSE positions below {summary['max_position']}"
        if summary["num_chunks"] > 1
        else "ordinary positions, no PoSE"
    )
    beyond = summary["full_len"] - summary["train_len"]
    words = (
        f"local {summary['local_len']} + long-range {summary['num_long_range']} = full {summary['full_len']} tokens; "
        f"trained on rows of {summary['train_len']} with {positions}"
    )
    if summary["train_len"] == summary["local_len"]:
        return f"{words}, so that all {beyond} long-range tokens lie beyond what training saw at once."
    return f"{words}. A row is longer than the local context: only {beyond} of the {summary['full_len']} tokens lie beyond it."
