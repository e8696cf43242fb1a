"""A measurement as one HTML page: tables and their statistics in, a self-contained file out. Imports no torch.

What its charts draw are the numbers of ``summarize``, ``by_class`` and ``by_distance``, and its windows are rows of the tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Optional

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.wording import length_words
from olmo_sparsity.tables.reading import read_manifest
from olmo_sparsity.view import pages
from olmo_sparsity.view.report_answer import answer
from olmo_sparsity.view.report_data import NUM_WINDOWS, SEED, _facts, page_data

STYLES = ("report.css",)
SCRIPTS = ("draw.js", "figure4.js", "charts.js", "words.js", "report.js")


def render(data: dict[str, Any], facts: dict[str, Any]) -> str:
    """The page.

    Args:
        data: of ``page_data``.
        facts: the manifest of the tables.
    """
    summary = data["summary"]
    return pages.render(
        "report.html",
        STYLES,
        SCRIPTS,
        data=data,
        summary=summary,
        answer=answer(summary, data["shown_first"]),
        length_words=length_words(summary),
        facts=_facts(summary, facts),
    )


def default_out(tables: Path, run: Optional[Path] = None) -> Path:
    """Where the page goes where nothing else is said: beside the figures of the tables' run.

    Raises:
        UserError: the tables lie outside of any run, and none is named.
    """
    if run is None and tables.resolve().parent.name == "influence":
        run = tables.parent.parent
    if run is None:
        raise UserError(f"{tables}: these tables lie in no run; say with --out FILE where the page goes")
    return run / "figures" / tables.name / "report.html"


def write_report(
    tables: Path, out: Path, overwrite: bool = False, num_windows: int = NUM_WINDOWS, seed: int = SEED
) -> Path:
    """Writes the page of a measurement, and returns where it is.

    Raises:
        UserError: the tables are not usable, or something is there already and ``overwrite`` was not said.
    """
    if num_windows < 1:
        raise UserError(f"--windows {num_windows}: must be positive")
    pages.check_free(out, overwrite)
    pages.write_page(out, render(page_data(tables, num_windows, seed), read_manifest(tables)))
    return out
