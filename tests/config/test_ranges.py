"""The ranges of numbers: one check for all keys, which the explanations of the keys name."""

from __future__ import annotations

import dataclasses
import math
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from olmo_sparsity.config import Config
from olmo_sparsity.config.keys import Range, check_values, key
from olmo_sparsity.errors import UserError


@dataclasses.dataclass(frozen=True)
class Section:
    count: int = key(1, "A count.", least=1, most=5)
    share: float = key(0.5, "A share.", above=0, below=1)
    anything: float = key(0.0, "Any number.")
    several: list[int] = key([2], "Several numbers.", least=2)
    perhaps: int | None = key(None, "A number or none.", least=0)
    is_so: bool = key(True, "A switch.")
    name: str = key("a", "A name.")


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ({"count": 0}, "it.count = 0: must be at least 1 and at most 5"),
        ({"count": 6}, "it.count = 6: must be at least 1 and at most 5"),
        ({"count": -(10**5000)}, "it.count = a number of more than 30 digits: must be at least 1 and at most 5"),
        ({"count": 10**29}, f"it.count = 1{'0' * 29}: must be at least 1 and at most 5"),
        ({"count": 10**30}, "it.count = a number of more than 30 digits: must be at least 1 and at most 5"),
        ({"share": 0.0}, "it.share = 0.0: must be above 0 and below 1"),
        ({"share": 1.0}, "it.share = 1.0: must be above 0 and below 1"),
        ({"share": math.nan}, "it.share = nan: must be above 0 and below 1"),
        ({"anything": math.inf}, "it.anything = inf: must be a finite number"),
        ({"several": [2, 1]}, "it.several = 1: must be at least 2"),
        ({"perhaps": -1}, "it.perhaps = -1: must be at least 0, or null"),
        ({"name": "a\0b"}, "it.name = 'a\\x00b': holds a NUL, which no name has"),
        ({"name": "\ud800"}, "it.name = '\\ud800': holds half a surrogate pair, which is not a character"),
    ],
)
def test_a_value_out_of_range_is_named(values: dict[str, Any], line: str) -> None:
    with pytest.raises(UserError) as caught:
        check_values(Section(**values), "it")
    assert str(caught.value) == line


def test_the_ends_of_a_range() -> None:
    for values in ({"count": 1}, {"count": 5}, {"several": [2, 3]}, {"perhaps": 0}, {"anything": -1e300}):
        check_values(Section(**values), "it")


bounds = st.none() | st.integers(-5, 5)


@given(bounds, bounds, bounds, bounds, st.integers(-7, 7) | st.floats(-7, 7))
def test_a_range_is_its_bounds(
    least: int | None, above: int | None, most: int | None, below: int | None, value: float
) -> None:
    lowest, highest = -math.inf if least is None else least, math.inf if most is None else most
    expected = lowest <= value <= highest and not (above is not None and value <= above)
    expected = expected and not (below is not None and value >= below)
    assert Range(least, above, most, below).holds(value) is expected


def numbers(section: Any, prefix: str = "") -> list[tuple[str, dataclasses.Field[Any], Any]]:
    found = []
    for item in dataclasses.fields(section):
        value = getattr(section, item.name)
        if dataclasses.is_dataclass(value):
            found += numbers(value, f"{item.name}.")
        elif not isinstance(value, bool) and re.search(r"\b(int|float)\b", str(item.type)):
            found.append((prefix + item.name, item, value))
    return found


@pytest.mark.parametrize(
    ("dotted", "item"), [found[:2] for found in numbers(Config())], ids=lambda value: str(value)[:40]
)
def test_every_number_of_the_configuration_has_a_range_that_its_explanation_names(
    dotted: str, item: dataclasses.Field[Any]
) -> None:
    accepted = item.metadata["range"]
    assert accepted.words, dotted
    assert item.metadata["help"].lower().endswith(f"{accepted.words}.")
    assert accepted.least is not None or accepted.above is not None
    section, _, name = dotted.rpartition(".")
    too_large = -(10**6) if accepted.most is None and accepted.below is None else 10**20
    value: Any = [too_large] if "list" in str(item.type) else too_large
    with pytest.raises(UserError, match=f"{dotted} = "):
        dataclasses.replace(getattr(Config(), section), **{name: value})
