"""How far synthetic tasks generalize in length: which runs have learned their task, up to which length they hold, and why.

Nothing here ranks a run that has not learned: its accuracy beyond the training lengths says nothing about length.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Optional

import numpy as np

from olmo_sparsity.config.synthetic import read_place
from olmo_sparsity.statistics.intervals.bootstrap import of_some
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.intervals.seeds import bounded, estimates_of_model
from olmo_sparsity.statistics.intervals.shares import Share, ShareDifference
from olmo_sparsity.statistics.synthetic import Accuracy, Setting, TableOfSeed, read_accuracies, tables_by_setting
from olmo_sparsity.tables.reading import read_manifest

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
        accuracy_within: share of right responses to the evaluated prompts that are as in training: its lengths, k up to K_train,
            its places of planted tokens. None: none was evaluated.
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
        UserError: a folder has no finished table, or two are of one setting and seed, and evaluated in the same ways.
    """
    found: dict[tuple[Setting, int], TaskRun] = {}
    for (setting, seed), of_seed in _answers_by_seed(folders):
        found.setdefault((setting, seed), _task_run(setting, of_seed))
    return list(found.values())


def split_by_places(folders: Iterable[Path]) -> tuple[list[Path], list[Path]]:
    """Return the folders of ``synth eval`` without ``synthetic.test_placed``, and those with it.

    A setting and seed may be evaluated both ways, so the two are read apart.
    """
    plain: list[Path] = []
    placed: list[Path] = []
    for folder in folders:
        (placed if read_manifest(folder, "synthetic").get("test_placed") else plain).append(folder)
    return plain, placed


def _answers_by_seed(folders: Iterable[Path]) -> Iterator[tuple[tuple[Setting, int], TableOfSeed]]:
    """Yield the tables by setting and seed, of those without ``synthetic.test_placed`` first."""
    for group in split_by_places(folders):
        for setting, seeds in tables_by_setting(group).items():
            for of_seed in sorted(seeds, key=lambda one: one.manifest["training_seed"]):
                yield (setting, of_seed.manifest["training_seed"]), of_seed


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
        is_trained_R &= np.isin(table["place"], ["inside", setting.placed])
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
        if (one.task, one.scratchpad, one.positions, one.placed) == ("parity", False, "pose", "any/1")
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
    own = [one for one in dict.fromkeys(settings) if (one.task, one.background, one.placed) == (task, "noise", "any/1")]
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
        if (one.task, one.scratchpad, one.background, one.placed) == ("parity", False, "noise", "any/1")
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
        place: as in ``Accuracy``.
        length: of the mean over the seeds.
        low: of the lower ends of its intervals; an accuracy without an interval may be anything from 0 to 1.
        high: of the upper ends.
        fails_at: the shortest evaluated length at which an upper end is below ``LEVEL``; None: there is none.
        of_seeds: of each seed.
        longest: the longest evaluated length; a value that equals it is "at least".
    """

    setting: Setting
    k: int
    place: Optional[str]
    length: Optional[int]
    low: Optional[int]
    high: Optional[int]
    fails_at: Optional[int]
    of_seeds: tuple[Optional[int], ...]
    longest: int


def furthest_lengths(accuracies: Sequence[Accuracy]) -> list[Furthest]:
    """Return how far each setting holds, by k and place, in the order in which the accuracies name them."""
    cells: dict[tuple[Setting, int, Optional[str]], list[Accuracy]] = {}
    for one in accuracies:
        cells.setdefault((one.setting, one.k, one.place), []).append(one)
    return [_furthest(*cell, sorted(own, key=lambda one: one.length)) for cell, own in cells.items()]


def _furthest(setting: Setting, k: int, place: Optional[str], own: Sequence[Accuracy]) -> Furthest:
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
        place=place,
        length=reached(one.right.mean for one in own),
        low=reached(low for low, _ in ends),
        high=reached(high for _, high in ends),
        fails_at=next((length for length, (_, high) in zip(lengths, ends, strict=True) if high < LEVEL), None),
        of_seeds=tuple(reached(values) for values in zip(*(one.of_seeds for one in own), strict=True)),
        longest=lengths[-1],
    )


@dataclass(frozen=True)
class LinearBound:
    """A bound on the error, 1 - accuracy, that is linear in length / training length, fitted to one corner of a sweep.

    That it is linear is an assumption: the constants of the bound of arXiv 2502.16792 are unknown.

    Attributes:
        setting: the corner: what was trained.
        place: the corner: how planted tokens were placed in evaluation.
        k: of the corner.
        slope: the smallest with which no upper end of the corner's errors lies above the line.
    """

    setting: Setting
    place: str
    k: int
    slope: float

    def error(self, one: Accuracy) -> float:
        """Return the bound for the length of an accuracy."""
        return self.slope * length_ratio(one)

    def is_broken(self, one: Accuracy) -> bool:
        """Return whether the whole interval of the error lies above the bound."""
        high = one.right.mean if one.right.high is None else one.right.high
        return 1 - high > self.error(one)


def length_ratio(one: Accuracy) -> float:
    """Return the length of the prompts over the longest prompt of training."""
    return one.length / one.setting.train_lengths[1]


def fit_bound(accuracies: Sequence[Accuracy]) -> Optional[LinearBound]:
    """Return the bound of a sweep of ``synthetic.test_placed``; None where its corner was not evaluated.

    The corner is the setting with the smallest locality and, of those, the smallest spread, evaluated as it was trained, at the
    largest k.
    """
    settings = {one.setting for one in accuracies if one.place is not None and one.place == one.setting.placed}
    if not settings:
        return None
    corner = min(settings, key=lambda setting: (setting.locality or np.inf, setting.spread))
    own = [one for one in accuracies if one.setting == corner and one.place == corner.placed]
    k = max(one.k for one in own)
    errors = [
        (1 - (one.right.mean if one.right.low is None else one.right.low)) / length_ratio(one)
        for one in own
        if one.k == k
    ]
    return LinearBound(corner, corner.placed, k, max(errors))


@dataclass(frozen=True)
class PlaceEffect:
    """How much the accuracy of a setting depends on where planted tokens lie in evaluation.

    Attributes:
        setting: what was trained.
        k: sparsity of the evaluated sequences, the largest.
        difference: accuracy at the nearest place of the sweep minus that at the farthest, the mean over the evaluated lengths
            beyond those of training. Its interval is over sequences, and seeds where there are several; it has none where a place
            has too few sequences.
    """

    setting: Setting
    k: int
    difference: Estimate


@dataclass(frozen=True)
class PlaceSweep:
    """Evaluations with ``synthetic.test_placed``, of one task on one background.

    Attributes:
        background: ``noise`` or ``text``.
        near: the place with the smallest locality and, of those, the smallest spread.
        far: that with the largest of both.
        effects: by setting; none where one place was evaluated, or nothing beyond the training lengths.
        bound: None where its corner was not evaluated.
        num_broken: accuracies without the corner whose whole interval lies below what the bound allows.
        num_held: the others of them.
        modulus: of the sums of planted values; 2: their parity.
        num_unlearned: settings that are left out, because not every seed has learned the task.
    """

    background: str
    near: str
    far: str
    effects: tuple[PlaceEffect, ...]
    bound: Optional[LinearBound]
    num_broken: int
    num_held: int
    modulus: int = 2
    num_unlearned: int = 0

    def holds(self, setting: Setting) -> bool:
        """Return whether the evaluations of a setting are of this sweep."""
        return (setting.background, setting.modulus) == (self.background, self.modulus)


def place_size(place: str) -> tuple[float, int]:
    """Return locality and spread of one of ``synthetic.test_placed``, by which places are ordered; anywhere is the last."""
    locality, spread = read_place(place)
    return (np.inf if locality is None else locality), spread


def place_sweeps(
    folders: Iterable[Path], accuracies: Sequence[Accuracy], learned: Mapping[Setting, tuple[int, int]]
) -> list[PlaceSweep]:
    """Return a sweep for each background and modulus of folders of ``synth eval`` with ``synthetic.test_placed``.

    Args:
        folders: with finished tables.
        accuracies: what ``read_accuracies`` returns of them.
        learned: of ``num_learned``. What not every seed has learned is left out, but of the corner that the bound is fitted to.

    Raises:
        UserError: a folder has no finished table.
    """
    tables = tables_by_setting(folders)
    of_tasks: dict[tuple[str, int], list[Accuracy]] = {}
    for one in accuracies:
        of_tasks.setdefault((one.setting.background, one.setting.modulus), []).append(one)
    return [_sweep(of_task, tables, learned) for of_task in of_tasks.values()]


def _sweep(
    accuracies: Sequence[Accuracy],
    tables: Mapping[Setting, Sequence[TableOfSeed]],
    learned: Mapping[Setting, tuple[int, int]],
) -> PlaceSweep:
    settings = {one.setting for one in accuracies}
    places = sorted({one.place for one in accuracies if one.place is not None}, key=place_size)
    bound = fit_bound(accuracies)
    in_full = {setting for setting in settings if every_seed_learned(learned, setting)}
    effects = [
        _place_effect(setting, [one.columns for one in of_seeds], near=places[0], far=places[-1])
        for setting, of_seeds in tables.items()
        if setting in in_full and len(places) > 1
    ]
    held = [
        not bound.is_broken(one)
        for one in accuracies
        if bound is not None
        and one.setting in in_full
        and (one.setting, one.place, one.k) != (bound.setting, bound.place, bound.k)
    ]
    return PlaceSweep(
        background=accuracies[0].setting.background,
        modulus=accuracies[0].setting.modulus,
        near=places[0],
        far=places[-1],
        effects=tuple(one for one in effects if one is not None),
        bound=bound,
        num_broken=held.count(False),
        num_held=held.count(True),
        num_unlearned=len(settings) - len(in_full),
    )


def _place_effect(
    setting: Setting, seeds: Sequence[Mapping[str, np.ndarray]], *, near: str, far: str
) -> Optional[PlaceEffect]:
    first = seeds[0]
    k = int(first["sparsity"].max())
    chosen_R = (first["sparsity"] == k) & (first["length_tokens"] > setting.train_lengths[1])
    is_near_W, is_far_W = (first["place"][chosen_R] == place for place in (near, far))
    if not (is_near_W.any() and is_far_W.any()):
        return None
    sums = [
        {
            "near": seed["right"][chosen_R] * is_near_W.astype(float),
            "far": seed["right"][chosen_R] * is_far_W.astype(float),
            "num_near": is_near_W.astype(float),
            "num_far": is_far_W.astype(float),
        }
        for seed in seeds
    ]

    def difference(totals: Mapping[str, np.ndarray]) -> dict[str, ShareDifference]:
        shares = (Share(totals[place], totals[f"num_{place}"]) for place in ("near", "far"))
        return {"difference": ShareDifference(*shares)}

    found = estimates_of_model(sums, difference)["difference"]
    for num in ("num_near", "num_far"):
        found = of_some(found, sums[0][num])
    return PlaceEffect(setting, k, bounded(found, least=-1.0))


@dataclass(frozen=True)
class Generalization:
    """What runs of synthetic tasks show of length generalization.

    Attributes:
        runs: by setting and seed.
        furthest: how far each setting holds, by k and place.
        sweeps: of the places of planted tokens, by background and modulus.
    """

    runs: tuple[TaskRun, ...]
    furthest: tuple[Furthest, ...]
    sweeps: tuple[PlaceSweep, ...]

    def has_learned(self, setting: Setting) -> bool:
        """Return whether all seeds of a setting have learned the task, so that it may be ranked."""
        return every_seed_learned(num_learned(self.runs), setting)


def read_generalization(folders: Sequence[Path]) -> Generalization:
    """Return what the tables of ``synth eval`` show.

    Raises:
        UserError: a folder has no finished table, or the seeds of a setting were evaluated on different sequences.
    """
    plain, placed = split_by_places(folders)
    in_places, runs = read_accuracies(placed), task_runs(folders)
    learned = num_learned(runs)
    return Generalization(
        runs=tuple(runs),
        furthest=tuple(furthest_lengths(read_accuracies(plain) + in_places)),
        sweeps=tuple(place_sweeps(placed, in_places, learned)),
    )


def reaches_further(first: Furthest, second: Furthest) -> bool:
    """Return whether the intervals of one hold at a length at which, or before which, those of another fail.

    The two may have been evaluated at different lengths, so that another holds to its longest one shows no end of it.
    """
    return first.low is not None and second.fails_at is not None and first.low >= second.fails_at
