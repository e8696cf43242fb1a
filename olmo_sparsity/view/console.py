"""What the commands print: results as tables for reading, or as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Any

from olmo_sparsity.errors import printable_lines
from olmo_sparsity.statistics.curves import context_curve
from olmo_sparsity.statistics.several.comparison import Comparison, compare, main_rows
from olmo_sparsity.statistics.several.subjects import Subject
from olmo_sparsity.statistics.single.measured import Measured
from olmo_sparsity.statistics.single.model_setup import ModelSetup, subject_name
from olmo_sparsity.statistics.single.spectrum import TOLERANCE, spectra
from olmo_sparsity.statistics.single.summary import QUANTITIES, Summary
from olmo_sparsity.view.as_json import (
    class_json,
    comparison_json,
    definition_columns,
    spectra_json,
    summary_json,
)
from olmo_sparsity.view.excerpts import shown_first
from olmo_sparsity.view.result_table import (
    Item,
    ResultTable,
    Sentence,
    estimated,
    in_nats,
    keys,
    plain,
    words,
)
from olmo_sparsity.view.summary_tables import (
    blind_table,
    every_table,
    loss_table,
    selection_table,
    spectrum_table,
)
from olmo_sparsity.view.table_formats import csv_of, markdown_of, tex_of
from olmo_sparsity.view.table_printing import print_items, results_console
from olmo_sparsity.wording.comparison import (
    compared_words,
    differences_sentences,
    optimism_warning,
    pairings_words,
    subject_units_words,
)
from olmo_sparsity.wording.curves import curve_finding
from olmo_sparsity.wording.evidence import harm_words, verdict_words
from olmo_sparsity.wording.gates import gate_sentences, gates_words
from olmo_sparsity.wording.numbers import verdict
from olmo_sparsity.wording.selection import selection_words
from olmo_sparsity.wording.setup import (
    anchor_warning,
    data_words,
    length_words,
    measured_words,
    overlap_words,
    short_anchor_warning,
)
from olmo_sparsity.wording.spectrum import spectrum_sentences
from olmo_sparsity.wording.units import k_counts_words

INTERVALS = "means [95% interval over documents]"


class Form(str, Enum):
    """The forms in which results are printed."""

    text = "text"
    json = "json"
    csv = "csv"
    md = "md"
    tex = "tex"


def print_json(value: dict[str, Any]) -> None:
    """Print results for programs."""
    print(json.dumps(value, indent=2))


def print_in(form: Form, items: Sequence[Item], *, summary: Summary) -> None:
    """Print sentences and tables about a measurement: in the terminal, or as CSV, Markdown or LaTeX.

    The definition of the losses and both gates are part of every form: CSV has them in columns, LaTeX in each caption.
    """
    if form is Form.csv:
        _print_lines(csv_of(items, definition_columns(summary)))
    elif form is Form.md:
        _print_lines(markdown_of(items))
    elif form is Form.tex:
        _print_lines(tex_of(items, _note(summary)))
    else:
        print_items(items, results_console())


def _note(summary: Summary) -> str:
    """Return what the caption of a table in a paper ends with: of which model and by which definition it is, and both gates."""
    setup = summary.setup
    units = f"; {counts}" if (counts := k_counts_words(summary)) else ""
    lengths = length_words(summary.lengths).partition(";")[0]
    measured = f"{subject_name(summary.run, setup)}: visibility {setup.label}{units}; {lengths}."
    return " ".join(filter(None, (measured, short_anchor_warning(setup), gates_words(summary))))


def _print_lines(text: str) -> None:
    """Print lines without control characters."""
    print(printable_lines(text), end="")


def print_summary(tables: Path, *, every: bool = False, form: Form = Form.text) -> None:
    """Print one measurement: what it found in one sentence, losses, both gates, and each selector at the shown k.

    Args:
        tables: an influence folder.
        every: also print one row a selector, context and k, and target classes; JSON and CSV always hold them.
        form: what to print it as.
    """
    measured = Measured.read(tables)
    measurement, summary = measured.measurement, measured.summary
    every = every or form in (Form.json, Form.csv)
    of_spectra = measured.spectra if every else spectra(measurement, tolerances=[TOLERANCE])
    verdict = verdict_words(summary, shown_first(measurement))
    if form is Form.json:
        print_json(
            {
                "verdict": verdict,
                **summary_json(summary),
                "classes": [class_json(entry) for entry in measured.classes],
                "spectrum": {
                    **spectra_json(measured.spectra),
                    "words": spectrum_sentences(measured.spectra, summary),
                    "classes": {name: spectra_json(of) for name, of in measured.spectra_of_classes.items()},
                },
            }
        )
        return
    items: list[Item] = [
        Sentence(str(tables)),
        Sentence(verdict, is_bold=True),
        Sentence(f"{measured_words(summary)}."),
        Sentence(f"{data_words(summary)}; {INTERVALS}"),
        Sentence(length_words(summary.lengths)),
    ]
    if overlap_words(summary):
        items.append(Sentence(overlap_words(summary)))
    items.append(loss_table(summary))
    gates = (
        anchor_warning(summary.setup),
        *gate_sentences(summary),
        harm_words(summary) if summary.blind_selectors else "",
    )
    items += [Sentence(sentence, is_bold=True) for sentence in gates if sentence]
    if summary.blind_selectors:
        items.append(blind_table(summary))
    if summary.seeing_selectors:
        items.append(Sentence(selection_words(summary)))
        items.append(selection_table(summary))
    items.append(spectrum_table(of_spectra, summary))
    items += [Sentence(sentence) for sentence in spectrum_sentences(of_spectra, summary)]
    if every:
        items += every_table(measured)
    print_in(form, items, summary=summary)


def _anchor_warnings(setup: ModelSetup) -> list[Sentence]:
    """Return the sentence that another first token is the better one, where it is."""
    words = anchor_warning(setup)
    return [Sentence(words, is_bold=True)] if words else []


def print_curve(tables: Path) -> None:
    """Print one context curve: its finding, the loss at each number of visible tokens, and its change from the length of a
    training row, or from the local tokens where no row is known."""
    curve = context_curve(tables)
    columns = (*keys("visible tokens"), *in_nats("loss", f"change from {curve.lengths.len_before_gain} tokens"))
    rows = tuple(
        (*words(str(point.num_visible_tokens)), estimated(point.loss_nats, 4), estimated(point.change_nats, 4))
        for point in curve.points
    )
    items: list[Item] = [
        Sentence(curve_finding(curve), is_bold=True),
        Sentence(str(tables)),
        Sentence(f"{measured_words(curve)}."),
        Sentence(f"{data_words(curve)}; {INTERVALS}"),
        *([Sentence(length_words(curve.lengths))] if curve.lengths.train_len_is_stated else []),
        ResultTable("context curve", columns, rows),
        *_anchor_warnings(curve.setup),
    ]
    print_items(items, results_console())


def print_comparison(subjects: list[Subject], *, every: bool = False, as_json: bool = False) -> None:
    """Print measurements side by side, with the differences from the first: the answer, and below it what was measured.

    Args:
        subjects: the measurements.
        every: print all selectors and k, not only the main ones.
        as_json: print all of it as JSON instead.
    """
    comparison = compare(subjects)
    if as_json:
        print_json(comparison_json(comparison))
        return
    first, *later = comparison.labels
    items: list[Item] = [Sentence(words, is_bold=True) for words in differences_sentences(comparison)]
    for label, words_of_pairing in zip(later, pairings_words(comparison), strict=True):
        items.append(Sentence(f"{label} minus {first}: {words_of_pairing}.", is_bold=True))
    for subject in comparison.subjects:
        summary = subject.summary
        items += [
            Sentence(f"{subject.label}: {subject.tables}", is_bold=True),
            Sentence(f"  {measured_words(summary)}."),
            Sentence(f"  {data_words(summary)}; {length_words(summary.lengths)}"),
            Sentence(f"  {gates_words(summary)}"),
        ]
        warnings = (
            subject_units_words(subject),
            overlap_words(summary),
            anchor_warning(summary.setup),
            optimism_warning(subject),
            harm_words(summary),
        )
        items += [Sentence(f"  {sentence}", is_bold=True) for sentence in warnings if sentence]
    print_items([*items, comparison_table(comparison, every=every)], results_console())


def comparison_table(comparison: Comparison, *, every: bool) -> ResultTable:
    """Return one row a quantity: its value in each measurement, and its differences from the first."""
    first, *later = comparison.labels
    differences = [column for label in later for column in (f"{label} minus {first}", "verdict")]
    rows = []
    for row in comparison.rows if every else main_rows(comparison):
        digits = QUANTITIES[row.quantity].digits
        differing = [(estimated(value, digits), *words(verdict(value))) for value in row.differences]
        rows.append(
            (
                *words(compared_words(row), row.selector or "", "" if row.k is None else str(row.k)),
                *(estimated(value, digits) for value in row.values),
                *(cell for cells in differing for cell in cells),
            )
        )
    caption = (
        "means [95% intervals over documents]. R(k): only where the validity gate passed. Gain over random: of "
        "selectors that do not see the target. Corrected gain: of those that do, and of random."
    )
    columns = (*keys("quantity", "selector", "k"), *plain(first, *later, *differences))
    return ResultTable("comparison", columns, tuple(rows), caption=caption)
