"""Opens what is measured: a trained run, a pretrained model, or one that is in memory."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

import torch
from tokenizers import Tokenizer

from olmo_sparsity.api.arguments import typed
from olmo_sparsity.config import (
    Config,
    InfluenceConfig,
    Lengths,
    changed,
    load_config,
    parsed,
    require,
    shipped,
)
from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.files import manifest_of_kind
from olmo_sparsity.measure.engine import Engine
from olmo_sparsity.measure.opening import OpenedModel
from olmo_sparsity.measure.opening import open_model as open_configured_model
from olmo_sparsity.text.windows import Windows
from olmo_sparsity.train.experiment import check_same_experiment

REMEDY = "leave it out of overrides, or restore it in config.yaml; other lengths are arguments, local_len and full_len"
MODEL_FILES = (".gguf", ".safetensors", ".bin", ".pt", ".yaml")  # what ends like this is taken for a file
CONTROL = "random"  # is measured beside the selectors that are named


@dataclass(frozen=True)
class Model:
    """A model that is ready to be measured, and the way in which it is measured. ``open_model`` makes it."""

    config: Config  # the section ``influence`` says how to measure
    opened: OpenedModel  # the model with its tokenizer and its anchor
    engine: Engine  # runs the model at its lengths

    @property
    def name(self) -> str:
        """Name of the run, or of the model."""
        return self.opened.name if self.opened.record is None else self.opened.record.name

    @property
    def lengths(self) -> Lengths:
        """``local_len``, ``full_len``, ``num_long_range`` and more, in tokens."""
        return self.config.measured_lengths

    @property
    def tokenizer(self) -> Tokenizer:
        """Of the model."""
        return self.opened.tokenizer

    @property
    def device(self) -> torch.device:
        """Where tokens go."""
        return self.engine.model.device

    def fit(self, windows: Windows) -> dict[str, Any]:
        """Check that a pretrained model fits, on the first windows that are measured; return the manifest's entry.

        Raises:
            UserError: the model does not do what the measurement takes for granted.
        """
        return self.opened.fit(windows)

    def __repr__(self) -> str:
        lengths, opened, settings = self.lengths, self.opened, self.config.influence
        anchor = "no anchor" if opened.anchor is None else f"anchor {opened.anchor.text!r}"
        return (
            f"Model({self.name!r}, {opened.num_parameters / 1e6:.3g}M parameters, {opened.precision} on {self.device}, "
            f"local_len {lengths.local_len}, full_len {lengths.full_len}, {settings.visibility}, {anchor})"
        )


@typed
def open_model(
    model: Any,
    *,
    revision: Optional[str] = None,
    local_len: Optional[int] = None,
    full_len: Optional[int] = None,
    visibility: Optional[str] = None,
    anchor: Optional[str] = None,
    precision: Optional[str] = None,
    device: Optional[str] = None,
    overrides: Sequence[str] = (),
) -> Model:
    """Load a model to measure.

    Args:
        model: the folder of a trained run; what ``--model`` takes: a Hugging Face folder or name, or a ``.gguf`` file; or
            (model, tokenizer) of transformers.
        revision: branch, tag or commit of a model on the hub.
        local_len: L, the number of local tokens; None: that of the run, or 64.
        full_len: tokens of a window; None: that of the run, or 128.
        visibility: ``hidden`` or ``contextual``; None: that of the configuration.
        anchor: ``auto``, ``bos`` or ``none``; None: that of the configuration.
        precision: of the losses: ``auto``, ``fp32`` or ``bf16``; None: that of the configuration.
        device: ``auto``, ``cpu``, ``cuda`` or ``cuda:N``; None: that of the configuration.
        overrides: further changes to the configuration, such as ``influence.path=masked``; none of what an argument gives, and
            of a trained run none of what it was trained with.

    Raises:
        UserError: there is no such model, or it cannot be measured like this; what looks like a path is not looked for on the
            hub. Or an override gives what an argument gives, or another value of what a run was trained with.
    """
    given = {
        "influence.local_len": local_len,
        "influence.full_len": full_len,
        "influence.visibility": visibility,
        "influence.anchor": anchor,
        "influence.precision": precision,
        "training.device": device,
    }
    _check_given_once(overrides, given)
    changes = [*overrides, *(f"{key}={value}" for key, value in given.items() if value is not None)]
    if isinstance(model, tuple):
        name = str(getattr(model[0], "name_or_path", "") or type(model[0]).__name__)
        config = load_config(shipped("pretrained"), changes, {"pretrained.model": name})
        return open_configured(config, Path("runs") / config.pretrained.folder_name, in_memory=model)
    if not isinstance(model, (str, Path)):
        raise UserError(f"model = {printable(repr(model))[:60]}: must be a path, a name, or (model, tokenizer)")
    run = Path(os.path.expanduser(model))
    _check_there(model, run)
    if (run / "config.yaml").is_file():
        if revision is not None:
            raise UserError(f"revision = {revision}: {run} is a trained run, which has none; leave it out")
        config = load_config(run / "config.yaml", changes)
        if (manifest := manifest_of_kind(run, "run")) is not None:
            check_same_experiment(run, manifest, config, remedy=REMEDY)
        return open_configured(config, run)
    config = load_config(
        shipped("pretrained"), changes, {"pretrained.model": str(model), "pretrained.revision": revision}
    )
    return open_configured(config, Path("runs") / config.pretrained.folder_name)


def _check_given_once(overrides: Sequence[str], given: Mapping[str, object]) -> None:
    """Check that no override gives a key that an argument gives, too, or names the model, which ``model`` does.

    Raises:
        UserError: one does.
    """
    for number, override in enumerate(overrides):
        for key in parsed(override):
            name = key.partition(".")[2]
            where = f"overrides[{number}] = {printable(override)}"
            if key in ("pretrained.model", "pretrained.revision"):
                raise UserError(f"{where}: give it by the argument {name}, not by overrides")
            if given.get(key) is not None:
                raise UserError(f"{where}: the argument {name} gives {key}; leave it out of overrides")


def _check_there(model: str | Path, path: Path) -> None:
    """Check that what looks like a path leads somewhere; other names are looked for on the hub.

    Raises:
        UserError: nothing is there.
    """
    name = str(model)
    begins = ("/", "./", "../", "~", "runs/")
    looks_like_a_path = name.startswith(begins) or name.count("/") > 1 or path.suffix in MODEL_FILES
    if (isinstance(model, Path) or looks_like_a_path) and not path.exists():
        raise UserError(
            f"model = {name}: there is no such folder or file, seen from {Path.cwd()} (it looks like a path, so the hub is not "
            "asked); give the whole path, or change to the folder from which it leads there (os.chdir)"
        )


def open_configured(config: Config, run: Path, *, in_memory: Optional[tuple[Any, Any]] = None) -> Model:
    """Load a run's newest checkpoint, or the model that a configuration names, to be measured as it says.

    Args:
        config: the configuration.
        run: folder of the run, or of the results of a pretrained model; nothing is written there.
        in_memory: (model, tokenizer) of transformers, in place of the one that the configuration names.

    Raises:
        UserError: the model or the run is not usable.
    """
    if config.influence.k_grid is not None:
        config = config.with_measured_k()
    opened = open_configured_model(config, run, in_memory=in_memory)
    return Model(config, opened, opened.engine(config.influence))


def settings_of_text(
    model: Model,
    selectors: Sequence[str],
    *,
    k: Optional[Sequence[int]],
    seed: Optional[int],
    unit: Optional[str],
    resampled_draws: int,
) -> InfluenceConfig:
    """Return how windows of one text are measured: with `random` beside the selectors; None: as the configuration has it.

    Raises:
        UserError: a setting is not possible.
    """
    require(len(selectors) > 0, "selectors = []: must name at least one selector")
    configured = model.config.influence
    unit = configured.unit if unit is None else unit
    number = num_groups_of(model, unit)
    return with_settings(
        model,
        selectors=list(dict.fromkeys([*selectors, CONTROL])),
        k=list(k) if k is not None else [size for size in configured.k if size < number] or [1],
        seed=configured.seed if seed is None else seed,
        resampled_draws=resampled_draws,
        unit=unit,
    )


def num_groups_of(model: Model, unit: Optional[str]) -> int:
    """Return the largest number of candidates of a window; ``unit``: of these, None: that of the configuration.

    Raises:
        UserError: there is no such unit.
    """
    return changed(model.config, {} if unit is None else {"influence.unit": unit}).num_groups


def with_settings(model: Model, **changes: Any) -> InfluenceConfig:
    """Return how a model is measured with other settings of ``influence``; ``changes``: their new values by name.

    Raises:
        UserError: a setting is not possible.
    """
    return changed(model.config, {f"influence.{name}": of for name, of in changes.items()}).with_measured_k().influence
