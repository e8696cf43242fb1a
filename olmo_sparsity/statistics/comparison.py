"""Measurements side by side: models, selectors, seeds, PoSE or not; differences with intervals. Imports no torch."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Optional

import pandas as pd

from olmo_sparsity.config import SELECTORS
from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.differences import paired_difference, unpaired_difference
from olmo_sparsity.statistics.measurement import Measurement, load
from olmo_sparsity.statistics.summary import MAIN_SELECTORS, summarize
from olmo_sparsity.tables.reading import find_tables

CHOSEN = "its selector"  # stands for the selector of each subject, where they are compared by selector
LOSSES = {
    "loss_short_nats": "L_short, nats",
    "loss_long_nats": "L_long, nats",
    "long_gain_nats": "long gain, nats",
    "null_long_gain_nats": "long gain, null context, nats",
}
QUANTITIES = {
    "gain_over_random_nats": "gain over random, nats",
    "gain_sparse_nats": "sparse gain, nats",
    "recovered_fraction": "R(k)",
    "excess_gain_nats": "excess gain, nats",
    "excess_over_random_nats": "excess over random, nats",
}


@dataclass(frozen=True)
class Subject:
    """One of the measurements that are compared.

    Attributes:
        label: its name in tables and figures.
        tables: its influence folder.
        selector: the selector to compare, or None: all that every subject has.
        measurement: its numbers.
    """

    label: str
    tables: Path
    selector: Optional[str]
    measurement: Measurement


def read_subjects(texts: list[str]) -> list[Subject]:
    """What ``RUN`` or ``RUN:SELECTOR`` name, a run or an influence folder each.

    Raises:
        UserError: fewer than two, or one is nothing that can be compared.
    """
    if len(texts) < 2:
        raise UserError("compare: name two runs or more, or one run twice with two selectors, as RUN:kl RUN:unmask-one")
    subjects: list[Subject] = []
    loaded: dict[Path, Measurement] = {}
    for text in texts:
        head, _, tail = text.rpartition(":")
        named = head != "" and tail in SELECTORS and not Path(text).exists()
        selector = tail if named else None
        tables = find_tables(Path(head if named else text))
        if tables not in loaded:
            loaded[tables] = load(tables)
        measurement = loaded[tables]
        if selector is not None:
            if selector not in measurement.selectors:
                raise UserError(
                    f"{text}: {selector} was not measured there; there are {', '.join(measurement.selectors)}"
                )
            measurement = _as_chosen(measurement, selector)
        subjects.append(Subject("", tables, selector, measurement))
    if len({subject.selector is None for subject in subjects}) > 1:
        raise UserError("compare: name a selector for every run, as RUN:kl, or for none")
    return [replace(subject, label=label) for subject, label in zip(subjects, _labels(texts, subjects), strict=True)]


def _as_chosen(measurement: Measurement, selector: str) -> Measurement:
    """The same with one selector under the name ``CHOSEN``, and `random` beside it, which others are measured against."""
    parts = {CHOSEN: measurement.gains[selector]}
    selectors = {CHOSEN: measurement.selectors[selector]}
    if "random" in measurement.selectors:
        parts["random"] = measurement.gains["random"]
        selectors["random"] = measurement.selectors["random"]
    gains = pd.concat(parts, axis=1, names=["selector", "context", "k"])
    return Measurement(measurement.windows, gains, selectors, measurement.facts)


def _labels(texts: list[str], subjects: list[Subject]) -> list[str]:
    """Short names that differ: the run's, with the selector, or else what the user typed."""
    names = [
        str(subject.measurement.facts["run"]) + (f":{subject.selector}" if subject.selector else "")
        for subject in subjects
    ]
    return names if len(set(names)) == len(names) else texts


def same_windows(first: Measurement, second: Measurement) -> bool:
    """Are they of the very same windows: the same tokens of the same documents, cut at the same lengths?"""
    columns = ["window_id", "doc_id"]
    facts = ("tokens_sha256", "windows_sha256")
    lengths = ("local_len", "full_len")
    return (
        first.windows[columns].equals(second.windows[columns])
        and all(first.facts.get(name) == second.facts.get(name) for name in facts)
        and all(first.facts["context"][name] == second.facts["context"][name] for name in lengths)
    )


def _how(first: Subject, second: Subject) -> tuple[bool, str]:
    """(paired?, what is to be said about it)."""
    a, b = first.measurement, second.measurement
    if same_windows(a, b):
        return True, f"paired, window by window: both are of the same {len(a.windows)} windows"
    shared = len(set(a.windows["doc_id"]) & set(b.windows["doc_id"]))
    words = (
        f"NOT PAIRED: {len(a.windows)} and {len(b.windows)} windows that are not the same; {shared} documents are in both, "
        "and intervals are wider than with the same windows"
    )
    if a.facts.get("tokens_sha256") != b.facts.get("tokens_sha256"):
        words += "; text or tokenizer differ, and nats of different tokens cannot be compared as they are"
    if any(a.facts["context"][name] != b.facts["context"][name] for name in ("local_len", "full_len")):
        words += "; the lengths differ, so that long gains are of different contexts"
    return False, words


def _warning(subject: Subject) -> str:
    """What is to be known of a subject that is compared by its selector; empty where there is nothing."""
    if subject.selector is None or not subject.measurement.selectors[CHOSEN]["sees_target"]:
        return ""
    return f"{subject.selector} sees the target: its sparse gain, R(k) and gain over random are mostly luck."


def compare(subjects: list[Subject]) -> dict[str, Any]:
    """The numbers of each subject, and those of each later one minus the first's.

    Returns:
        ``subjects``: for each ``label``, ``tables``, ``selector``, ``warning`` and ``summary`` (of ``summarize``). ``rows``:
        for each quantity its ``words``, ``quantity``, ``selector`` and ``k`` (None for losses), ``values`` (one a subject)
        and ``differences`` (one a later subject), estimates or None. ``pairings``: for each later subject ``paired`` and
        ``words``.
        Fractions are None where a gate failed.
    """
    summaries = [summarize(subject.measurement) for subject in subjects]
    first = subjects[0]
    pairings, found = [], []
    for other in subjects[1:]:
        paired, words = _how(first, other)
        pairings.append({"paired": paired, "words": words})
        found.append((paired_difference if paired else unpaired_difference)(first.measurement, other.measurement))
    entries = [{(e["selector"], e["context"], e["k"]): e for e in one["selections"]} for one in summaries]
    common = [key for key in entries[0] if key[1] == "real" and all(key in one for one in entries)]
    if first.selector is not None:  # `random` was only there to be subtracted
        common = [key for key in common if key[0] == CHOSEN]
    if not common:
        raise UserError("compare: these measurements have no selector and k in common")
    gates = [one["gate"] for one in summaries]
    rows: list[dict[str, Any]] = [
        {
            "words": words,
            "quantity": name,
            "selector": None,
            "k": None,
            "values": [one[name] for one in summaries],
            "differences": [one[name] for one in found],
        }
        for name, words in LOSSES.items()
    ]
    for key in common:
        for name, words in QUANTITIES.items():
            if all(one[key][name] is None for one in entries) and not name.endswith("fraction"):
                continue
            hidden = [name.endswith("fraction") and "failed" in (gates[0], gate) for gate in gates[1:]]
            rows.append(
                {
                    "words": words,
                    "quantity": name,
                    "selector": key[0],
                    "k": key[2],
                    "values": [one[key][name] for one in entries],
                    "differences": [
                        None if hide else one.get((key, name)) for one, hide in zip(found, hidden, strict=True)
                    ],
                }
            )
    return {
        "subjects": [
            {
                "label": subject.label,
                "tables": str(subject.tables),
                "selector": subject.selector,
                "warning": _warning(subject),
                "summary": summary,
            }
            for subject, summary in zip(subjects, summaries, strict=True)
        ],
        "pairings": pairings,
        "rows": rows,
    }


def main_rows(comparison: dict[str, Any]) -> list[dict[str, Any]]:
    """The rows that answer most questions: losses; of the main selectors gain over random at the smallest k, the others at the
    largest."""
    rows = comparison["rows"]
    selectors = list(dict.fromkeys(row["selector"] for row in rows if row["selector"] is not None))
    shown = [name for name in selectors if name in (*MAIN_SELECTORS, CHOSEN)] or selectors
    ks = sorted({row["k"] for row in rows if row["k"] is not None})

    def is_main(row: dict[str, Any]) -> bool:
        if row["selector"] is None:
            return True
        wanted = ks[0] if row["quantity"] == "gain_over_random_nats" else ks[-1]
        return row["selector"] in shown and row["k"] == wanted

    return [row for row in rows if is_main(row)]
