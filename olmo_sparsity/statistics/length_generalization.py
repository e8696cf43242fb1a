"""How far synthetic tasks generalize in length: which runs have learned their task, up to which length they hold, and why.

Nothing here ranks a run that has not learned: its accuracy beyond the training lengths says nothing about length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np

from olmo_sparsity.statistics.synthetic import Accuracy, Setting, TableOfSeed, read_accuracies, tables_by_setting

LEVEL = 0.95  # the accuracy of a task that is learned, and of a length at which it holds


@dataclass(frozen=True)
class TaskRun:
    """One run of a synthetic task.

    Attributes:
        setting: what was trained.
        seed: of training.
        run: name of the folder.
        num_parameters: of the model.
        steps: optimizer steps.
        minutes: training time; None: not recorded.
        validation_loss_nats: held-out loss at the end, of prompts as in training; None: not recorded.
        ended_by: the key that ended training: ``steps`` or ``stop_loss``; None: not recorded.
        accuracy_within: share of right responses to the evaluated prompts that are as in training: its lengths, k up to K_train.
            None: none was evaluated.
    """

    setting: Setting
    seed: int
    run: str
    num_parameters: int
    steps: int
    minutes: Optional[float]
    validation_loss_nats: Optional[float]
    ended_by: Optional[str]
    accuracy_within: Optional[float]

    @property
    def has_learned(self) -> bool:
        """True if the accuracy on prompts as in training is at least ``LEVEL``."""
        return self.accuracy_within is not None and self.accuracy_within >= LEVEL


def task_runs(folders: Iterable[Path]) -> list[TaskRun]:
    """Return the runs of folders of ``synth eval``, by setting and seed.

    Raises:
        UserError: a folder has no finished table, or two are of one setting and seed.
    """
    return [
        _task_run(setting, of_seed)
        for setting, seeds in tables_by_setting(folders).items()
        for of_seed in sorted(seeds, key=lambda one: one.manifest["training_seed"])
    ]


def _task_run(setting: Setting, of_seed: TableOfSeed) -> TaskRun:
    manifest = of_seed.manifest
    seconds = manifest.get("training_seconds")
    right_R = of_seed.columns["right"][_is_as_trained(setting, of_seed.columns)]
    return TaskRun(
        setting=setting,
        seed=manifest["training_seed"],
        run=manifest["run"],
        num_parameters=manifest["num_parameters"],
        steps=manifest["checkpoint"]["step"],
        minutes=None if seconds is None else seconds / 60,
        validation_loss_nats=manifest.get("validation_loss_nats"),
        ended_by=manifest.get("ended_by"),
        accuracy_within=float(right_R.mean()) if len(right_R) else None,
    )


def _is_as_trained(setting: Setting, table: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return which rows of ``answers`` are of prompts as in training, bool."""
    shortest, longest = setting.train_lengths
    is_trained_R = (table["length_tokens"] >= shortest) & (table["length_tokens"] <= longest)
    is_trained_R &= table["sparsity"] <= setting.max_sparsity
    if "place" in table:
        is_trained_R &= table["place"] == "inside"
    return np.asarray(is_trained_R)


def num_learned(runs: Iterable[TaskRun]) -> dict[Setting, tuple[int, int]]:
    """Return, by setting, how many seeds have learned the task, and how many there are."""
    learned: dict[Setting, list[bool]] = {}
    for run in runs:
        learned.setdefault(run.setting, []).append(run.has_learned)
    return {setting: (sum(of_seeds), len(of_seeds)) for setting, of_seeds in learned.items()}


def every_seed_learned(learned: Mapping[Setting, tuple[int, int]], setting: Setting) -> bool:
    """Return whether all seeds of a setting have learned the task; ``learned``: of ``num_learned``."""
    num, seeds = learned[setting]
    return num == seeds


def of_sparsity_alone(settings: Iterable[Setting]) -> list[Setting]:
    """Return the settings of Figure 1, of which K_train is compared: parity without a scratchpad, with PoSE, planted anywhere.

    One that is there as the twin of settings with a scratchpad, of the same training lengths and modulus and no other K_train, is
    none.
    """
    everything = list(dict.fromkeys(settings))
    found = [
        one
        for one in everything
        if (one.task, one.scratchpad, one.positions, one.is_placed_anywhere) == ("parity", False, "pose", True)
        and one.num_chunks > 1
    ]

    def trained(one: Setting) -> tuple[object, ...]:
        return one.train_lengths, one.background, one.modulus

    with_steps = {trained(one) for one in everything if one.scratchpad and one.task == "parity"}
    num_sparsities = Counter(map(trained, found))
    return [one for one in found if trained(one) not in with_steps or num_sparsities[trained(one)] > 1]


def of_methods(settings: Iterable[Setting], task: str) -> list[Setting]:
    """Return the settings of Figure 2 or 3, of which the ways to give position IDs are compared.

    Those of the task with a scratchpad, and without one those of the same training lengths, K_train and modulus; of variable
    assignment all, where none has a scratchpad. Encodings that the paper does not have are there with a scratchpad alone.
    """
    own = [
        one
        for one in dict.fromkeys(settings)
        if (one.task, one.background, one.is_placed_anywhere) == (task, "noise", True)
    ]
    twins = {task_of(one) for one in own if one.scratchpad}
    return [
        one
        for one in own
        if one.scratchpad or (task_of(one) in twins and _is_of_paper(one)) or (task == "variables" and not twins)
    ]


def _is_of_paper(setting: Setting) -> bool:
    embeddings = {"pose": "rope", "shifted": "absolute"}
    return setting.rope_scaling == "none" and embeddings.get(setting.positions) == setting.position_embedding


def of_encodings(settings: Iterable[Setting]) -> list[Setting]:
    """Return the settings of which encodings of positions are compared: parity without a scratchpad, planted anywhere in noise.

    Those of one K_train and the same training lengths, where there are several, one of them with ordinary positions.
    """
    own = [
        one
        for one in dict.fromkeys(settings)
        if (one.task, one.scratchpad, one.background, one.is_placed_anywhere) == ("parity", False, "noise", True)
    ]
    tasks = [task_of(one) for one in own if one.num_chunks == 1]
    found = [one for one in own if task_of(one) in tasks[:1]]
    return found if len(found) > 1 else []


def task_of(setting: Setting) -> tuple[object, ...]:
    """Return what settings have in common whose methods or encodings are compared: what was to be learned."""
    return setting.train_lengths, setting.max_sparsity, setting.modulus


@dataclass(frozen=True)
class Furthest:
    """The largest evaluated length up to which the accuracy of a setting at one k is at least ``LEVEL`` at every one.

    None stands for no length: the accuracy is lower at the shortest one already.

    Attributes:
        setting: what was trained.
        k: sparsity of the evaluated sequences.
        length: of the mean over the seeds.
        low: of the lower ends of its intervals; an accuracy without an interval may be anything from 0 to 1.
        high: of the upper ends.
        fails_at: the shortest evaluated length at which an upper end is below ``LEVEL``; None: there is none.
        of_seeds: of each seed.
        longest: the longest evaluated length; a value that equals it is "at least".
    """

    setting: Setting
    k: int
    length: Optional[int]
    low: Optional[int]
    high: Optional[int]
    fails_at: Optional[int]
    of_seeds: tuple[Optional[int], ...]
    longest: int


def furthest_lengths(accuracies: Sequence[Accuracy]) -> list[Furthest]:
    """Return how far each setting holds, by k, in the order in which the accuracies name them."""
    cells: dict[tuple[Setting, int], list[Accuracy]] = {}
    for one in accuracies:
        cells.setdefault((one.setting, one.k), []).append(one)
    return [_furthest(*cell, sorted(own, key=lambda one: one.length)) for cell, own in cells.items()]


def _furthest(setting: Setting, k: int, own: Sequence[Accuracy]) -> Furthest:
    lengths = [one.length for one in own]

    def reached(values: Iterable[float]) -> Optional[int]:
        last = None
        for length, value in zip(lengths, values, strict=True):
            if value < LEVEL:
                break
            last = length
        return last

    ends = [one.right.bounds or (0.0, 1.0) for one in own]
    return Furthest(
        setting=setting,
        k=k,
        length=reached(one.right.mean for one in own),
        low=reached(low for low, _ in ends),
        high=reached(high for _, high in ends),
        fails_at=next((length for length, (_, high) in zip(lengths, ends, strict=True) if high < LEVEL), None),
        of_seeds=tuple(reached(values) for values in zip(*(one.of_seeds for one in own), strict=True)),
        longest=lengths[-1],
    )


@dataclass(frozen=True)
class Generalization:
    """What runs of synthetic tasks show of length generalization.

    Attributes:
        runs: by setting and seed.
        furthest: how far each setting holds, by k.
    """

    runs: tuple[TaskRun, ...]
    furthest: tuple[Furthest, ...]

    def has_learned(self, setting: Setting) -> bool:
        """Return whether all seeds of a setting have learned the task, so that it may be ranked."""
        return every_seed_learned(num_learned(self.runs), setting)


def read_generalization(folders: Sequence[Path]) -> Generalization:
    """Return what the tables of ``synth eval`` show.

    Raises:
        UserError: a folder has no finished table, or the seeds of a setting were evaluated on different sequences.
    """
    return Generalization(runs=tuple(task_runs(folders)), furthest=tuple(furthest_lengths(read_accuracies(folders))))


def reaches_further(first: Furthest, second: Furthest) -> bool:
    """Return whether the intervals of one hold at a length at which, or before which, those of another fail.

    The two may have been evaluated at different lengths, so that another holds to its longest one shows no end of it.
    """
    return first.low is not None and second.fails_at is not None and first.low >= second.fails_at
