"""Measurements side by side (models, selectors, seeds, with and without PoSE): differences with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.selectors import main_among
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.several.differences import Differences, difference
from olmo_sparsity.statistics.several.subjects import CHOSEN, Pairing, Subject, pairing_of
from olmo_sparsity.statistics.single.measurement import SelectionKey
from olmo_sparsity.statistics.single.shown_ks import shown_ks
from olmo_sparsity.statistics.single.summary import (
    FRACTIONS,
    SELECTION_QUANTITIES,
    WINDOW_QUANTITIES,
    SelectionSummary,
    Summary,
    summarize,
)
from olmo_sparsity.statistics.single.sums import Key, SelectionNumber

# The headline of a selector that sees the target, and of one that does not.
HEADLINE = {True: ("corrected_gain_nats",), False: ("recovered_fraction", "gain_over_random_nats", "sufficient_share")}
WITH_OPTIMISM = ("recovered_fraction", "gain_sparse_nats")  # what includes optimism, if the selector sees the target


@dataclass(frozen=True)
class ComparedSubject:
    """One of the measurements that are compared, with its numbers; fields as in ``Subject``."""

    label: str
    tables: Path
    selector: Optional[str]
    summary: Summary


@dataclass(frozen=True)
class ComparisonRow:
    """One quantity of all subjects.

    Attributes:
        words: the quantity and its unit, for readers.
        quantity: its name.
        selector: the selector; None for a quantity of all windows.
        k: number of unmasked tokens; None for a quantity of all windows.
        values: one for each subject; None where there is none, such as R(k) where the gate did not pass, the gain beyond the
            training row where none is known, and the gain over random of a selector that sees the target, mostly optimism.
        differences: of each later subject, its value minus the first subject's; None where either is, and in nats where the
            tokenizers differ.
        is_main: True if the row belongs to the headline.
        includes_optimism: True if a selector of the row sees the target, and the quantity therefore includes optimism.
    """

    words: str
    quantity: str
    selector: Optional[str]
    k: Optional[int]
    values: tuple[Optional[Estimate], ...]
    differences: tuple[Optional[Estimate], ...]
    is_main: bool
    includes_optimism: bool = False

    @property
    def is_fraction(self) -> bool:
        """True if the quantity is a fraction of the long gain, R(k)."""
        return self.quantity in FRACTIONS

    @property
    def is_gain(self) -> bool:
        """True if the quantity is a gain: no loss, which is some ten times as large, and no share of targets."""
        return self.quantity.endswith("_nats") and not self.quantity.startswith("loss")


@dataclass(frozen=True)
class Comparison:
    """Measurements side by side.

    Attributes:
        subjects: the measurements.
        pairings: of each later subject, how its windows relate to the first subject's.
        rows: the quantities; those of all windows first.
    """

    subjects: tuple[ComparedSubject, ...]
    pairings: tuple[Pairing, ...]
    rows: tuple[ComparisonRow, ...]

    @property
    def labels(self) -> list[str]:
        """The names of the subjects."""
        return [subject.label for subject in self.subjects]


def compare(subjects: Sequence[Subject]) -> Comparison:
    """Return the numbers of each subject, and those of each later one minus the first's.

    Raises:
        UserError: the subjects have no selector and k in common.
    """
    first = subjects[0].measurement
    summaries = [summarize(subject.measurement) for subject in subjects]
    pairings = [
        pairing_of(first, other.measurement, folders=(subjects[0].tables, other.tables)) for other in subjects[1:]
    ]
    differences = [
        _comparable(difference(first, other.measurement), pairing)
        for pairing, other in zip(pairings, subjects[1:], strict=True)
    ]
    keys = _common_keys(summaries)
    if subjects[0].selector is not None:  # `random` was kept only for the gains over it
        keys = [key for key in keys if key.selector == CHOSEN]
    if not keys:
        raise UserError("compare: these measurements have no selector and k in common")
    rows = _rows_of_windows(summaries, differences)
    for key in keys:
        rows += _rows_of_selection(key, summaries, differences=differences, main=_main_quantities(key, keys, summaries))
    return Comparison(
        tuple(
            ComparedSubject(subject.label, subject.tables, subject.selector, summary)
            for subject, summary in zip(subjects, summaries, strict=True)
        ),
        tuple(pairings),
        tuple(rows),
    )


def _comparable(differences: Differences, pairing: Pairing) -> Differences:
    """Return the differences; of measurements with different tokenizers those of fractions alone."""
    if pairing.same_tokens:
        return differences
    numbers: dict[Key, Optional[Estimate]] = {
        key: number
        for key, number in differences.numbers.items()
        if isinstance(key, SelectionNumber) and key.name in FRACTIONS
    }
    return Differences(numbers)


def _common_keys(summaries: list[Summary]) -> list[SelectionKey]:
    """Return the selections in the real context that all summaries have."""
    keys = [{selection.key for selection in summary.selections} for summary in summaries]
    first = [selection.key for selection in summaries[0].selections]
    return [key for key in first if key.context == "real" and all(key in other for other in keys)]


def _rows_of_windows(summaries: list[Summary], differences: list[Differences]) -> list[ComparisonRow]:
    """Return the rows of all windows; without the gain beyond the training row where no subject has one."""
    return [
        ComparisonRow(
            quantity.header,
            name,
            selector=None,
            k=None,
            values=tuple(summary.of_windows(name) for summary in summaries),
            differences=tuple(of_other.of_windows(name) for of_other in differences),
            is_main=True,
        )
        for name, quantity in WINDOW_QUANTITIES.items()
        if quantity.is_compared and any(summary.of_windows(name) is not None for summary in summaries)
    ]


def _rows_of_selection(
    key: SelectionKey, summaries: list[Summary], *, differences: list[Differences], main: set[str]
) -> list[ComparisonRow]:
    """Return the rows of one selection; ``main``: those of its quantities that belong to the headline."""
    entries = [summary.at(*key) for summary in summaries]
    sees_target = any(entry.info.sees_target for entry in entries)
    rows = []
    for name, quantity in SELECTION_QUANTITIES.items():
        values = tuple(_value(entry, name) for entry in entries)
        is_missing = name not in FRACTIONS and all(value is None for value in values)
        if is_missing or not quantity.is_compared:
            continue
        rows.append(
            ComparisonRow(
                quantity.header,
                name,
                selector=key.selector,
                k=key.k,
                values=values,
                differences=tuple(
                    None if values[0] is None or value is None else of_other.of_selection(key, name)
                    for of_other, value in zip(differences, values[1:], strict=True)
                ),
                is_main=name in main,
                includes_optimism=sees_target and name in WITH_OPTIMISM,
            )
        )
    return rows


def _value(entry: SelectionSummary, name: str) -> Optional[Estimate]:
    """Return a quantity of a selection; None for the gain over random of a selector that sees the target."""
    return None if name == "gain_over_random_nats" and entry.info.sees_target else entry.estimate(name)


def _main_quantities(key: SelectionKey, keys: list[SelectionKey], summaries: list[Summary]) -> set[str]:
    """Return the headline of a selection: of the main selectors, at the smallest and at the largest shown k; else none.

    Subjects may be compared by selectors of which some see the target and others do not. They have no headline in common, so
    the sparse gain is shown, too.
    """
    ks, selectors = sorted({other.k for other in keys}), {other.selector for other in keys}
    some = shown_ks(ks, min(summary.num_units for summary in summaries))
    shown = selectors.intersection((*main_among(selectors), CHOSEN)) or selectors
    if key.selector not in shown or key.k not in (some[0], some[-1]):
        return set()
    kinds = {summary.sees_target(key.selector) for summary in summaries}
    names = {name for sees_target in kinds for name in HEADLINE[sees_target]}
    return names | {"gain_sparse_nats"} if len(kinds) > 1 else names


def main_rows(comparison: Comparison) -> list[ComparisonRow]:
    """Return the rows that answer most questions: the losses and gains of all windows, and at the smallest and the largest
    shown k alike R(k) and gain over random of selectors that do not see the target, corrected gain of those that do."""
    return [row for row in comparison.rows if row.is_main]
