"""The answer of the report: both gates, what the evidence says about the paper's claim, and the headline numbers."""

from __future__ import annotations

from dataclasses import dataclass

from olmo_sparsity.records.selectors import in_legend_order
from olmo_sparsity.statistics.summary import Gate, Summary
from olmo_sparsity.wording.evidence import evidence_sentences
from olmo_sparsity.wording.gates import beyond_gate_words, fragile_words, gate_words
from olmo_sparsity.wording.numbers import interval, recovered_words
from olmo_sparsity.wording.setup import anchor_warning, data_words, length_words, measured_words, overlap_words
from olmo_sparsity.wording.units import all_tokens_words, units_words


@dataclass(frozen=True)
class HeadlineTable:
    """The headline numbers of several selectors, at the shown k alike.

    Attributes:
        caption: which selectors it holds.
        head: titles of the columns.
        rows: the selector, then its numbers.
    """

    caption: str
    head: list[str]
    rows: list[list[str]]


@dataclass(frozen=True)
class Answer:
    """What the report says first.

    Attributes:
        gates: both gates, each passed, failed or not applicable, in words; their numbers are in ``sentences``.
        warning: that another first token gives a lower loss, or that this was not decided; else empty.
        sentences: what the evidence says about the paper's claim (``evidence_sentences``).
        tables: the headline numbers of all selectors.
        notes: what the numbers are means of, and what limits them.
    """

    gates: list[tuple[Gate, str]]
    warning: str
    sentences: list[str]
    tables: list[HeadlineTable]
    notes: list[str]


def answer(summary: Summary, first: str) -> Answer:
    """Return the answer of a measurement.

    Args:
        summary: the numbers.
        first: the selector of the headline, if it does not see the target; else the first measured one that does not is taken.
    """
    blind, seeing = (in_legend_order(names) for names in (summary.blind_selectors, summary.seeing_selectors))
    data = f"{data_words(summary)}; {length_words(summary.lengths)}"
    notes = [
        units_words(summary),
        all_tokens_words(summary),
        fragile_words(summary),
        measured_words(summary),
        data,
        overlap_words(summary),
    ]
    return Answer(
        gates=[
            (summary.gate, gate_words(summary, short=True)),
            (summary.beyond_gate, beyond_gate_words(summary, short=True)),
        ],
        warning=anchor_warning(summary.setup),
        sentences=evidence_sentences(summary, first),
        tables=[table(summary, names) for table, names in ((_blind_table, blind), (_seeing_table, seeing)) if names],
        notes=[note for note in notes if note],
    )


def _blind_table(summary: Summary, names: list[str]) -> HeadlineTable:
    """R(k), where the gate passed, and the gain over random of the selectors that do not see the target."""
    head, rows = ["selector"], [[name] for name in names]
    for k in summary.shown_ks:
        entries = [summary.at(name, "real", k) for name in names]
        if summary.gate_passed:
            head.append(f"R({k})")
            for row, entry in zip(rows, entries, strict=True):
                row.append(recovered_words(summary, entry.recovered_fraction))
        head.append(f"gain over random, k = {k}, nats")
        for row, entry in zip(rows, entries, strict=True):
            row.append(interval(entry.gain_over_random_nats, 3))
    return HeadlineTable("Selectors that do not see the target: the headline", head, rows)


def _seeing_table(summary: Summary, names: list[str]) -> HeadlineTable:
    """Sparse gain, luck and their difference of the selectors that see the target."""
    head, rows = ["selector"], [[name] for name in names]
    for k in summary.shown_ks:
        head += [f"sparse gain, k = {k}, nats", f"luck, k = {k}, nats", f"real minus luck, k = {k}, nats"]
        for row in rows:
            entry = summary.at(row[0], "real", k)
            numbers = (entry.gain_sparse_nats, entry.luck_nats, entry.real_minus_luck_nats)
            row += [interval(number, 3) for number in numbers]
    return HeadlineTable("Selectors that see the target: what resampled targets leave of their gain", head, rows)
