"""What ``list`` prints: one row a measurement, with its main numbers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import pandas as pd
from rich.text import Text

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import folder_name, read_manifest_of
from olmo_sparsity.statistics.quantities import first_blind, pick, read_estimates, shown_ks
from olmo_sparsity.tables import KINDS
from olmo_sparsity.view.console import SafeConsole
from olmo_sparsity.view.tables import print_table

GAINS = {"gain": "gate_gain_nats", "gain beyond row": "gain_beyond_nats"}
NOTE = "Gains in nats, ? where not shown to be above 0. R: share of the gain that k tokens give back."


def read_listing(folder: Path) -> list[dict[str, Any]]:
    """The measurements below a folder, by run and in the order in which they were finished. A run without any is one entry.

    Raises:
        UserError: there is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name the one that holds the runs")
    found = [_entry(path.parent) for path in sorted(folder.rglob("manifest.json"))]
    measured = {entry["run"] for entry in found if entry.get("name")}
    entries = [entry for entry in found if entry and (entry["name"] or entry["run"] not in measured)]
    return sorted(entries, key=lambda entry: (entry["run"], entry["finished"] or "~", entry["name"]))


def _entry(folder: Path) -> dict[str, Any]:
    """What a folder holds; empty where that is neither a run nor a measurement in one."""
    entry: dict[str, Any] = {"run": str(folder), "name": "", "finished": ""}
    try:
        manifest = read_manifest_of(folder)
        kind, status = manifest.get("kind"), manifest["status"]
        if kind == "run":
            return {**entry, "status": "not measured" if status == "complete" else f"training {status}"}
        if kind not in KINDS or folder_name(folder.parent) != kind:
            return {}
        measured = {"run": str(folder.parent.parent), "name": folder.name, "finished": manifest.get("finished", "")}
        measured |= {"status": status, "kind": kind, "windows": manifest.get("num_windows")}
        return measured | (_numbers(read_estimates(folder)) if (kind, status) == ("influence", "complete") else {})
    except UserError as error:
        return {**entry, "error": str(error)}


def _numbers(frame: pd.DataFrame) -> dict[str, Any]:
    selector, k = first_blind(frame), shown_ks(frame)[0]
    rows = {name: pick(frame, of) for name, of in GAINS.items()}
    rows["R"] = pick(frame, "recovered_fraction", selector=selector, context="real", k=k) if selector else None
    return {**{name: _ends(row) for name, row in rows.items()}, "selector": selector, "k": k}


def _ends(row: Optional[pd.Series]) -> Optional[dict[str, Optional[float]]]:
    return None if row is None else {end: None if pd.isna(row[end]) else row[end] for end in ("value", "low", "high")}


def short_name(name: str, names: Sequence[str]) -> str:
    """How a name alone among others ends: the shortest whole parts between hyphens."""
    parts = name.split("-")
    ends = ("-".join(parts[start:]) for start in range(len(parts) - 1, 0, -1))
    return next((end for end in ends if sum(other.endswith(end) for other in names) == 1), name)


def print_listing(folder: Path, *, as_json: bool = False) -> None:
    """Print the measurements below a folder."""
    entries = read_listing(folder)
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    console, rows = SafeConsole(), []
    for entry in entries:
        if "error" in entry:
            console.print(Text(entry["error"]))
            continue
        names = [other["name"] for other in entries if other["run"] == entry["run"]]
        row = {"run": entry["run"], "name": short_name(entry["name"], names)}
        is_whole = entry["status"] == "complete" and entry["windows"]
        row["windows"] = f"{entry['windows']:,}" if is_whole else entry["status"]
        for name, of in ((name, entry.get(name)) for name in GAINS):
            row[name] = f"{of['value']:.3f}{'' if (of['low'] or 0) > 0 else '?'}" if of else ""
        row["R"] = f"{entry['R']['value']:.2f}, {entry['selector']}, k = {entry['k']}" if entry.get("R") else ""
        rows.append(row)
    if rows:
        print_table(pd.DataFrame(rows), console)
    console.print(Text(NOTE if rows else f"{folder}: no runs here; train one with `olmo-sparsity train`"))
