"""The comparison of several measurements as an HTML page."""

from __future__ import annotations

from pathlib import Path

from olmo_sparsity.statistics.comparison import Subject, compare, main_rows
from olmo_sparsity.statistics.wording import gate_words, length_words, verdict
from olmo_sparsity.view import pages


def write_comparison(subjects: list[Subject], out: Path, overwrite: bool = False) -> Path:
    """Writes the comparison as a page, with its figure, and returns where it is.

    Raises:
        UserError: something is there already and ``overwrite`` was not said.
    """
    pages.check_free(out, overwrite)
    numbers = compare(subjects)
    data = {
        "labels": [one["label"] for one in numbers["subjects"]],
        "rows": [{**row, "main": False} for row in numbers["rows"]],
        "verdicts": [[verdict(one) for one in row["differences"]] for row in numbers["rows"]],
    }
    main = main_rows(numbers)
    for row, shown in zip(data["rows"], numbers["rows"], strict=True):
        row["main"] = any(shown is one for one in main)
    subject_words = [
        (one["label"], f"{one['warning']} {gate_words(one['summary'])}", length_words(one["summary"]), one["summary"])
        for one in numbers["subjects"]
    ]
    page = pages.render(
        "compare.html",
        ("report.css",),
        ("draw.js", "compare.js"),
        data=data,
        subjects=subject_words,
        pairings=numbers["pairings"],
    )
    pages.write_page(out, page)
    return out
