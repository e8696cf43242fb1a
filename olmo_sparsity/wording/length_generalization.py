"""Sentences about length generalization on synthetic tasks. What is not decided by intervals is said not to be shown."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Optional

from olmo_sparsity.statistics.length_generalization import (
    LEVEL,
    Furthest,
    Generalization,
    of_encodings,
    of_methods,
    of_sparsity_alone,
    reaches_further,
    task_of,
)
from olmo_sparsity.statistics.synthetic import Setting
from olmo_sparsity.wording.synthetic_tasks import (
    distinct_words,
    encoding_words,
    method_words,
    task_words,
    trained_lengths_words,
)

BASELINES = ("shifted", "pose")  # in ``synthetic.positions``, of a scratchpad without coupled IDs


def length_words(length: Optional[int], longest: int) -> str:
    """Return a length up to which an accuracy holds: ``none``, ``64`` or ``at least 250``."""
    if length is None:
        return "none"
    return f"at least {length}" if length == longest else str(length)


def furthest_words(one: Furthest) -> str:
    """Return how far a setting holds, such as ``64 [40, at least 250]``."""
    low, mean, high = (length_words(length, one.longest) for length in (one.low, one.length, one.high))
    return mean if low == mean == high else f"{mean} [{low}, {high}]"


def generalization_sentences(found: Generalization) -> list[str]:
    """Return whether sparsity and coupling decide, and which baseline breaks first, as far as the runs show it."""
    of_sparsity = sparsity_sentence(found)
    sentences = [of_sparsity] if of_sparsity else []
    settings = list(dict.fromkeys(one.setting for one in found.furthest))
    for task in ("parity", "variables"):
        compared = of_methods(settings, task)
        for trained in dict.fromkeys(map(task_of, compared)):
            own = [
                one
                for one in found.furthest
                if one.setting in compared and task_of(one.setting) == trained and one.k == one.setting.max_sparsity
            ]
            alike = {task_of(one) for one in compared if task_of(one)[1:] == trained[1:]}
            sentences += [methods_sentence(found, own, of_several_lengths=len(alike) > 1)] if own else []
    encodings = of_encodings(settings)
    sentences += [encodings_sentence(found, encodings)] if encodings else []
    return sentences


def _parities(found: Generalization) -> dict[Setting, list[Furthest]]:
    settings = of_sparsity_alone(one.setting for one in found.furthest)
    return {setting: [one for one in found.furthest if one.setting == setting] for setting in settings}


def sparsity_sentence(found: Generalization) -> str:
    """Return whether k up to K_train holds further than larger k; empty where no setting was evaluated at both."""
    parts, verdicts = [], []
    parities = _parities(found)
    names = distinct_words(parities, lambda one: f"{task_words(one)}, K_train = {one.max_sparsity}")
    for setting, own in parities.items():
        name = names[setting]
        trained = [one for one in own if one.k <= setting.max_sparsity]
        larger = [one for one in own if one.k > setting.max_sparsity]
        if not trained or not larger:
            continue
        if not found.has_learned(setting):
            parts.append(f"{name}: not learned by every seed")
            continue
        nearest = min(trained, key=lambda one: one.length or 0)
        furthest = max(larger, key=lambda one: one.length or 0)
        verdicts.append(all(reaches_further(one, other) for one in trained for other in larger))
        least, most = (
            [
                choose(length or 0 for length in lengths)
                for lengths in zip(*(one.of_seeds for one in group), strict=True)
            ]
            for choose, group in ((min, trained), (max, larger))
        )
        num_further = sum(map(operator.gt, least, most))
        parts.append(
            f"{name}: every k up to it to {furthest_words(nearest)} tokens, larger k to {furthest_words(furthest)} at most, "
            f"further in {num_further} of {len(nearest.of_seeds)} seeds"
        )
    if not parts:
        return ""
    shown = f"shown in {sum(verdicts)} of {len(verdicts)} settings" if any(verdicts) else "not shown"
    return (
        f"That k up to K_train holds further than larger k: {shown}. Accuracy of at least {LEVEL}: {'; '.join(parts)}."
    )


def methods_sentence(found: Generalization, own: Sequence[Furthest], *, of_several_lengths: bool = False) -> str:
    """Return how far the methods of one task hold at k = K_train, whether coupling decides, and which baseline breaks first.

    Args:
        found: of all runs.
        own: those of the task.
        of_several_lengths: the task was also trained at other lengths, so the sentence says at which.
    """
    first = own[0].setting
    learned, distances, names = _ranked(found, own, method_words)
    coupling = [one for one in learned if one.setting.positions == "predicted"]
    baselines = [one for one in learned if one.setting.scratchpad and one.setting.positions in BASELINES]
    shown = "not shown"
    if coupling and baselines:
        if all(reaches_further(coupling[0], one) for one in baselines):
            shown = "shown"
        elif any(reaches_further(one, coupling[0]) for one in baselines):
            shown = "no, a baseline holds further"
    last = baselines[-1] if len(baselines) > 1 else None
    breaks = "not shown"
    if last is not None and all(reaches_further(one, last) for one in baselines[:-1]):
        breaks = names[last.setting]
    task = f"{task_words(first)} with a scratchpad" if first.task == "parity" else "variable assignment"
    task += f", {trained_lengths_words(first)}" if of_several_lengths else ""
    return (
        f"{task[0].upper()}{task[1:]}, k = {first.max_sparsity}: that coupling holds further than every baseline that has "
        f"learned: {shown}; the baseline that breaks first: {breaks}. {distances}"
    )


def encodings_sentence(found: Generalization, settings: Sequence[Setting]) -> str:
    """Return how far encodings of positions hold at k = K_train, and whether one holds further than every other."""
    own = [one for one in found.furthest if one.setting in settings and one.k == one.setting.max_sparsity]
    learned, distances, names = _ranked(found, own, encoding_words)
    best = [one for one in learned if all(reaches_further(one, other) for other in learned if other is not one)]
    shown = names[best[0].setting] if best and len(learned) > 1 else "not shown"
    first = settings[0]
    return (
        f"Encodings of positions, {task_words(first)} without a scratchpad, k = {first.max_sparsity}: the one that holds further "
        f"than every other: {shown}. {distances}"
    )


def _ranked(
    found: Generalization, own: Sequence[Furthest], words: Callable[[Setting], str]
) -> tuple[list[Furthest], str, dict[Setting, str]]:
    """Return those that every seed has learned, the furthest first; how far they hold, and which are not ranked, in words; and
    the name of each, by which it is told from the others."""
    names = distinct_words((one.setting for one in own), words)
    learned = sorted((one for one in own if found.has_learned(one.setting)), key=lambda one: -(one.length or 0))
    not_learned = [names[one.setting] for one in own if not found.has_learned(one.setting)]
    lengths = "; ".join(f"{names[one.setting]} to {furthest_words(one)} tokens" for one in learned) or "none"
    unranked = f" Not learned by every seed, so not ranked: {'; '.join(not_learned)}." if not_learned else ""
    return learned, f"Accuracy of at least {LEVEL}: {lengths}.{unranked}", names
