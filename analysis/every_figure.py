"""Every figure of a run: of its newest measurement, its planted tokens, its context curve and its training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Optional

from olmo_sparsity.tables.reading import list_finished

from . import (
    agreement,
    classes,
    context_curve,
    distance,
    figure4,
    figure5,
    planted,
    prediction_recovered,
    recovered_fraction,
    sample_size,
    training,
)
from .measured import Draw, draw_measured, find_tables
from .paper import Width, drawn_for, folder_for

MEASUREMENT_FIGURES: tuple[Draw, ...] = (
    figure4.draw,
    figure5.draw,
    recovered_fraction.draw,
    prediction_recovered.draw,
    distance.draw,
    classes.draw,
    agreement.draw,
    sample_size.draw,
)


def draw_run(run: Path, tables: Optional[Path] = None, *, width: str = "screen") -> Iterator[Path]:
    """Draw all figures that the tables of a run allow, and yield the path of each picture when it is drawn.

    Args:
        run: folder of the run.
        tables: an influence folder; None: the run's newest measurement.
        width: ``screen``, ``one`` or ``two``: for a screen, or for one or both columns of a paper.

    Raises:
        UserError: the run has no finished measurement, or its tables are damaged.
    """
    with drawn_for(Width(width)):
        folder, out = find_tables(run, tables)
        yield from draw_measured(MEASUREMENT_FIGURES, folder, out=out)
        figures_of_run = folder_for(run / "figures")
        if list_finished(run, "validation"):
            yield from planted.draw([run], figures_of_run)
        if list_finished(run, "context-curve"):
            yield from context_curve.draw([run], figures_of_run)
        metrics = run / "metrics.jsonl"
        if metrics.is_file() and metrics.stat().st_size:
            yield from training.draw([run], figures_of_run)
