"""What ``olmo-sparsity list`` prints: the runs of a folder, and what was measured of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Optional

from olmo_sparsity.errors import UserError
from olmo_sparsity.progress import progress_bar
from olmo_sparsity.records.kinds import KINDS, is_kind
from olmo_sparsity.statistics.single.measurement import load
from olmo_sparsity.statistics.single.summary import Gate, summarize
from olmo_sparsity.storage.folders import folder_name
from olmo_sparsity.storage.manifests import read_config_of, read_manifest_of
from olmo_sparsity.view.as_json import record_json
from olmo_sparsity.view.console import print_json
from olmo_sparsity.view.result_table import Item, ResultTable, Sentence, keys, number, plain, words
from olmo_sparsity.view.table_printing import print_items, results_console

GATES: dict[Gate, str] = {"passed": "passed", "failed": "FAILED", "not-assessed": "not assessed", "not-applicable": "-"}


@dataclass(frozen=True)
class ListedRun:
    """A trained run.

    Attributes:
        run: its folder.
        status: ``complete``, or ``running`` where it is unfinished.
        train_len: tokens of a training row.
        steps: of training; 0 where it is unfinished.
    """

    run: str
    status: str
    train_len: int
    steps: int


@dataclass(frozen=True)
class ListedTables:
    """A folder of tables.

    Attributes:
        run: folder of its run or model.
        kind: a key of ``KINDS``.
        name: of the folder.
        finished: when it was finished, in UTC; empty where it is not.
        text: its source and split; empty of a synthetic task.
        num_windows: that were measured, or are to be.
        local_len, full_len: in tokens; None of a synthetic task.
        gate, beyond_gate: of finished influence tables; otherwise None.
    """

    run: str
    kind: str
    name: str
    finished: str
    text: str
    num_windows: int
    local_len: Optional[int]
    full_len: Optional[int]
    gate: Optional[Gate]
    beyond_gate: Optional[Gate]


@dataclass(frozen=True)
class Listing:
    """What a folder holds.

    Attributes:
        runs: trained runs, by path.
        tables: of these runs and of pretrained models: by run and kind, in the order in which they were finished.
        unreadable: why a manifest could not be read, a line each.
    """

    runs: tuple[ListedRun, ...]
    tables: tuple[ListedTables, ...]
    unreadable: tuple[str, ...]


def read_listing(folder: Path) -> Listing:
    """Return the runs below a folder, and their tables. The gates are computed from the windows of each measurement.

    Raises:
        UserError: there is no such folder.
    """
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name the one that holds the runs")
    runs, tables, unreadable = [], [], []
    paths = sorted(folder.rglob("manifest.json"))
    with progress_bar("reading", " manifests", total=len(paths)) as bar:
        for path in paths:
            try:
                manifest = read_manifest_of(path.parent)
                if manifest.get("kind") == "run":
                    runs.append(_run(path.parent, manifest))
                elif is_kind(manifest.get("kind")) and folder_name(path.parent.parent) == manifest["kind"]:
                    tables.append(_tables(path.parent, manifest))
            except UserError as error:
                unreadable.append(str(error))
            bar.update()
    kinds = list(KINDS)
    tables.sort(key=lambda of: (of.run, kinds.index(of.kind), of.finished or "~", of.name))  # unfinished ones last
    return Listing(tuple(runs), tuple(tables), tuple(unreadable))


def _run(folder: Path, manifest: dict[str, Any]) -> ListedRun:
    return ListedRun(str(folder), manifest["status"], read_config_of(folder).context.row_len, manifest.get("steps", 0))


def _tables(folder: Path, manifest: dict[str, Any]) -> ListedTables:
    gates: tuple[Optional[Gate], Optional[Gate]] = (None, None)
    is_finished = manifest.get("status") == "complete"
    if is_finished and manifest["kind"] == "influence":
        summary = summarize(load(folder, has_selections=False))
        gates = (summary.gate, summary.beyond_gate)
    lengths = manifest["context"]
    return ListedTables(
        run=str(folder.parent.parent),
        kind=manifest["kind"],
        name=folder.name,
        finished=manifest.get("finished", "") if is_finished else "",
        text=", ".join(filter(None, (manifest.get("source"), manifest.get("split")))),
        num_windows=manifest.get("num_windows", 0),
        local_len=lengths.get("local_len"),
        full_len=lengths.get("full_len"),
        gate=gates[0],
        beyond_gate=gates[1],
    )


def short_names(names: Sequence[str]) -> list[str]:
    """Return for each of some names how it alone ends: the shortest whole parts between hyphens."""

    def shortest(name: str) -> str:
        parts = name.split("-")
        endings = ("-".join(parts[start:]) for start in range(len(parts) - 1, 0, -1))
        return next((end for end in endings if sum(other.endswith(end) for other in names) == 1), name)

    return [shortest(name) for name in names]


def print_runs(folder: Path, *, as_json: bool = False) -> None:
    """Print the runs below a folder and their tables, or all of it as JSON.

    Args:
        folder: holds runs, at any depth.
        as_json: print JSON instead.
    """
    listing = read_listing(folder)
    if as_json:
        print_json(record_json(listing))
        return
    items: list[Item] = [*map(Sentence, listing.unreadable)]
    if listing.runs:
        items.append(_runs_table(listing.runs))
    items += [_tables_table(run, list(of_run)) for run, of_run in groupby(listing.tables, key=lambda of: of.run)]
    print_items(items or [Sentence(f"{folder}: no runs here; train one with `olmo-sparsity train`")], results_console())


def _runs_table(runs: Sequence[ListedRun]) -> ResultTable:
    rows = tuple(
        (
            *words(run.run, "yes" if run.status == "complete" else "unfinished"),
            number(run.train_len),
            number(run.steps or None),
        )
        for run in runs
    )
    return ResultTable("runs", (*keys("run"), *plain("trained", "tokens of a row", "steps")), rows)


def _tables_table(run: str, tables: Sequence[ListedTables]) -> ResultTable:
    names = short_names([of.name for of in tables])
    rows = tuple(
        (
            *words(name if of.kind == "influence" else f"{of.kind} {name}"),
            *words(of.finished[:16].replace("T", " ") or "unfinished"),
            number(of.num_windows or None),
            *words("" if of.full_len is None else f"{of.local_len} of {of.full_len}"),
            *words(", ".join(GATES[gate] for gate in (of.gate, of.beyond_gate) if gate), of.text),
        )
        for of, name in zip(tables, names, strict=True)
    )
    columns = (*keys("name"), *plain("finished, UTC", "windows", "tokens", "gates", "text"))
    caption = (
        "name: how the folder's name ends; --tables NAME shows it, otherwise commands take the influence tables that were "
        "finished last. tokens: local of full. gates: of the long gain, of the gain beyond the training row; not assessed: "
        "too few documents."
    )
    return ResultTable(run, columns, rows, title=run, caption=caption)
