"""Reads configurations from YAML files and dotted overrides, and writes them as YAML, with or without explanations."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import msgspec
import yaml

from olmo_sparsity.config.experiment import Config, to_dict
from olmo_sparsity.config.values import read_file, read_override
from olmo_sparsity.errors import UserError
from olmo_sparsity.files import check_type, read_manifest_of


def config_folder() -> Path:
    """Return the folder of the configurations: inside an installed package, or beside the package in a checkout."""
    installed = Path(__file__).parents[1] / "configs"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "configs"


def default_config_path() -> Path:
    """Return the path of ``demo.yaml``, which is used if no configuration is named."""
    return config_folder() / "demo.yaml"


def pretrained_config_path() -> Path:
    """Return the path of ``pretrained.yaml``, which is used if a model is named and no configuration."""
    return config_folder() / "pretrained.yaml"


def load_config(
    path: Optional[Path] = None, overrides: Sequence[str] = (), keys: Optional[dict[str, dict[str, Any]]] = None
) -> Config:
    """Load a YAML file on top of the defaults, dotted overrides (``training.steps=200``) on top of both, then single keys.

    Keys may contradict one another only when all are there.

    Args:
        path: the YAML file; None: ``demo.yaml``.
        overrides: each ``key=value``; a later one wins. One of ``influence.k`` takes the place of a grid that was named before.
        keys: values by section and key, which are not from the file: those of options.

    Raises:
        UserError: the file is missing or not YAML, a key is unknown, or a value is of the wrong type or out of range.
    """
    path = default_config_path() if path is None else path
    values = read_values(path, overrides)
    try:
        return msgspec.convert(_merged(values, keys or {}), Config)
    except UserError as error:
        if keys and _is_accepted(values):
            raise
        raise UserError(f"{path}: {error}") from None


def read_values(path: Path, overrides: Sequence[str] = ()) -> dict[str, Any]:
    """Return the values of a YAML file and of dotted overrides on top of it; each is checked by itself.

    Raises:
        UserError: as of ``load_config``.
    """
    values = read_file(_text_of(path), Config, path=path)
    for override in overrides:
        values = _merged(values, _given(override))
    return values


def _is_accepted(values: dict[str, Any]) -> bool:
    try:
        msgspec.convert(values, Config)
    except UserError:
        return False
    return True


def keys_of_override(override: str) -> list[str]:
    """Return the dotted names of the keys that an override gives; one of ``influence.k`` gives its grid, too.

    Raises:
        UserError: its key or value is wrong.
    """
    return [
        f"{section}.{name}" if isinstance(keys, dict) else section
        for section, keys in _given(override).items()
        for name in (keys if isinstance(keys, dict) else [section])
    ]


def _given(override: str) -> dict[str, Any]:
    """Return the values that an override gives. Those of k take the place of a grid that was named before."""
    given = read_override(override, Config)
    if "k" in given.get("influence", {}):
        given["influence"].setdefault("k_grid", None)
    return given


def _text_of(path: Path) -> str:
    """Return the text of a configuration.

    Raises:
        UserError: it cannot be read.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe would be waited for without end
            raise UserError(
                f"{path}: this is a pipe or a device, where a configuration was expected; write it into a file"
            )
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot read this configuration ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text, so not a configuration") from None


def _merged(first: dict[str, Any], second: dict[str, Any]) -> dict[str, Any]:
    """Return the values of both; those of ``second`` win, and sections are merged."""
    sections = {name: _merged(first.get(name, {}), value) for name, value in second.items() if isinstance(value, dict)}
    return {**first, **second, **sections}


def to_yaml(config: Config, explain: bool = False) -> str:
    """Return a configuration as YAML; with ``explain``, with the explanation of each key above it."""
    if explain:
        return "\n".join(_explained_lines(config, indent="")) + "\n"
    return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)


def _explained_lines(section: Any, *, indent: str) -> list[str]:
    """Return the lines of a section and of those in it, with explanations as comments."""
    lines: list[str] = []
    for item in dataclasses.fields(section):
        value = getattr(section, item.name)
        if dataclasses.is_dataclass(value):
            comment = textwrap.wrap(value.__doc__ or "", 100, initial_indent="# ", subsequent_indent="# ")
            lines += ["", *comment, f"{indent}{item.name}:", *_explained_lines(value, indent=indent + "  ")]
        else:
            prefix = f"{indent}# "
            lines += textwrap.wrap(
                item.metadata["help"], 110, initial_indent=prefix, subsequent_indent=prefix, break_on_hyphens=False
            )
            text = json.dumps(value, ensure_ascii=False)  # JSON is YAML, but for the pairs of surrogates of its escapes
            written = text.encode("ascii", "backslashreplace").decode().replace("\x7f", r"\x7f")
            lines.append(f"{indent}{item.name}: {written}")
    return lines


def read_config_of(run: Path) -> Config:
    """Return the configuration that a run was made with. Keys that it lacks have their defaults."""
    return check_type(read_manifest_of(run, "config")["config"], Config, where=f"{run / 'manifest.json'}: config")
