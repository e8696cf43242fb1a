"""Opens what is measured: a trained run."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import torch
from tokenizers import Tokenizer

from olmo_sparsity.config import Config, MeasuredLengths
from olmo_sparsity.config.files import load_config
from olmo_sparsity.errors import UserError
from olmo_sparsity.measure.batch_size import make_evaluator
from olmo_sparsity.measure.evaluator import Evaluator
from olmo_sparsity.measure.opened_run import losses_precision
from olmo_sparsity.model.checkpoint import CheckpointInfo, latest_checkpoint, load_model, read_checkpoint_info
from olmo_sparsity.model.devices import pick_device
from olmo_sparsity.storage.files import read_json
from olmo_sparsity.text.vocabulary import read_tokenizer


@dataclass(frozen=True)
class Model:
    """A model that is ready to be measured, and the way in which it is measured. ``open_model`` makes it.

    Attributes:
        name: of the run.
        config: the configuration; its section ``influence`` says how to measure.
        evaluator: the model with its lengths, on its device.
        tokenizer: of the model.
        precision: of all losses, ``fp32`` or ``bf16``.
        num_parameters: of the model.
        checkpoint: which weights these are.
    """

    name: str
    config: Config
    evaluator: Evaluator
    tokenizer: Tokenizer
    precision: str
    num_parameters: int
    checkpoint: CheckpointInfo

    @property
    def lengths(self) -> MeasuredLengths:
        """``local_len``, ``full_len``, ``num_long_range`` and more, in tokens."""
        return self.config.measured_lengths

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.evaluator.model.device

    def __repr__(self) -> str:
        lengths = self.lengths
        return (
            f"Model({self.name!r}, {self.num_parameters / 1e6:.3g}M parameters, {self.precision} on {self.device}, "
            f"local_len {lengths.local_len}, full_len {lengths.full_len})"
        )


def open_model(
    model: str | Path,
    *,
    local_len: Optional[int] = None,
    full_len: Optional[int] = None,
    precision: Optional[str] = None,
    device: Optional[str] = None,
    path: Optional[str] = None,
) -> Model:
    """Load a model to measure.

    Args:
        model: the folder of a trained run.
        local_len: L, the number of local tokens; None: that of the run's configuration.
        full_len: tokens of a window; None: that of the run's configuration.
        precision: of the losses: ``auto``, ``fp32`` or ``bf16``; None: that of the configuration.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; None: that of the configuration.
        path: ``compact``, ``plain`` or ``masked``; None: that of the configuration.

    Raises:
        UserError: the folder holds no trained run, or the model cannot be measured like this.
    """
    run = Path(model)
    if not (run / "config.yaml").is_file():
        raise UserError(f"{run}: no trained run (a folder with config.yaml, manifest.json and checkpoints)")
    given = {"local_len": local_len, "full_len": full_len, "precision": precision, "path": path}
    overrides = [f"influence.{name}={value}" for name, value in given.items() if value is not None]
    if device is not None:
        overrides.append(f"training.device={device}")
    return open_configured(load_config(run / "config.yaml", overrides), run)


def open_configured(config: Config, run: Path) -> Model:
    """Load the newest checkpoint of a trained run, to be measured as a configuration says.

    Raises:
        UserError: the run has no checkpoint, or this machine lacks the device.
    """
    latest = latest_checkpoint(run / "checkpoints")
    if latest is None:
        raise UserError(f"{run}: this run has no checkpoint; train it first with `olmo-sparsity train --run {run}`")
    device = pick_device(config.training.device)
    if config.training.threads is not None:
        torch.set_num_threads(config.training.threads)
    precision, lengths = losses_precision(config, device), config.measured_lengths
    evaluator = make_evaluator(
        load_model(latest, device),
        config.influence,
        full_len=lengths.full_len,
        local_len=lengths.local_len,
        precision=precision,
    )
    return Model(
        name=run.name,
        config=config,
        evaluator=evaluator,
        tokenizer=read_tokenizer(run / "tokenizer.json"),
        precision=precision,
        num_parameters=read_json(run / "manifest.json")["num_parameters"],
        checkpoint=read_checkpoint_info(latest),
    )


def with_settings(model: Model, *, selectors: list[str], k: list[int], seed: int, resampled_draws: int) -> Config:
    """Return the configuration of a model with other settings of ``influence``.

    Raises:
        UserError: a setting is not possible.
    """
    settings = dataclasses.replace(
        model.config.influence, selectors=selectors, k=k, seed=seed, resampled_draws=resampled_draws, screen=None
    )
    config = dataclasses.replace(model.config, influence=settings)
    config.check_k()
    return config
