"""The comparison of several measurements as an HTML page."""

from __future__ import annotations

from pathlib import Path

from olmo_sparsity.statistics.several.comparison import compare
from olmo_sparsity.statistics.several.subjects import Subject
from olmo_sparsity.view import pages
from olmo_sparsity.view.console import comparison_table
from olmo_sparsity.view.figure_scripts import figure_script
from olmo_sparsity.wording.comparison import comparison_words, optimism_warning, pairings_words, subject_units_words
from olmo_sparsity.wording.gates import beyond_gate_words, fragile_words, gap_words, gate_words
from olmo_sparsity.wording.setup import anchor_warning, data_words, length_words, measured_words, overlap_words


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
        scripts=(),
        data=None,
        figures=figure_script("on_page").of_comparison(comparison),
        tables={every: comparison_table(comparison, every=every) for every in (False, True)},
        subjects=comparison.subjects,
        pairings=list(zip(comparison.pairings, pairings_words(comparison), strict=True)),
        optimism_warning=optimism_warning,
        verdicts=comparison_words(comparison),
        gap_words=gap_words,
        gate_words=gate_words,
        beyond_gate_words=beyond_gate_words,
        fragile_words=fragile_words,
        data_words=data_words,
        length_words=length_words,
        measured_words=measured_words,
        overlap_words=overlap_words,
        units_words=subject_units_words,
        anchor_warning=anchor_warning,
    )
    pages.write_page(out, page, overwrite=overwrite)
    return out
