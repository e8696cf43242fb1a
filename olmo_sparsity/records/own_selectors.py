"""Selectors of one's own: read from a file that the user names, and shown from what a manifest records of them.

Code runs only from a file that was named on the command line, or from a function that was passed from Python. A manifest gives
data: name, meaning and look.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import inspect
import re
import sys
import traceback
import types
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Optional

from olmo_sparsity.errors import UserError, printable
from olmo_sparsity.records.selector import (
    Look,
    OwnSource,
    ScoredWindows,
    ScoreOfWindow,
    ScoringSize,
    Selector,
)
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.records.window_input import NEEDS, UndeclaredNeedError, WindowInput, needs_pass

NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
RESERVED = "all"  # stands for several selectors
COLOR = re.compile(r"#[0-9a-fA-F]{6}")
LONGEST_MEANING = 200
BUILT_IN_ALONE = "explore takes built-in selectors only; influence takes those of your own"
# Of own selectors that name none: markers, which the package does not use, and colours in figures, on light pages, on dark ones.
MARKERS = ("$a$", "$b$", "$c$", "$d$", "$e$", "$f$", "$n$", "$u$")
COLORS = (
    ("#AA3377", "#aa3377", "#e58fc0"),
    ("#228833", "#1f7a2e", "#6fd183"),
    ("#4477AA", "#3a6898", "#8db6e0"),
    ("#BB5500", "#a34a00", "#f0a060"),
    ("#661100", "#661100", "#e08a75"),
    ("#117799", "#0f6b8a", "#66c5e3"),
    ("#6644BB", "#5c3dab", "#b6a0f0"),
    ("#777700", "#666600", "#cfcf60"),
)
MARKER = re.compile(r"[.,ov^<>12348spP*hH+xXdD|_]|\$[A-Za-z0-9]\$")  # those of Matplotlib, and one letter


@dataclass(frozen=True)
class OwnSelector:
    """A selector of one's own: a function of one window, and what it needs.

    Attributes:
        score: gets a ``WindowInput``; returns a score for each of the M long-range tokens, NaN (or masked) for those that it does
            not score. The highest are chosen, of equal ones the nearer.
        needs: what it reads of the window (``NEEDS`` of ``olmo_sparsity.records.window_input``).
        sees_target: it reads ``target``, too; part of its gain then is optimism, and it chooses anew for every resampled target.
        name: in tables and outputs; None: that of the function.
        meaning: what the score says, in words; None: the first line of the function's docstring.
        color: in figures, as #rrggbb; None: one of eight, that of its name unless other selectors of one's own have it.
        marker: in figures, as Matplotlib names it; None: a letter, likewise.
    """

    score: ScoreOfWindow
    needs: Sequence[str] = ("token_ids", "texts", "positions")
    sees_target: bool = False
    name: Optional[str] = None
    meaning: Optional[str] = None
    color: Optional[str] = None
    marker: Optional[str] = None


def is_own(text: str) -> bool:
    """Return whether what was named as a selector is one of one's own, as FILE.py:NAME."""
    return re.fullmatch(r".+\.py:[^:]*", text, re.DOTALL) is not None


def declared_selectors(names: Sequence[str]) -> list[str]:
    """Return the names of selectors, each once; of those given as FILE.py:NAME the file is run, and the selector declared.

    Raises:
        UserError: there is no such file or selector, it is unusable, or two have one name.
    """
    declared: dict[str, str] = {}  # its name -> as what it was given
    for text in names:
        name = text
        if is_own(text):
            selector = read_selector(text)
            name = selector.name
            if declared.get(name, text) != text:
                raise UserError(
                    f"{printable(text)}: a selector is named {name} already, {printable(declared[name])}; rename one"
                )
            declare(selector)
        elif declared.get(name, text) != text:
            raise UserError(f"{printable(declared[name])}: a selector is named {name} already; rename one")
        declared[name] = text
    return list(declared)


def names_of(selectors: Iterable[Any]) -> list[str]:
    """Return the names of selectors that are given from Python; functions and ``OwnSelector`` objects are declared.

    Raises:
        UserError: one is something else, or unusable, or known from tables alone, or two have one name.
    """
    names: list[str] = []
    for number, given in enumerate(selectors):
        if isinstance(given, str):
            name = given
            if name in SELECTORS and SELECTORS[name].score is _not_loaded:
                raise UserError(f"selectors[{number}] = {name}: only tables name it; give the function itself")
        elif isinstance(given, OwnSelector) or callable(given):
            own = given if isinstance(given, OwnSelector) else OwnSelector(given)
            selector = as_selector(own, name=None, source=_source_of(own.score))
            name = selector.name
            if name in names:
                raise UserError(f"selectors[{number}]: another selector is named {name}, too; rename one")
            declare(selector)
        else:
            shown = printable(repr(given))[:60]
            raise UserError(f"selectors[{number}] = {shown}: must be text, a function of one window, or a Selector")
        names.append(name)
    return names


def _source_of(function: object) -> OwnSource:
    """Return where a function comes from; of one that was typed in, as far as that is known."""
    called = _called(function)
    file = inspect.getsourcefile(called) if inspect.isfunction(called) else None
    try:
        sha256 = hashlib.sha256(inspect.getsource(called).encode()).hexdigest()  # type: ignore[arg-type]
    except (OSError, TypeError):  # typed in, or no function
        sha256 = None
    return OwnSource(printable(Path(file or "<function>").name), sha256)


def _called(function: object) -> object:
    """Return what a partial function calls, and anything else as it is."""
    while isinstance(function, functools.partial):
        function = function.func
    return function


def declare(selector: Selector) -> None:
    """Add a selector of one's own to those that are known; it takes the place of an earlier one of its name.

    Raises:
        UserError: the package has a selector of this name.
    """
    known = SELECTORS.get(selector.name)
    if known is not None and known.own is None:
        where = selector.own.file if selector.own is not None else selector.name
        raise UserError(f"{where}: {selector.name} is the name of a selector of olmo-sparsity; choose another name")
    SELECTORS[selector.name] = selector


def read_selector(text: str) -> Selector:
    """Run a file of the user's, and return the selector that it holds.

    Args:
        text: FILE.py:NAME; NAME is a function of one window, or an ``OwnSelector``.

    Raises:
        UserError: there is no such file or name, or it is no selector; the line names the file and, where there is one, the line.
    """
    path, _, name = text.rpartition(":")
    shown = printable(path)
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise UserError(
            f"{shown}: cannot read this file ({error.strerror}); --selector FILE.py:NAME names one"
        ) from None
    sha256 = hashlib.sha256(source).hexdigest()
    module = types.ModuleType(f"olmo_sparsity_own_{sha256[:16]}")
    module.__file__ = str(Path(path).resolve())
    sys.modules[module.__name__] = module  # dataclasses look up the module that they are defined in
    try:
        exec(compile(source, module.__file__, "exec"), module.__dict__)
    except (Exception, SystemExit) as error:
        raise UserError(f"{_where(error, module.__file__, shown)}: {_reason(error, module.__file__)}") from None
    found = module.__dict__.get(name)
    if found is None:
        names = [key for key, value in vars(module).items() if _is_selector(value, module.__name__)]
        there = f"there are {', '.join(names)}" if names else "it holds no function"
        raise UserError(f"{shown}: nothing is named {printable(name) or 'so'} there; {there}")
    own = found if isinstance(found, OwnSelector) else OwnSelector(found)
    return as_selector(own, name=name, source=OwnSource(printable(Path(path).name), sha256), file=module.__file__)


def _is_selector(value: object, module: str) -> bool:
    is_own_function = inspect.isfunction(value) and value.__module__ == module and not value.__name__.startswith("_")
    return is_own_function or isinstance(value, OwnSelector)


def as_selector(own: OwnSelector, *, name: Optional[str], source: OwnSource, file: Optional[str] = None) -> Selector:
    """Return a selector of one's own as those of the package are described.

    Args:
        own: the selector.
        name: where it names none itself; None: that of its function.
        source: where it comes from.
        file: the path of the source, whose lines errors name; None: that of the function.

    Raises:
        UserError: something about it is unusable.
    """
    function = _called(own.score)
    code = getattr(function, "__code__", None)
    file = file or (code.co_filename if code is not None else source.file)
    where = source.file if code is None or code.co_filename != file else f"{source.file}:{code.co_firstlineno}"
    name = str(own.name or name or getattr(own.score, "__name__", ""))
    _check(where, name, own)
    needs = tuple(own.needs)
    number = _number(name)
    color, on_light, on_dark = COLORS[number] if own.color is None else (own.color,) * 3
    marker = own.marker or MARKERS[number]
    meaning = own.meaning or (inspect.getdoc(function) or "").partition("\n")[0] or f"score of {name}"
    runs_model = needs_pass(needs)
    return Selector(
        name=name,
        score=_guarded(own, name=name, where=where, file=file, shown=source.file),
        sees_target=own.sees_target,
        meaning=_plain(meaning),
        definition=_plain(meaning),
        look=Look(color, marker, on_light=on_light, on_dark=on_dark),
        num_evaluations=lambda size: int(runs_model),
        cost=str(int(runs_model)),
        needs=frozenset(needs),
        by_name_only=True,
        own=source,
    )


def _check(where: str, name: str, own: OwnSelector) -> None:
    """Check that a selector of one's own can be used.

    Raises:
        UserError: it cannot.
    """

    def require(holds: object, what: str) -> None:
        if not holds:
            raise UserError(f"{where}: {what}")

    require(callable(own.score), f"{printable(name)} is no function, but {type(own.score).__name__}")
    require(
        NAME.fullmatch(name),
        f"{printable(name)!r}: the name of a selector has at most 40 letters, digits, - and _, and begins with a letter; name it "
        "with Selector(..., name='mine')",
    )
    require(name != RESERVED, f"{name} has another meaning in options or tables; choose another name")
    needs_words = f"{name}: needs = {printable(repr(own.needs))}: must be a list of names, as ['keys']"
    require(isinstance(own.needs, Collection) and not isinstance(own.needs, str), needs_words)
    require(
        isinstance(own.sees_target, bool),
        f"{name}: sees_target = {printable(repr(own.sees_target))}: must be True or False",
    )
    for field in ("meaning", "color", "marker"):
        value = getattr(own, field)
        require(value is None or isinstance(value, str), f"{name}: {field} = {printable(repr(value))}: must be text")
    unknown = [str(need) for need in own.needs if need not in NEEDS]
    hint = "; say sees_target=True" if unknown == ["target"] else ""
    require(not unknown, f"{name} needs {printable(', '.join(unknown))}, and there is {', '.join(NEEDS)}{hint}")
    require(own.color is None or COLOR.fullmatch(own.color), f"color = {printable(str(own.color))}: must be #rrggbb")
    require(own.marker is None or MARKER.fullmatch(own.marker), f"marker = {printable(str(own.marker))}: no marker")
    try:
        inspect.signature(own.score).bind(None)
    except TypeError:
        raise UserError(
            f"{where}: {name} must take one argument, the window; it takes {inspect.signature(own.score)}"
        ) from None
    except ValueError:
        pass  # a function that does not tell what it takes


def _guarded(own: OwnSelector, *, name: str, where: str, file: str, shown: str) -> Callable[[ScoredWindows], Any]:
    """Return the score of windows; whatever goes wrong in the user's function is one line that names its file and line."""
    needs = tuple(own.needs)

    def score(cache: ScoredWindows) -> Any:
        import numpy as np

        rows = []
        for window in cache.inputs(needs, with_label=own.sees_target):
            try:
                found = own.score(window)
            except (Exception, SystemExit) as error:
                raise UserError(f"{_where(error, file, shown)}: selector {name}: {_reason(error, file)}") from None
            rows.append(_scores_of(found, window, where=where, name=name))
        scores_WI = cache.groups.sums(np.stack(rows))
        _check_size(scores_WI, where=where, name=name)
        return scores_WI

    return score


def _scores_of(found: Any, window: WindowInput, *, where: str, name: str) -> Any:
    """Return what a selector returned as float64 [M].

    Raises:
        UserError: it is something else.
    """
    import numpy as np

    try:
        if np.iscomplexobj(found):
            raise TypeError("complex numbers have no order")
        if np.ma.isMaskedArray(found):
            found = found.astype(np.float64).filled(np.nan)
        scores_M = np.asarray(found, dtype=np.float64)
    except Exception as error:  # those of other libraries, as of a tensor that requires a gradient
        raise UserError(
            f"{where}: selector {name} returned {type(found).__name__}, not numbers: {_reason(error)}"
        ) from None
    expected = (window.num_long_range,)
    if scores_M.shape != expected:
        raise UserError(
            f"{where}: selector {name} returned scores of shape {scores_M.shape}; one for each long-range token is asked for, "
            f"{expected}"
        )
    if np.isnan(scores_M).all():
        raise UserError(f"{where}: selector {name} returned NaN for every long-range token of a window")
    _check_size(scores_M, where=where, name=name)
    return scores_M


def _check_size(scores: Any, *, where: str, name: str) -> None:
    """Check that the column of scores, which is float32, can hold those of tokens or groups.

    Raises:
        UserError: it cannot.
    """
    import numpy as np

    largest = float(np.finfo(np.float32).max)
    if (np.abs(scores) > largest).any():
        raise UserError(
            f"{where}: selector {name} returned an infinite score (a score, and the sum of a group, is at most {largest:.2g}, "
            "the largest float32); NaN says that a token has none"
        )


def _where(error: BaseException, file: str, shown: str) -> str:
    """Return the file and the line of the user's code that an error comes from."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return f"{shown}:{error.lineno or 1}"
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == file]
    return f"{shown}:{lines[-1]}" if lines else shown


def _reason(error: BaseException, file: Optional[str] = None) -> str:
    """Return an error as words on one line; those of a syntax error name its place, unless that is in ``file``."""
    said = error.msg if isinstance(error, SyntaxError) and error.filename == file else error
    text = printable(str(said).partition("\n")[0])
    return text if isinstance(error, UndeclaredNeedError) else f"{type(error).__name__}: {text}".rstrip(": ")


def _plain(text: str) -> str:
    """Return a text that ``str.format`` leaves as it is."""
    return printable(text)[:LONGEST_MEANING].replace("{", "{{").replace("}", "}}")


def _number(name: str) -> int:
    """Return which colour and marker a selector has that names none.

    It depends on the name, so that a selector looks the same in every measurement, unless others of one's own have either. The
    look that fewest of them have is taken.
    """
    first = int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")
    looks = [other.look for other in SELECTORS.values() if other.own is not None and other.name != name]
    numbers = [(first + more) % len(MARKERS) for more in range(len(MARKERS))]
    return min(numbers, key=lambda one: sum(COLORS[one][0] == of.color or MARKERS[one] == of.marker for of in looks))


def own_entries(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return what a manifest records of the selectors of one's own among some names, by name."""
    return {
        name: {
            "file": own.file,
            "sha256": own.sha256,
            "needs": sorted(SELECTORS[name].needs),
            "sees_target": SELECTORS[name].sees_target,
            "meaning": SELECTORS[name].meaning.replace("{{", "{").replace("}}", "}"),
            "look": dataclasses.asdict(SELECTORS[name].look),
        }
        for name in names
        if (own := SELECTORS[name].own) is not None
    }


def sources_of(names: Iterable[str]) -> list[tuple[str, Optional[str]]]:
    """Return (name, hash of the source) of the selectors of one's own among some names."""
    return [(name, own.sha256) for name in names if (own := SELECTORS[name].own) is not None]


def declare_recorded(entries: object, *, where: str) -> None:
    """Declare the selectors that a manifest records (``own_entries``), as data; one whose code is loaded stays.

    Raises:
        UserError: the entries are not what ``own_entries`` writes.
    """
    if not isinstance(entries, Mapping):
        raise UserError(f"{where}: own_selectors is not as olmo-sparsity writes it; measure again")
    for name, entry in entries.items():
        try:
            selector = _recorded(name, entry)
        except (KeyError, TypeError, AttributeError):
            selector = None
        if selector is None:
            raise UserError(
                f"{where}: own_selectors.{printable(str(name))} is not as olmo-sparsity writes it; measure again"
            )
        known = SELECTORS.get(name)
        if known is None or (known.own is not None and known.score is _not_loaded):
            SELECTORS[name] = selector


def _recorded(name: str, entry: Mapping[str, Any]) -> Optional[Selector]:
    """Return a selector that a manifest records; None: something about it is unusable."""
    look, sees_target, needs = Look(**entry["look"]), entry["sees_target"], frozenset(entry["needs"])
    colors_fit = all(COLOR.fullmatch(color) for color in (look.color, look.on_light, look.on_dark))
    look_fits = colors_fit and MARKER.fullmatch(look.marker)
    if not (NAME.fullmatch(name) and look_fits and isinstance(sees_target, bool) and needs.issubset(NEEDS)):
        return None
    meaning = _plain(entry["meaning"])
    return Selector(
        name=name,
        score=_not_loaded,
        sees_target=sees_target,
        meaning=meaning,
        definition=meaning,
        look=look,
        num_evaluations=_unknown_cost,
        cost="",
        needs=needs,
        by_name_only=True,
        own=OwnSource(printable(str(entry["file"])), None if entry["sha256"] is None else str(entry["sha256"])),
    )


def _not_loaded(cache: ScoredWindows) -> Any:
    raise AssertionError("a selector that is only recorded is never run")


def _unknown_cost(size: ScoringSize) -> int:
    raise AssertionError("the cost of a recorded selector stands in its tables")
