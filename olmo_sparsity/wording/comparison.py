"""Sentences about measurements side by side: how they relate, and what is higher or lower."""

from __future__ import annotations

from dataclasses import replace
from typing import Optional, Union

from olmo_sparsity.records.measured import HASH_DIGITS, ModelRecord
from olmo_sparsity.statistics.several.comparison import ComparedSubject, Comparison, ComparisonRow, main_rows
from olmo_sparsity.statistics.several.subjects import CHOSEN, Pairing
from olmo_sparsity.statistics.single.measurement import Estimand, Measurement
from olmo_sparsity.statistics.single.model_setup import ModelSetup
from olmo_sparsity.statistics.single.summary import Summary
from olmo_sparsity.wording.numbers import interval, verdict
from olmo_sparsity.wording.setup import short_anchor_words
from olmo_sparsity.wording.units import unit_words, units_words

Measured = Union[Measurement, Summary]
INCLUDES_OPTIMISM = "(includes optimism)"


def compared_words(row: ComparisonRow) -> str:
    """Return what a row compares, and its unit."""
    return f"{row.words} {INCLUDES_OPTIMISM}" if row.includes_optimism else row.words


def optimism_warning(subject: ComparedSubject) -> str:
    """Return a warning for a subject that is compared by a selector that sees the target, else an empty text."""
    if subject.selector is None or not subject.summary.sees_target(CHOSEN):
        return ""
    return f"{subject.selector} sees the target: its sparse gain and R(k) include optimism."


def subject_units_words(subject: ComparedSubject) -> str:
    """Return ``units_words`` of a subject, with its selector under its own name."""
    selections = (
        replace(entry, selector=subject.selector or CHOSEN) if entry.selector == CHOSEN else entry
        for entry in subject.summary.selections
    )
    return units_words(replace(subject.summary, selections=tuple(selections)))


def pairings_words(comparison: Comparison) -> list[str]:
    """Return for each later subject how its windows relate to the first subject's, and in what the two settings differ."""
    first, *later = (subject.summary for subject in comparison.subjects)
    return [pairing_words(first, other, pairing) for other, pairing in zip(later, comparison.pairings, strict=True)]


def pairing_words(first: Measured, second: Measured, pairing: Pairing) -> str:
    """Return how the windows of two measurements relate, and in what their settings differ, as a sentence without full stop."""
    first_number, second_number = pairing.num_windows
    if pairing.paired:
        words = [f"paired, window by window: both hold the same {first_number:,} windows"]
    else:
        words = [
            f"NOT PAIRED: {first_number:,} and {second_number:,} windows that are not the same; "
            f"{pairing.num_shared_documents:,} documents are in both, and intervals are wider than with the same windows"
        ]
        if not pairing.same_tokens:
            words.append("the tokenizers differ, so that nothing in nats is compared")
        elif not pairing.same_text:
            words.append("the texts differ, the tokenizer is the same, so a difference in nats may be one of the texts")
        if not pairing.same_lengths:
            words.append("the lengths differ, so long gains belong to different contexts")
        words += _different_means(first.estimand, second.estimand)
    words += _different_units(first, second)
    words += setup_differences(first.setup, second.setup)
    words += _different_rows(first.lengths.train_len, second.lengths.train_len)
    if first.null_context != second.null_context:
        words.append(
            f"the null context differs ({first.null_context}, {second.null_context}), so the long gain under it and the excess "
            "gain are other quantities"
        )
    return "; ".join(words)


def _different_means(first: Estimand, second: Estimand) -> list[str]:
    """Return a warning where the means over windows that are not the same have no common meaning."""
    if first == second != "given":
        return []
    if first == second:
        return ["each mean is over its own given windows, so the means are not the same quantity"]
    one, other = ("given windows" if estimand == "given" else "targets" for estimand in (first, second))
    return [f"means over {one} and over {other} are not the same quantity"]


def _different_rows(first: Optional[int], second: Optional[int]) -> list[str]:
    """Return a warning where the gains beyond the training row begin at different lengths."""
    if first == second:
        return []
    if first is None or second is None:
        return ["only one of them has a known training row, so gains beyond the row are not compared"]
    return [f"training rows have {first} and {second} tokens, so gains beyond them begin at different lengths"]


def _different_units(first: Union[Measurement, Summary], second: Union[Measurement, Summary]) -> list[str]:
    """Return a warning where k counts different groups in two measurements."""
    if first.unit == second.unit:
        return []
    one, other = (unit_words(of.unit, of.setup.visibility) for of in (first, second))
    return [
        f"NOT THE SAME SETTING: k counts {one} in one and {other} in the other, so numbers at the "
        "same k are not of the same thing"
    ]


def setup_differences(first: ModelSetup, second: ModelSetup) -> list[str]:
    """Return in what the setups of two measurements differ, and what follows."""
    words = []
    if first.model is not None and second.model is not None and first.model != second.model:
        words.append(f"the models differ ({_short_model(first.model)}, {_short_model(second.model)})")
    if first.anchor != second.anchor:
        anchors = f"{short_anchor_words(first.anchor)}, {short_anchor_words(second.anchor)}"
        words.append(f"the first token differs ({anchors}), so every loss has another input")
    if first.visibility != second.visibility:
        words.append(
            f"visibility differs ({first.visibility}, {second.visibility}): L_short and L_long are defined alike under both, "
            "but sparse gains, R(k) and D(k) are different quantities: k counts tokens that stand alone under hidden, entries "
            "that have read all before them under contextual"
        )
    if first.precision is not None and second.precision is not None and first.precision != second.precision:
        words.append(
            f"precision differs ({first.precision}, {second.precision}): the rounding of bf16 is of the size of small "
            "tolerances, and there fewer targets count as within them"
        )
    return words


def _short_model(model: ModelRecord) -> str:
    return f"{model.short_name}, {model.dtype}, weights {model.weights_sha256[:HASH_DIGITS]}"


def differences_sentences(comparison: Comparison) -> list[str]:
    """Return for each later measurement what is higher or lower than in the first, in a sentence."""
    first, *later = comparison.labels
    summaries = {subject.label: subject.summary for subject in comparison.subjects}
    sentences = []
    rows = _rows_of_verdict(comparison)
    for index, label in enumerate(later):
        clauses = []
        for row in rows:
            difference = row.differences[index]
            if difference is not None:
                where = "" if row.selector is None else f" of {row.selector}, k = {row.k}"
                name = compared_words(row).replace(", nats", "")
                clauses.append(f"{name}{where}: {verdict(difference)} ({interval(difference, 3)} nats)")
        pairing = "" if comparison.pairings[index].paired else ", on other windows"
        if len({summaries[name].unit for name in (first, label)}) > 1:
            pairing += ", where k counts something else"
        if clauses:
            sentences.append(f"{label} minus {first}{pairing}: {'; '.join(clauses)}.")
        elif not comparison.pairings[index].same_tokens:
            sentences.append(f"{label} and {first} have different tokenizers, so nothing in nats is compared.")
        else:
            sentences.append(f"{label} and {first} have no quantity in common.")
    return sentences


def _rows_of_verdict(comparison: Comparison) -> list[ComparisonRow]:
    """Return the gains of all windows, and of the first selector that has a headline in nats the rows of its headline."""
    rows = main_rows(comparison)
    gains = [row for row in rows if row.quantity in ("long_gain_nats", "gain_beyond_nats")]
    for quantity in ("gain_over_random_nats", "corrected_gain_nats", "gain_sparse_nats"):
        of_selectors = [row for row in rows if row.quantity == quantity and any(d is not None for d in row.differences)]
        if of_selectors:
            return gains + [row for row in of_selectors if row.selector == of_selectors[0].selector]
    return gains
