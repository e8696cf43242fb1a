"""What the commands print: results as tables for reading, or as JSON for programs."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from olmo_sparsity.statistics.agreement import Agreement, agreement
from olmo_sparsity.statistics.as_json import (
    agreement_json,
    class_json,
    comparison_json,
    detection_json,
    screening_json,
    summary_json,
)
from olmo_sparsity.statistics.breakdowns import by_class
from olmo_sparsity.statistics.comparison import Comparison, compare, main_rows
from olmo_sparsity.statistics.curves import context_curve
from olmo_sparsity.statistics.detection import Detection, detection
from olmo_sparsity.statistics.measurement import Measurement, load
from olmo_sparsity.statistics.screening import screening
from olmo_sparsity.statistics.subjects import Subject
from olmo_sparsity.statistics.summary import Summary, summarize
from olmo_sparsity.statistics.wording import (
    beyond_gate_words,
    data_words,
    fragile_words,
    gate_words,
    gates_words,
    interval,
    length_words,
    measured_words,
    overlap_words,
    verdict,
)
from olmo_sparsity.statistics.wording_of_models import anchor_warning, setup_words
from olmo_sparsity.view.summary_tables import (
    REFERENCE,
    agreement_table,
    blind_table,
    class_table,
    effective_sparsity_table,
    every_selection_table,
    figure4_table,
    loss_table,
    screening_table,
    seeing_table,
)

WIDTH_OF_FILES = 260  # columns where the output is no terminal, so that no table is wrapped
INTERVALS = "means [95% interval by bootstrap over documents]"


def results_console() -> Console:
    """Return where results are printed."""
    return Console(width=None if sys.stdout.isatty() else WIDTH_OF_FILES, soft_wrap=False)


def print_json(value: dict[str, Any]) -> None:
    """Print results for programs."""
    print(json.dumps(value, indent=2))


def print_summary(tables: Path, *, every: bool = False, as_json: bool = False) -> None:
    """Print one measurement: losses, both gates, and each selector at the smallest and the largest k.

    Args:
        tables: an influence folder.
        every: also print one row a selector, context and k, effective sparsity, target classes, and the agreement of selectors.
        as_json: print all of it as JSON instead.
    """
    measurement = load(tables)
    summary = summarize(measurement)
    # Agreement reads every score of the tables, so it is computed only where it is shown.
    pairs = agreement(tables, measurement) if every or as_json or REFERENCE in measurement.selectors else []
    losses = screening(tables, measurement)
    if as_json:
        print_json(
            {
                **summary_json(summary),
                "classes": [class_json(entry) for entry in by_class(measurement, summary)],
                "agreement": [agreement_json(pair) for pair in pairs],
                "screening": [screening_json(loss) for loss in losses],
            }
        )
        return
    console = results_console()
    console.print(f"[bold]{escape(str(tables))}[/bold]")
    console.print(f"{escape(measured_words(summary))}.")
    console.print(f"{escape(data_words(summary))}; {INTERVALS}")
    console.print(length_words(summary.lengths))
    if overlap_words(summary):
        console.print(overlap_words(summary))
    console.print(loss_table(summary))
    warning = anchor_warning(summary.setup)
    for sentence in (warning, gate_words(summary), beyond_gate_words(summary), fragile_words(summary)):
        if sentence:
            console.print(escape(sentence), style="bold")
    if summary.blind_selectors:
        console.print(blind_table(summary, pairs))
    if summary.seeing_selectors:
        console.print(seeing_table(summary, pairs))
    if losses:
        console.print(screening_table(losses, measurement.manifest["influence"], every=every))
    if every:
        _print_every(measurement, summary, pairs=pairs)


def _print_every(measurement: Measurement, summary: Summary, *, pairs: list[Agreement]) -> None:
    """Print what ``summary --every`` adds."""
    console = results_console()
    console.print(every_selection_table(summary))
    console.print(figure4_table(summary))
    if summary.gate_passed:
        console.print(effective_sparsity_table(summary))
    console.print(class_table(by_class(measurement, summary), summary))
    console.print(agreement_table(pairs))


def print_detection(tables: Path, as_json: bool = False) -> None:
    """Print one validation: the losses of each suite, and the precision at truth of every selector."""
    numbers = detection(tables)
    if as_json:
        print_json(detection_json(numbers))
        return
    console = results_console()
    console.print(f"[bold]{escape(str(tables))}[/bold]")
    console.print(f"{escape(setup_words(numbers.run, numbers.setup))}.")
    console.print(_suite_table(numbers))
    console.print(_precision_table(numbers))


def _suite_table(numbers: Detection) -> Table:
    table = Table(
        "suite", "planted", "windows", "L_short", "L_long", "L_planted", "long gain, nats", "gate", "tokens", "chance",
        caption="planted: copies of the needle, or tokens that the target depends on. L_planted: loss with the local and the "
        "planted tokens visible. tokens: mean number of planted positions. chance: precision of a random ranking.",
    )  # fmt: skip
    for suite in numbers.suites:
        losses = (suite.loss_short_nats, suite.loss_long_nats, suite.loss_planted_nats)
        table.add_row(
            suite.suite,
            str(suite.num_planted),
            str(suite.num_windows),
            *(f"{loss.mean:.2f}" for loss in losses),
            interval(suite.long_gain_nats, 2),
            suite.gate if suite.long_gain_nats.has_interval else "too few",
            f"{suite.mean_planted_tokens:.1f}",
            f"{suite.chance:.2f}",
        )
    return table


def _precision_table(numbers: Detection) -> Table:
    table = Table(
        "selector",
        *(f"{suite.suite}\n{suite.num_planted}" for suite in numbers.suites),
        title="precision at truth: of as many best-ranked positions as were planted, the share that was planted [95% interval]",
    )
    for i, entry in enumerate(numbers.suites[0].selectors):
        table.add_row(entry.selector, *(interval(suite.selectors[i].precision_at_truth, 2) for suite in numbers.suites))
    return table


def print_curve(tables: Path) -> None:
    """Print one context curve: the loss at each number of visible tokens, and its change from the length of a training row, or
    from the local tokens where no row is known."""
    curve = context_curve(tables)
    console = results_console()
    console.print(f"[bold]{escape(str(tables))}[/bold]")
    console.print(f"{escape(measured_words(curve))}.")
    console.print(f"{escape(data_words(curve))}; {INTERVALS}")
    table = Table("visible tokens", "loss, nats", f"change from {curve.lengths.len_before_gain} tokens, nats")
    for point in curve.points:
        table.add_row(str(point.num_visible_tokens), interval(point.loss_nats, 4), interval(point.change_nats, 4))
    console.print(table)


def print_comparison(subjects: list[Subject], *, every: bool = False, as_json: bool = False) -> None:
    """Print measurements side by side, with the differences from the first.

    Args:
        subjects: the measurements.
        every: print all selectors and k, not only the main ones.
        as_json: print all of it as JSON instead.
    """
    comparison = compare(subjects)
    if as_json:
        print_json(comparison_json(comparison))
        return
    console = results_console()
    for subject in comparison.subjects:
        summary = subject.summary
        console.print(f"[bold]{escape(subject.label)}[/bold]: {escape(str(subject.tables))}")
        console.print(f"  {escape(measured_words(summary))}.")
        console.print(f"  {escape(data_words(summary))}; {length_words(summary.lengths)}")
        console.print(f"  {escape(gates_words(summary))}")
        for words in (overlap_words(summary), anchor_warning(summary.setup), subject.warning):
            if words:
                console.print(f"  {escape(words)}", style="bold")
    first, *later = comparison.labels
    for label, pairing in zip(later, comparison.pairings, strict=True):
        console.print(f"{escape(label)} minus {escape(first)}: {escape(pairing.words)}.", style="bold")
    console.print(_comparison_table(comparison, every=every))


def _comparison_table(comparison: Comparison, *, every: bool) -> Table:
    first, *later = (escape(label) for label in comparison.labels)
    columns = [column for label in later for column in (f"{label}\nminus {first}", "verdict")]
    table = Table(
        "quantity", "selector", "k", first, *later, *columns,
        caption="means [95% intervals by bootstrap over documents]. R(k): only where the validity gate passed. Gain over random: "
        "of selectors that do not see the target. Real minus luck: of those that do.",
    )  # fmt: skip
    for row in comparison.rows if every else main_rows(comparison):
        digits = 2 if row.is_fraction else 3
        table.add_row(
            row.words,
            row.selector or "",
            "" if row.k is None else str(row.k),
            *(interval(value, digits) for value in row.values),
            *(cell for value in row.differences for cell in (interval(value, digits), verdict(value))),
        )
    return table
