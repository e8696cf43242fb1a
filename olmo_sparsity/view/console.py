"""What the commands print: numbers with their intervals, as tables for reading or as JSON for programs. Imports no torch."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from olmo_sparsity.statistics.agreement import agreement, screening
from olmo_sparsity.statistics.breakdowns import by_class
from olmo_sparsity.statistics.comparison import Subject, compare, main_rows
from olmo_sparsity.statistics.curves import context_curve
from olmo_sparsity.statistics.detection import detection
from olmo_sparsity.statistics.measurement import load
from olmo_sparsity.statistics.summary import summarize
from olmo_sparsity.statistics.wording import gate_words, interval, length_words, smallest_k_words, verdict

AGREE_WITH = "greedy"  # the selector whose choice the others are compared with, where it was measured


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 260, soft_wrap=False)


def print_summary(tables: Path, every: bool = False, as_json: bool = False) -> None:
    """One measurement: losses, the gate, a row a selector; with ``every`` a row a selector, context and k, the smallest k,
    the classes and the agreement between selectors."""
    measurement = load(tables)
    numbers = summarize(measurement)
    # It reads every score, so only where it is shown.
    pairs = agreement(tables, measurement) if every or as_json or AGREE_WITH in measurement.selectors else []
    screened = screening(tables, measurement)
    if as_json:
        whole = {**numbers, "classes": by_class(measurement), "agreement": pairs, "screening": screened}
        print(json.dumps(whole, indent=2))
        return
    console = _console()
    console.print(f"[bold]{escape(str(tables))}[/bold]")
    console.print(
        f"{numbers['num_windows']} windows of {numbers['num_documents']} documents "
        f"({escape(numbers['source'])}, {numbers['split']}); means [95% interval by bootstrap over documents]"
    )
    console.print(length_words(numbers))
    losses = Table("quantity", "nats")
    for label, key in (
        ("L_short", "loss_short_nats"),
        ("L_long", "loss_long_nats"),
        ("long gain: L_short - L_long", "long_gain_nats"),
        ("the same, null context (foreign text)", "null_long_gain_nats"),
        ("what the content is worth: real - null", "content_gain_nats"),
    ):
        losses.add_row(label, interval(numbers[key], 4))
    console.print(losses)
    console.print(escape(gate_words(numbers)), style="bold")
    console.print(_selector_table(numbers, pairs))
    if screened:
        console.print(_screening_table(screened, measurement.facts["influence"], every))
    if not every:
        return
    console.print(_every_table(numbers))
    console.print(_smallest_table(numbers))
    console.print(_class_table(by_class(measurement)))
    console.print(_agreement_table(pairs))


def _selector_table(numbers: dict[str, Any], pairs: list[dict[str, Any]]) -> Table:
    of = {(e["selector"], e["context"], e["k"]): e for e in numbers["selections"]}
    selectors = list(dict.fromkeys(e["selector"] for e in numbers["selections"]))
    ks = sorted({e["k"] for e in numbers["selections"]})
    first, last = ks[0], ks[-1]
    compared = AGREE_WITH in selectors and len(selectors) > 1
    table = Table(
        "selector", "sees\ntarget", "cost", f"R({first})", f"R({last})", f"R({last})\nnull context",
        f"sparse gain\nk = {last}, nats", f"excess gain\nk = {last}, nats", f"gain over random\nk = {first}, nats",
        f"excess over random\nk = {last}, nats",
        *([f"overlap with\n{AGREE_WITH}, k = {last}"] if compared else []),
        caption="cost: evaluations of the model for one window's scores. excess: real minus null context. over random: minus "
        "the same of `random`.",
    )  # fmt: skip
    for name in selectors:
        entry, at_first = of[name, "real", last], of[name, "real", first]
        cells = [
            name,
            "yes" if entry["sees_target"] else "no",
            str(entry["num_evaluations"]),
            interval(at_first["recovered_fraction"], 2),
            interval(entry["recovered_fraction"], 2),
            interval(of[name, "null", last]["recovered_fraction"], 2),
            interval(entry["gain_sparse_nats"], 3),
            interval(entry["excess_gain_nats"], 3),
            interval(at_first["gain_over_random_nats"], 3),
            interval(entry["excess_over_random_nats"], 3),
        ]
        if compared:
            pair = next((p for p in pairs if set(p["selectors"]) == {name, AGREE_WITH}), None)
            cells.append("-" if pair is None else interval(pair["overlap"][-1], 2))
        table.add_row(*cells)
    return table


def _screening_table(screened: list[dict[str, Any]], settings: dict[str, Any], every: bool) -> Table:
    """What screening lost: a row a screened selector at the largest k, or at every k and in both contexts."""
    windows = screened[0]["num_windows"]
    table = Table(
        "selector", "context", "k", f"recall, {windows} windows", "sparse gain lost, nats",
        caption=f"screened to {settings['screen']} candidates by {settings['screen_by']}; recall: share of the exact choice, "
        "measured on a random sample.",
    )  # fmt: skip
    largest = max(entry["k"] for entry in screened)
    for entry in screened:
        if every or (entry["k"] == largest and entry["context"] == "real"):
            numbers = (interval(entry["recall"], 3), interval(entry["gain_lost_nats"], 4))
            table.add_row(entry["selector"], entry["context"], str(entry["k"]), *numbers)
    return table


def _every_table(numbers: dict[str, Any]) -> Table:
    rows = Table(
        "selector", "context", "k", "sparse gain, nats", "R(k)", "over random, nats", "excess gain, nats", "excess fraction",
        "correlation", "OLS slope", "TLS slope", title="every k; correlation and slopes are those of Figure 4",
    )  # fmt: skip
    for entry in numbers["selections"]:
        rows.add_row(
            entry["selector"],
            entry["context"],
            str(entry["k"]),
            interval(entry["gain_sparse_nats"], 3),
            interval(entry["recovered_fraction"], 2),
            interval(entry["gain_over_random_nats"], 3),
            interval(entry["excess_gain_nats"], 3),
            interval(entry["excess_recovered_fraction"], 2),
            interval(entry["figure4"]["correlation"], 2),
            interval(entry["figure4"]["ols_slope"], 2),
            interval(entry["figure4"]["tls_slope"], 2),
        )
    return rows


def _smallest_table(numbers: dict[str, Any]) -> Table:
    rows = Table(
        "selector", "fraction", "smallest k: R(k)", "smallest k: excess fraction", "smallest k: median window",
        title="effective sparsity: the smallest measured k that gives back so much of the long gain",
    )  # fmt: skip
    for entry in numbers["effective_sparsity"]:
        rows.add_row(
            entry["selector"],
            f"{entry['fraction']:.0%}",
            *(
                smallest_k_words(entry[key], entry["max_k"])
                for key in ("smallest_k", "smallest_k_excess", "smallest_k_median_window")
            ),
        )
    return rows


def _class_table(classes: list[dict[str, Any]]) -> Table:
    """The classes of targets, with R(k) and excess of each selector at the largest k."""
    selectors = list(dict.fromkeys(e["selector"] for e in classes[0]["selections"]))
    last = max(e["k"] for e in classes[0]["selections"])
    rows = Table(
        "class of target", "windows", "long gain, nats", "gate",
        *(f"R({last})\n{name}" for name in selectors),
        title="kinds of dependency",
    )  # fmt: skip
    for one in classes:
        of = {e["selector"]: e for e in one["selections"] if (e["context"], e["k"]) == ("real", last)}
        rows.add_row(
            one["target_class"],
            str(one["num_windows"]),
            interval(one["long_gain_nats"], 3),
            one["gate"],
            *(interval(of[name]["recovered_fraction"], 1) for name in selectors),
        )
    return rows


def _agreement_table(pairs: list[dict[str, Any]]) -> Table:
    rows = Table("selectors", "", "k", "overlap", "by chance", "rank correlation", title="agreement between selectors")
    for pair in pairs:
        overlap = pair["overlap"][-1]
        rows.add_row(
            *pair["selectors"],
            str(overlap["k"]),
            interval(overlap, 2),
            f"{overlap['chance']:.2f}",
            interval(pair["rank_correlation"], 2),
        )
    return rows


def print_detection(tables: Path, as_json: bool = False) -> None:
    """One validation: the losses of each suite, and precision at truth of every selector."""
    numbers = detection(tables)
    if as_json:
        print(json.dumps(numbers, indent=2))
        return
    console = _console()
    console.print(f"[bold]{escape(str(tables))}[/bold]")
    suites = Table(
        "suite", "planted", "windows", "L_short", "L_long", "L_planted", "long gain, nats", "gate", "tokens", "chance",
        caption="planted: copies of the needle, or tokens that the target depends on. L_planted: local and planted tokens "
        "visible. tokens: planted positions, mean. chance: precision of a blind guess.",
    )  # fmt: skip
    for suite in numbers["suites"]:
        suites.add_row(
            suite["suite"],
            str(suite["num_planted"]),
            str(suite["num_windows"]),
            *(f"{suite[key]['mean']:.2f}" for key in ("loss_short_nats", "loss_long_nats", "loss_planted_nats")),
            interval(suite["long_gain_nats"], 2),
            "too few" if suite["long_gain_nats"]["low"] is None else suite["gate"],
            f"{suite['mean_planted_tokens']:.1f}",
            f"{suite['chance']:.2f}",
        )
    console.print(suites)
    found = Table(
        "selector",
        *(f"{suite['suite']}\n{suite['num_planted']}" for suite in numbers["suites"]),
        title="precision at truth: share of the planted positions among as many best-ranked ones [95% interval]",
    )
    for i, one in enumerate(numbers["suites"][0]["selectors"]):
        found.add_row(
            one["selector"],
            *(interval(suite["selectors"][i]["precision_at_truth"], 2) for suite in numbers["suites"]),
        )
    console.print(found)


def print_curve(tables: Path) -> None:
    """One context curve: the loss at each number of visible tokens, and its change from the training row's length."""
    numbers = context_curve(tables)
    console = _console()
    console.print(f"[bold]{escape(str(tables))}[/bold]")
    console.print(
        f"{numbers['num_windows']} windows of {numbers['num_documents']} documents "
        f"({escape(numbers['source'])}, {numbers['split']}); means [95% interval by bootstrap over documents]"
    )
    rows = Table("visible tokens", "loss, nats", f"change from {numbers['train_len']} tokens, nats")
    for point in numbers["points"]:
        rows.add_row(
            str(point["num_visible_tokens"]), interval(point["loss_nats"], 4), interval(point["change_nats"], 4)
        )
    console.print(rows)


def print_comparison(subjects: list[Subject], every: bool = False, as_json: bool = False) -> None:
    """Measurements side by side, with the differences from the first; with ``every`` all selectors and k."""
    numbers = compare(subjects)
    if as_json:
        print(json.dumps(numbers, indent=2))
        return
    console = _console()
    labels = [subject["label"] for subject in numbers["subjects"]]
    for subject in numbers["subjects"]:
        summary = subject["summary"]
        console.print(f"[bold]{escape(subject['label'])}[/bold]: {escape(subject['tables'])}")
        console.print(
            f"  {summary['num_windows']} windows of {summary['num_documents']} documents; {length_words(summary)}"
        )
        console.print(f"  {escape(gate_words(summary))}")
        if subject["warning"]:
            console.print(f"  {subject['warning']}", style="bold")
    for label, pairing in zip(labels[1:], numbers["pairings"], strict=True):
        console.print(f"{escape(label)} minus {escape(labels[0])}: {pairing['words']}.", style="bold")
    table = Table(
        "quantity", "selector", "k", *(escape(label) for label in labels),
        *(part for label in labels[1:] for part in (f"{escape(label)}\nminus {escape(labels[0])}", "so it has")),
        caption="means [95% intervals by bootstrap over documents]; R(k) only where the validity gates passed",
    )  # fmt: skip
    for row in numbers["rows"] if every else main_rows(numbers):
        digits = 2 if row["quantity"].endswith("fraction") else 3
        differences = [cell for one in row["differences"] for cell in (interval(one, digits), verdict(one))]
        table.add_row(
            row["words"],
            row["selector"] or "",
            "" if row["k"] is None else str(row["k"]),
            *(interval(value, digits) for value in row["values"]),
            *differences,
        )
    console.print(table)
