"""Tables of results, before they have a form: what the terminal, CSV, Markdown and LaTeX show alike."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Optional, Union

from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.wording.numbers import interval, recovered_words


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: what it holds.
        unit: unit of its numbers; empty where they have none, or where each row has its own.
        is_key: True if it tells rows apart; False if it holds numbers or verdicts.
    """

    name: str
    unit: str = ""
    is_key: bool = False

    @property
    def header(self) -> str:
        """The name and the unit."""
        return f"{self.name}, {self.unit}" if self.unit else self.name


@dataclass(frozen=True)
class Cell:
    """A cell of a table: its text, and the numbers that the text shows, unrounded. Missing numbers are None.

    Attributes:
        text: what people read.
        value: the number.
        low: lower end of its 95% interval.
        high: upper end of its 95% interval.
    """

    text: str
    value: Optional[float] = None
    low: Optional[float] = None
    high: Optional[float] = None


@dataclass(frozen=True)
class ResultTable:
    """A table.

    Attributes:
        name: a short name.
        columns: the columns; those that tell rows apart come first.
        rows: cells, as many a row as there are columns.
        title: what stands above it.
        caption: what stands below it.
    """

    name: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    caption: str = ""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.name
        assert list(self.columns) == [*self.keys, *(c for c in self.columns if not c.is_key)], self.name

    @property
    def keys(self) -> tuple[Column, ...]:
        """The columns that tell rows apart."""
        return tuple(column for column in self.columns if column.is_key)


@dataclass(frozen=True)
class Sentence:
    """Words before, between or after tables."""

    text: str
    is_bold: bool = False


Item = Union[Sentence, ResultTable]  # of what a command prints


def keys(*names: str) -> tuple[Column, ...]:
    """Return columns that tell rows apart."""
    return tuple(Column(name, is_key=True) for name in names)


def in_nats(*names: str) -> tuple[Column, ...]:
    """Return columns of numbers in nats."""
    return tuple(Column(name, "nats") for name in names)


def plain(*names: str) -> tuple[Column, ...]:
    """Return columns of numbers without a unit, or of words."""
    return tuple(Column(name) for name in names)


def words(*texts: str) -> tuple[Cell, ...]:
    """Return cells of words."""
    return tuple(Cell(text) for text in texts)


def number(value: Optional[int]) -> Cell:
    """Return a cell of a whole number; an empty one for None."""
    return Cell("") if value is None else Cell(str(value), value)


def rounded(value: Optional[float], form: str) -> Cell:
    """Return a cell of a number, shown in a format such as ``.2f``; a dash for None."""
    return Cell("-") if value is None else Cell(format(value, form), value)


def estimated(estimate: Optional[Estimate], digits: int) -> Cell:
    """Return a cell of a number with its interval; a dash for None."""
    if estimate is None:
        return Cell("-")
    return Cell(interval(estimate, digits), estimate.mean, estimate.low, estimate.high)


def recovered(summary: Summary, fraction: Optional[Estimate]) -> Cell:
    """Return a cell of an R(k), marked where it is fragile; a dash where the gate did not pass."""
    cell = estimated(fraction, 2)
    return Cell(recovered_words(summary, fraction), cell.value, cell.low, cell.high)
