"""Steps that several commands share."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Optional

from olmo_sparsity.cli.messages import print_line
from olmo_sparsity.cli.options import RUNS, Named
from olmo_sparsity.config import Config, changed, load_config
from olmo_sparsity.errors import Interrupted, UserError

if TYPE_CHECKING:
    from olmo_sparsity.measure.parts import Share

logger = logging.getLogger(__name__)


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C into ``Interrupted``, which ends the command with one line and exit code 130."""
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted("interrupted; the same command, without --overwrite, continues from here") from None


def needs_training(config: Config, run: Path, *, share: Share, command: str) -> bool:
    """Return whether a run is to be trained before it is measured; of a trained run, check that it is the same experiment.

    Args:
        config: the experiment.
        run: the folder.
        share: of the measurement that follows.
        command: what trains such a run, for the errors.

    Raises:
        UserError: the run belongs to another experiment, its last checkpoint is gone, or this is one of several processes.
    """
    from olmo_sparsity.files import manifest_of_kind
    from olmo_sparsity.train.experiment import ANOTHER, check_same_experiment, is_trained

    manifest = manifest_of_kind(run, "run")
    if manifest is not None and is_trained(run, manifest):
        named = f"name it with --run {run}, which reads its own configuration, or {ANOTHER}"
        check_same_experiment(run, manifest, config, remedy=named)
        return False
    if manifest is not None and manifest["status"] == "complete":
        raise UserError(
            f"{run}: this run was trained, and its last checkpoint is gone; bring it back, or train again with `{command} "
            f"--run {run}`, which writes its manifest and metrics anew"
        )
    if share.count > 1:
        raise UserError(
            f"{run}: this run is not trained yet; run `{command}` first, alone, then measure with several processes"
        )
    return True


def check_before_torch(config: Config, run: Path, *, share: Share, asked: bool) -> None:
    """Check what can be known without torch, whose import takes seconds: the model, the run and the text that are named.

    Raises:
        UserError: there is no such model or text, a key of a pretrained model has none, or the run was never begun and is not
            to be trained here.
    """
    from olmo_sparsity.files import manifest_of_kind

    _check_training_of(config, asked=asked)
    config.pretrained.check_there()
    if config.influence.data is not None:
        from olmo_sparsity.text.sources import list_files

        list_files(dataclasses.replace(config.data, source=config.influence.data))
    is_begun = config.pretrained.model is not None or manifest_of_kind(run, "run") is not None
    if not is_begun and share.count == 1:
        _check_to_be_trained(config, run, asked=asked)


def check_settings(
    config: Config, *, selectors: Sequence[str], ks: Optional[Sequence[int]], seed: Optional[int]
) -> None:
    """Check the settings of a measurement of one text before a model is loaded; what is None or empty is not given.

    Raises:
        UserError: a setting is not possible.
    """
    given = {"selectors": list(selectors) or None, "k": ks, "seed": seed}
    keys = {name: value for name, value in given.items() if value is not None}
    settings = changed(config, {"influence.k_grid": None, **{f"influence.{name}": of for name, of in keys.items()}})
    if ks is not None:  # of those of the configuration only the k that leave some tokens out are measured
        settings.with_measured_k()


def _check_training_of(config: Config, *, asked: bool) -> None:
    if asked and config.pretrained.model is not None:
        raise UserError(f"--train: {config.pretrained.model} is a pretrained model, which is never trained")


def _check_to_be_trained(config: Config, run: Path, *, asked: bool) -> None:
    if not asked and run.resolve() != (RUNS / config.name).resolve():
        raise UserError(
            f"{run}: this run is not trained; train it with `olmo-sparsity train --run {run}`, or let this command do it with "
            "--train"
        )


def train_first(
    named: Named, *, share: Share, asked: bool, kind: Optional[str] = None, out: Optional[Path] = None
) -> None:
    """Train the run unless it is trained; of a trained run, check that it belongs to the same experiment.

    What the options say of a measurement is no part of the run: its sections of measurements are those of the file. A pretrained
    model needs nothing. Without being asked, only the folder that the configuration names is trained in: any
    other may be a slip of the pen.

    Args:
        named: the run.
        share: of the measurement that follows.
        asked: whether ``--train`` was given.
        kind: of the tables that will be measured; None: no folder of tables is written.
        out: their folder, if one was named.

    Raises:
        UserError: the run belongs to another experiment; it is not trained, and is not to be trained here; or what follows
            the training would fail.
    """
    config, run, _ = named
    _check_training_of(config, asked=asked)
    if config.pretrained.model is not None:
        return
    from olmo_sparsity.files import manifest_of_kind
    from olmo_sparsity.measure.opening import check_before_training

    if not needs_training(config, run, share=share, command="olmo-sparsity train"):
        return
    _check_to_be_trained(config, run, asked=asked)
    if out is not None and kind is not None:
        manifest_of_kind(out, kind)
    check_before_training(config)
    from olmo_sparsity.train.loop import train  # it imports olmo, which measuring does not need

    trained = as_trained(named, command="olmo-sparsity train")
    logger.info(f"{run}: not trained yet; training first")
    with interruptible():
        train(trained, run)


def as_trained(named: Named, *, command: str) -> Config:
    """Return a configuration with the sections of measurements of its file.

    Raises:
        UserError: they do not fit the lengths of the run.
    """
    of_file = load_config(named.file)
    return dataclasses.replace(named.config, **{name: getattr(of_file, name) for name in ("influence",)})


def measure_first(named: Named, *, asked: bool) -> None:
    """Measure the influence in a run that has no finished measurement; train it first if necessary."""
    from olmo_sparsity.measure.influence import measure
    from olmo_sparsity.measure.parts import WHOLE

    named.config.with_measured_k()
    train_first(named, share=WHOLE, asked=asked, kind="influence")
    logger.info(f"{named.folder}: nothing measured yet; measuring first")
    with interruptible():
        measure(named.config, named.folder)


def finish_share(tables: Path, share: Share) -> bool:
    """Report how far a measurement is, and return True if this process should print its results.

    That is the case if all parts are measured and no other process of the same terminal prints them.
    """
    from olmo_sparsity.tables import finalize

    num_missing = finalize(tables)
    progress = f"{tables}: share {share.index} of {share.count} is done"
    if num_missing:
        are = "is" if num_missing == 1 else "are"
        print_line(
            f"{progress}; {num_missing} {'part' if num_missing == 1 else 'parts'} {are} left to the others",
            to_stderr=True,
        )
    elif not share.is_leader:
        print_line(f"{progress}, and with it all parts", to_stderr=True)
    return not num_missing and share.is_leader
