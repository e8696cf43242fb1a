"""Reads configurations from YAML files and dotted overrides, and writes them as YAML, with or without explanations."""

from __future__ import annotations

import dataclasses
import functools
import json
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Optional

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from olmo_sparsity.config.experiment import Config, to_dict
from olmo_sparsity.config.strict import find_wrong_value
from olmo_sparsity.errors import UserError

REMOVED = {"validation": ("solver_steps",)}  # keys that config.yaml of earlier runs has and that nothing reads now
NO_INTERPOLATION = "${...} interpolation is not supported; write the value out"


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


def load_config(path: Optional[Path] = None, overrides: Sequence[str] = ()) -> Config:
    """Load a YAML file on top of the defaults, and dotted overrides (``training.steps=200``) on top of both.

    Args:
        path: the YAML file; None: ``demo.yaml``.
        overrides: each ``key=value``; a later one wins.

    Raises:
        UserError: the file is missing or not YAML, a key is unknown, or a value is of the wrong type or out of range.
    """
    path = default_config_path() if path is None else path
    merged = _load_file(path)
    for override in overrides:
        merged = _apply_override(merged, override)
    try:
        config = OmegaConf.to_object(merged)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {_explain(error, str(getattr(error, 'full_key', '')))}") from None
    assert isinstance(config, Config)
    return config


def _load_file(path: Path) -> Any:
    """Return the defaults with the values of a YAML file merged into them.

    Raises:
        UserError: the file cannot be read; the message gives the line where possible.
    """
    try:
        if path.exists() and not path.is_file() and not path.is_dir():  # a pipe would be waited for without end
            raise UserError(
                f"{path}: this is a pipe or a device, where a configuration was expected; write it into a file"
            )
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot read this configuration ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text, so not a configuration") from None
    try:
        if has_interpolation(text):
            raise UserError(f"{path}: {NO_INTERPOLATION}")
        if not isinstance(yaml.compose(text, Loader=yaml.SafeLoader), yaml.MappingNode | None):
            raise UserError(f"{path}: a configuration is a mapping of keys to values, such as those in configs/")
        values: Any = OmegaConf.create(text)
        for section, names in REMOVED.items():
            for name in names if OmegaConf.is_dict(values.get(section)) else ():
                values[section].pop(name, None)
        if wrong := find_wrong_value(OmegaConf.to_container(values), Config):
            raise UserError(f"{path}:{_line_of(text, wrong.dotted)}: {wrong.dotted}{wrong.reason}")
        return OmegaConf.merge(_defaults(), values)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise UserError(
            f"{where}: not valid YAML ({getattr(error, 'problem', None) or str(error).splitlines()[0]})"
        ) from None
    except RecursionError:
        raise UserError(f"{path}: too many brackets in one another; a configuration has two levels of keys") from None
    except OmegaConfBaseException as error:
        dotted = str(getattr(error, "full_key", None) or "")
        line = _line_of(text, dotted) if dotted else None
        where = f"{path}:{line}" if line else str(path)
        raise UserError(f"{where}: {dotted + ': ' if dotted else ''}{_explain(error, dotted)}") from None
    except ValueError as error:  # a number of thousands of digits
        raise UserError(f"{path}: {str(error).splitlines()[0]}") from None


def _apply_override(config: Any, override: str) -> Any:
    """Return a configuration with one override merged into it.

    Raises:
        UserError: the override is not of the form key=value, or its key or value is wrong.
    """
    dotted, equals, value = override.partition("=")
    if not equals:
        raise UserError(f"{override!r}: an override is written key=value, such as training.steps=200")
    try:
        if "${" in override or has_interpolation(value):
            raise UserError(f"override {override!r}: {NO_INTERPOLATION}")
        values = OmegaConf.from_dotlist([override])
        if wrong := find_wrong_value(OmegaConf.to_container(values), Config):
            raise UserError(f"override {override!r}: {wrong.dotted}{wrong.reason}")
        return OmegaConf.merge(config, values)
    except (OmegaConfBaseException, yaml.YAMLError, TypeError, IndexError, ValueError) as error:  # also for odd keys
        raise UserError(f"override {override!r}: {_explain(error, dotted)}") from None


def has_interpolation(text: str) -> bool:
    """Return True if YAML text holds a ``${...}``, also an escaped one.

    OmegaConf would resolve it, and thereby read environment variables or files.

    Raises:
        YAMLError: the text is no YAML.
    """
    return any(
        "${" in token.value for token in yaml.scan(text, Loader=yaml.SafeLoader) if isinstance(token, yaml.ScalarToken)
    )


@functools.cache
def _defaults() -> Any:
    """Return the default configuration as an OmegaConf object. ``OmegaConf.merge`` merges values into a copy of it."""
    defaults = OmegaConf.structured(Config)
    OmegaConf.set_readonly(defaults, False)  # OmegaConf makes frozen dataclasses read-only
    for key in defaults:
        if OmegaConf.is_config(defaults[key]):
            OmegaConf.set_readonly(defaults[key], False)
    return defaults


def _line_of(text: str, dotted: str) -> Optional[int]:
    """Return the line (from 1) of a dotted key in YAML text, or of the innermost section that it has. None: neither."""
    node = yaml.compose(text, Loader=yaml.SafeLoader)
    line = None
    for part in dotted.split("."):
        if not isinstance(node, yaml.MappingNode):
            return line
        for key_node, value_node in node.value:
            if key_node.value == part:
                line, node = key_node.start_mark.line + 1, value_node
                break
        else:
            return line
    return line


def _explain(error: Exception, dotted: str) -> str:
    """Return one line about an error of OmegaConf at a dotted key."""
    if isinstance(error, ConfigKeyError):
        node: Any = Config()
        for part in dotted.split("."):
            names = [field.name for field in dataclasses.fields(node)] if dataclasses.is_dataclass(node) else []
            if part not in names:
                return f"there is no key {part!r} here; there are {', '.join(names) or 'none below this one'}"
            node = getattr(node, part)
    return str(error).splitlines()[0]


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
            lines.append(f"{indent}{item.name}: {json.dumps(value)}")  # JSON is YAML
    return lines
