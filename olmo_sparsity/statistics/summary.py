"""R(k), excess over the null context, gain over random, Figure 4's slopes, the smallest k, the validity gate.

Reads tables; imports no torch. Every number comes with a 95% interval by bootstrap over documents; all share the same
resamples (``bootstrap``), so that differences and ratios are paired.
"""

from __future__ import annotations

from typing import Any

from olmo_sparsity.statistics.bootstrap import (
    Estimate,
    estimates,
)
from olmo_sparsity.statistics.effective_sparsity import _effective_sparsity
from olmo_sparsity.statistics.measurement import Measurement
from olmo_sparsity.statistics.sums import _quantities, _sums

LINE = ("ols_slope", "tls_slope", "correlation")
MAIN_SELECTORS = ("unmask-one", "kl", "attention", "random")  # shown where nine would hide one another
# Of each selector, context and k; ``summarize`` says what they are.
ESTIMATES = (
    "gain_sparse_nats",
    "recovered_fraction",
    "gain_over_random_nats",
    "excess_gain_nats",
    "excess_recovered_fraction",
    "excess_over_random_nats",
)


def gate_of(long_gain: Estimate) -> str:
    """``passed`` where the 95% interval of the mean long gain lies above 0: the model uses the long context."""
    return "passed" if long_gain["low"] is not None and long_gain["low"] > 0 else "failed"


def summarize(measurement: Measurement) -> dict[str, Any]:
    """The numbers of one measurement, as ``olmo-sparsity summary --json`` prints them.

    ``selections`` has an entry for every selector, context and k:

    - ``gain_sparse_nats``; ``recovered_fraction``: over the mean long gain of the real context, in both contexts.
    - ``gain_over_random_nats``: minus the sparse gain of `random`, window by window. For a selector that does not see the
      target, in the real context, it says cleanly whether it selects anything.
    - with the real context ``excess_gain_nats`` and ``excess_recovered_fraction``, minus the sparse gain of the null
      context, window by window; ``excess_over_random_nats``, minus the excess of `random`: foreign tokens mislead a model,
      so that `random` has an excess, too.
    - ``figure4``: ``ols_slope``, ``tls_slope`` and ``correlation`` of the long gain (y) on the sparse gain (x), both of the
      entry's context, a point a window.

    Each is ``{mean, low, high}`` or None. Fractions, and ``effective_sparsity``, are None where the gate failed.
    """
    sums = _sums(measurement)
    found = estimates(sums, _quantities)
    long_gain = found["long_gain_nats"]
    assert long_gain is not None
    gate = gate_of(long_gain)
    entries = []
    for key in measurement.keys:
        selector, context, k = key
        entry: dict[str, Any] = {
            "selector": selector,
            "context": context,
            "k": k,
            **measurement.selectors[selector],
        }
        for quantity in ESTIMATES:
            hidden = gate == "failed" and quantity.endswith("fraction")
            entry[quantity] = None if hidden else found.get((key, quantity))
        entry["figure4"] = {name: found[key, name] for name in LINE}
        entries.append(entry)
    facts = measurement.facts
    return {
        "gate": gate,
        "num_windows": len(measurement.windows),
        "num_documents": int(measurement.windows["doc_id"].nunique()),
        **{name: value for name, value in found.items() if isinstance(name, str)},
        **facts["context"],
        "source": facts["source"],
        "split": facts["split"],
        "run": facts["run"],
        "run_id": facts["run_id"],
        "selections": entries,
        "effective_sparsity": _effective_sparsity(measurement, sums, gate),
    }
