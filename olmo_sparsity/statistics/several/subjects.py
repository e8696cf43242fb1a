"""The measurements that are compared: read from the command line's RUN or RUN:SELECTOR, labelled, paired."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Optional

from tokenizers import Tokenizer

from olmo_sparsity.errors import UserError
from olmo_sparsity.records.own_selectors import NAME
from olmo_sparsity.records.selectors import SELECTORS
from olmo_sparsity.statistics.single.measured_tokenizer import tokenizer_of
from olmo_sparsity.statistics.single.measurement import SAME_WINDOWS, Measurement, load
from olmo_sparsity.statistics.single.model_setup import subject_names
from olmo_sparsity.tables.reading import find_tables, read_parts
from olmo_sparsity.text.vocabulary import encode_alike

logger = logging.getLogger(__name__)

CHOSEN = "its selector"  # the name of each subject's own selector, where subjects are compared by selector
WINDOW_COLUMNS = ["window_id", "doc_id"]  # what tells windows apart
COMPARED_WINDOWS = 100  # of each of two measurements, whose texts both tokenizers encode


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


@dataclass(frozen=True)
class Pairing:
    """How a later subject's windows relate to the first subject's.

    Attributes:
        paired: True if they are the same windows, so that differences are taken window by window.
        same_tokens: False if the tokenizers differ: nats of different tokens are not compared.
        same_text: False if the token files are not the same.
        same_lengths: True if the local and the full context are as long.
        num_windows: number of windows of the first subject and of the later one.
        num_shared_documents: number of documents that both have windows of.
    """

    paired: bool
    same_tokens: bool
    same_text: bool
    same_lengths: bool
    num_windows: tuple[int, int]
    num_shared_documents: int


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
    warn_of_sources(loaded)
    return [replace(subject, label=label) for subject, label in zip(subjects, _labels(texts, subjects), strict=True)]


def warn_of_sources(loaded: Mapping[Path, Measurement]) -> None:
    """Say which selectors of one's own have the same name in two measurements, and another source, or one that is not known."""
    seen: dict[str, tuple[str, Path]] = {}
    for tables, measurement in loaded.items():
        for name, entry in measurement.manifest.get("own_selectors", {}).items():
            sha256, first = seen.setdefault(name, (entry["sha256"], tables))
            if first != tables and None in (sha256, entry["sha256"]):
                logger.warning(
                    f"{first} and {tables}: it cannot be told whether the selector {name} is the same in both, since "
                    "its source is not known"
                )
            elif entry["sha256"] != sha256:
                logger.warning(
                    f"{first} and {tables}: the selector {name} has another source in each; names alone are the same"
                )


def _split(text: str) -> tuple[Path, Optional[str]]:
    """Split ``RUN:SELECTOR``; a path that exists is a RUN as it is, colon or not."""
    head, _, tail = text.rpartition(":")
    is_selector = tail in SELECTORS or (NAME.fullmatch(tail) is not None and Path(head).exists())
    if head != "" and is_selector and not Path(text).exists():
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
        f"{name}, {setup.label}" if names.count(name) > 1 else name for name, setup in zip(names, setups, strict=True)
    ]
    return names if len(set(names)) == len(names) else texts


def _same_lengths(first: Measurement, second: Measurement) -> bool:
    a, b = first.lengths, second.lengths
    return (a.local_len, a.full_len) == (b.local_len, b.full_len)


def same_windows(first: Measurement, second: Measurement) -> bool:
    """Return True if both hold the same windows: the same tokens of the same documents, cut at the same lengths."""
    return (
        first.windows[WINDOW_COLUMNS].equals(second.windows[WINDOW_COLUMNS])
        and all(first.manifest.get(key) == second.manifest.get(key) for key in SAME_WINDOWS)
        and _same_lengths(first, second)
    )


def pairing_of(first: Measurement, second: Measurement, *, folders: Optional[tuple[Path, Path]] = None) -> Pairing:
    """Return whether two measurements are paired, and what they have in common.

    Args:
        first: one of them.
        second: the other.
        folders: their influence folders. Beside these are the tokenizers, of which the manifests have only hashes.
    """
    same_tokens = _have_same_tokenizer(first, second) or (folders is not None and _encode_alike(*folders))
    return Pairing(
        paired=same_windows(first, second),
        same_tokens=same_tokens,
        same_text=first.manifest.get("tokens_sha256") == second.manifest.get("tokens_sha256"),
        same_lengths=_same_lengths(first, second),
        num_windows=(len(first.windows), len(second.windows)),
        num_shared_documents=len(set(first.windows["doc_id"]) & set(second.windows["doc_id"])),
    )


def _encode_alike(first: Path, second: Path) -> bool:
    """Return True if the tokenizers beside two folders of tables make the same tokens of the windows in both."""
    one, other = tokenizer_of(first), tokenizer_of(second)
    if one is None or other is None:
        return False
    texts = (text for folder in (first, second) for text in _some_texts(folder, one))
    return encode_alike(one, other, texts)


def _some_texts(folder: Path, tokenizer: Tokenizer) -> Iterator[str]:
    """Yield the texts of the first windows of a folder of tables."""
    part = next(iter(read_parts(folder, "windows", columns=["token_ids"])))
    for ids_T in part["token_ids"].slice(0, COMPARED_WINDOWS).to_pylist():
        yield str(tokenizer.decode(ids_T, skip_special_tokens=False))


def _have_same_tokenizer(first: Measurement, second: Measurement) -> bool:
    """Return True if the manifests of two measurements are of the same tokens, as far as hashes tell."""
    return any(first.manifest.get(key) == second.manifest.get(key) for key in ("tokens_sha256", "tokenizer_sha256"))
