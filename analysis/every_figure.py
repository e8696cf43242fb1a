"""Every figure of a run: of its newest measurement, its planted tokens, its context curve and its training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from olmo_sparsity.statistics.measurement import load
from olmo_sparsity.statistics.summary import summarize
from olmo_sparsity.tables.reading import list_finished

from . import (
    agreement,
    classes,
    context_curve,
    distance,
    figure4,
    figure5,
    planted,
    recovered_fraction,
    sample_size,
    training,
)
from .paper import Width, folder_for, set_width
from .style import Draw, find_tables

MEASUREMENT_FIGURES: tuple[Draw, ...] = (
    figure4.draw,
    figure5.draw,
    recovered_fraction.draw,
    distance.draw,
    classes.draw,
    agreement.draw,
    sample_size.draw,
)


def draw_run(run: Path, tables: Optional[Path] = None, width: str = "screen") -> Iterator[Path]:
    """Draw all figures that a run's tables allow, and yield where each picture is.

    Args:
        run: folder of the run.
        tables: an influence folder; None: the run's newest measurement.
        width: ``screen``, ``one`` or ``two``: for a screen, or for one or both columns of a paper.

    Raises:
        UserError: the run has no finished measurement, or its tables are damaged.
    """
    set_width(Width(width))
    folder, out = find_tables(run, tables)
    measurement = load(folder)
    summary = summarize(measurement)
    for draw in MEASUREMENT_FIGURES:
        yield from draw(folder, measurement, summary, folder_for(out))
    figures_of_run = folder_for(run / "figures")
    if list_finished(run, "validation"):
        yield from planted.draw([run], figures_of_run)
    if list_finished(run, "context-curve"):
        yield from context_curve.draw([run], figures_of_run)
    metrics = run / "metrics.jsonl"
    if metrics.is_file() and metrics.stat().st_size:
        yield from training.draw([run], figures_of_run)
