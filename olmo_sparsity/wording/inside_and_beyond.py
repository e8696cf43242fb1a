"""Words about accuracies inside the training row and beyond it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from olmo_sparsity.statistics.inside_and_beyond import (
    LEARNED,
    MARGIN,
    InsideAndBeyond,
    Twin,
    Verdict,
    prediction_holds,
    verdict,
)
from olmo_sparsity.statistics.synthetic import Setting
from olmo_sparsity.wording.curves import seeds_words
from olmo_sparsity.wording.numbers import interval
from olmo_sparsity.wording.synthetic_tasks import distinct_words, positions_words, task_words

DIGITS = 3
_OF_DIFFERENCE: dict[Verdict, str] = {
    "equal": f"equal to within {MARGIN}",
    "much lower": f"lower by more than {MARGIN}",
    "lower": "lower",
    "higher": "higher",
    "not shown": "not shown to differ, nor to be equal",
    "no interval": "too few sequences to tell",
    "not learned": "too few seeds have learned it",
}
_OF_PREDICTION = {
    True: "This is as predicted.",
    False: "This is against the prediction.",
    None: "The prediction is neither shown nor refuted.",
}


def arm_words(setting: Setting, twin: Twin) -> str:
    """Return how a setting was trained, told apart from the others; tokens are those of prompts without the query."""
    references = {one.reference for one in twin.minus_reference}

    def short_words(one: Setting) -> str:
        name = "ceiling" if one in references else positions_words(one)
        return f"{name}, trained to {one.train_lengths[1]} tokens"

    return distinct_words((cell.setting for cell in twin.cells), short_words)[setting]


def twin_sentences(twin: Twin) -> Iterator[str]:
    """Yield what was found about each setting and length, PoSE first in the order of the runs."""
    for setting, length in dict.fromkeys((cell.setting, cell.length) for cell in twin.cells):
        yield setting_sentence([c for c in twin.cells if (c.setting, c.length) == (setting, length)], twin)


def setting_sentence(cells: Sequence[InsideAndBeyond], twin: Twin) -> str:
    """Return what the intervals of one setting and length show; of PoSE also whether the prediction holds."""
    setting, length = cells[0].setting, cells[0].length
    prompts = f", prompts of {length} tokens" if any(cell.length != length for cell in twin.cells) else ""
    parts = [
        f"k = {cell.k}: {_OF_DIFFERENCE[verdict(cell.difference)]} ({interval(cell.difference, DIGITS)})"
        for cell in cells
        if cell.is_trained
    ]
    differences = "; ".join(parts) or "no k of training was evaluated"
    sentence = f"{arm_words(setting, twin)}{prompts}: accuracy beyond the row minus inside it, {differences}."
    for cell in cells:
        if cell.beyond_minus_trained is not None:
            sentence += (
                f" Beyond the row, k = {cell.k}, more values than training had, minus k = {setting.max_sparsity}: "
                f"{_OF_DIFFERENCE[verdict(cell.beyond_minus_trained)]} ({interval(cell.beyond_minus_trained, DIGITS)})."
            )
    if setting.num_chunks > 1:
        sentence += f" {_OF_PREDICTION[prediction_holds(cells)]}"
    return sentence


def evaluated_words(twin: Twin) -> str:
    """Return what was asked, and what the intervals include."""
    setting = twin.cells[0].setting
    seeds = ", ".join(
        f"{arm_words(one, twin)} ({seeds_words(len(cell.seeds))})"
        for one, cell in {cell.setting: cell for cell in twin.cells}.items()
    )
    lengths = ", ".join(str(length) for length in dict.fromkeys(cell.length for cell in twin.cells))
    task = task_words(setting)
    return (
        f"{task[0].upper()}{task[1:]}: {twin.num_sequences:,} sequences of each k and place, prompts of {lengths} tokens without "
        f"the query; inside: the planted values lie in the last {twin.row_len}, beyond: before these. Models: {seeds}; brackets: "
        f"95% intervals over sequences and seeds. Differences are of the seeds with an accuracy of at least {LEARNED} inside the "
        "row; of k that training did not have, of all."
    )
