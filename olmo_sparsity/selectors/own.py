"""Selectors of a user: a function in a file that the command line names as FILE.py:NAME, or one that is passed from Python."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import sys
import traceback
import types
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Optional

import numpy as np

from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.selectors import SELECTORS, is_own
from olmo_sparsity.selectors.registry import Selector

if TYPE_CHECKING:
    from olmo_sparsity.measure.scores import Scores


def names_of(given: Iterable[Any]) -> list[str]:
    """The names of selectors, each once; those of a user (FILE.py:NAME, functions, ``Selector``) are entered into ``SELECTORS``.

    Raises:
        UserError: a file or function is not usable, or two selectors have one name.
    """
    given_as: dict[str, Any] = {}
    for one in given:
        own = None if isinstance(one, str) and not is_own(one) else load(one)
        name = one if own is None else own.name
        is_of_package = own is not None and SELECTORS.get(name, own).source is None
        if given_as.setdefault(name, one) != one or is_of_package:
            what = printable(one) if isinstance(one, str) else "selectors"
            raise UserError(f"{what}: another selector is named {name}; choose another name")
        if own is not None:
            SELECTORS[name] = own
    return list(given_as)


def load(given: Any) -> Selector:
    """A user's selector, with the name and the SHA-256 of its source.

    Raises:
        UserError: there is no such file or function, or the file fails; in one line.
    """
    found, name, file, sha256 = _from_file(given) if isinstance(given, str) else _from_python(given)
    try:
        one = found if isinstance(found, Selector) else Selector(name, found)
        return dataclasses.replace(one, function=_checked(one.function, one.name, file), source=(file, sha256))
    except ValueError as error:
        raise UserError(f"{file}: {printable(str(error))}") from None


def _from_file(text: str) -> tuple[Any, str, str, Optional[str]]:
    path, _, name = text.rpartition(":")
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"{printable(path)}: cannot read this file ({error.strerror}); name one as FILE.py:NAME"
        ) from None
    sha256 = hashlib.sha256(content).hexdigest()
    module = types.ModuleType(f"selector_{sha256[:16]}")
    sys.modules[module.__name__] = module  # dataclasses look up the module of their class
    try:
        exec(compile(content, path, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise UserError(line_of(error, path=path, file=printable(path))) from None
    return vars(module).get(name), name, printable(Path(path).name), sha256


def _from_python(given: Any) -> tuple[Any, str, str, Optional[str]]:
    function = given.function if isinstance(given, Selector) else given
    name = getattr(function, "__name__", repr(given))
    try:
        sha256 = hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
        return given, name, Path(inspect.getsourcefile(function) or "").name, sha256
    except (OSError, TypeError):  # typed in
        return given, name, "<function>", None


def _checked(function: Callable[[Scores], Any], name: str, file: str) -> Callable[[Scores], np.ndarray]:
    """A user's function that raises ``UserError``, in one line, where it fails or returns no scores."""

    @functools.wraps(function)
    def score(s: Scores) -> np.ndarray:
        try:
            scores_WI = np.asarray(function(s), dtype=np.float64)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            code = getattr(function, "__code__", None)
            where = line_of(error, path=code.co_filename if code else "", file=file)
            raise UserError(f"{where}, in the selector {name}") from None
        shape = (s.num_windows, s.num_candidates)
        if scores_WI.shape != shape:
            raise UserError(f"{file}: the selector {name} returned scores of shape {scores_WI.shape}, not {shape}")
        if np.isnan(scores_WI).all(axis=1).any() or (np.abs(scores_WI) > np.finfo(np.float32).max).any():
            raise UserError(f"{file}: the selector {name} returned NaN for a whole window, or an infinite score")
        return scores_WI

    return score


def line_of(error: BaseException, *, path: str, file: str) -> str:
    """One line about an error in a user's file, ``FILE:LINE: TypeError: reason``; the line is the last of the file that ran."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == path]
    reason = str(error)
    if isinstance(error, SyntaxError) and error.filename == path:
        lines, reason = [error.lineno], error.msg
    where = f"{file}:{lines[-1]}" if lines else file
    return f"{where}: {': '.join(filter(None, (type(error).__name__, printable(' '.join(reason.split()))[:200])))}"
