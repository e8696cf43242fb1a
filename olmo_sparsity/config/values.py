"""Reads the values of keys from YAML, each of the type that its key is declared with."""

from __future__ import annotations

import dataclasses
import functools
import re
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import msgspec
import yaml

from olmo_sparsity.config.keys import check_value
from olmo_sparsity.errors import UserError

LONGEST_VALUE = 60  # characters of a value in a message
INT, FLOAT, TIMESTAMP = (f"tag:yaml.org,2002:{name}" for name in ("int", "float", "timestamp"))
TYPE_WORDS = {
    int: "a whole number",
    float: "a number",
    bool: "true or false",
    str: "text (in quotes if need be)",
    list[int]: "a list of whole numbers",
    list[str]: "a list of names",
}


class _Loader(yaml.SafeLoader):
    """Reads ``1e-4`` as a number. ``1:30`` is text, not the 90 of YAML 1.1; so are ``010``, not 8, and dates."""


_Loader.yaml_implicit_resolvers = {
    first: [(tag, form) for tag, form in forms if tag not in (INT, FLOAT, TIMESTAMP)]
    for first, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
_Loader.add_implicit_resolver(INT, re.compile("[-+]?(0|[1-9][0-9_]*)$"), list("-+0123456789"))
_Loader.add_implicit_resolver(
    FLOAT,
    re.compile(
        r"([-+]?([0-9][0-9_]*\.[0-9_]*|\.[0-9][0-9_]*)([eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+"
        r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN))$"
    ),
    list("-+.0123456789"),
)
_constructor = yaml.constructor.SafeConstructor()
types_of_keys = functools.cache(get_type_hints)  # the type of each key of a section
_Where = Callable[[yaml.Node], str]  # what stands before a mistake: the file and line of a node, or the override


def read_file(text: str, section: type, *, path: Path) -> dict[str, Any]:
    """Return the values that YAML text gives to the keys of a section; those of a section in it lie in a dict of their own.

    Args:
        text: the content of the file.
        section: a dataclass.
        path: the file, for errors.

    Raises:
        UserError: the text is not YAML, a key is unknown or stands there twice, or a value is of another type than its key.
    """
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise UserError(f"{where}: not valid YAML ({reason})") from None
    except (ValueError, OverflowError):  # "\UFFFFFFFF"
        raise UserError(f"{path}: not valid YAML (an escape of a character that does not exist)") from None
    except RecursionError:
        raise UserError(f"{path}: too many brackets in one another; a configuration has two levels of keys") from None
    if node is None:
        return {}
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{path}: a configuration is a mapping of keys to values, such as those in configs/")
    return _section(node, section, "", where=lambda node: f"{path}:{node.start_mark.line + 1}")


def read_override(override: str, section: type) -> dict[str, Any]:
    """Return the one value of an override (``training.steps=200``), in a dict for each section that it lies in.

    Raises:
        UserError: it is not of this form, or its key or value is wrong.
    """
    dotted, equals, text = override.partition("=")
    if not equals:
        raise UserError(f"{override!r}: an override is written key=value, such as training.steps=200")
    try:
        node = yaml.compose(text, Loader=_Loader) or yaml.ScalarNode("tag:yaml.org,2002:null", "")
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError):
        raise UserError(f"override {override!r}: the value is not valid YAML; put text in quotes") from None
    for name in reversed(dotted.split(".")):
        node = yaml.MappingNode("tag:yaml.org,2002:map", [(yaml.ScalarNode("tag:yaml.org,2002:str", name), node)])
    return _section(node, section, "", where=lambda _: f"override {override!r}")


def _section(node: yaml.Node, section: type, prefix: str, *, where: _Where) -> dict[str, Any]:
    """Return the values that a node gives to the keys of a section, whose dotted names begin with ``prefix``."""
    if not isinstance(node, yaml.MappingNode):
        raise UserError(f"{where(node)}: {prefix[:-1]} is a section of keys, not a value")
    expected, values = types_of_keys(section), {}
    declared = {item.name: item for item in dataclasses.fields(section)}
    for key_node, value_node in node.value:
        name = key_node.value if isinstance(key_node, yaml.ScalarNode) else "[...]"
        dotted = prefix + name
        if name not in expected:
            raise UserError(
                f"{where(key_node)}: {dotted}: there is no key {name!r} here; there are {', '.join(expected)}"
            )
        if name in values:
            raise UserError(f"{where(key_node)}: {dotted}: this key stands here twice; leave one out")
        if dataclasses.is_dataclass(expected[name]):
            values[name] = _section(value_node, expected[name], f"{dotted}.", where=where)
        else:
            values[name] = _value(value_node, expected[name], dotted, where=where)
            try:
                check_value(declared[name], values[name], dotted)
            except UserError as error:
                raise UserError(f"{where(value_node)}: {error}") from None
    return values


def _value(node: yaml.Node, expected: Any, dotted: str, *, where: _Where) -> Any:
    """Return the value of a node as the type of its key.

    Raises:
        UserError: it is of another type. Nothing is converted but whole numbers to ``float``, and numbers to text as written.
    """
    if isinstance(node, yaml.SequenceNode) and get_origin(expected) is list:
        return [_value(item, get_args(expected)[0], dotted, where=where) for item in node.value]
    words = _type_words(expected)
    if not isinstance(node, yaml.ScalarNode):
        found = "a list" if isinstance(node, yaml.SequenceNode) else "a mapping of keys to values"
        raise UserError(f"{where(node)}: {dotted}: {found}, where this must be {words}")
    if "${" in node.value:
        raise UserError(f"{where(node)}: {dotted}: ${{...}} interpolation is not supported; write the value out")
    if node.value.strip() == "???":
        raise UserError(f"{where(node)}: {dotted} = ???: this stands for a missing value; write the value out")
    try:
        if node.tag in (INT, FLOAT) and ":" in node.value:  # !!int "1:30", which YAML 1.1 reads as 90
            raise ValueError
        as_written = node.tag in (INT, FLOAT) and str in (expected, *get_args(expected))  # 1e5 may be a commit
        value = node.value if as_written else _constructor.construct_object(node)
        return msgspec.convert(value, expected)
    except (msgspec.ValidationError, yaml.YAMLError, ArithmeticError, AttributeError, LookupError, ValueError):
        # The latter, too: of !!bool maybe, of unknown tags, of numbers of thousands of digits.
        quote = node.style if node.style in ("'", '"') else ""
        shown = node.value if len(node.value) <= LONGEST_VALUE else f"{node.value[:LONGEST_VALUE]}..."
        raise UserError(f"{where(node)}: {dotted} = {quote}{shown}{quote}: must be {words}") from None


def _type_words(expected: Any) -> str:
    """Return the values that a type accepts, in words that follow "must be"."""
    origin, of = get_origin(expected), get_args(expected)
    if origin in (Union, types.UnionType):
        return f"{_type_words(of[0])}, or null"
    if origin is Literal:
        return f"one of {', '.join(of)}"
    return TYPE_WORDS[expected]
