"""R(k), excess over the null context, gain over random, Figure 4's slopes, the smallest k, the validity gate.

Reads tables; imports no torch. Every number comes with a 95% interval by bootstrap over documents; all share the same
resamples (``bootstrap``), so that differences and ratios are paired.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional, cast

import numpy as np
import pandas as pd
import pyarrow as pa

from olmo_sparsity.bootstrap import (
    MIN_DOCUMENTS,
    Estimate,
    attained_estimates,
    document_sums,
    document_units,
    estimates,
    line_of_sums,
)
from olmo_sparsity.config import UserError
from olmo_sparsity.tables import list_rows, read_facts, read_parts, rows_by_choice

RECOVERED = (0.5, 0.8, 0.9)  # how much of the long gain the smallest k is to give back
LONG_GAIN = {"real": "gain_long_nats", "null": "null_gain_long_nats"}
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
NUMBERS = ("loss_short_nats", "loss_long_nats", *LONG_GAIN.values())


@dataclass(frozen=True)
class Measurement:
    """What statistics and figures read of one influence folder.

    Attributes:
        windows: a row a window, by ``window_id``: window_id, doc_id, target_class, loss and gain columns.
        gains: sparse gain in nats, float32; rows as in ``windows``, columns (selector, context, k).
        selectors: name -> ``sees_target``, ``num_evaluations``.
        facts: the manifest.
    """

    windows: pd.DataFrame
    gains: pd.DataFrame
    selectors: dict[str, dict[str, Any]]
    facts: dict[str, Any]

    @property
    def keys(self) -> list[tuple[str, str, int]]:
        """(selector, context, k) of every column of ``gains``."""
        return cast(list[tuple[str, str, int]], self.gains.columns.tolist())

    @property
    def ks(self) -> list[int]:
        """The measured k, rising."""
        return sorted({k for _, _, k in self.keys})

    def restrict(self, keep: np.ndarray | slice) -> Measurement:
        """The same of some windows; ``keep`` is bool [windows], or a slice, which copies nothing."""
        return Measurement(self.windows[keep], self.gains[keep], self.selectors, self.facts)


def window_rows(windows: pd.DataFrame, window_ids: Any) -> np.ndarray:
    """In which row of ``Measurement.windows`` each of these windows is, int64; -1 where in none."""
    known, wanted = windows["window_id"].to_numpy(), np.asarray(window_ids)
    rows = np.searchsorted(known, wanted).clip(max=len(known) - 1)
    return np.where(known[rows] == wanted, rows, -1)


def load(folder: Path) -> Measurement:
    """Reads the numbers of a finished influence folder; positions and scores are left where they are.

    The tables are read part by part. What is kept, and nearly all that is ever held, is 4 bytes a window for every column of
    ``gains`` and some 50 for its row of ``windows`` (half of them are the name of its document, of 16 characters). A million
    windows with six selectors in two contexts and four k take 240 MB.

    Raises:
        UserError: the tables are missing, unfinished, of another schema, or some window lacks a selection.
    """
    facts = read_facts(folder)
    windows = _load_windows(folder)
    choices: list[tuple[str, str]] = []
    ks: list[int] = []
    selectors: dict[str, dict[str, Any]] = {}
    gains_CKW = np.empty((0, 0, len(windows)), np.float32)
    filled = np.empty((0, len(windows)), bool)
    columns = ["window_id", "selector", "context", "sees_target", "num_evaluations", "k", "gain_sparse_nats"]
    for part in read_parts(folder, "selections", columns):
        rows_R, gains_RK = window_rows(windows, part["window_id"]), list_rows(part["gain_sparse_nats"])
        of_choice = list(rows_by_choice(part))
        if not choices:  # every window has the same, so the first part names all
            choices = [(selector, context) for selector, context, _ in of_choice]
            ks = part["k"][0].as_py()
            gains_CKW = np.empty((len(choices), len(ks), len(windows)), np.float32)
            filled = np.zeros((len(choices), len(windows)), bool)
        for selector, context, of in of_choice:
            if (selector, context) not in choices or (rows_R[of] < 0).any():
                raise UserError(f"{folder}: its parts are of different measurements; measure again with --overwrite")
            choice = choices.index((selector, context))
            gains_CKW[choice][:, rows_R[of]] = gains_RK[of].T
            filled[choice, rows_R[of]] = True
            selectors.setdefault(
                selector,
                {
                    "sees_target": part["sees_target"][of[0]].as_py(),
                    "num_evaluations": part["num_evaluations"][of[0]].as_py(),
                },
            )
    if not filled.all():
        raise UserError(f"{folder}: some windows lack selections; measure again with --overwrite")
    keys = [(selector, context, k) for selector, context in choices for k in ks]
    gains = pd.DataFrame(
        gains_CKW.reshape(len(keys), -1).T,  # a column is contiguous; no copy
        index=pd.Index(windows["window_id"]),
        columns=pd.MultiIndex.from_tuples(keys, names=["selector", "context", "k"]),
        copy=False,
    )
    return Measurement(windows, gains, selectors, facts)


def _load_windows(folder: Path) -> pd.DataFrame:
    """``Measurement.windows``: window_id int64, rising; doc_id strings held by Arrow; target_class categorical; float32."""
    found: dict[str, list[Any]] = {name: [] for name in ("window_id", "doc_id", "target_class", *NUMBERS)}
    for part in read_parts(folder, "windows", list(found)):
        for name, chunks in found.items():
            chunks += part[name].chunks if name in ("doc_id", "target_class") else [part[name].to_numpy()]
    columns: dict[str, Any] = {}
    for name in list(found):
        chunks = found.pop(name)
        if name == "doc_id":
            # One piece, or every look at it would go through as many pieces as there are parts.
            columns[name] = pd.array(
                pa.chunked_array(chunks).cast(pa.large_string()).combine_chunks(), "string[pyarrow]"
            )
        elif name == "target_class":
            columns[name] = pa.chunked_array(chunks).dictionary_encode().to_pandas()
        else:
            columns[name] = np.concatenate(chunks)
    windows = pd.DataFrame(columns, copy=False)
    return (
        windows if windows["window_id"].is_monotonic_increasing else windows.sort_values("window_id", ignore_index=True)
    )


def gate_of(long_gain: Estimate) -> str:
    """``passed`` where the 95% interval of the mean long gain lies above 0: the model uses the long context."""
    return "passed" if long_gain["low"] is not None and long_gain["low"] > 0 else "failed"


def _sums(measurement: Measurement, drawn: Optional[tuple[np.ndarray, int]] = None) -> dict[Any, np.ndarray]:
    """What the numbers are functions of, summed over each document (or group of documents), float64 [units].

    ``drawn``: the unit of each window and how many there are, as ``document_units`` has them; None: of this measurement alone.

    ``windows`` (their number); a loss column or the long gain of a context, by its name, and the latter squared
    (name, "squared"); the sparse gain x of each (selector, context, k), with (key, "xx") and (key, "xy"), y being the long gain
    of the same context.
    """
    windows = measurement.windows
    units, num_units = document_units(windows["doc_id"]) if drawn is None else drawn

    def add(values: Any) -> np.ndarray:
        return document_sums(values, units, num_units)

    sums: dict[Any, np.ndarray] = {"windows": add(np.ones(len(windows)))}
    for name in NUMBERS:
        sums[name] = add(windows[name])
    long = {context: windows[name].to_numpy(np.float64) for context, name in LONG_GAIN.items()}
    for context, y in long.items():
        sums[LONG_GAIN[context], "squared"] = add(y**2)
    for key in measurement.keys:
        x = measurement.gains[key].to_numpy(np.float64)
        sums[key] = add(x)
        sums[key, "xx"] = add(x**2)
        sums[key, "xy"] = add(x * long[key[1]])
    return sums


def _quantities(total: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
    """The numbers of ``summarize`` from the totals of ``_sums``: by name, those of a selection by (key, name)."""
    n, long_gain = total["windows"], total["gain_long_nats"]
    values: dict[Any, np.ndarray] = {
        "loss_short_nats": total["loss_short_nats"] / n,
        "loss_long_nats": total["loss_long_nats"] / n,
        "long_gain_nats": long_gain / n,
        "null_long_gain_nats": total["null_gain_long_nats"] / n,
        "content_gain_nats": (long_gain - total["null_gain_long_nats"]) / n,
    }
    for key in [name for name in total if isinstance(name, tuple) and len(name) == 3]:
        selector, context, k = key
        gain, random = total[key], total.get(("random", context, k))
        values[key, "gain_sparse_nats"] = gain / n
        values[key, "recovered_fraction"] = gain / long_gain
        name = LONG_GAIN[context]
        line = line_of_sums(n, gain, total[name], total[key, "xx"], total[name, "squared"], total[key, "xy"])
        for which, value in line.items():
            values[key, which] = value
        over_random = random is not None and selector != "random"
        if over_random:
            values[key, "gain_over_random_nats"] = (gain - random) / n
        if context == "real":
            excess = gain - total[selector, "null", k]
            values[key, "excess_gain_nats"] = excess / n
            values[key, "excess_recovered_fraction"] = excess / long_gain
            if over_random:
                of_random = random - total["random", "null", k]
                values[key, "excess_over_random_nats"] = (excess - of_random) / n
    return values


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


def _effective_sparsity(measurement: Measurement, sums: Mapping[Any, np.ndarray], gate: str) -> list[dict[str, Any]]:
    """The smallest measured k that gives back 50, 80 and 90% of the long gain, real context; an entry a selector and
    ``fraction``.

    - ``smallest_k``: with R(k) >= fraction. Of a selector that sees the target this is mostly luck.
    - ``smallest_k_excess``: with excess recovered fraction >= fraction.
    - ``smallest_k_median_window``: with which half of the windows whose long gain is above 0 have reached fraction times
      their long gain, at it or at a smaller k. ``window_shares``: the share of them, ``{k, mean, low, high}`` for each k.

    A smallest k is ``{value, low, high}``, numbers among the measured k; None in it: more than ``max_k``, the largest of
    them. (A resample whose long gain is not above 0 counts as that, too.) Where the gate failed, all are None.
    """
    ks, selectors = measurement.ks, list(measurement.selectors)
    asked = [(selector, fraction) for selector in selectors for fraction in RECOVERED]
    entries: list[dict[str, Any]] = [
        {
            "selector": selector,
            "context": "real",
            "fraction": fraction,
            "max_k": ks[-1],
            "smallest_k": None,
            "smallest_k_excess": None,
            "smallest_k_median_window": None,
            "window_shares": None,
        }
        for selector, fraction in asked
    ]
    if gate == "failed":
        return entries

    units, num_units = document_units(measurement.windows["doc_id"])
    long_gain = measurement.windows["gain_long_nats"].to_numpy(np.float64)
    positive = long_gain > 0
    shares: dict[Any, np.ndarray] = {"positive": document_sums(positive, units, num_units)}
    for selector in selectors:
        best = np.full(len(long_gain), -np.inf)
        for k in ks:
            best = np.maximum(best, measurement.gains[selector, "real", k].to_numpy())
            for fraction in RECOVERED:
                reached = positive & (best >= fraction * long_gain)
                shares[selector, fraction, k] = document_sums(reached, units, num_units)

    def first(reached: list[np.ndarray]) -> np.ndarray:
        """Index of the first k that is reached, the number of ks where none is."""
        never = np.ones_like(reached[0])
        return np.argmax([*reached, never], axis=0)

    def smallest(total: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        values = {}
        for selector, fraction in asked:
            wanted = fraction * total["gain_long_nats"]
            gains = [total[selector, "real", k] for k in ks]
            excess = [gain - total[selector, "null", k] for gain, k in zip(gains, ks, strict=True)]
            for name, of in (("smallest_k", gains), ("smallest_k_excess", excess)):
                values[selector, fraction, name] = first([(wanted > 0) & (one >= wanted) for one in of])
            values[selector, fraction, "smallest_k_median_window"] = first(
                [total[selector, fraction, k] >= 0.5 * total["positive"] for k in ks]
            )
        return values

    def share(total: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        return {name: value / total["positive"] for name, value in total.items() if name != "positive"}

    needed = {key: sums[key] for key in ["gain_long_nats", *measurement.keys]}
    found, found_shares = attained_estimates({**needed, **shares}, smallest), estimates(shares, share)
    for entry, (selector, fraction) in zip(entries, asked, strict=True):
        for name in ("smallest_k", "smallest_k_excess", "smallest_k_median_window"):
            numbers = (None if i is None or i == len(ks) else ks[i] for i in found[selector, fraction, name])
            entry[name] = dict(zip(("value", "low", "high"), numbers, strict=True))
        entry["window_shares"] = [{"k": k, **(found_shares[selector, fraction, k] or {})} for k in ks]
    return entries


def smallest_k_words(smallest: Optional[dict[str, Any]], max_k: int) -> str:
    """A smallest k of ``effective_sparsity``: ``2 [1, > 8]``, or a dash where the gate failed."""
    if smallest is None:
        return "-"
    value, low, high = (
        f"> {max_k}" if smallest[name] is None else str(smallest[name]) for name in ("value", "low", "high")
    )
    return f"{value} [{low}, {high}]"


def paired_difference(first: Measurement, second: Measurement) -> dict[Any, Optional[Estimate]]:
    """The second measurement's numbers minus the first's, on the same windows of the same documents.

    Returns:
        ``long_gain_nats`` and the other losses by name, and those of a selection by ((selector, context, k), quantity), as
        far as both hold them: ``{mean, low, high}``, the documents of both drawn together.

    Raises:
        ValueError: they are not of the same windows.
    """
    columns = ["window_id", "doc_id"]
    if not first.windows[columns].equals(second.windows[columns]):
        raise ValueError("the two measurements are of different windows")
    return unpaired_difference(first, second)


def unpaired_difference(first: Measurement, second: Measurement) -> dict[Any, Optional[Estimate]]:
    """As ``paired_difference``, of any two measurements, on whatever windows.

    The documents of both are drawn together: one that only one of them holds counts in that one alone, and one that both
    hold is drawn in both at once, so that nothing is taken for independent that is not. Without ``MIN_DOCUMENTS`` in either
    there are no intervals.
    """
    doc_ids = pd.concat([first.windows["doc_id"], second.windows["doc_id"]], ignore_index=True)
    units, num_units = document_units(doc_ids)
    units_of = (units[: len(first.windows)], units[len(first.windows) :])
    both: dict[Any, np.ndarray] = {}
    for i, (one, of) in enumerate(zip((first, second), units_of, strict=True)):
        both |= {(i, name): values for name, values in _sums(one, (of, num_units)).items()}

    def differences(total: Mapping[Any, np.ndarray]) -> dict[Any, np.ndarray]:
        a, b = (_quantities({name: value for (i, name), value in total.items() if i == which}) for which in (0, 1))
        return {name: b[name] - a[name] for name in a if name in b}

    found = estimates(both, differences)
    if min(len(np.unique(of)) for of in units_of) >= MIN_DOCUMENTS:
        return found
    return {name: value and {"mean": value["mean"], "low": None, "high": None} for name, value in found.items()}


def interval(value: Optional[dict[str, Any]], digits: int = 2) -> str:
    """An estimate in words: ``0.41 [0.36, 0.47]``, or a dash where there is none."""
    if value is None:
        return "-"
    if value["low"] is None:
        return f"{value['mean']:.{digits}f}"
    return f"{value['mean']:.{digits}f} [{value['low']:.{digits}f}, {value['high']:.{digits}f}]"


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


# What the chunks of a training row held, where it was not consecutive text; manifests older than this choice do not say.
CONTENTS_WORDS = {
    "matched": ", over text as far apart as they say",
    "uniform": ", over pieces of text drawn apart from them",
}


def length_words(summary: dict[str, Any]) -> str:
    """How much of the full context lies beyond what a training row held."""
    if summary.get("pose_method") == "randpos":  # nor of RandPos
        positions = f"random positions (RandPos) below {summary['max_position']}"
    elif summary["num_chunks"] > 1:
        positions = f"PoSE positions below {summary['max_position']}"
        positions += CONTENTS_WORDS.get(summary.get("pose_contents", "contiguous"), "")
    else:
        positions = "ordinary positions, no PoSE"
    beyond = summary["full_len"] - summary["train_len"]
    words = (
        f"local {summary['local_len']} + long-range {summary['num_long_range']} = full {summary['full_len']} tokens; "
        f"trained on rows of {summary['train_len']} with {positions}"
    )
    if summary["train_len"] == summary["local_len"]:
        return f"{words}, so that all {beyond} long-range tokens lie beyond what training saw at once."
    return f"{words}. A row is longer than the local context: only {beyond} of the {summary['full_len']} tokens lie beyond it."
