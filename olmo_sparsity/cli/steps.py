"""Steps that several commands share."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from olmo_sparsity.cli.messages import print_line
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


def train_first(config: Config, run: Path, *, share: Share) -> None:
    """Train the run unless it is trained; of a trained run, check that it belongs to the same experiment.

    A model from elsewhere needs nothing.

    Raises:
        UserError: the run belongs to another experiment, or it is not trained and this is one of several processes.
    """
    if config.pretrained.model is not None:
        return
    from olmo_sparsity.training.loop import train
    from olmo_sparsity.training.run_folder import check_same_experiment, is_trained

    if is_trained(run):
        check_same_experiment(run, config, measured=True)
        return
    if share.count > 1:
        raise UserError(
            f"{run}: this run is not trained yet; run `olmo-sparsity train` first, alone, then measure with several processes"
        )
    logger.info(f"{run}: not trained yet; training first")
    with interruptible():
        train(config, run)


def measure_first(config: Config, run: Path) -> None:
    """Measure the influence in a run that has no finished measurement; train it first if necessary."""
    from olmo_sparsity.measure.influence import measure
    from olmo_sparsity.measure.shares import WHOLE

    logger.info(f"{run}: nothing measured yet; measuring first")
    train_first(config, run, share=WHOLE)
    with interruptible():
        measure(config, run)


def finish_share(tables: Path, share: Share) -> bool:
    """Report how far a measurement is, and return True if this process should print its results.

    That is the case if all parts are measured and no other process of the same terminal prints them.
    """
    from olmo_sparsity.tables.parts import finalize

    num_missing = finalize(tables)
    progress = f"{tables}: share {share.index} of {share.count} is done"
    if num_missing:
        print_line(f"{progress}; {num_missing} parts are left to the others", to_stderr=True)
    elif not share.is_leader:
        print_line(f"{progress}, and with it all parts", to_stderr=True)
    return not num_missing and share.is_leader
