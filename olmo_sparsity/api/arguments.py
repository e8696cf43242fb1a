"""The one entrance of arguments from Python: each is of the type that its function is annotated with, or is refused by name.

Nothing is truncated and nothing is guessed: 0.9, "5" and True are no whole numbers. Numbers, arrays and columns of NumPy, pandas
and torch are taken for the plain values that they hold.
"""

from __future__ import annotations

import functools
import inspect
import re
import types
from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any, ParamSpec, TypeVar, Union, get_args, get_origin, get_type_hints

import msgspec
import numpy as np
import pandas as pd

from olmo_sparsity.errors import UserError, printable

P = ParamSpec("P")
R = TypeVar("R")
PLAIN = (int, float, str, bool, type(None))
WORDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "text",
    "bool": "True or False",
    "array": "a list",
    "null": "None",
}
LONGEST_VALUE = 60  # characters of a value in a message


def typed(function: Callable[P, R]) -> Callable[P, R]:
    """Return a function that checks its arguments against its annotations, and gets them as plain values.

    It raises ``UserError`` for an argument of another type, with its name, its value and what is wanted.
    """
    signature = inspect.signature(function)

    @functools.cache
    def hints() -> dict[str, Any]:
        return get_type_hints(function)

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> R:
        bound = signature.bind(*args, **kwargs)
        for name, value in bound.arguments.items():
            if name in hints():
                bound.arguments[name] = argument(value, hints()[name], name=name)
        return function(*bound.args, **bound.kwargs)

    checked.__signature__ = signature  # type: ignore[attr-defined]
    # What is returned is not checked, and its type may take long to import. ``checked`` keeps the annotation.
    function.__annotations__ = {name: of for name, of in function.__annotations__.items() if name != "return"}
    return checked


def _is_class(choice: Any) -> bool:
    """Return True of a class; ``Sequence[str]`` is none, though Python 3.10 takes it for one."""
    return inspect.isclass(choice) and get_origin(choice) is None


def argument(value: Any, wanted: Any, *, name: str) -> Any:
    """Return the value of an argument, or of a column, as the type that is wanted.

    Raises:
        UserError: it is of another type.
    """
    choices = list(get_args(wanted)) if get_origin(wanted) in (Union, types.UnionType) else [wanted]
    classes = tuple(choice for choice in choices if _is_class(choice) and choice not in PLAIN)
    if Any in choices or isinstance(value, classes):
        return value
    plain, plainly = _plain(value), [choice for choice in choices if choice not in classes]
    try:
        if not plainly:
            raise msgspec.ValidationError(f"Expected `{classes[0].__name__}`")
        converted = msgspec.convert(plain, Union[tuple(plainly)], strict=True)
        _check_characters(plain, name=name)
        return converted
    except msgspec.ValidationError as error:
        raise UserError(_message(str(error), plain, classes=classes, name=name)) from None


def _check_characters(value: Any, *, name: str) -> None:
    """Check every text of a value as ``check_characters`` does."""
    if isinstance(value, str):
        if re.search("[\ud800-\udfff]", value):
            raise UserError(f"{name} = {_shown(value)}: holds half a surrogate pair, which is not a character")
    elif isinstance(value, Mapping):
        for key, one in value.items():
            _check_characters(key, name=name)
            _check_characters(one, name=f"{name}[{key!r}]")
    elif isinstance(value, (list, tuple, Set)):
        for index, one in enumerate(value):
            if not isinstance(one, (int, float)):
                _check_characters(one, name=f"{name}[{index}]")


def _shown(value: Any) -> str:
    shown = printable(repr(value))
    return f"{shown[:LONGEST_VALUE]}..." if len(shown) > LONGEST_VALUE else shown


def column(table: pd.DataFrame, wanted: Any, *, name: str, of: str) -> Any:
    """Return the values of a column of the argument ``of`` as the type that is wanted.

    Raises:
        UserError: there is no such column, or a value is of another type.
    """
    if name not in table:
        raise UserError(f"{of}: has no column {name}; its columns are {', '.join(map(str, table.columns))}")
    return argument(table[name], wanted, name=f"{of}.{name}")


def _plain(value: Any) -> Any:
    """Return numbers, arrays and columns of NumPy and pandas, and lists of them, as Python's own."""
    if isinstance(value, (np.generic, np.ndarray)) and value.dtype != object:
        return value.tolist()
    if hasattr(value, "tolist"):  # also of pandas and torch
        value = value.tolist()
    if isinstance(value, Iterable) and not isinstance(value, (str, bytes, Mapping, Set, pd.DataFrame)):
        return [_plain(one) for one in value]
    return value


def _message(message: str, value: Any, *, classes: tuple[type, ...], name: str) -> str:
    """Return msgspec's message as ours: "Expected `int`, got `str` - at `$[0]`" -> "at[0] = 'x': must be a whole number"."""
    reason, _, path = message.partition(" - at ")
    expected = re.match("Expected `(.*?)`", reason)
    found = path.strip("`").removeprefix("$")
    for index in re.findall(r"\[(\d+)\]", found):
        value = value[int(index)]
    words = [re.sub(r"\w+", lambda word: WORDS.get(word[0], word[0]), expected[1])] if expected else ["valid"]
    words = words[0].split(" | ") + [of.__name__ for of in classes if of.__name__ != words[0] and not found]
    example = f"; a single text is written [{name}]" if isinstance(value, str) and words[0] == "a list" else ""
    return f"{name}{found} = {_shown(value)}: must be {' or '.join(words)}{example}"
