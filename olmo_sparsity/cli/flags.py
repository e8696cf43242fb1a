"""Gives commands the flags that keys of the configuration are declared with."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterable, Iterator
from enum import Enum
from typing import Annotated, Any, Literal, NamedTuple, Optional, get_args, get_origin

import typer

from olmo_sparsity.config import Config
from olmo_sparsity.config.flags import Flag
from olmo_sparsity.config.values import types_of_keys
from olmo_sparsity.errors import printable

Keys = dict[str, dict[str, Any]]  # what flags say: values by section and key


class _FlaggedKey(NamedTuple):
    """A key that has a flag: its section, name, type and explanation."""

    section: str
    name: str
    kind: Any
    explanation: str
    flag: Flag

    @property
    def parameter(self) -> inspect.Parameter:
        """The parameter of a command that is the flag."""
        kind = next((of for of in get_args(self.kind) if type(None) in get_args(self.kind)), self.kind)
        is_choice = get_origin(kind) is Literal and self.flag.parse is None
        choices = get_args(kind) if is_choice else self.flag.choices
        shown: dict[str, Any] = {"metavar": self.flag.metavar}
        if self.flag.also is not None:
            shown = {"metavar": words_of(choices), "parser": one_of(choices, also=self.flag.also)}
        elif choices:
            one: Any = Enum(self.name, {choice: choice for choice in choices}, type=str)  # type: ignore[misc]
            kind = list[one] if get_origin(kind) is list else one
        elif self.flag.parse is not None:
            kind = str
        option = typer.Option(
            f"--{self.flag.name or self.name.replace('_', '-')}",
            help=self.flag.help or self.explanation,
            show_default=False,
            **shown,
        )
        is_switch = kind is bool
        return inspect.Parameter(
            self.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=False if is_switch else None,
            annotation=Annotated[bool if is_switch else Optional[kind], option],
        )

    def values(self, given: Any) -> dict[str, Any]:
        """Return the values of keys of the section that the flag gives; none if it was not given."""
        if given is None or given is False or given == []:
            return {}
        plain = [_plain(one) for one in given] if isinstance(given, list) else _plain(given)
        return {self.name: plain} if self.flag.parse is None else self.flag.parse(plain)


def with_flags(command: str, function: Callable[..., None]) -> Callable[..., None]:
    """Return a command that has, in place of its parameter ``keys``, each flag that a key is declared with for it."""
    own = inspect.signature(function, eval_str=True).parameters
    if "keys" not in own:
        return function
    flagged = list(_flagged_keys(command))

    @functools.wraps(function)
    def run(**arguments: Any) -> None:
        keys: Keys = {}
        for key in flagged:
            keys.setdefault(key.section, {}).update(key.values(arguments.pop(key.name)))
        function(**arguments, keys=keys)

    flags = [key.parameter for key in flagged]
    parameters = [one for parameter in own.values() for one in (flags if parameter.name == "keys" else [parameter])]
    run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    return run


def _flagged_keys(command: str) -> Iterator[_FlaggedKey]:
    """Yield the keys that have a flag in a command."""
    for section, kind in types_of_keys(Config).items():
        types = types_of_keys(kind)
        for field in dataclasses.fields(kind) if dataclasses.is_dataclass(kind) else ():
            flag = field.metadata["flag"]
            if flag is not None and command in flag.commands:
                yield _FlaggedKey(section, field.name, types[field.name], field.metadata["help"], flag)


def words_of(choices: Iterable[str]) -> str:
    """Return what ``--help`` shows for a selector: the choices, and that there may be a file."""
    return f"[{'|'.join(choices)}|FILE.py:NAME]"


def one_of(
    choices: Iterable[str], *, also: Callable[[str], bool], refusal: Optional[str] = None
) -> Callable[[str], str]:
    """Return a parser that takes one of some choices, or what ``also`` says may be given besides.

    Args:
        choices: the choices.
        also: whether something else is FILE.py:NAME.
        refusal: why that is refused, where it is.
    """
    known = tuple(choices)

    def chosen(value: str) -> str:
        if value in known:
            return value
        if not also(value):
            names = ", ".join(repr(choice) for choice in known)
            nor = ", nor FILE.py:NAME" if refusal is None else ""
            raise typer.BadParameter(f"{printable(value)!r} is not one of {names}{nor}.")
        if refusal is not None:
            raise typer.BadParameter(f"{printable(value)!r}: {refusal}.")
        return value

    return chosen


def _plain(given: Any) -> Any:
    return given.value if isinstance(given, Enum) else given
