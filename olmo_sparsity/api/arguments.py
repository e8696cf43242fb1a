"""Arguments from Python: each has the type that its function is annotated with, or is refused by name in one line."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, cast, get_origin, get_type_hints

import msgspec

from olmo_sparsity.errors import UserError, printable

F = TypeVar("F", bound=Callable[..., Any])


def typed(function: F) -> F:
    """A function that takes arguments of its annotated types alone; NumPy, pandas and torch values count as plain ones."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        bound, hints = signature.bind(*args, **kwargs), get_type_hints(function)
        for name, value in bound.arguments.items():
            bound.arguments[name] = converted(value, hints[name], name)
        return function(*bound.args, **bound.kwargs)

    return cast(F, checked)


def converted(value: Any, wanted: Any, name: str) -> Any:
    """A value as a type, without loss: 0.9, "5" and True are no whole numbers."""
    if wanted is Any:
        return value
    if get_origin(wanted) is None and wanted.__module__ != "builtins":  # a class of ours, or of pandas
        if not isinstance(value, wanted):
            raise UserError(f"{name}: expected {wanted.__name__}, got {type(value).__name__}")
        return value
    try:
        plain = _plain(value)
        msgspec.json.encode(plain, enc_hook=repr)  # refuses what is not Unicode
        return msgspec.convert(plain, wanted, strict=True)
    except msgspec.ValidationError as error:
        reason, _, place = (
            str(error).replace("`", "").replace("array", "list").replace("null", "None").partition(" - at ")
        )
        raise UserError(f"{name}{place.removeprefix('$')}: {reason[0].lower()}{reason[1:]}") from None
    except (UnicodeEncodeError, OverflowError) as error:
        raise UserError(f"{name}: {printable(str(error))}") from None


def _plain(value: Any) -> Any:
    value = value.tolist() if hasattr(value, "tolist") else value
    return [_plain(one) for one in value] if isinstance(value, (list, tuple, range)) else value
