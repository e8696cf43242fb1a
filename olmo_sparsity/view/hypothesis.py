"""What ``olmo-sparsity hypothesis`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from olmo_sparsity.statistics.several.hypothesis import Hypothesis, SparsityAndGain, read_hypothesis
from olmo_sparsity.view.as_json import record_json
from olmo_sparsity.view.console import print_json
from olmo_sparsity.view.result_table import Item, ResultTable, Sentence, estimated, in_nats, keys, plain, words
from olmo_sparsity.view.table_printing import print_items, results_console
from olmo_sparsity.wording.hypothesis import (
    GAIN_DIGITS,
    SHARE_DIGITS,
    hypothesis_sentences,
    matched_words,
    measured_words,
    null_name,
    short_null_name,
)
from olmo_sparsity.wording.setup import null_label


def print_hypothesis(runs: Sequence[Path], *, selector: str, every: bool = False, as_json: bool = False) -> None:
    """Print whether sparsity predicts the gain from beyond the training row: sentences, then tables; or JSON.

    Args:
        runs: measured runs; seeds of a configuration are one model.
        selector: whose first token tells how sparse a reaction is.
        every: also print the comparison in other ways.
        as_json: print all of it as JSON instead.
    """
    found = read_hypothesis(runs, selector=selector, every=every or as_json)
    if as_json:
        print_json(record_json(found))
        return
    items: list[Item] = [Sentence(sentence, is_bold=True) for sentence in hypothesis_sentences(found)]
    items += [Sentence(measured_words(found)), *(thirds_table(entry, null_name(found)) for entry in found.main)]
    if every:
        items.append(robustness_table(found))
    print_items(items, results_console())


def thirds_table(entry: SparsityAndGain, null: str) -> ResultTable:
    """Return one row a third of the targets, and sparse minus dense; ``null`` names the null context (``null_name``)."""
    contrasts = entry.contrasts
    columns = [*keys("reaction"), *plain("sparsity"), *in_nats("size", "gain", f"gain, {null_label(null)}")]
    rows = [
        [
            *words(third.third),
            estimated(third.sparsity, SHARE_DIGITS),
            estimated(third.reaction_nats, GAIN_DIGITS),
            estimated(third.gain_nats, GAIN_DIGITS),
            estimated(third.null_gain_nats, GAIN_DIGITS),
        ]
        for third in entry.thirds
    ]
    numbers = (contrasts.gain_nats, contrasts.null_gain_nats)
    rows.append([*words("sparse minus dense", "", ""), *(estimated(number, GAIN_DIGITS) for number in numbers)])
    if contrasts.ceiling_gain_nats is not None:
        columns += [*in_nats("ceiling's gain"), *plain("share of the ceiling's")]
        of_ceiling = [(third.ceiling_gain_nats, third.share_of_ceiling) for third in entry.thirds]
        of_ceiling.append((contrasts.ceiling_gain_nats, contrasts.share_of_ceiling))
        for row, (gain, share) in zip(rows, of_ceiling, strict=True):
            row += [estimated(gain, GAIN_DIGITS), estimated(share, SHARE_DIGITS)]
    title = f"gain of {entry.gain_of} by how sparse the reaction of {entry.sparsity_from} is: {matched_words(entry)}"
    caption = (
        "sparsity: the share of the reaction that one token reproduces, D(1). size: how large the reactions of the runs that "
        f"gain are; a calibrated model would gain about as much. {null_label(null)}: thirds of the reactions to {null}, "
        "and the gain from it."
    )
    return ResultTable(
        f"{entry.sparsity_from} {entry.gain_of}", tuple(columns), tuple(map(tuple, rows)), title, caption
    )


def robustness_table(found: Hypothesis) -> ResultTable:
    """Return the contrasts of the first model under other ways to compare, one row each."""
    columns = [
        *keys("comparison", "sparsity from"),
        *in_nats("gain, sparse minus dense", f"the same, real minus {short_null_name(null_name(found))}"),
    ]
    columns += plain("share of the ceiling's") if found.ceiling else ()
    rows = []
    for entry in found.robustness:
        contrasts = entry.contrasts
        numbers = (contrasts.gain_nats, contrasts.real_minus_null_nats)
        cells = [estimated(number, GAIN_DIGITS) for number in numbers]
        if found.ceiling:
            cells.append(estimated(contrasts.share_of_ceiling, SHARE_DIGITS))
        rows.append((*words(entry.analysis.name, entry.sparsity_from), *cells))
    title = f"sparse minus dense of {found.main[0].gain_of}, compared in other ways"
    return ResultTable("robustness", tuple(columns), tuple(rows), title)
