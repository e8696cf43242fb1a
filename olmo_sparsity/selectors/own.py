"""Selectors of one's own: a function in a file that the command line names, or one that is passed from Python.

Code runs only from these two places; a manifest gives a name, a meaning and a hash.
"""

from __future__ import annotations

import dataclasses
import hashlib
import inspect
import re
import sys
import traceback
import types
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Optional

import numpy as np

from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.selectors import SELECTORS, is_own
from olmo_sparsity.selectors.registry import Selector

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
RESERVED = "all"  # stands for several selectors
BUILT_IN_ALONE = "explore takes built-in selectors only; influence takes those of your own"


def declared_selectors(names: Sequence[str]) -> list[str]:
    """Return the names of selectors, each once; of those given as FILE.py:NAME the file is run, and the selector declared.

    Raises:
        UserError: there is no such file or selector, it is unusable, or two have one name.
    """
    declared: dict[str, str] = {}  # its name -> as what it was given
    for text in names:
        one = read_selector(text) if is_own(text) else None
        name = text if one is None else one.name
        if declared.setdefault(name, text) != text:
            raise UserError(
                f"{printable(text)}: a selector is named {name} already, {printable(declared[name])}; rename one"
            )
        if one is not None:
            declare(one)
    return list(declared)


def names_given(selectors: Iterable[Any]) -> list[str]:
    """Return the names of selectors that are given from Python, functions and ``Selector`` objects among them.

    Raises:
        UserError: one is something else or unusable, or two have one name.
    """
    names: list[str] = []
    for number, given in enumerate(selectors):
        if isinstance(given, str):
            names.append(given)
            continue
        if not (isinstance(given, Selector) or callable(given)):
            raise UserError(
                f"selectors[{number}] = {printable(repr(given))[:60]}: must be a name, a function or a selector"
            )
        one = _as_own(given, getattr(given, "__name__", ""), *_source_of(given))
        if one.name in names:
            raise UserError(f"selectors[{number}]: another selector is named {one.name}, too; rename one")
        declare(one)
        names.append(one.name)
    return names


def _source_of(given: Any) -> tuple[str, Optional[str]]:
    """The file of a function, and the hash of its source; None where it was typed in."""
    function = given.function if isinstance(given, Selector) else given
    try:
        sha256 = hashlib.sha256(inspect.getsource(function).encode()).hexdigest()
        return Path(inspect.getsourcefile(function) or "").name, sha256
    except (OSError, TypeError):
        return "<function>", None


def declare(one: Selector) -> None:
    """Add a selector of one's own to those that are known, in place of an earlier one of its name.

    Raises:
        UserError: the package has a selector of this name.
    """
    known = SELECTORS.get(one.name)
    if known is not None and known.source is None:
        raise UserError(
            f"{one.source and one.source[0]}: {one.name} is the name of a selector of olmo-sparsity; choose another"
        )
    SELECTORS[one.name] = one


def read_selector(text: str) -> Selector:
    """Run a file of the user's, FILE.py:NAME, and return the selector or function that it holds under a name.

    Raises:
        UserError: there is no such file or name, or it fails; the line names the file and, where there is one, the line.
    """
    path, _, name = text.rpartition(":")
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"{printable(path)}: cannot read this file ({error.strerror}); --selector FILE.py:NAME names one"
        ) from None
    sha256 = hashlib.sha256(source).hexdigest()
    module = types.ModuleType(f"olmo_sparsity_own_{sha256[:16]}")
    module.__file__ = str(Path(path).resolve())
    sys.modules[module.__name__] = module  # dataclasses look up the module that they are defined in
    try:
        exec(compile(source, module.__file__, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise UserError(_line_of(error, module.__file__, printable(path))) from None
    found = vars(module).get(name)
    if not (isinstance(found, Selector) or callable(found)):
        raise UserError(f"{printable(path)}: no function or selector is named {printable(name) or 'so'} there")
    return _as_own(found, name, printable(Path(path).name), sha256)


def _as_own(found: Any, name: str, file: str, sha256: Optional[str]) -> Selector:
    """Return a function, or a selector, as one of one's own, which says of its mistakes in one line where they are."""
    one = found if isinstance(found, Selector) else Selector(name.replace("<lambda>", ""), found)
    if NAME.fullmatch(one.name) is None or one.name == RESERVED:
        raise UserError(
            f"{file}: {printable(one.name)!r}: the name of a selector has at most 40 letters, digits, - and _, and begins with a "
            f"letter; {RESERVED} has another meaning"
        )
    function = one.function

    def guarded(scores: Any) -> np.ndarray:
        code = getattr(function, "__code__", None)
        try:
            values = np.asarray(function(scores), dtype=np.float64)
        except UserError:
            raise
        except (Exception, SystemExit) as error:
            where = _line_of(error, code.co_filename if code else file, file)
            raise UserError(f"{where}, in the selector {one.name}") from None
        expected = (scores.num_windows, scores.num_candidates)
        if values.shape != expected:
            raise UserError(f"{file}: the selector {one.name} returned scores of shape {values.shape}, not {expected}")
        if np.isnan(values).all(axis=1).any() or (np.abs(values) > np.finfo(np.float32).max).any():
            raise UserError(f"{file}: the selector {one.name} returned NaN for a whole window, or an infinite score")
        return values

    guarded.__doc__ = function.__doc__
    return dataclasses.replace(one, function=guarded, source=(file, sha256))


def _line_of(error: BaseException, file: str, shown: str) -> str:
    """One line about an error in a user's file: the last line of it that ran, and the reason."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    said = error.msg if isinstance(error, SyntaxError) else str(error)  # else the line comes twice
    reason = printable(" ".join(said.split()))[:200]
    return f"{shown}{'' if line is None else f':{line}'}: {type(error).__name__}{f': {reason}' if reason else ''}"


def own_entries(names: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return what a manifest records of the selectors of one's own among these names."""
    found = {name: SELECTORS[name] for name in names if SELECTORS[name].source is not None}
    return {
        name: {"file": one.source[0], "sha256": one.source[1], "meaning": one.meaning, "sees_target": one.sees_target}
        for name, one in found.items()
        if one.source is not None
    }


def sources_of(names: Sequence[str]) -> list[tuple[str, Optional[str]]]:
    """Return the selectors of one's own among these names, with the hashes of their sources."""
    return [(name, SELECTORS[name].source[1]) for name in names if SELECTORS[name].source is not None]  # type: ignore[index]


def check_recorded(entries: Mapping[str, Any], *, where: str) -> None:
    """Check what a manifest says of selectors of one's own.

    Raises:
        UserError: it is something else than was written.
    """
    for name, entry in entries.items():
        if (
            NAME.fullmatch(str(name)) is None
            or not isinstance(entry, dict)
            or not isinstance(entry.get("meaning"), str)
        ):
            raise UserError(f"{where}: own_selectors: not as it was written; restore the file")
