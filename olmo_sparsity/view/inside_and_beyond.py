"""What ``olmo-sparsity synth summary`` prints of runs that were evaluated inside a row and beyond it."""

from __future__ import annotations

from olmo_sparsity.statistics.inside_and_beyond import Twin
from olmo_sparsity.view.result_table import Item, ResultTable, Sentence, estimated, keys, number, plain, words
from olmo_sparsity.wording.inside_and_beyond import DIGITS, arm_words, evaluated_words, twin_sentences

MINUS_CEILING = "minus the ceiling, of the seeds that have learned k; of k that training did not have, of all"


def twin_items(twin: Twin) -> list[Item]:
    """Return the accuracies inside the row and beyond it, by k: sentences, then tables."""
    items: list[Item] = [Sentence(sentence, is_bold=True) for sentence in twin_sentences(twin)]
    items += [Sentence(evaluated_words(twin)), accuracy_table(twin)]
    if twin.minus_reference:
        items.append(reference_table(twin))
    return items


def accuracy_table(twin: Twin) -> ResultTable:
    """Return one row a setting, length and k."""
    columns = [
        *keys("trained", "tokens", "k"),
        *plain(
            "learned", "in one row", "inside", "beyond", "beyond minus inside", "beyond, minus largest k of training"
        ),
    ]
    in_a_row = {(of.setting, of.k): of.right for of in twin.in_a_row}
    rows = [
        (
            *words(arm_words(cell.setting, twin)),
            number(cell.length),
            number(cell.k),
            *words(f"{len(cell.learned)} of {len(cell.seeds)}"),
            estimated(in_a_row.get((cell.setting, cell.k)), DIGITS),
            estimated(cell.inside, DIGITS),
            estimated(cell.beyond, DIGITS),
            estimated(cell.difference, DIGITS),
            estimated(cell.beyond_minus_trained, DIGITS),
        )
        for cell in twin.cells
    ]
    caption = (
        "learned: seeds with the accuracy named above inside the row. in one row: prompts that are one row and no more. inside, "
        "beyond: over all seeds."
    )
    return ResultTable(
        "inside and beyond", tuple(columns), tuple(rows), "accuracy by the number k of planted values", caption
    )


def reference_table(twin: Twin) -> ResultTable:
    """Return one row a setting, length and k: the setting minus the ceiling."""
    columns = [*keys("trained", "tokens", "k"), *plain("beyond", "beyond minus inside")]
    rows = [
        (
            *words(arm_words(one.setting, twin)),
            number(one.length),
            number(one.k),
            estimated(one.beyond, DIGITS),
            estimated(one.difference, DIGITS),
        )
        for one in twin.minus_reference
    ]
    return ResultTable(
        "minus ceiling",
        tuple(columns),
        tuple(rows),
        MINUS_CEILING,
    )
