"""What ``olmo-sparsity hypothesis`` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from olmo_sparsity.statistics.several.hypothesis import SparsityAndGain, read_hypothesis
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
)
from olmo_sparsity.wording.setup import null_label

# What else the plan says of the comparison, for programs: sparsity is D of the best token, and all targets are compared.
PLANNED = {"measure": "best", "without_copying": False, "without_overlap": False, "half": None}


def print_hypothesis(runs: Sequence[Path], *, selector: str, as_json: bool = False) -> None:
    """Print whether sparsity predicts the gain from beyond the training row: sentences, then tables; or JSON.

    Args:
        runs: measured runs; seeds of a configuration are one model.
        selector: whose first token tells how sparse a reaction is.
        as_json: print all of it as JSON instead.
    """
    found = read_hypothesis(runs, selector=selector)
    if as_json:
        main = [{**record_json(entry), "analysis": {**record_json(entry.analysis), **PLANNED}} for entry in found.main]
        print_json({**record_json(found), "main": main})
        return
    items: list[Item] = [Sentence(sentence, is_bold=True) for sentence in hypothesis_sentences(found)]
    items += [Sentence(measured_words(found)), *(thirds_table(entry, null_name(found)) for entry in found.main)]
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
