"""The answer of the report: both gates, what the evidence says about the paper's claim, and the headline numbers."""

from __future__ import annotations

from dataclasses import dataclass

from olmo_sparsity.statistics.single.summary import Gate, Summary
from olmo_sparsity.view.result_table import ResultTable
from olmo_sparsity.view.summary_tables import blind_table, selection_table
from olmo_sparsity.wording.evidence import evidence_sentences, verdict_words
from olmo_sparsity.wording.gates import beyond_gate_words, fragile_words, gate_words
from olmo_sparsity.wording.selection import selection_words
from olmo_sparsity.wording.setup import anchor_warning, data_words, length_words, measured_words, overlap_words
from olmo_sparsity.wording.units import all_tokens_words, units_words


@dataclass(frozen=True)
class Answer:
    """What the report says first.

    Attributes:
        verdict: what was found, in one sentence.
        gates: both gates, each with its value and words; their numbers are in ``sentences``.
        warning: that another first token gives a lower loss; else empty.
        sentences: what the evidence says about the paper's claim (``evidence_sentences``).
        tables: the headline numbers of all selectors, of those that do not see the target first.
        notes: what the numbers are means of, and what limits them.
    """

    verdict: str
    gates: list[tuple[Gate, str]]
    warning: str
    sentences: list[str]
    tables: list[ResultTable]
    notes: list[str]


def answer(summary: Summary, first: str) -> Answer:
    """Return the answer of a measurement.

    Args:
        summary: the numbers.
        first: the selector of the headline, if it does not see the target; else the first measured one that does not is taken.
    """
    data = f"{data_words(summary)}; {length_words(summary.lengths)}"
    of_k = (
        [] if summary.blind_selectors else [units_words(summary), all_tokens_words(summary)]
    )  # else a caption says it
    notes = [
        *of_k,
        fragile_words(summary),
        measured_words(summary),
        data,
        overlap_words(summary),
    ]
    tables = [blind_table(summary)]
    if summary.seeing_selectors:
        tables.append(selection_table(summary))
        notes.append(selection_words(summary))
    return Answer(
        verdict=verdict_words(summary, first),
        gates=[
            (summary.gate, gate_words(summary, short=True)),
            (summary.beyond_gate, beyond_gate_words(summary, short=True)),
        ],
        warning=anchor_warning(summary.setup),
        sentences=evidence_sentences(summary, first),
        tables=[table for table in tables if table.rows],
        notes=[note for note in notes if note],
    )
