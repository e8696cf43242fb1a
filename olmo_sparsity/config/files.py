"""Configurations as files: YAML and dotted overrides in, explained YAML out."""

from __future__ import annotations

import dataclasses
import json
import textwrap
from pathlib import Path
from typing import Any, Optional

import yaml
from omegaconf import OmegaConf
from omegaconf.errors import ConfigKeyError, OmegaConfBaseException

from olmo_sparsity.config.experiment import Config, to_dict
from olmo_sparsity.errors import UserError


def config_folder() -> Path:
    """The folder of the shipped configurations: inside an installed package, or beside it in a checkout."""
    inside = Path(__file__).parents[1] / "configs"
    return inside if inside.is_dir() else Path(__file__).parents[2] / "configs"


def default_config_path() -> Path:
    """``demo.yaml``: what runs when no configuration is named."""
    return config_folder() / "demo.yaml"


def _line_of(text: str, dotted: str) -> Optional[int]:
    """Line (from 1) of a dotted key in YAML text, or None."""
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


def _schema() -> Any:
    schema = OmegaConf.structured(Config)
    OmegaConf.set_readonly(schema, False)  # frozen dataclasses come out read-only; the merge below must write
    for key in schema:
        if OmegaConf.is_config(schema[key]):
            OmegaConf.set_readonly(schema[key], False)
    return schema


def _explain(error: Exception, dotted: str) -> str:
    if isinstance(error, ConfigKeyError):
        node: Any = Config()
        for part in dotted.split("."):
            names = [field.name for field in dataclasses.fields(node)] if dataclasses.is_dataclass(node) else []
            if part not in names:
                return f"there is no key {part!r} here; there are {', '.join(names) or 'none below this one'}"
            node = getattr(node, part)
    first = str(error).splitlines()[0]
    return "this is a section of keys, not a value" if "is not a subclass of" in first else first


def interpolates(text: str) -> bool:
    """Holds YAML text a ``${...}``, however written, which OmegaConf would resolve: read variables, look for files.

    Raises:
        YAMLError: it is no YAML.
    """
    return any(
        "${" in token.value for token in yaml.scan(text, Loader=yaml.SafeLoader) if isinstance(token, yaml.ScalarToken)
    )


def load_config(path: Optional[Path] = None, overrides: tuple[str, ...] | list[str] = ()) -> Config:
    """Reads a YAML file over the defaults, then dotted overrides (``training.steps=200``) over both.

    Raises:
        UserError: the file is missing or not YAML, a key is unknown, a value is of the wrong kind or out of range.
    """
    path = default_config_path() if path is None else path
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot read this configuration ({error.strerror})") from None
    except UnicodeDecodeError:
        raise UserError(f"{path}: not UTF-8 text, so not a configuration") from None
    try:
        if interpolates(text):
            raise UserError(f"{path}: ${{...}} interpolation is not supported; write the value out")
        if not isinstance(yaml.compose(text, Loader=yaml.SafeLoader), yaml.MappingNode | None):
            raise UserError(f"{path}: a configuration is a mapping of keys to values, such as those in configs/")
        merged = OmegaConf.merge(_schema(), OmegaConf.create(text))
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        raise UserError(f"{where}: not valid YAML ({getattr(error, 'problem', None) or error})") from None
    except OmegaConfBaseException as error:
        dotted = str(getattr(error, "full_key", None) or "")
        line = _line_of(text, dotted) if dotted else None
        where = f"{path}:{line}" if line else str(path)
        raise UserError(f"{where}: {dotted + ': ' if dotted else ''}{_explain(error, dotted)}") from None
    for override in overrides:
        if "=" not in override:
            raise UserError(f"{override!r}: an override is written key=value, such as training.steps=200")
        try:
            if "${" in override or interpolates(override.partition("=")[2]):
                raise UserError(f"override {override!r}: ${{...}} interpolation is not supported; write the value out")
            merged = OmegaConf.merge(merged, OmegaConf.from_dotlist([override]))
        except (OmegaConfBaseException, yaml.YAMLError, TypeError, IndexError, ValueError) as error:  # odd keys, too
            dotted = override.partition("=")[0]
            raise UserError(f"override {override!r}: {_explain(error, dotted)}") from None
    try:
        config = OmegaConf.to_object(merged)
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    except OmegaConfBaseException as error:
        raise UserError(f"{path}: {_explain(error, str(getattr(error, 'full_key', '')))}") from None
    assert isinstance(config, Config)
    return config


def to_yaml(config: Config, explain: bool = False) -> str:
    """YAML of a configuration; with ``explain``, every key's explanation above it."""
    if not explain:
        return yaml.safe_dump(to_dict(config), sort_keys=False, allow_unicode=True)
    lines: list[str] = []

    def emit(node: Any, indent: str) -> None:
        for item in dataclasses.fields(node):
            value = getattr(node, item.name)
            if dataclasses.is_dataclass(value):
                lines.append("")
                lines.extend(textwrap.wrap(value.__doc__ or "", 100, initial_indent="# ", subsequent_indent="# "))
                lines.append(f"{indent}{item.name}:")
                emit(value, indent + "  ")
            else:
                prefix = f"{indent}# "
                lines.extend(textwrap.wrap(item.metadata["help"], 110, initial_indent=prefix, subsequent_indent=prefix))
                lines.append(f"{indent}{item.name}: {json.dumps(value)}")  # JSON is YAML

    emit(config, "")
    return "\n".join(lines) + "\n"
