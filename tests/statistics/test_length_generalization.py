"""How far tasks generalize in length, on planted tables: each number from the rows that it is of."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from pathlib import Path
from typing import Any, Optional

import pytest
from planted_answers import LOCAL, ROWS, Right, answers

from olmo_sparsity.errors import UserError
from olmo_sparsity.statistics.intervals.estimate import Estimate
from olmo_sparsity.statistics.length_generalization import (
    fit_bound,
    furthest_lengths,
    num_learned,
    of_encodings,
    of_methods,
    of_sparsity_alone,
    place_sweeps,
    reaches_further,
    read_generalization,
    task_runs,
)
from olmo_sparsity.statistics.synthetic import Accuracy, Setting, read_accuracies

LEARNED: dict[Setting, tuple[int, int]] = defaultdict(lambda: (1, 1))  # every setting by its one seed


def test_a_run_has_learned_where_it_answers_prompts_as_in_training(tmp_path: Path) -> None:
    """Of the training lengths, 4 to 8, and k up to K_train only: here 8 tokens, k = 2; all else is wrong."""
    folders = [
        answers(tmp_path / f"seed{seed}", lambda length, k, place, n=n: n if (length, k) == (8, 2) else 0,
                training_seed=seed, training_seconds=90.0, validation_loss_nats=0.25, ended_by="stop_loss",
                lengths=(2, 8, 16, 80))
        for seed, n in ((6, 18), (5, 19))
    ]  # fmt: skip
    first, second = task_runs(folders)
    assert (first.seed, first.run, first.accuracy_within, first.has_learned) == (5, "seed5", 0.95, True)
    assert (second.seed, second.run, second.accuracy_within, second.has_learned) == (6, "seed6", 0.9, False)
    assert (first.steps, first.minutes, first.validation_loss_nats, first.ended_by) == (70, 1.5, 0.25, "stop_loss")
    assert (first.setting, first.num_parameters) == (LOCAL, 9000)
    assert num_learned([first, second]) == {LOCAL: (1, 2)}


def test_where_places_are_evaluated_that_of_training_decides(tmp_path: Path) -> None:
    folder = answers(tmp_path / "run", lambda length, k, place: ROWS * (place == "4/2"), places=("4/1", "4/2", "any/2"))
    (run,) = task_runs([folder])
    assert run.accuracy_within == 1.0
    elsewhere = answers(tmp_path / "other", lambda length, k, place: ROWS, places=("any/1",))
    assert [one.accuracy_within for one in task_runs([elsewhere])] == [None]
    assert not task_runs([elsewhere])[0].has_learned
    in_row = answers(
        tmp_path / "row", lambda length, k, place: ROWS * (place == "inside"), places=("inside", "beyond"), lengths=(8,)
    )
    assert [one.accuracy_within for one in task_runs([in_row])] == [1.0]
    plain = answers(tmp_path / "plain", lambda length, k, place: ROWS // 2)
    assert [(one.run, one.accuracy_within) for one in task_runs([folder, plain])] == [("plain", 0.5)]


def accuracy(length: int, mean: float, bounds: Optional[tuple[float, float]], *seeds: float, **keys: Any) -> Accuracy:
    right = Estimate(mean, *(bounds or ()))
    return Accuracy(keys.pop("setting", LOCAL), length, keys.pop("k", 2), right, right, seeds or (mean,), **keys)


def test_the_furthest_length_ends_before_the_first_that_fails() -> None:
    """At 40 tokens the mean fails; that it is high again at 80 does not count."""
    own = [
        accuracy(80, 1.0, (1.0, 1.0), 1.0, 1.0),
        accuracy(8, 1.0, (0.96, 1.0), 1.0, 1.0),
        accuracy(16, 0.95, (0.9, 0.99), 0.9, 1.0),
        accuracy(40, 0.9, (0.8, 0.97), 0.85, 0.95),
    ]
    (found,) = furthest_lengths(own)
    assert (found.length, found.low, found.high, found.of_seeds, found.longest) == (16, 8, 80, (8, 80), 80)
    assert found.fails_at is None
    (never,) = furthest_lengths([accuracy(8, 0.5, (0.4, 0.6), 0.5), accuracy(16, 1.0, (1.0, 1.0), 1.0)])
    assert (never.length, never.low, never.high, never.fails_at, never.of_seeds) == (None, None, None, 8, (None,))


def test_an_accuracy_without_an_interval_may_be_anything() -> None:
    """At 16 tokens there is none; at 40 the accuracy is too low."""
    own = [accuracy(8, 1.0, (0.97, 1.0)), accuracy(16, 0.5, None), accuracy(40, 0.6, (0.5, 0.7))]
    (found,) = furthest_lengths(own)
    assert (found.length, found.low, found.high, found.fails_at, found.longest) == (8, 8, 16, 40, 40)
    (unknown,) = furthest_lengths([accuracy(8, 1.0, None), accuracy(16, 0.5, None)])
    assert (unknown.length, unknown.low, unknown.high, unknown.fails_at) == (8, None, 16, None)
    (far,) = furthest_lengths([accuracy(80, 1.0, (1.0, 1.0))])
    assert reaches_further(far, found) and not reaches_further(far, unknown) and not reaches_further(unknown, found)


def test_one_holds_further_where_the_intervals_of_the_lengths_do_not_touch() -> None:
    (far,) = furthest_lengths(
        [accuracy(8, 1.0, (1.0, 1.0)), accuracy(16, 1.0, (0.94, 1.0)), accuracy(40, 0.9, (0.8, 1.0))]
    )
    (near,) = furthest_lengths([accuracy(8, 0.94, (0.9, 0.94))])
    (close,) = furthest_lengths([accuracy(8, 0.94, (0.9, 0.96))])
    assert [(of.low, of.length, of.high) for of in (far, near, close)] == [
        (8, 16, 40), (None, None, None), (None, None, 8),
    ]  # fmt: skip
    assert [of.fails_at for of in (far, near, close)] == [None, 8, None]
    assert reaches_further(far, near) and not reaches_further(far, close)
    assert not reaches_further(near, far) and not reaches_further(near, near)


def test_all_evaluations_of_runs_are_read_and_a_setting_has_learned_with_all_of_its_seeds(tmp_path: Path) -> None:
    """Prompts that are placed as in training come first."""
    plain = [
        answers(tmp_path / f"{seed}", lambda length, k, place, n=n: n, training_seed=seed)
        for seed, n in ((5, 20), (6, 1))
    ]
    shorter = dataclasses.replace(LOCAL, train_lengths=(4, 6))
    learned = answers(tmp_path / "learned", lambda length, k, place: ROWS, setting=shorter, lengths=(6,))
    placed = answers(tmp_path / "placed", lambda length, k, place: ROWS, places=("any/1", "4/2"))
    found = read_generalization([placed, *plain, learned])
    assert [(run.seed, run.has_learned) for run in found.runs] == [(5, True), (6, False), (5, True)]
    assert (found.has_learned(LOCAL), found.has_learned(shorter)) == (False, True)
    assert [(one.setting, one.k, one.place) for one in found.furthest] == [
        *((setting, k, None) for setting in (LOCAL, shorter) for k in (2, 3)),
        *((LOCAL, k, place) for k in (2, 3) for place in ("4/2", "any/1")),
    ]
    (sweep,) = found.sweeps
    assert (sweep.near, sweep.far) == ("4/2", "any/1")


def test_each_k_and_place_has_its_own_furthest_length() -> None:
    own = [
        accuracy(length, value, None, k=k, place=place)
        for k, place, values in ((2, "4/1", (1, 1)), (3, "4/1", (1, 0)), (2, "any/1", (0, 1)))
        for length, value in zip((8, 16), values, strict=True)
    ]
    found = {(one.k, one.place): one.length for one in furthest_lengths(own)}
    assert found == {(2, "4/1"): 16, (3, "4/1"): 8, (2, "any/1"): None}


def test_the_bound_is_the_lowest_line_above_the_corner_and_broken_by_whole_intervals_only() -> None:
    """Errors of at most 0.1, 0.3 and 0.5 at 1, 2 and 10 times the training length of 8: the steepest line is of 2 times."""
    wide = dataclasses.replace(LOCAL, locality=None)
    farther = dataclasses.replace(LOCAL, locality=LOCAL.locality + 1, spread=LOCAL.spread - 1)
    corner = [
        accuracy(8, 0.95, (0.9, 1.0), k=3, place="4/2"),
        accuracy(16, 0.8, (0.7, 0.9), k=3, place="4/2"),
        accuracy(80, 0.6, (0.5, 0.7), k=3, place="4/2"),
    ]
    others = [
        accuracy(16, 0.0, None, k=2, place="4/2"),
        accuracy(16, 0.0, None, k=3, place="any/2"),
        accuracy(16, 0.0, None, k=3, place="any/2", setting=wide),
        accuracy(16, 0.0, None, k=3, place=farther.placed, setting=farther),  # locality counts first, then spread
    ]
    bound = fit_bound(others + corner)
    assert bound is not None
    assert (bound.setting, bound.place, bound.k, bound.slope) == (LOCAL, "4/2", 3, pytest.approx(0.15))
    assert bound.error(corner[2]) == pytest.approx(1.5)
    assert not any(bound.is_broken(one) for one in corner)
    assert bound.is_broken(accuracy(16, 0.6, (0.5, 0.69)))
    assert not bound.is_broken(accuracy(16, 0.6, (0.5, 0.71)))
    assert fit_bound([accuracy(8, 1.0, None)]) is fit_bound([others[1]]) is None
    faultless = fit_bound([accuracy(8, 1.0, (1.0, 1.0), k=3, place="4/2")])
    assert faultless is not None and faultless.slope == 0
    assert not faultless.is_broken(accuracy(80, 1.0, (0.8, 1.0))) and not faultless.is_broken(accuracy(80, 1.0, None))
    assert faultless.is_broken(accuracy(80, 0.9, (0.8, 0.99)))


def test_the_effect_of_the_place_is_that_of_the_nearest_minus_the_farthest_beyond_training(tmp_path: Path) -> None:
    """At k = 3: 16 tokens 15 and 11 of 20 right within 4, 1 apart, 80 tokens 9 and 3; anywhere, 5 apart: 8 and 6, 7 and 1.

    The second seed has one right response more within 4, at 16 tokens. All else is right, or of no account.
    """
    places = ("any/5", "4/1", "4/2", "any/1", "8/9")
    counts = {("4/1", 16): 15, ("4/1", 80): 9, ("any/5", 16): 8, ("any/5", 80): 6}

    def right(more: int) -> Right:
        return lambda length, k, place: (
            counts[place, length] + more * ((place, length) == ("4/1", 16))
            if k == 3 and (place, length) in counts
            else ROWS
        )

    text = dataclasses.replace(LOCAL, background="text")
    noise = [
        answers(
            tmp_path / f"{seed}", right(seed), ks=(2, 3), places=places, lengths=(8, 16, 40, 80), training_seed=seed
        )
        for seed in (0, 1)
    ]
    other = answers(tmp_path / "text", lambda length, k, place: ROWS, places=("4/2",), setting=text)
    wider = dataclasses.replace(LOCAL, locality=8)  # evaluated at one end of the sweep alone
    near = answers(tmp_path / "near", lambda length, k, place: ROWS, places=("4/1", "8/2"), setting=wider)
    every = [*noise, other, near]
    first, second = place_sweeps(every, read_accuracies(every), LEARNED)
    assert (first.background, first.near, first.far) == ("noise", "4/1", "any/5")
    (effect,) = first.effects
    assert (effect.setting, effect.k) == (LOCAL, 3)
    assert effect.difference.mean == pytest.approx((15.5 + 9 - 8 - 6) / 60)
    error_of_seeds = 0.5 / 60  # of the mean over two seeds that differ by 1 of 60
    assert effect.difference.standard_error is not None and effect.difference.standard_error > error_of_seeds
    assert (second.background, second.near, second.far, second.effects) == ("text", "4/2", "4/2", ())
    assert (second.bound and second.bound.setting) == text
    of_four = dataclasses.replace(LOCAL, modulus=4)  # another task, whose places are not those of the parity
    summed = answers(tmp_path / "four", lambda length, k, place: 7, places=("8/1", "any/2"), setting=of_four)
    both = [*noise, summed]
    parity, four = place_sweeps(both, read_accuracies(both), LEARNED)
    assert (parity.modulus, parity.near, parity.far, parity.bound) == (2, "4/1", "any/5", first.bound)
    assert [one.setting for one in parity.effects] == [LOCAL]
    assert (four.modulus, four.near, four.far, four.bound) == (4, "8/1", "any/2", None)
    assert [one.setting for one in four.effects] == [of_four]
    assert [sweep.holds(of_four) for sweep in (parity, four, second)] == [False, True, False]
    within = answers(tmp_path / "within", lambda length, k, place: ROWS, lengths=(8,), places=("4/1", "any/1"))
    assert place_sweeps([within], read_accuracies([within]), LEARNED)[0].effects == ()


def test_the_interval_of_the_effect_of_the_place_ends_at_1(tmp_path: Path) -> None:
    """Beyond training all is right within 4 and wrong anywhere in one seed; in the other nearly half is right in both."""

    def right(near: int, far: int) -> Right:
        return lambda length, k, place: {"4/1": near, "any/5": far}[place] if length > 8 else ROWS

    counts = [(ROWS, 0), (9, 8)]
    folders = [
        answers(tmp_path / f"{seed}", right(*of_seed), places=("any/5", "4/1"), lengths=(9, 16, 80), training_seed=seed)
        for seed, of_seed in enumerate(counts)
    ]
    (sweep,) = place_sweeps(folders, read_accuracies(folders), LEARNED)
    (effect,) = sweep.effects
    assert effect.difference.mean == pytest.approx((ROWS + 1) / (2 * ROWS))
    assert effect.difference.high == 1.0 and effect.difference.low is not None and effect.difference.low < 0


@pytest.mark.parametrize(("num_rows", "has_interval"), [(25, True), (24, False)])
def test_the_effect_of_the_place_has_an_interval_where_each_place_has_50_sequences(
    tmp_path: Path, num_rows: int, has_interval: bool
) -> None:
    """All is right: twice 25 sequences of each place, 100 in all, tell that no more than 0.07 depends on the place."""
    places = ("any/5", "4/1", "4/2")
    folder = answers(tmp_path / "all", lambda length, k, place: num_rows, places=places, num_rows=num_rows)
    ((effect,),) = (sweep.effects for sweep in place_sweeps([folder], read_accuracies([folder]), LEARNED))
    far = 1 - 0.025 ** (1 / 50)
    assert effect.difference.mean == 0
    assert effect.difference.bounds == (pytest.approx((-far, far)) if has_interval else None)


def test_settings_that_differ_in_locality_or_spread_are_no_seeds_of_one_model(tmp_path: Path) -> None:
    right: Right = lambda length, k, place: ROWS  # noqa: E731
    folders = [
        answers(tmp_path / f"{number}", right, setting=dataclasses.replace(LOCAL, **keys))
        for number, keys in enumerate(({}, {"locality": None}, {"spread": 1}))
    ]
    assert len({one.setting for one in read_accuracies(folders)}) == 3
    again = answers(tmp_path / "again", right)
    with pytest.raises(UserError) as error:
        read_accuracies([folders[0], again])
    assert str(error.value) == f"{again}: the same setting and seed as {folders[0]}; give one of them"


def test_each_setting_is_in_the_figures_that_compare_it() -> None:
    """Parity of K_train 2 and 4 compares sparsity; the one of the K_train with a scratchpad is its twin, too."""
    base = Setting("parity", False, "pose", 2, (4, 8), 128)
    steps = dataclasses.replace(base, scratchpad=True, positions="predicted")
    larger = dataclasses.replace(base, max_sparsity=4)
    ordinary = dataclasses.replace(base, num_chunks=1)
    text = dataclasses.replace(base, background="text")
    placed = dataclasses.replace(base, locality=4)
    none = dataclasses.replace(ordinary, position_embedding="none")
    scaled = dataclasses.replace(ordinary, rope_scaling="yarn")
    everything = [steps, base, larger, ordinary, text, placed, none, scaled]
    assert of_sparsity_alone(everything) == [base, larger, text]
    assert of_sparsity_alone([steps, base, ordinary]) == []
    assert of_sparsity_alone([base]) == [base]
    assert of_sparsity_alone([base, dataclasses.replace(steps, task="variables")]) == [base]
    assert of_methods(everything, "parity") == [steps, base, ordinary]
    assert of_methods([base, larger], "parity") == []
    of_four = dataclasses.replace(base, modulus=4)  # beside steps of the parity: no twin of theirs
    assert of_methods([steps, base, of_four], "parity") == [steps, base]
    assert of_sparsity_alone([steps, base, of_four]) == [of_four]
    with_steps = dataclasses.replace(none, scratchpad=True)
    assert of_methods([with_steps, none, base], "parity") == [with_steps, base]
    assert of_encodings(everything) == [base, ordinary, none, scaled]
    modulo = dataclasses.replace(ordinary, modulus=8)
    shorter = dataclasses.replace(base, train_lengths=(4, 6))
    assert of_encodings([larger, shorter, modulo, base, ordinary]) == []  # the first without PoSE is alone
    assert of_encodings([larger, shorter, base, ordinary, modulo]) == [base, ordinary]
    assert of_encodings([base, larger]) == of_encodings([ordinary]) == []
    variables = dataclasses.replace(steps, task="variables")
    alone = dataclasses.replace(variables, scratchpad=False, positions="shifted", position_embedding="absolute")
    other = dataclasses.replace(alone, max_sparsity=3)
    assert of_methods([*everything, variables, alone, other], "variables") == [variables, alone]
    assert of_methods([alone, other], "variables") == [alone, other]
