"""What ``list`` prints: one row a measurement, with its main numbers."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pandas as pd

from olmo_sparsity.errors import UserError
from olmo_sparsity.files import folder_name, read_manifest_of
from olmo_sparsity.statistics.quantities import first_blind, gate, pick, read_estimates, shown_ks
from olmo_sparsity.tables import KINDS
from olmo_sparsity.view.console import SafeConsole, print_table

QUANTITY = {"gain": "long_gain_nats", "gain beyond row": "gain_beyond_nats", "R": "recovered_fraction"}
GATES = {"gain": "gate_gain_nats", "gain beyond row": "gain_beyond_nats"}  # what must be above 0
NOTE = "Gains in nats, ? where not shown to be above 0. R: share of the gain that k tokens give back."


def read_listing(folder: Path) -> list[dict[str, Any]]:
    """The measurements below a folder, by run and in the order in which they were finished. A run without any is one entry."""
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
    """The main numbers of a measurement with their intervals, and the names of the gains that are shown to be above 0."""
    selector, k, numbers = first_blind(frame), shown_ks(frame)[0], {}
    keys = {"R": {"selector": selector, "context": "real" if selector else "", "k": k}}
    for name, quantity in QUANTITY.items():
        row = pick(frame, quantity, **keys.get(name, {}))
        ends = None if row is None else row[["value", "low", "high"]].astype(object)
        numbers[name] = None if ends is None else ends.where(ends.notna(), None).to_dict()
    shown = [name for name, of in GATES.items() if gate(frame, of) == "above"]
    return {**numbers, "selector": selector, "k": k, "shown": shown}


def print_listing(folder: Path, *, as_json: bool = False) -> None:
    """Print the measurements below a folder."""
    entries = read_listing(folder)
    if as_json:
        print(json.dumps(entries, indent=2))
        return
    console, rows = SafeConsole(), []
    for entry in entries:
        if "error" in entry:
            console.print(entry["error"])
            continue
        row = {"run": entry["run"], "name": re.sub(r".*-(?=[0-9a-f]{6}$)", "", entry["name"])}  # as default names end
        count, share = entry["status"] == "complete" and entry["windows"], entry.get("R")
        row["windows"] = f"{count:,}" if count else entry["status"]
        for name, of in ((name, entry.get(name)) for name in GATES):
            row[name] = f"{of['value']:.3f}{'' if name in entry['shown'] else '?'}" if of else ""
        row["R"] = f"{share['value']:.2f}, {entry['selector']}, k = {entry['k']}" if share else ""
        rows.append(row)
    if rows:
        print_table(pd.DataFrame(rows), console)
    console.print(NOTE if rows else f"{folder}: no runs here; train one with `olmo-sparsity train`")
