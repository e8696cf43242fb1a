"""The measurements that are compared: read from the command line's RUN or RUN:SELECTOR, labelled, paired."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.statistics.differences import WINDOW_COLUMNS
from olmo_sparsity.statistics.measurement import Measurement, load
from olmo_sparsity.statistics.wording_of_models import setup_difference_words, short_setup_words, subject_names
from olmo_sparsity.statistics.wording_of_units import different_units_words
from olmo_sparsity.tables.reading import find_tables

CHOSEN = "its selector"  # the name of each subject's own selector, where subjects are compared by selector
TEXT_KEYS = ("tokens_sha256", "windows_sha256")  # of the manifest


@dataclass(frozen=True)
class Subject:
    """One of the measurements that are compared.

    Attributes:
        label: its name in tables and figures.
        tables: its influence folder.
        selector: the selector to compare; None: all selectors that every subject has.
        measurement: its numbers. Where a selector is named, it has that one under the name ``CHOSEN``, and `random`.
    """

    label: str
    tables: Path
    selector: Optional[str]
    measurement: Measurement

    @property
    def warning(self) -> str:
        """A warning for a subject that is compared by a selector that sees the target, else empty."""
        if self.selector is None or not self.measurement.selectors[CHOSEN].sees_target:
            return ""
        return f"{self.selector} sees the target: its sparse gain and R(k) include selection luck."


@dataclass(frozen=True)
class Pairing:
    """How a later subject's windows relate to the first subject's.

    Attributes:
        paired: True if they are the same windows, so that differences are taken window by window.
        same_tokens: False if the tokenizers are known to differ: nats of different tokens are not compared.
        words: the same in a sentence.
    """

    paired: bool
    same_tokens: bool
    words: str


def read_subjects(texts: list[str]) -> list[Subject]:
    """Load the measurements that ``RUN`` or ``RUN:SELECTOR`` name; RUN is a run or an influence folder.

    Raises:
        UserError: there are fewer than two, or they cannot be compared.
    """
    if len(texts) < 2:
        raise UserError("compare: name two runs or more, or one run twice with two selectors, as RUN:kl RUN:unmask-one")
    subjects: list[Subject] = []
    loaded: dict[Path, Measurement] = {}
    for text in texts:
        path, selector = _split(text)
        tables = find_tables(path)
        if tables not in loaded:
            loaded[tables] = load(tables)
        measurement = loaded[tables]
        if selector is not None:
            if selector not in measurement.selectors:
                measured = ", ".join(measurement.selectors)
                raise UserError(f"{text}: {selector} was not measured there; the measured selectors are {measured}")
            measurement = _with_chosen(measurement, selector)
        subjects.append(Subject("", tables, selector, measurement))
    if len({subject.selector is None for subject in subjects}) > 1:
        raise UserError("compare: name a selector for every run, as RUN:kl, or for none")
    return [replace(subject, label=label) for subject, label in zip(subjects, _labels(texts, subjects), strict=True)]


def _split(text: str) -> tuple[Path, Optional[str]]:
    """Split ``RUN:SELECTOR``; a path that exists is a RUN as it is, colon or not."""
    head, _, tail = text.rpartition(":")
    if head != "" and tail in SELECTORS and not Path(text).exists():
        return Path(head), tail
    return Path(text), None


def _with_chosen(measurement: Measurement, selector: str) -> Measurement:
    """Return the measurement of one selector, named ``CHOSEN``, and of `random`, from which gains over random are counted."""
    names = {selector: CHOSEN}
    if selector != "random" and "random" in measurement.selectors:
        names["random"] = "random"
    return measurement.restrict_selectors(names)


def _labels(texts: list[str], subjects: list[Subject]) -> list[str]:
    """Return short distinct names: the runs' or models', with the selectors.

    Models whose paths end alike are named as they were given. To equal names the definition of visible and the anchor are
    added; where two still are equal, all are what the user typed.
    """
    setups = [subject.measurement.setup for subject in subjects]
    of_models = subject_names(
        [(subject.measurement.manifest["run"], subject.measurement.setup) for subject in subjects]
    )
    names = [
        name + (f":{subject.selector}" if subject.selector else "")
        for name, subject in zip(of_models, subjects, strict=True)
    ]
    names = [
        f"{name}, {short_setup_words(setup)}" if names.count(name) > 1 else name
        for name, setup in zip(names, setups, strict=True)
    ]
    return names if len(set(names)) == len(names) else texts


def _same_lengths(first: Measurement, second: Measurement) -> bool:
    a, b = first.lengths, second.lengths
    return (a.local_len, a.full_len) == (b.local_len, b.full_len)


def same_windows(first: Measurement, second: Measurement) -> bool:
    """Return True if both hold the same windows: the same tokens of the same documents, cut at the same lengths."""
    return (
        first.windows[WINDOW_COLUMNS].equals(second.windows[WINDOW_COLUMNS])
        and all(first.manifest.get(key) == second.manifest.get(key) for key in TEXT_KEYS)
        and _same_lengths(first, second)
    )


def pairing_of(first: Measurement, second: Measurement) -> Pairing:
    """Return whether two measurements are paired, and the sentence to print about it."""
    ending = different_units_words(first.unit, second.unit)
    ending += setup_difference_words(first.setup, second.setup) + _different_rows(first, second)
    if first.null_context != second.null_context:
        ending += (
            f"; the null context differs ({first.null_context}, {second.null_context}), so the long gain under it and the excess "
            "gain are other quantities"
        )
    if same_windows(first, second):
        words = f"paired, window by window: both hold the same {len(first.windows):,} windows"
        return Pairing(True, True, words + ending)
    shared = len(set(first.windows["doc_id"]) & set(second.windows["doc_id"]))
    words = (
        f"NOT PAIRED: {len(first.windows):,} and {len(second.windows):,} windows that are not the same; {shared:,} documents are "
        "in both, and intervals are wider than with the same windows"
    )
    same_tokens = not _have_other_tokenizers(first, second)
    if not same_tokens:
        words += "; the tokenizers differ, so that nothing in nats is compared"
    elif first.manifest.get("tokens_sha256") != second.manifest.get("tokens_sha256"):
        words += "; text or tokenizer differ, and nats of different tokens are not comparable"
    if not _same_lengths(first, second):
        words += "; the lengths differ, so long gains belong to different contexts"
    return Pairing(False, same_tokens, words + _different_means(first, second) + ending)


def _different_means(first: Measurement, second: Measurement) -> str:
    """Return a warning, as the end of a sentence, where the means over windows that are not the same have no common meaning."""
    one, other = first.estimand, second.estimand
    if one == other != "given":
        return ""
    if one == other:
        return "; each mean is over its own given windows, so the means are not the same quantity"
    names = {"given": "given windows"}
    return f"; means over {names.get(one, one)} and over {names.get(other, other)} are not the same quantity"


def _have_other_tokenizers(first: Measurement, second: Measurement) -> bool:
    """Return True if two measurements are known to be of different tokens.

    Older tables of runs have no hash of the tokenizer, which a run shares with no pretrained model.
    """
    if first.manifest.get("tokens_sha256") == second.manifest.get("tokens_sha256"):
        return False
    models = [measurement.manifest.get("model") or {} for measurement in (first, second)]
    hashes = [
        measurement.manifest.get("tokenizer_sha256", model.get("tokenizer_sha256"))
        for measurement, model in zip((first, second), models, strict=True)
    ]
    if None in hashes:
        return bool(models[0]) is not bool(models[1])
    return hashes[0] != hashes[1]


def _different_rows(first: Measurement, second: Measurement) -> str:
    """Return a warning, as the end of a sentence, where the gains beyond the training row begin at different lengths."""
    a, b = first.lengths.train_len, second.lengths.train_len
    if a == b:
        return ""
    if a is None or b is None:
        return "; only one of them has a known training row, so gains beyond the row are not compared"
    return f"; training rows have {a} and {b} tokens, so gains beyond them begin at different lengths"
