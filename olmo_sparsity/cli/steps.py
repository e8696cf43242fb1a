"""Steps that several commands share."""

from __future__ import annotations

import importlib
import importlib.util
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from olmo_sparsity.config import Config
from olmo_sparsity.errors import Interrupted, UserError

if TYPE_CHECKING:
    from olmo_sparsity.measure.shares import Share

logger = logging.getLogger(__name__)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C into ``Interrupted``, which ends the command with one line and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command, without --overwrite, continues from here") from None


def train_first(config: Config, run: Path, share: Share) -> None:
    """Train the run where that is still to do; check that a trained one is of this very experiment.

    Raises:
        UserError: it is of another experiment, or not trained, and this is one of several processes.
    """
    from olmo_sparsity.training.loop import train
    from olmo_sparsity.training.run_folder import FREE_TO_MEASURE, check_same_experiment, is_trained

    if is_trained(run):
        check_same_experiment(run, config, FREE_TO_MEASURE)
        return
    if share.count > 1:
        raise UserError(f"{run}: not trained yet, and not by several processes; run `olmo-sparsity train` first, alone")
    logger.info(f"{run}: not trained yet, so it is trained first")
    with interruptible():
        train(config, run)


def measure_first(config: Config, run: Path) -> None:
    """Train and measure the influence of a run that has no finished measurement."""
    from olmo_sparsity.measure.influence import measure
    from olmo_sparsity.measure.shares import WHOLE

    logger.info(f"{run}: nothing measured yet, so that is done first")
    train_first(config, run, WHOLE)
    with interruptible():
        measure(config, run)


def figures_package() -> Any:
    """Return the module that draws: inside an installed package, or ``analysis/`` of a checkout."""
    inside = importlib.util.find_spec("olmo_sparsity.analysis") is not None
    return importlib.import_module(f"{'olmo_sparsity.analysis' if inside else 'analysis'}.every_figure")


def is_complete(tables: Path, share: Share) -> bool:
    """Return True where all parts are measured and this process is the one that shows the numbers."""
    from olmo_sparsity.tables.parts import finalize

    left = finalize(tables)
    if left:
        typer.echo(
            f"{tables}: share {share.index} of {share.count} is done; {left} parts are left to the others", err=True
        )
    elif not share.is_leader:
        typer.echo(f"{tables}: share {share.index} of {share.count} is done, and with it all parts", err=True)
    return not left and share.is_leader
