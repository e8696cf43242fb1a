"""Opens the model to measure: a trained run, a pretrained model, or one in memory."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Optional, Union

from olmo_sparsity.api.arguments import typed
from olmo_sparsity.config import Config, changed, load_config, shipped
from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.files import manifest_of_kind
from olmo_sparsity.measure import opening
from olmo_sparsity.measure.opening import OpenedModel as Model
from olmo_sparsity.selectors.own import names_of
from olmo_sparsity.train.experiment import check_same_experiment

Ks = Union[Sequence[int], Literal["all", "geometric"]]  # values of k
REMEDY = "leave it out, or restore it in config.yaml; other lengths are local_len and full_len"


@typed
def open_model(
    model: Any,
    *,
    revision: Optional[str] = None,
    device: Optional[str] = None,
    overrides: Sequence[str] = (),
    **settings: Any,
) -> Model:
    """Load a model to measure.

    ``model`` is the folder of a trained run; a Hugging Face folder or name, or a ``.gguf`` file; or (model, tokenizer) of
    transformers. ``revision`` is a branch, tag or commit on the hub. ``settings`` are keys of ``influence``, such as
    ``local_len``, ``full_len``, ``visibility`` (``hidden`` or ``contextual``), ``anchor`` and ``precision``; ``overrides`` are
    other keys, such as ``pretrained.train_len=2048``.
    """
    keys = {f"influence.{name}": value for name, value in settings.items()}
    named = {"pretrained.revision": revision, "training.device": device}
    keys |= {key: value for key, value in named.items() if value is not None}
    if isinstance(model, tuple) and len(model) == 2:
        keys["pretrained.model"] = getattr(model[0], "name_or_path", "") or type(model[0]).__name__
        config = load_config(shipped("pretrained"), overrides, keys)
        return opening.open_model(config, Path("runs") / config.pretrained.folder_name, in_memory=model)
    if not isinstance(model, (str, Path)):
        raise UserError(f"model = {printable(repr(model))[:60]}: must be a path, a name, or (model, tokenizer)")
    path = Path(os.path.expanduser(model))
    if not path.exists() and str(path).startswith(("/", ".", "~", "runs/")):  # others may be names on the hub
        raise UserError(f"model = {printable(str(model))}: no such folder or file, seen from {Path.cwd()}")
    if not (path / "config.yaml").is_file():
        config = load_config(shipped("pretrained"), overrides, keys | {"pretrained.model": str(model)})
        config.pretrained.check_there()
        return opening.open_model(config, Path("runs") / config.pretrained.folder_name)
    config = load_config(path / "config.yaml", overrides, keys)
    if (manifest := manifest_of_kind(path, "run")) is not None:
        check_same_experiment(path, manifest, config, remedy=REMEDY)
    return opening.open_model(config, path)


def settings_of(model: Model, **given: Any) -> Config:
    """The configuration of a model with other settings of ``influence``; None: as configured."""
    if given.get("selectors") is not None:
        given["selectors"] = names_of(given["selectors"])
    return changed(model.config, {f"influence.{name}": value for name, value in given.items() if value is not None})
