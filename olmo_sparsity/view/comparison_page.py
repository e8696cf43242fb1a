"""The comparison of several measurements as an HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from olmo_sparsity.statistics.comparison import Comparison, compare
from olmo_sparsity.statistics.subjects import Subject
from olmo_sparsity.view import pages
from olmo_sparsity.view.as_json import comparison_row_json
from olmo_sparsity.wording.comparison import comparison_words, luck_warning, pairings_words
from olmo_sparsity.wording.gates import beyond_gate_words, fragile_words, gate_words
from olmo_sparsity.wording.numbers import verdict
from olmo_sparsity.wording.setup import anchor_warning, data_words, length_words, measured_words, overlap_words
from olmo_sparsity.wording.units import units_words


def write_comparison(subjects: list[Subject], out: Path, *, overwrite: bool = False) -> Path:
    """Write the comparison as a page with its figure and tables.

    Args:
        subjects: the measurements.
        out: the HTML file.
        overwrite: replace a page that this tool wrote.

    Returns:
        ``out``.

    Raises:
        UserError: the file must not be replaced, or the measurements cannot be compared.
    """
    pages.check_free(out, overwrite)
    comparison = compare(subjects)
    page = pages.render(
        "compare.html",
        styles=("report.css",),
        scripts=("draw.js", "saving.js", "compare.js"),
        data=_page_data(comparison),
        subjects=comparison.subjects,
        pairings=list(zip(comparison.pairings, pairings_words(comparison), strict=True)),
        luck_warning=luck_warning,
        verdicts=comparison_words(comparison),
        gate_words=gate_words,
        beyond_gate_words=beyond_gate_words,
        fragile_words=fragile_words,
        data_words=data_words,
        length_words=length_words,
        measured_words=measured_words,
        overlap_words=overlap_words,
        units_words=units_words,
        anchor_warning=anchor_warning,
    )
    pages.write_page(out, page, overwrite=overwrite)
    return out


def _page_data(comparison: Comparison) -> dict[str, Any]:
    """Return the JSON that the page's script draws: the rows, which of them are the main ones, and the verdicts."""
    return {
        "labels": comparison.labels,
        "note": "; ".join(
            f"{subject.label}: validity gate {subject.summary.gate}, gate beyond the training row {subject.summary.beyond_gate}"
            for subject in comparison.subjects
        ),
        "rows": [{**comparison_row_json(row), "main": row.is_main} for row in comparison.rows],
        "verdicts": [[verdict(difference) for difference in row.differences] for row in comparison.rows],
    }
