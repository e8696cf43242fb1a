"""Sentences about length generalization on synthetic tasks. What is not decided by intervals is said not to be shown."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Optional

from olmo_sparsity.statistics.length_generalization import (
    LEVEL,
    Furthest,
    Generalization,
    num_learned,
    of_methods,
    of_sparsity_alone,
    reaches_further,
)
from olmo_sparsity.statistics.synthetic import Setting
from olmo_sparsity.wording.synthetic_tasks import method_words, place_words, setting_words, task_words

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
    """Return whether sparsity, coupling and locality decide, and which baseline breaks first, as far as the runs show it."""
    sentences = [sparsity_sentence(found)] if _parities(found) else []
    settings = list(dict.fromkeys(one.setting for one in found.furthest))
    for task in ("parity", "variables"):
        compared = of_methods(settings, task)
        for kind in dict.fromkeys((one.train_lengths, one.max_sparsity) for one in compared):
            own = [
                one
                for one in found.furthest
                if one.setting in compared
                and (one.setting.train_lengths, one.k, one.place) == (*kind, None)
                and one.setting.max_sparsity == one.k
            ]
            sentences += [methods_sentence(found, own)] if own else []
    return sentences + ([bound_sentence(found)] if found.bound else [])


def _parities(found: Generalization) -> dict[Setting, list[Furthest]]:
    settings = of_sparsity_alone(one.setting for one in found.furthest)
    return {
        setting: [one for one in found.furthest if (one.setting, one.place) == (setting, None)] for setting in settings
    }


def sparsity_sentence(found: Generalization) -> str:
    """Return whether k up to K_train holds further than larger k."""
    parts, verdicts = [], []
    for setting, own in _parities(found).items():
        name = f"{task_words(setting)}, K_train = {setting.max_sparsity}"
        if not found.has_learned(setting):
            parts.append(f"{name}: not learned by every seed")
            continue
        trained = [one for one in own if one.k <= setting.max_sparsity]
        larger = [one for one in own if one.k > setting.max_sparsity]
        if not trained or not larger:
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
    shown = f"shown in {sum(verdicts)} of {len(verdicts)} settings" if any(verdicts) else "not shown"
    return (
        f"That k up to K_train holds further than larger k: {shown}. Accuracy of at least {LEVEL}: {'; '.join(parts)}."
    )


def methods_sentence(found: Generalization, own: Sequence[Furthest]) -> str:
    """Return how far the methods of one task hold at k = K_train, whether coupling decides, and which baseline breaks first."""
    first = own[0].setting
    learned = sorted((one for one in own if found.has_learned(one.setting)), key=lambda one: -(one.length or 0))
    not_learned = [method_words(one.setting) for one in own if not found.has_learned(one.setting)]
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
        breaks = method_words(last.setting)
    words = "; ".join(f"{method_words(one.setting)} to {furthest_words(one)} tokens" for one in learned) or "none"
    task = f"{task_words(first)} with a scratchpad" if first.task == "parity" else "variable assignment"
    return (
        f"{task[0].upper()}{task[1:]}, k = {first.max_sparsity}: that coupling holds further than every baseline that has "
        f"learned: {shown}; the baseline that breaks first: {breaks}. Accuracy of at least {LEVEL}: {words}."
        + (f" Not learned by every seed, so not ranked: {'; '.join(not_learned)}." if not_learned else "")
    )


def bound_sentence(found: Generalization) -> str:
    """Return what the linear bound, fitted to one corner of the sweep, says of the others."""
    bound = found.bound
    assert bound is not None
    learned, seeds = num_learned(found.runs)[bound.setting]
    corner = f"{setting_words(bound.setting)}, evaluated {place_words(bound.place)}, k = {bound.k}"
    others = found.num_broken + found.num_held
    return (
        f"Locality: an error of at most {bound.slope:.3f} times length / training length, fitted to the corner ({corner}; "
        f"learned by {learned} of {seeds} seeds), is broken by {found.num_broken} of {others} other points. "
        "That the bound is linear is an assumption."
    )
