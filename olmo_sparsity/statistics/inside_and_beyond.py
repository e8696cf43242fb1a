"""Accuracies inside the training row and beyond it, by the sparsity k: the causal twin of the hypothesis (docs/hypothesis.md).

Evaluated prompts are longer than a training row. The tokens that decide the answer lie in the last tokens of the prompt, as many
as a row has, or before these (``synthetic.test_row_len``). Everything else is alike: the difference of the two accuracies is what
a model loses beyond its row. Sequences and seeds are crossed, as in ``olmo_sparsity.statistics.synthetic``. Sequence i of one
place stands beside sequence i of the other, of which it is independent.

A seed that cannot answer inside the row says nothing about what is beyond it: at chance both accuracies are alike. So differences
are of the seeds that have learned the sparsity. Of sparsities larger than any of training they are of all seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Optional

import numpy as np

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.ratios import Value, minus
from olmo_sparsity.statistics.intervals.seeds import bounded, estimates_over_seeds
from olmo_sparsity.statistics.intervals.shares import Share
from olmo_sparsity.statistics.synthetic import (
    Setting,
    TableCell,
    cells_of_table,
    check_same_rows,
    tables_by_setting,
)

LEARNED = 0.9  # least accuracy inside the row of a seed that has learned a sparsity
MIN_SEEDS = 2  # that have learned, of a difference: fewer have no interval that includes the seed
MARGIN = 0.05  # accuracies that differ by less are called equal

# What the interval of a difference of accuracies shows.
Verdict = Literal["not learned", "no interval", "equal", "much lower", "lower", "higher", "not shown"]
# Right answers of one seed, inside and beyond, float64 [U] by the name of the place.
Answers = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class InsideAndBeyond:
    """Accuracies of one setting at one length and sparsity.

    Attributes:
        setting: what was trained.
        length: tokens of the prompt, without the query.
        k: the sparsity.
        seeds: of training, in the order of ``inside_of_seeds``.
        inside_of_seeds: accuracy inside the row of each seed.
        beyond_of_seeds: accuracy beyond it of each seed.
        learned: the seeds with an accuracy of at least ``LEARNED`` inside the row.
        compared: the seeds that the difference is of: those that have learned this k; all of them where training had no such k.
        inside: accuracy with the planted tokens inside the row, over all seeds.
        beyond: accuracy with them beyond it, over all seeds.
        difference: beyond minus inside, of ``compared``; None where there are fewer than ``MIN_SEEDS``, unless one is all.
        beyond_minus_trained: accuracy beyond the row minus that at the largest k of training, over all seeds; None where training
            had this k, or no such cell was evaluated.
    """

    setting: Setting
    length: int
    k: int
    seeds: tuple[int, ...]
    inside_of_seeds: tuple[float, ...]
    beyond_of_seeds: tuple[float, ...]
    learned: tuple[int, ...]
    compared: tuple[int, ...]
    inside: Estimate
    beyond: Estimate
    difference: Optional[Estimate]
    beyond_minus_trained: Optional[Estimate]

    @property
    def is_trained(self) -> bool:
        """True if training rows had this k."""
        return self.k <= self.setting.max_sparsity


@dataclass(frozen=True)
class MinusReference:
    """One setting minus another, at one length and sparsity; of the seeds of each that are compared.

    Attributes:
        setting: what was trained.
        reference: the other setting.
        length: tokens of the prompt, without the query.
        k: the sparsity.
        beyond: difference of the accuracies beyond the row; None where one of the two has too few seeds.
        difference: difference of beyond minus inside.
    """

    setting: Setting
    reference: Setting
    length: int
    k: int
    beyond: Optional[Estimate]
    difference: Optional[Estimate]


@dataclass(frozen=True)
class InARow:
    """The accuracy of one setting at one k in prompts that are as long as a row.

    Attributes:
        setting: what was trained.
        k: the sparsity.
        right: the accuracy, over all seeds.
    """

    setting: Setting
    k: int
    right: Estimate


@dataclass(frozen=True)
class Twin:
    """What runs answer inside the row and beyond it.

    Attributes:
        row_len: tokens of the prompt's end that are inside the row.
        num_sequences: of each length, sparsity and place.
        cells: by setting, length and k; prompts that are longer than the row only.
        in_a_row: accuracy in prompts of ``row_len`` tokens, by setting and k; none where none was evaluated.
        minus_reference: every setting whose rows are shorter than the reference's, minus the reference: the setting with the
            longest rows. Empty where all rows are of one length.
    """

    row_len: int
    num_sequences: int
    cells: tuple[InsideAndBeyond, ...]
    in_a_row: tuple[InARow, ...]
    minus_reference: tuple[MinusReference, ...]


def verdict(difference: Optional[Estimate]) -> Verdict:
    """Return what the interval of a difference of two accuracies shows; None: too few seeds have learned the task.

    ``equal``: it lies between minus and plus ``MARGIN``. ``much lower``: below minus ``MARGIN``. ``lower``, ``higher``: on one
    side of 0, and neither of these.
    """
    if difference is None:
        return "not learned"
    if difference.bounds is None:
        return "no interval"
    low, high = difference.bounds
    if low > -MARGIN and high < MARGIN:
        return "equal"
    if high < -MARGIN:
        return "much lower"
    if high < 0:
        return "lower"
    return "higher" if low > 0 else "not shown"


def prediction_holds(cells: Sequence[InsideAndBeyond]) -> Optional[bool]:
    """Return whether sparsity decides what a setting answers beyond the row, from its cells of one length.

    True: at every k of training the accuracy beyond the row equals that inside it, and at every larger k it is much lower than at
    the largest k of training. False: at some k of training it is much lower than inside, or at some larger k equal to that at the
    largest k of training, which was learned. None: neither is shown, or no larger k was evaluated.
    """
    trained = [verdict(cell.difference) for cell in cells if cell.is_trained]
    larger = [verdict(cell.beyond_minus_trained) for cell in cells if not cell.is_trained]
    is_learned = bool(trained) and trained[-1] != "not learned"  # else both may be chance
    if "much lower" in trained or ("equal" in larger and is_learned):
        return False
    holds = trained and larger and set(trained) == {"equal"} and set(larger) == {"much lower"}
    return True if holds else None


@dataclass(frozen=True)
class _Group:
    """The tables of one setting, by seed."""

    setting: Setting
    seeds: tuple[int, ...]
    tables: Sequence[dict[str, np.ndarray]]

    def answers(self, length: int, k: int) -> list[Answers]:
        return [
            {
                place: table["right"][TableCell(length, k, place).rows(table)].astype(float)
                for place in ("inside", "beyond")
            }
            for table in self.tables
        ]

    def compared(self, answers: Sequence[Answers], k: int) -> list[int]:
        """Return the numbers of the seeds whose accuracies are compared."""
        is_new = k > self.setting.max_sparsity
        return [i for i, of_seed in enumerate(answers) if is_new or of_seed["inside"].mean() >= LEARNED]


def read_inside_and_beyond(folders: Iterable[Path]) -> Twin:
    """Return the accuracies inside the row and beyond it, from folders of ``synth eval``, seeds of a setting together.

    Raises:
        UserError: a folder has no finished table, the planted tokens of one lie anywhere, or the runs were not evaluated on the
            same sequences.
    """
    groups = []
    row_lens: dict[Optional[int], Path] = {}
    for setting, seeds in tables_by_setting(folders).items():
        for seed in seeds:
            row_lens.setdefault(seed.manifest.get("test_row_len"), seed.folder)
        tables = [seed.columns for seed in seeds]
        check_same_rows(setting, tables)
        groups.append(_Group(setting, tuple(seed.manifest["training_seed"] for seed in seeds), tables))
    if None in row_lens:
        raise UserError(
            f"{row_lens[None]}: the planted tokens of these sequences lie anywhere, not inside a row or beyond it; evaluate with "
            "synthetic.test_row_len=N"
        )
    for group in groups[1:]:
        check_same_rows(group.setting, [groups[0].tables[0], group.tables[0]])
    row_len = next(row_len for row_len in row_lens if row_len is not None)
    if len(row_lens) > 1:
        first, second, *_ = row_lens.values()
        raise UserError(f"{second}: evaluated with another synthetic.test_row_len than {first}")
    all_cells = cells_of_table(groups[0].tables[0])
    longer = list(dict.fromkeys((cell.length, cell.k) for cell in all_cells if cell.place == "beyond"))
    if not longer:
        raise UserError(f"{row_lens[row_len]}: no prompt is longer than the row of {row_len} tokens")
    return Twin(
        row_len=row_len,
        num_sequences=int(all_cells[0].rows(groups[0].tables[0]).sum()),
        cells=tuple(_inside_and_beyond(group, length, k=k, cells=longer) for group in groups for length, k in longer),
        in_a_row=tuple(
            InARow(group.setting, cell.k, _accuracy_in_a_row(group, cell))
            for group in groups
            for cell in all_cells
            if cell.length == row_len
        ),
        minus_reference=_minus_reference(groups, longer),
    )


def _accuracy_in_a_row(group: _Group, cell: TableCell) -> Estimate:
    answers = [{"inside": table["right"][cell.rows(table)].astype(float)} for table in group.tables]
    return bounded(_estimate([answers], lambda means: means[0]["inside"]))


def _inside_and_beyond(group: _Group, length: int, *, k: int, cells: Sequence[tuple[int, int]]) -> InsideAndBeyond:
    answers = group.answers(length, k)
    compared = group.compared(answers, k)
    of_compared = [answers[i] for i in compared]
    trained = group.setting.max_sparsity
    beyond_minus_trained = None
    if k > trained and (length, trained) in cells:
        pairs = [
            {"larger": larger["beyond"], "trained": of_trained["beyond"]}
            for larger, of_trained in zip(answers, group.answers(length, trained), strict=True)
        ]
        beyond_minus_trained = _estimate([pairs], lambda means: minus(means[0]["larger"], means[0]["trained"]))
    return InsideAndBeyond(
        setting=group.setting,
        length=length,
        k=k,
        seeds=group.seeds,
        inside_of_seeds=tuple(float(of_seed["inside"].mean()) for of_seed in answers),
        beyond_of_seeds=tuple(float(of_seed["beyond"].mean()) for of_seed in answers),
        learned=tuple(
            seed for seed, of_seed in zip(group.seeds, answers, strict=True) if of_seed["inside"].mean() >= LEARNED
        ),
        compared=tuple(group.seeds[i] for i in compared),
        inside=bounded(_estimate([answers], lambda means: means[0]["inside"])),
        beyond=bounded(_estimate([answers], lambda means: means[0]["beyond"])),
        difference=_estimate([of_compared], lambda means: _beyond_minus_inside(means[0]))
        if _suffice(of_compared, answers)
        else None,
        beyond_minus_trained=beyond_minus_trained,
    )


def _suffice(compared: Sequence[Answers], answers: Sequence[Answers]) -> bool:
    """Return whether the seeds that have learned are enough: several, or the one that there is."""
    return len(compared) >= min(MIN_SEEDS, len(answers))


def _minus_reference(groups: Sequence[_Group], cells: Sequence[tuple[int, int]]) -> tuple[MinusReference, ...]:
    reference = max(groups, key=lambda group: group.setting.train_lengths[1])
    found = []
    for group in groups:
        if group.setting.train_lengths[1] == reference.setting.train_lengths[1]:
            continue
        for length, k in cells:
            answers = [one.answers(length, k) for one in (group, reference)]
            compared = [
                [of_model[i] for i in one.compared(of_model, k)]
                for one, of_model in zip((group, reference), answers, strict=True)
            ]
            enough = all(map(_suffice, compared, answers))
            found.append(
                MinusReference(
                    setting=group.setting,
                    reference=reference.setting,
                    length=length,
                    k=k,
                    beyond=_estimate(compared, lambda means: minus(means[0]["beyond"], means[1]["beyond"]))
                    if enough
                    else None,
                    difference=_estimate(
                        compared,
                        lambda means: minus(*map(_beyond_minus_inside, means)),
                        bound=2.0,
                    )
                    if enough
                    else None,
                )
            )
    return tuple(found)


def _beyond_minus_inside(shares: Mapping[str, Share]) -> Value:
    return minus(shares["beyond"], shares["inside"])


def _estimate(
    models: Sequence[Sequence[Answers]],
    quantity: Callable[[Sequence[Mapping[str, Share]]], Value],
    *,
    bound: float = 1.0,
) -> Estimate:
    """Estimate a function of the mean accuracies of models, by place, over sequences and seeds; it lies within ``bound`` of 0."""
    num_sequences = len(next(iter(models[0][0].values())))
    sums = [[{**of_seed, "num": np.ones(num_sequences)} for of_seed in seeds] for seeds in models]

    def of_totals(totals: Sequence[Mapping[str, np.ndarray]]) -> dict[str, Value]:
        means = [{name: Share(total, of["num"]) for name, total in of.items()} for of in totals]
        return {"value": quantity(means)}

    estimate = estimates_over_seeds(sums, of_totals)["value"]
    return bounded(estimate, least=-bound, most=bound)
